"""bundle=DIR: a run as a folder that needs nothing of ours installed where it is started, by `bash run.sh`."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conf.errors import ConfigError, InputError, Problem, writing
from conf.resolve import Experiment
from conf.schema import ALL_TRAINS
from conf.threads import useful_threads_of
from conf.vendors import vendor_of
from conf.vocabulary import follow, requested
from launchers import containers, kubernetes, node_check, slurm
from launchers.frameworks import framework_of
from launchers.plan import Plan, Scope

RANKS = Path(__file__).parent / "ranks"
SHELL = Path(__file__).parents[1] / "shell"
README = Path(__file__).parent / "settings" / "programs_bundle.txt"
_SHELL = {
    "run.sh": "run_bundle.sh",
    "stack.sh": "bundle_programs.sh",
    **{name: name for name in ("sample_power.sh", "power_tools", "environment.sh")},
}
# What torchrun's arguments are made of where the bundle runs, and where it stands in the experiment.
_PLACES = {
    "NNODES": ("nodes", "nodes"),
    "GPUS_PER_NODE": ("gpus_per_node", "ranks of a node"),
    "NODE_RANK": ("cluster.node_rank", "this node's number"),
    "MASTER_ADDR": ("cluster.master_addr", "where the ranks meet"),
    "MASTER_PORT": ("cluster.master_port", "where the ranks meet"),
}
_OVERRIDABLE = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "HANG_AFTER_S")
_OF_HOST = ("OMP_NUM_THREADS", "PYTHONPATH")  # of the machine that renders


def facts(e: Experiment, plan: Plan, scope: Scope) -> dict[str, Any]:
    """Return bundle.json: the request, and what of it may follow another number of GPUs."""
    where = {"platform": e.platform.name, "vendor": e.platform.vendor, "hardware": e.hardware.name}
    known = {"name": e.name, "framework_release": e.framework.release, "image": e.image, **where}
    facts: dict[str, Any] = {name: value for name, value in known.items() if value is not None}
    if e.rehearse:
        facts |= {"not_rehearsed": scope.not_rehearsed, "shrunk": scope.shrunk, "cautions": scope.notes}
    facts["declared"] = [asdict(d) for d in (*e.declared, *plan.declared)]
    nodes = {"nodes": e.nodes, "gpus_per_node": e.gpus_per_node, "layout_from_table": e.layout.source is not None}
    return {"requested": requested(e), **nodes, "data_prefix": e.data.path, "facts": facts}


def digests(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each file, in hexadecimal digits: where it runs, an edited one is named."""
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(texts.items())}


def patience(e: Experiment) -> dict[str, tuple[str, str]]:
    """Return the variable by which run.sh ends a job that hangs, and why it is there."""
    return {
        "HANG_AFTER_S": (str(max(1, round(e.hang_after_s))), "a job whose logs are silent so long is ended; 0: never")
    }


def env_sh(env: Mapping[str, str], reasons: Mapping[str, str], overridable: Container[str]) -> str:
    """Return exports of every variable, each with its reason; overridable ones keep what the user has set."""
    lines = ["# Sourced by run.sh. A variable with a condition keeps the value that you give it; the others are fixed."]
    for name, value in sorted(env.items()):
        line = f"{name}={shlex.quote(value)}"
        line = f"[[ -n ${{{name}:-}} ]] || {line}; export {name}" if name in overridable else f"export {line}"
        lines.append(f"{line} # {reasons.get(name, '')}".rstrip(" #"))
    return "\n".join(lines) + "\n"


