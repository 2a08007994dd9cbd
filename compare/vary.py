"""The subject of a comparison: the settings that may differ without an explanation, and why those. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compare.groups import SEED, Side
from conf.errors import InputError, Problem, closest, listed
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
    "platform",
    "hardware",
    DEVICE,
    "framework",
    "framework_version",
    "image",
    "clock",
    TOKENS,
    *PARAMETERS,
    *DUMPED,
)
_SIDES = ("platform", "hardware", "framework")
_IMPLIED: Mapping[str, tuple[str, ...]] = {
    "platform": ("hardware", "framework", "framework_version", "image"),
    "hardware": (DEVICE,),
    "framework": ("framework_version", "image"),
    LAYOUT: ("micro_batch_size", "num_micro_batches"),
    "lr": ("lr_warmup_init",),
    "lr_warmup_iters": ("lr_warmup_init",),
    "train_iters": ("lr_decay_iters", TOKENS),  # a synthetic corpus is as long as the run
    **dict.fromkeys(("seq_length", "global_batch_size", "vocab_size", SEED, "data_path"), (TOKENS,)),
    "data": (TOKENS, "mock_data"),
}
_BEST = "max_performance"
# What a row of the table of best layouts gives beside the layout itself (conf/tables/layouts.csv).
_OF_A_BEST_ROW = (
    *("recompute_granularity", "recompute_method", "recompute_num_layers"),
    *("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather"),
)


@dataclass(frozen=True, slots=True)
class Varied:
    """keys: as named, or chosen from what the groups are; settings: those and all that follows; reason: why these."""

    keys: tuple[str, ...]
    settings: frozenset[str]
    reason: str


def fact_of(record: Record, name: str) -> Any:
    """Return a fact of the record beside its settings."""
    return hardware_of(record) if name == "hardware" else getattr(record, name)


def choose(groups: Sequence[Side], named: Sequence[str] | None = None) -> Varied:
    """Return what the groups are compared in: `named`, else platforms where they differ in these, else layouts.
    InputError.

    Comparing platforms excuses another layout only where each was given its best one: else it is a second
    difference."""
    keys, reason = _chosen(groups) if named is None else (tuple(named), "vary=")
    settings = expand(keys)
    if "platform" in settings and LAYOUT not in settings and _each_its_best(groups):
        settings |= expand((LAYOUT, *_OF_A_BEST_ROW))
        reason += f"; each with its own best layout: layout={_BEST}"
    return Varied(keys, settings, reason)


def expand(keys: Iterable[str]) -> frozenset[str]:
    """Return all settings and facts that `keys` name, by themselves, by their kind, or as a consequence. InputError."""
    kinds: dict[str, list[str]] = {}
    for setting in vocabulary().values():
        kinds.setdefault(setting.kind, []).append(setting.name)
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
            left += [*_IMPLIED.get(name, ()), *kinds.get(name, ())]
            left += PARAMETERS if name in kinds["model"] else ()
    return frozenset(settings)


def _chosen(groups: Sequence[Side]) -> tuple[tuple[str, ...], str]:
    runs = [run for group in groups for run in group.usable]
    apart = [name for name in _SIDES if len({fact_of(run.record, name) for run in runs}) > 1]
    if apart:
        return ("platform",), f"the groups differ in {listed(apart)}"
    return (LAYOUT,), f"no difference in {listed(_SIDES)} is reported"


def _each_its_best(groups: Sequence[Side]) -> bool:
    layouts = [run.record.requested.get(LAYOUT) for group in groups for run in group.usable]
    return bool(layouts) and all(name == _BEST for name in layouts)
