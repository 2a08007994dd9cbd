"""`python -m compare RUNS…`: 0 comparable, 1 a regression, 2 bad input, 3 not comparable, or not decided."""

from __future__ import annotations

import gc
import glob
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from compare.comparison import GROUPS, about, compare, group_objects, without
from compare.figures import FIGURES, SPEED
from compare.groups import Group, Question, comparable, expand, group
from compare.regression import Outcome, judge, regression_json
from compare.statistics import OF_INTEREST
from conf import machine
from conf.arguments import Arguments, Command, Key, names, program, reason, share
from conf.errors import InputError, Problem, closest, command, listed, writing
from conf.machine import Machine
from conf.secret import WithoutShapes
from conf.vocabulary import RANKS, vocabulary
from metrics import terms
from metrics.bill import Terms
from parsers import Run
from parsers.find import FILTERS, SKIP, WHERE, filter_keys, filter_names, find_and_warn, matching
from parsers.progress import shown
from parsers.storage import dumps, pieces, replace_file

NOT_COMPARABLE = 3
_OLD, _NEW = "image=primus:v26.4", "image=primus:v26.5"
_PAIR = f"baseline.{_OLD} candidate.{_NEW} fail_on.regression=2%"
_ACCEPT = "accept.image='the containers of both vendors'"
_VARY = "what is compared: settings, kinds (layout …), platform … (default: platform if it differs, else layout)"


def _settings(text: str) -> tuple[str, ...]:
    """Read what is compared. InputError: no such setting."""
    expand(names(text))
    return names(text)


def _accepted() -> tuple[str, ...]:
    return (*RANKS, *vocabulary())


def _machines(text: str) -> tuple[Machine, ...]:
    """Read files of `measure`. InputError: one is none."""
    return tuple(machine.read(Path(name)) for name in names(text))


_QUESTION = (
    Key("baseline", "the group that ratios are against (default: the first)", example="DP2"),
    Key("vary", _VARY, _settings, None, "layout,precision", comparable),
    Key("accept.*", "a difference that is meant, or all of a rank (shifts), and why", reason, None, _ACCEPT, _accepted),
    Key("difference", f"the smallest that matters (default: {100 * OF_INTEREST:g}%)", share, OF_INTEREST, "2%"),
)
_MACHINES = "machine.yaml of the devices (a,b): the MFU of the achievable rate is of their best product"
_LIMITS = {"regression": SPEED, **{figure.metric: figure.metric for figure in FIGURES if figure.better}}
_FAIL_ON = "exit 1 where the candidate is worse by so much, 3 where it is open: regression (tokens/s/GPU, 2%) or METRIC"
_GATE = (
    Key("candidate", "judged against baseline: a directory or glob, or the label of a group", example="runs/new"),
    Key("candidate.*", "the same by a filter; also baseline.KEY=VALUE", str, None, f"candidate.{_NEW}", filter_names),
    Key("baseline.*", "the runs that a candidate is judged against", str, None, f"baseline.{_OLD}", filter_names),
    Key("fail_on.*", _FAIL_ON, share, None, "fail_on.regression=2%", partial(list, _LIMITS)),
)
COMPARE = Command(
    name="compare",
    summary="Compare training runs: first whether they may be compared, then by how much they differ.",
    words="RUN…",
    words_help=WHERE,
    keys=(*_QUESTION, *_GATE, *terms.KEYS, Key("machine", _MACHINES, _machines, (), "machine.yaml")),
    others=FILTERS,
    known=filter_keys,
    switches={
        "--json": "print what compare.json holds",
        "--markdown": "with a candidate: print Markdown for a pull request",
        **SKIP,
    },
    output="write compare.json, .html, .md, .csv and .png there; with FILE.html that page alone",
    examples=(
        "runs/nvidia runs/amd price.usd_per_gpu_hour.mi355x=3.10 price.usd_per_gpu_hour.b200=4.75 -o out",
        "runs/ platform=amd model=llama vary=precision",
        f"runs/ {_PAIR}",
    ),
    old={
        **terms.OLD,
        "--accept": _ACCEPT,
        "--fail-on": "fail_on.regression=2%",
        "--baseline": "baseline=DP2, or baseline.image=primus:v26.4",
        "--candidate": "candidate=runs/new, or candidate.image=primus:v26.5",
    },
)
_OUTCOMES: Mapping[Outcome, int] = {"ok": 0, "regression": 1, "failed run": 1, "cannot tell": NOT_COMPARABLE}


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    was = gc.isenabled()
    gc.disable()  # it would go through a thousand records again and again: half a million objects, without a circle
    try:
        return _compared(COMPARE.parse(argv), sys.argv[1:] if argv is None else argv)
    finally:
        if was:
            gc.enable()


