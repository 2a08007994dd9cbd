"""Rehearsals side by side: rows in the order of the request, at the same time, and what ends them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conf import devices, load_experiment
from conf.errors import InputError, Problem
from launchers import where
from launchers.plan import Host
from tensorprimat import together
from tests.drills import wait_until


def is_last(row: dict[str, Any]) -> bool:
    return bool(row["status"] == "killed")


def met(folder: Path, number: int, of: int) -> dict[str, Any]:
    """Return a row as soon as all of them run."""
    (folder / str(number)).touch()
    wait_until(lambda: len([*folder.iterdir()]) == of, "all run at a time")
    time.sleep(0.2 * (of - number))  # the first ends last
    return {"status": "completed", "number": number, "process": os.getpid()}


def rows(starts: list[Callable[[], dict[str, Any]]], most: int) -> list[dict[str, Any]]:
    return list(together.rows(starts, most, is_last))


def test_they_run_at_the_same_time_and_are_told_in_their_order(tmp_path: Path) -> None:
    found = rows([partial(met, tmp_path, number, 2) for number in range(2)], 2)
    assert [row["number"] for row in found] == [0, 1]
    assert len({row["process"] for row in found} | {os.getpid()}) == 3


def test_after_one_that_was_ended_none_is_started(tmp_path: Path) -> None:
    killed: Callable[[], dict[str, Any]] = partial(dict, status="killed")
    starts: list[Callable[[], dict[str, Any]]] = [killed, killed, partial(met, tmp_path, 2, 1)]
    for most in (1, 2):
        assert rows(starts, most) == [{"status": "killed"}] * most
        assert not (tmp_path / "2").exists()


def refused() -> dict[str, Any]:
    raise InputError(Problem("runs_dir", "cannot be written"))


def test_what_one_of_them_refuses_is_refused() -> None:
    with pytest.raises(InputError, match="runs_dir: cannot be written"):
        rows([partial(dict, status="completed"), refused], 2)


def until_signal(folder: Path) -> dict[str, Any]:
    came: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    (folder / str(os.getpid())).touch()
    wait_until(lambda: came, "a signal")
    return {"status": "killed"}


def test_a_signal_reaches_all_that_run_and_their_rows_are_kept(tmp_path: Path) -> None:
    def end() -> None:
        wait_until(lambda: len([*tmp_path.iterdir()]) == 2, "two run")
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=end, daemon=True).start()
    found = rows([partial(until_signal, tmp_path)] * 3, 2)
    assert found == [{"status": "killed"}] * 2
    assert signal.getsignal(signal.SIGTERM) == before
    assert multiprocessing.active_children() == []


def test_a_core_for_each_rank_and_real_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = load_experiment("framework=nemo", "rehearse=train", "model=llama", "layout=data_parallel", "gpus_per_node=1")
    wide = load_experiment("framework=nemo", "rehearse=train", "model=llama", "layout=tp2_pp2", "gpus_per_node=8")
    monkeypatch.setattr(devices, "available_memory_bytes", lambda: 24_000_000_000)
    for cores, expected in ((1, 1), (2, 2), (4, 3)):
        host = Host(python="python", cpu_count=cores)
        monkeypatch.setattr(where, "host", lambda host=host: host)
        assert together.at_once([toy] * 3) == expected
        assert together.at_once([toy, wide]) == 1
    assert together.at_once([load_experiment("platform=cpu")] * 3) == 1


def test_as_many_side_by_side_as_half_of_the_free_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, "host", lambda: Host(python="python", cpu_count=64))
    played = load_experiment("framework=nemo", "rehearse=layout", "model=llama31_8b", "layout=tp2_pp2")
    toy = load_experiment("framework=nemo", "rehearse=train", "model=llama", "layout=data_parallel", "gpus_per_node=1")
    for requested, free, expected in ((played, 28e9, 2), (played, 13e9, 1), (played, 0, 1), (toy, 28e9, 7)):
        monkeypatch.setattr(devices, "available_memory_bytes", lambda free=free: int(free))
        assert together.at_once([requested] * 9) == expected
