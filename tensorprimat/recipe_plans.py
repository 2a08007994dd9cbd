"""A recipe held against the rules of `launch`: can it be planned, and run? One answer for every listing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from conf import devices
from conf.arguments import program
from conf.errors import ConfigError, Problem
from conf.recipe_request import experiment, request_of
from conf.recipes import Case, Recipe, nearest
from conf.resolve import Experiment
from estimate.headroom import memory_problems
from launchers import unplanned


def refusals(r: Recipe, batch: str = "vendor") -> list[Problem]:
    """Return why no plan is made of a recipe on the GPUs that it is published for."""
    return _planned(r, batch)[1]


def _planned(r: Recipe, batch: str) -> tuple[Experiment | None, list[Problem]]:
    """Return the experiment of a recipe, None where there is none, and why no plan is made of it."""
    try:
        e = experiment(r, batch)
        return e, unplanned(e)
    except ConfigError as error:
        which = f"this is {r} [{r.source}]"
        return None, [problem for problem in error.problems if problem.what != which]


def too_large(e: Experiment) -> list[Problem]:
    """Return a problem where the model does not fit the memory of its GPUs (estimate/headroom.py): of a recipe, which
    changes in no part, with the nearest that fits."""
    problems = memory_problems(e, devices.host_memory_bytes())
    if e.recipe is None or not problems:
        return problems
    case = Case(None, None, e.model.name, e.hardware.name, e.layout.world_size, e.precision.name)
    other = nearest(case, lambda r: not why_not(r))
    hint = f"the nearest that can is {other}" if other else f"no recipe of this vendor for {e.model.name} fits its GPUs"
    return [replace(problem, hint=f"{hint}; or method=identical") for problem in problems]


def why_not(r: Recipe) -> str | None:
    """Return why a recipe with its own batch does not run on the GPUs that it is published for; None where it does."""
    e, problems = _planned(r, "vendor")
    if e and not problems:
        problems = memory_problems(e, devices.host_memory_bytes())
    return "; ".join(problem.what for problem in problems) or None


def to_type(r: Recipe) -> Iterator[tuple[str, str]]:
    """Yield what to do with a recipe, each with its label: the command that runs it, with its own batch where the usual
    one does not divide; of one that does not run why not, and what else can."""
    batch = "vendor" if refusals(r, "identical") else "identical"
    command = f"{program('launch')} {' '.join(request_of(r, batch))}"
    if refused := refusals(r):
        yield from (("refused", problem.what) for problem in refused)
        yield from (("instead", problem.hint) for problem in refused if problem.hint)
    elif large := too_large(experiment(r, batch)):
        yield from (("does not fit", problem.what) for problem in large)
        yield from (("instead", problem.hint) for problem in large if problem.hint)
        yield "to plan it", f"{command} dry_run=true"
    else:
        yield "to run it", command
