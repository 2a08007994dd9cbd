"""Run LLM pre-training experiments: compose the config, check it, plan, run, record."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import to_builtins

import parsers
from conf import machine
from conf.arguments import JSON, Command, Key, experiment_keys, program
from conf.compose import CONF, checked_overrides, choices, compose
from conf.errors import ConfigError, InputError, Problem, command
from conf.load import experiments, settle
from conf.resolve import Experiment
from estimate.headroom import headroom
from launchers import bundle, make_plan, node_check, preflight, warm, where
from launchers.frameworks import framework_of
from launchers.matrix import Run
from launchers.plan import Host, Scope
from parsers import Record
from parsers.outcome import FROM_LAUNCHER
from parsers.planned import RECORD
from parsers.storage import run_file
from tensorprimat import jobs, together, turns
from tensorprimat.check import target_problems
from tensorprimat.plan_text import plan_text, planned
from tensorprimat.recipe_plans import too_large
from tensorprimat.run import planned_record, rehearsal, rehearse_once, run_once

Row = dict[str, Any]
HYDRA_FLAGS = {"--cfg", "-c", "--info", "-i", "--package", "-p", "--resolve", "--hydra-help", "--shell-completion"}


LAUNCH = Command(
    name="launch",
    summary="Run LLM pre-training experiments: compose the config, check it, plan, run, record.",
    words="KEY=VALUE…",
    words_help="any key of conf/, in Hydra's grammar: --cfg job shows them all",
    keys=(Key("machine", "a file of `measure` to check this box, or a job's nodes, by", Path, None, "m.yaml"),),
    others="any key of conf/, in Hydra's grammar",
    switches={"-m": "a,b in values: one experiment each", "--multirun": "the same as -m"}
    | {"--json": "the result (of a dry run: the plan) as JSON"}
    | {"--files": "with dry_run=true: the files too, each variable's reason, commands to copy"},
    examples=(
        "                                          a small Llama, on whatever is here",
        "model=llama platform=nvidia dry_run=true     the plan for 8 H100s, nothing started",
        "-m layout=data_parallel,tp2 gpus_per_node=2 repeat=3     a matrix of runs",
        "model=llama31_70b platform=nvidia nodes=8 layout=searched dry_run=true     predicted to be the fastest",
        "-m framework=nemo,primus rehearse=train      the vendors' own stacks on this CPU, at toy size",
    ),
    more="\n".join(f"{group}={'|'.join(choices(group))}" for group in ("model", "platform", "layout"))
    + "\nExit codes: 0 all runs completed, 1 one did not, 2 bad input.",
    known=experiment_keys,
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (sys.argv without the program by default); return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if any(a.split("=")[0] in HYDRA_FLAGS for a in arguments):
        return _show_config(arguments)
    typed = LAUNCH.parse(arguments)
    as_json = "--json" in typed.switches
    multirun = bool(typed.switches & {"-m", "--multirun"})
    requested = list(_requested(typed.rest, multirun=multirun))
    if typed["machine"]:
        known = machine.read(typed["machine"])
        if wrong := [problem for e in requested if _starts_elsewhere(e) for problem in node_check.unfit(e, known)]:
            raise ConfigError(*dict.fromkeys(wrong))
        requested = [node_check.held_against(e, known) if _starts_elsewhere(e) else e for e in requested]
    dry, runs = [e for e in requested if e.dry_run], [e for e in requested if not e.dry_run and e.bundle is None]
    if dry:
        _show_plans(list(map(rehearsal, dry)), as_json, "--files" in typed.switches)
    left = map(rehearsal, (e for e in requested if e.bundle is not None and not e.dry_run))
    bundle.leave([(e, make_plan(e, where.host()), scope) for e, scope in left])
    if typed["machine"] and not all(map(_starts_elsewhere, runs)):
        _probe(known)
    return run_all(runs, as_json, is_matrix=multirun) if runs else 0


def _starts_elsewhere(e: Experiment) -> bool:
    """Return whether a run starts on another box than this one: preflight= checks that against machine= there."""
    return bool(e.bundle or e.cluster.job or e.cluster.kubernetes)


def _probe(known: machine.Machine) -> None:
    """Hold this box against what it was measured to do. InputError: it is slower, or another one."""
    from measure.probe import problems

    if found := problems(known):
        raise InputError(*found)


def _requested(overrides: Sequence[str], multirun: bool) -> Iterator[Experiment]:
    """Yield the experiments, a searched layout by its sizes. ConfigError: all that is wrong."""
    if not any(text.startswith("layout=") and "searched" in text for text in overrides):
        yield from experiments(overrides, multirun=multirun)
        return
    from estimate.searched import with_searched  # numpy, which no other launch waits for

    several = list(with_searched(overrides))
    if len(several) > 1 and not multirun:
        raise ConfigError(Problem("layout", "several values", hint="-m before them makes each an experiment"))
    for typed, why in several:
        for e in experiments(typed, multirun=multirun):
            yield replace(e, reasons=(*e.reasons, why)) if why else e


def run_all(requested: Sequence[Experiment], as_json: bool, *, anew: bool = True, is_matrix: bool = False) -> int:
    """Check every experiment, then run each; a signal ends them all, a failure does not. Several runs are a matrix,
    with a journal. anew: its runs that failed too often are tried again.

    A rehearsal is checked when its turn comes: one that cannot begin becomes a failed record. But a recipe of a release
    that is not installed is refused before."""
    host, commit = where.host(), where.commit()
    _check(requested, host)
    single = [e for e in requested if not e.rehearse]
    single = [
        replace(e, training=replace(e.training, seed=seed), repeat=1)
        for e in single
        for seed in range(e.training.seed, e.training.seed + e.repeat)
    ]
    for warning in dict.fromkeys(w for e in requested for w in e.warnings):
        print(f"warning: {warning}", file=sys.stderr)
    if single and all(e.cluster.job is not None for e in single):
        return _show([_of_job(*ended) for ended in jobs.run(single, commit, anew)], as_json)
    starts: list[Callable[[], Row]] = [partial(_rehearsed, e, host) for e in requested if e.rehearse]
    rows: list[Row] = []
    with ExitStack() as held:
        if is_matrix or len(single) > 1:
            in_turn = held.enter_context(turns.turns(single, commit, anew))
            starts += [partial(turn.take, _once, partial(_not_started, turn)) for turn in in_turn]
        else:
            starts += [partial(_once, e) for e in single]
        most = together.at_once(requested) if not single else turns.at_once(single)
        imports = {(e.framework.name, e.framework.python, e.training.seed, e.equal_init) for e in requested}
        if not single and 1 in (most, len(imports)):  # those of two stacks would wait in turn
            held.enter_context(warm.kept(len(requested) > 1))
        try:
            for row in together.rows(starts, most, _is_ended_by_us):
                rows.append(row)
        finally:
            code = _show(rows, as_json)
    return code


def _show(rows: Sequence[Row], as_json: bool) -> int:
    print(json.dumps(rows, indent=2) if as_json else _table(rows))
    return 0 if all(row["status"] == "completed" for row in rows) else 1


def _of_job(run: Run, path: Path) -> Row:
    row = _row(parsers.read(path), path)
    return row if run.state == "completed" else {**row, "status": run.state, "cause": run.cause}


def _check(requested: Sequence[Experiment], host: Host) -> None:
    checked = [e for e in requested if not e.rehearse and e.cluster.job is None]
    where_to = {e.cluster.job is None for e in requested}
    if len(where_to) > 1:
        raise ConfigError(Problem("cluster", "one launch runs here or as jobs", hint="a launch for each cluster"))
    problems = [
        p for e in requested for p in (preflight.rehearsal_problems(e) if e.rehearse else preflight.problems(e))
    ]
    problems = problems or [p for e in checked for p in too_large(e)]
    problems = problems or [p for e in checked for p in target_problems(e, make_plan(e, host))]
    if problems:
        raise ConfigError(*dict.fromkeys(problems))


def _once(e: Experiment) -> Row:
    return _row(*run_once(e, planned(e)))


def _rehearsed(e: Experiment, host: Host) -> Row:
    return _row(*rehearse_once(e, host))


def _not_started(turn: turns.Turn, run: Run) -> Row:
    """Return the row of a run of a matrix that is not started: what its record says, and the journal's state."""
    path = turn.journal.folder / run.id
    about = Record(
        id=run.id, name=turn.e.name, provenance="measured", status="unknown", framework=turn.e.framework.name
    )
    with suppress(InputError):
        about = parsers.read(path)
    known = run.state == "failed" and about.status != "unknown"
    now = {} if known else {"status": run.state, "cause": run.cause, "framework": turn.e.framework.name}
    return {**_row(about, path), **now}


