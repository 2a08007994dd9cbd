"""The start of the ranks of any stack: torchrun's arguments, the environment that the machine needs, and the
tuned variables of the vendors' stacks by GPU, layout and framework, from conf/tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from conf import devices
from conf.errors import ConfigError, Problem
from conf.freeze import freeze, frozen
from conf.resolve import Experiment
from conf.secret import SECRET
from conf.threads import threads_of, useful_threads_of
from conf.vocabulary import read_yaml, short_names
from launchers.frameworks import framework_of
from launchers.plan import STEERING, Host, Reasoned

# What torchrun gives its ranks, and what of ours decides it.
_OF_TORCHRUN: Mapping[str, str | None] = {
    "MASTER_ADDR": "cluster.master_addr",
    "MASTER_PORT": "cluster.master_port",
    "GROUP_RANK": "cluster.node_rank",
    "WORLD_SIZE": "nodes or gpus_per_node",
    "LOCAL_WORLD_SIZE": "gpus_per_node",
    "GROUP_WORLD_SIZE": "nodes",
    **dict.fromkeys(("RANK", "LOCAL_RANK")),
}
_PREFIXES = {"TORCHELASTIC_": "torchrun sets it", "ROLE_": "torchrun sets it", "TPRIMAT_": "the plan sets it"}
START = Path(__file__).parent / "ranks" / "start_ranks.py"
TABLES = Path(__file__).parent.parent / "conf" / "tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One variable in one case; see the head of the table. value None: it must not be set."""

    variable: str
    value: str | None
    when: Mapping[str, tuple[str, ...]]
    export: bool
    reason: str
    source: str


def torchrun(e: Experiment) -> Iterator[str]:
    """Return torchrun's own arguments, for this node."""
    place = e.cluster.node_rank, e.cluster.master_addr, e.cluster.master_port
    return ranks_of_node(e.gpus_per_node, e.nodes, *place)


def ranks_of_node(ranks: int, nodes: int, node_rank: int, master_addr: str, master_port: int) -> Iterator[str]:
    """Yield torchrun's own arguments for the `ranks` of one node of several; of one alone the place says nothing."""
    yield f"--nproc-per-node={ranks}"
    if nodes == 1:
        yield "--standalone"  # a free port of its own: two runs on one machine do not meet
        return
    yield f"--nnodes={nodes}"
    yield f"--node-rank={node_rank}"
    yield f"--master-addr={master_addr}"
    yield f"--master-port={master_port}"


def is_alone(e: Experiment) -> bool:
    """Return whether the ranks are one process, which starts without torchrun: a played rank, or a toy of one rank."""
    return e.rehearse == "layout" or (e.rehearse == "train" and e.layout.world_size == 1)


def started(e: Experiment, python: str, command: Iterable[str]) -> tuple[str, ...]:
    """Return what starts the processes of this node, each of which runs `command`, a program of ours and its words."""
    return (python, "-u", *(() if is_alone(e) else (str(START), *torchrun(e))), *command)


def place(e: Experiment) -> Reasoned:
    """Return what torchrun would set for the one process of a toy of one rank."""
    if not is_alone(e) or e.rehearse != "train":
        return {}
    reason = "as torchrun sets it, without which one rank starts sooner"
    env = dict.fromkeys(("RANK", "LOCAL_RANK"), "0") | dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1")
    # 0: the stand-in keeps the store in the process (tprimat_standin.py), without a port that others could reach
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "TORCHELASTIC_RUN_ID": "none"}
    return {name: (value, reason) for name, value in env.items()}


