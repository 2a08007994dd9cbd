"""A real training on one machine: who else could reach it, and what it leaves behind."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.drills import ROOT

pytestmark = pytest.mark.engine


def listening(process: psutil.Popen) -> set[tuple[str, str]]:
    """Return program and address of whatever the family of `process` listened on until it ended."""
    seen = set()
    while process.poll() is None:
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                connections = one.net_connections("inet")
                seen |= {(one.name(), c.laddr.ip) for c in connections if c.status == psutil.CONN_LISTEN}
        time.sleep(0.05)
    return seen


@pytest.mark.drill("the store listened on every interface, gloo on the host name's; a folder stayed in /tmp each time")
def test_a_training_listens_on_the_loopback_and_leaves_nothing_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    sizes = ("gpus_per_node=2", "layout=tp2", "training.train_iters=4", "optimizer.lr_warmup_iters=1")
    launch = ("env", f"TMPDIR={elsewhere}", sys.executable, "launch.py", "platform=cpu", "model=llama_tiny", *sizes)
    argv = [*launch, "name=t", f"runs_dir={tmp_path}/runs"]
    process = psutil.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL)
    seen = listening(process)
    assert process.wait() == 0
    assert len({name for name, _ in seen}) >= 2, "torchrun's store and the ranks' gloo"
    assert {address for _, address in seen} == {"127.0.0.1"}, seen
    caches = "torchinductor_*"  # of the user's compiled kernels, for the next run
    assert {*elsewhere.iterdir()} == {*elsewhere.glob(caches)}
    (directory,) = (path for path in (tmp_path / "runs" / "t").iterdir() if path.is_dir())
    assert [path.name for path in directory.glob(".torchrun*")] == []
