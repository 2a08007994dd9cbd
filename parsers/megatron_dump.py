"""The meaning of a dump of Megatron's arguments: arguments that other arguments switch off are printed with their
defaults.

The rules name canonical settings, so that a dense model's record does not claim a router."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from conf.vocabulary import switched_off
from parsers.record import Reading
from parsers.values import integer

_LISTED = re.compile(r"\['[^']*'(?:, '[^']*')*\]")
_WHOLE = 50  # arguments; the shortest dump seen has 190
# What a complete dump that lacks the argument says by that: it is older than the feature.
_OLDER: dict[str, Any] = {"multi_latent_attention": False, "mtp_num_layers": None, "num_experts": None}
_OTHER_LAYERS = (
    *("hybrid_override_pattern", "hybrid_layer_pattern", "hybrid_model", "is_hybrid_model"),
    *("experimental_attention_variant", "linear_attention_type", "linear_attention_freq", "hybrid_attention_enabled"),
)
_FAMILIES = ("gpt", "mamba")  # Primus' model_type of what Megatron builds; Megatron prints a ModelType
# megatron/core/transformer/enums.py AttnBackend: which kernels of PyTorch these end in is the vocabulary's word.
_ATTENTION = {
    **dict.fromkeys(("AttnBackend.auto", "AttnBackend.flash", "AttnBackend.fused"), "sdpa"),
    **dict.fromkeys(("AttnBackend.unfused", "AttnBackend.local"), "unfused"),
}


def in_effect(
    dumped: Mapping[str, Reading], arguments: Mapping[str, Reading], complete: bool = False
) -> dict[str, Reading]:
    """Return `dumped`, by canonical name, without what is switched off, and with what stands under another argument.

    arguments: the same dump under Megatron's names. complete: from its first to its last line."""
    settings, old = dict(dumped), complete and len(arguments) >= _WHOLE
    if old:
        last = max(reading.line for reading in arguments.values())
        settings = {**{name: Reading(value, last) for name, value in _OLDER.items()}, **settings}
    off = set(switched_off({name: reading.value for name, reading in settings.items()}))
    settings.update({name: replace(settings[name], value=None) for name in off & settings.keys()})
    if _value(settings, "padded_vocab_size") is None:
        settings.pop("padded_vocab_size", None)  # padded after the dump was printed: not part of it
    if isinstance(_value(arguments, "layernorm_epsilon"), float):
        # norm_epsilon is obsolete where both are printed, and printed all the same
        settings["norm_epsilon"] = arguments["layernorm_epsilon"]
    if "save_interval" in settings and _never_saves(arguments):
        settings["save_interval"] = replace(settings["save_interval"], value=None)
    size = _value(settings, "vocab_size")
    if _value(arguments, "tokenizer_type") == "NullTokenizer" and type(size) is int:
        # NullTokenizer adds an end-of-document token (megatron/core/tokenizers, _NullTokenizer).
        settings["vocab_size"] = replace(settings["vocab_size"], value=size + 1)
    if (backend := str(_value(settings, "attention_backend"))) in _ATTENTION:
        settings["attention_backend"] = replace(settings["attention_backend"], value=_ATTENTION[backend])
    return {
        **settings,
        **_query_groups(settings, arguments, old),
        **_gated(arguments, old),
        **_window(arguments),
        **_data(settings, arguments),
        **_dense_layers(settings, arguments),
    }


def _value(readings: Mapping[str, Reading], name: str) -> Any:
    """Return a value, None where it is missing, too."""
    return readings[name].value if name in readings else None


def other_layers(arguments: Mapping[str, Reading]) -> str | None:
    """Return what says that the model has layers beside attention and MLP (Mamba, Hyena, linear attention): the pattern
    of the hybrids, in Megatron-LM and under model in Bridge's dump. None where nothing says so."""
    named = {name: at.value for name, at in arguments.items() if name.rpartition(".")[2] in _OTHER_LAYERS}
    return next((f"{name} {value}" for name, value in named.items() if value not in (None, False, "", "None")), None)


def _never_saves(arguments: Mapping[str, Reading]) -> bool:
    """Return whether nothing is saved: up to v26.4 Primus forces `save` to a folder; disable_last_saving is its own,
    and leaves out the last checkpoint (primus/backends/megatron/patches/checkpoint_patches.py:192), so an interval
    beyond the end means none at all."""
    interval, last = (_value(arguments, name) for name in ("save_interval", "train_iters"))
    beyond = type(interval) is int and type(last) is int and interval > last
    nowhere = "save" in arguments and arguments["save"].value is None
    return nowhere or (_value(arguments, "disable_last_saving") is True and beyond)


