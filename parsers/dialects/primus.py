"""Primus' Megatron backend, v25.9 to main: Megatron's lines in Primus' own log prefix, with AMD's additions.

Five layouts of the iteration line (order of fields, "this step/mean", memory in the middle or last) are all read by
parsers/dialects/megatron.py: it goes by the fields' names. Quirks: the console holds the lines only at level DEBUG;
from v26.3 on each line stands twice; the first two iterations have no tokens and another label for the same throughput.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from parsers.dialects import megatron
from parsers.dialects.megatron import MegatronDriver
from parsers.driver import Event, Fact


class _Driver(MegatronDriver):
    _vendor_known = False

    def feed(self, number: int, text: str) -> Iterable[Event]:
        events = super().feed(number, text)
        if self._vendor_known or not ("hip mem usage/" in text or "AMD Instinct" in text):
            return events
        self._vendor_known = True
        return (Fact("vendor", "amd", number), *events)


DIALECT = replace(
    megatron.DIALECT,
    framework="primus",
    looks_for="Primus: its '[rank-7/8]' prefix, 'hip mem usage/free/total' or 'tokens/s/GPU' in the iteration line",
    signs=(b"hip mem usage/", b"Primus", b"tokens/s/GPU inst/harmonic", b"tokens per GPU (tokens/s/GPU)"),
    startup=(*megatron.DIALECT.startup, b"backend_version=", b"AMD Instinct"),
    facts=(
        *megatron.DIALECT.facts,
        r"\bbackend_version=(?!None)(?P<megatron_version>[\w.+-]{1,40})",
        r"\bprimus_version=(?!None)(?P<framework_version>[\w.+-]{1,40})",
        r"(?P<device_name>AMD Instinct MI\w{3,6})",
    ),
    conversions={"megatron_version": str},
    driver=_Driver,
)
