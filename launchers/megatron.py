"""framework=megatron: the embedded engine (launchers/ranks/engine.py) under torchrun, on CPU, CUDA or ROCm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conf.errors import ConfigError, Problem
from conf.resolve import Experiment
from conf.vocabulary import requested
from launchers.plan import Host, Plan

ENGINE = Path(__file__).parent / "ranks" / "engine.py"
SETTINGS = "settings.json"


def render(experiment: Experiment, host: Host) -> Plan:
    """The plan of one training run.

    Raises:
        ConfigError: what the engine cannot do yet, all of it.
    """
    problems = list(_refusals(experiment))
    if problems:
        raise ConfigError(*problems)
    env, reasons = _environment(experiment, host)
    return Plan(
        argv=(
            *(host.python, "-u", "-m", "torch.distributed.run", *_torchrun(experiment)),
            *(str(ENGINE), "--settings", SETTINGS),
        ),
        files={SETTINGS: json.dumps(settings(experiment), indent=2) + "\n"},
        env=env,
        env_reasons=reasons,
        forward_env=experiment.cluster.forward_env,
    )


def settings(experiment: Experiment) -> dict[str, Any]:
    """The engine's settings file: every requested setting under its canonical name."""
    return requested(experiment)


def _refusals(e: Experiment) -> Iterator[Problem]:
    if e.precision.fp8:
        hint = "precision=bf16"
        yield Problem("precision", "fp8 needs TransformerEngine, which the embedded engine does without", hint=hint)
    sizes = {
        "virtual_pipeline_model_parallel_size": e.layout.virtual_pipeline_model_parallel_size or 1,
        "context_parallel_size": e.layout.context_parallel_size,
        "expert_model_parallel_size": e.layout.expert_model_parallel_size,
    }
    for name, size in sizes.items():
        if size > 1:
            what = "the embedded engine has tensor, sequence, pipeline and data parallelism so far"
            yield Problem(f"layout.{name}", what, str(size), "1", "layout=identical, or sizes without it")


def _torchrun(e: Experiment) -> Iterator[str]:
    yield f"--nproc-per-node={e.gpus_per_node}"
    if e.nodes == 1:
        yield "--standalone"  # a free port of its own: two runs on one machine do not meet
        return
    yield f"--nnodes={e.nodes}"
    yield f"--node-rank={e.cluster.node_rank}"
    yield f"--master-addr={e.cluster.master_addr}"
    yield f"--master-port={e.cluster.master_port}"


def _environment(e: Experiment, host: Host) -> tuple[dict[str, str], dict[str, str]]:
    threads = max(1, host.cpu_count // e.gpus_per_node)
    rows = [("OMP_NUM_THREADS", str(threads), f"{host.cpu_count} cores / {e.gpus_per_node} processes")]
    if e.hardware.vendor is None and (e.gpus_per_node * threads >= host.cpu_count or host.ci):
        rows.append(("OMP_WAIT_POLICY", "PASSIVE", "no core is left over for threads that spin"))
    if e.hardware.vendor is not None and e.layout.tensor_model_parallel_size > 1:
        reason = "TP's communication must be queued before the matmuls it overlaps"
        rows.append(("CUDA_DEVICE_MAX_CONNECTIONS", "1", reason))
    return {name: value for name, value, _ in rows}, {name: reason for name, _, reason in rows}