def _query_groups(settings: Mapping[str, Reading], arguments: Mapping[str, Reading], old: bool) -> dict[str, Reading]:
    """Read num_query_groups: without group_query_attention each head has its own group; the printed default of 1 is not
    used. A model_type of another family than Megatron's has a meaning of its own: DeepSeek-V4's one group is one latent
    head for keys and values (Primus, deepseek_v4_attention.py), and stays as it is printed."""
    family = _value(arguments, "model_type")
    if isinstance(family, str) and family not in _FAMILIES and not family.startswith("ModelType."):
        return {}
    heads, grouped = settings.get("num_attention_heads"), "group_query_attention" in arguments
    older = old and not grouped and "num_query_groups" not in arguments
    alone = older or (grouped and arguments["group_query_attention"].value is False)
    return {"num_query_groups": heads} if heads is not None and alone else {}


def _gated(arguments: Mapping[str, Reading], old: bool) -> dict[str, Reading]:
    """Return the gates. quick_geglu came with gpt-oss: a complete dump without it is older, and knows no gate but
    swiglu; without swiglu, too, none at all, unless it is BigScience's, which has glu_activation."""
    switches = [arguments[name] for name in ("swiglu", "quick_geglu") if name in arguments]
    older = old and "glu_activation" not in arguments
    if older and not switches:
        return {"gated_linear_unit": Reading(False, max(reading.line for reading in arguments.values()))}
    known = (len(switches) == 2 or older) and all(isinstance(switch.value, bool) for switch in switches)
    return {"gated_linear_unit": replace(switches[0], value=any(s.value for s in switches))} if known else {}


def _window(arguments: Mapping[str, Reading]) -> dict[str, Reading]:
    """Read window_size: (w - 1, 0) is a window of w tokens to the left."""
    window, every = arguments.get("window_size"), "window_attn_skip_freq"
    values = {every: arguments[every]} if every in arguments else {}
    if window is not None:
        left, _, right = str(window.value).strip("()[]").partition(",")
        size = integer(left.strip()) if right.strip() == "0" else None
        if window.value is None or size is not None:
            values["window_size"] = replace(window, value=None if size is None else size + 1)
    return values


def _data(settings: Mapping[str, Reading], arguments: Mapping[str, Reading]) -> dict[str, Reading]:
    """Read the one data set, also where it is under the argument for training alone. Of mock data, Megatron-Core makes
    three even parts, whatever was requested (megatron/core/datasets/blended_megatron_dataset_config.py:144 in
    d3528a2)."""
    if _value(arguments, "mock_data") is True:
        even = {"data": "mock", "data_path": None, "split": "1,1,1"}
        return {name: replace(arguments["mock_data"], value=value) for name, value in even.items()}
    if _value(settings, "data_path") is not None:
        return {"data_path": _alone(settings["data_path"])}
    if _value(arguments, "train_data_path") is None:
        return {}
    values = {"data_path": _alone(arguments["train_data_path"])}
    if "split" in settings and settings["split"].value is None:
        values["split"] = replace(settings["split"], value="100,0,0")
    return values


def _alone(paths: Reading) -> Reading:
    """Return the path of a list of one, as `print` shows it, or the weights and paths of a blend, with spaces between
    them."""
    words = _LISTED.fullmatch(str(paths.value))
    return replace(paths, value=" ".join(words[0][2:-2].split("', '"))) if words else paths


def _dense_layers(settings: Mapping[str, Reading], arguments: Mapping[str, Reading]) -> dict[str, Reading]:
    """Read moe_layer_freq as a list of 0 and 1, a layer each: how many dense ones come first, if they all do."""
    frequency = arguments.get("moe_layer_freq")
    if frequency is None or _value(settings, "num_experts") is None or "moe_first_dense_layers" in settings:
        return {}
    if frequency.value == 1:
        return {"moe_first_dense_layers": replace(frequency, value=0)}
    pattern = "".join(c for c in str(frequency.value) if c not in "[], ")
    dense = len(pattern) - len(pattern.lstrip("0"))
    listed = str(frequency.value).startswith("[") and set(pattern) <= {"0", "1"} and "0" not in pattern[dense:]
    return {"moe_first_dense_layers": replace(frequency, value=dense)} if listed and pattern else {}
