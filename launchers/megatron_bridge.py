"""framework=megatron_bridge: a recipe of NVIDIA Megatron-Bridge with every setting on it (ranks/bridge_ranks.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conf.errors import ConfigError, Problem, listed
from conf.resolve import Experiment
from launchers import attribute_settings, corpus, hugging_face, megatron, nvidia_env
from launchers.megatron import DEVICES, torchrun
from launchers.plan import Host, Plan

PROGRAM = Path(__file__).parent / "ranks" / "bridge_ranks.py"
SETTINGS = "settings.yaml"
RELEASES = ("0.3", "0.4", "0.5", "0.6")  # whose attribute paths the table was held against

PRECISIONS: Mapping[tuple[str, str | None], str] = {
    ("float32", None): "fp32",
    ("bfloat16", None): "bf16_mixed",
    ("bfloat16", "delayed"): "bf16_with_fp8_delayed_scaling_mixed",
    ("bfloat16", "tensorwise"): "bf16_with_fp8_current_scaling_mixed",
    ("bfloat16", "mxfp8"): "bf16_with_mxfp8_mixed",
}
"""(params_dtype, fp8_recipe) → name in megatron.bridge.training.mixed_precision; fp32 is ours."""


def render(experiment: Experiment, host: Host) -> Plan:
    """The plan of one training run.

    Raises:
        ConfigError: what Bridge cannot do, all of it.
    """
    table = attribute_settings.table("megatron_bridge")
    problems = [*_refusals(experiment), *attribute_settings.problems(experiment, table)]
    if problems:
        raise ConfigError(*problems)
    python = experiment.framework.python or host.python
    machine, why = megatron.environment(experiment, host)
    env, reasons = nvidia_env.environment(experiment)
    program = (str(PROGRAM), "--settings", SETTINGS)
    return Plan(
        setup=corpus.setup(experiment, python),
        argv=(python, "-u", "-m", "torch.distributed.run", *torchrun(experiment), *program),
        check=(python, "-u", *program, "--check"),
        files={SETTINGS: _yaml(settings(experiment))},
        env=machine | env,
        env_reasons=why | reasons,
        forward_env=experiment.cluster.forward_env,
        declared=attribute_settings.declared(experiment, table),
    )


def settings(e: Experiment) -> dict[str, Any]:
    """settings.yaml: what bridge_ranks.py does, then attribute path → value."""
    table = attribute_settings.table("megatron_bridge")
    assigned = attribute_settings.assignments(e, table)
    family, _, recipe = e.framework.recipes[e.model.name].partition(".")
    return {
        "release": e.framework.release,
        "family": family,
        "recipe": recipe,
        "hugging_face": hugging_face.answer(recipe, e.model),
        "device": DEVICES[e.platform.vendor],
        "world_size": e.layout.world_size,
        "data": e.data.name,
        "precision": _precision(e),
        "set": dict(assigned.set),
        "set_if_there": dict(assigned.set_if_there),
        "set_without_transformer_engine": dict(table.without_transformer_engine),
    }


def _precision(e: Experiment) -> dict[str, Any]:
    """The MixedPrecisionConfig by name, then what its name leaves open."""
    fields: dict[str, Any] = {"grad_reduce_in_fp32": e.precision.accumulate_allreduce_grads_in_fp32}
    if e.precision.fp8:
        # as Megatron's defaults: every layer in fp8, parameters gathered in bf16
        fields |= {"fp8": e.precision.fp8, "fp8_param_gather": False, "first_last_layers_bf16": False}
    if e.precision.fp8_recipe == "mxfp8":
        fields["reuse_grad_buf_for_mxfp8_param_ag"] = False  # a part of gathering in fp8
    return {"factory": PRECISIONS[e.precision.params_dtype, e.precision.fp8_recipe], "set": fields}


def _refusals(e: Experiment) -> Iterator[Problem]:
    release = e.framework.release or ""
    if e.platform.vendor == "amd":
        what = "Megatron-Bridge is NVIDIA's stack"
        yield Problem("framework", what, "platform=amd", "platform=nvidia, platform=cpu", "framework=megatron")
    if e.model.name not in e.framework.recipes:
        what = f"Megatron-Bridge has no recipe to pre-train {e.model.name} with, in any release"
        hint = "another model, or framework=nemo"
        yield Problem("model", what, e.model.name, listed(sorted(e.framework.recipes)), hint)
    if not release.startswith(tuple(f"{known}." for known in RELEASES)):
        what = "the attribute paths of this release are not known"
        yield Problem("framework.release", what, release, listed([f"{known}.x" for known in RELEASES]))
    if (e.precision.params_dtype, e.precision.fp8_recipe) not in PRECISIONS:
        found = f"{e.precision.params_dtype}, {e.precision.fp8_recipe}"
        yield Problem("precision", "Bridge has no such precision", found, "bf16, fp32, fp8, fp8_current, mxfp8")
    if e.platform.vendor is None:
        yield from _without_accelerator(e)


def _without_accelerator(e: Experiment) -> Iterator[Problem]:
    """What a stand-in for torch.cuda cannot stand in for."""
    key = "layout.context_parallel_size"
    if e.layout.context_parallel_size > 1:
        what = "a split sequence needs TransformerEngine's attention, and so a GPU"
        yield Problem(key, what, str(e.layout.context_parallel_size), "1", f"{key}=1, or framework=megatron")
    if e.precision.fp8:
        yield Problem("precision", "fp8 needs TransformerEngine, and so a GPU", e.precision.name, "bf16, fp32")


def _yaml(values: dict[str, Any]) -> str:
    import yaml

    head = "# Read by launchers/ranks/bridge_ranks.py: what is set on the recipe, attribute path by attribute path.\n"
    return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)
