"""Links against collectives that others timed (../shared/data/collectives_measured.csv)."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from estimate.fit import priors
from estimate.fitted import shipped
from estimate.step_time import _Maker, cases_of
from tests.estimate.test_step_time import job

TIMED = Path(__file__).parents[3] / "shared" / "data" / "collectives_measured.csv"
GPUS = {"A100-SXM-80": "a100", "H100-SXM": "h100", "H200-SXM": "h200", "B200-SXM": "b200", "MI300X": "mi300x"}
LARGE = ("4G", "8G", "16G")


def bus_bandwidth(gpu: str, ranks: int, collective: str) -> float:
    """Return the GB/s of large messages by the model at its priors, which no training was fitted to."""
    jobs, count = job(gpu=gpu), np.asarray(float(ranks))
    maker = _Maker(jobs, priors(shipped()), cases_of(jobs))
    gain = maker.all_reduce_gain(count) if collective == "all_reduce" else 1.0
    return float(maker.ring(count, np.ones(())) * gain) / 1e9


@pytest.mark.skipif(not TIMED.is_file(), reason="the collected table is not part of the repository")
def test_large_collectives_take_what_others_measured() -> None:
    with TIMED.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["msg"] in LARGE and row["gpu"] in GPUS]
    ratios = {}
    for row in rows:
        ring = "off" in row["alg_note"]
        said = bus_bandwidth(GPUS[row["gpu"]], int(row["ranks"]), "ring" if ring else row["collective"])
        ratios[row["gpu"], row["ranks"], row["collective"], row["alg_note"]] = said / float(row["busbw_gb_s"])
    assert len(ratios) >= 8
    assert all(0.85 <= ratio <= 1.15 for ratio in ratios.values()), ratios


def test_switches_add_up_all_reduces_of_five_ranks_and_more() -> None:
    assert bus_bandwidth("h100", 8, "all_reduce") == pytest.approx(1.31 * bus_bandwidth("h100", 8, "all_gather"))
    assert bus_bandwidth("h100", 4, "all_reduce") == bus_bandwidth("h100", 4, "all_gather")
    assert bus_bandwidth("a100", 8, "all_reduce") == bus_bandwidth("a100", 8, "all_gather")
