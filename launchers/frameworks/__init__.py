"""The training stacks: one module each, whose FRAMEWORK is all that the launchers know of that stack. To add one:
CONTRIBUTING.md. Nothing else branches on a framework's name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.errors import Problem, blamed, listed, object_of
from conf.vendors import CPU

if TYPE_CHECKING:
    from conf.recipes import Recipe
    from conf.resolve import Experiment
    from launchers.attribute_settings import Difference, Table
    from launchers.plan import Host, Plan, Scope


class Framework:
    """One training stack. A subclass renders it and sets what differs from these defaults. name: as in conf/framework
    and in a record. takes_options: framework.options reach the stack, under its own names. takes_environment: the tuned
    variables of the GPU's vendor are exported (conf/tables/VENDOR_env.yaml). environment_table: a further table there,
    of variables that it needs on any machine. vendors: whose devices it runs on, None among them: on a CPU, too; None:
    on any. own_stand_in: it does without an accelerator by itself where it is rehearsed: nothing is put in front.
    own_probe: its program is ours, and reads itself back: nothing is put in front for that either.
    opens_tokenizers: it opens data.tokenizer itself, by the library of its kind.
    settled_there: what of its bundle is settled where that runs. goes_on: its ranks save and end where the file that
    TPRIMAT_STOP names is there, and go on from checkpoints/.
    recipe_trees: files of the source tree that the vendor's recipes are read from, one a layout of it, by which that
    tree is known."""

    name: str
    takes_options: bool = False
    takes_environment: bool = True
    environment_table: str | None = None
    vendors: tuple[str | None, ...] | None = None
    own_stand_in: bool = False
    own_probe: bool = False
    opens_tokenizers: bool = False
    settled_there: str = ""
    goes_on: bool = False
    recipe_trees: tuple[str, ...] = ()

    @property
    def table(self) -> Table:
        """Return how it writes each setting; see launchers/attribute_settings.py."""
        from launchers.attribute_settings import table

        with blamed(f"launchers/settings/{self.name}.yaml", "this, or its column of conf/vocabulary.yaml, is wrong"):
            return table(self.name)

    def render(self, e: Experiment, host: Host) -> Plan:
        """Return the plan of one training run of `e`, of which `refusals` yields nothing. Pure."""
        raise NotImplementedError

    def refusals(self, e: Experiment) -> Iterator[Problem]:
        """Yield all that the stack cannot do. What overrides it begins with these."""
        yield from self.other_vendor(e, "does not run there", "framework=auto takes what the platform has")

    def other_vendor(self, e: Experiment, what: str, hint: str) -> Iterator[Problem]:
        """Yield the problem `what` of a platform that the stack does not run on."""
        if self.vendors is not None and e.platform.vendor not in self.vendors:
            allowed = listed([f"platform={vendor or CPU}" for vendor in self.vendors])
            yield Problem("framework", what, f"platform={e.platform.name}", allowed, hint)

    def recipe_missing(self, e: Experiment) -> Iterator[Problem]:
        """Yield the problem of a model that conf/framework/NAME.yaml names no recipe for."""
        if e.model.name not in e.framework.recipes and e.framework.any_model is None:
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

    def uncut(self, e: Experiment) -> tuple[str, ...]:
        """Return the parameters, by Megatron's names, that every tensor parallel rank has whole where Megatron's do
        not."""
        return ()

    def not_rehearsed(self) -> Mapping[str, Any]:
        """Return what a rehearsal of this stack shows nothing of: {settings, options}, as in launchers/rehearse.py."""
        return dict(self.table.more.get("not_rehearsed", {}))

    def read_recipes(self, checkout: Path, python: str, release: str) -> Iterator[Recipe | Problem]:
        """Yield each recipe in a source tree of `release`, or why it cannot be one here. The vendor's own code builds
        it, run by the interpreter `python`."""
        yield from ()

    def differences(self, e: Experiment) -> tuple[Difference, ...]:
        """Return all in which `e` runs otherwise than the vendor's recipe for it; nothing without a recipe."""
        from launchers.attribute_settings import differences

        return differences(e, self.table)

    def bundle(self, e: Experiment, plan: Plan, scope: Scope) -> Mapping[str, str] | None:
        """Return the files of bundle=DIR by name; None: the programs of ours that start the ranks go along."""
        return None


@cache
def frameworks() -> tuple[str, ...]:
    """Return the names of all frameworks: the modules of this folder."""
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py")))


@cache
def framework_of(name: str) -> Framework:
    """Return the framework called `name`. ConfigError: object_of refuses its module, or there is none."""
    return object_of(__name__, name, "FRAMEWORK", Framework)
