"""Memory of one GPU in a training step, in closed form and with no fitted constant, for many jobs at once.

Sources of the formulas: model states as in Megatron-Core's docs/source/api-guide/dist_optimizer.md; activations by
following which tensors autograd keeps of TransformerEngine's and Megatron-Core's modules, in the manner of Korthikanti
et al. 2022 (arXiv 2205.05198), Table 2, with flash attention, fused norms and no dropout; micro-batches in flight by
core/pipeline_parallel/schedules.py. Tokens are taken to be spread evenly over experts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from estimate.cells import named
from estimate.jobs import Jobs, Numbers
from estimate.parameters import Layers, fc1_width, layers_on, matrices, parameters, stages

FP32 = 4
CONTEXT_BYTES = 0.5e9  # CUDA or HIP context with the modules of the kernels
COMMUNICATOR_BYTES = 0.3e9  # NCCL's or RCCL's channels of one group, both directions
FRAGMENTED = 0.05  # of what is allocated: torch's caching allocator holds more than tensors need
ADAPTER_RANK = 16
_SAVED_INPUT = {"fp8": 1.0, "mxfp8": 33 / 32, "nvfp4": 9 / 16, "fp32": 4.0}
"""Bytes an element of a matrix product's input that is kept for the weight's gradient; scales of blocks among them."""
_COPIES = {"fp8": 2.0, "mxfp8": 2 * 33 / 32, "nvfp4": 2 * 9 / 16}
"""Bytes a parameter of the quantised weights that TransformerEngine keeps through a step, by rows and by columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one GPU at its fullest moment of a step, by part, each of shape (3, n): the first, a middle and the last
    pipeline stage. weights: with quantised copies; gradients: those that accumulate. checkpoints: inputs of layers that
    are recomputed. attention, mlp, experts, norms: kept activations, norms with the residual stream. loss: logits
    and what their gradients need. backward: what the pass back through one layer needs beside. stand_ins: the empty
    gradients that TransformerEngine hands to autograd, a weight shape each. gathered: whole weights and their gradients
    of FSDP, and Megatron's buffer of gathered activations.

    context, communicators and fragmentation are assumed: a GPU shows them beyond what torch allocates."""

    weights: Numbers
    gradients: Numbers
    optimizer: Numbers
    checkpoints: Numbers
    norms: Numbers
    attention: Numbers
    mlp: Numbers
    experts: Numbers
    loss: Numbers
    backward: Numbers
    stand_ins: Numbers
    gathered: Numbers
    context: Numbers
    communicators: Numbers
    fragmentation: Numbers

    @property
    def allocated(self) -> Numbers:
        """Return the bytes that torch has in tensors at the most, shape (3, n)."""
        return self._sum(_ALLOCATED)

    @property
    def reserved(self) -> Numbers:
        """Return the bytes that torch's allocator holds, shape (3, n): with what is assumed of its gaps."""
        return self.allocated + self.fragmentation

    @property
    def on_device(self) -> Numbers:
        """Return the bytes that the device shows, shape (3, n): with what is assumed."""
        return self.allocated + self._sum(ASSUMED)

    @property
    def fullest(self) -> Numbers:
        """Return which of the three stages is the fullest, shape (n,)."""
        return self.allocated.argmax(axis=0)  # type: ignore[no-any-return]

    def parts(self, job: int) -> dict[str, float]:
        """Return each part of one job on its fullest stage."""
        stage = self.fullest[job]
        return {field.name: float(getattr(self, field.name)[stage, job]) for field in fields(self)}

    def _sum(self, names: tuple[str, ...]) -> Numbers:
        return reduce(np.add, [getattr(self, name) for name in names])


ASSUMED = ("context", "communicators", "fragmentation")
_ALLOCATED = tuple(field.name for field in fields(Memory) if field.name not in ASSUMED)
STATES = ("weights", "gradients", "optimizer")
ACTIVATIONS = ("checkpoints", "norms", "attention", "mlp", "experts")


