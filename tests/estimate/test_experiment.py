"""Experiments as jobs, and what one GPU computes at least in each module."""

from __future__ import annotations

from itertools import product
from math import nan

import pytest

from conf import load_experiment
from conf.errors import ConfigError
from estimate.experiment import columns_of
from estimate.figures import estimate, step_time_text
from estimate.predict import predict
from estimate.roofline import rooflines
from estimate.rows import jobs_of, read_row
from metrics.flops import FORWARD, flops_per_token
from metrics.shape import shape_of_model
from tests.estimate.test_rows import LLAMA

LAYOUT = ["layout=data_parallel", "layout.tensor_model_parallel_size=4", "layout.pipeline_model_parallel_size=4"]
LAYOUT += ["layout.virtual_pipeline_model_parallel_size=5", "layout.context_parallel_size=2", "nodes=8"]


def float_or(value: object) -> object:
    """Return a number as a float, so that 1 and 1.0 are one, and nan is written as nan."""
    return float(value) if isinstance(value, int | float) else value


def test_an_experiment_and_its_row_are_one_job() -> None:
    keys = ["model=llama3_70b", "platform=nvidia", "hardware=h100", *LAYOUT, "precision=bf16"]
    own = columns_of(load_experiment(*keys, "training.seq_length=8192", "training.global_batch_size=128"))
    row = read_row(LLAMA).job
    assert row is not None
    assert {name: (own[name], row[name]) for name in own if repr(float_or(own[name])) != repr(float_or(row[name]))} == {
        "stack": (own["stack"], "megatron_core-25.04.02"),
        "embedding_counts": (0, nan),  # a row does not state it
        "overlapped_data": (0.0, 1.0),
        "fp32_logits": (1.0, 0.0),  # published runs follow recipes
        **{name: (0.0, row[name]) for name in ("cuda_graphs", "flex_dispatcher", "overlapped_experts")},
        "overlapped_tensor": (0.0, 1.0),
    }


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["model=llama31_8b", "hardware=h100", "precision=fp8"], {"precision": "fp8", "recompute_layers": 0.0}),
        (["model=llama31_8b", "hardware=b200", "precision=mxfp8"], {"precision": "mxfp8", "peak_flops": 4500e12}),
        (
            ["model=llama31_8b", "hardware=h100", "training.recompute_granularity=selective"],
            {"again_core_attn": 1.0, "again_mlp": 0.0},
        ),
        (
            [
                *["model=llama31_8b", "hardware=h100", "training.recompute_granularity=full"],
                *["training.recompute_method=block", "training.recompute_num_layers=8"],
            ],
            {"recompute_layers": 0.25},
        ),
        (
            ["model=llama31_70b", "hardware=h100", "nodes=8", "method=max_performance", "precision=fp8"],
            {"gradient_bytes": 2, "fp32_logits": 0.0},
        ),
        (["model=mixtral_8x7b", "hardware=h100", "layout=data_parallel"], {"fp32_logits": 1.0, "flex_dispatcher": 0.0}),
        (
            ["model=llama31_8b", "hardware=h100", "training.attention=unfused", "training.overlap_grad_reduce=true"],
            {"unfused_attention": 1.0, "overlapped_data": 1.0},
        ),
    ],
)
def test_what_an_experiment_sets(keys: list[str], expected: dict[str, object]) -> None:
    known = columns_of(load_experiment("platform=nvidia", *keys))
    assert {name: known[name] for name in expected} == expected


def test_hardware_without_a_peak_is_refused() -> None:
    with pytest.raises(ConfigError, match="no peak of bf16 is known"):
        columns_of(load_experiment("platform=nvidia", "hardware=unknown", "precision=bf16", "dry_run=true"))


@pytest.mark.parametrize("model", ["llama31_8b", "mixtral_8x7b", "deepseek_v2_lite", "qwen3_30b_a3b"])
def test_the_modules_of_all_layers_make_the_work_of_a_forward_pass(model: str) -> None:
    e = load_experiment(f"model={model}", "platform=nvidia", "hardware=h100", "layout=data_parallel")
    jobs, shape = jobs_of([columns_of(e)]), shape_of_model(e.model)
    found = {bound.module: bound for bound in rooflines(jobs)}
    in_layers = sum(
        bound.flop for name, bound in found.items() if name not in ("logits", "norms and residuals", "router")
    )
    tokens = e.training.seq_length * (e.training.micro_batch_size or 1)
    counted = flops_per_token(shape, e.training.seq_length, passes=FORWARD) * tokens
    assert in_layers * shape.num_layers + found["logits"].flop == pytest.approx(counted, rel=0.06)  # dense layers first
    assert {bound.limit for bound in found.values()} == {"compute", "memory"}
    assert found["norms and residuals"].limit == "memory"


def test_a_row_without_a_peak_of_its_precision_is_refused() -> None:
    assert "no peak of fp8 is known of a100" in read_row(LLAMA | {"gpu": "A100-80", "precision": "fp8"}).refused
    assert jobs_of([read_row(LLAMA).job or {}]).peak_flops[0] == pytest.approx(989.4e12)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            ["platform=amd", "model=llama31_70b", "nodes=8"],
            ("s predicted (", "50 steps take", "95 % interval by the errors of"),
        ),
        (["platform=cpu"], ("not known: of a cpu a measured run says more",)),
        (["platform=nvidia", "hardware=unknown", "dry_run=true"], ("not known: no peak of bf16 is known",)),
    ],
)
def test_a_plan_says_what_a_step_takes_or_why_not(keys: list[str], words: tuple[str, ...]) -> None:
    text = step_time_text(load_experiment(*keys))
    assert [one for one in words if one not in text] == []


def test_splitting_the_tensors_of_a_small_model_on_a_cpu_costs_more_than_it_gains() -> None:
    words = ("platform=cpu", "model=llama_tiny", "gpus_per_node=2")
    whole, cut = (
        estimate(load_experiment(*words, *split)).figures["step_time_mean_s"].value
        for split in ((), ("layout.tensor_model_parallel_size=2",))
    )
    assert whole and cut
    assert cut > 1.5 * whole, "measured on two cores: 0.43 and 0.08 s (docs/guide/measure.md)"


def test_more_memory_on_one_die_hardly_slows_a_step() -> None:
    """Each GPU's rates were fitted by themselves, and an H200 was 2 to 5 % slower than an H100; hosts still differ."""
    for model, tp, precision in product(("llama31_8b", "llama31_70b", "mixtral_8x7b"), (1, 4, 8), ("bf16", "fp8")):
        words = ["platform=nvidia", "gpus_per_node=8", f"model={model}", "nodes=8", f"precision={precision}"]
        words += ["layout=data_parallel", f"layout.tensor_model_parallel_size={tp}"]
        h100, h200 = (
            predict(jobs_of([columns_of(load_experiment(*words, f"hardware={gpu}"))])).step_time_s[0]
            for gpu in ("h100", "h200")
        )
        assert h200 < 1.02 * h100, words