def machine(e: Experiment, host: Host) -> Reasoned:
    """Return the variables that the ranks of any stack get for the machine's sake."""
    processes = 1 if e.rehearse == "layout" else e.gpus_per_node
    every, reason = max(1, host.cpu_count // processes), f"{host.cpu_count} cores / {processes} processes"
    useful = useful_threads_of(e) if e.platform.vendor is None else every
    threads = threads_of(host.cpu_count, processes, useful)
    if threads < every:
        reason += ", of which more threads than these make so small a micro-batch slower"
    env = {"OMP_NUM_THREADS": (str(threads), reason)}
    if e.accelerator is None and (processes * every >= host.cpu_count or host.ci):
        env["OMP_WAIT_POLICY"] = ("PASSIVE", "threads that spin would take the cores of others")
    if e.nodes == 1:
        of_sockets = ("GLOO_SOCKET_IFNAME", *(() if e.accelerator is None else ("NCCL_SOCKET_IFNAME",)))
        env |= dict.fromkeys(of_sockets, ("lo", "on one machine the ranks listen to nobody outside"))
    if e.accelerator is None:
        env |= dict.fromkeys(devices.hidden_by(), ("", "a run on the CPU sees no GPU"))
    if e.hardware.vendor is not None and e.layout.tensor_model_parallel_size > 1:
        reason = "TP's communication must be queued before the matmuls it overlaps"
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = ("1", reason)
    return env


def tuned(e: Experiment) -> Reasoned:
    """Return what the tables export for a run of `e`. What cluster.forward_env names is the user's own."""
    rows = (row for row in _decided(e) if row.export and row.variable not in e.cluster.forward_env)
    return {row.variable: (row.value, f"{row.reason} [{row.source}]") for row in rows if row.value is not None}


def steering(inherited: Iterable[str], kept: Iterable[str]) -> list[str]:
    """Return the names of a shell's variables that would steer the launcher of the ranks past the plan: they are taken
    out of its environment, but for those `kept`, which the plan sets or passes on."""
    names = {*inherited} - {*kept, "TPRIMAT_WARM"}  # the last is launchers/warm.py's
    return sorted(name for name in names if re.fullmatch(STEERING, name))


def requested(e: Experiment) -> Reasoned:
    """Return the user's own variables, which beat all others, and under them those that the network needs."""
    of_network = {name: (str(value), "of this network (cluster.network)") for name, value in e.cluster.network.items()}
    return of_network | {name: (str(value), "as requested") for name, value in e.environment.items()}


def refused(e: Experiment) -> Iterator[Problem]:
    """Yield what of environment.NAME=VALUE cannot be: a name that is none, a secret, what torchrun, the plan or
    the stack itself sets."""
    planned = framework_of(e.framework.name).table.more.get("variables", {})
    keys = {**_OF_TORCHRUN, **{name: row["of"] for name, row in planned.items()}, "PYTHONPATH": "framework.python"}
    hidden = devices.hidden_by() if e.accelerator is None else ()
    own = [("environment", *one) for one in e.environment.items()]
    own += [("cluster.network", *one) for one in e.cluster.network.items()]
    for key, name, value in own:
        where = f"{key}.{name}"
        prefixed = next((who for prefix, who in _PREFIXES.items() if name.startswith(prefix)), None)
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            yield Problem(where, "is no name of a variable", name, "letters, digits and _")
        elif SECRET.search(name):
            what = "looks like a secret, which the plan and the record would show"
            hint = f"cluster.forward_env=[{name}]: it is passed on by name and never read"
            yield Problem(where, what, "[secret]", hint=hint)
        elif name in keys or prefixed:
            who = prefixed or ("torchrun sets it" if name in _OF_TORCHRUN else "the plan sets it")
            yield Problem(
                where, who, str(value), hint=f"set {keys[name]} instead" if keys.get(name) else "leave it out"
            )
        elif name in hidden:
            yield Problem(where, "a run on the CPU sees no GPU", str(value), hint="leave it out")
        elif isinstance(value, Mapping | list) or value is None:
            yield Problem(where, "takes one text", str(value), hint=f"{where}=VALUE")
    yield from _overruled(e)


def _overruled(e: Experiment) -> Iterator[Problem]:
    """Yield a variable of the user's that the stack sets itself, or that must not be set anywhere."""
    for row in _of_tables(e, set()):
        value = {**e.cluster.network, **e.environment}.get(row.variable)
        fixed = not row.export or (row.value is None and not row.when)
        if value is not None and fixed and str(value) != row.value:
            allowed = row.value or "not set"
            yield Problem(f"environment.{row.variable}", row.reason, str(value), allowed, "leave it out")


def conflicts(e: Experiment, inherited: Mapping[str, str]) -> Iterator[Problem]:
    """Yield what in the environment that `e` would be started from contradicts it."""
    for row in _decided(e):
        value = inherited.get(row.variable)
        if value is None or value == row.value:
            continue
        if row.value is None:
            yield Problem(row.variable, row.reason, value, "not set", f"unset {row.variable}")
        elif not row.export:
            yield Problem(row.variable, row.reason, value, row.value, f"unset {row.variable}")
        elif row.variable not in e.cluster.forward_env:
            hint = f"unset it; cluster.forward_env=[{row.variable}] keeps yours"
            yield Problem(row.variable, f"your environment has another value: {row.reason}", value, row.value, hint)


def _decided(e: Experiment) -> Iterator[Row]:
    """Yield the row of each variable that has one: the user's own, of the recipe, else of the GPU's vendor; then of the
    framework itself."""
    seen = {*e.environment, *e.cluster.network}
    yield from (_plain_row(name, value, why, f"environment.{name}") for name, (value, why) in requested(e).items())
    of_recipe = e.recipe.environment if e.recipe else None
    if e.recipe and of_recipe is not None:
        why = f"the environment of recipe {e.recipe.name}"
        yield from (_plain_row(n, v, why, e.recipe.source) for n, v in of_recipe.items() if n not in seen)
        seen |= {*of_recipe}
    yield from _of_tables(e, seen, general=of_recipe is None)


def _of_tables(e: Experiment, seen: set[str], general: bool = True) -> Iterator[Row]:
    """Yield the row of each variable but those `seen`. general: the GPU vendor's too, not the framework's alone."""
    facts = _facts(e)
    tables = (f"{e.hardware.vendor}_env" if general else None, framework_of(e.framework.name).environment_table)
    for row in (row for table in tables if table for row in _rows(table)):
        if row.variable not in seen and all(facts[key] & set(allowed) for key, allowed in row.when.items()):
            seen.add(row.variable)
            yield row


def _plain_row(variable: str, value: str, reason: str, source: str) -> Row:
    return Row(variable=variable, value=value, when={}, export=True, reason=reason, source=source)


def _facts(e: Experiment) -> dict[str, set[str]]:
    sizes = {short.lower(): getattr(e.layout, name) or 1 for name, short in short_names().items()}
    return {
        "framework": {e.framework.name},
        "architecture": {e.hardware.architecture or "unknown"},
        "hardware": {e.hardware.name},
        "split": {name for name, size in sizes.items() if size > 1},
        "part": {name for name in ("moe", "mla") if getattr(e.model, name) is not None},
        "attention": {e.training.attention},
        "model": {e.model.name},
        "precision": {e.precision.name},
    }


@cache
def _rows(name: str) -> tuple[Row, ...]:
    """Return the rows of a table in conf/tables; none where there is no such table."""
    path = TABLES / f"{name}.yaml"
    table = read_yaml(path, list) if path.is_file() else []
    problems: list[Problem] = []
    defaulted = [{"export": True, **entry} for entry in frozen(tuple[Mapping[str, Any], ...], table, path.name)]
    rows = [freeze(Row, entry, f"{path.name}: {entry.get('variable')}", problems) for entry in defaulted]
    if problems:
        raise ConfigError(*problems)
    return tuple(rows)
