"""How throughput grows with GPUs, where groups of one kind of machine differ in their number. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compare.groups import Group
from compare.statistics import Ratio, ratio_of
from metrics import Quantity
from parsers import Run

TOTAL, EACH = "tokens_per_s", "tokens_per_s_per_gpu"
_KIND = ("platform", "hardware", "framework", "image")


@dataclass(frozen=True, slots=True)
class Scaled:
    """A group among others of its kind. smallest: the one with the fewest GPUs; efficiency: tokens/s per GPU over that
    one's, 1 where speed grows as GPUs do; of the smallest itself None."""

    group: str
    smallest: str
    gpus: int
    smallest_gpus: int
    efficiency: Ratio | None


def scaling(
    groups: Sequence[Group], numbers: Mapping[str, Mapping[str, Quantity]], difference: float
) -> tuple[Scaled, ...]:
    """Return every group whose speed and number of GPUs is known, in families, by GPUs. numbers: by run path. Empty
    where no family has two numbers of GPUs. Of groups with the fewest GPUs the first is the base of the others."""
    families: dict[tuple[Any, ...], list[tuple[int, Group]]] = {}
    for group in groups:
        gpus = _gpus(group.usable)
        if gpus is not None and _rates(group, numbers):
            first = group.usable[0].record
            families.setdefault(tuple(getattr(first, name) for name in _KIND), []).append((gpus, group))
    return tuple(scaled for family in families.values() for scaled in _family(family, numbers, difference))


def _family(
    family: Sequence[tuple[int, Group]], numbers: Mapping[str, Mapping[str, Quantity]], difference: float
) -> Iterator[Scaled]:
    by_gpus = sorted(family, key=lambda one: one[0])
    fewest, base = by_gpus[0]
    if by_gpus[-1][0] == fewest:
        return
    for gpus, group in by_gpus:
        rates, theirs = _rates(group, numbers), _rates(base, numbers)
        efficiency = None if group is base else ratio_of(rates, theirs, "higher", difference)
        yield Scaled(group.label, base.label, gpus, fewest, efficiency)


def _gpus(runs: Sequence[Run]) -> int | None:
    sizes = {run.record.setting("world_size") for run in runs}
    only = sizes.pop() if len(sizes) == 1 else None
    return only if type(only) is int and only > 0 else None


def _rates(group: Group, numbers: Mapping[str, Mapping[str, Quantity]]) -> list[float]:
    """Return the rate of every run; nothing where one is not known."""
    values = [numbers[run.path][EACH].value for run in group.usable]
    known = [float(value) for value in values if value is not None and value > 0]
    return known if len(known) == len(values) else []


def scaled_json(scaled: Scaled) -> dict[str, Any]:
    """Return the entry of compare.schema.json."""
    result = scaled.efficiency
    return {
        "group": scaled.group,
        "gpus": scaled.gpus,
        "smallest": scaled.smallest,
        "smallest_gpus": scaled.smallest_gpus,
        "efficiency": None if result is None else result.ratio,
        "interval": None if result is None or result.interval is None else list(result.interval),
    }
