"""Tests of what is given of a log: what the log contradicts is refused, what it leaves open is taken."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from conf.errors import InputError
from parsers import Reading, Record, Step
from parsers.given import given_of, with_given

EIGHT_B = {"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "hidden_dropout": 0.1}
BATCH = {"global_batch_size": 128, "seq_length": 8192, "micro_batch_size": 1, "tensor_model_parallel_size": 2}
BF16 = {"params_dtype": "bfloat16", "fp8": None}
FP8 = {"fp8": "e4m3", "fp8_recipe": "tensorwise"}
NVFP4 = {**BF16, "fp4": "e2m1", "fp4_recipe": "nvfp4"}
H100, GIB = {"device_name": "NVIDIA H100 80GB HBM3"}, 2**30


def log(effective: dict[str, Any] | None = None, facts: dict[str, Any] | None = None, **step: Any) -> Record:
    """Return an imported record of ten steps that state nothing but this."""
    steps = tuple(Step(step=i, line=i + 2, iteration=i + 1, **step) for i in range(10))
    read = {name: Reading(value, 1) for name, value in (effective or {}).items()}
    about: dict[str, Any] = {"provenance": "imported", "status": "completed", "log": "a.log"}
    return Record(id="a", name="a", effective=read, environment=facts or {}, steps=steps, **about)


def rates(tflops: float | None, tokens: float | None = None, **more: Any) -> dict[str, Any]:
    return {"tflops_per_gpu": tflops, "tokens_per_s_per_gpu": tokens, **more}


WRONG: list[tuple[Record, str, str, str]] = [
    # the model: sizes, experts, parameters, and the operations that its tokens take
    (log(EIGHT_B), "model=llama31_70b", "num_layers 80, hidden_size 8192", "num_layers 32 (line 1), hidden_size 4096"),
    (log({**EIGHT_B, "num_experts": None}), "model=mixtral_8x7b", "num_experts 8", "num_experts None"),
    (log(facts={"model": "llama31_8b"}), "model=llama31_70b", "llama31_70b", "llama31_8b"),
    (log(facts={"parameters": 8_030_261_248}), "model=llama32_1b", "1,235,814,400", "8,030,261,248 parameters"),
    (log(facts={"parameters_billion": 8.03}), "model=deepseek_v3", "671,026,419,200", "8,030,000,000 parameters"),
    (
        log(
            {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1},
            {"parameters_by_rank": {"0,0": 10**9, "1,0": 10**9}},
        ),
        "model=llama31_8b",
        "8,030,261,248",
        "2,000,000,000 parameters",
    ),
    (
        log({"world_size": 4}, {"parameters_by_rank": {"0,0": 278_848}}),
        "model=llama31_8b",
        "8,030,261,248",
        "278,848 parameters on the largest rank seen of 4",
    ),
    (log(**rates(580, 11_000)), "model=llama31_70b", "4,657 TFLOP/s/GPU at 11,000 tokens/s/GPU", "580.0 TFLOP/s/GPU"),
    (
        log({"seq_length": 8192}, **rates(580, 11_000)),
        "model=llama32_1b",
        "82 TFLOP/s/GPU",
        "580.0 TFLOP/s/GPU printed",
    ),
    (
        log(BF16, H100, **rates(None, 60_000)),
        "model=llama31_8b",
        "2,891 TFLOP/s/GPU at 60,000",
        "h100 in bf16, at most 989",
    ),
    # the device: its name, maker, memory, and peak
    (log(facts=H100), "hardware=mi300x", "mi300x (AMD Instinct MI300X", "NVIDIA H100 80GB HBM3"),
    (log(facts={"device_name": "NVIDIA GeForce RTX 5090"}), "hardware=h100", "h100", "NVIDIA GeForce RTX 5090"),
    (log(facts={"device_name": "NVIDIA H100-SXM5-80GB"}), "hardware=gb200", "gb200", "NVIDIA H100-SXM5-80GB"),
    (replace(log(), vendor="amd"), "hardware=h100", "h100 of nvidia", "a device of amd"),
    (replace(log(), hardware="h200"), "hardware=h100", "h100", "h200"),
    (log(memory_bytes=240 * GIB, memory_kind="hip"), "hardware=mi300x", "206 GB", "258 GB used of one device"),
    (log(facts={"device_memory_bytes": 80 * GIB}), "hardware=h200", "151 GB", "a device with 86 GB"),
    (log(metrics={"hip_memory_total_bytes": 288.0 * GIB}), "hardware=mi325x", "275 GB", "a device with 309 GB"),
    (log(BF16, **rates(1290)), "hardware=h100", "h100 in bf16, at most 989 TFLOP/s", "1,290 TFLOP/s/GPU printed"),
    (log(**rates(2600)), "hardware=h100", "h100 in fp8, at most 1,979", "2,600 TFLOP/s/GPU printed"),
    (log(facts=H100, **rates(1290)), "precision=bf16", "h100 in bf16", "1,290 TFLOP/s/GPU printed"),
    (replace(log(), vendor="nvidia"), "hardware=cpu", "cpu", "a device of nvidia"),
    # the precision: what ran, by its recipe where the choice names one, by the trainer before the parameters
    (log(FP8), "precision=bf16", "fp8 None", "fp8 e4m3 (line 1)"),
    (log(BF16), "precision=fp8", "fp8 hybrid", "fp8 None"),
    (log(FP8), "precision=mxfp8", "fp8_recipe mxfp8", "fp8_recipe tensorwise"),
    (log(NVFP4), "precision=bf16", "fp4 None", "fp4 e2m1"),
    (log(NVFP4), "precision=mxfp4", "fp4_recipe mxfp4", "fp4_recipe nvfp4"),
    (log(BF16), "precision=fp32", "params_dtype float32", "params_dtype bfloat16"),
    (
        log({"params_dtype": "float32"}, {"precision": "bf16-mixed"}),
        "precision=fp32",
        "fp32",
        "bf16-mixed by the trainer",
    ),
    (log(facts={"precision": "amp_bf16"}), "precision=fp32", "fp32", "amp_bf16 by the trainer"),
    # the ranks: stated, of the layout, of the batch, and of the speed
    (log({"world_size": 8}), "world_size=16", "world_size 16", "world_size 8 (line 1)"),
    (log(BATCH), "world_size=3", "3", "a layout of 2 ranks, or a multiple"),
    (log(BATCH), "world_size=512", "512", "global batch 128 of micro batches 1, 2 ranks each"),
    (log(BATCH, **rates(580, 16_384, step_time_s=8)), "world_size=16", "16", "which 8.0 ranks make"),
    # beside each other
    (replace(log(), platform="nvidia"), "platform=amd", "amd", "nvidia"),
    (log(), "hardware=h100 vendor=amd", "amd", "nvidia"),
    (log({"lr": 0.1}), "lr=0.2", "lr 0.2", "lr 0.1 (line 1)"),
]
FACTS = {"model", "hardware", "precision"}
RIGHT: list[tuple[Record, str]] = [
    (log(EIGHT_B, {"parameters": 7_390_000_000}), "model=llama31_8b"),  # another vocabulary
    (log(facts={"model": "llama31_8b"}), "model=llama"),
    (log({**EIGHT_B, "num_query_groups": 1}), "model=llama31_8b"),  # printed without groups, too
    (log(EIGHT_B), "model=llama31_70b num_layers=32 hidden_size=4096 num_attention_heads=32"),
    (log(**rates(580, 11_000)), "model=llama31_8b hardware=h100 precision=bf16 world_size=8"),
    (log(facts=H100, memory_bytes=84 * 10**9, memory_kind="reserved"), "hardware=h100"),
    (log(facts={"device_name": "NVIDIA H100-SXM5-80GB"}), "hardware=h100"),
    (log(facts={"device_name": "AMD Radeon Graphics"}), "hardware=mi300x"),  # the driver's name for any
    (log(facts=H100), "hardware=unknown"),
    (log(memory_bytes=272 * 10**9, memory_kind="hip"), "hardware=mi325x"),  # 256 GB are GiB
    (log(memory_bytes=500 * 10**9, memory_kind="rss"), "hardware=h100"),
    (log(FP8), "precision=fp8"),
    (log({"params_dtype": "float32"}, {"precision": "bf16-mixed"}), "precision=bf16"),
    (log(NVFP4), "precision=fp4"),
    (log(BF16), "precision=nvfp4"),  # of a release that prints no fp4
    (log(BATCH, **rates(580, 16_384, step_time_s=8)), "world_size=8"),
]


@pytest.mark.parametrize(("record", "given", "mine", "logs"), WRONG, ids=[row[1] for row in WRONG])
def test_a_contradiction_is_refused_with_both_values(record: Record, given: str, mine: str, logs: str) -> None:
    with pytest.raises(InputError) as caught:
        with_given(record, given_of(given.split()))
    (problem,) = caught.value.problems
    assert (mine in problem.found, logs in problem.allowed) == (True, True), problem


@pytest.mark.parametrize(("record", "given"), RIGHT, ids=[row[1] for row in RIGHT])
def test_what_a_log_leaves_open_is_taken(record: Record, given: str) -> None:
    taken = with_given(record, given_of(given.split()))
    assert all(taken.setting(name) == value for name, value in given_of(given.split()).items() if name not in FACTS)


def test_of_a_model_only_what_makes_it_another_one_is_refused() -> None:
    notes = with_given(log(EIGHT_B), given_of(["model=llama31_8b"])).notes
    assert notes == ("hidden_dropout is 0.1 in the log, 0.0 as given",)


def test_hardware_gives_vendor_and_platform() -> None:
    for name, known in {"mi355x": ("amd", "amd"), "cpu": (None, "cpu"), "unknown": (None, None)}.items():
        record = with_given(log(), given_of([f"hardware={name}"]))
        assert (record.hardware, record.vendor, record.platform) == (name, *known)
    assert with_given(replace(log(), hardware="h100"), given_of(["hardware=h100"])).platform == "nvidia"
