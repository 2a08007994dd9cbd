"""`baseline=… candidate=… fail_on.regression=2%`: which runs stand on which side, and what would be too much."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path

from compare.figures import FIGURES, SPEED
from compare.groups import group
from compare.regression import Limit, Side
from conf.arguments import Arguments, Key, program, share
from conf.errors import InputError, Problem, closest, listed
from parsers import Run, find_runs
from parsers.find import matching

_HINT = "baseline.image=primus:v26.4 candidate.image=primus:v26.5 fail_on.regression=2%"

KEYS = (
    Key("candidate", "judged against baseline: a directory or glob, or the label of a group", example="runs/new"),
    Key("candidate.*", "the same by a filter; baseline.KEY=VALUE likewise", example="candidate.image=primus:v26.5"),
    Key("baseline.*", "the runs that a candidate is judged against", example="baseline.image=primus:v26.4"),
    Key(
        "fail_on.*",
        "exit 1 where the candidate is worse by so much, 3 where nobody can tell: fail_on.regression (tokens/s/GPU, by "
        "2% if nothing is given) or fail_on.METRIC",
        share,
        example="fail_on.regression=2%",
    ),
)


def is_gate(arguments: Arguments) -> bool:
    """Return whether a candidate is to be judged."""
    return (
        any(map(arguments.values.get, ("candidate", "candidate.*", "baseline.*", "fail_on.*")))
        or "--markdown" in arguments.switches
    )


def limits_of(shares: Mapping[str, float]) -> tuple[Limit, ...]:
    """Return the limits behind `fail_on.`; the default is a regression of 2 %. InputError: no such figure."""
    known = {figure.metric for figure in FIGURES if figure.better}
    names = ["regression", *sorted(known)]
    limits = {
        SPEED if name == "regression" else name: value for name, value in (shares or {"regression": 0.02}).items()
    }
    if unknown := [name for name in limits if name not in known]:
        problems = [Problem(f"fail_on.{n}", "no such figure", n, listed(names), closest(n, names)) for n in unknown]
        raise InputError(*problems)
    return tuple(Limit(metric, value) for metric, value in limits.items())


def sides_of(runs: Sequence[Run], arguments: Arguments) -> tuple[Side, Side]:
    """Return the runs of baseline and candidate: among `runs`, or where they are paths, there. InputError."""
    baseline, candidate = _text(arguments, "baseline"), _text(arguments, "candidate")
    if not candidate:
        what = "need a candidate, judged against a baseline"
        raise InputError(Problem("fail_on, --markdown", what, hint=_HINT))
    if not baseline or baseline == candidate:
        raise InputError(Problem("candidate", "needs a baseline, and another one than itself", candidate, hint=_HINT))
    return _side("baseline", baseline, runs), _side("candidate", candidate, runs)


def _text(arguments: Arguments, name: str) -> str:
    """Return a side as text: KEY=VALUE,… for filters."""
    filters = [f"{key}={value}" for key, value in arguments[f"{name}.*"].items()]
    return ",".join([*filter(None, [arguments[name]]), *filters])


def _side(key: str, text: str, runs: Sequence[Run]) -> Side:
    if Path(text).exists() or glob.glob(text, recursive=True):  # noqa: PTH207
        return Side(text, find_runs([text]))
    if "=" in text:
        chosen = matching(runs, text.split(","))
    else:
        groups = {one.label: one.runs for one in group(runs)} if runs else {}
        if text not in groups:
            allowed = (
                f"a filter ({key}.image=…), a directory or glob, or one of: {listed(sorted(groups)) or 'no groups'}"
            )
            raise InputError(Problem(key, "names no runs", text, allowed, closest(text, groups)))
        chosen = groups[text]
    if not chosen:
        raise InputError(Problem(key, "fits none of the runs", text, hint=f"{program('compare')} RUNS lists them"))
    return Side(text, chosen)
