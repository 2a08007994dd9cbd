"""Render the stacks that are not built on Megatron-Core: one program in the ranks, which takes the settings of all
stacks by canonical name, begins with the same weights and reads the same samples (launchers/ranks/plain_ranks.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conf.check import wrong
from conf.errors import ConfigError, Problem, blamed
from conf.resolve import Declared, Experiment
from conf.vendors import vendor_of
from conf.vocabulary import program_settings, vocabulary
from launchers import attribute_settings, corpus
from launchers.frameworks import Framework
from launchers.plan import Host, Plan
from launchers.variables import machine, place, started

RANKS = Path(__file__).parent / "ranks"
SETTINGS = "settings.json"


def is_hybrid(e: Experiment) -> bool:
    """Return whether there are several replicas of what is sharded: HSDP."""
    return e.layout.data_parallel_shards > 1 and e.layout.data_parallel_replicas > 1


class Plain(Framework):
    """See launchers.frameworks.Framework. A subclass has its name, which is that of its program, NAME_ranks.py."""

    own_stand_in = True  # gloo, and what a program replaces
    own_probe = True  # launchers/ranks/plain_readings.py
    no_fp8 = "it has no fp8 here"
    one_group_of_shards = ""
    """Why replicas of what is sharded (HSDP) are refused; empty: they are not."""
    takes_environment = False  # those of conf/tables are for TransformerEngine and Megatron

    @property
    def table(self) -> attribute_settings.Table:
        """Return what none of them can do: launchers/settings/plain.yaml."""
        with blamed("launchers/settings/plain.yaml", "this, or conf/vocabulary.yaml, is wrong"):
            return attribute_settings.table(self.name, "plain")

    def render(self, e: Experiment, host: Host) -> Plan:
        """See Framework."""
        requested = program_settings(e)
        device = {"device": vendor_of(e.accelerator).torch_device}
        return Plan(
            setup=corpus.setup(e, host.python),
            argv=started(e, host.python, (self.program(e), "--settings", SETTINGS)),
            files={SETTINGS: json.dumps({**requested, **device, **self.own(e)}, indent=2) + "\n"},
            forward_env=e.cluster.forward_env,
            declared=self.declared(e),
        ).with_env({**machine(e, host), **place(e)})

    def program(self, e: Experiment) -> str:
        """Return the path of the program that is a rank."""
        return str(RANKS / f"{self.name}_ranks.py")

    def own(self, e: Experiment) -> dict[str, Any]:
        """Return what the program is given beside the settings of all stacks."""
        return {**self.arguments(e), "always": dict(self.table.more["always_so"])}

    def arguments(self, e: Experiment) -> dict[str, Any]:
        """Return what the stack is given under its own names: its recipe's settings, its column of the vocabulary, the
        user's options; and under which of those names it has a setting as it was requested."""
        rows = {name: row.write[self.name] for name, row in vocabulary().items() if self.name in row.write}
        named = {target.path: name for name, write in rows.items() for target in write.to}
        values = attribute_settings.assignments(e, self.table).set
        written = {*named, *attribute_settings.options(e), *(e.recipe.settings if e.recipe else ())}
        given = {path: value for path, value in values.items() if path in written}
        return {"arguments": given, "names": {path: n for path, n in named.items() if rows[n].convert is None}}

    def otherwise(self, e: Experiment) -> Iterator[Declared]:
        """Yield each setting that the stack has in its own way, whatever is requested, with the reason."""
        yield from ()

    def declared(self, e: Experiment) -> tuple[Declared, ...]:
        """Return what runs otherwise than requested of all stacks, and what the user asks of this one alone."""
        requested = program_settings(e)
        otherwise = (one for one in self.otherwise(e) if requested.get(one.key) != one.value)
        return (*otherwise, *attribute_settings.options_declared(e))

    def refusals(self, e: Experiment) -> Iterator[Problem]:
        """See Framework."""
        yield from super().refusals(e)
        if e.precision.fp8 and e.recipe is None:
            yield wrong(e, "precision.fp8", self.no_fp8, "null", "precision=bf16")
        yield from attribute_settings.problems(e, self.table)
        yield from attribute_settings.options_refused(e, self.table)
        training = e.training
        if e.data.name == "mock":
            yield Problem("data", "mock data are Megatron-Core's", "mock", "synthetic, or a corpus", "data=synthetic")
        if training.eval_iters:
            yield wrong(
                e, "training.eval_iters", "this stack's program does not validate", "0", "a stack of Megatron's"
            )
        if e.data.tokenizer:
            what = "this stack's program reads ids, and has no tokenizer"
            yield wrong(e, "data.tokenizer", what, "null", "leave it out: the ids are those of the corpora")
        method = training.recompute_granularity, training.recompute_method, training.recompute_num_layers
        if e.recipe is None and method not in ((None, None, None), ("full", "uniform", 1)):
            what = "torch's activation checkpointing recomputes each layer here, or none"
            yield wrong(e, "training.recompute_granularity", what, "none, or full with uniform and 1")
        if self.one_group_of_shards and is_hybrid(e):
            yield wrong(e, "layout.data_parallel_replicas", self.one_group_of_shards, "1", "fsdp2, torchtitan do that")

    def rehearsed(self, e: Experiment) -> Experiment:
        """See Framework."""
        if e.rehearse == "layout":
            what = "this stack's program has no way to play a rank of a layout"
            raise ConfigError(wrong(e, "rehearse", what, "train", "rehearse=train"))
        if e.recipe:
            what = "a stack's own best is compiled, and has kernels, for a GPU: a CPU would show nothing of it"
            raise ConfigError(Problem("method", what, "max_performance", "identical", "method=identical"))
        if not e.equal_init:
            what = "this stack's program always begins with the weights that all stacks begin with"
            raise ConfigError(wrong(e, "equal_init", what, "true"))
        return e
