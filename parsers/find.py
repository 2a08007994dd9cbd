"""Where the runs are, below what the user named, and which are meant by `platform=amd model=llama`."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from conf.arguments import Key, is_pair, offered, program
from conf.compose import choices, read_choice
from conf.errors import InputError, Problem, UserError, closest, listed
from conf.freeze import amount
from conf.locks import BESIDE
from conf.plain import plain
from conf.vocabulary import vocabulary
from parsers.cautions import cautions, settled
from parsers.planned import is_plan, read_plans
from parsers.progress import Progress, silent
from parsers.record import Run
from parsers.storage import RUN_FILE, experiment_of, read_lazily
from parsers.values import literal, real

# Earlier tries of a run that was started again (launch.py keeps them there): not repeats.
_LEADS_OUT = "is a link out of the folder that was named, and is not followed"
_NAME_IT = "name its target, too, or remove it"
_NOT_RUNS = "attempts"
RUNS = "runs"
WHERE = "run directories, directories above them, globs, plans (dry_run=true --json > plan.json)"
FILTERS = "filters of the runs: platform=amd model=llama31_8b, a setting, a fact of the environment"
_INSTEAD = (
    f"give a run directory, one above runs, or a glob in quotes; a log becomes a run by {program('parse')} LOG --save"
)
SKIP = {"--skip": "leave out records that cannot be used, and name them"}
_SKIP = "mend it, or --skip leaves it out and names it"
NO_RUN = Problem("RUN", "none given", allowed=WHERE, hint="runs/ platform=amd,nvidia model=llama")
FIELDS = (
    *("id", "name", "provenance", "status", "platform", "vendor", "hardware"),
    *("framework", "framework_version", "image"),
)
MODEL = "model"
_SHOWN = 8


def find_runs(
    named: Sequence[str],
    progress: Progress = silent,
    other_keys: Sequence[str] = (),
    skipped: list[Problem] | None = None,
) -> tuple[Run, ...]:
    """Return all runs in or below the directories, run.json files and globs `named`, each once, in natural order of
    paths, behind the plans in files that are named; of filters among these (platform=amd model=llama) those that fit
    them all. Filters alone look below runs/. other_keys: those that the command takes beside filters, for suggestions.
    skipped: takes what is wrong with records that cannot be used, and the others are returned; all steps are read then.

    InputError: nothing named, nothing there, or records that cannot be used, all of them listed."""
    if not named:
        raise InputError(NO_RUN)
    filters = [name for name in named if is_pair(name)]
    places = [name for name in named if name not in filters] or [RUNS][: len(filters)]
    problems: list[Problem] = []
    runs: list[Run] = []
    plans = [path for path in map(Path, places) if is_plan(path)]
    directories = _directories([name for name in places if Path(name) not in plans], problems)
    for path in plans:  # one that is named twice is compared with itself
        try:
            runs += read_plans(path)
        except UserError as error:
            problems.extend(error.problems)
    read, unusable = _records(directories, progress, with_steps=skipped is not None)
    runs += read
    if skipped is None or not runs:
        problems += [replace(one, hint=one.hint or _SKIP) for one in unusable]
    else:
        skipped += unusable
    if problems:
        raise InputError(*problems)
    fitting = matching(runs, filters, other_keys)
    if filters and not fitting:
        raise InputError(*none_matches(runs, filters))
    return fitting


def find_and_warn(
    named: Sequence[str],
    switches: Collection[str],
    progress: Progress = silent,
    other_keys: Sequence[str] = (),
    skipped: list[Problem] | None = None,
) -> tuple[Run, ...]:
    """Return the runs as `find_runs`; on stderr, what must be known of their records, and what --skip leaves out.
    skipped: takes the latter."""
    left_out = list[Problem]()
    runs = find_runs(named, progress, other_keys, left_out if SKIP.keys() & {*switches} else None)
    for text in (*(f"skipped: {problem}" for problem in left_out), *(f"warning: {c}" for c in cautions(runs))):
        print(plain(text, keep="\n"), file=sys.stderr)
    if skipped is not None:
        skipped += left_out
    return runs


def _records(directories: Sequence[Path], progress: Progress, with_steps: bool) -> tuple[list[Run], list[Problem]]:
    """Return the records that can be used, and why the others cannot. with_steps: each is judged by its steps, too."""
    runs, unusable = list[Run](), list[Problem]()
    for count, directory in enumerate(directories, start=1):
        try:
            record = settled(read_lazily(directory), directory)
            if with_steps:
                len(record.steps)
            runs.append(Run(str(directory), record))
        except UserError as error:
            unusable.extend(error.problems)
        progress(count, len(directories))
    return runs, unusable


def _directories(named: Sequence[str], problems: list[Problem]) -> list[Path]:
    directories: dict[str, Path] = {}
    for name in named:
        before = len(problems)
        paths = [Path(name)] if Path(name).exists() else map(Path, glob.glob(name, recursive=True))  # noqa: PTH207
        below = [found for path in paths for found in _below(path, problems)]
        if not below and len(problems) == before:
            problems.append(Problem(name, "no run there", allowed=f"directories with a {RUN_FILE}", hint=_INSTEAD))
        directories.update(below)
    return sorted(directories.values(), key=_natural)


def _below(path: Path, problems: list[Problem]) -> Iterator[tuple[str, Path]]:
    """Yield the run directories below, behind where each really is. Links within are followed, none in a circle. What
    cannot be read is a problem, as is a link that leads out, perhaps to a whole file system: a repeat may lie there."""
    if path.is_file():
        if path.name == RUN_FILE:
            yield os.path.realpath(path.parent), path.parent
        return

    def unreadable(error: OSError) -> None:
        problems.append(Problem(str(error.filename), "cannot be looked into", str(error.strerror)))

    home = os.path.realpath(path)
    seen, real = {home}, {str(path): home}
    for directory, inner, files in os.walk(path, onerror=unreadable, followlinks=True):
        own = real.pop(directory)
        places = {name: _really(own, name) for name in inner if name != _NOT_RUNS}
        for name in [name for name, place in places.items() if not f"{place}/".startswith(f"{home.rstrip('/')}/")]:
            problems.append(Problem(f"{directory}/{name}", _LEADS_OUT, places.pop(name), f"below {path}", _NAME_IT))
        inner[:] = [name for name, place in places.items() if place not in seen]
        seen.update(places.values())
        real.update({os.path.join(directory, name): places[name] for name in inner})  # noqa: PTH118 - as os.walk names it
        is_first = not directory.endswith(BESIDE) or not Path(directory.removesuffix(BESIDE), RUN_FILE).is_file()
        if RUN_FILE in files and is_first:
            yield own, Path(directory)


def _really(folder: str, name: str) -> str:
    """Return where what is called `name` really is, in a folder that is named by its real path."""
    path = f"{folder.rstrip('/')}/{name}"
    return os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114 - a Path takes a tenth of all time


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts run2 before run10."""
    parts = re.split(r"(\d{1,18})", str(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def filter_names() -> list[str]:
    """Return what runs may be filtered by, beside the facts of their environments."""
    return [*FIELDS, MODEL, *vocabulary()]


def filter_keys() -> tuple[Key, ...]:
    """Return the filters for completion."""
    return offered(*filter_names())


def copies(runs: Iterable[Run]) -> Iterator[Problem]:
    """Yield a problem for each run in two places, which would count as two repeats."""
    seen: dict[tuple[str, str | None], Run] = {}
    for run in (run for run in runs if run.record.provenance != "planned"):
        first = seen.setdefault((run.record.id, run.record.started_at), run)
        if first is not run:
            what = f"is the same run as {first.path}: one id and one start"
            yield Problem(run.path, what, found=run.record.id, hint="name only one of the two")


def matching(runs: Sequence[Run], filters: Sequence[str], other_keys: Sequence[str] = ()) -> tuple[Run, ...]:
    """Return the runs for which every key has one of the requested values: with commas, or the key again. A value may
    hold * and ?. A setting is what ran, else what was requested. other_keys: those that the command takes beside
    filters, for suggestions. InputError: a key that no run knows."""
    wanted: dict[str, list[str]] = {}
    for text in filters:
        key, _, value = text.partition("=")
        meant = dict.fromkeys((value, *value.split(",")))  # a comma may part two, or be of one, as in split=99,1,0
        wanted.setdefault(key.strip(), []).extend(map(model_name, meant) if key.strip() == MODEL else meant)
    environment = {name for run in runs for name in run.record.environment}
    known = {*filter_names(), *environment}
    allowed = f"{listed([*FIELDS, MODEL])}, a setting of conf/vocabulary.yaml, or a fact of the environment"
    hints = {key: closest(key, [*known, *other_keys]) for key in wanted if key not in known}
    if hints:
        raise InputError(*(Problem(key, "no such key", allowed=allowed, hint=hint) for key, hint in hints.items()))
    return tuple(
        run for run in runs if all(any(_is(value_of(run, key), text) for text in of) for key, of in wanted.items())
    )


def none_matches(runs: Sequence[Run], filters: Sequence[str]) -> Iterator[Problem]:
    """Yield, for each filter, what is there instead."""
    for text in filters:
        key = text.partition("=")[0].strip()
        values = [value_of(run, key) for run in runs]
        there = list(dict.fromkeys(str(value) for value in values if value is not None))
        shown = listed(there[:_SHOWN]) + (" …" if len(there) > _SHOWN else "")
        missing = f"{key} is missing in {values.count(None)}" if None in values else ""
        allowed = "; ".join(filter(None, (f"{key} is {shown}" if there else "", missing)))
        yield Problem(text, f"no run of {len(runs)} fits all filters", allowed=allowed)


def value_of(run: Run, key: str) -> Any:
    """Return what a run says of a key; None where it does not say."""
    record = run.record
    if key == MODEL:
        model = record.given.get(MODEL) or experiment_of(run.path, MODEL).get("name")
        return model_name(model) if isinstance(model, str) else None
    if key in FIELDS:
        return getattr(record, key)
    if key in vocabulary():
        stated = key in record.effective or key in record.given
        return record.setting(key) if stated else record.requested.get(key)
    return record.environment.get(key)


@cache
def model_name(model: str) -> str:
    """Return the model behind a name: conf/model/llama.yaml is only another name for llama31_8b."""
    if model in choices("model"):
        entry = read_choice("model", model)
        if [*entry] == ["defaults"] and entry["defaults"]:
            return str(entry["defaults"][0])
    return model


def _is(value: Any, text: str) -> bool:
    if value is None or isinstance(value, bool):
        return str(value).lower() == text.lower() or (value is None and text == "null")
    if isinstance(value, int | float):
        return real(typed := amount(float, literal(text))) is not None and bool(typed == value)
    return fnmatchcase(str(value), text)
