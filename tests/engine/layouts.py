"""The layouts that the engine is tried in, and which runs share their processes (see together.py)."""

from __future__ import annotations

from typing import Any

Changes = dict[str, Any]
TP2: Changes = {"tensor_model_parallel_size": 2}
TP2_SP: Changes = {**TP2, "sequence_parallel": True}
PP2: Changes = {"pipeline_model_parallel_size": 2}
VP2: Changes = {**PP2, "virtual_pipeline_model_parallel_size": 2}
EMBEDDING, LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
DP2: Changes = {"data_parallel_size": 2}
CP2: Changes = {"context_parallel_size": 2}
SHARDED: Changes = {"use_distributed_optimizer": True}
OVERLAPPED: Changes = {**SHARDED, "overlap_grad_reduce": True, "overlap_param_gather": True}
HYBRID: Changes = {**SHARDED, "data_parallel_size": 4, "data_parallel_shards": 2, "data_parallel_replicas": 2}
RECOMPUTE: Changes = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
SHORT: Changes = {"train_iters": 5}
BFLOAT16: Changes = {"params_dtype": "bfloat16"}
UNFUSED: Changes = {"attention_backend": "unfused"}
DROPOUT: Changes = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
MOCK: Changes = {"data": "mock", "data_path": None, "split": "1,1,1"}
MOCK |= {"vocab_size": 4096, "padded_vocab_size": 4096, "train_iters": 3}
LLAMA_LIKE: Changes = {
    "untie_embeddings_and_output_weights": False,
    "add_qkv_bias": True,
    "use_rope_scaling": True,
    "rope_scaling_factor": 8.0,
}
EXPERTS: Changes = {
    "num_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 80,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_aux_loss_coeff": 0.01,
    "moe_first_dense_layers": 0,
    "global_batch_size": 4,  # each micro-batch costs dozens of collectives
}
QWEN_LIKE: Changes = {"qk_layernorm": True}
DEEPSEEK_LIKE: Changes = {
    **EXPERTS,
    "moe_shared_expert_intermediate_size": 96,
    "moe_first_dense_layers": 1,
    "moe_router_load_balancing_type": "seq_aux_loss",
}
EP2: Changes = {**DP2, "expert_model_parallel_size": 2}

DENSE = {
    "TP2": TP2,
    "TP2+SP": TP2_SP,
    "PP2": PP2,
    "PP2xVP2": VP2,
    "PP2xVP2+recompute": {**VP2, **RECOMPUTE},
    "DP2": DP2,
    "DP2+sharded": {**DP2, **SHARDED},
    "DP2+overlapped": {**DP2, **OVERLAPPED},
    "DP4+replicas": HYBRID,
    "DP4+replicas+overlapped": {**HYBRID, **OVERLAPPED},
    "CP2": CP2,
    "CP2+selective": {**CP2, "recompute_granularity": "selective"},
    "CP4": {"context_parallel_size": 4},
    "TP2xPP2": {**TP2, **PP2},
    "TP2xCP2+SP": {**TP2_SP, **CP2},
    "CP2xPP2": {**CP2, **PP2},
    "DP2xPP2xVP2+overlapped": {**DP2, **VP2, **OVERLAPPED},
}
MIXTURE = {
    "DP2": DP2,
    "TP2+SP": TP2_SP,
    "PP2": PP2,
    "EP2": EP2,
    "EP2+sharded": {**EP2, **SHARDED},
    "CP2xEP2": {**CP2, "expert_model_parallel_size": 2},
    "EP2xPP2": {**EP2, **PP2},
}
IN_BFLOAT16 = {
    **{name: DENSE[name] for name in ("TP2+SP", "PP2", "PP2xVP2", "DP2+sharded", "CP2")},
    "EP2": {**EXPERTS, **EP2},
}
VARIANTS = {
    "llama": (LLAMA_LIKE, {"TP2": TP2, "PP2xVP2": VP2}),
    "qwen": (QWEN_LIKE, {"TP2": TP2}),
    "deepseek": (DEEPSEEK_LIKE, {"EP2": EP2, "TP2+SP": TP2_SP, "PP2xVP2": VP2}),
    "unfused": (UNFUSED, {"TP2": TP2}),
}
"""Models, each with the layouts that cut what is special in it."""

UNEVEN = {
    "PP2+loss": ({"num_layers": 3}, {**PP2, LOSS: True}),
    "PP2+embedding": ({"num_layers": 3}, {**PP2, EMBEDDING: True}),
    "PP2xVP2+both": ({"num_layers": 6}, {**VP2, EMBEDDING: True, LOSS: True}),
}
"""Models whose layers the stages divide where embedding or loss count as one."""

ALWAYS = ("TP2", "TP2+SP", "PP2", "PP2xVP2", "DP2", "DP2+sharded", "DP2+overlapped", "CP2", "TP2xPP2")
"""These are the layouts that `make test` tries; the rest is slow and `make test-layouts` tries it."""

_SINGLE: list[Changes] = [
    *({**EXPERTS}, {**EXPERTS, **BFLOAT16}, BFLOAT16, DROPOUT, {**DROPOUT, **RECOMPUTE}, {**RECOMPUTE, **SHORT}),
    *({**DROPOUT, **SHORT}, MOCK),
    *(base for base, _ in (*VARIANTS.values(), UNEVEN["PP2+loss"], UNEVEN["PP2xVP2+both"])),
]
_QUICK: list[Changes] = [
    *(DENSE[name] for name in ALWAYS if name != "TP2+SP"),
    *({**IN_BFLOAT16[name], **BFLOAT16} for name in IN_BFLOAT16 if name in ALWAYS),
    {**DROPOUT, **CP2, **SHORT},
    {**MOCK, **DP2},
    {**EXPERTS, **MIXTURE["EP2"]},
    {**DEEPSEEK_LIKE, **EP2},
    {**LLAMA_LIKE, **VP2},
    *({**base, **layout} for base, layout in UNEVEN.values()),
]
_SLOW: list[Changes] = [
    *(DENSE[name] for name in DENSE if name not in ALWAYS),
    *({**EXPERTS, **layout} for name, layout in MIXTURE.items() if name != "EP2"),
    *({**IN_BFLOAT16[name], **BFLOAT16} for name in IN_BFLOAT16 if name not in ALWAYS),
    *({**base, **layout} for base, layouts in VARIANTS.values() for layout in layouts.values()),
]
_SLOW = [changes for changes in _SLOW if changes not in _QUICK]  # no slow one is trained for a quick one
TOGETHER = (_SINGLE, _QUICK, _SLOW)
"""Runs that share one set of processes for each world size: starting takes longer than they do. TP2+SP alone is not
among them, nor is the single process: those go through torchrun and the engine itself."""
