"""framework=megatron: the embedded engine (launchers/ranks/engine.py) under torchrun, on CPU, CUDA or ROCm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conf import devices
from conf.errors import ConfigError, Problem
from conf.resolve import Experiment
from conf.vendors import vendor_of
from conf.vocabulary import program_settings
from launchers import corpus
from launchers.plan import Host, Plan

ENGINE = Path(__file__).parent / "ranks" / "engine.py"
SETTINGS = "settings.json"
MOCK_VOCABULARY = 4096


def render(experiment: Experiment, host: Host) -> Plan:
    """The plan of one training run.

    Raises:
        ConfigError: what the engine cannot do, all of it.
    """
    problems = list(_refusals(experiment))
    if problems:
        raise ConfigError(*problems)
    env, reasons = environment(experiment, host)
    return Plan(
        setup=corpus.setup(experiment, host.python),
        argv=(
            *(host.python, "-u", "-m", "torch.distributed.run", *torchrun(experiment)),
            *(str(ENGINE), "--settings", SETTINGS),
        ),
        files={SETTINGS: json.dumps(settings(experiment), indent=2) + "\n"},
        env=env,
        env_reasons=reasons,
        forward_env=experiment.cluster.forward_env,
    )


def settings(experiment: Experiment) -> dict[str, Any]:
    """The engine's settings file: every requested setting under its canonical name, and the device it is meant for."""
    return {**program_settings(experiment), "device": vendor_of(experiment.accelerator).torch_device}


def _refusals(e: Experiment) -> Iterator[Problem]:
    if e.rehearse == "layout":
        what = "the engine has no rules beyond ours that playing a rank would show"
        yield Problem("rehearse", what, "layout", "train", "rehearse=train, or a vendor's framework")
    if e.precision.fp8:
        hint = "precision=bf16"
        yield Problem("precision", "fp8 needs TransformerEngine, which the embedded engine does without", hint=hint)
    if e.data.name == "mock" and e.model.vocab_size < MOCK_VOCABULARY:
        what = "Megatron-Core 0.15.3's mock data has ids up to 4094 whatever the vocabulary: too many for this model"
        allowed = f"a vocabulary of {MOCK_VOCABULARY} or more"
        yield Problem("data", what, str(e.model.vocab_size), allowed, "data=synthetic")
    yield from _missing_parts(e)
    layout = e.layout
    if layout.virtual_pipeline_model_parallel_size == 1:
        key = "layout.virtual_pipeline_model_parallel_size"
        yield Problem(key, "one virtual stage is none", "1", f"{key}=null")
    if e.training.attention == "unfused" and layout.context_parallel_size > 1:
        what = "Megatron's own attention cannot split a sequence"
        yield Problem("training.attention", what, "unfused", "sdpa", "training.attention=sdpa, or CP 1")


def _missing_parts(e: Experiment) -> Iterator[Problem]:
    """What the engine could build only wrongly: its settings do not even have names for most of these."""
    model, moe = e.model, e.model.moe
    missing = {
        "multi-head latent attention": model.mla is not None,
        "multi-token prediction": bool(model.mtp_num_layers),
        "YaRN": model.yarn is not None,
        "clamped quick-GELU experts": model.quick_geglu is not None,
        "attention sinks": model.softmax_type != "vanilla",
        "sliding window attention": model.window_size is not None,
        "biases in experts": moe is not None and model.add_bias_linear,
        "sigmoid routing": moe is not None and moe.moe_router_score_function != "softmax",
        "routing probabilities before the choice": moe is not None and moe.moe_router_pre_softmax,
        "scaled routing probabilities": moe is not None and (moe.moe_router_topk_scaling_factor or 1.0) != 1.0,
        "groups of experts": moe is not None and (moe.moe_router_num_groups or 1) > 1,
        "a routing bias": moe is not None and moe.moe_router_enable_expert_bias,
    }
    parts = [part for part, needed in missing.items() if needed]
    if parts:
        what = f"{model.name} needs what the embedded engine does not have: {', '.join(parts)}"
        yield Problem("model", what, model.name, hint="another model; the vendors' own stacks have these")


def torchrun(e: Experiment) -> Iterator[str]:
    """torchrun's own arguments, for this node."""
    yield f"--nproc-per-node={e.gpus_per_node}"
    if e.nodes == 1:
        yield "--standalone"  # a free port of its own: two runs on one machine do not meet
        return
    yield f"--nnodes={e.nodes}"
    yield f"--node-rank={e.cluster.node_rank}"
    yield f"--master-addr={e.cluster.master_addr}"
    yield f"--master-port={e.cluster.master_port}"


def environment(e: Experiment, host: Host) -> tuple[dict[str, str], dict[str, str]]:
    """What the ranks of any stack get for the machine's sake, and the reason of each."""
    processes = 1 if e.rehearse == "layout" else e.gpus_per_node
    threads = max(1, host.cpu_count // processes)
    rows = [("OMP_NUM_THREADS", str(threads), f"{host.cpu_count} cores / {processes} processes")]
    if e.accelerator is None and (processes * threads >= host.cpu_count or host.ci):
        rows.append(("OMP_WAIT_POLICY", "PASSIVE", "no core is left over for threads that spin"))
    if e.accelerator is None:
        rows += [(name, "", "a run on the CPU sees no GPU") for name in devices.hidden_by()]
    if e.hardware.vendor is not None and e.layout.tensor_model_parallel_size > 1:
        reason = "TP's communication must be queued before the matmuls it overlaps"
        rows.append(("CUDA_DEVICE_MAX_CONNECTIONS", "1", reason))
    return {name: value for name, value, _ in rows}, {name: reason for name, _, reason in rows}
