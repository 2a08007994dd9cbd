"""How many parameters a model has, in total, for one token and on one rank. Exact integers; no memory in bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from math import prod

from conf import shapes
from conf.schema import Model
from conf.shapes import Sizes


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters by part, over all layers. Vocabulary unpadded, as published totals count it; tied embeddings once.
    router: DeepSeek-V3's correction bias among it, as its published total has it. experts: the routed ones, and
    active_experts those of them that one token is sent to. mtp: modules for multi-token prediction, which published
    totals leave out; embedding and output are the main model's."""

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
        """Count all without multi-token prediction."""
        dense = self.embedding + self.output + self.attention + self.mlp + self.norms
        return dense + self.router + self.shared_experts + self.experts

    @property
    def active(self) -> int:
        """Count those that one token passes: all but the experts it is not sent to. The embedding, looked up,
        counts."""
        return self.total - self.experts + self.active_experts


def count(model: Model) -> Parameters:
    """Count the parameters of `model`, from the shapes of its published checkpoint."""
    moe = model.moe
    expert = sum(role.numel for role in shapes.expert(model, moe)) if moe else 0
    parts: Counter[str] = Counter()
    for module in shapes.modules(replace(model, make_vocab_size_divisible_by=1), Sizes(), 0):
        own = Counter[str]()
        for role in module.roles:
            own[role.part] += role.numel
        if module.routed and moe:
            own["router"] += moe.num_experts if moe.moe_router_enable_expert_bias else 0
            own["experts"] += moe.num_experts * expert
        if module.prefix.startswith("mtp."):
            own = Counter(mtp=own.total())
        elif module.routed and moe:
            own["active_experts"] += moe.moe_router_topk * expert
        parts += own
    return Parameters(**{field.name: parts[field.name] for field in fields(Parameters)})


@dataclass(frozen=True, slots=True)
class RankParameters:
    """Parameters on one rank: experts, which only the ranks of the same expert index share, and the rest."""

    dense: int
    experts: int

    @property
    def total(self) -> int:
        return self.dense + self.experts


def per_rank(model: Model, sizes: Sizes) -> RankParameters:
    """Return the parameters of the fullest rank. See `per_stage`."""
    return max(per_stage(model, sizes), key=lambda rank: rank.total)


def per_stage(model: Model, sizes: Sizes) -> tuple[RankParameters, ...]:
    """Return the parameters of one rank in each pipeline stage, with the padded vocabulary. Norms, routers and MLA's
    down-projections (TransformerEngine's) are on every rank, experts are cut by EP and then by TP; see conf/shapes.py.
    ValueError: sizes that do not divide the model."""
    moe, counts = model.moe, []
    expert = sum(prod(role.on_rank(sizes.tp)) for role in shapes.expert(model, moe)) if moe else 0
    for stage in range(max(1, sizes.pp)):
        modules = list(shapes.modules(model, sizes, stage))
        dense = sum(prod(role.on_rank(sizes.tp)) for module in modules for role in module.roles)
        routed = sum(module.routed for module in modules)
        counts.append(RankParameters(dense, routed * (moe.num_experts // sizes.ep if moe else 0) * expert))
    return tuple(counts)
