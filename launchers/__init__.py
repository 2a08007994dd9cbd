"""Experiment → Plan → run. One module a framework; to add one: its file, and its line in FRAMEWORKS."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from conf.errors import ConfigError, Problem, listed

if TYPE_CHECKING:
    from conf.resolve import Experiment
    from launchers.plan import Host, Plan

PYTHON_OF_IMAGE = "python"  # where framework.python names no other
FRAMEWORKS = {
    "megatron": "launchers.megatron",
    "megatron_bridge": "launchers.megatron_bridge",
    "nemo": "launchers.nemo",
    "primus": "launchers.primus",
}
TAKE_OPTIONS = ("primus",)


def make_plan(experiment: Experiment, host: Host) -> Plan:
    """What will be executed for `experiment` on `host`, as plain data. Pure.

    Raises:
        ConfigError: what the framework cannot do.
    """
    name = experiment.framework.name
    if name not in FRAMEWORKS:
        raise ConfigError(Problem("framework", "no renderer", name, listed(sorted(FRAMEWORKS))))
    if experiment.cluster.container != "none":
        host = replace(host, python=PYTHON_OF_IMAGE)
    if experiment.framework.options and name not in TAKE_OPTIONS:
        found = listed(sorted(experiment.framework.options))
        raise ConfigError(Problem("framework.options", f"{name} takes no options", found, "{}"))
    from launchers.rehearse import attached

    return attached(import_module(FRAMEWORKS[name]).render(experiment, host), experiment)
