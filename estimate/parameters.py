"""How many parameters one rank of each job has: conf.shapes.per_stage in closed form, side by side."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from estimate.jobs import Jobs, Numbers


class Layers(NamedTuple):
    """Layers of a pipeline stage: with an MLP, with experts, and how many of them are for multi-token prediction."""

    dense: Numbers
    routed: Numbers
    mtp: Numbers

    @property
    def all(self) -> Numbers:
        return self.dense + self.routed


class Parameters(NamedTuple):
    """Parameters of one rank. vocabulary: embedding and output matrix. matrices: weights of the other matrix products,
    routed experts excepted. rest: norms, biases, router. experts: the routed ones, of all layers of the stage."""

    vocabulary: Numbers
    matrices: Numbers
    rest: Numbers
    experts: Numbers

    @property
    def dense(self) -> Numbers:
        return self.vocabulary + self.matrices + self.rest


class Matrices(NamedTuple):
    """Elements of the distinct weights of a layer on one rank: those of attention together, of an MLP (of the shared
    experts where the layer has experts), and one routed expert."""

    attention: Numbers
    mlp: Numbers
    shared: Numbers
    expert: Numbers


def stages(jobs: Jobs) -> Numbers:
    """Return the first, a middle and the last pipeline stage, shape (3, n), from 0. The middle one is the second, which
    keeps the most micro-batches of the middle ones; in a model that begins with dense layers the first without one."""
    pp = np.atleast_1d(jobs.pipeline_model_parallel_size)
    beyond = np.where(jobs.num_experts > 0, np.ceil(jobs.dense_layers / layers_of_chunk(jobs)), 1)
    middle = np.minimum(np.maximum(beyond, 1), pp - 1)
    return np.stack(np.broadcast_arrays(np.zeros_like(middle), middle, pp - 1))


def layers_of_chunk(jobs: Jobs) -> Numbers:
    """Return the layers of one virtual stage, the first and the last excepted where they do not divide."""
    return np.ceil(jobs.num_layers / (jobs.pipeline_model_parallel_size * _virtual(jobs)))


def layers_on(jobs: Jobs, stage: Numbers) -> Layers:
    """Return the layers of pipeline stages, those for multi-token prediction in the last. Where they do not divide,
    what is missing in the first chunk is as short_ends says, and all else is missing in the last."""
    each, pp = layers_of_chunk(jobs), jobs.pipeline_model_parallel_size
    of_first, _ = short_ends(jobs)

    def among(count: Numbers) -> Numbers:
        padded = count + of_first * (count > 0)
        full, rest = np.divmod(padded, each)
        own = np.floor((full - stage + pp - 1) / pp) * each + rest * (full % pp == stage)
        return np.where(stage == 0, own - of_first * (count > 0), own)

    dense = among(jobs.dense_layers)
    routed = among(jobs.num_layers) - dense
    mtp = (stage == pp - 1) * jobs.mtp_num_layers
    return Layers(dense + mtp * (jobs.num_experts == 0), routed + mtp * (jobs.num_experts > 0), mtp)


def short_ends(jobs: Jobs) -> tuple[Numbers, Numbers]:
    """Return by how many layers the first and the last chunk are shorter than the others, 0 or 1, as Megatron has it
    with embedding and loss counted as a layer each (core/transformer/transformer_block.py). Where nobody states whether
    the embedding counts, it does where two are missing, and the loss where one is; of more than two it is unknown."""
    missing = layers_of_chunk(jobs) * jobs.pipeline_model_parallel_size * _virtual(jobs) - jobs.num_layers
    several = jobs.pipeline_model_parallel_size > 1
    derived = (missing == 2) & several
    first = np.where(np.isnan(jobs.embedding_counts), derived, (jobs.embedding_counts > 0) & (missing > 0) & several)
    last = (missing - first == 1) & several
    return first.astype(float), last.astype(float)


def matrices(jobs: Jobs) -> Matrices:
    """Return the weights of a layer's matrix products on one rank. Megatron cuts outputs or inputs over TP, experts'
    over their own TP, and leaves MLA's down-projections uncut (core/transformer/multi_latent_attention.py)."""
    h, tp, heads = jobs.hidden_size, jobs.tensor_model_parallel_size, jobs.num_attention_heads
    wide = fc1_width(jobs)
    grouped = h * jobs.kv_channels * 2 * (heads + jobs.num_query_groups) / tp
    queries = heads * (jobs.qk_head_dim + jobs.qk_pos_emb_head_dim) / tp
    down = h * (jobs.kv_lora_rank + jobs.qk_pos_emb_head_dim + jobs.q_lora_rank)
    up = heads * (jobs.qk_head_dim + jobs.v_head_dim) / tp * jobs.kv_lora_rank
    up = up + queries * np.where(jobs.q_lora_rank > 0, jobs.q_lora_rank, h)
    latent = down + up + heads * jobs.v_head_dim / tp * h
    return Matrices(
        attention=np.where(jobs.mla > 0, latent, grouped),
        mlp=(wide + 1) * jobs.ffn_hidden_size * h / tp,
        shared=(wide + 1) * jobs.moe_shared_expert_intermediate_size * h / tp,
        expert=(wide + 1) * jobs.moe_ffn_hidden_size * h / jobs.expert_tensor_parallel_size,
    )


