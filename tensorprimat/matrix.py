"""`tprimat matrix status|resume|cancel [DIR…]`: the runs that a launch has planned, and what became of them."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conf.arguments import JSON, Command, program
from conf.errors import InputError, Problem, closest, command
from conf.freeze import frozen
from conf.resolve import Experiment
from launchers import run_dir, slurm_jobs, where
from launchers.matrix import ACTIVE, Matrix, Run
from tensorprimat.journal import CANCEL, JOURNAL, Journal
from tensorprimat.launch import run_all

ANEW = "--failed"
RUNS = Path("runs")
PARTS = {
    "status": "what became of every run",
    "resume": "go on where a runner was ended or killed",
    "cancel": "end its runner, and run nothing more of it",
}

MATRIX = Command(
    name="matrix",
    summary="See, continue or cancel the matrix of runs that `launch -m` or repeat= has planned.",
    words="status|resume|cancel [DIR…]",
    words_help="runs/NAME, or a folder of several (default: runs); "
    + "; ".join(f"{name}: {about}" for name, about in PARTS.items()),
    switches={**JSON, ANEW: "resume: those that failed too often (cluster.retries), too"},
    examples=("status", "resume runs/llama31_8b-amd", "cancel runs/llama31_8b-amd"),
    more="Exit codes: 0 all runs completed, or cancelled as requested; 1 one failed, or is not done; 2 bad input.",
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (sys.argv without the program by default); return its exit code."""
    typed = MATRIX.parse(argv)
    part, *folders = typed.words or ("",)
    if part not in PARTS:
        hint = closest(part, PARTS)
        raise InputError(Problem("matrix", "status, resume or cancel?", part, "|".join(PARTS), hint))
    if not folders and not _journals(RUNS):
        print(f"{RUNS}: no matrix of runs is here")
        return 0
    journals = [
        journal for folder in map(Path, folders or [str(RUNS)]) for journal in _journals(folder) or _none(folder)
    ]
    as_json = "--json" in typed.switches
    if part == "resume":
        return run_all([e for one in journals for e in _resumed(one)], as_json, anew=ANEW in typed.switches)
    if part == "cancel":
        print("\n".join(_cancelled(journal) for journal in journals))
        return 0
    rows = [row for journal in journals for row in _rows(journal)]
    print(json.dumps(rows, indent=2) if as_json else "\n".join(map(_text, journals)))
    return 0 if all(row["state"] == "completed" for row in rows) else 1


def _journals(folder: Path) -> list[Journal]:
    """Return the matrix in `folder`, else those of its folders."""
    found = (folder / JOURNAL, *sorted(folder.glob(f"*/{JOURNAL}")))
    return [Journal(path.parent) for path in found if path.is_file()]


def _none(folder: Path) -> list[Journal]:
    """Raise InputError: a folder that was named has no matrix."""
    hint = "runs/NAME of `launch -m` or repeat=; one run alone has no matrix"
    raise InputError(Problem(str(folder), f"has no {JOURNAL}", hint=hint))


def experiment(request: Any, source: Path) -> Experiment:
    """Return an experiment as a journal keeps it. ConfigError: another version has written it."""
    made: Experiment = frozen(Experiment, request, str(source))
    return made


def _resumed(journal: Journal) -> list[Experiment]:
    """Return all runs of a matrix. InputError: our code is not the one that they were planned with."""
    matrix, commit = journal.read(), where.commit()
    found = {name: experiment(request, journal.path) for name, request in matrix.experiments.items()}
    other = [name for name, e in found.items() if run_dir.run_id(e, commit) != name]
    if other:
        what = f"{len(other)} runs were planned by other code, or for another place: they would be other runs"
        hint = f"check that commit out; or launch again, which plans them anew; this is {commit}"
        raise InputError(Problem(str(journal.folder), what, other[0], hint=hint))
    return list(found.values())


def _cancelled(journal: Journal) -> str:
    """Cancel a matrix; return a sentence about it."""
    journal.append({"event": CANCEL})
    runner, submitted = journal.runner(), [run.job for run in journal.read().active() if run.job]
    slurm_jobs.cancel(submitted)
    if submitted:
        after = "" if runner else f"; {program('matrix')} resume records them"
        return f"{journal.folder}: {len(submitted)} jobs of Slurm are cancelled{after}"
    if runner is None:
        return f"{journal.folder}: nobody is at work on it; {program('matrix')} resume would begin again"
    pid, _, host = runner.removeprefix("process ").partition(" on ")
    if host != os.uname().nodename:
        return f"{journal.folder}: {runner} ends when its present run has ended"
    os.kill(int(pid), signal.SIGTERM)  # it holds the lock: the number is its own
    return f"{journal.folder}: {runner} ends its present run and stops"


def _state(run: Run, runner: str | None) -> str:
    """Return its state in words: what nobody is at work on any more is stopped."""
    return "stopped" if run.state in ACTIVE and run.tag is None and runner is None else run.state


def _rows(journal: Journal) -> list[dict[str, Any]]:
    runner = journal.runner()
    return [
        {**asdict(run), "state": _state(run, runner), "path": str(journal.folder / run.id)}
        for run in journal.read().runs.values()
    ]


def _text(journal: Journal) -> str:
    matrix, runner = journal.read(), journal.runner()
    states = Counter(_state(run, runner) for run in matrix.runs.values())
    counts = ", ".join(f"{number} {state}" for state, number in states.most_common())
    head = f"{journal.folder}: {len(matrix.runs)} runs: {counts}; {_who(matrix, runner)}"
    lines = [f"  {_state(run, runner):<12}{run.id}{_more(run)}" for run in matrix.runs.values()]
    unread = [f"  {matrix.unread} lines of {JOURNAL} are cut off and count for nothing"] if matrix.unread else []
    return "\n".join([head, *lines, *unread])


def _who(matrix: Matrix, runner: str | None) -> str:
    if runner:
        return f"{runner} is at work on it"
    open_runs = [run for run in matrix.runs.values() if run.state != "completed"]
    return f"nobody is at work on it: {program('matrix')} resume goes on" if open_runs else "done"


def _more(run: Run) -> str:
    attempts = f", attempt {run.attempt}" if run.attempt > 1 else ""
    why = f"job {run.job} waits: {run.waits_for}" if run.waits_for else run.cause
    return f"{attempts}{f': {why}' if why else ''}"
