"""The request that the launcher's rules of layouts (conf/check.py) read, filled in from a row of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm

from conf.schema import BEST, Hardware
from conf.shapes import Sizes
from metrics.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of a row's model."""

    num_experts: int
    moe_router_topk: int
    moe_ffn_hidden_size: int
    moe_shared_expert_intermediate_size: int
    moe_first_dense_layers: int
    moe_router_num_groups: None = None
    moe_router_score_function: str = "sigmoid"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowModel:
    """The model of a row. padded_vocab_size: as Megatron pads it; max_position_embeddings: the row's sequence."""

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    padded_vocab_size: int
    max_position_embeddings: int
    dense_layers: int
    mtp_num_layers: int
    moe: Experts | None
    add_bias_linear: bool = False
    name: str = "the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """The layout of a row; sequence parallelism is on with TP."""

    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int
    context_parallel_size: int
    expert_model_parallel_size: int
    data_parallel_size: int
    sequence_parallel: bool
    data_parallel_shards: None = None
    data_parallel_replicas: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTraining:
    """The work of a row."""

    seq_length: int
    micro_batch_size: int
    global_batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRequest:
    """A row, as of a vendor's recipe, which may deal layers out unevenly: all ranks count as one node's, for a table
    says nothing of which are."""

    model: RowModel
    layout: RowLayout
    training: RowTraining
    hardware: Hardware
    world_size: int
    ranks_per_node: int
    nodes: int = 1
    method: str = BEST


def row_request(shape: Shape, layout: Mapping[str, int], training: RowTraining, device: Hardware) -> RowRequest:
    """Return the request of a row. layout: sizes by their short names (tp), and the GPUs."""
    tp, gpus = layout["tp"], layout["gpus"]
    unit = lcm(128, tp)
    model = RowModel(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_query_groups or shape.num_attention_heads,
        padded_vocab_size=-(-shape.vocabulary // unit) * unit,
        max_position_embeddings=training.seq_length,
        dense_layers=shape.dense_layers,
        mtp_num_layers=shape.mtp_num_layers,
        moe=_experts(shape),
    )
    sizes = RowLayout(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=layout["pp"],
        virtual_pipeline_model_parallel_size=layout["vp"],
        context_parallel_size=layout["cp"],
        expert_model_parallel_size=layout["ep"],
        data_parallel_size=layout["dp"],
        sequence_parallel=tp > 1,
    )
    return RowRequest(
        model=model, layout=sizes, training=training, hardware=device, world_size=gpus, ranks_per_node=gpus
    )


def sizes_of(layout: Mapping[str, int]) -> Sizes:
    """Return the sizes of a layout by their short names."""
    return Sizes(layout["tp"], layout["pp"], layout["ep"], layout["vp"], layout["cp"])


def _experts(shape: Shape) -> Experts | None:
    if not shape.num_experts:
        return None
    return Experts(
        num_experts=shape.num_experts,
        moe_router_topk=shape.moe_router_topk,
        moe_ffn_hidden_size=shape.moe_ffn_hidden_size,
        moe_shared_expert_intermediate_size=shape.moe_shared_expert_intermediate_size,
        moe_first_dense_layers=shape.moe_first_dense_layers if shape.dense_layers < shape.num_layers else 0,
    )
