"""How many parameters a model has, in total, for one token and on one rank. Exact integers; no memory in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from conf.architecture import MLA, Model, MoE, tensor_widths


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters by part, over all layers. Vocabulary unpadded, as published totals count it; tied embeddings once.

    router: DeepSeek-V3's correction bias among it, as its published total has it. experts: the routed ones, and
    active_experts those of them that one token is sent to. mtp: modules for multi-token prediction, which published
    totals leave out; embedding and output are the main model's.
    """

    embedding: int
    output: int
    attention: int
    mlp: int
    router: int
    shared_experts: int
    experts: int
    active_experts: int
    norms: int
    mtp: int

    @property
    def total(self) -> int:
        """Without multi-token prediction."""
        dense = self.embedding + self.output + self.attention + self.mlp + self.norms
        return dense + self.router + self.shared_experts + self.experts

    @property
    def active(self) -> int:
        """What one token passes: all but the experts it is not sent to. The embedding counts, although looked up."""
        return self.total - self.experts + self.active_experts


def count(model: Model) -> Parameters:
    """Parameters of `model`, from the shapes of its published checkpoint."""
    table, moe, moe_layers = model.vocab_size * model.hidden_size, model.moe, model.num_layers - model.dense_layers
    one_expert = _expert(model, moe).total if moe else 0
    return Parameters(
        embedding=table,
        output=table if model.untie_embeddings_and_output_weights else 0,
        attention=model.num_layers * _attention(model).total,
        mlp=model.dense_layers * _mlp(model, model.ffn_hidden_size).total,
        router=moe_layers * (_router(model, moe).total + _correction_bias(moe)) if moe else 0,
        shared_experts=moe_layers * _shared(model, moe).total if moe else 0,
        experts=moe_layers * moe.num_experts * one_expert if moe else 0,
        active_experts=moe_layers * moe.moe_router_topk * one_expert if moe else 0,
        norms=model.num_layers * _norms(model).total + model.hidden_size,
        mtp=_mtp(model),
    )


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters on one rank: experts, which only the ranks of the same expert index share, and the rest."""

    dense: int
    experts: int

    def __add__(self, other: Held) -> Held:
        return Held(self.dense + other.dense, self.experts + other.experts)

    @property
    def total(self) -> int:
        return self.dense + self.experts


def per_rank(
    model: Model,
    *,
    tensor_model_parallel_size: int,
    pipeline_model_parallel_size: int,
    expert_model_parallel_size: int = 1,
) -> Held:
    """Parameters that the fullest rank holds. See `per_stage`."""
    sizes = (tensor_model_parallel_size, pipeline_model_parallel_size, expert_model_parallel_size)
    return max(per_stage(model, *sizes), key=lambda held: held.total)


def per_stage(
    model: Model,
    tensor_model_parallel_size: int,
    pipeline_model_parallel_size: int,
    expert_model_parallel_size: int = 1,
    virtual_pipeline_model_parallel_size: int = 1,
) -> tuple[Held, ...]:
    """Parameters of one rank in each pipeline stage, with the padded vocabulary.

    As Megatron-Core cuts them (core/tensor_parallel/layers.py: ColumnParallelLinear splits weight and bias,
    RowParallelLinear its weight only; VocabParallelEmbedding splits the rows): biases of row-parallel matrices, norms,
    routers and MLA's down-projections (TransformerEngine's) are on every rank, experts are cut by EP and then by TP.
    The first stage has the embedding, the last the output matrix, the final norm and multi-token prediction; a last
    stage that is not also the first holds its own copy of the embedding where it is tied or MTP looks it up. The
    correction bias is a buffer and not counted. With virtual stages each stage has as many chunks of layers, dealt out
    in turn.

    Raises:
        ValueError: sizes that do not divide the model.
    """
    tp, pp, ep = tensor_model_parallel_size, pipeline_model_parallel_size, expert_model_parallel_size
    vp = virtual_pipeline_model_parallel_size
    _check_divides(model, tp, pp * vp, ep)
    layers = model.num_layers // (pp * vp)
    chunks = [_layers_held(model, first, layers, tp, ep) for first in range(0, model.num_layers, layers)]
    stages = [sum(chunks[stage::pp], Held(0, 0)) for stage in range(pp)]
    table = model.padded_vocab_size * model.hidden_size // tp
    untied, mtp = model.untie_embeddings_and_output_weights, model.mtp_num_layers or 0
    copies = int(untied) + int(pp > 1 and (not untied or mtp > 0))
    modules = [_layers_held(model, model.num_layers, 1, tp, ep) + Held(_mtp_joint(model).on_rank(tp), 0)] * mtp
    stages[0] += Held(table, 0)
    stages[-1] = sum(modules, stages[-1] + Held(copies * table + model.hidden_size, 0))
    return tuple(stages)


def _layers_held(model: Model, first: int, layers: int, tp: int, ep: int) -> Held:
    """`layers` layers from number `first` on. One past the last is what a module for multi-token prediction has."""
    if model.moe is None:
        return Held(layers * _layer(model, None).on_rank(tp), 0)
    plain = max(0, min(model.dense_layers - first, layers))
    dense = plain * _layer(model, None).on_rank(tp) + (layers - plain) * _layer(model, model.moe).on_rank(tp)
    return Held(dense, (layers - plain) * (model.moe.num_experts // ep) * _expert(model, model.moe).on_rank(tp))


@dataclass(frozen=True, slots=True)
class _Cut:
    """Elements that tensor parallelism splits, and elements that each of its ranks holds whole."""

    split: int
    whole: int

    def __add__(self, other: _Cut) -> _Cut:
        return _Cut(self.split + other.split, self.whole + other.whole)

    @property
    def total(self) -> int:
        return self.split + self.whole

    def on_rank(self, tp: int) -> int:
        return self.split // tp + self.whole


def _attention(model: Model) -> _Cut:
    """QKV and projection with their biases, the norms of queries and keys, the sinks."""
    core = _latent(model, model.mla) if model.mla else _grouped_query(model)
    sinks = model.num_attention_heads if model.softmax_type == "learnable" else 0
    return core + _Cut(sinks, model.hidden_size if model.add_bias_linear else 0)


def _grouped_query(model: Model) -> _Cut:
    query = model.num_attention_heads * model.kv_channels
    qkv = query + 2 * model.num_query_groups * model.kv_channels
    bias = qkv if model.add_qkv_bias or model.add_bias_linear else 0
    norms = 2 * model.kv_channels if model.qk_layernorm else 0
    return _Cut(model.hidden_size * (qkv + query) + bias, norms)


def _latent(model: Model, mla: MLA) -> _Cut:
    heads, hidden = model.num_attention_heads, model.hidden_size
    queries = heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim)
    down, up = mla.kv_lora_rank + mla.qk_pos_emb_head_dim, heads * (mla.qk_head_dim + mla.v_head_dim)
    norms = (mla.kv_lora_rank + (mla.q_lora_rank or 0)) if model.qk_layernorm else 0
    query = _Cut(mla.q_lora_rank * queries, hidden * mla.q_lora_rank) if mla.q_lora_rank else _Cut(hidden * queries, 0)
    return query + _Cut(mla.kv_lora_rank * up + heads * mla.v_head_dim * hidden, hidden * down + norms)


def _mlp(model: Model, width: int) -> _Cut:
    """fc1 (gate and up in one, where there is a gate) and fc2, `width` wide."""
    fc1 = width * (2 if model.gated_linear_unit else 1)
    bias = model.add_bias_linear
    return _Cut(model.hidden_size * (fc1 + width) + (fc1 if bias else 0), model.hidden_size if bias else 0)


def _expert(model: Model, moe: MoE) -> _Cut:
    return _mlp(model, moe.moe_ffn_hidden_size)


def _shared(model: Model, moe: MoE) -> _Cut:
    width = moe.moe_shared_expert_intermediate_size
    return _mlp(model, width) if width else _Cut(0, 0)


def _router(model: Model, moe: MoE) -> _Cut:
    """Megatron gives the router a bias with add_bias_linear."""
    return _Cut(0, moe.num_experts * (model.hidden_size + int(model.add_bias_linear)))


def _correction_bias(moe: MoE) -> int:
    return moe.num_experts if moe.moe_router_enable_expert_bias else 0


def _norms(model: Model) -> _Cut:
    return _Cut(0, 2 * model.hidden_size)


def _layer(model: Model, moe: MoE | None) -> _Cut:
    """A whole layer, routed experts excepted: with router and shared experts, or with an MLP."""
    inner = _router(model, moe) + _shared(model, moe) if moe else _mlp(model, model.ffn_hidden_size)
    return _attention(model) + _norms(model) + inner


def _mtp_joint(model: Model) -> _Cut:
    """What a module for multi-token prediction has beside its layer: the joining matrix and three norms."""
    return _Cut(2 * model.hidden_size**2, 3 * model.hidden_size)


def _mtp(model: Model) -> int:
    """Modules for multi-token prediction, with layers like the last one."""
    moe = model.moe
    experts = moe.num_experts * _expert(model, moe).total + _correction_bias(moe) if moe else 0
    return (model.mtp_num_layers or 0) * (_layer(model, moe).total + experts + _mtp_joint(model).total)


def _check_divides(model: Model, tp: int, pp: int, ep: int) -> None:
    checked = [(name, n, tp) for name, n in tensor_widths(model).items()]
    checked += [("num_layers", model.num_layers, pp), ("num_experts", model.moe.num_experts if model.moe else 1, ep)]
    broken = [f"{name} {n} / {size}" for name, n, size in checked if size < 1 or n % size]
    if broken:
        raise ValueError(f"TP {tp} × PP {pp} × EP {ep} does not divide {model.name}: {', '.join(broken)}")
