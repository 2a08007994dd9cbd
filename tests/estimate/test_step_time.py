"""The time of a step: what physics demands of it, whatever the parameters."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest

from conf.facts import hardware
from conf.load import model_named
from estimate.fit import priors
from estimate.fitted import Parameters, Value, shipped
from estimate.host import shipped_for
from estimate.jobs import RECOMPUTED, Jobs, columns_of_hardware, columns_of_shape
from estimate.predict import predict
from estimate.step_time import CHUNK, PARTS, Parts, _Maker, cases_of, offset_of, step_time
from metrics.shape import shape_of_model

MODELS = ("llama31_8b", "llama31_70b", "qwen3_30b_a3b", "deepseek_v3", "gpt_oss_120b")
PARALLEL = ("tensor_model", "pipeline_model", "virtual_pipeline_model", "context", "expert_model")


def job(model: str = "llama31_70b", gpu: str = "h100", precision: str = "bf16", **columns: Any) -> Jobs:
    """Return one job on 128 GPUs."""
    known, device = model_named(model), hardware(gpu)
    assert known and device
    values: dict[str, Any] = columns_of_shape(shape_of_model(known)) | columns_of_hardware(device, precision)
    values |= dict.fromkeys([f"{name}_parallel_size" for name in PARALLEL], 1.0)
    values |= {f"again_{name}": 0.0 for name in RECOMPUTED}
    values |= {"data_parallel_size": 128.0, "expert_tensor_parallel_size": 1.0, "sequence_parallel": 1.0}
    values |= {"distributed_optimizer": 1.0, "fsdp": 0.0, "seq_length": 4096.0, "micro_batch_size": 1.0}
    values |= {"global_batch_size": 1024.0, "trained": "pretraining", "precision": precision, "gradient_bytes": 4.0}
    values |= {"optimizer_bytes": 12.0, "fp8_params": 0.0}
    values |= {"recompute_layers": 0.0, "offloaded_layers": 0.0, "stack": "nemo-25.04"}
    values |= {"qk_layernorm": 0.0, "add_qkv_bias": 0.0, "add_bias_linear": 0.0, "attention_sinks": 0.0}
    return Jobs(**{name: np.asarray(value) for name, value in (values | columns).items()})


@cache
def many(count: int = 800) -> Jobs:
    """Return jobs of all models on several GPUs, at random layouts."""
    random = np.random.default_rng(7)
    models, gpus = random.choice(MODELS, count), random.choice(("a100", "h100", "gb200", "mi300x"), count)
    sizes = {f"{name}_parallel_size": 2.0 ** random.integers(0, 4, count) for name in PARALLEL}
    dp = 2.0 ** random.integers(4, 8, count)
    sizes |= {"data_parallel_size": dp, "seq_length": 2.0 ** random.integers(11, 17, count)}
    sizes |= {"global_batch_size": dp * 2.0 ** random.integers(0, 6, count)}
    sizes |= {name: random.integers(0, 2, count).astype(float) for name in ("fsdp", "sequence_parallel")}
    sizes |= {f"again_{name}": random.integers(0, 2, count).astype(float) for name in RECOMPUTED}
    each = [job(model, gpu) for model, gpu in zip(models, gpus, strict=True)]
    names = [field.name for field in fields(Jobs)]
    joined = {name: np.array([getattr(one, name) for one in each]) for name in names}
    return Jobs(**(joined | sizes))


def test_every_second_product_again_is_less_than_all_and_more_than_none() -> None:
    """TorchTitan's selective recomputation by operator: attention is not computed again."""
    shares = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
    none, some, whole = (
        step_time(job(again_by_operator=by_operator, recompute_layers=layers), shipped())
        for by_operator, layers in shares
    )
    assert none.recompute == 0
    assert 0.2 * whole.recompute < some.recompute < 0.6 * whole.recompute


@pytest.mark.parametrize(("model", "share"), [("llama31_70b", (0.72, 0.8)), ("qwen3_30b_a3b", (1.0, 1.0))])
def test_a_layer_that_stops_early_is_recomputed_but_for_its_last_product(
    model: str, share: tuple[float, float]
) -> None:
    """A quarter of the weights of a layer of 70B; what a layer's experts return is scattered, and scaled, behind it."""
    early, whole = (
        step_time(job(model, recompute_layers=1.0, stops_early=stops), shipped()).recompute for stops in (1.0, 0.0)
    )
    least, most = share
    assert least * whole <= early <= most * whole
    assert step_time(job(model, stops_early=1.0), shipped()).recompute == 0