def parameters(jobs: Jobs, stage: Numbers, layers: Layers) -> Parameters:
    """Return the parameters of a rank in pipeline stages `stage` with their layers, shape (..., n): the numbers of
    conf.shapes."""
    h, tp, pp = jobs.hidden_size, jobs.tensor_model_parallel_size, jobs.pipeline_model_parallel_size
    one, rest, (dense, routed, mtp) = matrices(jobs), _rest(jobs), layers
    first, last = stage == 0, stage == pp - 1
    looks_up = first | (last & ((jobs.tied > 0) | (jobs.mtp_num_layers > 0)))
    matrix = jobs.vocabulary * h / tp
    kept = jobs.num_experts / jobs.expert_model_parallel_size
    return Parameters(
        vocabulary=matrix * (looks_up + (last & (jobs.tied == 0)) * 1.0),
        matrices=(dense + routed) * one.attention + dense * one.mlp + routed * one.shared + mtp * (2 * h * h / tp),
        rest=(dense + routed) * rest.attention + dense * rest.mlp + routed * rest.shared + h * (last + 3 * mtp),
        experts=routed * kept * (one.expert + rest.expert),
    )


def fc1_width(jobs: Jobs) -> Numbers:
    """Return the columns of the first matrix of an MLP over the rows of its second: 2 where there is a gate."""
    return np.where(jobs.gated > 0, 2, 1)


def _rest(jobs: Jobs) -> Matrices:
    """Return norms, biases and router of a layer on one rank: the norms count with attention."""
    h, tp, heads = jobs.hidden_size, jobs.tensor_model_parallel_size, jobs.num_attention_heads
    bias, of_qkv = jobs.add_bias_linear, np.maximum(jobs.add_bias_linear, jobs.add_qkv_bias)
    rows = (heads + 2 * jobs.num_query_groups) * jobs.kv_channels / tp
    within = np.where(jobs.mla > 0, jobs.q_lora_rank + jobs.kv_lora_rank, 2 * jobs.kv_channels) * jobs.qk_layernorm
    router = (h + bias) * jobs.num_experts
    shared = jobs.moe_shared_expert_intermediate_size

    def of_mlp(width: Numbers, cut: Numbers) -> Numbers:
        return np.where(width > 0, bias * (fc1_width(jobs) * width / cut + h), 0)

    return Matrices(
        attention=2 * h + of_qkv * rows * (jobs.mla == 0) + within + bias * h + jobs.attention_sinks * heads / tp,
        mlp=of_mlp(jobs.ffn_hidden_size, tp),
        shared=router + of_mlp(shared, tp),
        expert=of_mlp(jobs.moe_ffn_hidden_size, jobs.expert_tensor_parallel_size),
    )


def _virtual(jobs: Jobs) -> Numbers:
    return np.maximum(jobs.virtual_pipeline_model_parallel_size, 1)
