"""The training stacks: one module each, whose FRAMEWORK is all that the launchers know of that stack.

To add one: a module here and conf/framework/NAME.yaml, which holds what a user may change and what is read without the
launchers (how it is recognised as installed, whether it refuses names that it does not know). A platform whose
`frameworks:` names it takes it by framework=auto, too. Nothing else branches on a framework's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.errors import ConfigError, Problem, listed
from conf.vendors import CPU

if TYPE_CHECKING:
    from conf.resolve import Experiment
    from launchers.plan import Host, Plan, Scope


class Framework:
    """One training stack. A subclass renders it and sets what differs from these defaults."""

    name: str
    """As in conf/framework and in a record."""
    takes_options: bool = False
    """Whether framework.options reach the stack, under its own names."""
    bundles: bool = False
    """Whether bundle=DIR can leave a run of it; the others are started by programs of ours."""
    takes_environment: bool = True
    """Whether the tuned variables of the GPU's vendor are exported (conf/tables/VENDOR_env.yaml)."""
    environment_table: str | None = None
    """A further table in conf/tables, of variables that the stack needs on any machine."""
    vendors: tuple[str | None, ...] | None = None
    """Whose devices it runs on, None among them: on a CPU, too. None: on any."""
    own_stand_in: bool = False
    """Whether its program does without an accelerator by itself where it is rehearsed: then nothing is put in front."""

    def render(self, e: Experiment, host: Host) -> Plan:
        """Return the plan of one training run of `e`. Pure.

        Raises:
            ConfigError: all that the stack cannot do.
        """
        raise NotImplementedError

    def other_vendor(self, e: Experiment, what: str, hint: str) -> Iterator[Problem]:
        """Yield the problem `what` of a platform that the stack does not run on."""
        if self.vendors is not None and e.platform.vendor not in self.vendors:
            allowed = listed([f"platform={vendor or CPU}" for vendor in self.vendors])
            yield Problem("framework", what, f"platform={e.platform.name}", allowed, hint)

    def recipe_missing(self, e: Experiment) -> Iterator[Problem]:
        """Yield the problem of a model that conf/framework/NAME.yaml names no recipe for."""
        if e.model.name not in e.framework.recipes:
            what = f"conf/framework/{self.name}.yaml names no recipe for {e.model.name}"
            hint = "add its line under recipes:, or framework=megatron, which builds any model"
            yield Problem("model", what, e.model.name, listed(sorted(e.framework.recipes)), hint)

    def preflight(self, e: Experiment) -> Iterator[Problem]:
        """Yield what keeps `e` from running on this machine, beside the distributions of conf/framework."""
        yield from ()

    def in_container(self, e: Experiment) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """Return the folders that the stack writes into outside the run's own, and its variables for a container."""
        return (), {}

    def rehearsed(self, e: Experiment) -> Experiment:
        """Return `e` with the stack's own settings as a rehearsal starts it: without containers and jobs."""
        return e

    def not_rehearsed(self) -> Mapping[str, Any]:
        """Return what a rehearsal of this stack shows nothing of: {settings, options}, as in launchers/rehearse.py."""
        return {}

    def bundle(self, e: Experiment, plan: Plan, scope: Scope) -> Mapping[str, str]:
        """Return the files of bundle=DIR by name (`bundles`): a run that needs nothing of ours where it is started."""
        raise NotImplementedError


@cache
def frameworks() -> tuple[str, ...]:
    """Return the names of all frameworks: the modules of this folder."""
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py")))


@cache
def framework_of(name: str) -> Framework:
    """Return the framework called `name`.

    Raises:
        ConfigError: its module, or the module's FRAMEWORK, is missing.
    """
    where = f"launchers/frameworks/{name}.py"
    if name not in frameworks():
        what = f"is missing, without which conf/framework/{name}.yaml runs nothing"
        hint = "create it, with its FRAMEWORK: see CONTRIBUTING.md"
        raise ConfigError(Problem(where, what, allowed=listed(frameworks()), hint=hint))
    framework = getattr(import_module(f"{__name__}.{name}"), "FRAMEWORK", None)
    if not isinstance(framework, Framework):
        raise ConfigError(Problem(where, "has no FRAMEWORK", hint="FRAMEWORK = NAME(), an object of a Framework"))
    return framework