def test_the_first_flash_attention_is_on_hopper_what_it_is_on_ampere() -> None:
    """Slower by what Ampere's kernels lose there: cuDNN's own rate says nothing of it."""
    known, gpu = shipped(), "attention_efficiency.h100"
    faster = msgspec.structs.replace(known.values[gpu], value=1.2 * known.values[gpu].value)
    other = msgspec.structs.replace(known, values={**known.values, gpu: faster})

    def attention(parameters: Parameters, stack: str, gpu: str = "h100") -> float:
        return step_time(job(gpu=gpu, stack=stack, seq_length=2.0**20), parameters).attention.item()

    old, new = "llm_foundry-2023", "llm_foundry-2024-01"
    assert attention(other, old) == attention(known, old)
    assert attention(other, new) == pytest.approx(attention(known, new) / 1.2)
    peaks = float(job().peak_bf16_flops / job(gpu="a100").peak_bf16_flops)
    expected = known.of("attention_of_ampere") * peaks
    assert attention(known, old, "a100") / attention(known, old) == pytest.approx(expected, rel=0.01)


def test_gradients_that_fsdp_reduces_in_fp32_take_longer() -> None:
    both, half = (job(fsdp=1.0, gradient_bytes=size, stack="torchtitan-2025-06") for size in (4.0, 2.0))
    assert step_time(both, shipped()).data_parallel > 1.2 * step_time(half, shipped()).data_parallel


def test_stages_of_a_pipeline_are_gathered_once_a_step() -> None:
    """TorchTitan reshards nothing between the micro-batches of a pipeline."""
    sizes: dict[str, Any] = {"fsdp": 1.0, "pipeline_model_parallel_size": 4.0, "data_parallel_size": 32.0}
    few, more = (job(global_batch_size=size, **sizes) for size in (512.0, 4096.0))
    assert step_time(few, shipped()).data_parallel >= step_time(more, shipped()).data_parallel


def test_nothing_hides_the_exchange_between_replicas_that_does_not_overlap() -> None:
    """6 bytes of each parameter over 64 GPUs of 50 GB/s take the whole of their time."""
    parts = step_time(job("llama31_8b", data_parallel_size=64, overlapped_data=np.array([1.0, 0.0])), shipped())
    hidden, open_ = parts.data_parallel
    assert open_ > 4 * hidden


def test_experts_whose_exchange_overlaps_keep_the_host_busier() -> None:
    one: dict[str, Any] = {"expert_model_parallel_size": 8.0, "cuda_graphs": 0.0}
    plain, overlapped = (job("qwen3_30b_a3b", overlapped_experts=share, **one) for share in (0.0, 1.0))
    assert step_time(overlapped, shipped()).launches > 1.1 * step_time(plain, shipped()).launches


def test_a_dispatcher_that_sorts_meanwhile_leaves_less_of_the_exchange_than_it_sends() -> None:
    """A token goes once to each of its two experts' ranks among eight, of which 1.875 differ in the mean."""
    one: dict[str, Any] = {"expert_model_parallel_size": 8.0, "overlapped_experts": 0.0}
    plain, flex = (step_time(job("mixtral_8x7b", flex_dispatcher=on, **one), shipped()) for on in (0.0, 1.0))
    assert 0.3 * plain.expert_parallel < flex.expert_parallel < 0.9 * 1.875 / 2 * plain.expert_parallel


def test_a_host_that_waits_for_how_many_tokens_each_expert_got_is_not_ahead() -> None:
    """Where products of experts cost it nothing, that alone is the difference to padded experts."""
    free = {name: Value(1e-12, 0.0, None) for name in ("launch_expert", "launch_expert_scales")}
    known = msgspec.structs.replace(shipped(), values={**shipped().values, **free})
    one: dict[str, Any] = {"expert_model_parallel_size": 8.0, "cuda_graphs": 0.0, "overlapped_experts": 0.0}
    waits, ahead = (step_time(job("mixtral_8x7b", padded_experts=on, **one), known) for on in (0.0, 1.0))
    assert waits.launches > 3 * ahead.launches
    assert waits.gemm == ahead.gemm


