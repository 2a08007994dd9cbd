"""A log of two parts: the second goes on from a checkpoint of the first."""

from __future__ import annotations

import json

import pytest

from parsers import Ending, judge, parse


def step(iteration: int, end_s: float, loss: float) -> list[str]:
    line = f" iteration {iteration:8d}/{6:8d} | elapsed time per iteration (ms): 500.0 | lm loss: {loss:.6E} |"
    values = {"iteration": iteration, "loss": loss, "end_monotonic_s": end_s}
    return [line, f"[tprimat] step {json.dumps(values)}"]


FIRST = [line for i in range(1, 6) for line in step(i, 100.0 + 0.5 * i, 10.0 - i)]
SECOND = [line for i in range(4, 7) for line in step(i, 7.0 + 0.5 * i, 20.0 - i)]
FAULT = "RuntimeError: something broke"
RESUMED = '[tprimat] resumed {"iteration": 3, "path": "checkpoints/iter_0000003", "same_layout": true}'


def test_the_steps_are_each_there_once_and_the_later_ones_count() -> None:
    parsed = parse([*FIRST, FAULT, RESUMED, *SECOND])
    assert [(s.iteration, s.loss) for s in parsed.steps] == [(1, 9), (2, 8), (3, 7), (4, 16), (5, 15), (6, 14)]
    assert judge(Ending(exit_code=0), parsed).status == "completed"
    assert "resumed after iteration 3 (line 12)" in parsed.notes
    ends = [s.end_monotonic_s for s in parsed.steps]
    assert ends == pytest.approx([100.5, 101.0, 101.5, 102.0, 102.5, 103.0]), "between the parts is no training"


def test_a_fault_of_the_first_part_is_not_the_cause_of_the_second_ones_end() -> None:
    parsed = parse([*FIRST, FAULT, RESUMED, *SECOND[:2], "OSError: another one"])
    outcome = judge(Ending(exit_code=1), parsed)
    assert outcome.status == "failed"
    assert outcome.cause == "OSError: another one"


@pytest.mark.parametrize("mark", ["{}", '{"iteration": "3"}', '{"iteration": true}', "[3]", "{"])
def test_marks_that_tell_no_number_change_nothing(mark: str) -> None:
    assert parse([*FIRST, f"[tprimat] resumed {mark}"]).steps == parse(FIRST).steps
