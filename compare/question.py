"""What a comparison is asked: as data, and as options of a command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from compare.statistics import OF_INTEREST
from conf.errors import InputError, Problem

_LARGEST = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """vary: what is compared, as in compare/vary.py; None: what the groups suggest. baseline: the label of the group
    that ratios are against; None: the first. accept: setting or check to the reason why its difference is accepted.
    difference: the smallest that matters, as a share."""

    vary: tuple[str, ...] | None = None
    baseline: str | None = None
    accept: Mapping[str, str] = field(default_factory=dict)
    difference: float = OF_INTEREST


def add_question(parser: argparse._ActionsContainer) -> None:
    """Its options."""
    parser.add_argument("--baseline", metavar="LABEL", help="the group that ratios are against (default: the first)")
    vary = (
        "what is being compared: settings, kinds (layout, precision …), platform, image …, with commas or repeated "
        "(default: platform where the runs differ in it, else layout)"
    )
    parser.add_argument("--vary", action="append", metavar="KEY,…", help=vary)
    accept = "a difference that is meant, and why; repeated for more: --accept adam_eps='the recipe of both vendors'"
    parser.add_argument("--accept", action="append", metavar="KEY=REASON", default=[], help=accept)
    smallest = f"the smallest difference that matters (default: {100 * OF_INTEREST:g} %%)"
    parser.add_argument("--difference", metavar="2%", default=f"{100 * OF_INTEREST:g}%", help=smallest)


def question_of(options: argparse.Namespace) -> Question:
    """What `add_question` read. InputError."""
    problems: list[Problem] = []
    accepted = dict(_accepted(options.accept, problems))
    difference = _share(options.difference, problems)
    if problems:
        raise InputError(*problems)
    vary = None if options.vary is None else tuple(_keys(options.vary))
    return Question(vary=vary, baseline=options.baseline, accept=accepted, difference=difference)


def _keys(texts: Sequence[str]) -> Iterable[str]:
    return (key.strip() for text in texts for key in text.split(",") if key.strip())


def _accepted(texts: Sequence[str], problems: list[Problem]) -> Iterable[tuple[str, str]]:
    for text in texts:
        key, _, reason = (part.strip() for part in text.partition("="))
        if key and reason:
            yield key, reason
        else:
            hint = f"--accept {key or 'lr'}='why it may differ'"
            problems.append(Problem("--accept", "needs a key and a reason", text, "KEY=REASON", hint))


def _share(text: str, problems: list[Problem]) -> float:
    """2% and 0.02 are the same."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 < value < _LARGEST:
        problems.append(Problem("--difference", "is no share", text, "above 0, below 100 %", "--difference 2%"))
    return value