@pytest.mark.parametrize(("precision", "less"), [("bf16", False), ("fp8", True), ("mxfp8", True)])
def test_a_host_quantises_what_each_expert_gets(precision: str, less: bool) -> None:
    free = {"launch_expert_scales": Value(1e-12, 0.0, None)}
    known = msgspec.structs.replace(shipped(), values={**shipped().values, **free})
    one: dict[str, Any] = {"expert_model_parallel_size": 8.0, "cuda_graphs": 0.0, "precision": precision}
    some = job("qwen3_30b_a3b", "b200", **one)
    assert (step_time(some, known).launches < 0.9 * step_time(some, shipped()).launches) == less


def test_a_token_on_a_cpu_goes_to_each_of_its_experts() -> None:
    assert shipped_for(["cpu"]).of("flex_unknown") == 0 < shipped().of("flex_unknown")


def test_heads_exchanged_over_context_leave_attention_whole_sequences() -> None:
    cut: dict[str, Any] = {"context_parallel_size": 8.0, "data_parallel_size": 16.0, "seq_length": 8192.0}
    ring, heads = (step_time(job(gpu="gb200", cp_a2a=on, **cut), shipped()) for on in (0.0, 1.0))
    assert heads.attention < 0.85 * ring.attention
    assert 0.3 * ring.context_parallel < heads.context_parallel < 3 * ring.context_parallel
    assert heads.gemm == ring.gemm
    whole = [step_time(job(cp_a2a=on), shipped()).total for on in (0.0, 1.0)]
    assert whole[0] == whole[1]


def test_a_step_of_adapters_has_less_overhead() -> None:
    every, adapters = (step_time(job(trained=kind), shipped()) for kind in ("pretraining", "lora"))
    assert 0.2 * every.other < adapters.other < 0.9 * every.other


@pytest.mark.parametrize(
    ("column", "part", "least", "most"),
    [
        ("overlapped_tensor", "tensor_parallel", 0.3, 0.8),
        ("uncompiled", "memory_bound", 1.5, 5.0),
        ("fp8_by_rows", "memory_bound", 1.5, 5.0),
    ],
)
def test_how_torchtitan_ran_decides_the_part_that_it_changes(column: str, part: str, least: float, most: float) -> None:
    one: dict[str, Any] = {"tensor_model_parallel_size": 8.0, "data_parallel_size": 16.0, "precision": "fp8"}
    one |= {"stack": "torchtitan-2025-06", "gradient_bytes": 0.0}  # what adding those up takes is the same in both
    plain, other = (step_time(job(**{**one, column: on}), shipped()) for on in (0.0, 1.0))
    assert least * getattr(plain, part) < getattr(other, part) < most * getattr(plain, part)
    same = [name for name in ("gemm", "attention", "memory_bound", "tensor_parallel") if name != part]
    assert all(getattr(plain, name) == getattr(other, name) for name in same)


@pytest.mark.parametrize(("gpu", "slower"), [("h100", True), ("h200", True), ("a100", False), ("b200", False)])
def test_attention_of_ampere_is_slow_on_hopper_alone(gpu: str, slower: bool) -> None:
    """torch's own attention reached 329 TFLOP/s of cuDNN's 631 on an H100 (pytorch/pytorch#142132)."""
    stacks = ("torchtitan-2025-06", "torchtitan-2026-01")
    old, new = (step_time(job(gpu=gpu, stack=stack, seq_length=131072.0), shipped()).attention for stack in stacks)
    before, after = (offset_of(shipped(), cases_of(job(gpu=gpu, stack=stack)).distinct[0]) for stack in stacks)
    plain = new * before / after
    assert old == pytest.approx(plain / 0.55, rel=0.1) if slower else old == pytest.approx(plain)


@pytest.mark.parametrize(("gpu", "least"), [("a100", 1.3), ("h100", 1.0)])
def test_the_first_flash_attention_is_slow_on_any_gpu(gpu: str, least: float) -> None:
    """On an A100 FlashAttention 2 is 1.3 to 2.5 times as fast as the kernel in Triton (Dao 2023, arXiv 2307.08691);
    on Hopper the published runs of both took about as long."""
    stacks = ("llm_foundry-2023", "llm_foundry-2024-01")
    cases = [job(gpu=gpu, stack=stack, seq_length=65536.0) for stack in stacks]
    first, second = (
        step_time(one, shipped()).attention / offset_of(shipped(), cases_of(one).distinct[0]) for one in cases
    )
    assert least < first / second < 2.5


