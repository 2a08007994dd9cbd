"""framework=megatron_bridge: a recipe of NVIDIA Megatron-Bridge with every setting on it (ranks/bridge_ranks.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conf.errors import ConfigError, Problem, listed
from conf.resolve import Experiment
from conf.vendors import vendor_of
from launchers import attribute_settings, hugging_face, nvidia
from launchers.plan import Host, Plan

PROGRAM = Path(__file__).parent / "ranks" / "bridge_ranks.py"
RELEASES = ("0.3", "0.4", "0.5", "0.6")  # whose attribute paths the table was held against

PRECISIONS: nvidia.Precisions = {
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
    return nvidia.plan(experiment, host, PROGRAM, _yaml(settings(experiment)))


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
        "device": vendor_of(e.accelerator).torch_device,
        "world_size": e.layout.world_size,
        "data": e.data.name,
        "precision": nvidia.precision(e, PRECISIONS),
        "set": dict(assigned.set),
        "set_if_there": dict(assigned.set_if_there),
        "set_without_transformer_engine": dict(table.without_transformer_engine),
    }


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
    if e.accelerator is None:
        yield from nvidia.without_accelerator(e)


def _yaml(values: dict[str, Any]) -> str:
    import yaml

    head = "# Read by launchers/ranks/bridge_ranks.py: what is set on the recipe, attribute path by attribute path.\n"
    return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)
