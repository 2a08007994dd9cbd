"""Run LLM pre-training experiments: compose the config, check it, plan, run, record.

    python launch.py                                          a small Llama, on whatever is here
    python launch.py model=llama platform=nvidia dry_run=true     the plan for 8 H100s, nothing started
    python launch.py -m layout=data_parallel,tp2 gpus_per_node=2 repeat=3     a matrix of runs

KEY=VALUE       any key of conf/, in Hydra's grammar (python launch.py --cfg job shows them all)
-m              expand a,b in values into one experiment each
--json          the result (of a dry run: the plan) as JSON on stdout
Choices: model={models}  platform={platforms}
         layout={layouts}
Exit codes: 0 all runs completed, 1 one did not, 2 bad input.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from conf import devices
from conf.compose import choices
from conf.errors import ConfigError, UserError
from conf.load import load, settle
from conf.resolve import Experiment
from conf.summary import summary
from estimate.memory import memory_problems, model_states
from launchers import plan as make_plan
from launchers import preflight
from launchers.plan import Host, Plan
from launchers.run_dir import plain
from run_experiment import run_once

HYDRA_FLAGS = {"--cfg", "-c", "--info", "-i", "--package", "-p", "--resolve", "--hydra-help", "--shell-completion"}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code of the command line `argv` (sys.argv without the program by default)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _dispatch(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(_help())
        return 0
    if any(a.split("=")[0] in HYDRA_FLAGS for a in arguments):
        return _show_config(arguments)
    flags = {a for a in arguments if a in ("-m", "--multirun", "--json")}
    overrides = [a for a in arguments if a not in flags]
    as_json = "--json" in flags
    jobs = _sweep(overrides) if flags & {"-m", "--multirun"} else [overrides]
    experiments = [e for job in jobs for e in _with_grid(job)]
    if all(e.dry_run for e in experiments):
        return _show_plans(experiments, as_json)
    return _run_all(experiments, as_json)


def _run_all(experiments: Sequence[Experiment], as_json: bool) -> int:
    """Check every experiment, then run each; one that fails does not keep the others from running, a signal does."""
    host, memory = _host(), devices.host_memory_bytes()
    problems = [p for e in experiments for p in (*preflight.problems(e), *memory_problems(e, memory))]
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    runs = [(run, make_plan(run, host)) for e in experiments for run in _repeats(e)]
    for warning in dict.fromkeys(w for e in experiments for w in e.warnings):
        print(f"warning: {warning}", file=sys.stderr)
    records = []
    for run, plan in runs:
        record, path = run_once(run, plan)
        records.append({"run": str(path), "status": record.status, "cause": record.cause})
        if record.status == "killed":
            break
    print(json.dumps(records, indent=2) if as_json else _table(records))
    return 0 if all(r["status"] == "completed" for r in records) else 1


def _repeats(e: Experiment) -> Iterator[Experiment]:
    for k in range(e.repeat):
        yield replace(e, training=replace(e.training, seed=e.training.seed + k), repeat=1)


def _table(records: Sequence[dict[str, Any]]) -> str:
    lines = [f"{r['status']:<14}{r['run']}" + (f"\n{'':14}{r['cause']}" if r["cause"] else "") for r in records]
    done = [r["run"] for r in records if r["status"] == "completed"]
    if len(done) > 1:
        common = os.path.commonpath([Path(d).parent for d in done])
        lines.append(f"compare them: python -m compare {common} -o compare")
    return "\n".join(lines)


def _host() -> Host:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Host(python=sys.executable, cpu_count=available, ci="CI" in os.environ)


def _show_plans(experiments: Sequence[Experiment], as_json: bool) -> int:
    plans = [make_plan(e, _host()) for e in experiments]
    if as_json:
        shown = [{"experiment": plain(asdict(e)), "plan": asdict(p)} for e, p in zip(experiments, plans, strict=True)]
        print(json.dumps(shown, indent=2))
    else:
        print("\n\n".join(_plan_text(e, p) for e, p in zip(experiments, plans, strict=True)))
    return 0


def _plan_text(e: Experiment, p: Plan) -> str:
    states = model_states(e)
    lines = [summary(e), f"{'memory':<14}{states}"]
    lines += [f"{'does not fit':<14}{problem.what}" for problem in memory_problems(e, devices.host_memory_bytes())]
    lines += [f"{'not here':<14}{problem.where}: {problem.what}" for problem in preflight.problems(e)]
    lines += [f"{'environment':<14}{k}={v}  ({p.env_reasons[k]})" for k, v in sorted(p.env.items())]
    lines += [f"{'passed on':<14}{name}" for name in p.forward_env]
    lines += [f"{'command':<14}{p.command()}", f"{'log':<14}{p.log}"]
    for name, text in sorted(p.files.items()):
        lines += [f"--- {name}", text.rstrip()]
    return "\n".join(lines)


def _sweep(overrides: Sequence[str]) -> list[list[str]]:
    """`a=1,2 b=3,4` → the four lists of overrides, in Hydra's order."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    axes = []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException:
            axes.append([text])  # conf.compose says what is wrong with it
            continue
        key = text.partition("=")[0]
        values = override.sweep_string_iterator() if override.is_sweep_override() else ()
        axes.append([f"{key}={value}" for value in values] or [text])
    return [list(job) for job in product(*axes)]


def _with_grid(overrides: list[str]) -> list[Experiment]:
    """The experiment, or one for each cell of its grid. Bad cells are all reported."""
    _, config, _ = settle(overrides)
    axes = [[f"{key}={value}" for value in values] for key, values in (config["grid"]["axes"] or {}).items()]
    experiments, problems = [], []
    for cell in product(*axes):
        try:
            experiments.append(load([*overrides, *cell]))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    return experiments


def _show_config(arguments: list[str]) -> int:
    """Hydra's own --cfg and its kin, for the config as it would run (platform and hardware settled)."""
    import hydra

    flags = [a for a in arguments if a.startswith("-") or "=" not in a]
    settled, _, _ = settle([a for a in arguments if a not in flags])
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = [sys.argv[0], *flags, *settled]
    try:
        hydra.main(config_path="conf", config_name="config", version_base="1.3")(lambda config: None)()
    except SystemExit as end:
        return 2 if end.code else 0
    return 0


def _help() -> str:
    names = {f"{group}s": "|".join(choices(group)) for group in ("model", "platform", "layout")}
    return (__doc__ or "").format(**names).strip()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(0)
