"""preflight= in a job of two emulated nodes, one of which is really held back."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from launch import main as launch
from parsers import Record
from tests.cluster.jobs import TINY
from tests.cluster.test_slurm import recorded, submitted

ON_TWO_NODES = (*TINY[:-1], "optimizer.lr_warmup_iters=1", "nodes=2", "gpus_per_node=1", "cluster=slurm")
ON_TWO_NODES = (*ON_TWO_NODES, "cluster.job.time_limit=00:30:00")
ATTEMPTS = 3
"""On a machine that others use, too, noise may hide even a rank that is held back: what is not certain is not named."""


def looking_on(node: str) -> int | None:
    """Return the process that looks at a node, once it has met the others: the rank, not torchrun."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            ours = any(word.endswith(b"node_check.py") for word in words) and not any(
                word.endswith(b"start_ranks.py") for word in words
            )
            if (
                ours
                and any(str(link.readlink()).startswith("socket:") for link in (path / "fd").iterdir())
                and f"SLURMD_NODENAME={node}".encode() in (path / "environ").read_bytes().split(b"\0")
            ):
                return int(path.name)
    return None


def hold_back(node: str, ended: threading.Event) -> None:
    """Let the rank that looks at a node run a sixth of the time."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -15)
    pid = None
    while not ended.wait(0.05):
        pid = pid or looking_on(node)
        with suppress(ProcessLookupError):
            if pid:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.25)
                os.kill(pid, signal.SIGCONT)


def looked_at(site: Mapping[str, str], folder: Path, held: str) -> tuple[str, Record]:
    """Return how a job ended whose nodes are looked at first, and its record. held: the node that is held back."""
    bundle, ended = folder / "bundle", threading.Event()
    assert launch([*ON_TWO_NODES, "preflight=stop", f"bundle={bundle}"]) == 0
    holding = threading.Thread(target=hold_back, args=(held, ended))
    holding.start()
    try:
        state = submitted({**site, "PYTHON": sys.executable}, bundle)
    finally:
        ended.set()
        holding.join()
    log = sorted((bundle / "runs").iterdir())[-1] / "train.log"
    return state, recorded(log, folder / "record")


@pytest.mark.slurm
@pytest.mark.drill("nobody looked at the nodes")
def test_a_node_that_is_held_back_is_named_and_stops_the_run(site: Mapping[str, str], tmp_path: Path) -> None:
    for attempt in range(ATTEMPTS):
        state, record = looked_at(site, tmp_path / str(attempt), "tn2")
        nodes, found = (record.environment["preflight"][name] for name in ("nodes", "findings"))
        assert [node["host"] for node in nodes] == ["tn1", "tn2"]
        if slow := [one for one in found if one["kind"] == "slow node"]:
            break
    assert {one["host"] for one in slow} == {"tn2"}
    assert (state, len(record.steps)) == ("FAILED", 0)
    assert record.status in ("failed", "killed"), "srun ends the other node as soon as one has ended"
    assert any(note.startswith("preflight: node 1 (tn2): takes ") for note in record.notes)
