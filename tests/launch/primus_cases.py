"""The cases that Primus' plans are pinned in, and what a Primus YAML says in canonical names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from conf import load_experiment
from conf.resolve import Experiment
from launchers import make_plan
from launchers.plan import Host, Plan
from tests.launch.test_nvidia_table import MODELS

HOST = Host(python="python", cpu_count=64)
HARDWARE = ("mi300x", "mi325x", "mi355x")
PRECISIONS = ("bf16", "fp8")
RELEASES = ("v25.9", "v26.2", "v26.5", "v26.6")


def overrides(model: str, hardware: str, precision: str, release: str) -> tuple[str, ...]:
    """Return one case as launch.py takes it."""
    gpus, layout = MODELS[model]
    return (
        *("platform=amd", "framework=primus", f"framework.release={release}"),
        *(f"model={model}", f"hardware={hardware}", f"precision={precision}", f"nodes={gpus // 8}", *layout),
        *("cluster.master_addr=head", "cluster.master_port=29500", "cluster.node_rank=0"),
        *("framework.checkout=/workspace/Primus", "framework.cache=/cache/primus", "framework.python=null"),
    )


def planned(*given: str) -> tuple[Experiment, Plan]:
    e = load_experiment(*given)
    return e, make_plan(e, HOST)


def written(plan: Plan) -> dict[str, Any]:
    """Return the overrides of a plan's YAML, as PyYAML, and so Primus, loads them."""
    loaded: dict[str, Any] = yaml.safe_load(plan.files["primus.yaml"])["modules"]["pre_trainer"]["overrides"]
    return loaded


def canonical(plan: Plan) -> dict[str, Any]:
    """Return canonical setting → what the YAML makes Megatron do, worked out anew from Megatron's own rules."""
    keys = written(plan)
    env = plan.env
    world = int(env["NNODES"]) * int(env["GPUS_PER_NODE"])
    tp, pp = keys["tensor_model_parallel_size"], keys["pipeline_model_parallel_size"]
    cp = keys["context_parallel_size"]
    data = world // (tp * pp * cp)
    vocabulary = keys["vocab_size"] + 1 if keys["tokenizer_type"] == "NullTokenizer" else None
    step = keys["make_vocab_size_divisible_by"] * tp
    same = {name: keys.get(name) for name in _SAME}
    shards = data // keys["num_distributed_optimizer_instances"] if keys["use_distributed_optimizer"] else 1
    return {
        **same,
        **_experts(keys),
        **_latent(keys),
        "vocab_size": vocabulary,
        "padded_vocab_size": -(-(vocabulary or 0) // step) * step,
        "num_query_groups": keys["num_query_groups"] if keys["group_query_attention"] else keys["num_attention_heads"],
        "norm_epsilon": keys.get("layernorm_epsilon", keys.get("norm_epsilon")),
        "rope_scaling_factor": 8.0
        if keys["use_rope_scaling"]
        else None,  # GPTModel's default: no release passes a key on
        "params_dtype": "bfloat16" if keys["bf16"] else "float32",
        "accumulate_allreduce_grads_in_fp32": keys["accumulate_allreduce_grads_in_fp32"]
        and not keys["grad_reduce_in_bf16"],
        "fp8_recipe": keys.get("fp8_recipe") if keys["fp8"] else None,
        "virtual_pipeline_model_parallel_size": keys["num_virtual_stages_per_pipeline_rank"],
        "world_size": world,
        "data_parallel_size": data,
        "data_parallel_shards": shards,
        "data_parallel_replicas": data // shards,
        "num_micro_batches": keys["global_batch_size"] // (keys["micro_batch_size"] * data),
        "save_interval": None if keys["save"] is None and keys["disable_last_saving"] else keys["save_interval"],
        "eval_iters": keys["eval_iters"],
        "eval_interval": keys["eval_interval"] if keys["eval_iters"] else None,
        "tokenizer_model": keys["tokenizer_model"],
        "data": "mock" if keys["mock_data"] else "synthetic",
        "data_path": None if keys["train_data_path"] is None else env["DATA_PREFIX"],
        "split": "100,0,0" if keys["train_data_path"] and keys["split"] is None else keys["split"],
        "attention_backend": {"auto": "sdpa"}.get(keys["attention_backend"], keys["attention_backend"]),
    }


def _experts(keys: Mapping[str, Any]) -> dict[str, Any]:
    names = ("moe_router_topk", "moe_ffn_hidden_size", "moe_router_load_balancing_type", "moe_aux_loss_coeff")
    has = keys["num_experts"] is not None
    zeros = re.fullmatch(r"\(\[0\]\*(\d+)\+\[1\]\*(\d+)\)", str(keys.get("moe_layer_freq")))
    if zeros:
        assert int(zeros[1]) + int(zeros[2]) == keys["num_layers"]
    return {
        **{name: keys.get(name) if has else None for name in names},
        "moe_shared_expert_intermediate_size": keys["moe_shared_expert_intermediate_size"],
        "moe_first_dense_layers": (int(zeros[1]) if zeros else 0) if has else None,
    }


def _latent(keys: Mapping[str, Any]) -> dict[str, Any]:
    names = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
    return {name: keys.get(name) if keys["multi_latent_attention"] else None for name in names}


_SAME = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels", "max_position_embeddings"),
    *("rotary_base", "use_rope_scaling", "normalization", "swiglu", "add_bias_linear"),
    *("add_qkv_bias", "untie_embeddings_and_output_weights", "qk_layernorm", "num_experts", "multi_latent_attention"),
    *("mtp_num_layers", "init_method_std", "hidden_dropout", "attention_dropout", "seq_length", "micro_batch_size"),
    *("global_batch_size", "train_iters", "seed", "recompute_granularity", "recompute_method", "recompute_num_layers"),
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
    *("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather", "optimizer", "lr", "min_lr"),
    *("lr_warmup_iters", "lr_warmup_init", "lr_decay_iters", "lr_decay_style", "weight_decay", "adam_beta1"),
    *("adam_beta2", "adam_eps", "clip_grad", "fp8", "tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("context_parallel_size", "expert_model_parallel_size", "sequence_parallel"),
)
