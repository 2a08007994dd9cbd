"""resume=true: a run that was killed goes on in its directory, and its record covers all of it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from test_run_engine import finish, records, start

import parsers
from tests.drills import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.slow]
RUN = ("platform=cpu", "training.train_iters=60", "training.save_interval=4", "model.num_layers=2")


def steps(directory: Path) -> list[tuple[int, float | None, float | None]]:
    return [(s.iteration, s.loss, s.grad_norm) for s in parsers.read(directory).steps]


def test_a_killed_run_goes_on_and_its_record_covers_all_steps(tmp_path: Path) -> None:
    process = start(tmp_path, *RUN, "name=t")
    wait_until(lambda: [*tmp_path.glob("t/*/checkpoints/latest")], "a checkpoint")
    (latest,) = tmp_path.glob("t/*/checkpoints/latest")
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 1
    directory = latest.parent.parent
    first = steps(directory)
    assert parsers.read(directory).status == "killed"
    assert 4 <= len(first) < 60

    code, _, err = finish(start(tmp_path, *RUN, "name=t", "resume=true"))
    assert code == 0, err
    (record,) = records(tmp_path)
    assert record["status"] == "completed"
    assert any(note.startswith("resumed after iteration ") for note in record["notes"])
    assert not (directory / "attempts").exists()
    assert finish(start(tmp_path, *RUN, "name=u"))[0] == 0
    (uninterrupted,) = tmp_path.glob("u/*/")
    assert [iteration for iteration, _, _ in steps(directory)] == list(range(1, 61))
    assert steps(directory) == steps(uninterrupted)