def memory(jobs: Jobs, training: bool = True) -> Memory:
    """Return the memory of `jobs`. training=False: of the forward pass alone, without a cache of keys and values."""
    stage = stages(jobs)
    at = _At(stage, layers_on(jobs, stage), stage == jobs.pipeline_model_parallel_size - 1)
    parts: dict[str, Any] = _states(jobs, at)
    kept: dict[str, Any] = dict.fromkeys(("gradients", "optimizer", *ACTIVATIONS), 0.0)
    again: dict[str, Any] = {}
    if training:
        kept, again = _kept(jobs, at)
    of_one = sum(kept[name] for name in ACTIVATIONS) / np.maximum(in_flight(jobs, at.stage), 1)
    moment, in_layer = _moment(jobs, at, training, of_one, sum(again.values()))
    parts |= kept | {name: kept[name] + in_layer * more for name, more in again.items()} | moment
    parts["gathered"] = _gathered(jobs, at)
    allocated, on_gpu = reduce(np.add, parts.values()), jobs.hardware != "cpu"
    parts |= {
        "context": CONTEXT_BYTES * on_gpu,
        "communicators": COMMUNICATOR_BYTES * _groups(jobs) * on_gpu,
        "fragmentation": FRAGMENTED * allocated * on_gpu,
    }
    shape = allocated.shape
    return Memory(**{name: np.broadcast_to(np.asarray(part, float), shape) for name, part in parts.items()})


def in_flight(jobs: Jobs, stage: Numbers) -> Numbers:
    """Return how many micro-batches of all its layers a stage keeps at the most: of 1F1B the stages from here to the
    end, of the interleaved schedule its warm-up and one, in virtual stages (core/pipeline_parallel/schedules.py,
    get_pp_rank_microbatches)."""
    pp, vp = jobs.pipeline_model_parallel_size, np.maximum(jobs.virtual_pipeline_model_parallel_size, 1)
    interleaved = np.minimum((pp - stage - 1) * 2 + (vp - 1) * pp + 1, jobs.num_micro_batches * vp) / vp
    return np.where(vp > 1, interleaved, np.minimum(pp - stage, jobs.num_micro_batches))


class _At(NamedTuple):
    """The pipeline stages that are looked at, their layers, and which is the last."""

    stage: Numbers
    layers: Layers
    last: Numbers


class _Layer(NamedTuple):
    """Bytes a token that the backward pass needs of one layer's parts."""

    norms: Numbers
    attention: Numbers
    mlp: Numbers
    experts: Numbers


def _states(jobs: Jobs, at: _At) -> dict[str, Numbers]:
    """Return weights, gradients and the optimizer's states. The distributed optimizer cuts those over DP × CP, an
    expert's over the ranks that share it; FSDP cuts all three; each of as many replicas has all shards."""
    own, element = parameters(jobs, at.stage, at.layers), _element(jobs)
    ranks, experts_ranks = (np.maximum(n / np.maximum(jobs.data_parallel_replicas, 1), 1) for n in _replicas(jobs))
    cut = np.maximum(jobs.distributed_optimizer, jobs.fsdp) > 0
    shards, expert_shards = np.where(cut, ranks, 1), np.where(cut, experts_ranks, 1)
    resting, expert_resting = np.where(jobs.fsdp > 0, ranks, 1), np.where(jobs.fsdp > 0, experts_ranks, 1)
    copies = np.where(jobs.fsdp > 0, 0, _by_precision(jobs, _COPIES, 0.0))
    once = (jobs.transposes_fp8 == 0) | ((jobs.trained == "lora") & (jobs.fp8_params > 0))
    copies = copies * np.where((jobs.precision == "fp8") & once, 0.5, 1)
    product = element * (1 - jobs.fp8_params * (copies > 0)) + copies
    # torch's FSDP keeps fp32 parameters, which the optimizer steps, and no copy beside them.
    moved = np.where(_of_torch(jobs) & (jobs.fsdp > 0) & (element < FP32), FP32 - element, 0)
    plain = (own.vocabulary + own.rest) * element + own.matrices * product + own.dense * moved
    weights = plain / resting + own.experts * (product + moved) / expert_resting
    kept = (jobs.optimizer_bytes - np.where(moved > 0, FP32, 0)) * (own.dense / shards + own.experts / expert_shards)
    share = np.where(jobs.trained == "lora", _adapters(jobs, at) / (own.dense + own.experts), 1)
    gradients = jobs.gradient_bytes * (own.dense / resting + own.experts / expert_resting)
    return {"weights": weights, "gradients": gradients * share, "optimizer": kept * share}


