"""tprimat recipes rehearse: which recipes of a release still build, one after another, by rehearse=layout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import parsers
from conf import load_experiment
from conf.errors import ConfigError, InputError, Problem
from conf.recipes import COMPLETED, FAILED, NOT_REHEARSED, REFUSED, SAME, Recipe, Rehearsal
from conf.resolve import Experiment
from conf.vocabulary import leaves, read_yaml
from launchers import make_plan, preflight, rehearse, warm, where
from launchers.frameworks import framework_of
from parsers import Record
from parsers.outcome import FROM_LAUNCHER
from tensorprimat.run import rehearse_once

NOT_RUN = "not run"
_OF_A_STACK = ("framework", "framework.python", "framework.release", "PRIMUS_PATH")
"""Where the problems are of a stack that is not here, which no recipe of it can do without."""
_WRITTEN = (
    "set_by_recipe",
    "set",
    "set_if_there",
    "set_without_transformer_engine",
)  # of settings.yaml, the last counts


@dataclass(frozen=True, slots=True)
class Row:
    """How the rehearsal of a recipe went. state: completed, failed, refused before anything was started, or not run.
    same_as: the recipe that was rehearsed in its place, as a CPU sees no difference between the two. seconds: what it
    took. reason: why it did not complete. run: the directory of its record."""

    recipe: str
    framework: str
    model: str
    state: str
    same_as: str | None = None
    seconds: float | None = None
    reason: str | None = None
    run: str | None = None

    @property
    def is_ended(self) -> bool:
        """Return whether the user has ended it."""
        return (self.reason or "").endswith(FROM_LAUNCHER)

    def kept(self, version: str, date: str) -> Rehearsal:
        """Return it as conf/recipes/rehearsed.csv has it."""
        if self.state == NOT_RUN or self.is_ended:
            return Rehearsal(self.recipe, NOT_REHEARSED, reason="not run yet")
        if self.state not in (COMPLETED, REFUSED, FAILED):  # hung, out of memory, killed: of this machine and hour
            return Rehearsal(self.recipe, NOT_REHEARSED, reason=f"{self.state}: {self.reason}")
        outcome = self.state
        if self.same_as and outcome == COMPLETED:
            return Rehearsal(self.recipe, SAME, self.same_as, "", version, date)
        return Rehearsal(self.recipe, outcome, self.same_as or "", self.reason or "", version, date)


def rehearsed(wanted: Iterable[tuple[Recipe, str]], runs: Path, start: bool) -> Iterator[Row]:
    """Yield how each recipe of `wanted` went, which are with what to type for a run. runs: where the records are, each
    below the recipe's name; of one that completed it is not run again. start: run what is not there. ConfigError: a
    stack is not here."""
    wanted = list(wanted)
    if start:
        _check_stacks(wanted, runs)
    with warm.kept():
        yield from _rehearsed(wanted, runs, start)


def _check_stacks(wanted: Iterable[tuple[Recipe, str]], runs: Path) -> None:
    """ConfigError: a stack of `wanted` is not installed, or is another release."""
    checked, found = set[tuple[str, str]](), dict[Problem, None]()
    for recipe, request in wanted:
        stack = (recipe.framework, recipe.release)
        with suppress(ConfigError):  # of the recipe, which gets a row for it
            if stack not in checked:
                small, _ = rehearse.prepared(_experiment(recipe, request, runs))
                checked.add(stack)
                found |= dict.fromkeys(one for one in preflight.problems(small) if one.where in _OF_A_STACK)
    if found:
        raise ConfigError(*found)


def _experiment(recipe: Recipe, request: str, runs: Path) -> Experiment:
    own = ("batch=vendor", f"recipe={recipe.name}", "rehearse=layout", f"runs_dir={runs}", f"name={recipe.name}")
    return load_experiment(*request.split(), *own)


def _rehearsed(wanted: Iterable[tuple[Recipe, str]], runs: Path, start: bool) -> Iterator[Row]:
    played: dict[str, Row] = {}
    for recipe, request in wanted:
        row = Row(recipe.name, f"{recipe.framework} {recipe.release}", recipe.model, NOT_RUN)
        try:
            e = _experiment(recipe, request, runs)
            if refused := list(framework_of(e.framework.name).refusals(replace(e, rehearse=None))):
                raise ConfigError(*refused)  # for any machine, which says more than why it cannot be rehearsed
            seen = seen_by_a_cpu(e)
        except ConfigError as error:
            reason = "; ".join(" ".join(str(problem).split()) for problem in error.problems)
            yield replace(row, state=REFUSED, reason=reason)
            continue
        if seen not in played:
            earlier = _earlier(recipe, runs)
            record = earlier or (rehearse_once(e, where.host()) if start else None)
            played[seen] = row = _of(row, *record) if record else row
            yield row
            if row.is_ended:
                return
            continue
        yield replace(row, state=played[seen].state, same_as=played[seen].recipe, reason=played[seen].reason)


def seen_by_a_cpu(e: Experiment) -> str:
    """Return what decides how a rehearsal of `e` goes: layout and all that its plan writes, but what a rehearsal never
    reads (unseen: in launchers/settings/not_rehearsed.yaml). ConfigError: it cannot be rehearsed."""
    import yaml

    small, _ = rehearse.prepared(replace(e, name="recipe"))
    unseen = read_yaml(rehearse.TABLE)["unseen"]
    texts = [text for name, text in make_plan(small, where.host()).files.items() if name.endswith(".yaml")]
    written = {path: value for text in texts for path, value in _effective(yaml.safe_load(text)).items()}
    kept = {path: value for path, value in written.items() if not any(fnmatchcase(path, one) for one in unseen)}
    return json.dumps([e.framework.name, e.framework.release, str(e.layout), e.layout.world_size, kept], sort_keys=True)


def _effective(document: dict[str, Any]) -> dict[str, Any]:
    """Return path → value of a plan's file; of a path that settings.yaml has several times, the value that counts."""
    parts = [document.pop(name, {}) for name in _WRITTEN]
    return dict(leaves({**document, **{path: value for part in parts for path, value in part.items()}}))


def _earlier(recipe: Recipe, runs: Path) -> tuple[Record, Path] | None:
    """Return the record of `recipe` that completed before, and its directory."""
    for path in sorted(file.parent for file in (runs / recipe.name).glob("*/run.json")):
        try:
            record = parsers.read(path)
        except InputError:
            continue
        of = record.recipe
        if record.status == COMPLETED and of and (of.framework, of.release) == (recipe.framework, recipe.release):
            return record, path
    return None


def _of(row: Row, record: Record, path: Path) -> Row:
    took = round(record.wall_time_s, 1) if record.wall_time_s is not None else None
    return replace(row, state=record.status, seconds=took, reason=record.cause, run=str(path))
