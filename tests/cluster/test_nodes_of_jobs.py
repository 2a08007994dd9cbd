"""preflight= in a job of two emulated nodes, one of which is really held back."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from parsers import Record
from tensorprimat.launch import main as launch
from tests.cluster.jobs import TINY, processes
from tests.cluster.test_slurm import recorded, submitted

ON_TWO_NODES: tuple[str, ...] = (
    *TINY[:-1],
    "optimizer.lr_warmup_iters=1",
    "nodes=2",
    "gpus_per_node=1",
    "cluster=slurm",
)
ON_TWO_NODES = (*ON_TWO_NODES, "cluster.job.time_limit=00:30:00")


def looking_on(site: Mapping[str, str], node: str) -> int | None:
    """Return the process that looks at a node of this Slurm, once it has met the others: the rank, not torchrun."""
    for pid in processes(site, "node_check.py", node):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
            of_torchrun = any(word.endswith(b"start_ranks.py") for word in words)
            if not of_torchrun and any(link.startswith("socket:") for link in links):
                return pid
    return None


def hold_back(site: Mapping[str, str], node: str) -> None:
    """Let the rank that looks at a node run a quarter of the time, in turns of 20 ms, however busy the machine is."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    while not (pid := looking_on(site, node)):
        time.sleep(0.05)
    while True:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.015)
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.005)


@contextmanager
def held_back(site: Mapping[str, str], node: str) -> Iterator[None]:
    holder = multiprocessing.get_context("fork").Process(target=hold_back, args=(site, node), daemon=True)
    holder.start()
    try:
        yield
    finally:
        holder.kill()
        holder.join()
        if pid := looking_on(site, node):
            os.kill(pid, signal.SIGCONT)


def looked_at(site: Mapping[str, str], folder: Path, only: str = "") -> tuple[str, Record]:
    """Return how a job ended whose nodes are looked at first, and its record. only: "only" for nothing more."""
    bundle = folder / "bundle"
    assert launch([*ON_TWO_NODES, f"bundle={bundle}", "preflight=stop"]) == 0
    state = submitted({**site, "PYTHON": sys.executable, "PREFLIGHT": only}, bundle)
    log = sorted((bundle / "runs").iterdir())[-1] / "train.log"
    return state, recorded(log, folder / "record")


@pytest.mark.slurm
@pytest.mark.drill("nobody looked at the nodes")
def test_a_node_that_is_held_back_is_named_and_stops_the_run(site: Mapping[str, str], tmp_path: Path) -> None:
    with held_back(site, "tn2"):
        state, record = looked_at(site, tmp_path)
    nodes, found = (record.environment["preflight"][name] for name in ("nodes", "findings"))
    assert [node["host"] for node in nodes] == ["tn1", "tn2"]
    assert [(one["kind"], one["host"]) for one in found] == [("slow node", "tn2")]
    assert (state, len(record.steps), record.status) == ("FAILED", 0, "failed")
    assert record.cause is not None and record.cause.startswith("preflight: 1 findings: node 1 (tn2): takes ")


@pytest.mark.slurm
@pytest.mark.drill("nobody looked at the nodes")
def test_of_two_equal_nodes_under_load_none_is_named(site: Mapping[str, str], tmp_path: Path) -> None:
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]  # more than one a core
    try:
        state, record = looked_at(site, tmp_path, "only")
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert (state, record.environment["preflight"]["findings"]) == ("COMPLETED", [])
    assert [node["host"] for node in record.environment["preflight"]["nodes"]] == ["tn1", "tn2"]
