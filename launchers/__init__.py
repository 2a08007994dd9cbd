"""Experiment → Plan → run. One module a framework; to add one: its file, and its line in FRAMEWORKS."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from conf.errors import ConfigError, Problem, listed

if TYPE_CHECKING:
    from conf.resolve import Experiment
    from launchers.plan import Host, Plan

FRAMEWORKS = {
    "megatron": "launchers.megatron",
}


def make_plan(experiment: Experiment, host: Host) -> Plan:
    """What will be executed for `experiment` on `host`, as plain data. Pure.

    Raises:
        ConfigError: what the framework cannot do.
    """
    name = experiment.framework.name
    if name not in FRAMEWORKS:
        raise ConfigError(Problem("framework", "no renderer", name, listed(sorted(FRAMEWORKS))))
    rendered: Plan = import_module(FRAMEWORKS[name]).render(experiment, host)
    return rendered
