"""MLPerf's own lines, alone and inside another log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metrics import summarise
from parsers import Parser, Record
from parsers.cli import imported_all, rows
from parsers.driver import Fact, NewRun, Setting
from parsers.reader import FIRST_WINDOW, WINDOW
from parsers.record import Step, Validation
from tests.parsers.helpers import FIXTURES, all_runs, parse_text, read, steps_of

Stated = (Fact, Setting)


def point(key: str, value: Any, time_ms: int = 1, **metadata: Any) -> str:
    return ":::MLLOG " + json.dumps({"time_ms": time_ms, "key": key, "value": value, "metadata": metadata})


def written(*lines: str, path: Path) -> tuple[Record, ...]:
    """Return the records of a log with these lines."""
    path.write_text("".join(f"{line}\n" for line in lines))
    return imported_all(path)


@pytest.mark.parametrize("counts_from", [0, 1])
def test_samples_decide_from_where_a_submitter_counts(counts_from: int) -> None:
    lines = [point("global_batch_size", 8)] + [
        point("tracked_stats", {"reduced_train_loss": 2.0 + k}, step=k + counts_from, samples_count=8 * (k + 1))
        for k in range(3)
    ]
    steps = steps_of("mllog", "\n".join(lines))
    assert [(step.step, step.iteration) for step in steps] == [(k, k + counts_from) for k in range(3)]


def test_a_step_by_the_samples_before_it_or_in_place_of_its_number() -> None:
    """Primus, also where the log begins late; NeMo up to MLPerf 5.0, whose blocks have no step either."""
    stats = {"train_step_time": 1.5, "reduced_train_loss": 2.5}
    primus = [point("train_loss", 3.0 - k / 8, samples_count=8 * k, lr=1e-4) for k in (0, 1, 2)]
    late = [point("block_start", None, samples_count=80)]
    late += [point("train_loss", 2.0, samples_count=8 * k) for k in (10, 11)]
    ends = [point("train_loss", 2.0, samples_count=8 * k) for k in (10, 20)]
    samples = [point("block_start", None, samples_count=0)]
    samples += [point("tracked_stats", stats, step=8.0 * k) for k in (1, 2)]
    steps = [point("block_start", None, samples_count=16, step=0), point("tracked_stats", stats, step=16.0)]
    for lines, expected in ((primus, [0, 1, 2]), (late, [10, 11]), (ends, [9, 19]), (samples, [0, 1]), (steps, [16])):
        read_back = steps_of("mllog", "\n".join([point("global_batch_size", 8), *lines]))
        assert [step.step for step in read_back] == expected
        assert None not in [step.loss for step in read_back]


def test_gpt3_counts_tokens_until_4_0() -> None:
    lines = [point("submission_benchmark", "gpt3"), point("global_batch_size", 8), point("max_sequence_length", 2048)]
    lines += [point("tracked_stats", {"reduced_train_loss": 2.5}, step=k * 8 * 2048) for k in (1, 2)]
    lines += [point("eval_accuracy", 2.75, epoch_num=2 * 8 * 2048), point("eval_accuracy", 2.75, epoch_num=2048)]
    events = list(read("mllog", "\n".join(lines)))
    steps = [(event.step, event.consumed_samples) for event in events if isinstance(event, Step)]
    assert steps == [(0, 8), (1, 16)]
    assert [event.step for event in events if isinstance(event, Validation)] == [1, None]


def test_run_stop_judges_and_max_steps_is_a_ceiling(tmp_path: Path) -> None:
    begin = [point("global_batch_size", 8), point("max_steps", 1_200_000), point("run_start", None, 2_000)]
    steps = [point("train_loss", 2.0, 3_000, samples_count=8), point("eval_accuracy", 2.1, 4_000, samples_count=8)]
    fault = "srun: error: node7: task 3: Exited with exit code 1"
    for status, ends, seconds, samples in (
        ("success", "completed", 7.5, 16.0),
        ("aborted", "failed", None, None),
        (None, "unknown", None, None),
    ):
        stop = [point("run_stop", None, 9_500, status=status, samples_count=16)] if status else []
        before = [fault] if status else []
        (record,) = written(*before, *begin, *steps, *stop, path=tmp_path / "run.log")
        figures = summarise(record)
        assert record.status == ends, status
        assert (figures["time_to_train_s"].value, figures["samples_to_target"].value) == (seconds, samples)
        assert dict(rows(record)).get("time to train") == (None if seconds is None else "7.5 s")
        assert "train_iters" not in record.effective


def test_the_throughput_of_its_blocks_is_the_speed_where_no_step_is_timed(tmp_path: Path) -> None:
    ranks = [point("init_start", None, 1_000 + k) for k in range(8)]
    begin = [point("global_batch_size", 32), point("max_sequence_length", 8192), point("run_start", None, 2_000)]
    blocks: list[str] = []
    for k, rate in ((1, 10.0), (2, 15.0)):
        blocks.append(point("tracked_stats", {"throughput": rate}, step=3200 * k))
        blocks += [point("eval_start", None, 5_000, samples_count=3200 * k)] * 2
        # a rank says it again, and AMD's count lacks the last batch
        blocks += [point("eval_accuracy", 4.0 - k, 5_500, samples_count=3200 * k - 32)] * 2
    (record,) = written(*ranks, *begin, *blocks, path=tmp_path / "amd.log")
    figures = summarise(record)
    assert figures["samples_per_s"].value == 12.0
    assert figures["tokens_per_s_per_gpu"].value == 12.0 * 8192 / 8
    points = [(p.step, p.seconds, p.metrics["samples_per_s"]) for p in record.validations]
    assert points == [(99, 0.5, 10.0), (199, 0.5, 15.0)]
    assert not record.stalls


@pytest.mark.parametrize(
    ("name", "nodes", "world_size", "hardware"),
    [
        ("16xXE9712x4GB200", 16, 64, "gb200"),
        ("1xXE9785L_8xMI355X", 1, 8, "mi355x"),
        ("64 NVIDIA GB300 nodes", 64, None, "gb300"),
        ("128xNVIDIA GB200", 128, None, "gb200"),
        ("8xNVIDIA HGX H100", 8, None, "h100"),
        ("MI355X", None, None, "mi355x"),
        ("8xMI300X", None, None, "mi300x"),  # nodes or devices
        ("2xMI325X", 2, None, "mi325x"),  # no node has two
        ("4xMI300X", 4, None, "mi300x"),
        ("2xGB200", None, None, "gb200"),  # or one node, of two boards
        ("1xMI300X", 1, None, "mi300x"),
        ("2xA5000", None, None, None),
        ("1xXE7745x4H200-NVL-141GB", 1, 4, None),  # another card than the H200 of conf/hardware
        ("8xH100", None, None, None),
        ("8xA100_80GB-methods", None, None, None),  # one node
        ("8xMI325X_EPYC_9575F_pytorch", None, None, "mi325x"),
        ("2xD74H-7U", 2, None, None),
        ("8xSUBMISSION_PLATFORM_PLACEHOLDER", 8, None, None),
    ],
)
def test_a_platforms_name_states_what_is_without_doubt(
    name: str, nodes: int | None, world_size: int | None, hardware: str | None
) -> None:
    stated = {e.name: e.value for e in read("mllog", point("submission_platform", name)) if isinstance(e, Stated)}
    found = [stated.get(key) for key in ("num_nodes", "world_size", "hardware")]
    assert found == [nodes, world_size, hardware]
    assert stated.get("vendor") == (None if hardware is None else "amd" if "mi" in hardware else "nvidia")


def test_devices_are_counted_where_the_log_agrees_with_itself(tmp_path: Path) -> None:
    system = ':::SYSJSON {"number_of_nodes":"2","accelerators_per_node":"%s","accelerator_model_name":"%s"}'
    start, ranks = point("run_start", None, 2_000), [point("init_start", None, 1_000)]
    platform = point("submission_platform", "2xXE9680Lx8B200-SXM-180GB")
    for lines, world_size in (
        ([system % (8, "NVIDIA B200"), platform, *16 * ranks], 16),
        ([system % (1, "No devices were found"), *ranks], None),
        ([system % (4, "NVIDIA B200"), platform], None),
        ([system % (8, "NVIDIA B200"), point("submission_platform", "8xSOME_SYSTEM")], None),  # 2 nodes, or 8
        ([platform, *11 * ranks], 16),  # some of the lines were lost
        (ranks, None),  # one speaks for all
        ([system % (4, "NVIDIA H200"), "0: slurm2pytorch: MASTER_ADDR=a1 MASTER_PORT=9 WORLD_SIZE=64", *ranks], 64),
        (["All distributed processes registered. Starting with 32 processes", *ranks], 32),
        (["WORLD_SIZE=8", *ranks], None),  # of which program, and it may count nodes
        ([*8 * ranks, *(8 * [point("init_start", None, 900_000)])], 8),  # a second attempt
    ):
        (record,) = written(*lines, start, point("seed", 1), path=tmp_path / "n.log")
        assert record.setting("world_size") == world_size


def test_the_time_in_evaluation_is_known_where_each_has_its_start_and_end(tmp_path: Path) -> None:
    """Then tokens/s are those of the time to train without it: rates that stacks state leave more out."""
    begin = [point("global_batch_size", 8), point("max_sequence_length", 1024), point("run_start", None, 10_000)]
    begin += [point("tracked_stats", {"throughput": 9.0}), point("eval_start", None, 20_000, samples_count=80)]
    accuracy, stop = point("eval_accuracy", 0.5, 21_000), point("eval_stop", None, 22_000)
    again = [point("eval_start", None, 30_000), stop.replace("22000", "33000")]
    for lines, seconds, samples_per_s in (
        ([accuracy, stop], 2.0, 160 / 28),
        ([stop, accuracy, *again], 5.0, 160 / 25),
        ([accuracy], None, 9.0),
        ([accuracy, again[0], stop], None, 9.0),
        ([accuracy, stop, stop], None, 9.0),
    ):
        end = point("run_stop", None, 40_000, status="success", samples_count=160)
        (record,) = written(*begin, *lines, end, path=tmp_path / "run.log")
        assert record.environment.get("mlperf_evaluation_s") == seconds
        assert summarise(record)["tokens_per_s"].value == pytest.approx(1024 * samples_per_s)


def test_two_runs_without_steps_are_two_runs(tmp_path: Path) -> None:
    def run(at: int, loss: float, status: str) -> list[str]:
        names = [point("submission_benchmark", "gpt-oss-20b"), point("run_start", None, at)]
        evaluated = point("eval_accuracy", loss, at + 10, samples_count=8)
        stop = point("run_stop", None, at + 2000, status=status)
        return [*names, evaluated, evaluated, stop, point("cache_clear", True, at - 1)]  # HugeCTR's comes last

    records = written(*run(1000, 3.5, "aborted"), *run(9000, 3.2, "success"), path=tmp_path / "two.log")
    assert [(r.status, [p.loss for p in r.validations]) for r in records] == [("failed", [3.5]), ("completed", [3.2])]
    assert [r.environment.get("mlperf_time_to_train_s") for r in records] == [None, 2.0]
    assert {r.environment["model"] for r in records} == {"gpt_oss_20b"}


def test_what_a_restart_redoes_counts_once(tmp_path: Path) -> None:
    def attempt(at: int, first: int, last: int, loss: float) -> list[str]:
        lines = [point("init_start", None, at), point("run_start", None, at)]
        for block in range(first, last):
            lines += [point("block_start", None, at, samples_count=80 * block)]
            lines += [point("eval_start", None, at, samples_count=80 * (block + 1))]
            lines += 2 * [point("eval_accuracy", loss - block, at, samples_count=80 * (block + 1))]
        return lines

    stop = point("run_stop", None, 9_000, status="success", samples_count=320)
    batch = point("global_batch_size", 8)
    lines = [batch, *attempt(1_000, 0, 3, 9.0), batch, *attempt(5_000, 2, 4, 8.5), stop]
    (record,) = written(*lines, path=tmp_path / "again.log")
    assert [(p.step, p.metrics["eval_accuracy"]) for p in record.validations] == [(9, 9), (19, 8), (29, 6.5), (39, 5.5)]
    assert [restart.steps for restart in record.restarts] == [20]
    assert record.environment["mlperf_time_to_train_s"] == 8.0


def test_an_attempt_that_begins_anew_is_timed_by_itself(tmp_path: Path) -> None:
    def attempt(at: int) -> list[str]:
        losses = [point("train_loss", 9.5 - n - at / 1e6, at + n, samples_count=8 * n) for n in range(3)]
        return [point("global_batch_size", 8, at), point("run_start", None, at), *losses]

    lines = [*attempt(1_000), *attempt(50_000), point("run_stop", None, 52_000, status="success", samples_count=24)]
    first, second = written(*lines, path=tmp_path / "anew.log")
    assert [r.environment.get("mlperf_run_start_unix_s") for r in (first, second)] == [1.0, 50.0]
    assert [r.environment.get("mlperf_time_to_train_s") for r in (first, second)] == [None, 2.0]


def test_accuracy_is_a_loss_in_some_benchmarks_only() -> None:
    for benchmark, loss in (("gpt3", 2.69), ("deepseekv3_671b", 2.69), ("gpt-oss-20b", 2.69), ("bert", None)):
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
    assert [event.value for event in events if isinstance(event, Stated) and event.name == "completed"] == [False]


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
        ':::SYSJSON {"number_of_nodes": "8", "accelerators_per_node": "8", "accelerator_model_name": ["B200"]}',
        point("submission_platform", "9" * 90 + "xB200" + "x8B200-" * 900)
        + point("block_start", None, samples_count=[]),
        point("run_stop", [], status=["success"], samples_count={}) + point("eval_start", 0, samples_count=-1),
    ):
        assert steps_of("mllog", text) == []


def test_an_evaluation_of_several_accuracies_names_each(tmp_path: Path) -> None:
    lines = [
        point("eval_accuracy", {"BBOX": 0.375, "SEGM": 0.325}, 4_000, epoch_num=13),
        point("eval_accuracy", 88.5, 5_000, samples_count=8, metric="FID"),
        point("eval_accuracy", 0.125, 6_000, samples_count=8, metric="CLIP"),
    ]
    (record,) = written(*lines, path=tmp_path / "a.log")
    assert [dict(point.metrics) for point in record.validations] == [
        {"BBOX": 0.375, "SEGM": 0.325, "epoch_num": 13},
        {"FID": 88.5, "samples_count": 8},
        {"CLIP": 0.125, "samples_count": 8},
    ]