def test_attention_of_no_one_kernel_multiplies_all_and_moves_its_scores() -> None:
    """Twice the causal products at most, and four times as many scores of twice the sequence."""
    sequences, known = (2048.0, 4096.0), priors(shipped())

    def parts(stack: str) -> list[Parts]:
        cut: dict[str, Any] = {"gpu": "a100", "stack": stack, "tensor_model_parallel_size": 8.0}
        return [step_time(job(seq_length=tokens, **cut), known) for tokens in sequences]

    fused, unfused = parts("nobody"), parts("megatron_lm-2022")
    assert all(1.8 < own.attention / one.attention < 2.0 for own, one in zip(unfused, fused, strict=True))
    short, long = (float(own.memory_bound[0] - one.memory_bound[0]) for own, one in zip(unfused, fused, strict=True))
    assert long == pytest.approx(4 * short)
    assert short > 0.02 * float(unfused[0].total[0])


def test_each_micro_batch_adds_its_gradients_to_those_before() -> None:
    """Twice as many bytes in fp32 as in bf16 are hidden less, half as many micro-batches of twice the rows more; stages
    share them, and neither frozen weights nor the shards of FSDP have any, but those in a pipeline."""

    def seconds(**columns: Any) -> float:
        sizes = columns.pop("gradient_bytes", 2.0), 0.0
        added, free = (step_time(job(gradient_bytes=size, **columns), shipped()).memory_bound[0] for size in sizes)
        return float(added - free)

    once = seconds()
    assert once > 0
    assert 2 * once < seconds(gradient_bytes=4.0) < 4 * once
    assert once / 4 < seconds(micro_batch_size=2.0) < once / 2
    assert seconds(pipeline_model_parallel_size=4.0) == pytest.approx(once / 4)
    assert seconds(trained="lora") == seconds(fsdp=1.0) == 0
    assert seconds(fsdp=1.0, pipeline_model_parallel_size=4.0) == pytest.approx(once / 4)


@pytest.mark.parametrize(("rows", "longer"), [(2048.0, 0.15), (4096.0, 0.08), (16384.0, 0.0)])
def test_products_hide_more_of_the_gradients_the_more_rows_they_have(rows: float, longer: float) -> None:
    """By so much longer took a B200's products in bf16 that add to gradients in fp32
    (MooreThreads/SimuMax@4dcaae5 configs/system/b200_bf16_ceperm.json)."""
    one = job(gpu="b200", micro_batch_size=rows / 4096.0)
    maker, wide = _Maker(one, priors(shipped()), cases_of(one)), np.asarray(8192.0)
    product = maker.matmul(np.asarray(rows), wide, wide)
    assert float(maker.added(product, wide * wide) / product) == pytest.approx(longer, abs=0.03)


@pytest.mark.parametrize(("gpu", "as_fast"), [("h100", True), ("cpu", False)])
def test_slow_software_sends_to_stages_replicas_and_experts_as_fast(gpu: str, as_fast: bool) -> None:
    """On a CPU, which computes nothing meanwhile, the processors send. A slow machine does all slower."""
    one: dict[str, Any] = {"pipeline_model_parallel_size": 4.0, "expert_model_parallel_size": 8.0, "cuda_graphs": 1.0}
    jobs = replace(job("qwen3_30b_a3b", **one), hardware=np.asarray(gpu))
    plain, slow = (step_time(jobs, shipped(), slower=factor) for factor in (1.0, 2.0))
    assert slow.gemm == pytest.approx(2 * plain.gemm)
    for name in ("expert_parallel", "pipeline_sends"):
        assert getattr(slow, name) == pytest.approx(getattr(plain, name) * (1.0 if as_fast else 2.0))
    assert (slow.data_parallel < 2 * plain.data_parallel) == as_fast
    assert step_time(jobs, shipped(), whole=2.0).total == pytest.approx(2 * plain.total)


def test_the_product_of_one_expert_is_no_grouped_one() -> None:
    slow = {"grouped": Value(3.0, 0.0, None), "grouped_rows": Value(500.0, 0.0, None)}
    known = msgspec.structs.replace(shipped(), values={**shipped().values, **slow})
    for ranks, alike in ((8.0, True), (4.0, False)):
        some = job("mixtral_8x7b", expert_model_parallel_size=ranks)
        assert (step_time(some, known).gemm == step_time(some, shipped()).gemm) == alike


def test_what_a_domain_gets_once_goes_on_over_its_links() -> None:
    """A token of 16 ranks in two domains crosses the network once and goes to six or seven ranks."""
    one: dict[str, Any] = {"expert_model_parallel_size": 16.0, "overlapped_experts": 0.0, "flex_dispatcher": 1.0}
    some = job("qwen3_30b_a3b", **one)
    both, network, links = (
        float(step_time(replace(some, **columns), shipped()).expert_parallel[0])
        for columns in ({}, {"link_bandwidth": np.asarray(1e18)}, {"nic_bandwidth": np.asarray(1e18)})
    )
    assert 0.3 < (both - network) / (both - links) < 1.0


