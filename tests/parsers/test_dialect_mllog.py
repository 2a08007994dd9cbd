"""MLPerf's own lines, alone and inside another log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers import FIXTURES, all_runs, parse_text, read, steps_of

from parsers import Parser
from parsers.driver import NewRun
from parsers.reader import FIRST_WINDOW, WINDOW
from parsers.record import Validation


def point(key: str, value: Any, time_ms: int = 1, **metadata: Any) -> str:
    return ":::MLLOG " + json.dumps({"time_ms": time_ms, "key": key, "value": value, "metadata": metadata})


@pytest.mark.parametrize("counts_from", [0, 1])
def test_samples_decide_from_where_a_submitter_counts(counts_from: int) -> None:
    lines = [point("global_batch_size", 8)] + [
        point("tracked_stats", {"reduced_train_loss": 2.0 + k}, step=k + counts_from, samples_count=8 * (k + 1))
        for k in range(3)
    ]
    steps = steps_of("mllog", "\n".join(lines))
    assert [(step.step, step.iteration) for step in steps] == [(k, k + counts_from) for k in range(3)]


def test_accuracy_is_a_loss_in_some_benchmarks_only() -> None:
    for benchmark, loss in (("gpt3", 2.69), ("bert", None)):
        text = f"{point('submission_benchmark', benchmark)}\n{point('eval_accuracy', 2.69)}"
        (stated,) = (event for event in read("mllog", text) if isinstance(event, Validation))
        assert (stated.loss, stated.metrics) == (loss, {"eval_accuracy": 2.69})


def test_a_mean_over_a_block_is_no_step() -> None:
    text = f"{point('global_batch_size', 8)}\n{point('tracked_stats', {'train_step_time': 27.7}, samples_count=80)}"
    assert steps_of("mllog", text) == []


def test_a_run_that_stopped_and_another_that_starts() -> None:
    text = "\n".join([point("run_start", None), point("run_stop", None, status="aborted"), point("init_start", None)])
    events = read("mllog", text)
    assert [event.line for event in events if isinstance(event, NewRun)] == [3]
    assert not [event for event in events if getattr(event, "name", "") == "completed"]


def test_inside_a_log_of_nemo_both_are_read() -> None:
    nemo = FIXTURES.joinpath("nemo2_tiny.log").read_text()
    inside = FIXTURES.joinpath("mllog_tiny.log").read_text().replace('"key": "run_stop"', '"key": "other"')
    (run,) = parse_text(nemo + inside)
    assert (run.dialect, run.dialects) == ("nemo2", ("nemo2", "mllog"))
    assert [step.loss for step in run.steps] == [6.939, 6.976, 6.947, None, 6.9, 6.89]
    assert run.effective["seq_length"].value == 8192
    assert run.facts["mlperf_submission_benchmark"] == "llama31_8b"


def tracked(first: int, count: int) -> Iterator[str]:
    about = {"file": "/workspace/" + 900 * "a" + ".py", "lineno": 480}  # few lines, many bytes
    for step in range(first, first + count):
        stats = {"train_step_time": 1.5, "reduced_train_loss": 2.0 + 9.0 / (1 + step)}
        yield point("tracked_stats", stats, step, **about, step=step, samples_count=8 * step + 8) + "\n"


def test_a_program_that_follows_is_another_run_and_takes_no_step_from_the_first() -> None:
    """Its lines are a companion's: where in a megabyte of its steps no program shows itself, none runs."""
    nemo = FIXTURES.joinpath("nemo2_tiny.log").read_text()
    losses = [6.939, 6.976, 6.947, None, 6.9, 6.89]
    for count in (2_000, 10_000):
        alone = point("global_batch_size", 8) + "\n" + "".join(tracked(0, count))
        assert len(alone) > FIRST_WINDOW + (WINDOW if count > 2_000 else 0)
        first, second = all_runs((alone + nemo).encode())
        assert (first.dialect, len(first.steps), first.steps[-1].step) == ("mllog", count, count - 1)
        assert (second.dialect, [step.loss for step in second.steps]) == ("nemo2", losses)


def test_a_log_of_it_alone_is_read_as_it_comes() -> None:
    """Waiting for another program for ever would hold the full log in memory."""
    parser, steps, stated = Parser(), tracked(0, 10**9), 0
    parser.feed(point("global_batch_size", 8))
    while stated < FIRST_WINDOW + WINDOW:
        text = "".join(next(steps) for _ in range(2000))
        parser.feed_bytes(text.encode())
        stated += len(text)
    before = parser.result().steps[-1].step
    parser.feed_bytes("".join(next(steps) for _ in range(10)).encode())
    # the last one is kept until the next: more lines may be its own
    assert parser.result().steps[-1].step == before + 10


def test_nothing_makes_it_raise() -> None:
    for text in (
        ":::MLLOG {",
        ":::MLLOG []",
        ":::MLLOG " + "[" * 5000,
        ":::MLLOG " + '{"key": "tracked_stats", "value": {"reduced_train_loss": [1]}, "metadata": 3}',
        ":::MLLOG " + '{"key": "seed", "value": ' + "9" * 6000 + "}",
        ":::MLLOG " + '{"key": "eval_accuracy", "value": "1e999", "metadata": {"samples_count": 1e400}}',
        ':::SYSJSON {"number_of_nodes": "\\ud800", "accelerators_per_node": 1e999}',
    ):
        assert steps_of("mllog", text) == []
