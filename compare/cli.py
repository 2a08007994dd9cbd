"""`python -m compare RUNS…`: 0 comparable, 2 bad input, 3 not comparable or cannot tell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from compare.comparison import Comparison, compare, to_json
from conf.errors import InputError, Problem, command
from parsers import find_runs
from parsers.storage import dumps, replace_file

NOT_COMPARABLE = 3


@command
def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = _options(argv)
    comparison = compare(find_runs(options.runs), _keys(options.vary), options.baseline)
    if options.output is not None:
        _save(comparison, Path(options.output))
    _print(comparison, options.json)
    return 0 if comparison.audit.verdict.word in ("comparable", "nothing to compare") else NOT_COMPARABLE


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m compare", description="Compare training runs.")
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run directories, directories above them, globs")
    parser.add_argument("-o", dest="output", metavar="DIR", help="write compare.json and compare.png there")
    parser.add_argument("--json", action="store_true", help="print what compare.json holds")
    parser.add_argument("--baseline", metavar="LABEL", help="the group that ratios are against (default: the first)")
    vary = (
        "what is being compared: settings, kinds (layout, precision …), platform, image …, with commas or repeated "
        "(default: platform where the runs differ in it, else layout)"
    )
    parser.add_argument("--vary", action="append", metavar="KEY,…", help=vary)
    return parser.parse_args(argv)


def _keys(vary: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if vary is None else tuple(key.strip() for text in vary for key in text.split(",") if key.strip())


def _save(comparison: Comparison, directory: Path) -> None:
    from compare.plot import png

    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(directory / "compare.json", dumps(to_json(comparison), indent=1) + "\n")
        replace_file(directory / "compare.png", png(comparison))
    except OSError as error:
        raise InputError(Problem(str(directory), "cannot be written", error.strerror or str(error))) from error


def _print(comparison: Comparison, as_json: bool) -> None:
    if as_json:
        print(dumps(to_json(comparison), indent=1))
        return
    from compare.table import print_table

    print_table(comparison, sys.stdout)