def _adapters(jobs: Jobs, at: _At) -> Numbers:
    """Return the parameters of LoRA's adapters on queries, keys, values and the projection: of rank 16, as MLPerf has
    it (training_policies, llama2_70b_lora)."""
    wide = 2 * jobs.hidden_size + (jobs.num_attention_heads * 2 + 2 * jobs.num_query_groups) * jobs.kv_channels
    return ADAPTER_RANK * wide / jobs.tensor_model_parallel_size * at.layers.all


def _replicas(jobs: Jobs) -> tuple[Numbers, Numbers]:
    """Return the ranks that hold the same dense parameters, and those that hold the same experts."""
    ranks = jobs.data_parallel_size * jobs.context_parallel_size
    of_experts = jobs.expert_model_parallel_size * jobs.expert_tensor_parallel_size
    return ranks, np.maximum(ranks * jobs.tensor_model_parallel_size / of_experts, 1)


def _kept(jobs: Jobs, at: _At) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    """Return the activations that all micro-batches in flight keep for the backward pass, and those of a layer that is
    computed again, while that lasts."""
    dense, routed = _layer(jobs, routed=False), _layer(jobs, routed=True)
    again, tokens, count = jobs.recompute_layers, _tokens(jobs), np.maximum(at.layers.all, 1)
    flying = in_flight(jobs, at.stage)
    stays = tokens * (1 - np.clip(jobs.offloaded_layers / count, 0, 1))
    # One layer at a time is computed again, when those of its micro-batch that were not are done and gone.
    working = tokens * np.maximum((again > 0) - count * (1 - again), 0) / count
    layers = {
        name: at.layers.dense * getattr(dense, name) + at.layers.routed * getattr(routed, name)
        for name in _Layer._fields
    }
    stream = tokens * _element(jobs) * jobs.hidden_size / _sequence(jobs)
    kept = {name: stays * flying * (1 - again) * size for name, size in layers.items()}
    final = np.where(_plain(jobs), 3, 2)
    kept["norms"] = kept["norms"] + stream * (final * at.last + 6 * at.layers.mtp)
    kept["checkpoints"] = stream * flying * again * at.layers.all * stays / tokens
    if np.any(jobs.again_by_operator):
        return _by_operator(jobs, at, kept, layers)
    return kept, {name: working * size for name, size in layers.items()}


def _by_operator(
    jobs: Jobs, at: _At, kept: dict[str, Numbers], layers: dict[str, Numbers]
) -> tuple[dict[str, Numbers], dict[str, Numbers]]:
    """Return what is kept, and of the layer that is computed again, where each layer keeps its input, its attention and
    every second matrix product, which are queries, values and the first of the MLP (TorchTitan's _save_list in
    models/llama3/infra/parallelize.py); the last of the MLP, which is one more, torch.compile drops, for nothing needs
    it. In fp8 it is as much (TorchTitan's benchmarks of December 2024: 76.8 and 77.0 GiB)."""
    tokens, a, tp = _tokens(jobs), _element(jobs), jobs.tensor_model_parallel_size
    heads, groups = jobs.num_attention_heads * jobs.kv_channels, jobs.num_query_groups * jobs.kv_channels
    each = {
        "norms": a * jobs.hidden_size / _sequence(jobs) * at.layers.all,
        "attention": (a * (2 * heads + groups) + FP32 * jobs.num_attention_heads) / tp * at.layers.all,
        "mlp": a * jobs.ffn_hidden_size / tp * at.layers.dense,
        "experts": layers["experts"] / 2,
    }
    flying, by_operator = tokens * in_flight(jobs, at.stage), jobs.again_by_operator > 0
    found = kept | {name: np.where(by_operator, flying * size, kept[name]) for name, size in each.items()}
    one = tokens / np.maximum(at.layers.all, 1)
    return found, {name: np.where(by_operator, one * size, 0.0) for name, size in layers.items()}


