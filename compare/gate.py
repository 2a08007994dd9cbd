"""`--baseline … --candidate … --fail-on regression:2%`: which runs stand on which side, and what would be too much."""

from __future__ import annotations

import argparse
import glob
from collections.abc import Sequence
from pathlib import Path

from compare.figures import FIGURES, SPEED
from compare.groups import group
from compare.regression import Limit, Side
from conf.errors import InputError, Problem, closest, listed
from parsers import Run, find_runs
from parsers.find import matching

_HINT = "--fail-on regression:2%"


def add_gate(parser: argparse._ActionsContainer) -> None:
    """Its options."""
    add = parser.add_argument
    side = "a filter (image=primus:v26.5), a directory or glob, or the label of a group"
    add("--candidate", metavar="RUNS", help=f"held against --baseline: {side}; --baseline may then be so, too")
    fail_on = (
        "exit 1 where the candidate is worse by so much, 3 where that cannot be told: regression:2%% (tokens/s/GPU), "
        "or METRIC:2%%; repeated for more"
    )
    add("--fail-on", action="append", default=[], metavar="METRIC:2%", help=fail_on)
    add("--markdown", action="store_true", help="with --candidate: print Markdown for a pull request")


def limits_of(texts: Sequence[str]) -> tuple[Limit, ...]:
    """What --fail-on says; the default is a regression of 2 %. InputError: all that is wrong with it."""
    problems: list[Problem] = []
    known = {figure.metric for figure in FIGURES if figure.better}
    found = []
    for text in texts or ("regression:2%",):
        name, _, share = text.rpartition(":")
        metric = SPEED if name == "regression" else name
        value = _share(share)
        if metric not in known:
            names = ["regression", *sorted(known)]
            problems.append(Problem("--fail-on", "no such figure", name or text, listed(names), closest(name, names)))
        elif value is None:
            problems.append(Problem("--fail-on", "no such limit", share, "above 0, below 100 %", _HINT))
        else:
            found.append(Limit(metric, value))
    if problems:
        raise InputError(*problems)
    return tuple(found)


def _share(text: str) -> float | None:
    """2% and 0.02 are the same."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return None
    return value if 0 < value < 1 else None


def sides_of(runs: Sequence[Run], baseline: str | None, candidate: str) -> tuple[Side, Side]:
    """The runs that both options name: among `runs`, or where they are paths, there. InputError."""
    if baseline is None or baseline == candidate:
        what = "needs a --baseline, and another one than itself"
        raise InputError(Problem("--candidate", what, candidate, hint="--baseline image=old --candidate image=new"))
    return _side("--baseline", baseline, runs), _side("--candidate", candidate, runs)


def _side(option: str, text: str, runs: Sequence[Run]) -> Side:
    if Path(text).exists() or glob.glob(text, recursive=True):  # noqa: PTH207
        return Side(text, find_runs([text]))
    if "=" in text:
        found = matching(runs, text.split(","))
    else:
        groups = {one.label: one.runs for one in group(runs)} if runs else {}
        if text not in groups:
            allowed = f"a filter (image=…), a directory or glob, or one of: {listed(sorted(groups)) or 'no groups'}"
            raise InputError(Problem(option, "names no runs", text, allowed, closest(text, groups)))
        found = groups[text]
    if not found:
        raise InputError(Problem(option, "no run is so", text, hint="python -m compare RUNS lists them"))
    return Side(text, found)
