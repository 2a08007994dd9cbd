"""Where the runs are: directories with a run.json, below what the user named."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from conf.arguments import is_pair, program
from conf.errors import InputError, Problem, UserError
from parsers.matching import matching as matching
from parsers.matching import none_matches
from parsers.progress import Progress, silent
from parsers.record import Run as Run
from parsers.storage import RUN_FILE, read_lazily

# Earlier tries of a run that was started again (launch.py keeps them there): not repeats.
_NOT_RUNS = "attempts"
RUNS = "runs"
WHERE = "run directories, directories above them, globs"
FILTERS = "filters of the runs: platform=amd model=llama31_8b, a setting, a fact of the environment"
_INSTEAD = (
    f"give a run directory, one above runs, or a glob in quotes; a log becomes a run by {program('parse')} LOG --save"
)


def find_runs(named: Sequence[str], progress: Progress = silent, other_keys: Sequence[str] = ()) -> tuple[Run, ...]:
    """All runs in or below the directories, run.json files and globs `named`, each once, in natural order of paths; of
    filters among these (platform=amd model=llama) those that fit them all. Filters alone look below runs/. other_keys:
    those that the command takes beside filters, for suggestions.

    InputError: nothing there, or records that cannot be used, all of them listed.
    """
    filters = [name for name in named if is_pair(name)]
    places = [name for name in named if name not in filters] or [RUNS][: len(filters)]
    problems: list[Problem] = []
    runs: list[Run] = []
    directories = _directories(places, problems)
    for count, directory in enumerate(directories, start=1):
        try:
            runs.append(Run(str(directory), read_lazily(directory)))
        except UserError as error:
            problems.extend(error.problems)
        progress(count, len(directories))
    if problems:
        raise InputError(*problems)
    found = matching(runs, filters, other_keys)
    if filters and not found:
        raise InputError(*none_matches(runs, filters))
    return found


def _directories(named: Sequence[str], problems: list[Problem]) -> list[Path]:
    found: dict[Path, Path] = {}
    for name in named:
        before = len(problems)
        below = [directory for path in _expanded(name) for directory in _below(path, problems)]
        if not below and len(problems) == before:
            problems.append(Problem(name, "no run there", allowed=f"directories with a {RUN_FILE}", hint=_INSTEAD))
        found.update({directory.resolve(): directory for directory in below})
    return sorted(found.values(), key=_natural)


def _expanded(name: str) -> list[Path]:
    path = Path(name)
    return [path] if path.exists() else [Path(match) for match in glob.glob(name, recursive=True)]  # noqa: PTH207


def _below(path: Path, problems: list[Problem]) -> Iterator[Path]:
    """Links are followed, none in a circle. What cannot be looked into is told: a repeat may lie there."""
    if path.is_file():
        if path.name == RUN_FILE:
            yield path.parent
        return

    def untold(error: OSError) -> None:
        problems.append(Problem(str(error.filename), "cannot be looked into", str(error.strerror)))

    seen = {os.path.realpath(path)}
    for directory, inner, files in os.walk(path, onerror=untold, followlinks=True):
        places = {name: os.path.realpath(Path(directory, name)) for name in inner if name != _NOT_RUNS}
        inner[:] = [name for name, place in places.items() if place not in seen]
        seen.update(places.values())
        if RUN_FILE in files:
            yield Path(directory)


def _natural(path: Path) -> list[tuple[int, str]]:
    """run2 before run10."""
    parts = re.split(r"(\d{1,18})", str(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def copies(runs: Iterable[Run]) -> Iterator[Problem]:
    """One run in two places, which would count as two repeats."""
    seen: dict[tuple[str, str | None], Run] = {}
    for run in runs:
        first = seen.setdefault((run.record.id, run.record.started_at), run)
        if first is not run:
            what = f"is the same run as {first.path}: one id and one start"
            yield Problem(run.path, what, found=run.record.id, hint="name only one of the two")