def _layer(jobs: Jobs, routed: bool) -> _Layer:
    """Return the bytes a token of one layer: with experts or an MLP. The residual stream and the outputs of norms are
    cut by sequence parallelism, all else by TP. What a module that is computed again keeps is its input, which stands
    with the norms. Of an MLP whose weights are frozen no input is kept (TransformerEngine, module/linear.py), and what
    its activation needs may be in fp8."""
    a, q, h = _element(jobs), _saved_input(jobs), jobs.hidden_size
    s, etp, wide = _sequence(jobs), jobs.expert_tensor_parallel_size, fc1_width(jobs)
    tp = jobs.tensor_model_parallel_size
    apart = (jobs.mla > 0) | routed  # norms that are not fused with the product behind them, and can be done again
    each = np.where(_plain(jobs), 2 * a, q)  # torch's norm keeps what it has normalised, too
    first = each * h / s * (1 - jobs.again_layernorm * (jobs.mla > 0))
    second = each * h / s * (1 - jobs.again_layernorm * routed)
    attention = _attention(jobs)
    trained = np.where((jobs.trained == "lora") & ~np.asarray(routed), 0.0, 1.0)
    norms = 2 * a * h / s + first + second * trained + 2 * FP32 / s
    if not routed:
        keeps = 1 - jobs.again_mlp
        acts = np.where(jobs.fp8_activations > 0, 1.0, a) * wide
        gate = a * _eager(jobs) * (wide > 1)  # behind its activation, which a fused kernel makes again
        mlp = (acts + gate + np.where(_plain(jobs), 3 * a, q * trained)) * jobs.ffn_hidden_size / tp * keeps
        fewer = q * h / s * trained * jobs.again_mlp * ~np.asarray(apart)
        return _Layer(norms - fewer, attention, mlp, np.zeros_like(mlp))
    k, fe = jobs.moe_router_topk * etp / s, jobs.moe_ffn_hidden_size / etp
    shared = (a * wide + q) * jobs.moe_shared_expert_intermediate_size / tp
    # torch's operations one by one keep what the gate, its offset and the token's weight multiply, too.
    act = np.where(_plain(jobs), 4 * a, q) * fe * (1 - jobs.again_moe_act)
    experts = k * (q * h + a * wide * fe + act) + jobs.num_experts * (2 * FP32 + 1) / s
    keeps = 1 - jobs.again_moe
    return _Layer(norms, attention, shared * keeps, experts * keeps)


def _attention(jobs: Jobs) -> Numbers:
    """Return the bytes a token that flash attention and its projection keep: queries, keys, values, output, and a sum
    a head; of latent attention also what its low ranks are made of; and the inputs of norms of queries and keys."""
    a, q, s, tp = (
        _element(jobs),
        _saved_input(jobs),
        _sequence(jobs),
        jobs.tensor_model_parallel_size,
    )
    heads, width = jobs.num_attention_heads, jobs.kv_channels
    again = q * (q != a)  # the projection keeps a quantised copy of what attention keeps itself
    grouped = (2 * a + again) * heads * width + 2 * a * jobs.num_query_groups * width
    grouped = grouped + jobs.cp_a2a * (jobs.context_parallel_size > 1) * a * heads * width  # before and behind the way
    grouped = grouped + jobs.qk_layernorm * a * (heads + jobs.num_query_groups) * width
    channels, values = jobs.qk_head_dim + jobs.qk_pos_emb_head_dim, jobs.v_head_dim
    up = heads * a * (2 * channels + values) * (1 - jobs.again_mla_up_proj)
    down = (a + q) * (jobs.q_lora_rank + jobs.kv_lora_rank) + a * jobs.qk_pos_emb_head_dim
    latent = up + heads * (a + again) * values + down * tp / s
    grouped = np.where(_plain(jobs), _plain_attention(jobs), grouped)
    # Where attention is no one kernel: softmax and a mask of each query and key, behind it dropout's own output, which
    # only stacks of then had (Korthikanti, 4.1).
    of_score = np.where(named(jobs.stack, "unfused_attention"), 5, (a + 1) * jobs.unfused_attention)
    scores = of_score * heads * jobs.seq_length * (1 - jobs.again_core_attn)
    kept: Numbers = (np.where(jobs.mla > 0, latent, grouped) + FP32 * heads + scores) / tp
    return kept


def _plain_attention(jobs: Jobs) -> Numbers:
    """Return the bytes a token of the engine's own attention (launchers/ranks/engine_model.py), before TP cuts it: its
    keys are a view of what is rotated, its values one of the projection, which both stay. With context parallelism
    both halves of a rank's queries keep all keys and values that they see, repeated for every head, and their mask."""
    a, cp, heads, groups = _element(jobs), jobs.context_parallel_size, jobs.num_attention_heads, jobs.num_query_groups
    seen = 2 * cp + 1
    alone = a * jobs.kv_channels * (4 * heads + 3 * groups)
    mask = a * jobs.seq_length * seen / (4 * cp * jobs.micro_batch_size) * jobs.tensor_model_parallel_size
    return np.where(cp > 1, a * jobs.kv_channels * heads * (3 + seen) + mask, alone)


