"""Experiment → Plan → run. What depends on the framework is in launchers/frameworks, one module each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from conf.errors import ConfigError, Problem, blamed, listed
from launchers.frameworks import framework_of

if TYPE_CHECKING:
    from conf.resolve import Experiment
    from launchers.plan import Host, Plan

PYTHON_OF_IMAGE = "python"  # where framework.python names no other


def unplanned(experiment: Experiment) -> list[Problem]:
    """Return why no plan is made of `experiment`."""
    from launchers.variables import refused

    framework = framework_of(experiment.framework.name)
    if experiment.framework.options and not framework.takes_options:
        options = listed(sorted(experiment.framework.options))
        return [Problem("framework.options", f"{framework.name} takes no options", options, "{}")]
    return [*framework.refusals(experiment), *refused(experiment)]


def make_plan(experiment: Experiment, host: Host) -> Plan:
    """Return what will be executed for `experiment` on `host`, as plain data. Pure. Raises: ConfigError: all that the
    framework cannot do."""
    from launchers.node_check import looked_at
    from launchers.rehearse import attached
    from launchers.variables import requested, tuned

    framework = framework_of(experiment.framework.name)
    if problems := unplanned(experiment):
        raise ConfigError(*problems)
    python = PYTHON_OF_IMAGE if experiment.cluster.container != "none" else host.python
    host = replace(host, python=experiment.framework.python or python)
    with blamed(f"launchers/frameworks/{framework.name}.py", "its render fails", "CONTRIBUTING.md, A framework"):
        plan = framework.render(experiment, host)
        variables = tuned(experiment) if framework.takes_environment else {}
        missing = {name: pair for name, pair in variables.items() if name not in plan.env}
        plan = looked_at(plan.with_env({**missing, **requested(experiment)}), experiment, host.python)
        return attached(plan, experiment)
