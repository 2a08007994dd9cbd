"""A measured run as a job: calibration learns of the job that an estimate of the same experiment predicts."""

from __future__ import annotations

from math import isnan

import pytest
from msgspec.structs import replace

from conf import load_experiment
from conf.resolve import Experiment
from estimate.experiment import columns_of
from estimate.figures import estimate
from estimate.of_record import columns_of_record
from parsers.record import Record

_H100 = ("model=llama31_8b", "platform=nvidia", "hardware=h100", "gpus_per_node=8")


def _run(e: Experiment) -> Record:
    return replace(estimate(e).record(), provenance="measured")


_BEST = ("method=max_performance", "batch=vendor")
_EXPERTS = ("layout=data_parallel", "layout.expert_model_parallel_size=8")


def test_runs_of_several_stacks_are_jobs_with_the_same_columns() -> None:
    """A run of fsdp2 behind one of Bridge ended in a traceback, before it Bridge's copy of the logits was lost."""
    stacks = ("megatron_bridge", "fsdp2", "torchtitan", "nemo")
    ran = [columns_of_record(_run(load_experiment(*_H100, f"framework={name}"))) for name in stacks]
    ran.append(columns_of_record(_run(load_experiment(*_H100, "framework=nemo", *_BEST))))
    assert len({frozenset(columns) for columns in ran}) == 1


def test_an_override_of_what_a_recipe_recomputes_is_learned_as_that() -> None:
    words = ("model=llama2_13b", "platform=amd", "hardware=mi300x", *_BEST, "training.recompute_num_layers=1")
    e = load_experiment(*words)
    learned = columns_of_record(_run(e))["recompute_layers"]
    assert learned == columns_of(e)["recompute_layers"] == pytest.approx(1 / e.model.num_layers)


@pytest.mark.parametrize(
    "overrides",
    [
        (*_H100, "framework=megatron_bridge"),
        (*_H100, "framework=megatron_bridge", "hardware=b200", "precision=mxfp8"),
        (*_H100, "framework=megatron_bridge", "precision=fp8"),
        (*_H100, "framework=fsdp2"),
        (*_H100, "framework=torchtitan", "layout=data_parallel", "layout.context_parallel_size=2"),
        (*_H100, "framework=megatron_bridge", "nodes=2", "gpus_per_node=4", "layout.tensor_model_parallel_size=8"),
        ("model=mixtral_8x7b", "platform=amd", "hardware=mi300x", "nodes=2", "gpus_per_node=8", *_EXPERTS),
        ("model=deepseek_v3", "platform=nvidia", "hardware=h100", "nodes=128", "precision=fp8", *_BEST),
        ("model=qwen3_30b_a3b", "platform=nvidia", "hardware=b200", "nodes=1", "precision=mxfp8", *_BEST),
        (*_H100, "framework=megatron_bridge", "training.attention=unfused", "training.overlap_grad_reduce=true"),
    ],
)
def test_a_run_is_the_job_that_an_estimate_of_its_experiment_predicts(overrides: tuple[str, ...]) -> None:
    """MXFP8 was learned as fp8, FSDP as plain replicas, and nodes of four GPUs as domains of eight."""
    e = load_experiment(*overrides)
    predicted = columns_of(e)
    ran = columns_of_record(_run(e))
    differing = {
        name: (value, ran[name])
        for name, value in predicted.items()
        if name in ran and value != ran[name] and not (isnan(float(value)) and isnan(float(ran[name])))
    }
    assert differing == {}
    assert {*predicted} - {*ran} == {"data_parallel_replicas"}
