"""How a run ends that does not reach its last iteration."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.drills import started_processes, wait_until

pytestmark = pytest.mark.engine


def processes_with(text: str) -> list[int]:
    """Return the processes whose command line has `text`."""
    return [number for number, command in started_processes().items() if text in command]


def test_loss_that_is_not_finite_stops_all_ranks(run: Callable[..., Any]) -> None:
    done = run(lr=1e30, min_lr=0.0, lr_warmup_init=1e30, lr_warmup_iters=0, pipeline_model_parallel_size=2)
    assert done.code != 0
    assert re.search(r"exitcode +: 3 ", done.err)
    (message,) = re.findall(r"^engine: loss is (nan|inf) at iteration (\d+) of 20;.*$", done.err, re.M)
    last = done.marks("step")[-1]
    assert last["loss"] is None
    assert last["nonfinite"] is True
    assert last["iteration"] == len(done.iteration_lines) == int(message[1])
    assert done.iteration_lines[-1].endswith("number of nan iterations:   1 |")
    assert "after training is done" not in done.out


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="Linux only: prctl(PR_SET_PDEATHSIG)")
def test_ranks_die_with_torchrun(
    tmp_path: Path,
    torchrun: Callable[[Path, int], list[str]],
    settings_of: Callable[..., dict[str, Any]],
    corpus: Callable[[dict[str, Any]], str],
) -> None:
    path = tmp_path / "settings.json"
    settings = settings_of(train_iters=10_000)
    path.write_text(json.dumps({**settings, "data_path": corpus(settings)}))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        torchrun(path, 1), env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as parent:
        assert parent.stdout
        assert any("] iteration " in line for line in parent.stdout)
        assert len(processes_with(str(path))) == 2
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        wait_until(lambda: not processes_with(str(path)), "its ranks have ended")
