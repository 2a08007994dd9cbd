"""Memory of a GPU: the parameters are those of conf.shapes, the parts behave as they must, and measured runs agree."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from conf.compose import choices
from conf.load import model_named
from conf.shapes import Sizes, per_stage
from estimate.jobs import GB
from estimate.measured import read_runs
from estimate.memory import ASSUMED, Memory, memory
from estimate.parameters import layers_on, parameters
from tests.estimate.jobs import jobs
from tests.estimate.test_step_time import job

TP, PP = "tensor_model_parallel_size", "pipeline_model_parallel_size"
DP, CP, EP = "data_parallel_size", "context_parallel_size", "expert_model_parallel_size"
MODELS = [name for name in choices("model") if model_named(name)]
DENSE, LATENT, EXPERTS = "llama31_70b", "deepseek_v3", "mixtral_8x7b"


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_model_that_is_built(name: str) -> None:
    model, checked = model_named(name), 0
    assert model is not None
    ends = ((0, 0), (1, 1), (0, 1), (1, 0))
    for tp, pp, ep, vp, etp, (first, last) in product((1, 2, 8), (1, 2, 4, 7), (1, 2, 8), (1, 2), (None, 1), ends):
        try:
            expected = per_stage(model, Sizes(tp, pp, ep, vp, etp=etp, first=first, last=last))
        except ValueError:
            continue
        sizes = {TP: tp, PP: pp, EP: ep, "virtual_pipeline_model_parallel_size": vp, "embedding_counts": first}
        job = jobs(model, **sizes, expert_tensor_parallel_size=etp or tp)
        stage = np.arange(float(pp))[:, None]
        found = parameters(job, stage, layers_on(job, stage))
        assert [int(n) for n in found.dense[:, 0]] == [rank.dense for rank in expected], sizes
        assert [int(n) for n in np.broadcast_to(found.experts, (pp, 1))[:, 0]] == [rank.experts for rank in expected]
        checked += 1
    assert checked


@pytest.mark.parametrize(("layers", "pp", "vp"), [(126, 16, 8), (61, 16, 1), (94, 8, 4), (61, 8, 2), (5, 3, 1)])
def test_no_layer_is_lost_where_stages_are_uneven(layers: int, pp: int, vp: int) -> None:
    job = jobs(LATENT, num_layers=layers, **{PP: pp}, virtual_pipeline_model_parallel_size=vp)
    on = layers_on(job, np.arange(float(pp))[:, None])
    assert (on.dense.sum(), on.routed.sum(), on.mtp.sum()) == (3, layers - 3 + 1, 1)
    assert (on.dense >= 0).all() and (on.routed >= 0).all()


@pytest.mark.parametrize("model", [DENSE, LATENT, EXPERTS])
@pytest.mark.parametrize("size", [DP, TP])
def test_more_gpus_never_need_more_memory(model: str, size: str) -> None:
    switches = {"sequence_parallel": 1} if size == TP else {}
    several = jobs(model, **({PP: 4} | {size: np.array([1, 2, 4, 8])} | switches))
    found = memory(several)
    assert (np.diff(found.allocated.max(axis=0)) <= 0).all()
    assert size == TP or (np.diff(found.on_device.max(axis=0)) <= 0).all()  # those of TP talk to each other, too


@pytest.mark.parametrize("model", [DENSE, LATENT, EXPERTS])
@pytest.mark.parametrize("vp", [1, 2])
def test_recompute_never_needs_more(model: str, vp: int) -> None:
    share = np.linspace(0, 1, 11)
    m = memory(jobs(model, recompute_layers=share, **{PP: 4}, virtual_pipeline_model_parallel_size=vp))
    assert (np.diff(m.allocated.max(axis=0)) <= 0).all()
    without = memory(jobs(model)).allocated
    for name in ("core_attn", "mlp", "moe", "layernorm", "moe_act", "mla_up_proj"):
        assert (memory(jobs(model, **{f"again_{name}": 1})).allocated <= without).all(), name


def test_a_stage_keeps_the_micro_batches_between_itself_and_the_end() -> None:
    plain, interleaved = (
        memory(jobs(DENSE, **{PP: 8}, virtual_pipeline_model_parallel_size=vp)).attention[:, 0] for vp in (1, 2)
    )
    assert plain[0] == 8 * plain[2] and plain[1] == 7 * plain[2]
    assert interleaved[0] == pytest.approx(plain[0] * (14 + 8 + 1) / 16)
    few = memory(jobs(DENSE, **{PP: 8}, global_batch_size=2)).attention[:, 0]
    assert few[0] == few[1] == 2 * few[2]


def test_parts_add_up_and_only_some_are_assumed() -> None:
    m = memory(jobs(LATENT, **{PP: 4, EP: 8, DP: 16}))
    parts = {field.name: getattr(m, field.name) for field in fields(Memory)}
    assert all((part >= 0).all() and np.isfinite(part).all() for part in parts.values())
    assert m.on_device == pytest.approx(sum(parts.values()))
    assert m.allocated == pytest.approx(sum(part for name, part in parts.items() if name not in ASSUMED))
    assert sum(m.parts(0).values()) == pytest.approx(m.on_device.max())


def test_a_loss_in_fp32_keeps_a_copy_of_the_logits_and_one_in_place_none() -> None:
    own = jobs("llama31_8b", recompute_layers=1, micro_batch_size=2, fp32_logits=np.array([0, 1]))
    in_place, copied = memory(own).loss[2]
    assert copied - in_place == pytest.approx(2 * 4096 * 128_256 * 4)
    in_fp32 = replace(own, precision=np.array("fp32"))
    assert memory(in_fp32).loss[2][0] == memory(in_fp32).loss[2][1]


@pytest.mark.parametrize("stack", ["fsdp2", "hf"])
def test_gradients_that_are_shared_behind_the_last_micro_batch_are_whole(stack: str) -> None:
    """4 bytes of each parameter of the model, as torch keeps them (unsharded_accumulated_grad)."""
    batches = {"fsdp": 1, "data_parallel_size": 8, "stack": stack, "global_batch_size": np.array([8, 16])}
    one, two = memory(jobs("llama31_8b", **batches)).gathered[0]
    assert two - one == pytest.approx(4 * 8.03e9, rel=0.001)


def test_attention_that_is_not_fused_keeps_its_scores() -> None:
    """Softmax and a mask: with 32 heads 3 bytes of each of 4,096² queries and keys, of every layer."""
    fused, unfused = memory(jobs("llama31_8b", unfused_attention=np.array([0, 1]))).attention[0]
    assert unfused - fused == pytest.approx(32 * 32 * 4096**2 * 3)


def test_one_forward_pass_keeps_nothing_for_a_backward_pass() -> None:
    job = jobs(DENSE, **{TP: 8, DP: 4})
    trained, passed = memory(job), memory(job, training=False)
    assert (passed.weights == trained.weights).all()
    assert not passed.gradients.any() and not passed.optimizer.any() and not passed.attention.any()


@pytest.mark.parametrize(
    ("model", "layers", "sizes", "measured_gib"),
    [
        (DENSE, 12, {PP: 2, DP: 4}, (66.55, 62.97)),
        (DENSE, 12, {TP: 2, DP: 4, "sequence_parallel": 1}, (60.68, 60.68)),
        (DENSE, 12, {TP: 8, "sequence_parallel": 1}, (28.29, 28.29)),
        ("llama31_405b", 4, {PP: 2, DP: 4}, (86.61, 87.08)),
        ("llama31_405b", 4, {TP: 4, DP: 2, "sequence_parallel": 1}, (52.89, 52.89)),
    ],
)
def test_what_torch_allocated_on_eight_b200_is_predicted(
    model: str, layers: int, sizes: dict[str, int], measured_gib: tuple[float, float]
) -> None:
    """max_memory_allocated of the first and the last stage: MooreThreads/SimuMax@4dcaae5,
    docs/b200/b200_release_v1.2_summary.json, peak_memory_by_rank_mb."""
    allocated = memory(jobs(model, "b200", num_layers=layers, dense_layers=layers, **sizes)).allocated[[0, 2], 0]
    assert allocated == pytest.approx(np.array(measured_gib) * 2**30, rel=0.012)


@pytest.mark.parametrize(("stack", "times"), [("torchtitan-2024-12", 4.0), ("llm_foundry-2023", 1.9)])
def test_stacks_of_torchs_own_modules_keep_fp32_parameters_in_shards(stack: str, times: float) -> None:
    """By their names as tables of runs are read (estimate.cells.stack). llm-foundry's loss is one kernel."""
    sharded = {DP: 8, "fsdp": 1, "gradient_bytes": 4}
    ours, theirs = (memory(jobs("llama31_8b", stack=name, **sharded)) for name in ("megatron_lm-2022", stack))
    assert theirs.weights[0, 0] == 2 * ours.weights[0, 0]
    assert times * ours.loss.max() < theirs.loss.max() < 2 * times * ours.loss.max()


