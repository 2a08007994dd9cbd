"""`python -m compare RUNS…`: 0 comparable, 2 bad input, 3 not comparable or cannot tell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from compare.audit import DEFAULT_VARY
from compare.comparison import Comparison, compare, to_json
from compare.find import find_runs
from conf.errors import InputError, Problem, UserError
from parsers.storage import dumps, replace_file

NOT_COMPARABLE = 3


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = _options(argv)
    try:
        comparison = compare(find_runs(options.runs), tuple(options.vary), options.baseline)
        if options.output is not None:
            _save(comparison, Path(options.output))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    _print(comparison, options.json)
    return 0 if comparison.audit.verdict.word in ("comparable", "nothing to compare") else NOT_COMPARABLE


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m compare", description="Compare training runs.")
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run directories, directories above them, globs")
    parser.add_argument("-o", dest="output", metavar="DIR", help="write compare.json and compare.png there")
    parser.add_argument("--json", action="store_true", help="print what compare.json holds")
    parser.add_argument("--baseline", metavar="LABEL", help="the group that ratios are against (default: the first)")
    vary = "what is being compared: a setting, a kind (layout, precision …), platform, image … (default: platform)"
    parser.add_argument("--vary", nargs="+", metavar="KEY", default=list(DEFAULT_VARY), help=vary)
    return parser.parse_args(argv)


def _save(comparison: Comparison, directory: Path) -> None:
    from compare.plot import save_plot

    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(directory / "compare.json", dumps(to_json(comparison), indent=1) + "\n")
        save_plot(comparison, directory / "compare.png")
    except OSError as error:
        raise InputError(Problem(str(directory), "cannot be written", error.strerror or str(error))) from error


def _print(comparison: Comparison, as_json: bool) -> None:
    if as_json:
        print(dumps(to_json(comparison), indent=1))
        return
    from compare.table import print_table

    print_table(comparison, sys.stdout)
