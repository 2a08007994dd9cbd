"""Builds models as Megatron-Core does by itself, without memory, as one rank of a fake world. stdin: a list of
{"config", "model", "sizes", "rank", "world"}; stdout: for each, the name in the complete model and the shape of every
parameter."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import engine_standin

engine_standin.install()

import torch  # noqa: E402
from megatron.core import model_parallel_config, parallel_state  # noqa: E402
from megatron.core.models.gpt import GPTModel, gpt_layer_specs  # noqa: E402
from megatron.core.transformer import MLATransformerConfig, TransformerConfig  # noqa: E402
from megatron.core.transformer.dot_product_attention import DotProductAttention  # noqa: E402
from megatron.core.transformer.moe import grouped_gemm_util  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from tprimat_parameters import global_name  # noqa: E402

model_parallel_config.warnings = warnings  # 0.15.3 warns of TP with EP without it
grouped_gemm_util.assert_grouped_gemm_is_available = lambda: None  # of the fused experts only the matrices are made


class Core(DotProductAttention):  # type: ignore[misc]
    """0.15.3's own takes no widths, which latent attention gives it."""

    def __init__(self, *arguments: Any, k_channels: Any = None, v_channels: Any = None, **options: Any) -> None:
        super().__init__(*arguments, **options)


def chunk(case: dict[str, Any], number: int) -> Any:
    sizes, reported = case["sizes"], case["config"]
    stages, virtual = sizes["pipeline_model_parallel_size"], sizes["virtual_pipeline_model_parallel_size"]
    place = case["rank"] // (case["world"] // stages)
    first, last = place == number == 0, (place, number) == (stages - 1, (virtual or 1) - 1)
    kind = MLATransformerConfig if reported.get("multi_latent_attention") else TransformerConfig
    config = kind(
        **reported,
        **sizes,
        activation_func=functional.silu,
        perform_initialization=False,
        use_cpu_initialization=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
    )
    stage = number if virtual else None
    block = gpt_layer_specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=stage)
    for layer in block.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = Core
    joint = None
    if reported.get("mtp_num_layers"):
        joint = gpt_layer_specs.get_gpt_mtp_block_spec(config, block, use_transformer_engine=False, vp_stage=stage)
    return GPTModel(
        config, block, **case["model"], pre_process=first, post_process=last, mtp_block_spec=joint, vp_stage=stage
    )


def shapes(case: dict[str, Any]) -> dict[str, list[int]]:
    store, sizes = FakeStore(), case["sizes"]
    torch.distributed.init_process_group("fake", store=store, rank=case["rank"], world_size=case["world"])
    parallel_state.initialize_model_parallel(**sizes, create_gloo_process_groups=False)
    with torch.device("meta"):
        models = [chunk(case, n) for n in range(sizes["virtual_pipeline_model_parallel_size"] or 1)]
    result = {global_name(m, name): list(p.shape) for m in models for name, p in m.named_parameters()}
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
    return result


print(json.dumps([shapes(case) for case in json.load(sys.stdin)]))
