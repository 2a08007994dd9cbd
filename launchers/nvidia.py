"""What the renderers of NVIDIA's two stacks share: the plan around settings.yaml, the precision, a CPU's limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conf.errors import Problem
from conf.resolve import Experiment
from launchers import attribute_settings, corpus, megatron, nvidia_env
from launchers.plan import Host, Plan

SETTINGS = "settings.yaml"

Precisions = Mapping[tuple[str, str | None], str]
"""(params_dtype, fp8_recipe) → the stack's name for it."""


def plan(e: Experiment, host: Host, program: Path, text: str) -> Plan:
    """`program` under torchrun, with settings.yaml of this `text`, and its own check."""
    python = e.framework.python or host.python
    machine, why = megatron.environment(e, host)
    env, reasons = nvidia_env.environment(e)
    command = (str(program), "--settings", SETTINGS)
    alone = e.rehearse == "layout"  # one process plays a rank
    return Plan(
        setup=corpus.setup(e, python),
        argv=(python, "-u", *(() if alone else ("-m", "torch.distributed.run", *megatron.torchrun(e))), *command),
        check=(python, "-u", *command, "--check"),
        files={SETTINGS: text},
        env=machine | env,
        env_reasons=why | reasons,
        forward_env=e.cluster.forward_env,
        declared=attribute_settings.declared(e, attribute_settings.table(e.framework.name)),
    )


def precision(e: Experiment, names: Precisions) -> dict[str, Any]:
    """The stack's precision by name, then what its name leaves open; what is set elsewhere the plugin overwrites."""
    fields: dict[str, Any] = {"grad_reduce_in_fp32": e.precision.accumulate_allreduce_grads_in_fp32}
    if e.precision.fp8:
        # as Megatron's defaults: every layer in fp8, parameters gathered in bf16
        fields |= {"fp8": e.precision.fp8, "fp8_param_gather": False, "first_last_layers_bf16": False}
    if e.precision.fp8_recipe == "mxfp8":
        fields["reuse_grad_buf_for_mxfp8_param_ag"] = False  # a part of gathering in fp8
    return {"factory": names[e.precision.params_dtype, e.precision.fp8_recipe], "set": fields}


def without_accelerator(e: Experiment) -> Iterator[Problem]:
    """What a stand-in for torch.cuda cannot stand in for."""
    key = "layout.context_parallel_size"
    if e.layout.context_parallel_size > 1 and not e.rehearse:
        what = "a split sequence needs TransformerEngine's attention, and so a GPU"
        yield Problem(key, what, str(e.layout.context_parallel_size), "1", f"{key}=1, or framework=megatron")
    if e.model.mla:
        what = "latent attention needs TransformerEngine's kernel, and so a GPU: Megatron's own has one width"
        yield Problem("model", what, e.model.name, hint="another model")
    if e.precision.fp8:
        yield Problem("precision", "fp8 needs TransformerEngine, and so a GPU", e.precision.name, "bf16, fp32")
