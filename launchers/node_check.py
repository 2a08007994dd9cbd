"""preflight=: a plan that looks at its nodes before its ranks start, by launchers/ranks/node_check.py. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from conf.errors import ConfigError, Problem
from conf.facts import named_by_driver
from conf.machine import Machine
from conf.resolve import Experiment
from conf.schema import NodeReference
from launchers.plan import Plan
from launchers.variables import START, torchrun

PROGRAM = Path(__file__).parent / "ranks" / "node_check.py"
REFERENCE = "TPRIMAT_NODE_REFERENCE"


def wanted(e: Experiment) -> str:
    """Return none, note or stop: what was requested, else what is usual."""
    if e.rehearse:
        return "none"
    return e.preflight or ("note" if (e.cluster.job or e.cluster.kubernetes) and e.accelerator else "none")


def looked_at(plan: Plan, e: Experiment, python: str) -> Plan:
    """Return `plan` with its look at the nodes before all else, by the ranks that will train; as it is without."""
    if wanted(e) == "none":
        return plan
    if e.node_reference is not None:
        why = f"what a node does at least by the file of {e.node_reference.date[:10]} (launch machine=)"
        plan = plan.with_env({REFERENCE: (json.dumps(asdict(e.node_reference)), why)})
    return replace(plan, setup=(command(e, python), *plan.setup))


def held_against(e: Experiment, machine: Machine) -> Experiment:
    """Return `e` with what a file of `measure` says its nodes do. ConfigError: they cannot be checked against it."""
    if wrong := list(unfit(e, machine)):
        raise ConfigError(*wrong)
    node, product = machine.of_a_node(), _product(e, machine)
    assert product is not None
    named = (machine.device, machine.facts.get("device_name"), *e.hardware.device_names)
    found = NodeReference(
        date=machine.date,
        devices=tuple(dict.fromkeys(name for name in named if name)),
        ranks=e.gpus_per_node,
        nodes=e.nodes,
        product_flops_per_s=product,
        node_all_reduce=_all_reduce(node, e.gpus_per_node),
        all_reduce=_all_reduce(machine, e.nodes * e.gpus_per_node) if e.nodes == machine.nodes > 1 else None,
    )
    return replace(e, node_reference=found)


def unfit(e: Experiment, machine: Machine) -> Iterator[Problem]:
    """Yield why the nodes of `e` cannot be checked against a machine's file."""
    if e.rehearse:
        what = "a rehearsal has no speed to be checked against it"
        yield Problem("machine", what, f"rehearse={e.rehearse}", hint="without machine=")
        return
    if wanted(e) == "none":
        what = "is for the box that launch runs on, this run starts elsewhere, and nobody looks at its nodes"
        yield Problem("machine", what, "preflight=none", "note, stop", "preflight=stop")
    device, ranks = named_by_driver(machine.device), e.gpus_per_node
    if machine.accelerator != (e.accelerator is not None) or (
        e.accelerator and (device is None or device.name != e.hardware.name)
    ):
        yield Problem("machine", "is a file of another device", machine.device, e.hardware.name)
    elif not machine.accelerator and machine.cores // ranks != 1:
        what = "preflight= times one thread of each rank on a core of its own, which no figure of the file is of"
        allowed = f"gpus_per_node from {machine.cores // 2 + 1} to {machine.cores}"
        yield Problem("machine", what, f"{ranks} ranks on {machine.cores} cores", allowed)
    elif _product(e, machine) is None:
        what = f"has no product with its interval (gemm_probed) of {ranks} ranks at once on one node"
        hint = f"tprimat measure ranks={ranks} on such a node, with more minutes= if it had few rounds"
        yield Problem("machine", what, machine.date, hint=hint)


def _product(e: Experiment, machine: Machine) -> float | None:
    """Return the least FLOP/s of a rank's product, in the mean of as many as `e` has on a node."""
    precision = "bf16" if machine.accelerator else "fp32"
    found = machine.of_a_node().figure("gemm_probed", ranks=e.gpus_per_node, precision=precision)
    return found.interval[0] if found and found.interval else None


def _all_reduce(machine: Machine, ranks: int) -> tuple[float, ...] | None:
    """Return the most seconds of latency, and the least bytes/s, of all-reduces of so many ranks."""
    latency, rate = (machine.figure(f"all_reduce_{name}", ranks=ranks) for name in ("latency", "rate"))
    if latency is None or rate is None or latency.interval is None or rate.interval is None:
        return None
    return latency.interval[1], rate.interval[0]


def command(e: Experiment, python: str) -> tuple[str, ...]:
    """Return what looks at the nodes. Its port is the next one: a node that is done early would else meet the ranks of
    one that still looks."""
    apart = replace(e, cluster=replace(e.cluster, master_port=e.cluster.master_port + 1))
    switches = [*(["--cpu"] if e.accelerator is None else []), *(["--stop"] if wanted(e) == "stop" else [])]
    return (python, "-u", str(START), *torchrun(apart), str(PROGRAM), *switches)
