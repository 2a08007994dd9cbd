"""A run that is killed again and again, at any time, is the run in one go to the last bit.

KILLS=50 python -m pytest -m drill tests/engine/test_engine_kills.py     make test has one kill of one rank"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.drills import wait_until
from tests.engine.conftest import Run, finished
from tests.engine.layouts import DP2, TP2_SP

KILLS, SEED = (int(os.environ.get(name, "1")) for name in ("KILLS", "SEED"))
STEPS_A_KILL = 5  # a start may get so far, about, before it is killed
WHOM = ("all", "torchrun", "a rank")
pytestmark = pytest.mark.engine


def steps_of(out: str) -> dict[int, tuple[float, float]]:
    """Return loss and gradient norm by iteration; the last line may be cut."""
    lines = [line for line in out.split("\n")[:-1] if line.startswith("[tprimat] step ")]
    steps = (json.loads(line.removeprefix("[tprimat] step ")) for line in lines)
    return {step["iteration"]: (step["loss"], step["grad_norm"]) for step in steps}


def kill(process: psutil.Popen, whom: str, chance: random.Random) -> None:
    """Send SIGKILL to all processes of a run, to torchrun, or to one rank; return when none is left."""
    ranks = process.children(recursive=True)
    one_rank: list[psutil.Process] = [chance.choice(ranks)] if ranks else [process]
    chosen: dict[str, list[psutil.Process]] = {"all": [process, *ranks], "torchrun": [process], "a rank": one_rank}
    for one in chosen[whom]:
        if one.is_running():
            one.kill()
    process.wait()
    wait_until(lambda: not any(r.is_running() and r.status() != psutil.STATUS_ZOMBIE for r in ranks), "no rank is left")


def begun_or_ended(process: psutil.Popen, log: Path) -> bool:
    return process.poll() is not None or bool(steps_of(log.read_text()))


@pytest.mark.drill("as now: bit-equal after 15 kills")
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param({}, id="1 rank"),
        pytest.param(DP2, id="2 ranks", marks=pytest.mark.slow),
        pytest.param({**TP2_SP, **DP2}, id="4 ranks", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_killed_again_and_again_is_bit_equal(
    tmp_path: Path, settings_of: Any, corpus: Any, torchrun: Callable[[Path, int], list[str]], layout: dict[str, Any]
) -> None:
    settings = settings_of(**layout, save_interval=1, train_iters=STEPS_A_KILL * (KILLS + 1))
    settings["data_path"] = corpus(settings)

    def command(name: str) -> list[str]:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "settings.json").write_text(json.dumps(settings))
        return torchrun(tmp_path / name / "settings.json", settings["world_size"])

    complete: Run = finished(settings, command("complete"), limit_s=600)
    assert complete.code == 0, complete.err
    expected = steps_of(complete.out)
    how: dict[str, Any] = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    chance, seen, killed = random.Random(SEED), dict[int, tuple[float, float]](), 0
    while len(seen) < settings["train_iters"]:
        log = tmp_path / f"log{killed}"
        with log.open("wb") as out, psutil.Popen(command("killed"), stdout=out, **how) as process:
            if killed < KILLS:
                wait_until(partial(begun_or_ended, process, log), "a step")
                time.sleep(chance.random())
                if process.poll() is None:
                    kill(process, WHOM[killed % len(WHOM)], chance)
                    assert process.returncode in (1, -signal.SIGKILL)
                    killed += 1
            process.wait()
        steps = steps_of(log.read_text())
        assert {iteration: expected[iteration] for iteration in steps} == steps, f"after {killed} kills"
        assert steps, "it goes on"
        assert min(steps) <= len(seen) + 1, "no step is left out"
        seen |= steps
    assert seen == expected
    print(f"{killed} kills, {len(expected)} steps, {settings['world_size']} ranks: bit-equal")
