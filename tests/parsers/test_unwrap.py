"""Nothing that stands around a log's lines changes a value of it, and text stays text."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from parsers import Ending, judge
from parsers.faults import FaultFinder
from parsers.unwrap import Unwrapper, mixed_line
from tests.parsers.helpers import FIXTURES


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
    for dialect in MUTATIONS.LOGS:
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
    assert unwrapped("Nov 22 10:00:00 node017 train: loss: 2.5\n" * 9) == "loss: 2.5\n" * 9  # syslog
    assert unwrapped(kept := "".join(f"iter {n}: loss\nstep 1 loss: 2.5\n" for n in range(9))) == kept
    assert unwrapped("x\n" * 500 + "Nov 22 10:00:00 c\n" * 30) == "x\n" * 500 + "c\n" * 30


def test_layers_come_off_one_by_one() -> None:
    line = '{"log":"2026-11-22T10:00:00.5Z stdout F node1: 0: loss é\\n","stream":"stdout","time":"2026"}\n'
    assert unwrapped(line * 4) == "0: loss é\n" * 4
    assert unwrapped('{"@timestamp": "2026", "message": "node1: loss: 2.5"}\n' * 4) == "loss: 2.5\n" * 4
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        assert unwrapped(("a line é\r\n" * 9).encode(encoding)).lstrip("\ufeff") == "a line é\r\n" * 9


@pytest.mark.parametrize(
    "prefix", ["> 0: ", "[1,0]<stderr>:", "(W pid=7, ip=10.0.0.1) ", "Nov 22 10:00:00 n1 t[7]: ", "train-1  | "]
)
def test_a_cause_behind_any_prefix(prefix: str) -> None:
    finder = FaultFinder()
    finder.feed(f"{prefix}torch.OutOfMemoryError: CUDA out of memory.")
    assert "CUDA out of memory" in (finder.faults().out_of_memory or "")


def test_a_traceback_that_is_logged_on_the_way_is_no_cause() -> None:
    logged = 'Traceback (most recent call last):\n  File "utils.py", line 3, in f\n    x()\nAttributeError: no FP8\n'
    for before in ("Import of FP8 from transformer_engine failed with: ", "INFO:bridge.utils:Import failed with: "):
        finder = FaultFinder()
        for line in f"{before}{logged}\n{logged.replace('no FP8', 'the cause')}".splitlines():
            finder.feed(line)
        assert finder.faults().root == "AttributeError: the cause"


@pytest.mark.parametrize("mutation", MUTATIONS.PLACED)
def test_what_a_damaged_log_says_is_right(mutation: str) -> None:
    for dialect in MUTATIONS.LOGS:
        assert MUTATIONS.tried(dialect, mutation, 3).word in ("same", "less"), dialect


def test_a_number_that_another_text_has_cut_is_unknown() -> None:
    line = "completed step: {}, seconds: 1.500, TFLOP/s/device: 8766.756, Tokens/s/device: 900.250, loss: 2.500"
    log = "\n".join(
        [line.format(n) for n in range(9)] + [line.format(9).replace("8766.756", "87[rank1]: hello\n66.756"), ""]
    )
    parsed = MUTATIONS.parsed(log.encode())
    assert [step.tflops_per_gpu for step in parsed.steps] == [8766.756] * 9 + [None]
    (note,) = [note for note in judge(Ending(), parsed).notes if "lack a value" in note]
    assert "tflops_per_gpu (1, the first at iteration 9)" in note


def test_a_setting_that_another_text_has_cut_is_unknown() -> None:
    log = (FIXTURES / "megatron_modern.log").read_text(encoding="utf-8")
    at = log.index("hidden_size ")
    at = log.index("512", at) + 2
    parsed = MUTATIONS.parsed(f"{log[:at]}WARNING: hello\n{log[at:]}".encode())
    assert "hidden_size" not in parsed.effective
    assert any("cut short" in note and "hidden_size (line" in note for note in parsed.notes)


def test_a_log_that_a_terminal_has_broken_is_put_together() -> None:
    log = (FIXTURES / "megatron_modern.log").read_text(encoding="utf-8")
    rows = "".join(f"{line[at : at + 80]}\n" for line in log.splitlines() for at in range(0, len(line) or 1, 80))
    clean, parsed = MUTATIONS.parsed(log.encode()), MUTATIONS.parsed(rows.encode())
    assert [step.metrics for step in parsed.steps] == [step.metrics for step in clean.steps]
    assert parsed.facts == clean.facts
    assert any("broken at 80 characters" in note for note in parsed.notes)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "lr: 0.5[rank3]:[W1122 10:00:00 x",
            "loss: 2.5(Worker pid=7, ip=10.0.0.1) hello",
            "a fewWARNING: NCCL is slow",
        ),
        *("steps: 8I1121 17:29:23.920936 139 x.py:2] b", "zero False[2026-11-21 03:35:01,100] [INFO] b"),
    ],
)
def test_a_line_that_holds_the_beginning_of_another(text: str) -> None:
    assert mixed_line(f"a\n{text}\n".encode()) == 2
    assert not mixed_line(
        text.replace("(", "\x1b[36m(").replace("[", ": [").replace("W", " W").replace("I", " I").encode()
    )


def test_lines_that_happen_to_be_as_long_as_one_another_are_not_broken() -> None:
    steps = (f"step {n:3} {'x' * 70} loss: {n % 7}.5{end}\nanother {end}\n" for n, end in enumerate("0123456789" * 3))
    runs = (f"command: {'--option=value ' * 5}{end}\nand more\n" for end in "abcdefgh")
    text = f"cut off {'1' * 65}'\ncut off {'1' * 64}0,\n"
    for log in ("".join(steps), "".join(runs), text * 20):
        assert unwrapped(log) == log
