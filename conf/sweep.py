"""One command line, several experiments: `-m key=a,b` and the axes of a grid, expanded as Hydra expands them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeVar

from conf.compose import compose
from conf.errors import ConfigError, Problem
from conf.load import load, settle
from conf.resolve import Experiment

_Made = TypeVar("_Made")


def experiments(overrides: Sequence[str], multirun: bool) -> list[Experiment]:
    """Return every experiment that `overrides` request, in Hydra's order; sweeps are expanded where `multirun`.

    Raises:
        ConfigError: with the problems of all of them.
    """
    problems: list[Problem] = []
    jobs = expanded(overrides) if multirun else [list(overrides)]
    cells = [cell for job in jobs for cell in _collected(_cells, job, problems) or ()]
    made = [e for cell in cells if (e := _collected(load, cell, problems))]
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    return made


def _collected(function: Callable[[list[str]], _Made], overrides: list[str], problems: list[Problem]) -> _Made | None:
    """Return what `function` makes of `overrides`, None where it is refused: its problems are appended."""
    try:
        return function(overrides)
    except ConfigError as error:
        problems += error.problems
        return None


def _cells(overrides: list[str]) -> list[list[str]]:
    """Return the overrides of each cell of the experiment's grid; of one without, `overrides` alone."""
    common, side, _ = settle(overrides)
    axes = compose([*common, *side])["grid"]["axes"] or {}
    cells = product(*([f"{key}={value}" for value in values] for key, values in axes.items()))
    return [[*overrides, *cell] for cell in cells]


def expanded(overrides: Sequence[str]) -> list[list[str]]:
    """Return the lists of overrides that a sweep stands for: four of `a=1,2 b=3,4`.

    Raises:
        ConfigError: a sweep that cannot be listed, as an interval.
    """
    return [list(job) for job in product(*map(_values, overrides))]


def _values(text: str) -> list[str]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException:
        return [text]  # conf.compose says what is wrong with it
    if not override.is_sweep_override():
        return [text]
    try:
        return [f"{text.partition('=')[0]}={value}" for value in override.sweep_string_iterator()]
    except HydraException as error:
        hint = "list the values: KEY=A,B or KEY=range(1,4)"
        raise ConfigError(Problem(text, "cannot be listed", str(error), hint=hint)) from error
