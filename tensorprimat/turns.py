"""The runs of a matrix on this machine: each in its turn, again after a failure, and a journal of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from conf import devices
from conf.errors import ConfigError, Problem, UserError
from conf.locks import take
from conf.resolve import Experiment
from conf.vendors import vendor_of
from launchers import run_dir
from launchers.matrix import ACTIVE, Run
from parsers.outcome import FROM_LAUNCHER
from tensorprimat.journal import Journal

Row = dict[str, Any]
KILLED = "the runner was killed"


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of a matrix, at its place in the journal, which had `since` bytes when the runner began. at_once: how
    many runs this machine takes."""

    journal: Journal
    run: Run
    e: Experiment
    since: int
    at_once: int

    def take(self, start: Callable[[Experiment], Row], row_of: Callable[[Run], Row]) -> Row:
        """Return the row of the run, which `start` runs once; `row_of` gives that of one that is not started.
        UserError: as `start`."""
        run, retries = self.run, self.e.cluster.retries
        with _place(self.journal.folder, self.e, self.at_once) as e:
            if run.state in ACTIVE:  # as a job
                return row_of(run)
            if run.state == "completed" and not e.rerun:
                return self._again(run, start(e))
            row = None
            while row is None or (run.state == "failed" and run.failures <= retries):
                if run.state == "failed" and run.failures > retries:
                    return row_of(run)
                if self.journal.is_cancelled_since(self.since):
                    return row_of(replace(run, state="cancelled", causes=("tprimat matrix cancel",)))
                run, row = self._attempt(run, replace(e, resume=e.resume or self._goes_on(run)), start)
            return row

    def _goes_on(self, run: Run) -> bool:
        """Return whether an attempt begins where the one before has left a checkpoint."""
        return self.e.training.save_interval is not None and run.attempt > 0

    def _again(self, run: Run, row: Row) -> Row:
        """Return `row` of a run that was completed: its record is gone where it has run again."""
        if row["status"] != "completed":
            self.journal.state(run.id, run.attempt, "failed", row["cause"])
        return row

    def _attempt(self, run: Run, e: Experiment, start: Callable[[Experiment], Row]) -> tuple[Run, Row]:
        self.journal.append({"event": "intends", "runs": [run.id]})
        attempt = run.attempt + 1
        try:
            row = start(e)
        except UserError as error:
            self.journal.state(run.id, attempt, "failed", " ".join(str(error).split()))
            raise
        cause, state = row["cause"], "completed" if row["status"] == "completed" else "failed"
        if str(cause).endswith(FROM_LAUNCHER):
            state = "cancelled"
        self.journal.state(run.id, attempt, state, cause)
        return replace(run, state=state, attempt=attempt, failures=run.failures + (state == "failed")), row


@contextmanager
def turns(experiments: Sequence[Experiment], commit: str | None, anew: bool) -> Iterator[list[Turn]]:
    """Be the only one who works on these runs of one seed each, in their matrices, and yield the turn of each. anew:
    those that failed too often are tried again. InputError: another runner is at work."""
    paths = [run_dir.directory(e, commit) for e in experiments]
    with ExitStack() as held:
        journals = {folder: Journal(folder) for folder in sorted({path.parent for path in paths})}
        for journal in journals.values():
            held.enter_context(journal.held())
        for folder, journal in journals.items():
            ours = {path.name: e for path, e in zip(paths, experiments, strict=True) if path.parent == folder}
            begin(journal, ours, anew)
        found = {folder: (journal.read(), journal.path.stat().st_size) for folder, journal in journals.items()}
        most = at_once(experiments)
        yield [
            Turn(journals[path.parent], found[path.parent][0].runs[path.name], e, found[path.parent][1], most)
            for path, e in zip(paths, experiments, strict=True)
        ]


def begin(journal: Journal, experiments: dict[str, Experiment], anew: bool) -> None:
    """Plan in the journal, whose lock is ours, what is new of `experiments`, by run; free what a killed runner left."""
    matrix = journal.read()
    left = [run for run in matrix.active() if run.tag is None]
    free = [{"event": "state", "run": r.id, "attempt": r.attempt, "state": "planned", "cause": KILLED} for r in left]
    new = [
        {"event": "planned", "run": name, "experiment": asdict(e)}
        for name, e in experiments.items()
        if name not in matrix.runs
    ]
    journal.append(*free, *new, {"event": "began", "anew": anew, "runs": [*experiments]})


def at_once(experiments: Sequence[Experiment]) -> int:
    """Return how many of these runs go on at a time by cluster.budget: one without it. ConfigError: more GPUs than are
    here."""
    budgets = [e.cluster.budget for e in experiments]
    if not experiments or None in budgets:
        return 1
    budget = min(filter(None, budgets))
    here = devices.find().count
    if any(e.accelerator for e in experiments) and budget > here:
        raise ConfigError(Problem("cluster.budget", "more GPUs than there are", str(budget), f"at most {here}"))
    return max(1, budget // max(e.layout.world_size for e in experiments))


@contextmanager
def _place(folder: Path, e: Experiment, most: int) -> Iterator[Experiment]:
    """Take one of `most` places of this machine, for as long as this process lives: GPUs and a port that no other run
    has. Each run has a process of its own then."""
    if most == 1:
        yield e
        return
    number, lock = 0, (folder / ".place0.lock").open("w")
    while not take(lock):
        lock.close()
        number += 1
        lock = (folder / f".place{number}.lock").open("w")
    with lock:
        if e.accelerator is not None:
            names = vendor_of(e.accelerator).visibility
            name = next((one for one in names if one in os.environ), names[0])
            visible = os.environ.get(name, ",".join(map(str, range(devices.find().count)))).split(",")
            os.environ[name] = ",".join(visible[number * e.gpus_per_node : (number + 1) * e.gpus_per_node])
        yield replace(e, cluster=replace(e.cluster, master_port=e.cluster.master_port + number))
