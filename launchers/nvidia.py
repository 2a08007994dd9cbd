"""NVIDIA's two stacks, NeMo and Megatron-Bridge: a recipe with every setting on it, started by a program of ours."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from conf.check import wrong
from conf.errors import Problem, listed
from conf.frameworks import tag_of
from conf.recipes import Recipe
from conf.resolve import Experiment
from conf.vocabulary import follow
from launchers import attribute_settings, corpus
from launchers.frameworks import Framework
from launchers.plan import Host, Plan
from launchers.variables import machine, place, started, tuned

RANKS = Path(__file__).parent / "ranks"
SETTINGS = "settings.yaml"


class RecipeStack(Framework):
    """The common part of both. A subclass sets what differs. program: the program of ours that builds the recipe and
    trains, or only checks (--check). checkouts: the variable that may name source trees of it, by the separator of
    PATH. lists_on_one_line: in settings.yaml."""

    program: Path
    checkouts: str
    lists_on_one_line: bool = False
    environment_table = "nvidia_stacks_env"
    vendors = ("nvidia", None)
    takes_options = True

    def render(self, e: Experiment, host: Host) -> Plan:
        """Return the program under torchrun with settings.yaml, and its own check."""
        command = (str(self.program), "--settings", SETTINGS)
        return Plan(
            setup=corpus.setup(e, host.python),
            argv=started(e, host.python, command),
            check=(host.python, "-u", *command, "--check"),
            files={SETTINGS: self.text(e)},
            forward_env=e.cluster.forward_env,
            declared=(*attribute_settings.declared(e, self.table), *attribute_settings.options_declared(e)),
        ).with_env({**machine(e, host), **place(e), **tuned(e)})

    def refusals(self, e: Experiment) -> Iterator[Problem]:
        yield from self.other_vendor(e, f"{e.framework.label} is NVIDIA's stack", "framework=megatron")
        yield from self.recipe_missing(e)
        if self.precision_name(e) is None:
            requested = f"{e.precision.params_dtype}, {e.precision.fp8_recipe}"
            what = f"{e.framework.label.removeprefix('Megatron-')} has no such precision"
            yield Problem("precision", what, requested, "bf16, fp32, fp8, fp8_current, mxfp8")
        if e.accelerator is None:
            yield from without_accelerator(e)
        releases = self.table.more["releases"]
        if not (e.framework.release or "").startswith(tuple(releases)):
            what = "the attribute paths of this release are not known"
            yield wrong(e, "framework.release", what, listed([f"{known}x" for known in releases]))
        yield from attribute_settings.problems(e, self.table)
        yield from attribute_settings.options_refused(e, self.table)
        yield from attribute_settings.layout_refused(e)
        yield from self._overlap_refused(e)

    def preflight(self, e: Experiment) -> Iterator[Problem]:
        """Look where a checkout is named whether the recipe still stands where it was read."""
        for path in filter(None, os.environ.get(self.checkouts, "").split(os.pathsep)):
            if e.recipe and tag_of(path).removeprefix("v") in ("", e.recipe.release):
                yield from self.moved(e.recipe, Path(path))

    def moved(self, recipe: Recipe, checkout: Path) -> Iterator[Problem]:
        """Yield that `checkout` does not have `recipe` where it was read."""
        name, _, number = recipe.source.split()[1].partition(":")
        try:
            lines = (checkout / name).read_text(encoding="utf-8").splitlines()[int(number) - 1 :]
        except OSError:
            lines = []
        if not self.stands_in(recipe, lines):
            what = f"{recipe.name} was read from line {number} of {name}, where this checkout has something else"
            found = lines[0].strip()[:80] if lines else f"no such line in {checkout}"
            yield Problem("recipe", what, found, hint=f"tprimat recipes import {checkout}, or {self.checkouts}= unset")

    def stands_in(self, recipe: Recipe, lines: Sequence[str]) -> bool:
        """Return whether `recipe` begins with the first of `lines`: by its name but for the GPU, as one function may be
        the recipe of two."""
        words = {*recipe.name.split("_")} - {*recipe.hardware}
        return any(all(word in line.lower() for word in words) for line in lines[:3])  # decorators come first

    def _overlap_refused(self, e: Experiment) -> Iterator[Problem]:
        """Yield switches of DDP's overlap that a part of the vendor's recipe sets again at the start."""
        decides, recipe = self.table.more["overlap_decided_by"], e.recipe
        if recipe is None or not any(
            value is not None and (path == decides or path.startswith(f"{decides}."))
            for path, value in recipe.settings.items()
        ):
            return
        for key in ("training.overlap_grad_reduce", "training.overlap_param_gather"):
            own = recipe.experiment.get(key)
            if own is not None and follow(e, key) != own:
                what = f"the recipe's {decides} sets it at the start, whatever is requested"
                yield wrong(e, key, what, str(own).lower(), "leave it out, or method=identical")

    def settings(self, e: Experiment) -> dict[str, Any]:
        """Return what the program needs beside the attributes of the recipe."""
        raise NotImplementedError

    def text(self, e: Experiment) -> str:
        """Return settings.yaml: what the program does, then attribute path → value."""
        import yaml

        assigned = attribute_settings.assignments(e, self.table)
        of_recipes = self.table.more.get("recipes_without_transformer_engine", {})
        by_recipe = attribute_settings.left_to_recipe(e, self.table)
        settings = {
            **self.settings(e),
            **({"set_by_recipe": by_recipe} if by_recipe else {}),
            "set": {path: value for path, value in assigned.set.items() if path not in by_recipe},
            "set_if_there": dict(assigned.set_if_there),
            "set_without_transformer_engine": {
                **self.table.without_transformer_engine,
                **{path: value for path, value in of_recipes.items() if e.recipe and path in assigned.set},
            },
        }

        class Dumper(yaml.SafeDumper):
            """A class of its own, so that PyYAML's stays as it is."""

        if self.lists_on_one_line:
            Dumper.add_representer(list, lambda to, items: to.represent_sequence("tag:yaml.org,2002:seq", items, True))
        program = f"launchers/ranks/{self.program.name}"
        head = f"# Read by {program}: what is set on the recipe, attribute path by attribute path.\n"
        return head + yaml.dump(settings, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)

    def precision(self, e: Experiment) -> dict[str, Any]:
        """Return the precision by name, then what the name leaves open. Its plugin overwrites what is set elsewhere."""
        fields: dict[str, Any] = {"grad_reduce_in_fp32": e.precision.accumulate_allreduce_grads_in_fp32}
        if e.precision.fp8:
            # as Megatron's defaults: every layer in fp8, parameters gathered in bf16
            fields |= {"fp8": e.precision.fp8, "fp8_param_gather": False, "first_last_layers_bf16": False}
        if e.precision.fp8_recipe == "mxfp8":
            fields["reuse_grad_buf_for_mxfp8_param_ag"] = False  # a part of gathering in fp8
        return {"factory": self.precision_name(e), "set": fields}

    def precision_name(self, e: Experiment) -> str | None:
        """Return the stack's name of the precision, None if it has no such. fp32 is ours."""
        if e.precision.params_dtype == "float32":
            return "fp32" if e.precision.fp8_recipe is None else None
        names: dict[str, str] = self.table.more["precisions"]
        return names.get(e.precision.fp8_recipe or "none")


def without_accelerator(e: Experiment) -> Iterator[Problem]:
    """Yield what a stand-in for torch.cuda cannot stand in for, on any stack that calls TransformerEngine."""
    key = "layout.context_parallel_size"
    if e.layout.context_parallel_size > 1 and not e.rehearse:
        what = "a split sequence needs TransformerEngine's attention, and so a GPU"
        yield wrong(e, key, what, "1", f"{key}=1, or framework=megatron")
    if e.model.mla and e.rehearse != "layout":
        what = "latent attention needs TransformerEngine's kernel, and so a GPU: Megatron's own has one width"
        yield Problem("model", what, e.model.name, hint="another model")
    if e.model.moe and e.model.add_bias_linear and e.rehearse != "layout":
        what = "biases of experts need TransformerEngine's kernel, and so a GPU: no gradient passes Megatron's own"
        yield Problem("model", what, e.model.name, hint="rehearse=layout, or another model")
    if e.precision.fp8:
        yield Problem("precision", "fp8 needs TransformerEngine, and so a GPU", e.precision.name, "bf16, fp32")