BY_OPERATOR = {"again_by_operator": 1, "micro_batch_size": 2, "seq_length": 8192}
WHOLE = {"recompute_layers": 1, "seq_length": 32768}


@pytest.mark.parametrize(
    ("stack", "different", "reserved_gib", "within"),
    [
        ("torchtitan-2024-12", BY_OPERATOR | {DP: 8}, 77.0, 0.03),
        ("torchtitan-2024-12", BY_OPERATOR | {DP: 128}, 62.0, 0.03),
        ("torchtitan-2024-12", WHOLE | {DP: 8}, 83.9, 0.04),
        ("torchtitan-2024-12", WHOLE | {"seq_length": 65536, DP: 4, CP: 2}, 84.2, 0.04),
        ("torchtitan-2025-06", BY_OPERATOR | {DP: 32}, 47.96, 0.04),
        ("torchtitan-2025-06", BY_OPERATOR | {DP: 64}, 46.97, 0.04),
    ],
)
def test_what_torchtitans_allocator_reserved_is_predicted(
    stack: str, different: dict[str, float], reserved_gib: float, within: float
) -> None:
    """Llama 3.1 8B under FSDP2 and torch.compile, on H100 and, in 2025, on H200: pytorch/torchtitan@31a17bf
    benchmarks/llama3_h100_202412_torchtitan.md, benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md."""
    found = memory(jobs("llama31_8b", stack=stack, fsdp=1, gradient_bytes=4, **different))
    assert found.reserved.max() == pytest.approx(reserved_gib * 2**30, rel=within)


