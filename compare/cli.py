"""`python -m compare RUNS…`: 0 comparable, 1 a regression, 2 bad input, 3 not comparable or cannot tell."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from compare import gate, question
from compare.comparison import Comparison, compare, to_json
from compare.question import Question
from compare.regression import Gate, Outcome, judge
from compare.report.regression import regression_report
from compare.report.regression import to_json as regression_json
from conf.arguments import Arguments, Command, program
from conf.errors import InputError, Problem, command
from metrics import terms
from metrics.bill import Terms
from parsers import Run, find_runs
from parsers.find import FILTERS, WHERE
from parsers.progress import shown
from parsers.storage import dumps, replace_file

NOT_COMPARABLE = 3
COMPARE = Command(
    name="compare",
    summary="Compare training runs: first whether they may be compared, then by how much they differ.",
    words="RUN…",
    words_help=WHERE,
    keys=(*question.KEYS, *gate.KEYS, *terms.KEYS),
    others=FILTERS,
    switches={
        "--json": "print what compare.json holds",
        "--markdown": "with a candidate: print Markdown for a pull request",
    },
    output="write compare.json, .html, .md, .csv and .png there",
    examples=(
        "runs/nvidia runs/amd price.usd_per_gpu_hour.mi355x=3.10 price.usd_per_gpu_hour.b200=4.75 -o out",
        "runs/ platform=amd model=llama vary=precision",
        "runs/ baseline.image=primus:v26.4 candidate.image=primus:v26.5 fail_on.regression=2%",
    ),
    old={
        **terms.OLD,
        "--accept": "accept.adam_eps='the recipe of both vendors'",
        "--fail-on": "fail_on.regression=2%",
        "--baseline": "baseline=DP2, or baseline.image=primus:v26.4",
        "--candidate": "candidate=runs/new, or candidate.image=primus:v26.5",
    },
)
_OUTCOMES: Mapping[Outcome, int] = {"ok": 0, "regression": 1, "failed run": 1, "cannot tell": NOT_COMPARABLE}


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector: a thousand records are half a million objects, none of which refers to itself,
    and it would go through all of them again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@command
@_uncollected()
def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    arguments = COMPARE.parse(argv)
    named = arguments.rest
    judging = gate.is_gate(arguments)
    if not named and not judging:
        raise InputError(
            Problem("RUN", "none given", hint=f"{program('compare')} runs/ platform=amd,nvidia model=llama")
        )
    with shown("reading runs", sys.stderr) as progress:
        runs = find_runs(named, progress, COMPARE.names) if named else ()
    asked, on = question.question_of(arguments), terms.terms_of(arguments, runs)
    if judging:
        return _gate(arguments, runs, asked, on)
    with shown("comparing runs", sys.stderr) as progress:
        comparison = compare(runs, asked, on, progress)
    if arguments.output is not None:
        _save(comparison, arguments.output, sys.argv[1:] if argv is None else argv)
    _print(comparison, "--json" in arguments.switches)
    return 0 if comparison.audit.verdict.word in ("comparable", "nothing to compare") else NOT_COMPARABLE


def _gate(arguments: Arguments, runs: Sequence[Run], asked: Question, on: Terms) -> int:
    sides = gate.sides_of(runs, arguments)
    judged = judge(*sides, Gate(gate.limits_of(arguments["fail_on.*"]), asked, on))
    from compare.report.files import markdown
    from compare.report.terminal import print_report

    content = regression_report(judged)
    if arguments.output is not None:
        with _writable(arguments.output) as directory:
            replace_file(directory / "regression.json", dumps(regression_json(judged), indent=1) + "\n")
            replace_file(directory / "regression.md", markdown(content))
    if "--json" in arguments.switches:
        print(dumps(regression_json(judged), indent=1))
    elif arguments.switches:
        print(markdown(content), end="")
    else:
        print_report(content, sys.stdout)
    return _OUTCOMES[judged.outcome]


@contextmanager
def _writable(directory: Path) -> Iterator[Path]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield directory
    except OSError as error:
        found = error.strerror or str(error)
        raise InputError(Problem(str(directory), "cannot be written", found, hint="-o out")) from error


def _save(comparison: Comparison, directory: Path, argv: Sequence[str]) -> None:
    from compare.report.files import files

    with _writable(directory):
        for name, content in files(comparison, argv).items():
            replace_file(directory / name, content)


def _print(comparison: Comparison, as_json: bool) -> None:
    if as_json:
        print(dumps(to_json(comparison), indent=1))
        return
    from compare.report.page import summary
    from compare.report.terminal import print_report

    print_report(summary(comparison), sys.stdout)
