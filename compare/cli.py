"""`python -m compare RUNS…`: 0 comparable, 1 a regression, 2 bad input, 3 not comparable or cannot tell."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from compare.comparison import Comparison, compare, to_json
from compare.gate import add_gate, limits_of, sides_of
from compare.question import Question, add_question, question_of
from compare.regression import Gate, Outcome, judge
from compare.report.regression import print_regression, to_markdown
from compare.report.regression import to_json as regression_json
from conf.errors import InputError, Problem, command
from metrics.bill import Terms
from metrics.cli_terms import add_terms, split, terms_of
from parsers import Run, find_runs
from parsers.pretty import pretty
from parsers.progress import shown
from parsers.storage import dumps, replace_file

NOT_COMPARABLE = 3
_EXAMPLES = """examples:
python -m compare runs/nvidia runs/amd --price 'mi355x=3.10,b200=4.75 USD/gpu-hour' -o out
python -m compare runs/ platform=amd model=llama --vary precision
python -m compare runs/ --baseline image=primus:v26.4 --candidate image=primus:v26.5 --fail-on regression:2%"""
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
    options = _options(argv)
    named, prices = split(options.runs)
    if not named and not options.candidate:
        raise InputError(Problem("RUNS", "none given", hint="python -m compare runs/ platform=amd,nvidia model=llama"))
    with shown("reading runs", sys.stderr) as progress:
        runs = find_runs(named, progress) if named else ()
    question, terms = question_of(options), terms_of(options, runs, prices)
    if options.candidate or options.fail_on or options.markdown:
        return _gate(options, runs, question, terms)
    with shown("comparing runs", sys.stderr) as progress:
        comparison = compare(runs, question, terms, progress)
    if options.output is not None:
        _save(comparison, Path(options.output), sys.argv[1:] if argv is None else argv)
    _print(comparison, options.json)
    return 0 if comparison.audit.verdict.word in ("comparable", "nothing to compare") else NOT_COMPARABLE


def _gate(options: argparse.Namespace, runs: Sequence[Run], question: Question, terms: Terms) -> int:
    if not options.candidate:
        hint = "--baseline image=old --candidate image=new --fail-on regression:2%"
        raise InputError(Problem("--fail-on, --markdown", "need a --candidate, held against a --baseline", hint=hint))
    sides = sides_of(runs, options.baseline, options.candidate)
    found = judge(*sides, Gate(limits_of(options.fail_on), question, terms))
    if options.output is not None:
        with _writable(Path(options.output)) as directory:
            replace_file(directory / "regression.json", dumps(regression_json(found), indent=1) + "\n")
            replace_file(directory / "regression.md", to_markdown(found))
    if options.json:
        print(dumps(regression_json(found), indent=1))
    elif options.markdown:
        print(to_markdown(found), end="")
    else:
        print_regression(found, sys.stdout)
    return _OUTCOMES[found.outcome]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m compare",
        usage="%(prog)s RUNS [options]",
        description="Compare training runs: first whether they may be compared, then by how much they differ.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    runs = (
        "run directories, directories above them, globs; filters of these (platform=amd model=llama); "
        "prices (price.usd_per_gpu_hour.mi355x=3.10)"
    )
    parser.add_argument("runs", nargs="*", metavar="RUNS", help=runs)
    parser.add_argument("-o", dest="output", metavar="DIR", help="write compare.json, .html, .md, .csv and .png there")
    parser.add_argument("--json", action="store_true", help="print what compare.json holds")
    add_question(parser)
    add_gate(parser.add_argument_group("a new container or driver"))
    add_terms(parser.add_argument_group("money, energy and CO2 of a training"))
    return parser.parse_intermixed_args(argv)


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
        print(pretty(to_json(comparison)), end="")
        return
    from compare.report.terminal import print_table

    print_table(comparison, sys.stdout)
