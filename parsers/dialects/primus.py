"""Primus' Megatron backend, v25.9 to main: Megatron's lines in Primus' own log prefix, with AMD's additions.

Five layouts of the iteration line (order of fields, "this step/mean", memory in the middle or last) are all read by
parsers/megatron_line.py: it goes by the fields' names. Quirks: the console holds the lines only at level DEBUG; from
v26.3 on each line stands twice; the first two iterations have no tokens and another label for the same throughput.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from parsers import megatron_reader
from parsers.dialects.megatron import read_step
from parsers.events import Event, Fact, Reader
from parsers.megatron_reader import MegatronReader

FRAMEWORK = "primus"
LOOKS_FOR = (
    "Primus: its '[rank-7/8]' prefix, 'hip mem usage/free/total/usage_ratio' or 'tokens/s/GPU' in the iteration line"
)
SIGNS = (b"hip mem usage/", b"Primus", b"tokens/s/GPU inst/harmonic", b"tokens per GPU (tokens/s/GPU)")
MARKS = megatron_reader.MARKS
STARTUP = (*megatron_reader.STARTUP, b"backend_version=", b"AMD Instinct")
COMPANION = False
FAMILY = "megatron"

_VERSION = re.compile(r"\b(backend|primus)_version=([\w.+-]{1,40})")
_DEVICE = re.compile(r"AMD Instinct MI\w{3,6}")
_NAMES = {"backend": "megatron_version", "primus": "framework_version"}

__all__ = ["COMPANION", "FRAMEWORK", "LOOKS_FOR", "MARKS", "SIGNS", "STARTUP", "read_step", "reader"]


def reader() -> Reader:
    """A reader for one log."""
    return _PrimusReader()


class _PrimusReader(MegatronReader):
    _vendor_told = False

    def feed(self, number: int, text: str) -> Iterator[Event]:
        if not self._vendor_told and ("hip mem usage/" in text or "AMD Instinct" in text):
            self._vendor_told = True
            yield Fact("vendor", "amd", number)
        yield from super().feed(number, text)

    def _others(self, number: int, text: str) -> Iterator[Event]:
        if "backend_version=" in text:
            for what, version in _VERSION.findall(text):
                if version != "None":
                    yield Fact(_NAMES[what], version, number)
        elif "AMD Instinct" in text and (found := _DEVICE.search(text)):
            yield Fact("device_name", found[0], number)
        else:
            yield from super()._others(number, text)
