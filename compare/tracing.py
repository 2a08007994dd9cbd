"""The figures and the curve of every run, each read once, after which its steps may go. On all cores where there are
many steps."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from compare.curve import Curve, curve_of
from compare.groups import has_figures
from conf.errors import InputError, Problem, UserError
from metrics import Quantity, summarise
from metrics.bill import Terms, priced
from parsers import Run
from parsers.progress import Progress, silent
from parsers.storage import STEPS_FILE

_MUCH = 32 << 20  # bytes of steps from which a second process is worth its start
_CHUNK = 8


_Figures = Mapping[str, Quantity]
_Traced = tuple[_Figures, Curve | None, tuple[Problem, ...]]


def trace(
    runs: Sequence[Run], terms: Terms, progress: Progress = silent
) -> tuple[dict[str, _Figures], dict[str, Curve]]:
    """Return by path the figures (of `metrics.summarise`, priced) of each run that has some, and each run's curve.
    InputError: steps that cannot be used, of all runs."""
    figures, curves, problems = dict[str, _Figures](), dict[str, Curve](), list[Problem]()
    for done, (run, (known, curve, wrong)) in enumerate(zip(runs, _all(runs, terms), strict=True), start=1):
        figures |= {run.path: known} if known else {}
        curves |= {run.path: curve} if curve else {}
        problems += wrong
        progress(done, len(runs))
    if problems:
        raise InputError(*problems)
    return figures, curves


def _traced(terms: Terms, run: Run) -> _Traced:
    """Return figures and curve, or what is wrong as data: a UserError does not survive the way between processes."""
    try:
        record = replace(run.record, steps=tuple(run.record.steps))
        figures = priced(record, summarise(record), terms) if has_figures(record) else {}
        return figures, curve_of(record), ()
    except UserError as error:
        return {}, None, error.problems


def _all(runs: Sequence[Run], terms: Terms) -> Iterator[_Traced]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    files = (Path(run.path) / STEPS_FILE for run in runs)
    if cores == 1 or sum(file.stat().st_size for file in files if file.exists()) < _MUCH:
        yield from (_traced(terms, run) for run in runs)
        return
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    try:
        # fork: a worker has the runs already, and a caller's script needs no `if __name__ == "__main__"`.
        with ProcessPoolExecutor(min(cores, len(runs)), get_context("fork"), _start, (runs, terms)) as pool:
            # Ctrl-C waits while workers are made: one that it met before `_start` would print many lines.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                results = pool.map(_traced_here, range(len(runs)), chunksize=_CHUNK)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield from results
    except BrokenProcessPool as error:
        what = f"the system killed a process that reads runs, one of {min(cores, len(runs))}: too little memory?"
        problem = Problem("compare", what, f"{len(runs)} runs", hint="fewer runs at once, or more memory")
        raise UserError(problem) from error


_here: tuple[Sequence[Run], Terms]


def _start(runs: Sequence[Run], terms: Terms) -> None:
    """Prepare a worker."""
    global _here
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C, which the caller reports, ends it without a traceback
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    gc.disable()  # nothing here refers to itself
    _here = runs, terms


def _traced_here(place: int) -> _Traced:
    runs, terms = _here
    return _traced(terms, runs[place])
