"""preflight=: a plan that looks at its nodes before its ranks start, by launchers/ranks/node_check.py. Pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from conf.resolve import Experiment
from launchers.plan import Plan
from launchers.variables import START, torchrun

PROGRAM = Path(__file__).parent / "ranks" / "node_check.py"


def wanted(e: Experiment) -> str:
    """Return none, note or stop: what was requested, else what is usual."""
    if e.rehearse:
        return "none"
    return e.preflight or ("note" if (e.cluster.job or e.cluster.kubernetes) and e.accelerator else "none")


def looked_at(plan: Plan, e: Experiment, python: str) -> Plan:
    """Return `plan` with its look at the nodes before all else, by the ranks that will train; as it is without."""
    if wanted(e) == "none":
        return plan
    return replace(plan, setup=(command(e, python), *plan.setup))


def command(e: Experiment, python: str) -> tuple[str, ...]:
    """Return what looks at the nodes. Its port is the next one: a node that is done early would else meet the ranks of
    one that still looks."""
    apart = replace(e, cluster=replace(e.cluster, master_port=e.cluster.master_port + 1))
    switches = [*(["--cpu"] if e.accelerator is None else []), *(["--stop"] if wanted(e) == "stop" else [])]
    return (python, "-u", str(START), *torchrun(apart), str(PROGRAM), *switches)
