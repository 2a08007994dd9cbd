"""The dialect of Megatron-LM and Megatron-Core, 2020 to today, NVIDIA's and ROCm's, and of our own engine."""

from __future__ import annotations

from parsers import megatron_reader
from parsers.events import Reader
from parsers.megatron_line import read_line, step_of
from parsers.record import Step

FRAMEWORK = "megatron"
LOOKS_FOR = "Megatron: lines 'iteration N/ TOTAL | consumed samples: … |', or its '---- arguments ----' dump"
SIGNS = (b"iteration ", b"iteration=", b" arguments --")
MARKS = megatron_reader.MARKS
STARTUP = megatron_reader.STARTUP
COMPANION = False
FAMILY = "megatron"


def reader() -> Reader:
    """A reader for one log."""
    return megatron_reader.MegatronReader()


def read_step(number: int, text: str) -> Step | None:
    """The step that this one line tells, without what only its neighbours tell."""
    line = read_line(number, text) if "iteration" in text else None
    return None if line is None else step_of(line)
