"""Import a vendor's stack as soon as somebody types a rehearsal of one rank: while the launcher composes, checks and
plans on one core, a process that launchers/warm.py will hand the rank to imports on the other.

What the plan will say is guessed. A guess that proves wrong costs time alone: the rank then imports by itself."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

RANKS = Path(__file__).parent / "ranks"
FOLDER = RANKS / "rehearsal"
TABLE = Path(__file__).parent / "settings" / "early.json"
"""The stacks whose imports can begin early: the program of each, and what a plan sets for it alone; platform: whose
stack it is where none is typed; python, checkout: the variables that name them where they are not typed. JSON, as
importing PyYAML would take longer."""
NOT_NOW = ("dry_run", "bundle", "rehearse=layout", "-m", "--multirun", "-h", "--help", "--cfg", "-c", "--info", "-i")
"""How words begin of a launch that rehearses no single toy now."""
SEED = "1234"
GUESSED = {
    "CUDA_VISIBLE_DEVICES": "",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "RANK": "0",
    "TPRIMAT_REHEARSE": "train",
    "WORLD_SIZE": "1",
}
"""Variables that imports read, as the plan of one rank of any of them sets them (tests/launch/test_early.py)."""
UNSEEN = ("PYTHON", "LD_", "OMP_", "MKL_", "TPRIMAT_REHEARSE", "TPRIMAT_EQUAL_INIT")  # as in tprimat_warm.py


def guessed(variables: Mapping[str, str], seed: str = SEED) -> dict[str, str]:
    """Return the variables of a toy of one rank that decide what is imported. variables: those of its stack alone."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own = {"OMP_NUM_THREADS": str(cores), "TPRIMAT_EQUAL_INIT": seed}
    return {**GUESSED, **variables, **own}


class Early:
    """A process that imports a stack, for a request like `request`; its folder is `kept`. checkout: where the program
    starts, behind what Primus' run_pretrain.sh puts in front of PYTHONPATH; empty: of a stack that is installed."""

    def __init__(self, python: str, program: str, variables: dict[str, str], checkout: str = "") -> None:
        packages = sorted(map(str, Path(python).parents[1].glob("lib/python3*/site-packages")))[-1:] if checkout else ()
        path = os.pathsep.join(filter(None, (checkout, *packages, str(FOLDER), os.environ.get("PYTHONPATH"))))
        self.guessed = variables
        self.kept = TemporaryDirectory(prefix="tprimat-early-")
        env = {**os.environ, **variables, "PYTHONPATH": path, "TPRIMAT_PROBE": f"{self.kept.name}/probe"}
        self.request: dict[str, Any] = {"python": [python, "-u"], "argv": [program], "env": env}
        unseen = {name: value for name, value in env.items() if name.startswith(UNSEEN)}
        self.request |= {"folder": checkout or self.kept.name, "unseen": unseen}
        self.process, self.control = started(self.request, self.kept.name)
        atexit.register(self.end)

    def end(self) -> None:
        """End it."""
        atexit.unregister(self.end)
        self.control.close()
        self.process.kill()
        self.process.wait()
        self.kept.cleanup()


BEGUN: list[Early] = []


def begin(words: Sequence[str]) -> None:
    """Begin to import where `words`, a launch's, are those of a toy whose stack can be imported before it."""
    said = dict(word.split("=", 1) for word in words if "=" in word and not word.startswith("-"))
    seed = said.get("training.seed", SEED)
    if sys.platform != "linux" or said.get("rehearse") != "train" or not seed.isdecimal() or BEGUN:
        return
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    usual = {row.get("platform"): stack for stack, row in table.items()}
    row = table.get(said.get("framework", usual.get(said.get("platform", "-"))))
    if row is None or any(word.startswith(NOT_NOW) for word in words):
        return
    python = said.get("framework.python") or os.environ.get(row.get("python", ""), "")
    checkout = said.get("framework.checkout") or os.environ.get(row.get("checkout", ""), "")
    if os.access(python, os.X_OK) and bool(checkout) == ("checkout" in row):
        BEGUN.append(_begun(row, os.path.abspath(python), checkout, seed))  # noqa: PTH100 - links stay


def _begun(row: dict[str, Any], python: str, checkout: str, seed: str) -> Early:
    variables = guessed(row["variables"], seed)
    if not checkout:
        return Early(python, str(RANKS / row["program"]), variables)
    return Early(str(Path(python).with_name("python3")), row["program"], variables, os.path.realpath(checkout))


def taken() -> Iterator[Early]:
    """Yield the process that was begun, if one was, which is then its taker's to end."""
    while BEGUN:
        one = BEGUN.pop()
        atexit.unregister(one.end)
        yield one


def started(request: dict[str, Any], folder: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process that imports the stack of `request` (rehearsal/tprimat_warm.py); return it, and the socket at
    which it reports that it has, and takes requests then."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = (*request["python"], str(FOLDER / "tprimat_warm.py"), str(theirs.fileno()), request["argv"][0], folder)
    with theirs, TemporaryFile() as log:
        process = subprocess.Popen(
            words,
            cwd=request["folder"],
            env=request["env"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return process, control