def _moment(jobs: Jobs, at: _At, training: bool, kept: Numbers, again: Numbers) -> tuple[dict[str, Numbers], Any]:
    """Return what the fullest moment needs beside what is kept: the output matrix with the loss on the last stage, or
    the backward pass through an MLP or the experts, with a layer that is computed again (`again` bytes), or through
    the embedding, when all that one micro-batch kept (of `kept` bytes) is gone; and the stand-ins of gradients
    (TransformerEngine, module/base.py, get_dummy_wgrad). Return also whether that moment is in a layer."""
    tokens, a, h = _tokens(jobs), _element(jobs), jobs.hidden_size
    s, tp, wide = _sequence(jobs), jobs.tensor_model_parallel_size, fc1_width(jobs)
    k, etp = jobs.moe_router_topk * jobs.expert_tensor_parallel_size / s, jobs.expert_tensor_parallel_size
    of_mlp = (at.layers.dense > 0) * _through(a, h, h / s, wide * jobs.ffn_hidden_size / tp)
    of_experts = (at.layers.routed > 0) * a * (h / s + k * (2 * h + wide * jobs.moe_ffn_hidden_size / etp))
    layer = tokens * np.maximum(of_mlp, of_experts)
    embedding = (at.stage == 0) * (jobs.vocabulary / tp + tokens / s) * h * a - kept
    fused = (training & (jobs.fsdp == 0) & (jobs.trained != "lora")) * a
    one = matrices(jobs)
    shapes = one.attention * (at.layers.all > 0) + one.mlp * (at.layers.dense > 0)
    shapes = shapes + (one.shared + one.expert) * (at.layers.routed > 0)
    loss, embedding = _loss(jobs, at, fused), embedding * training
    in_layer = layer + again >= np.maximum(loss, embedding)
    in_loss = ~in_layer & (loss > embedding)
    moment = {
        "loss": np.where(in_loss, loss, 0),
        "backward": np.where(in_layer, layer, np.where(in_loss, 0, embedding)),
        "stand_ins": shapes * fused * ~np.asarray(_plain(jobs)),
    }
    return moment, in_layer


def _loss(jobs: Jobs, at: _At, fused: Numbers) -> Numbers:
    """Return the bytes of the output matrix's backward pass: the gradient of the logits, which TransformerEngine's
    cross entropy writes over them and Megatron-Core's makes of a copy in fp32 (core/tensor_parallel/cross_entropy.py;
    those of multi-token prediction beside), that of its input, and a stand-in for its own (core/tensor_parallel/
    layers.py, LinearWithGradAccumulationAndAsyncCommunication). Of torch's own cross entropy in fp32: logarithms of
    probabilities, their gradient and that of the logits; where the vocabulary is cut, one more
    (torch/distributed/tensor/parallel/loss.py, _nll_loss_and_log_softmax_backward). Fused or compiled: the logits and
    their gradient. torch's pipelines return the logits of all micro-batches in one piece at the end
    (torch/distributed/pipelining/schedules.py, _merge_outputs)."""
    tokens, a, h = _tokens(jobs), _element(jobs), jobs.hidden_size
    s, tp = _sequence(jobs), jobs.tensor_model_parallel_size
    of_torch = np.where(named(jobs.stack, "fused_loss"), 2 * a, np.where(tp > 1, 4, 3) * FP32)
    copied = a + FP32 * jobs.fp32_logits * (a < FP32)
    each = np.where(_of_torch(jobs), of_torch, copied) * (1 + jobs.mtp_num_layers)
    logits = tokens * each * jobs.vocabulary / tp
    whole = logits + tokens * a * h * (1 + (s > 1) / s) + fused * jobs.vocabulary * h / tp
    returns = (jobs.pipeline_model_parallel_size > 1) & named(jobs.stack, "returned_logits")
    all_of_step = returns * jobs.num_micro_batches * tokens * a * jobs.vocabulary / tp
    most: Numbers = at.last * np.maximum(whole + all_of_step, 2 * all_of_step)
    return most


def _through(a: Numbers, h: Numbers, own: Numbers, fc1: Numbers) -> Numbers:
    """Return the bytes a token of gradients at the fullest moment of an MLP's backward pass: of its output and of fc1's
    output while the activation is differentiated, or gathered ones (sequence parallelism) at fc2."""
    moment: Numbers = a * (own + np.maximum(fc1, np.where(own < h, h, 0) + fc1 / 2))
    return moment


