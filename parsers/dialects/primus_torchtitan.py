"""TorchTitan run by Primus: TorchTitan's lines in Primus' log prefix."""

from __future__ import annotations

from dataclasses import replace

from parsers.dialects import torchtitan
from parsers.dialects.primus import OVERRIDES, OverridesDriver
from parsers.dialects.torchtitan import TorchTitanDriver


class _Driver(OverridesDriver, TorchTitanDriver):
    pass


DIALECT = replace(
    torchtitan.DIALECT,
    framework="primus",
    printed_by="torchtitan",
    looks_for="TorchTitan in Primus: TorchTitan's step lines in a log that names Primus",
    signs=(b"Primus",),
    startup=(*torchtitan.DIALECT.startup, OVERRIDES.encode()),
    driver=_Driver,
)