def test_published_runs_fit_the_gpus_that_they_ran_on() -> None:
    """21 of 765 are above, most of MPT's, whose micro-batches were chosen to fill a GPU."""
    jobs = read_runs().jobs
    share = np.max(memory(jobs).on_device, axis=0) / jobs.memory_bytes
    assert np.mean(share > 1) < 0.03
    assert np.sum(share > 1.05) <= 4


def test_frozen_layers_keep_no_inputs_and_one_copy_in_fp8() -> None:
    one: dict[str, Any] = {"precision": "fp8", "fp8_params": 1.0, "trained": "lora"}
    whole, frozen, small = (memory(job(**one | more)) for more in ({"trained": "sft"}, {}, {"fp8_activations": 1.0}))
    assert np.max(frozen.weights) == pytest.approx(np.max(whole.weights) / 2, rel=0.05)
    width, tokens = 28672 * 80, 4096
    assert np.max(whole.mlp - frozen.mlp) == pytest.approx(tokens * width, rel=0.01)
    assert np.max(frozen.mlp - small.mlp) == pytest.approx(2 * tokens * width, rel=0.01)


def test_units_are_bytes() -> None:
    m = memory(jobs("llama31_8b"))
    assert m.weights[0, 0] == 2 * 8_030_261_248
    assert m.allocated.max() / GB == pytest.approx(18 * 8.03, rel=0.3)