def test_ring_attention_puts_its_steps_together() -> None:
    """More ranks of a ring scale and add up more often; heads that are exchanged have nothing to add."""
    cut: dict[str, Any] = {"seq_length": 65536.0, "data_parallel_size": 16.0, "gradient_bytes": 0.0}
    two, eight, heads = (
        float(step_time(job(context_parallel_size=cp, cp_a2a=on, **cut), shipped()).memory_bound[0] * cp)
        for cp, on in ((2.0, 0.0), (8.0, 0.0), (8.0, 1.0))
    )
    assert heads < two < eight
    whole = float(step_time(job(context_parallel_size=8.0, **cut), shipped()).total[0])
    assert 0.005 * whole < (eight - heads) / 8 < 0.1 * whole


@pytest.mark.parametrize(
    ("model", "precision", "least", "most"),
    [("llama31_70b", "bf16", 0.002, 0.03), ("llama31_70b", "fp8", 0.01, 0.1), ("qwen3_30b_a3b", "bf16", 0.01, 0.1)],
)
def test_gradients_that_are_not_hidden_are_a_small_share_of_a_step(
    model: str, precision: str, least: float, most: float
) -> None:
    one: dict[str, Any] = {"tensor_model_parallel_size": 4.0, "data_parallel_size": 32.0, "precision": precision}
    one |= {"expert_model_parallel_size": 8.0} if model == "qwen3_30b_a3b" else {}
    with_, without = (step_time(job(model, gradient_bytes=size, **one), shipped()) for size in (2.0, 0.0))
    share = (with_.memory_bound - without.memory_bound) / with_.total
    assert least < float(share[0]) < most


@pytest.mark.parametrize(("micro", "least", "most"), [(1.0, 1.6, 5.0), (32.0, 1.0, 1.3)])
def test_experts_with_few_tokens_take_longer_for_each(micro: float, least: float, most: float) -> None:
    """Grouped products of 154 rows reach 0.2 of a B200's peak, those of 9,832 rows 0.475
    (MooreThreads/SimuMax@4dcaae5 configs/system/b200_bf16_ceperm.json)."""
    one: dict[str, Any] = {"gpu": "b200", "expert_model_parallel_size": 8.0, "global_batch_size": 4096.0}
    one |= {"seq_length": 256.0, "cuda_graphs": 1.0}
    some, many_ = (
        float(step_time(job("qwen3_30b_a3b", micro_batch_size=size, **one), shipped()).gemm[0])
        for size in (micro, 256.0)
    )
    assert least * many_ < some < most * many_


@pytest.mark.parametrize(("stack", "share"), [("nemo-25.04", 0.5), ("mlperf-5.1", 0.25)])
def test_adapters_gather_again_what_tensor_parallelism_cut(stack: str, share: float) -> None:
    """Two of a layer's eight collectives for each product whose input is cut and has one; MLPerf adapts attention."""
    one: dict[str, Any] = {"tensor_model_parallel_size": 4.0, "data_parallel_size": 32.0, "stack": stack}
    plain, adapted = (job(trained=kind, **one) for kind in ("pretraining", "lora"))
    seconds = [
        float(step_time(each, shipped()).tensor_parallel[0]) / offset_of(shipped(), cases_of(each).distinct[0])
        for each in (plain, adapted)
    ]
    assert seconds[1] == pytest.approx((1 + share) * seconds[0])


def test_attention_stops_at_the_ends_of_packed_samples() -> None:
    whole, packed, long = (step_time(job(packed_tokens=size), shipped()) for size in (0.0, 190.0, 1e6))
    assert packed.attention < 0.4 * whole.attention
    assert packed.gemm == whole.gemm
    assert long.attention == whole.attention


def test_a_host_with_adapters_is_busier_where_layers_are_split_and_less_with_graphs() -> None:
    one: dict[str, Any] = {"trained": "lora", "seq_length": 512.0, "precision": "fp8", "cuda_graphs": 0.0}
    split: dict[str, Any] = {
        "tensor_model_parallel_size": 4.0,
        "context_parallel_size": 2.0,
        "data_parallel_size": 16.0,
    }
    plain, both, graphs = (
        float(step_time(job(**one | more), shipped()).launches[0]) for more in ({}, split, split | {"cuda_graphs": 1.0})
    )
    assert plain > 0
    assert both > 1.5 * plain
    assert graphs < 0.1 * both


