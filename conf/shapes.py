"""The parameters of a model by name and shape, as Megatron-Core builds them: in the uncut model, and on one rank; and
how many they are, in total, for one token and on one rank. Names are those of a model that is cut nowhere: layers and
experts are numbered through it. All from core/models/gpt, core/transformer and core/tensor_parallel/layers.py:
ColumnParallelLinear splits weight and bias, RowParallelLinear its weight only, VocabParallelEmbedding the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

from conf.schema import MLA, Model, MoE

Shape = tuple[int, ...]
EMBEDDING = "embedding.word_embeddings.weight"
ENDS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
"""The switches of a layout by which what the first and the last stage have beside layers counts as one."""
OTHER_NAMES = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "self_attention.linear_q_up_proj.layer_norm_weight": "self_attention.q_layernorm.weight",
    "self_attention.linear_kv_up_proj.layer_norm_weight": "self_attention.kv_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
}
"""TransformerEngine keeps a norm in the matrix behind it (core/models/gpt/gpt_layer_specs.py, the keys' map)."""


class Role(NamedTuple):
    """One parameter. name: within its layer or module. part: the field of conf.shapes.Parameters that counts it.
    shape: in the uncut model. cut: the dimension that tensor parallelism splits; None is uncut on every rank."""

    name: str
    part: str
    shape: Shape
    cut: int | None = None

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def on_rank(self, tp: int) -> Shape:
        return tuple(n // tp if dim == self.cut else n for dim, n in enumerate(self.shape))


class Sizes(NamedTuple):
    """The sizes of a layout, in ranks; of virtual stages (vp), chunks of layers, dealt in turn. etp: over how many
    ranks experts are cut, None as tp. first, last: as how many layers embedding and loss count, by which the first and
    the last chunk are shorter. chunks: the layers of each chunk where those of the model are shared out otherwise."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    vp: int = 1
    cp: int = 1
    etp: int | None = None
    first: int = 0
    last: int = 0
    chunks: tuple[int, ...] | None = None

    @property
    def expert_tp(self) -> int:
        return self.etp or self.tp

    def first_layers(self, model: Model) -> list[int]:
        """Return the number of the first layer of each chunk, and behind them that of all layers."""
        return [0, *accumulate(self.chunks or self._shared_out(model.num_layers))]

    def _shared_out(self, layers: int) -> list[int]:
        """Return the layers of each chunk (core/transformer/transformer_block.py, get_num_layers_to_build)."""
        count = self.pp * self.vp
        each = [(layers + self.first + self.last) // count] * count
        each[0] -= self.first
        each[-1] -= self.last
        return each

    @classmethod
    def of(cls, layout: Any) -> Sizes:
        """Return the sizes of a Layout or LayoutChoice; what is None is 1."""
        names = ("tensor_model", "pipeline_model", "expert_model", "virtual_pipeline_model", "context")
        tp, pp, ep, vp, cp = (getattr(layout, f"{name}_parallel_size") or 1 for name in names)
        first, last = (int(getattr(layout, name) or 0) for name in ENDS)
        return cls(tp, pp, ep, vp, cp, first=first, last=last)


class Place(NamedTuple):
    """A rank's index among those with other layers, and among those with other experts, from 0."""

    pipeline: int = 0
    expert: int = 0


class Module(NamedTuple):
    """A part of a pipeline stage: the prefix of its parameters' names, these, and whether experts are beside them."""

    prefix: str
    roles: tuple[Role, ...]
    routed: bool = False


def layer(model: Model, moe: MoE | None, local: bool = False) -> tuple[Role, ...]:
    """Return the parameters of a layer, routed experts excepted: with router and shared experts, or with an MLP. local:
    Megatron's own modules, not TransformerEngine's. They split MLA's down-projections, which TransformerEngine's keep
    uncut (core/models/gpt/gpt_layer_specs.py: backend.column_parallel_linear, backend.linear)."""
    h = model.hidden_size
    norms = (Role(f"{name}_layernorm.weight", "norms", (h,)) for name in ("input", "pre_mlp"))
    attention = _latent(model, model.mla, local) if model.mla else _grouped_query(model)
    heads, width = model.num_attention_heads, model.mla.v_head_dim if model.mla else model.kv_channels
    projection = _linear("self_attention.linear_proj", "attention", (h, heads * width), 1, model.add_bias_linear)
    inner = _routing(model, moe) if moe else _mlp(model, "mlp.", "mlp", model.ffn_hidden_size)
    sinks = Role("self_attention.core_attention.softmax_offset", "attention", (heads,), 0)
    return (*norms, *attention, *projection, *((sinks,) if model.softmax_type == "learnable" else ()), *inner)


def expert(model: Model, moe: MoE) -> tuple[Role, ...]:
    """Return one routed expert."""
    return _mlp(model, "", "experts", moe.moe_ffn_hidden_size)


def modules(model: Model, sizes: Sizes, stage: int, local: bool = False) -> Iterator[Module]:
    """Yield the modules of pipeline stage `stage`, from 0. The first has the embedding, the last the output matrix, the
    final norm and multi-token prediction; a last stage that is not also the first has its own copy of the embedding
    where it is tied or multi-token prediction looks it up. Beside multi-token prediction the final norm is where the
    last layer is (core/transformer/transformer_block.py, has_final_layernorm_in_this_stage). ValueError: sizes that do
    not divide the model."""
    _check_divides(model, sizes)
    mtp, last = model.mtp_num_layers or 0, stage == sizes.pp - 1
    tied, h = not model.untie_embeddings_and_output_weights, model.hidden_size
    embedding = Role(EMBEDDING, "embedding", (model.padded_vocab_size, h), 0)
    if stage == 0 or (last and (tied or mtp)):
        yield Module("", (embedding,))
    first = sizes.first_layers(model)
    kinds = {moe: layer(model, moe, local) for moe in {None, model.moe}}
    chunks = range(stage, sizes.pp * sizes.vp, sizes.pp)
    numbers = [number for chunk in chunks for number in range(first[chunk], first[chunk + 1])]
    for number in numbers:
        moe = model.moe if number >= model.dense_layers else None
        yield Module(f"decoder.layers.{number}.", kinds[moe], moe is not None)
    if model.num_layers - 1 in numbers if mtp else last:
        yield Module("", (Role("decoder.final_layernorm.weight", "norms", (h,)),))
    if last:
        if not tied:
            yield Module("", (embedding._replace(name="output_layer.weight", part="output"),))
        norms = (Role(f"{name}.weight", "mtp", (h,)) for name in ("enorm", "hnorm", "final_layernorm"))
        joint = (Role("eh_proj.weight", "mtp", (h, 2 * h), 0), *norms)
        for number in range(mtp):  # layers like the last
            yield Module(f"mtp.layers.{number}.", joint)
            yield Module(f"mtp.layers.{number}.transformer_layer.", kinds[model.moe], model.moe is not None)


def on_rank(model: Model, sizes: Sizes, place: Place, *, local: bool = False, fused: bool = False) -> dict[str, Shape]:
    """Return shape by name in the uncut model of every parameter of a rank. local: as in `layer`. fused: all experts of
    a layer in two matrices (GroupedMLP of core/transformer/moe/experts.py). ValueError: sizes that do not divide the
    model."""
    shapes: dict[str, Shape] = {}
    for prefix, roles, routed in modules(model, sizes, place.pipeline, local):
        shapes |= {f"{prefix}{role.name}": role.on_rank(sizes.tp) for role in roles}
        if routed and model.moe:
            cut = {role.name: role.on_rank(sizes.expert_tp) for role in expert(model, model.moe)}
            experts = model.moe.num_experts // sizes.ep
            if fused:  # each expert transposed, side by side; there are no biases
                fc1, fc2 = cut["linear_fc1.weight"], cut["linear_fc2.weight"]
                named: dict[str, Shape] = {"weight1": (fc1[1], experts * fc1[0]), "weight2": (experts * fc2[1], fc2[0])}
            else:
                own = range(place.expert * experts, (place.expert + 1) * experts)
                named = {f"local_experts.{number}.{name}": shape for number in own for name, shape in cut.items()}
            shapes |= {f"{prefix}mlp.experts.{name}": shape for name, shape in named.items()}
    return shapes


def usual_name(name: str) -> str:
    """Return the name here of a parameter that a stack calls `name`."""
    end = next((end for end in OTHER_NAMES if name.endswith(f".{end}")), "")
    name = name.removesuffix(end) + OTHER_NAMES.get(end, "")
    return name.replace(".mtp_model_layer.", ".transformer_layer.")  # as newer Megatron-Core calls it


def _linear(name: str, part: str, shape: Shape, cut: int | None, bias: bool) -> tuple[Role, ...]:
    """Return a weight [outputs, inputs], and a bias where there is one, which is cut with the outputs."""
    weight = Role(f"{name}.weight", part, shape, cut)
    return (weight, Role(f"{name}.bias", part, shape[:1], 0 if cut == 0 else None)) if bias else (weight,)


def _grouped_query(model: Model) -> tuple[Role, ...]:
    """Return queries, keys and values in one matrix, and the norms of queries and keys, over a head's channels."""
    channels = model.kv_channels
    rows = (model.num_attention_heads + 2 * model.num_query_groups) * channels
    bias = model.add_qkv_bias or model.add_bias_linear
    qkv = _linear("self_attention.linear_qkv", "attention", (rows, model.hidden_size), 0, bias)
    return qkv + _norms_within(model, {"q": channels, "k": channels})


def _latent(model: Model, mla: MLA, local: bool) -> tuple[Role, ...]:
    heads, h, down = model.num_attention_heads, model.hidden_size, 0 if local else None
    queries, q_rank = heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim), mla.q_lora_rank
    matrices: dict[str, tuple[Shape, int | None]] = {
        "kv_down": ((mla.kv_lora_rank + mla.qk_pos_emb_head_dim, h), down),
        "kv_up": ((heads * (mla.qk_head_dim + mla.v_head_dim), mla.kv_lora_rank), 0),
    }
    if q_rank:
        matrices |= {"q_down": ((q_rank, h), down), "q_up": ((queries, q_rank), 0)}
    else:
        matrices["q"] = ((queries, h), 0)
    roles = (Role(f"self_attention.linear_{n}_proj.weight", "attention", *rest) for n, rest in matrices.items())
    return (*roles, *_norms_within(model, {"q": q_rank, "kv": mla.kv_lora_rank}))


def _norms_within(model: Model, sizes: Mapping[str, int | None]) -> tuple[Role, ...]:
    names = [name for name, size in sizes.items() if size and model.qk_layernorm]
    return tuple(Role(f"self_attention.{n}_layernorm.weight", "attention", (sizes[n] or 0,)) for n in names)


def _mlp(model: Model, where: str, part: str, width: int) -> tuple[Role, ...]:
    """Return fc1 (gate and up in one, where there is a gate) and fc2, `width` wide."""
    h, bias, wide = model.hidden_size, model.add_bias_linear, width * (2 if model.gated_linear_unit else 1)
    fc1 = _linear(f"{where}linear_fc1", part, (wide, h), 0, bias)
    return fc1 + _linear(f"{where}linear_fc2", part, (h, width), 1, bias)


def _routing(model: Model, moe: MoE) -> tuple[Role, ...]:
    """Return the router, to which Megatron gives a bias with add_bias_linear. The correction bias is a buffer."""
    shape, width = (moe.num_experts, model.hidden_size), moe.moe_shared_expert_intermediate_size
    router = _linear("mlp.router", "router", shape, None, model.add_bias_linear)
    return router + (_mlp(model, "mlp.shared_experts.", "shared_experts", width) if width else ())


def tensor_widths(model: Model) -> dict[str, int]:
    """Return what tensor parallelism cuts, so that its size must divide each, by field name."""
    widths = {"num_attention_heads": model.num_attention_heads, "num_query_groups": model.num_query_groups}
    if model.dense_layers:
        widths["ffn_hidden_size"] = model.ffn_hidden_size
    if model.moe:
        widths["moe_ffn_hidden_size"] = model.moe.moe_ffn_hidden_size
        widths["moe_shared_expert_intermediate_size"] = model.moe.moe_shared_expert_intermediate_size or 0
    if model.mtp_num_layers:
        widths["hidden_size"] = model.hidden_size
    return widths | {"padded_vocab_size": model.padded_vocab_size}


_OF_EXPERTS = ("moe_ffn_hidden_size",)


def _check_divides(model: Model, sizes: Sizes) -> None:
    tp, pp, ep, vp = sizes[:4]
    checked = [(name, n, sizes.expert_tp if name in _OF_EXPERTS else tp) for name, n in tensor_widths(model).items()]
    experts = model.moe.num_experts if model.moe else 1
    checked += [("num_experts", experts, ep)]
    if sizes.chunks is None:
        checked += [("num_layers", model.num_layers + sizes.first + sizes.last, pp * vp)]
    elif (len(sizes.chunks), sum(sizes.chunks)) != (pp * vp, model.num_layers):
        raise ValueError(f"{model.num_layers} layers in {pp * vp} chunks are not {sizes.chunks}")
    broken = [f"{name} {n} / {size}" for name, n, size in checked if size < 1 or n % size]
    if broken:
        raise ValueError(f"TP {tp} × PP {pp * vp} × EP {ep} does not divide {model.name}: {', '.join(broken)}")


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
        """Return all but those for multi-token prediction."""
        dense = self.embedding + self.output + self.attention + self.mlp + self.norms
        return dense + self.router + self.shared_experts + self.experts

    @property
    def active(self) -> int:
        """Return those that one token passes: all but experts that it is not sent to. The embedding counts."""
        return self.total - self.experts + self.active_experts


def count(model: Model) -> Parameters:
    """Count the parameters of `model`, from the shapes of its published checkpoint."""
    moe = model.moe
    one = sum(role.numel for role in expert(model, moe)) if moe else 0
    parts: Counter[str] = Counter()
    for module in modules(replace(model, make_vocab_size_divisible_by=1), Sizes(), 0):
        own = Counter[str]()
        for role in module.roles:
            own[role.part] += role.numel
        if module.routed and moe:
            own["router"] += moe.num_experts if moe.moe_router_enable_expert_bias else 0
            own["experts"] += moe.num_experts * one
        if module.prefix.startswith("mtp."):
            own = Counter(mtp=own.total())
        elif module.routed and moe:
            own["active_experts"] += moe.moe_router_topk * one
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
    down-projections (TransformerEngine's) are on every rank, experts are cut by EP and then by TP; see `on_rank`.
    ValueError: sizes that do not divide the model."""
    moe, counts = model.moe, []
    one = sum(prod(role.on_rank(sizes.expert_tp)) for role in expert(model, moe)) if moe else 0
    for stage in range(max(1, sizes.pp)):
        parts = list(modules(model, sizes, stage))
        dense = sum(prod(role.on_rank(sizes.tp)) for module in parts for role in module.roles)
        routed = sum(module.routed for module in parts)
        counts.append(RankParameters(dense, routed * (moe.num_experts // sizes.ep if moe else 0) * one))
    return tuple(counts)
