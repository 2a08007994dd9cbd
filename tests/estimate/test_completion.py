"""Rows that leave a part of their layout empty: completed by the fastest way that fits."""

from __future__ import annotations

import numpy as np

from estimate.completion import Judged, completed
from estimate.jobs import Jobs
from estimate.memory import memory
from estimate.rows import jobs_of, read_row
from estimate.tables import judged
from tests.estimate.test_rows import LLAMA


def _slow_pipelines(jobs: Jobs) -> Judged:
    """Judge: pipelines, small micro-batches and recomputation slow a step; TP alone saves memory."""
    times = jobs.pipeline_model_parallel_size + 1 / jobs.micro_batch_size + jobs.recompute_layers
    return Judged(times, 400e9 / jobs.tensor_model_parallel_size)


def test_the_fastest_way_that_fits_is_taken_and_said() -> None:
    names = ("tp", "pp", "vp", "cp", "dp", "mbs", "recompute")
    row = read_row(LLAMA | dict.fromkeys(names, ""))
    complete = read_row(LLAMA)
    done, same = completed([row, complete], _slow_pipelines)
    assert same is complete
    assert done.job is not None
    assert (done.job["tensor_model_parallel_size"], done.job["pipeline_model_parallel_size"]) == (8, 1)
    assert (done.job["micro_batch_size"], done.job["recompute_layers"]) == (2, 0)
    assert "TP 8, PP 1" in done.notes[-1]
    assert "that fit" in done.notes[-1]
    assert done.missing == {*names} - {"dp"}
    assert done.cells == row.cells


def test_where_nothing_fits_what_needs_least_is_taken() -> None:
    row = read_row(LLAMA | {"mbs": ""})
    (done,) = completed([row], lambda jobs: Judged(1 / jobs.micro_batch_size, 1e15 * jobs.micro_batch_size))
    assert done.job is not None
    assert done.job["micro_batch_size"] == 1
    assert "nothing tried fits" in done.notes[-1]


def test_recomputation_that_is_not_stated_is_what_makes_a_run_fit() -> None:
    """A row that ran fitted: where nothing recomputed needs twice the memory and everything fits, that was it."""
    row = read_row(LLAMA | {"recompute": ""})

    def needs(none_gb: float, full_gb: float) -> float:
        def judge(jobs: Jobs) -> Judged:
            return Judged(1 + jobs.recompute_layers, np.where(jobs.recompute_layers > 0, full_gb, none_gb) * 1e9)

        (done,) = completed([row], judge)
        assert done.job is not None
        return float(done.job["recompute_layers"])

    assert needs(170, 60) == 1
    assert [needs(70, 30), needs(100, 30), needs(400, 200)] == [0, 0, 0]


def test_a_row_refused_for_its_defaults_is_completed() -> None:
    """MLPerf states the steps of accumulation where the layout is not known."""
    mlperf = LLAMA | dict.fromkeys(("tp", "pp", "vp", "cp", "dp", "mbs"), "") | {"gpus": "16", "nodes": "2", "gbs": "8"}
    row = read_row(mlperf | {"notes": "system; ga=2; files=10"})
    assert "does not divide" in row.refused
    (done,) = completed([row], _slow_pipelines)
    assert done.job is not None
    replicas, micro_batch = done.job["data_parallel_size"], done.job["micro_batch_size"]
    assert isinstance(replicas, float | int) and isinstance(micro_batch, float | int)
    assert replicas * micro_batch == 4
    (never,) = completed([read_row(mlperf | {"notes": "ga=3"})], _slow_pipelines)
    assert never.refused


def test_a_row_without_a_gap_is_not_judged() -> None:
    def judge(jobs: Jobs) -> Judged:
        raise AssertionError

    assert completed([read_row(LLAMA), read_row({})], judge)[1].refused == "gpu: empty"


def test_a_cell_that_no_way_fills_is_not_said_to_be_taken() -> None:
    (done,) = completed([read_row(LLAMA | {"mbs": "", "precision": ""})], _slow_pipelines)
    assert "MBS" in done.notes[-1]
    assert "PRECISION" not in done.notes[-1]


def test_experts_and_uneven_layers_of_a_model_by_name_are_laid_out() -> None:
    """61 layers divide over no pipeline; 256 experts over 64 ranks need an eighth of the memory of 8."""
    row = {"gpu": "H100", "gpus": "1024", "model": "deepseek-v3", "seq": "4096", "gbs": "8192", "precision": "fp8"}
    (done,) = completed([read_row(row)], judged)
    assert done.job is not None and "nothing" not in done.notes[-1]
    sizes = jobs_of([done.job])
    assert sizes.expert_model_parallel_size >= 8
    assert memory(sizes).on_device.max() <= sizes.memory_bytes


def test_what_a_refusal_left_unread_is_missing_and_tried() -> None:
    """405B on 1,024 GPUs: the defaults are refused for 512 sequences, not for 1,024; both are the same gap."""
    row = {"gpu": "H100", "gpus": "1024", "model": "llama3.1-405b", "seq": "8192"}
    refused, read = (completed([read_row(row | {"gbs": size})], judged)[0] for size in ("512", "1024"))
    assert refused.missing == read.missing
    assert {"precision", "recompute"} <= refused.missing