def test_weights_in_fp8_are_gathered_as_such_and_those_of_blocks_in_bf16() -> None:
    def seconds(precision: str, rest: float) -> float:
        one = job(gpu="gb200", precision=precision, fp8_params=rest, gradient_bytes=2.0, global_batch_size=128.0)
        return float(step_time(one, shipped()).data_parallel[0])

    assert seconds("fp8", 1.0) == pytest.approx(seconds("fp8", 0.0) * 3 / 4, rel=0.05)
    assert seconds("mxfp8", 1.0) == seconds("mxfp8", 0.0)


def test_stages_in_one_domain_send_over_its_links() -> None:
    """Three in four stages of 16 GPUs send within a domain of 72; none where a stage is as large as it."""
    one: dict[str, Any] = {"tensor_model_parallel_size": 4.0, "pipeline_model_parallel_size": 16.0}
    near, far = (
        step_time(job("llama31_405b", "gb200", data_parallel_size=dp, global_batch_size=384 * dp, **one), shipped())
        for dp in (4.0, 32.0)
    )
    assert near.pipeline_sends < 0.5 * far.pipeline_sends


def test_the_bias_of_experts_is_added_one_expert_after_the_other() -> None:
    """As Megatron-Core does it for GPT-OSS, in fp32; a dense model adds its own within the product."""
    one: dict[str, Any] = {"expert_model_parallel_size": 8.0}
    plain, biased = (step_time(job("gpt_oss_120b", add_bias_linear=on, **one), shipped()) for on in (0.0, 1.0))
    assert biased.memory_bound > 1.2 * plain.memory_bound
    dense = [step_time(job(add_bias_linear=on), shipped()).total for on in (0.0, 1.0)]
    assert dense[0] == dense[1]


def test_parts_are_not_negative_and_add_up() -> None:
    jobs = many()
    parts = step_time(jobs, shipped())
    each = np.array([getattr(parts, name) for name in PARTS])
    assert np.isfinite(each).all()
    assert (each >= 0).all(), [name for name, part in zip(PARTS, each, strict=True) if (part < 0).any()]
    np.testing.assert_allclose(each.sum(axis=0), parts.total, rtol=1e-12)


def test_many_at_once_are_the_same_as_one_by_one() -> None:
    jobs = many(40)
    together = step_time(jobs, shipped()).total
    alone = [step_time(jobs.take(i), shipped()).total[0] for i in range(40)]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_jobs_of_many_models_are_the_same_in_any_number() -> None:
    """More than a chunk of them, whose cases are worked out once for all."""
    jobs = many(40)
    few = predict(jobs)
    index = np.random.default_rng(0).integers(0, 40, 2 * CHUNK + 100)
    lots = predict(jobs.take(index))
    for name in ("step_time_s", "low_95_s", "high_80_s", "rows"):
        np.testing.assert_allclose(getattr(lots, name), getattr(few, name)[index], rtol=1e-12)
    assert lots.classes == tuple(few.classes[i] for i in index)


@pytest.mark.parametrize(
    "rate",
    ["link_bandwidth", "nic_bandwidth", "memory_bandwidth", "peak_flops", "peak_bf16_flops"],
)
def test_a_faster_machine_never_slows_a_step(rate: str) -> None:
    jobs = many()
    slow = step_time(jobs, shipped()).total
    fast = step_time(replace(jobs, **{rate: getattr(jobs, rate) * 1.5}), shipped()).total
    assert (fast <= slow * (1 + 1e-9)).all()


def test_a_larger_batch_never_takes_less_time() -> None:
    jobs = many()
    small = step_time(jobs, shipped()).total
    large = step_time(replace(jobs, global_batch_size=jobs.global_batch_size * 2), shipped()).total
    assert (large >= small).all()


def test_intervals_hold_the_prediction_and_a_gpu_that_nobody_measured_has_wider_ones() -> None:
    known, other = predict(job(stack="nemo-25.04.02")), predict(job(gpu="mi250x"))
    assert known.low_95_s < known.low_80_s < known.step_time_s < known.high_80_s < known.high_95_s
    assert other.high_95_s / other.step_time_s > known.high_95_s / known.step_time_s
    assert any("prior" in note for note in other.notes[0])
    assert not known.notes[0]
