"""A plan for people: an experiment on one screen, and with --files all that its run gets."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import TextWrapper

from conf import summary
from conf.errors import listed, some
from conf.resolve import Experiment
from estimate.headroom import memory_text, what_fits
from launchers import containers, kubernetes, make_plan, preflight, run_dir, slurm, where
from launchers.attribute_settings import options_unknown
from launchers.frameworks import framework_of
from launchers.plan import Plan, Scope
from launchers.runner import taken
from launchers.variables import machine, tuned
from tensorprimat.departures import GROUPS, why
from tensorprimat.recipe_plans import too_large
from tensorprimat.recipes import figures

WIDTH, COLUMN, MOST_DIFFERENCES, LONGEST_VALUE = 140, 14, 8, 30
Row = tuple[str, str]


def plan_text(e: Experiment, p: Plan, rehearsed: Scope, complete: bool, commit: str | None) -> str:
    """Return the plan `p` of `e` for people. complete: with the files, each variable's reason, and commands that can be
    copied. commit: of our own code."""
    rows = [*_of_recipe(e, complete), ("memory", memory_text(e)), ("step time", _wrapped(_step_time(e)))]
    large = too_large(e)
    rows += [("does not fit", problem.what) for problem in large]
    rows += [("what fits", text) for text in (what_fits(e) if e.recipe is None else [one.hint for one in large])]
    rows += [("warning", note) for note in rehearsed.notes]
    rows += [("shrunk", f"{name}: {one['asked']}, here {one['ran']}") for name, one in rehearsed.shrunk.items()]
    rows += [("not rehearsed", f"{name}: {why}") for name, why in rehearsed.not_rehearsed.items()]
    rows += [("not looked up", text) for text in _not_looked_up(e)]
    refused = [*slurm.problems(e), *kubernetes.problems(e)]
    rows += [("refused", f"{problem.where}: {problem.what}") for problem in refused]
    rows += [("not here", f"{one.where}: {one.what}") for one in preflight.problems(e) if one not in refused]
    rows += _variables_and_reasons(p) if complete else _variables(e, p)
    rows += [("passed on", listed(p.forward_env))] if p.forward_env else []
    rows += [("taken away", f"{name} of this shell, which would steer the launch") for name in taken(p, os.environ)]
    rows += [("declared", f"{d.key} = {d.value} ({d.reason})") for d in p.declared]
    folder = f"{run_dir.directory(rehearsed.requested or e, commit)}: the command starts there, its log is {p.log}"
    rows += [("folder", folder), *(_commands(e, p) if complete else _short(p))]
    texts = [summary(e), *(f"{label:<{COLUMN}}{text}" for label, text in rows)]
    if complete:
        texts += [f"--- {name}\n{text.rstrip()}" for name, text in sorted(p.files.items())]
    if e.cluster.job is not None and not refused:
        texts.append(f"--- {slurm.JOB} (bundle=DIR leaves it)\n{slurm.job_sh(e).rstrip()}")
    if e.cluster.kubernetes is not None and not refused:
        shown = kubernetes.text(*kubernetes.jobs(e, {"run.sh": "run.sh"}))
        texts.append(
            f"--- {kubernetes.file_of(e)} (bundle=DIR leaves it, with all files of the bundle)\n{shown.rstrip()}"
        )
    return "\n".join(texts)


def _step_time(e: Experiment) -> str:
    from estimate.figures import step_time_text  # numpy, which no launch needs, and of which an empty Python has none

    return step_time_text(e)


def _of_recipe(e: Experiment, complete: bool) -> Iterator[Row]:
    """Yield the vendor's own figures for the recipe, and what of it does not run as the vendor has it, by why."""
    if e.recipe is None:
        return
    if e.recipe.note:
        yield "note", e.recipe.note
    yield from (("published", f"{figure}, the vendor's own") for figure in figures(e.recipe))
    groups: dict[str, list[str]] = {}
    for d in framework_of(e.framework.name).differences(e):
        groups.setdefault(why(d, e, e.recipe), []).append(f"{d.path} {_brief(d.here)} (theirs {_brief(d.vendor)})")
    for reason, label in GROUPS.items():
        if texts := groups.get(reason):
            shown = "; ".join(texts) if complete else some(texts, MOST_DIFFERENCES, "; ")
            yield label, _wrapped(f"{reason}, {len(texts)}: {shown}")
    if not groups:
        yield "differs", "in nothing from the vendor's own"


def _not_looked_up(e: Experiment) -> Iterator[str]:
    """Yield what is said of each of framework.options that nothing here knows."""
    stack = f"{e.framework.label or e.framework.name} {e.framework.release}"
    for name, hint in options_unknown(e, framework_of(e.framework.name).table):
        text = f"framework.options.{name}: its check before the run refuses a name that {stack} does not have"
        yield "; ".join(filter(None, (text, hint)))


def _brief(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def _variables_and_reasons(p: Plan) -> Iterator[Row]:
    return (("environment", f"{name}={value}  ({p.env_reasons[name]})") for name, value in sorted(p.env.items()))


def _variables(e: Experiment, p: Plan) -> Iterator[Row]:
    """Yield the variables by who decides them; the reason of each is with --files."""
    of_recipe = (e.recipe.environment or {}) if e.recipe else {}
    groups: Mapping[str, Sequence[str]] = {
        "yours": [*e.environment],
        "of the recipe": [*of_recipe],
        f"tuned for {e.hardware.name} (conf/tables)": [*tuned(e)],
        "of this machine": [*machine(e, where.host())],
        "where it runs": [*p.env],
    }
    left = dict(sorted(p.env.items()))
    for who, names in groups.items():
        if shown := [f"{name}={shlex.quote(left.pop(name))}" for name in sorted(names) if name in left]:
            yield "environment", _wrapped(f"{who}: {' '.join(shown)}")


def _short(p: Plan) -> Iterator[Row]:
    """Yield the command without its setup and environment, and the names of the files."""
    yield "command", shlex.join(p.argv)
    yield (
        "files",
        f"{listed(sorted(p.files)) or 'none'}; --files shows them, each variable's reason, and the complete command",
    )


def _commands(e: Experiment, p: Plan) -> Iterator[Row]:
    """Yield the command, and as each container runtime would start it in the experiment's image."""
    yield "command", p.command()
    if e.image is None or e.cluster.container != "none":
        return
    for runtime in containers.RUNTIMES:
        there = replace(e, cluster=replace(e.cluster, container=runtime))
        if not list(containers.problems(there)):
            yield f"or {runtime}", planned(there).command()


def planned(e: Experiment) -> Plan:
    """Return what a run of `e` executes on this machine, in its container if it has one."""
    plan = make_plan(e, where.host())
    if e.cluster.container == "none":
        return plan
    cache = Path(e.cluster.hf_home).expanduser().absolute()
    directory = run_dir.directory(e, where.commit()).absolute()
    return containers.wrap(plan, e, directory, cache if cache.is_dir() else None)


def _wrapped(text: str) -> str:
    """Return `text` in lines of the width of a screen, behind the column of labels."""
    indent = " " * COLUMN
    return TextWrapper(WIDTH, indent, indent, break_long_words=False, break_on_hyphens=False).fill(text).lstrip()
