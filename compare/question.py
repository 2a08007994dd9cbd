"""The question of a comparison: what is compared, and which settings may differ without an explanation. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compare.groups import SEED, Group, gathered
from compare.statistics import OF_INTEREST
from conf.errors import InputError, Problem, closest, listed
from conf.facts import LayoutRow
from conf.vocabulary import vocabulary
from metrics.peak import hardware_of
from parsers import Record

LAYOUT = "layout"
"""A kind of settings, and the name under which a layout was requested (identical, max_performance …)."""
TOKENS = "data_first_batch"  # fingerprint of the first global batch, as it was read: one a seed
PARAMETERS = ("parameters", "parameters_decayed", "parameters_undecayed")  # of the model as it was built
DUMPED = ("mock_data",)  # what one stack alone prints, and its recipes set: no setting of ours
DEVICE = "device_name"  # as the driver spells it: two sorts of one GPU, or two processors
# Facts of the record beside the settings of the vocabulary; not knowing them decides nothing.
FACTS = (
    *("platform", "hardware", DEVICE, "framework", "framework_version", "image", "clock"),
    *(TOKENS, *PARAMETERS, *DUMPED),
)
_SIDES = ("platform", "hardware", "framework")
_IMPLIED: Mapping[str, tuple[str, ...]] = {
    "platform": ("hardware", "framework", "framework_version", "image"),
    "hardware": (DEVICE,),
    "framework": ("framework_version", "image"),
    # a synthetic corpus is as long as the run
    **dict.fromkeys(("train_iters", "seq_length", "global_batch_size", "vocab_size", SEED, "data_path"), (TOKENS,)),
    "data": (TOKENS, "mock_data"),
}
_BEST = "max_performance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """vary: what is compared, by names of settings, kinds and facts; None: what the groups suggest. baseline: the label
    of the group that ratios are against; None: the first. accept: setting or check to the reason why its difference is
    accepted. difference: the smallest that matters, as a share."""

    vary: tuple[str, ...] | None = None
    baseline: str | None = None
    accept: Mapping[str, str] = field(default_factory=dict)
    difference: float = OF_INTEREST


@dataclass(frozen=True, slots=True)
class Varied:
    """keys: as named, or chosen from what the groups are; settings: those and all that follows; reason: why these."""

    keys: tuple[str, ...]
    settings: frozenset[str]
    reason: str


def fact_of(record: Record, name: str) -> Any:
    """Return a fact of the record beside its settings."""
    return hardware_of(record) if name == "hardware" else getattr(record, name)


def choose(groups: Sequence[Group], named: Sequence[str] | None = None) -> Varied:
    """Return what the groups are compared in: `named`, else platforms where they differ in these, else layouts.
    InputError.

    Comparing platforms excuses another layout only where each was given its best one: else it is a second
    difference."""
    runs = [run for group in groups for run in group.usable]
    apart = [name for name in _SIDES if len({fact_of(run.record, name) for run in runs}) > 1]
    if named is not None:
        keys, reason = tuple(named), "vary="
    elif apart:
        keys, reason = ("platform",), f"the groups differ in {listed(apart)}"
    else:
        keys, reason = (LAYOUT,), f"no difference in {listed(_SIDES)} is reported"
    settings = expand(keys)
    layouts = {run.record.requested.get(LAYOUT) for run in runs}
    if "platform" in settings and LAYOUT not in settings and layouts == {_BEST}:
        settings |= expand((LAYOUT, *(name for name in LayoutRow.__slots__ if name in vocabulary())))
        reason += f"; each with its own best layout: layout={_BEST}"
    return Varied(keys, settings, reason)


def expand(keys: Iterable[str]) -> frozenset[str]:
    """Return all settings and facts that `keys` name, by themselves, by their kind, or as a consequence. InputError."""
    kinds = gathered((setting.kind, setting.name) for setting in vocabulary().values())
    following = gathered((cause, setting.name) for setting in vocabulary().values() for cause in setting.follows)
    known = {*kinds, *vocabulary(), *FACTS}
    left = list(keys)
    unknown = [name for name in left if name not in known]
    if unknown:
        allowed = listed([*FACTS, *kinds]) + ", or a setting of conf/vocabulary.yaml"
        hint = closest(unknown[0], sorted(known)) or "vary=layout"
        raise InputError(Problem("vary", "no such setting", listed(unknown), allowed, hint))
    settings: set[str] = set()
    while left:
        name = left.pop()
        if name not in settings:
            settings.add(name)
            left += [*_IMPLIED.get(name, ()), *kinds.get(name, ()), *following.get(name, ())]
            left += PARAMETERS if name in kinds["model"] else ()
    return frozenset(settings)
