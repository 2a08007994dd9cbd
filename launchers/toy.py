"""A toy of an Experiment, for rehearse=train: what decides a comparison as requested, sizes as small as they can be.
Kept: optimizer, the schedule's shape, which sizes of the layout are above 1, the order of batch sizes, kinds of layer,
RoPE, epsilon, ties, biases, gates, the ratio of heads to KV groups, data, seeds, recompute, overlap. What a layout cuts
is even here, as its sizes become 2. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from conf.resolve import Experiment, Layout
from conf.schema import MLA, Model, MoE, Optimizer, Training
from conf.shapes import Sizes

HALVINGS, PROCESSES = 2, 4  # two cores hold no more
STEPS = (8, 20)
BATCH, SEQ_LENGTH = 8, 64
HIDDEN, FFN, HEAD, LOW_RANK, EXPERTS, TOPK = 128, 256, 16, 32, 4, 2
VOCABULARY = 1024
MOCK_VOCABULARY = 4096  # Megatron-Core 0.15.3's mock data holds ids up to 4094, whatever the vocabulary
CORPUS_HIDDEN = 64  # beside the full vocabulary of a corpus of the user's own

_Part = TypeVar("_Part", Model, MLA, MoE, Training)


def toy(e: Experiment) -> Experiment:
    """Return `e` shrunk to 1 to 4 processes of one node, 8 to 20 steps."""
    layout, steps = _layout(e), _steps(e)
    batch = min(BATCH, 1 << (e.training.global_batch_size.bit_length() - 1))
    micro = _micro_batch(e, batch // layout.data_parallel_size)
    layout = replace(layout, num_micro_batches=batch // (micro * layout.data_parallel_size))
    model, sizes = _model(e, layout), Sizes.of(layout)
    training = replace(
        _at_most(e.training, seq_length=SEQ_LENGTH, recompute_num_layers=model.num_layers // (sizes.pp * sizes.vp)),
        global_batch_size=batch,
        micro_batch_size=micro,
        train_iters=steps,
        save_interval=None,
        attention=e.training.attention if sizes.cp > 1 else "unfused",
    )
    return replace(
        e,
        model=model,
        layout=layout,
        training=training,
        optimizer=_optimizer(e, steps),
        nodes=1,
        gpus_per_node=layout.world_size,
    )


def _layout(e: Experiment) -> Layout:
    """Set every size above 1 to 2, as long as there are processes: experts first, then TP, PP, CP, DP. TP with EP
    gathers pieces of unequal size, which gloo refuses: EP is kept. It lives on the ranks of DP and CP."""
    full = Sizes.of(e.layout)
    wanted = [name for name in ("tp", "pp", "cp") if getattr(full, name) > 1]
    wanted += ["dp"] if e.layout.data_parallel_size > 1 else []
    if full.ep > 1:
        carrier = "dp" if "dp" in wanted else "cp"
        wanted = [carrier, *(name for name in wanted if name not in (carrier, "tp"))]
    sizes = dict.fromkeys(wanted[:HALVINGS], 2)
    stages, tp = sizes.get("pp", 1), sizes.get("tp", 1)
    return replace(
        e.layout,
        data_parallel_size=sizes.get("dp", 1),
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=stages,
        context_parallel_size=sizes.get("cp", 1),
        virtual_pipeline_model_parallel_size=2 if stages > 1 and full.vp > 1 else None,
        expert_model_parallel_size=min(full.ep, 2),
        sequence_parallel=e.layout.sequence_parallel and tp > 1,
        world_size=2 ** len(sizes),
    )


def _micro_batch(e: Experiment, per_replica: int) -> int:
    """Return the samples of a replica, cut so that micro-batch and accumulation are above 1 where they were."""
    if e.training.micro_batch_size == 1 and per_replica > 1 and e.layout.num_micro_batches > 1:
        return 1
    return per_replica if e.layout.num_micro_batches == 1 else max(1, min(2, per_replica // 2))


def _steps(e: Experiment) -> int:
    """Return 8 to 20 steps, as many as keep the share of the warm-up best."""
    total, share = e.training.train_iters, e.optimizer.lr_warmup_iters / e.training.train_iters
    most = min(total, STEPS[1])
    return min(range(min(total, STEPS[0]), most + 1), key=lambda n: (abs(_warmup(share, n) / n - share), n))


def _warmup(share: float, steps: int) -> int:
    return min(max(1, round(share * steps)), steps - 1) if share else 0


def _optimizer(e: Experiment, steps: int) -> Optimizer:
    o, total = e.optimizer, e.training.train_iters
    warmup = _warmup(o.lr_warmup_iters / total, steps)
    decay = o.lr_decay_iters or total
    return replace(
        o,
        lr_warmup_iters=warmup,
        lr_decay_iters=steps if decay == total else max(warmup + 1, round(decay * steps / total)),
    )


def _model(e: Experiment, layout: Layout) -> Model:
    m, (cut, stages, experts, chunks, _) = e.model, Sizes.of(layout)
    groups = min(m.num_query_groups, 4 if m.num_query_groups == m.num_attention_heads else 2)
    groups -= groups % cut
    layers = min(m.num_layers, 2 * stages)
    layers -= layers % (stages * chunks)
    low_rank = {"q_lora_rank": 2 * LOW_RANK, "kv_lora_rank": LOW_RANK}
    widths = {"qk_head_dim": 2 * HEAD, "qk_pos_emb_head_dim": HEAD, "v_head_dim": 2 * HEAD}
    m = replace(
        m,
        num_layers=layers,
        hidden_size=_even(m.hidden_size, CORPUS_HIDDEN if e.data.name == "prefix" else HIDDEN, cut),
        ffn_hidden_size=_even(m.ffn_hidden_size, FFN, cut),
        num_query_groups=groups,
        num_attention_heads=groups * (m.num_attention_heads // m.num_query_groups),
        vocab_size=m.vocab_size if e.data.name == "prefix" else _vocabulary(m, e.data.name == "mock", cut),
        mla=_at_most(m.mla, **low_rank, **widths) if m.mla else None,
        moe=_moe(m.moe, layers, cut, experts) if m.moe else None,
    )
    return _at_most(m, kv_channels=HEAD, window_size=SEQ_LENGTH // 4, mtp_num_layers=1)


def _vocabulary(m: Model, mock: bool, cut: int) -> int:
    """Return a size, padded where requested: stacks go apart at a vocabulary's end. `cut` divides it, padded."""
    most, unit = MOCK_VOCABULARY if mock else VOCABULARY, m.make_vocab_size_divisible_by
    padding = m.padded_vocab_size - m.vocab_size
    size = m.vocab_size if m.vocab_size <= most else max(1, most // unit) * unit - min(padding, unit - 1, most // 8)
    while replace(m, vocab_size=size).padded_vocab_size % cut:
        size += 1
    return size


def _moe(moe: MoE, layers: int, cut: int, experts: int) -> MoE:
    moe = _at_most(moe, moe_router_num_groups=2, moe_router_group_topk=1, moe_first_dense_layers=min(1, layers - 1))
    kept = _even(moe.num_experts, EXPERTS, max(experts, moe.moe_router_num_groups or 1))
    shared = moe.moe_shared_expert_intermediate_size
    return replace(
        moe,
        num_experts=kept,
        moe_router_topk=min(moe.moe_router_topk, TOPK, kept),
        moe_ffn_hidden_size=_even(moe.moe_ffn_hidden_size, FFN // 2, cut),
        moe_shared_expert_intermediate_size=_even(shared, FFN // 2, cut) if shared else shared,
    )


def _even(size: int, most: int, cut: int) -> int:
    size = min(size, most)
    return size - size % cut or cut


def _at_most(part: _Part, **limits: int) -> _Part:
    """Return `part` with none of these fields above its limit; None stays."""
    sizes = {name: getattr(part, name) for name in limits}
    return replace(part, **{name: min(size, limits[name]) for name, size in sizes.items() if size is not None})
