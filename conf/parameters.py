"""How many parameters a model has, in total, for one token and on one rank. Exact integers; no memory in bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

from conf import shapes
from conf.architecture import Model, MoE
from conf.shapes import Sizes


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
        """Those that one token passes: all but the experts it is not sent to. The embedding, looked up, counts."""
        return self.total - self.experts + self.active_experts


def count(model: Model) -> Parameters:
    """Count the parameters of `model`, from the shapes of its published checkpoint."""
    moe, moe_layers = model.moe, model.num_layers - model.dense_layers
    table, mtp = model.vocab_size * model.hidden_size, model.mtp_num_layers or 0
    parts: Counter[str] = Counter({"norms": shapes.final_norm(model).numel})
    for kind, layers in ((None, model.dense_layers), (moe, moe_layers)):
        for role in shapes.layer(model, kind) if layers else ():
            parts[role.part] += layers * role.numel
    one = sum(role.numel for role in shapes.expert(model, moe)) if moe else 0
    joint = sum(role.numel for role in (*shapes.mtp_joint(model), *shapes.layer(model, moe)))
    return Parameters(
        embedding=table,
        output=table if model.untie_embeddings_and_output_weights else 0,
        attention=parts["attention"],
        mlp=parts["mlp"],
        router=parts["router"] + moe_layers * _correction_bias(moe),
        shared_experts=parts["shared_experts"],
        experts=moe_layers * moe.num_experts * one if moe else 0,
        active_experts=moe_layers * moe.moe_router_topk * one if moe else 0,
        norms=parts["norms"],
        mtp=mtp * (joint + _correction_bias(moe) + (moe.num_experts * one if moe else 0)),
    )


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters on one rank: experts, which only the ranks of the same expert index share, and the rest."""

    dense: int
    experts: int

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
    """Return the parameters of the fullest rank. See `per_stage`."""
    sizes = (tensor_model_parallel_size, pipeline_model_parallel_size, expert_model_parallel_size)
    return max(per_stage(model, *sizes), key=lambda rank: rank.total)


def per_stage(
    model: Model,
    tensor_model_parallel_size: int,
    pipeline_model_parallel_size: int,
    expert_model_parallel_size: int = 1,
    virtual_pipeline_model_parallel_size: int = 1,
) -> tuple[Held, ...]:
    """Return the parameters of one rank in each pipeline stage, with the padded vocabulary.

    Norms, routers and MLA's down-projections (TransformerEngine's) are on every rank, experts are cut by EP and then by
    TP; see conf/shapes.py.

    Raises:
        ValueError: sizes that do not divide the model.
    """
    sizes = Sizes(
        tensor_model_parallel_size,
        pipeline_model_parallel_size,
        expert_model_parallel_size,
        virtual_pipeline_model_parallel_size,
    )
    return tuple(_held(model, sizes, stage) for stage in range(max(1, pipeline_model_parallel_size)))


def _held(model: Model, sizes: Sizes, stage: int) -> Held:
    tp, parts = sizes.tensor_model_parallel_size, list(shapes.modules(model, sizes, stage))
    dense = sum(prod(role.on_rank(tp)) for module in parts for role in module.roles)
    routed = sum(module.routed for module in parts)
    one = sum(prod(role.on_rank(tp)) for role in shapes.expert(model, model.moe)) if model.moe else 0
    own = model.moe.num_experts // sizes.expert_model_parallel_size if model.moe else 0
    return Held(dense, routed * own * one)


def _correction_bias(moe: MoE | None) -> int:
    return moe.num_experts if moe and moe.moe_router_enable_expert_bias else 0
