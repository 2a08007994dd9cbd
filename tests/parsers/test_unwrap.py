"""Nothing that stands around a log's lines changes a value of it, and text stays text."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from parsers.faults import FaultFinder
from parsers.unwrap import Unwrapper


def _benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "mutations.py"
    spec = importlib.util.spec_from_file_location("mutations", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MUTATIONS = _benchmark()


@pytest.mark.parametrize("mutation", [name for name in MUTATIONS.MUTATIONS if name not in MUTATIONS.PLACED])
def test_a_wrapped_log_is_read_to_its_last_fact_and_its_cause(mutation: str) -> None:
    for dialect in MUTATIONS.TEN:
        assert MUTATIONS.tried(dialect, mutation, 1) == ("same", ()), dialect


def unwrapped(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    unwrapper = Unwrapper(data)
    pieces = [unwrapper.feed(data[at : at + 7]) for at in range(0, len(data), 7)]
    return b"".join([*pieces, unwrapper.finish()]).decode()


TEXTS = (
    *("step: {n} loss: 2.5", "loss: {n}", "step-{n}: loss 2.5", "Error: {n}", "INFO: hello", "wandb: {n}"),
    *("2026-11-22 10:00:0{n} a log's own time", "number parameters: 1.2 billion", "0: a rank's", "{{'loss': {n}}}"),
    *("torch.OutOfMemoryError: GPU {n}", "srun: error: node{n}: Killed", '{{"loss": 0.{n}}}'),
)


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_no_wrapping_stays(text: str) -> None:
    log = "".join(f"{text.format(n=n)}\nand more\n" * (n < 3) or f"{text.format(n=n)}\n" for n in range(10))
    assert unwrapped(log) == log


def test_what_only_some_lines_bear_is_taken_off_those() -> None:
    assert unwrapped("a\n" + "node17: c\nnode18: \nnode18:\nnode17:  f\n" + "node17: d: e") == "a\nc\n\n\n f\nd: e"
    assert unwrapped("frontier: a\n" * 40 + "Error: b") == "a\n" * 40 + "Error: b"
    assert unwrapped("x\n" * 500 + "Nov 22 10:00:00 c\n" * 30) == "x\n" * 500 + "c\n" * 30


def test_layers_come_off_one_by_one() -> None:
    line = '{"log":"2026-11-22T10:00:00.5Z stdout F node1: 0: loss é\\n","stream":"stdout","time":"2026"}\n'
    assert unwrapped(line * 4) == "0: loss é\n" * 4
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        assert unwrapped(("a line é\r\n" * 9).encode(encoding)).lstrip("\ufeff") == "a line é\r\n" * 9


@pytest.mark.parametrize("prefix", ["> 0: ", "[1,0]<stderr>:", "(W pid=7, ip=10.0.0.1) ", "Nov 22 10:00:00 n1 t[7]: "])
def test_a_cause_behind_any_prefix(prefix: str) -> None:
    finder = FaultFinder()
    finder.feed(f"{prefix}torch.OutOfMemoryError: CUDA out of memory.")
    assert "CUDA out of memory" in (finder.faults().out_of_memory or "")