def _is_ended_by_us(row: Mapping[str, Any]) -> bool:
    """Return whether a signal to this program ended the run: none of the others is wanted then."""
    return str(row["cause"]).endswith(FROM_LAUNCHER)


def _row(record: Record, path: Path) -> dict[str, Any]:
    declared = {d.key for d in record.declared}
    words = {**dict.fromkeys(record.not_rehearsed, " (not rehearsed)"), **dict.fromkeys(declared, " (declared)")}
    different = [
        f"{d.setting}: requested {d.requested}, ran {d.effective}{words.get(d.setting, '')}" for d in record.differences
    ]
    about = {"run": str(path), "status": record.status, "framework": record.framework, "provenance": record.provenance}
    counts = {"shrunk": len(record.shrunk), "not_rehearsed": len(record.not_rehearsed)}
    return {**about, "cause": record.cause, "differences": different, **counts}


def _table(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        more = [*filter(None, [row["cause"]]), *row["differences"]]
        if row["provenance"] == "rehearsed" and row["status"] == "completed":
            more.append(
                f"rehearsed, no speed: {row['shrunk']} settings shrunk, {row['not_rehearsed']} not rehearsed (run.json)"
            )
        lines += [f"{row['status']:<14}{row['run']}", *(f"{'':14}{text}" for text in more)]
    done = {str(Path(row["run"]).parent) for row in rows if row["status"] == "completed"}
    if len(rows) > 1 and done:
        stacks = {row["framework"] for row in rows}
        vary = " vary=framework" if len(stacks) > 1 and rows[0]["provenance"] == "rehearsed" else ""
        lines.append(f"compare them: {program('compare')} {shlex.join(sorted(done))}{vary} -o compare")
    return "\n".join(lines)


def _show_plans(experiments: Sequence[tuple[Experiment, Scope]], as_json: bool, complete: bool) -> None:
    commit = where.commit()
    plans = [(e, planned(e), scope) for e, scope in experiments]
    if not as_json:
        print("\n\n".join(plan_text(*one, complete, commit) for one in plans))
        return
    rows: list[dict[str, Any]] = []
    for e, plan, scope in plans:
        about = {
            "memory": {**(needed := headroom(e))._asdict(), "word": needed.word},
            "differences": [asdict(d) for d in framework_of(e.framework.name).differences(e)],
            RECORD: to_builtins(run_file(planned_record(e, plan, scope))),
        }
        rows.append({"experiment": asdict(e), "plan": asdict(plan), **about})
        if e.rehearse:
            rows[-1]["rehearsal"] = {n: getattr(scope, n) for n in ("shrunk", "not_rehearsed", "notes")}
    print(json.dumps(rows, indent=2))


def _show_config(arguments: list[str]) -> int:
    """Pass --cfg and the like on to Hydra, with the config as it would run (platform and hardware settled)."""
    import hydra

    flags = [a for a in arguments if (a.startswith("-") or "=" not in a) and a not in JSON]
    common, side, _ = settle([a for a in arguments if a not in (*flags, *JSON)])
    config = compose([*common, *side])  # a bad one is refused in our words
    if {*JSON} & {*arguments} and "job" in flags:
        print(json.dumps(config, indent=2))
        return 0
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = [sys.argv[0], *checked_overrides([*common, *side]), *flags]
    usage = io.StringIO()
    try:
        with redirect_stderr(usage):
            hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(lambda config: None)()
    except SystemExit as end:
        if end.code:
            why = usage.getvalue().rpartition("error: ")[2].strip()  # as argparse ends
            raise ConfigError(Problem(" ".join(flags), why, hint="--cfg job")) from end
    return 0