def _gathered(jobs: Jobs, at: _At) -> Numbers:
    """Return Megatron's buffer of gathered activations before the output matrix (core/parallel_state.py,
    get_global_memory_buffer), or what FSDP holds uncut: two layers or the vocabulary, and a gradient of them. torch's
    FSDP2 holds the vocabulary and the last layer, and its streams of communication keep for themselves what they once
    had of the largest group, its parameters and its gradients in fp32 (torch/distributed/fsdp/_fully_shard/
    _fsdp_collectives.py; the allocator hands no block of one stream to another); in a pipeline all of the stage between
    two steps, with fp32 gradients (torchtitan, reshard_after_forward; FSDP2, unsharded_accumulated_grad), as wherever
    only the last micro-batch shares its gradients (set_requires_gradient_sync)."""
    buffer = at.last * (_sequence(jobs) > 1) * _tokens(jobs) * _element(jobs) * jobs.hidden_size
    one, own = matrices(jobs), parameters(jobs, at.stage, at.layers)
    kept = jobs.num_experts / jobs.expert_model_parallel_size
    layer = one.attention + np.maximum(one.mlp, one.shared + kept * one.expert)
    whole = (2 * layer + own.vocabulary + np.maximum(layer, own.vocabulary)) * _element(jobs)
    largest = np.maximum(layer, own.vocabulary) * (_element(jobs) + FP32)
    of_torch = np.where(
        jobs.pipeline_model_parallel_size > 1,
        (own.dense + own.experts) * (_element(jobs) + FP32),
        (layer + own.vocabulary) * _element(jobs) + largest,
    )
    added_up = named(jobs.stack, "whole_gradients") & (jobs.num_micro_batches > 1)
    whole = np.where(_of_torch(jobs), of_torch, whole) + added_up * (own.dense + own.experts) * FP32
    total: Numbers = np.where(jobs.fsdp > 0, whole, 0) + buffer
    return total


def _groups(jobs: Jobs) -> Numbers:
    """Return how many groups of ranks talk to each other, each with communicators of its own: that of replicas over
    which the loss is averaged, of whatever size, and those that split the model."""
    sizes = ("tensor_model", "pipeline_model", "context", "expert_model")
    more = [np.asarray(getattr(jobs, f"{name}_parallel_size") > 1, float) for name in sizes]
    return reduce(np.add, more, np.ones(()))


def _tokens(jobs: Jobs) -> Numbers:
    """Return the tokens of a micro-batch on one rank, not cut by sequence parallelism."""
    return jobs.micro_batch_size * jobs.seq_length / jobs.context_parallel_size


def _sequence(jobs: Jobs) -> Numbers:
    """Return over how many ranks sequence parallelism cuts the residual stream."""
    return np.where(jobs.sequence_parallel > 0, jobs.tensor_model_parallel_size, 1)


def _element(jobs: Jobs) -> Numbers:
    """Return the bytes of an element of the computation."""
    return np.where(jobs.precision == "fp32", FP32, 2)


def _saved_input(jobs: Jobs) -> Numbers:
    """Return the bytes an element of a matrix product's input that is kept: TransformerEngine's is quantised, that of
    torch's own modules under FSDP is not (torchao, float8/float8_linear.py)."""
    return np.where(_of_torch(jobs), _element(jobs), _by_precision(jobs, _SAVED_INPUT, 2.0))


def _plain(jobs: Jobs) -> Any:
    """Return whether a job is of torch's operations one by one: the embedded engine's, on a CPU."""
    return np.asarray(jobs.hardware == "cpu")


def _of_torch(jobs: Jobs) -> Any:
    """Return whether a job's modules, FSDP and loss are torch's own, not TransformerEngine's and Megatron's."""
    return named(jobs.stack, "torch_modules")


def _eager(jobs: Jobs) -> Any:
    """Return whether torch's own modules run one operation after the other, neither compiled nor fused."""
    return _of_torch(jobs) & ((jobs.uncompiled > 0) | named(jobs.stack, "eager_modules"))


def _by_precision(jobs: Jobs, table: dict[str, float], otherwise: float) -> Numbers:
    names = list(table)
    return np.select([jobs.precision == name for name in names], [table[name] for name in names], otherwise)
