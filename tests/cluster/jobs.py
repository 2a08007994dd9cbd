"""Help tests of jobs on a real Slurm: launches, their processes, what became of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from launchers.matrix import Run
from parsers import Record, read
from tensorprimat.journal import Journal
from tests.drills import MARK, ROOT, wait_until

_BASE = ("platform=cpu", "framework=megatron", "model=llama_tiny", "layout.tensor_model_parallel_size=2")
TINY = (*_BASE, "training.train_iters=4", "optimizer.lr_warmup_iters=1")
ON_TWO_NODES = (*TINY, "nodes=2", "gpus_per_node=2", "cluster=slurm", "cluster.job.time_limit=00:30:00")
PATIENCE_S = 600.0
STEPS = 60
SAVING: tuple[str, ...] = ("training.seed=1", f"training.train_iters={STEPS}", "training.save_interval=3")
SAVING = (*SAVING, "model.num_layers=1", "training.seq_length=32", "training.global_batch_size=2")  # quick steps


class Matrix:
    """A launch of jobs of one rank on each of two nodes, named m, and its journal. more: overrides of every launch."""

    def __init__(self, site: Mapping[str, str], runs: Path, *more: str) -> None:
        self.site, self.folder = {**site, "OMP_NUM_THREADS": "1"}, runs / "m"  # as one rank a core has by itself
        self._argv = ["-m", *ON_TWO_NODES, "gpus_per_node=1", "name=m", f"runs_dir={runs}", *more]
        self.journal = Journal(self.folder)
        self._runner: subprocess.Popen[str] | None = None

    def start(self, *more: str) -> subprocess.Popen[str]:
        """Start its runner."""
        argv = [sys.executable, str(ROOT / "launch.py"), *self._argv, *more]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._runner = subprocess.Popen(argv, env=self.site, text=True, **pipes)  # type: ignore[call-overload]
        return self._runner

    def command(self, part: str, *words: str) -> tuple[int, str]:
        """Run `tprimat matrix PART` on it; return its exit code, and what it printed, stderr first."""
        argv = [sys.executable, "-m", "tensorprimat", "matrix", part, *words, str(self.folder)]
        done = subprocess.run(argv, env=self.site, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr + done.stdout

    def runs(self) -> list[Run]:
        """Return its runs, in the order in which they were planned."""
        return list(self.journal.read().runs.values())

    def job(self, attempt: int) -> str:
        """Return the number of the job of an attempt of its only run, empty before there is one."""
        claims = [*self.folder.glob(f"*/bundle/attempts/{attempt}")]
        return claims[0].read_text("utf-8").strip() if claims else ""

    def record(self, run: Run) -> Record:
        """Return the record of one of its runs."""
        return read(self.folder / run.id)

    def wait_for_steps(self, number: int = 2, start: str = "job*") -> None:
        """Return once a start of a run has logged so many steps. start: how its folder's name begins."""
        pattern = f"*/bundle/runs/{start}-node1/train.log"

        def logged() -> bool:
            assert self._runner is None or self._runner.poll() is None, self._runner.communicate()
            steps = (log.read_text("utf-8").count("[tprimat] step ") for log in self.folder.glob(pattern))
            return any(logged >= number for logged in steps)

        wait_until(logged, f"{number} steps", PATIENCE_S)

    def hold(self, number: int = 2, start: str = "job*", **env: str) -> None:
        """Stop a rank on tn2, with these variables, once a start of a run has logged so many steps: what a test does
        then takes longer than all steps may."""
        self.wait_for_steps(number, start)
        kill(self.site, "engine.py", signal.SIGSTOP, LOCAL_RANK="0", **env)

    def let_go(self) -> None:
        """Let the ranks that are held go on."""
        for pid in processes(self.site, "engine.py"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a launch to end; return its exit code, and what it printed, stderr first."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, err + out


def processes(site: Mapping[str, str], program: str, node: str = "") -> dict[int, dict[str, str]]:
    """Return the processes of jobs of this Slurm that run `program`, a part of their command line, with their
    environment, by id. node: of this node alone."""
    alive = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            pairs = (folder / "environ").read_bytes().decode("utf-8", "replace").split("\0")
            env = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            line = (folder / "cmdline").read_bytes().decode("utf-8", "replace").replace("\0", " ")
            of_site = "SLURM_STEP_ID" in env and env.get("SLURM_CONF") == site["SLURM_CONF"]
            if of_site and program in line and node in ("", env.get("SLURMD_NODENAME")):
                alive[int(folder.name)] = env
    return alive


def kill(site: Mapping[str, str], program: str, number: signal.Signals, node: str = "tn2", **env: str) -> None:
    """Send a signal to the first process of a job that runs `program` on `node`, with these variables."""
    found = [pid for pid, own in processes(site, program, node).items() if env.items() <= own.items()]
    os.kill(min(found), number)


def lasting(site: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a daemon that is to outlive the test that starts it."""
    return {name: value for name, value in site.items() if name != MARK}


def slurm(site: Mapping[str, str], *argv: str) -> str:
    """Return what a command of Slurm prints."""
    return subprocess.run(argv, env=site, capture_output=True, text=True, check=True).stdout


def causes(runs: Sequence[Run]) -> str:
    """Return why attempts of these runs ended early, as one text."""
    return " | ".join(cause for run in runs for cause in run.causes)
