"""Step lines that a terminal has broken: put together again, wherever the break is, and never guessed at."""

from __future__ import annotations

import re

import pytest

from parsers.dialects import load
from parsers.driver import WrappedLines
from tests.parsers.helpers import steps_of as steps

STARTS = re.compile(r"step=\d+ ")
LINES = {
    "torchtitan": (
        "step: 10  loss:  3.12459  grad_norm:  0.0441  memory: 26.01GiB(82.96%)  tps: 2,528  tflops: 15.68  mfu: 5.03%"
    ),
    "maxtext": (
        "completed step: 3, seconds: 10.344, TFLOP/s/device: 346.932, Tokens/s/device: 19006.461, "
        "total_weights: 1572864, loss: 12.979"
    ),
    "nanotron": (
        "iteration: 2 / 8 | consumed_tokens: 2.1M | time_per_iteration_ms: 982 | tokens_per_sec: 1.07M "
        "| tokens_per_sec_per_gpu: 66.7K | global_batch_size: 1.05M | grad_norm: 10.1 | lm_loss: 11.1 | lr: 0.0003 "
        "| model_tflops_per_gpu: 138"
    ),
    "hf": "{'loss': 2.9859, 'grad_norm': 1.5, 'learning_rate': 4.1e-05, 'epoch': 0.1, 'global_step/max_steps': '5/97'}",
}
HEADS = {"torchtitan": "loss:", "maxtext": "seconds", "nanotron": "consumed", "hf": "2.98"}
TAILS = {"torchtitan": "5.03%", "maxtext": "12.979", "nanotron": "138", "hf": "'}"}


@pytest.mark.parametrize("dialect", LINES)
def test_a_break_anywhere_in_a_step_line(dialect: str) -> None:
    line = LINES[dialect]
    (complete,) = steps(dialect, line)
    for at in range(line.index(HEADS[dialect]) + len(HEADS[dialect]), line.index(TAILS[dialect]) + 1):
        assert steps(dialect, f"{line[:at]}\n{line[at:]}\nsomething else") == [complete], line[:at]


@pytest.mark.parametrize("dialect", LINES)
def test_three_pieces_under_a_prefix(dialect: str) -> None:
    line = LINES[dialect]
    at = line.index(HEADS[dialect]) + len(HEADS[dialect])
    pieces = (line[: at + 3], line[at + 3 : at + 20], line[at + 20 :])
    broken = "\n".join(f"(worker, pid=4112) {piece}" for piece in pieces)
    assert steps(dialect, broken) == steps(dialect, line)


@pytest.mark.parametrize("dialect", LINES)
def test_a_line_that_stays_cut_never_tells_half_a_number(dialect: str) -> None:
    line = LINES[dialect]
    (complete,) = steps(dialect, line)
    names = ("loss", "grad_norm", "lr", "step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "memory_bytes")
    for at in range(1, len(line) - len(TAILS[dialect])):
        for step in steps(dialect, line[:at]):
            for name in names:
                assert getattr(step, name) in (None, getattr(complete, name)), (line[:at], name)


@pytest.mark.parametrize("dialect", LINES)
def test_two_steps_in_one_line(dialect: str) -> None:
    line, numbers = LINES[dialect], {"torchtitan": "10", "maxtext": "3", "nanotron": "2", "hf": "5"}
    other = line.replace(f" {numbers[dialect]} ", " 11 ").replace("step: 3,", "step: 11,").replace("'5/97'", "'11/97'")
    found = steps(dialect, f"{line}[rank1]: {other}\nsomething else")
    assert [step.step for step in found] == [step.step for text in (line, other) for step in steps(dialect, text)]
    assert [step.loss for step in found] == [steps(dialect, line)[0].loss] * 2


def lines(*texts: str) -> list[tuple[int, str]]:
    wrapped = WrappedLines(STARTS, lambda text: text.endswith("."))
    found = [line for number, text in enumerate(texts, start=1) for line in wrapped.feed(number, text)]
    return [*found, *wrapped.end()]


def test_what_follows_a_cut_line_comes_as_it_was() -> None:
    texts = ["step=1 a b", "another", "and another", "step=2 a b.", "step=3 a"]
    assert lines(*texts) == [(1, "step=1 a "), (2, "another"), (3, "and another"), (4, "step=2 a b."), (5, "step=3 ")]


def test_it_gives_up_after_a_few_lines() -> None:
    texts = ["step=1 a b", *(f"line {number}" for number in range(20))]
    assert [text for _, text in lines(*texts)] == ["step=1 a ", *texts[1:]]


@pytest.mark.parametrize("dialect", LINES)
def test_it_wants_the_next_line_only_while_one_is_cut(dialect: str) -> None:
    reader = load(dialect).reader()
    list(reader.feed(1, LINES[dialect]))
    assert reader.wants == 0
    at = LINES[dialect].index(HEADS[dialect]) + len(HEADS[dialect])
    list(reader.feed(2, LINES[dialect][: at + 1]))
    assert reader.wants == 1
