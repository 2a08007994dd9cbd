"""A real training on one machine: who else could reach it, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from launchers.variables import START
from tests.drills import ROOT, free_port

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


@pytest.mark.drill("the store of Primus' torchrun listened on every interface")
def test_primus_starts_its_ranks_on_the_loopback(tmp_path: Path) -> None:
    """By the words of examples/run_pretrain.sh:369 of v26.5."""
    ranks, words = tmp_path / "ranks.py", "--nproc_per_node 2 --nnodes 1 --node_rank 0 --master_addr localhost"
    ranks.write_text("import torch.distributed as d; d.init_process_group('gloo'); d.barrier()", encoding="utf-8")
    for name in ("primus/cli/main.py", "examples/run_pretrain.sh"):
        (tmp_path / "Primus" / name).parent.mkdir(parents=True)
        (tmp_path / "Primus" / name).touch()
    starts = f'eval "torchrun {words} --master_port $MASTER_PORT {ranks}"'
    (tmp_path / "Primus" / "examples" / "run_pretrain.sh").write_text(starts, encoding="utf-8")
    (tmp_path / "primus.yaml").touch()
    plan = {"START_RANKS": str(START), "NNODES": "1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    primus = {"PRIMUS_PATH": str(tmp_path / "Primus"), "PRIMUS_PYTHON": sys.executable}
    argv, env = ("bash", ROOT / "shell" / "primus_train.sh"), {**os.environ, **plan, **primus, "PRIMUS_CACHE_ROOT": "k"}
    process = psutil.Popen(argv, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    seen = listening(process)
    assert process.wait() == 0
    assert {address for _, address in seen} == {"127.0.0.1"}, seen
    assert not [*(tmp_path / "primus" / "torchrun").iterdir()]
