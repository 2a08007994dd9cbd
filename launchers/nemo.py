"""framework=nemo: a recipe of NVIDIA NeMo 2.x with every setting on it (launchers/ranks/nemo_ranks.py), by torchrun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conf.errors import ConfigError, Problem, listed
from conf.resolve import Experiment
from conf.vendors import vendor_of
from launchers import attribute_settings, corpus, nvidia
from launchers.plan import Host, Plan

PROGRAM = Path(__file__).parent / "ranks" / "nemo_ranks.py"

PRECISIONS: nvidia.Precisions = {
    ("float32", None): "fp32",
    ("bfloat16", None): "bf16_mixed",
    ("bfloat16", "delayed"): "bf16_with_fp8_mixed",
    ("bfloat16", "tensorwise"): "bf16_with_fp8_current_scaling_mixed",
    ("bfloat16", "mxfp8"): "bf16_with_mxfp8_mixed",
}
"""(params_dtype, fp8_recipe) → factory in nemo.collections.llm.recipes.precision.mixed_precision; fp32 is ours."""


def render(experiment: Experiment, host: Host) -> Plan:
    """The plan of one training run.

    Raises:
        ConfigError: what NeMo cannot do, all of it.
    """
    table = attribute_settings.table("nemo")
    problems = [*_refusals(experiment), *attribute_settings.problems(experiment, table)]
    if problems:
        raise ConfigError(*problems)
    return nvidia.plan(experiment, host, PROGRAM, _yaml(settings(experiment)))


def settings(e: Experiment) -> dict[str, Any]:
    """settings.yaml: what nemo_ranks.py does, then attribute path → value."""
    table = attribute_settings.table("nemo")
    assigned = attribute_settings.assignments(e, table)
    data = {"name": e.data.name, "path": e.data.path, "split": e.data.split, "vocab_size": e.model.vocab_size}
    return {
        "recipe": e.framework.recipes[e.model.name],
        "device": vendor_of(e.accelerator).torch_device,
        "nodes": e.nodes,
        "gpus_per_node": e.gpus_per_node,
        "seed": e.training.seed,
        "data": {**data, "samples": corpus.samples(e)},
        "precision": nvidia.precision(e, PRECISIONS),
        "flops_formula": _flops_formula(e),
        "set": dict(assigned.set),
        "set_if_there": dict(assigned.set_if_there),
        "set_without_transformer_engine": dict(table.without_transformer_engine),
    }


def _flops_formula(e: Experiment) -> str | None:
    """Name in NeMo's flops_callback.py, for the TFLOP/s that it prints. qwen3's counts every width as it is configured,
    where llama3's and mixtral's have a vocabulary of their own; deepseekv3's wants a low rank of the queries."""
    if e.model.mla is None:
        return "qwen3"
    return None if e.model.mla.q_lora_rank is None else "deepseekv3"


def _refusals(e: Experiment) -> Iterator[Problem]:
    if e.platform.vendor == "amd":
        what = "NeMo is NVIDIA's stack"
        yield Problem("framework", what, "platform=amd", "platform=nvidia, platform=cpu", "framework=megatron")
    if e.model.name not in e.framework.recipes:
        what = f"NeMo {e.framework.release} has no recipe to pre-train {e.model.name} with"
        hint = "another model, or framework=megatron_bridge"
        yield Problem("model", what, e.model.name, listed(sorted(e.framework.recipes)), hint)
    if (e.precision.params_dtype, e.precision.fp8_recipe) not in PRECISIONS:
        found = f"{e.precision.params_dtype}, {e.precision.fp8_recipe}"
        yield Problem("precision", "NeMo has no such precision", found, "bf16, fp32, fp8, fp8_current, mxfp8")
    if e.accelerator is None:
        yield from _without_accelerator(e)


def _without_accelerator(e: Experiment) -> Iterator[Problem]:
    """What a stand-in for torch.cuda cannot stand in for."""
    yield from nvidia.without_accelerator(e)
    if e.training.save_interval and e.layout.world_size > 1:
        what = "with several ranks over gloo NeMo's checkpoint callback was seen to hang (Lightning's broadcast)"
        hint = "gpus_per_node=1, or framework=megatron_bridge"
        yield Problem("training.save_interval", what, str(e.training.save_interval), "null", hint)


def _yaml(values: dict[str, Any]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Lists on one line: one entry a layer is no reading matter."""

    Dumper.add_representer(list, lambda to, items: to.represent_sequence("tag:yaml.org,2002:seq", items, True))
    head = "# Read by launchers/ranks/nemo_ranks.py: what is set on the recipe, attribute path by attribute path.\n"
    return head + yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