def _compared(arguments: Arguments, argv: Sequence[str]) -> int:
    machines = [word for word in arguments.words if word.endswith((".yaml", ".yml"))]
    if len(machines) > 1 and len(machines) == len(arguments.words):
        return _of_machines(arguments)
    if alone := next((word for word in machines if Path(word).is_file()), None):
        hint = f"two such files compare, and runs take one as machine={alone}"
        raise InputError(Problem(alone, "is no run: as a machine's file it has none to compare with", hint=hint))
    gate = any(name.startswith(("candidate", "baseline.", "fail_on.")) for name in arguments.typed)
    gate = gate or "--markdown" in arguments.switches
    with shown("reading runs", sys.stderr) as progress:
        named = arguments.rest or not gate
        skipped = list[Problem]()
        runs = find_and_warn(arguments.rest, arguments.switches, progress, COMPARE.names, skipped) if named else ()
    if len(runs) == 1 and len(arguments.words) > 1:
        hint = "name a run of another platform, layout or image as well"
        raise InputError(Problem("RUN", "one run, and nothing to compare it with", runs[0].path, hint=hint))
    known = {name: arguments[name] for name in ("vary", "baseline", "difference")}
    question, on = Question(**known, accept=arguments["accept.*"]), terms.terms_of(arguments, runs)
    on = replace(on, machines=arguments["machine"])
    if gate:
        return _gate(arguments, runs, question, on)
    with shown("comparing runs", sys.stderr) as progress:
        comparison = without(compare(runs, question, on, progress), skipped)
    if arguments.output is not None:
        from compare.report.files import files, page

        page_alone = arguments.output.suffix == ".html"
        _save(arguments.output, page(comparison, argv) if page_alone else files(comparison, argv))
    if "--json" in arguments.switches:
        for text in pieces(about(comparison), GROUPS, group_objects(comparison)):
            sys.stdout.write(WithoutShapes(text))  # of records that were read without any
    else:
        from compare.report.page import summary
        from compare.report.terminal import print_report

        print_report(summary(comparison), sys.stdout)
    return 0 if comparison.audit.verdict.word == "comparable" else NOT_COMPARABLE


def _of_machines(arguments: Arguments) -> int:
    """Compare machines. 0: figures of both stand beside each other."""
    from compare.machines import compare_machines, lines_of

    result = compare_machines(
        arguments.words, [machine.read(Path(word)) for word in arguments.words], arguments["difference"]
    )
    if arguments.output is not None:
        _save(arguments.output, {"machines.json": dumps(result, indent=1) + "\n"})
    print(dumps(result, indent=1) if "--json" in arguments.switches else "\n".join(lines_of(result)))
    return 0


def _gate(arguments: Arguments, runs: Sequence[Run], question: Question, on: Terms) -> int:
    """Judge a candidate against its baseline; return the exit code."""
    from compare.report.files import html, markdown
    from compare.report.gate import page_of, regression_report
    from compare.report.terminal import print_report

    sides, shares = _sides(runs, arguments), arguments["fail_on.*"] or {"regression": 0.02}
    judged = judge(*sides, {_LIMITS[name]: value for name, value in shares.items()}, question, on)
    content, json = regression_report(judged), dumps(regression_json(judged), indent=1) + "\n"
    if arguments.output is not None:
        page = html(page_of(judged))
        texts = {"regression.json": json, "regression.html": page, "regression.md": markdown(content)}
        _save(arguments.output, page if arguments.output.suffix == ".html" else texts)
    if "--json" in arguments.switches:
        print(json, end="")
    elif "--markdown" in arguments.switches:
        print(markdown(content), end="")
    else:
        print_report(content, sys.stdout)
    return _OUTCOMES[judged.outcome]


def _save(path: Path, files: Mapping[str, str | bytes] | str) -> None:
    """Write a page as `path`, or files into the directory `path`."""
    directory, each = (path.parent, {path.name: files}) if isinstance(files, str) else (path, files)
    with writing(path, "-o out"):
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in each.items():
            replace_file(directory / name, content)


def _sides(runs: Sequence[Run], arguments: Arguments) -> tuple[Group, Group]:
    """Return the runs of baseline and candidate: among `runs`, or in their paths. InputError, of limits, too."""
    baseline, candidate = (
        ",".join(filter(None, [arguments[side], *(f"{key}={value}" for key, value in arguments[f"{side}.*"].items())]))
        for side in ("baseline", "candidate")
    )
    unknown, allowed = [name for name in arguments["fail_on.*"] if name not in _LIMITS], listed([*_LIMITS])
    problems = [Problem(f"fail_on.{n}", "no such figure", n, allowed, closest(n, _LIMITS)) for n in unknown]
    if not candidate:
        problems.append(Problem("candidate", "missing: limits and --markdown need a candidate", hint=_PAIR))
    elif not baseline or baseline == candidate:
        problems.append(Problem("candidate", "needs a baseline, and another one than itself", candidate, hint=_PAIR))
    if problems:
        raise InputError(*problems)
    sides = (("baseline", baseline), ("candidate", candidate))
    first, second = (_side(key, text, runs, arguments.switches) for key, text in sides)
    return first, second


def _side(key: str, text: str, runs: Sequence[Run], switches: Collection[str]) -> Group:
    if Path(text).exists() or glob.glob(text, recursive=True):  # noqa: PTH207
        return Group(text, find_and_warn([text], switches))
    if "=" in text:
        chosen = matching(runs, text.split(","))
    else:
        groups = {one.label: one.runs for one in group(runs)} if runs else {}
        if text not in groups:
            known = listed(sorted(groups)) or "no groups"
            allowed = f"a filter ({key}.image=…), a directory or glob, or one of: {known}"
            raise InputError(Problem(key, "matches no runs", text, allowed, closest(text, groups)))
        chosen = groups[text]
    if not chosen:
        raise InputError(Problem(key, "fits none of the runs", text, hint=f"{program('compare')} RUNS lists them"))
    return Group(text, chosen)
