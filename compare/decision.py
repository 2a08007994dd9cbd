"""From an audit to a decision: whether a ratio may stand and on which conditions, what would make it stand, the figures
that decide, and what is compared, in a line. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from compare.audit import Audit
from compare.figures import COST, SPEED
from compare.groups import Group, fact
from conf.errors import listed
from metrics import Quantity

Standing = Literal["ratio", "conditional", "side by side"]
"""ratio: it stands. conditional: nothing breaks, and it stands on conditions. side by side: figures, and no ratio."""
DECIDING = (SPEED, "mfu_percent", "time_to_train_s", "training_days", COST, "energy_j_per_token")
"""Metrics by which a buyer, an engineer and a boss decide."""


class Rerun(Struct, frozen=True):
    """A step of a user after which a ratio stands, of one group. because: the differences that it settles."""

    group: str
    command: str
    because: str


class Deciding(Struct, frozen=True):
    """A metric that decides, of every group that shows figures, by its label."""

    metric: str
    figures: Mapping[str, Quantity]


def standing(audit: Audit, groups: Sequence[Group]) -> Standing:
    """Return how figures of the groups may stand beside each other."""
    word = audit.verdict.word
    if word == "comparable":
        return "ratio"
    ranks = {reason.rank for reason in audit.verdict.reasons}
    settings = all(reason.settings for reason in audit.verdict.reasons)
    return "conditional" if settings and "breaks" not in ranks else "side by side"


def conditions(audit: Audit) -> tuple[str, ...]:
    """Return on what the ratios stand."""
    return audit.verdict.texts if audit.verdict.word != "comparable" else ()


def reruns(audit: Audit, groups: Sequence[Group], base: Group) -> tuple[Rerun, ...]:
    """Return the shortest list of what to run again."""
    return ()


def deciding(groups: Sequence[Group], figures: Mapping[str, Mapping[str, Quantity]]) -> tuple[Deciding, ...]:
    """Return the figures that decide, of every metric that a group knows."""
    shown = [group.label for group in groups if group.label in figures]
    every = (Deciding(name, {label: figures[label][name] for label in shown}) for name in DECIDING)
    return tuple(one for one in every if any(q.value is not None for q in one.figures.values()))


def title(groups: Sequence[Group]) -> str:
    """Return what is compared, of both sides."""
    return " against ".join(
        f"{listed(list(filter(None, (str(fact(g.runs[0].record, 'hardware')), g.runs[0].record.framework))))}"
        for g in groups[:4]
    )
