# ruff: noqa: E402  the stand-in comes before Megatron
"""Builds Megatron models with TPRIMAT_EQUAL_INIT, as a vendor would, and prints a checksum of every complete matrix.

torchrun --nproc-per-node N equal_weights.py TP PP EP KIND…     KIND: dense (tied embeddings), moe, mla
… 1 1 1 grouped     experts in one matrix (GroupedMLP) and apart (SequentialMLP): how far their outputs are apart"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "launchers" / "ranks"))
import engine_standin

engine_standin.install()

import torch
import torch.distributed as dist
from megatron.core import parallel_state as groups
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer import dot_product_attention as attention
from megatron.core.transformer.moe import experts, grouped_gemm_util, moe_utils
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from tprimat_parameters import global_name, split_of

MOE = {
    "num_moe_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "moe_layer_freq": [0, 1],
    "moe_token_dispatcher_type": "alltoall",
}
MLA = {
    "multi_latent_attention": True,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_head_dim": 16,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 16,
    "rope_type": "rope",
}


def model(kind: str, sizes: dict[str, int], **more: Any) -> Any:
    """This rank's part of the toy."""
    options = {"moe": MOE, "grouped": MOE, "mla": MLA}.get(kind, {})
    shape = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 96}
    config = (MLATransformerConfig if kind == "mla" else TransformerConfig)(
        **{**shape, **sizes, **options, **more},
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        normalization="RMSNorm",
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
        persist_layer_norm=False,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
    )
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    return GPTModel(
        config,
        spec,
        vocab_size=128,
        max_sequence_length=32,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=kind == "dense",
        pre_process=groups.is_pipeline_first_stage(),
        post_process=groups.is_pipeline_last_stage(),
    )


def parts(built: Any) -> list[tuple[str, int, int | None, Any]]:
    """Return global name, tensor parallel rank, dimension of the cut and values of each matrix of this rank."""
    rows = []
    for name, parameter in built.named_parameters():
        if parameter.dim() > 1:
            own = global_name(built, name)
            split = split_of(parameter, own)
            rows.append((own, split.rank, split.dim if split.size > 1 else None, parameter.detach()))
    return rows


def checksums(rows: list[tuple[str, int, int | None, Any]]) -> dict[str, list[int]]:
    """Return shape and CRC-32 of each complete matrix, put together again from the parts of all ranks."""
    result: dict[tuple[str, int | None], dict[int, Any]] = {}
    for name, rank, dim, values in rows:
        result.setdefault((name, dim), {})[rank] = values
    reported = {}
    for (name, dim), pieces in result.items():
        ordered = [pieces[rank] for rank in sorted(pieces)]
        if dim is not None and name.endswith("linear_fc1.weight"):  # gates first, then the others
            halves = zip(*(piece.chunk(2, dim) for piece in ordered), strict=True)
            ordered = [*next(halves), *next(halves)]
        complete = ordered[0] if dim is None else torch.cat(ordered, dim)
        reported[name] = [*complete.shape, zlib.crc32(complete.numpy().tobytes())]
    return reported


def loop(tokens: Any, weights: Any, counts: Any, trans_b: bool) -> Any:
    """grouped_gemm.ops.gmm: the tokens of each expert, one after another, times its matrix."""
    assert not trans_b
    pieces = torch.split(tokens, counts.tolist())
    return torch.cat([piece @ weight for piece, weight in zip(pieces, weights, strict=True)])


def apart() -> float:
    """The largest difference between the outputs of experts in one matrix and of experts apart; 0 of equal weights."""
    grouped_gemm_util.grouped_gemm_is_available = lambda: True
    grouped_gemm_util.ops = type("ops", (), {"gmm": staticmethod(loop)})
    experts.gg = grouped_gemm_util
    moe_utils.te_general_gemm = None  # its router reads a name that only TransformerEngine defines
    options = [{"moe_grouped_gemm": grouped, "bias_activation_fusion": False} for grouped in (False, True)]
    layers = [model("grouped", {}, **more).decoder.layers[1].mlp for more in options]
    kinds = [type(layer.experts).__name__ for layer in layers]
    assert kinds == ["SequentialMLP", "GroupedMLP"], kinds
    tokens = torch.randn(16, 2, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        first, second = (layer(tokens)[0] for layer in layers)
    assert first.abs().max() > 1e-4
    return float((first - second).abs().max())


def main() -> None:
    tp, pp, ep = map(int, sys.argv[1:4])
    dist.init_process_group("gloo")
    sizes = {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "expert_model_parallel_size": ep}
    groups.initialize_model_parallel(**sizes, create_gloo_process_groups=False)
    model_parallel_cuda_manual_seed(1)
    made = attention.DotProductAttention.__init__

    def without_widths(self: Any, *arguments: Any, k_channels: Any = None, v_channels: Any = None, **more: Any) -> None:
        made(self, *arguments, **more)  # Megatron's own attention does not take latent attention's widths

    attention.DotProductAttention.__init__ = without_widths
    for kind in sys.argv[4:]:
        if kind == "grouped":
            reported: Any = apart()
        else:
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, parts(model(kind, sizes)))
            reported = checksums([row for rows in everyone for row in rows])
        if dist.get_rank() == 0:
            print(f"WEIGHTS {json.dumps({kind: reported})}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
