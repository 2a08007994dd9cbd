"""TorchTitan run by Primus: TorchTitan's lines (parsers/torchtitan.py) in Primus' log prefix."""

from __future__ import annotations

from parsers import torchtitan
from parsers.torchtitan import read_step, reader

FRAMEWORK = "primus"
LOOKS_FOR = "TorchTitan in Primus: TorchTitan's step lines in a log that names Primus"
SIGNS = (b"Primus",)
MARKS = torchtitan.MARKS
STARTUP = torchtitan.STARTUP
COMPANION = False

__all__ = ["COMPANION", "FRAMEWORK", "LOOKS_FOR", "MARKS", "SIGNS", "STARTUP", "read_step", "reader"]