def of_programs(e: Experiment, plan: Plan, scope: Scope) -> dict[str, str]:
    """Return the bundle of a stack that is started by programs of ours: they go along. Pure but for these, which are
    read."""
    env = {name: (value, plan.env_reasons.get(name, "")) for name, value in plan.env.items() if name not in _OF_HOST}
    env |= {name: (str(follow(e, of)), because) for name, (of, because) in _PLACES.items()}
    if e.platform.vendor is None:
        env["MOST_THREADS"] = (str(useful_threads_of(e)), "more for a process make so small a micro-batch slower")
    env["VISIBILITY"] = (
        " ".join(vendor_of(e.accelerator).visibility),
        "which variables choose GPUs: the first is kept",
    )
    env |= patience(e)
    values, reasons = ({name: pair[n] for name, pair in env.items()} for n in (0, 1))
    rendered = {**plan.files, "env.sh": env_sh(values, reasons, _OVERRIDABLE), "train.sh": train_sh(e, plan)}
    of_bundle = {**facts(e, plan, scope), "sha256": digests(rendered)}
    parts = [path for path in sorted(RANKS.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    sources = {f"{RANKS.name}/{path.relative_to(RANKS)}": path for path in parts}
    sources |= {name: SHELL / source for name, source in _SHELL.items()}
    label, where = e.framework.label or e.framework.name, f"{e.nodes} x {e.gpus_per_node} {e.hardware.name}"
    title = f"{e.name}: {e.model.name} on {where}, {label}, {e.layout}"
    needed = f"{label} {e.framework.release or ''}".strip()
    start = "\n".join([*scope.notes, f"Start it where {needed} is installed{f', or in {e.image}' if e.image else ''}:"])
    passed = ", ".join(plan.forward_env) or "none"
    return {
        **{name: path.read_text(encoding="utf-8") for name, path in sources.items()},
        **rendered,
        "bundle.json": json.dumps(of_bundle, indent=1, ensure_ascii=False) + "\n",
        "README.txt": README.read_text(encoding="utf-8").format(title=title, start=start, passed=passed),
    }


def train_sh(e: Experiment, plan: Plan) -> str:
    """Return the script that does in the run's folder what launchers/runner.py does with `plan`: its commands one after
    the other. The interpreter, the place of the programs and that of the node are left to the environment."""
    words = {
        plan.argv[0]: '"$PYTHON"',
        f"--node-rank={e.cluster.node_rank}": '--node-rank="$NODE_RANK"',
        f"--master-addr={e.cluster.master_addr}": '--master-addr="$MASTER_ADDR"',
        f"--master-port={e.cluster.master_port}": '--master-port="$MASTER_PORT"',
        f"--master-port={e.cluster.master_port + 1}": '--master-port="$((MASTER_PORT + 1))"',
    }

    def shell(word: str) -> str:
        if word.startswith(f"{RANKS}/"):
            return f'"$here"/{shlex.quote(str(Path(word).relative_to(RANKS.parent)))}'
        return words.get(word, shlex.quote(word))

    lines = ["#!/usr/bin/env bash", "# What run.sh starts on this node, in the run's folder.", "set -euo pipefail"]
    if "PYTHONPATH" in plan.env:
        lines.append("export PYTHONPATH=$here/ranks/rehearsal${PYTHONPATH:+:$PYTHONPATH}")
    commands = [" ".join(map(shell, argv)) for argv in (*plan.setup, plan.argv)]
    if node_check.wanted(e) != "none":
        commands[:1] = [f"[[ ${{PREFLIGHT:-}} == none ]] || {commands[0]}", "[[ ${PREFLIGHT:-} != only ]] || exit 0"]
    return "\n".join([*lines, *commands[:-1], f"exec {commands[-1]}"]) + "\n"


def leave(requested: Sequence[tuple[Experiment, Plan, Scope]]) -> None:
    """Write the bundle of each experiment, and say where. ConfigError: a layout's rehearsal, or one folder
    for several runs. InputError: a folder that cannot be used."""
    problems = [problem for e, *_ in requested for problem in _problems(e)]
    if len({e.bundle for e, *_ in requested}) < len(requested):
        problems.append(Problem("bundle", "one folder takes one experiment", hint="one call a bundle"))
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    for e, plan, scope in requested:
        write(Path(e.bundle or ""), texts(e, plan, scope))
        for note in scope.notes:
            print(f"warning: {note}", file=sys.stderr)
        how = (
            f"kubectl create -f {e.bundle}/{kubernetes.file_of(e)}"
            if e.cluster.kubernetes
            else f"cd {e.bundle} && sbatch {slurm.JOB}"
            if e.cluster.job
            else f"copy it to where it is to run, then bash {_started_by(e)}"
        )
        print(f"{e.bundle}: {how} (README.txt says more)")


def texts(e: Experiment, plan: Plan, scope: Scope) -> dict[str, str]:
    """Return the files of the bundle of any stack, with its batch script where the cluster has one."""
    found = framework_of(e.framework.name).bundle(e, plan, scope) or of_programs(e, plan, scope)
    job = {slurm.JOB: slurm.job_sh(e)} if e.cluster.job else {}
    started = {containers.SCRIPT: containers.container_sh(e, plan)} if containers.on_each_node(e) else {}
    files = {**found, **started, **job}
    return {
        **files,
        **({kubernetes.file_of(e): kubernetes.text(*kubernetes.documents(e, files))} if e.cluster.kubernetes else {}),
    }


def _started_by(e: Experiment) -> str:
    return containers.SCRIPT if containers.on_each_node(e) else "run.sh"


def _problems(e: Experiment) -> Iterator[Problem]:
    yield from slurm.problems(e) if e.cluster.job else containers.problems(e)
    yield from kubernetes.problems(e)
    if e.rehearse == "layout":
        what = "a bundle starts the stack once, and a layout is rehearsed rank by rank"
        yield Problem("rehearse", what, "layout", "train", "rehearse=train, or without bundle=")
    settled, cut = framework_of(e.framework.name).settled_there, e.data.split != ALL_TRAINS and e.data.name != "mock"
    if settled and (e.data.name == "blend" or e.data.tokenizer or cut):
        what = f"{settled} of this stack's bundle are settled where it runs, for one corpus of ids, all of which trains"
        yield Problem("data", what, f"data={e.data.name}, split {e.data.split}", hint="a launch on that machine")
    if e.data.tokenizer and e.data.tokenizer_sha256 is None:
        what = "another tokenizer may lie under this path where the bundle runs: say which one is meant"
        yield Problem("data.tokenizer_sha256", what, "null", hint="tokenizer.sha256 of PREFIX.json")
    if e.repeat > 1:
        yield Problem("repeat", "a bundle is one run", str(e.repeat), "1", "start it several times, or a bundle a seed")


def write(directory: Path, texts: Mapping[str, str]) -> None:
    """Write the bundle. InputError: something else is in the folder, or it cannot be written."""
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        ours = {*(name.partition("/")[0] for name in texts), "runs", "data"}  # those of earlier runs may stay
        names = (path.name for path in directory.iterdir() if not re.fullmatch(r"slurm-\d.*\.out", path.name))
        foreign = sorted(name for name in names if name not in ours)
        if foreign:
            hint = "bundle=ANOTHER/FOLDER, or empty it"
            raise InputError(
                Problem(str(directory), "has files that belong to no bundle", ", ".join(foreign[:5]), hint=hint)
            )
        for name, text in texts.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            path.chmod(0o755 if text.startswith("#!") else 0o644)
