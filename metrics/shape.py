"""The shape of a model as the FLOPs formula needs it, filled alike from conf/'s Model and from a record's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from conf.schema import MLA, Model
from conf.vocabulary import requested
from parsers.record import Record
from parsers.values import compute_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes in elements, 0 of what the model has not. vocabulary: rows of the output matrix, padded where that is
    known. window_size and the experts as in conf.schema.Model. untie_embeddings_and_output_weights: None where it is
    unknown; it adds no operation. The last four add parameters and activations, and next to no operation: False where
    nobody says."""

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    kv_channels: int
    vocabulary: int
    gated_linear_unit: bool
    untie_embeddings_and_output_weights: bool | None
    window_size: int | None = None
    window_attn_skip_freq: int | None = None
    mla: MLA | None = None
    num_experts: int = 0
    moe_router_topk: int = 0
    moe_ffn_hidden_size: int = 0
    moe_shared_expert_intermediate_size: int = 0
    moe_first_dense_layers: int = 0
    mtp_num_layers: int = 0
    qk_layernorm: bool = False
    add_qkv_bias: bool = False
    add_bias_linear: bool = False
    attention_sinks: bool = False

    @property
    def dense_layers(self) -> int:
        """Count layers with an MLP, without those for multi-token prediction, which are like the last."""
        return min(self.moe_first_dense_layers, self.num_layers) if self.num_experts else self.num_layers


@dataclass(frozen=True, slots=True)
class Facts:
    """Settings of a run by canonical name. requested: those that were only requested or stated, and not read back.
    other_layers: the setting that names layers which no formula here counts (Mamba, Hyena, linear attention)."""

    settings: Mapping[str, Any]
    requested: frozenset[str] = frozenset()
    other_layers: str | None = None

    def size(self, name: str) -> int | None:
        """Return a setting that is a positive integer, else None."""
        value = self.settings.get(name)
        return value if type(value) is int and value > 0 else None


class ShapeOrMissing(NamedTuple):
    """shape is None exactly where something is missing. requested: settings in it that were not read back."""

    shape: Shape | None
    missing: tuple[str, ...]
    requested: tuple[str, ...] = ()


def facts_of(record: Record) -> Facts:
    """Return what ran where the log says so, else what the user stated of it, else what was requested."""
    ran = {name: reading.value for name, reading in record.effective.items()}
    others = {name: value for name, value in {**record.requested, **record.given}.items() if name not in ran}
    if ran.get("num_query_groups") == 1 and record.requested.get("num_query_groups") != 1:
        # Megatron prints 1 also for plain multi-head attention: arguments.py --num-query-groups counts only with
        # --group-query-attention.
        del ran["num_query_groups"]
    other, modules = (record.environment.get(name) for name in ("other_layers", "recompute_modules"))
    if modules is not None:
        ran["recompute_modules"] = modules
    if (compute := compute_dtype(record.environment)) is not None:
        ran["compute_dtype"] = compute
    return Facts({**others, **ran}, frozenset(others), None if other is None else str(other))


def shape_of_model(model: Model) -> Shape:
    """Return the shape of a model of conf/model."""
    known = shape_from(Facts(requested(SimpleNamespace(model=model), partial=True)))
    assert known.shape is not None, known.missing
    return replace(known.shape, attention_sinks=model.softmax_type == "learnable")


def shape_from(facts: Facts) -> ShapeOrMissing:
    """Return the shape that canonical settings describe, or the names of those that are missing."""
    if facts.other_layers is not None:
        return ShapeOrMissing(None, (f"what its other layers compute ({facts.other_layers[:60]})",))
    reader = _Reader(facts)
    shape = reader.shape()
    missing = tuple(dict.fromkeys(reader.missing))
    return ShapeOrMissing(None if missing else shape, missing, tuple(sorted(facts.requested & reader.used)))


class _Reader:
    """Read settings; note which were used, which are missing. A missing size counts as 1; no such shape is kept."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.missing: list[str] = []
        self.used: set[str] = set()

    def shape(self) -> Shape:
        latent, experts = self.flag("multi_latent_attention"), self.experts()
        gated = "swiglu" if self.facts.settings.get("swiglu") is True else "gated_linear_unit"
        dense = not experts or experts["moe_first_dense_layers"] > 0
        return Shape(
            num_layers=self.size("num_layers"),
            hidden_size=(hidden := self.size("hidden_size")),
            ffn_hidden_size=self.size("ffn_hidden_size") if dense else 0,
            num_attention_heads=(heads := self.size("num_attention_heads")),
            # Where they are None: a group for each head, and hidden size by heads (TransformerConfig.__post_init__).
            num_query_groups=0 if latent else self.size("num_query_groups", may_lack=True) or heads,
            kv_channels=0 if latent else self.size("kv_channels", may_lack=True) or hidden // heads,
            vocabulary=self.size(self.rows()),
            gated_linear_unit=self.flag(gated) is True,
            untie_embeddings_and_output_weights=self.flag("untie_embeddings_and_output_weights", needed=False),
            window_size=self.facts.size("window_size"),
            window_attn_skip_freq=self.facts.size("window_attn_skip_freq"),
            mla=self.latent() if latent else None,
            mtp_num_layers=self.size("mtp_num_layers", may_lack=True),
            qk_layernorm=self.switched_on("qk_layernorm"),
            add_qkv_bias=self.switched_on("add_qkv_bias"),
            add_bias_linear=self.switched_on("add_bias_linear"),
            **experts,
        )

    def size(self, name: str, may_lack: bool = False) -> int:
        """Return a size; of a part that a model may lack 0, where it is reported as None or 0."""
        self.used.add(name)
        if may_lack and name in self.facts.settings and not self.facts.settings[name]:
            return 0
        size = self.facts.size(name)
        if size is None:
            self.missing.append(name)
        return size or 1

    def flag(self, name: str, needed: bool = True) -> bool | None:
        self.used.add(name)
        value = self.facts.settings.get(name)
        if needed and type(value) is not bool:
            self.missing.append(name)
        return value if type(value) is bool else None

    def switched_on(self, name: str) -> bool:
        """Return whether a part is reported that no operation of the FLOPs formula depends on."""
        return self.facts.settings.get(name) is True

    def rows(self) -> str:
        """Return the setting with the rows of the output matrix: padded in Megatron, vocab_size in TorchTitan. One that
        was read back counts before one that was only requested."""
        names = [name for name in ("padded_vocab_size", "vocab_size") if self.facts.size(name)]
        return min(names, key=self.facts.requested.__contains__, default="vocab_size")

    def experts(self) -> dict[str, Any]:
        count = self.size("num_experts", may_lack=True)
        if not count or "num_experts" in self.missing:
            return {}
        first = self.facts.settings.get("moe_first_dense_layers")
        if type(first) is not int:
            self.missing.append("moe_first_dense_layers")
        self.used.add("moe_first_dense_layers")
        return {
            "num_experts": count,
            "moe_router_topk": self.size("moe_router_topk"),
            # None: the experts are as wide as the MLP (megatron/training/training.py, transformer_flops).
            "moe_ffn_hidden_size": self.size("moe_ffn_hidden_size", may_lack=True) or self.size("ffn_hidden_size"),
            "moe_shared_expert_intermediate_size": self.size("moe_shared_expert_intermediate_size", may_lack=True),
            "moe_first_dense_layers": first if type(first) is int else 0,
        }

    def latent(self) -> MLA:
        queries = self.size("q_lora_rank", may_lack=True) or None
        sizes = {name: self.size(name) for name in ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")}
        return MLA(q_lora_rank=queries, **sizes)
