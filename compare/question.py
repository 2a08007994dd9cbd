"""The question of a comparison: as data, and as keys of a command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compare.statistics import OF_INTEREST
from conf.arguments import Arguments, Key, names, reason, share


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """vary: what is compared, as in compare/vary.py; None: what the groups suggest. baseline: the label of the group
    that ratios are against; None: the first. accept: setting or check to the reason why its difference is accepted.
    difference: the smallest that matters, as a share."""

    vary: tuple[str, ...] | None = None
    baseline: str | None = None
    accept: Mapping[str, str] = field(default_factory=dict)
    difference: float = OF_INTEREST


KEYS = (
    Key("baseline", "the group that ratios are against (default: the first)", example="DP2"),
    Key(
        "vary",
        "what is compared: settings, kinds (layout, precision …), platform, image … (default: platform where the runs "
        "differ in it, else layout)",
        names,
        example="layout,precision",
    ),
    Key(
        "accept.*",
        "a difference that is meant, and why",
        reason,
        example="accept.adam_eps='the recipe of both vendors'",
    ),
    Key("difference", f"the smallest that matters (default: {100 * OF_INTEREST:g}%)", share, OF_INTEREST, "2%"),
)


def question_of(arguments: Arguments) -> Question:
    """Return the question that KEYS of a command line ask."""
    known = {name: arguments[name] for name in ("vary", "baseline", "difference")}
    return Question(**known, accept=arguments["accept.*"])
