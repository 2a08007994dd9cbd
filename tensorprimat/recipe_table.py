"""tprimat recipes table: the recipes by model, GPU, precision and stack, and how far their plans are from the vendors'
own objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from conf.recipe_request import experiment
from conf.recipes import COMPLETED, SAME, Recipe, Rehearsal
from launchers.frameworks import framework_of
from tensorprimat.departures import part_of
from tensorprimat.lists import Row
from tensorprimat.recipe_plans import refusals, why_not


@dataclass(frozen=True, slots=True)
class Planned:
    """A recipe with its own batch, on the GPUs that it is published for. theirs: its values that the plan keeps.
    forced, differs: the values that it has otherwise than the vendor's object, as the plan shows them. refused: why
    there is no plan. rehearsed: how its rehearsal went, or why there was none."""

    recipe: str
    theirs: int | None = None
    forced: int | None = None
    differs: int | None = None
    refused: str | None = None
    rehearsed: str | None = None


def planned(recipe: Recipe, rehearsal: Rehearsal) -> Planned:
    """Return how `recipe` is planned."""
    row = Planned(recipe.name, refused=why_not(recipe), rehearsed=str(rehearsal))
    if refusals(recipe):
        return row
    e = experiment(recipe)
    differences = framework_of(recipe.framework).differences(e)
    parts = Counter(part_of(one, e, recipe) for one in differences)
    theirs = len(recipe.settings.keys() - {one.path for one in differences})
    return replace(row, theirs=theirs, forced=parts["forced"], differs=parts["differs"])


def grouped(wanted: Iterable[tuple[Recipe, Planned]]) -> list[Row]:
    """Return a row for each model, GPU, precision and release of a stack. published: the vendor's own figures,
    tokens/s/GPU, each with the number of GPUs."""
    cases: dict[tuple[str, ...], list[tuple[Recipe, Planned]]] = {}
    for r, plan in wanted:
        case = (r.model, " ".join(r.hardware), r.precision, f"{r.framework} {r.release}")
        cases.setdefault(case, []).append((r, plan))
    return [_row(case, pairs) for case, pairs in cases.items()]


def _row(case: Sequence[str], pairs: Sequence[tuple[Recipe, Planned]]) -> Row:
    plans = [plan for _, plan in pairs]
    speeds = {
        f"{one['tokens_per_s_per_gpu']:,.7g} ({r.gpus})"
        for r, _ in pairs
        for one in r.published
        if "tokens_per_s_per_gpu" in one
    }
    return {
        **dict(zip(("model", "hardware", "precision", "stack"), case, strict=True)),
        "recipes": len(pairs),
        "gpus": [*sorted({r.gpus for r, _ in pairs if r.gpus})] or "any",
        "theirs": _range([plan.theirs for plan in plans]),
        "forced": _range([plan.forced for plan in plans]),
        "differs": _range([plan.differs for plan in plans]),
        "refused": sum(plan.refused is not None for plan in plans),
        "rehearsed": sum((plan.rehearsed or "").startswith((COMPLETED, SAME)) for plan in plans),
        "published": [*sorted(speeds)],
    }


def _range(values: Iterable[int | None]) -> str | None:
    known = {value for value in values if value is not None}
    return None if not known else f"{min(known)}" if len(known) == 1 else f"{min(known)} to {max(known)}"
