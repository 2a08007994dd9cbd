"""Our own count of a rank, by name and shape, against what Megatron-Core builds there: every model of conf/model at its
true width, on one rank of each kind of layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from conf.schema import Model
from conf.shapes import Place, Sizes, on_rank, usual_name
from tests.conf.test_parameters import OURS, PUBLISHED, load

pytestmark = pytest.mark.engine
RANKS = Path(__file__).parents[2] / "launchers" / "ranks"
LAYERS, EXPERTS = 4, 8  # more are the same again
LAYOUTS = {  # sizes, and the rank's stage and part of the experts
    "one rank": (Sizes(), Place()),
    "TP4": (Sizes(4), Place()),
    "TP2 PP2 VP2, first": (Sizes(2, 2, 1, 2), Place(0)),
    "TP2 PP2 VP2, last": (Sizes(2, 2, 1, 2), Place(1)),
    "PP4, third": (Sizes(1, 4), Place(2)),
    "TP2 EP4, second": (Sizes(2, 1, 4), Place(0, 1)),
}
SAME_NAME = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
    *("normalization", "qk_layernorm", "add_bias_linear", "add_qkv_bias", "softmax_type", "gated_linear_unit"),
    "mtp_num_layers",
)


def config(model: Model) -> dict[str, Any]:
    """Return fields of Megatron's TransformerConfig."""
    values = {name: getattr(model, name) for name in SAME_NAME}
    if model.mla:
        values |= {**asdict(model.mla), "multi_latent_attention": True, "rope_type": "rope"}
    if model.moe:
        names = ("moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_router_topk")
        dense = [int(layer >= model.dense_layers) for layer in range(model.num_layers)]
        values |= {name: getattr(model.moe, name) for name in names}
        values |= {"num_moe_experts": model.moe.num_experts, "moe_layer_freq": dense}
    return values


def case(model: Model, sizes: Sizes, place: Place) -> dict[str, Any]:
    tp, pp, ep, vp, *_ = sizes
    names = ("tensor_model", "pipeline_model", "expert_model", "virtual_pipeline_model")
    reported = dict(zip((f"{name}_parallel_size" for name in names), (tp, pp, ep, vp if vp > 1 else None), strict=True))
    keywords = {
        "vocab_size": model.padded_vocab_size,
        "max_sequence_length": 64,
        "position_embedding_type": "rope",
        "share_embeddings_and_output_weights": not model.untie_embeddings_and_output_weights,
    }
    rank = place.pipeline * tp * ep + place.expert * tp
    return {"config": config(model), "model": keywords, "sizes": reported, "rank": rank, "world": tp * pp * ep}


def shallow(name: str) -> Model:
    model = load(name)
    moe = model.moe and replace(
        model.moe, num_experts=EXPERTS, moe_first_dense_layers=min(1, model.moe.moe_first_dense_layers)
    )
    return replace(model, num_layers=LAYERS, moe=moe)


def test_megatron_builds_what_we_count() -> None:
    cases = {
        (name, layout): (shallow(name), sizes, place)
        for name in (*PUBLISHED, *OURS)
        for layout, (sizes, place) in LAYOUTS.items()
        if (moe := load(name).moe) or sizes.ep == 1
        if not (moe and load(name).add_bias_linear and sizes.tp > 1)  # Megatron refuses it, as it does
        if load(name).num_query_groups % sizes.tp == 0  # 2 of qwen25_0p5b on four ranks
    }
    fused = shallow("qwen3_30b_a3b"), Sizes(2, 1, 4), Place(0, 3)
    together = case(*fused)
    together["config"]["moe_grouped_gemm"] = True
    built = megatrons([*(case(*one) for one in cases.values()), together])
    assert len(built) == len(cases) + 1 > 90
    for (which, one), result in zip(cases.items(), built[:-1], strict=True):
        assert result == on_rank(*one, local=True), which
    assert built[-1] == on_rank(*fused, local=True, fused=True)


def megatrons(cases: list[dict[str, Any]]) -> list[dict[str, tuple[int, ...]]]:
    env = {**os.environ, "PYTHONPATH": f"{RANKS}:{RANKS / 'rehearsal'}", "OMP_NUM_THREADS": "1"}
    program = Path(__file__).parent / "programs" / "megatron_shapes.py"
    done = subprocess.run(
        (sys.executable, program), input=json.dumps(cases), capture_output=True, text=True, timeout=300, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [
        {usual_name(name): tuple(shape) for name, shape in shapes.items()}
        for shapes in json.loads(done.stdout.splitlines()[-1])
    ]
