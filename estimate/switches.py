"""Gradients, graphs and experts by a vendor's recipe, and which recipe a published run followed: a table of
runs has no columns for these, and a step of experts depends on them."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import nan
from pathlib import Path
from typing import Any

from conf.facts import hardware
from conf.recipes import GLOBAL_BATCH, MICRO_BATCH, RECIPES, Recipe, recipes
from conf.vocabulary import read_yaml
from estimate.cells import BY_OPERATOR, Again, hardware_named, plain, spellings, word
from estimate.jobs import RECOMPUTED

TABLES = Path(__file__).parents[1] / "conf" / "tables"
UNKNOWN: Mapping[str, float] = {"cuda_graphs": nan, "flex_dispatcher": nan, "overlapped_experts": nan}
_LAST_YEAR = 99  # of a container's release; beyond it stands a date
IDENTICAL: Mapping[str, float] = {
    **dict.fromkeys((*UNKNOWN, "overlapped_tensor"), 0.0),
    "fp32_logits": 1.0,
}
"""The same where no recipe decides: as `switches` of launchers/settings switch them off."""
_OF_A_RELEASE = (
    *(*UNKNOWN, "overlapped_tensor", "recompute_layers", "fp8_params", "fp8_activations", "cp_a2a"),
    *("padded_experts", "graphed_experts", "expert_tensor_parallel_size"),
)
SWITCHED_OFF = (
    *("padded_experts", "overlapped_tensor", "cp_a2a", "fp8_activations", "uncompiled", "fp8_by_rows"),
    *("unfused_attention", "fp32_logits", "graphed_experts"),
)
"""Columns of Jobs that are 0 where neither a recipe nor a note says otherwise."""
_GRAPHS = {"attn": 1 / 3, "mlp": 2 / 3, "moe_router": 1 / 6, "moe_preprocess": 1 / 6, "moe": 1 / 3}
"""Share of a layer's kernels in a graph of this scope (Megatron-Core's cuda_graph_scope): a third each for attention,
routing and experts, an MLP in place of the last two."""
_FP8_PARAMS = ("fp8_param", "fp8_param_gather", "fp8_params")
"""Settings of recipes by which weights rest in fp8, in Bridge, Primus and NeMo."""
_FP8 = ("fp8", "fp8_current", "mxfp8")
"""Precisions whose presets rest weights in fp8 where a recipe does not say: bf16_with_fp8_mixed and its kin of
Megatron-Bridge (training/mixed_precision.py) and NeMo (llm/recipes/precision/mixed_precision.py)."""
_BYTES = {"float32": 4, "fp32": 4, "bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "uint8": 1, "fp8": 1}
_SIZES = ("tensor_model", "pipeline_model", "virtual_pipeline_model", "context", "expert_model")
_PRECISIONS = {"fp8_current": "fp8"}


def switches(recipe: Recipe) -> dict[str, float]:
    """Return the optional columns of Jobs that a recipe decides; nan where it does not say."""
    dispatcher = recipe.stated("moe_token_dispatcher_type")
    deep = recipe.stated("use_turbo_deepep") or recipe.stated("moe_enable_deepep")
    overlap = recipe.settings.get("comm_overlap")
    known = overlap.get("set", {}) if isinstance(overlap, Mapping) else {}
    overlapped = known.get("overlap_moe_expert_parallel_comm", recipe.stated("overlap_moe_expert_parallel_comm"))
    tensor = known.get("tp_comm_overlap", recipe.stated("tp_comm_overlap"))
    return {
        **({} if tensor is None else {"overlapped_tensor": float(bool(tensor))}),
        **_of_loss(recipe.stated("cross_entropy_loss_fusion"), recipe.stated("cross_entropy_fusion_impl")),
        "cuda_graphs": _graphs(recipe),
        "flex_dispatcher": nan if dispatcher is None else float(dispatcher == "flex" or bool(deep)),
        "overlapped_experts": nan if overlapped is None else float(bool(overlapped)),
        "graphed_experts": float(_is_graphed(recipe)),
        **_of_torchtitan(recipe),
    }


def _is_graphed(recipe: Recipe) -> bool:
    """Return whether nothing is started for each expert: one kernel makes all their products, or the whole step is a
    graph, which takes buffers of one size."""
    scope = recipe.stated("cuda_graph_scope") or ()
    whole = "full_iteration" in (recipe.stated("cuda_graph_impl"), *([scope] if isinstance(scope, str) else scope))
    fused = recipe.stated("use_transformer_engine_op_fuser")
    return bool(fused or (whole and recipe.stated("moe_paged_stash")))


def read_back(settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the optional columns of Jobs that what ran says of itself, by its canonical settings."""
    dispatcher, graphs, tensor = (
        settings.get(name) for name in ("moe_token_dispatcher_type", "cuda_graph_impl", "tp_comm_overlap")
    )
    attention, overlap = settings.get("attention_backend"), settings.get("overlap_grad_reduce")
    rests, context = settings.get("fp8_param_gather"), settings.get("cp_comm_type")
    return {
        **({} if dispatcher is None else {"flex_dispatcher": float(dispatcher == "flex")}),
        **({"cuda_graphs": 0.0} if graphs == "none" else {}),
        **({} if tensor is None else {"overlapped_tensor": float(bool(tensor))}),
        **({} if rests is None else {"fp8_params": float(bool(rests))}),
        **({} if context is None else {"cp_a2a": float(context in ("a2a", ["a2a"]))}),
        **({} if attention is None else {"unfused_attention": float(attention == "unfused")}),
        **({} if overlap is None else {"overlapped_data": float(bool(overlap))}),
        **_of_loss(settings.get("cross_entropy_loss_fusion"), settings.get("cross_entropy_fusion_impl")),
    }


def _of_loss(fused: bool | None, by: str | None) -> dict[str, float]:
    return {} if fused is None else {"fp32_logits": float(not fused or by == "native")}


def _graphs(recipe: Recipe) -> float:
    """Return the share of a layer that is in graphs."""
    kind, scope = recipe.stated("cuda_graph_impl"), recipe.stated("cuda_graph_scope") or []
    if kind is None:
        enabled = recipe.stated("enable_cuda_graph")
        return nan if enabled is None else float(bool(enabled))
    scopes = [scope] if isinstance(scope, str) else list(scope)
    if kind == "none":
        return 0.0
    return 1.0 if not scopes or "full_iteration" in scopes else min(1.0, sum(_GRAPHS.get(s, 0.0) for s in scopes))


def again(how: tuple[Any, Any, Any], modules: frozenset[str], chunks: int, layers: int) -> Again:
    """Return what Megatron recomputes. how: recompute_granularity, _method and _num_layers: `uniform` is all layers,
    `block` the first num_layers of each of `chunks` parts of the pipeline (Megatron-LM@d98e8a6
    megatron/core/recompute.py:170-180), `selective` the modules."""
    granularity, method, num_layers = how
    if granularity == "full":
        return Again(1.0 if method == "uniform" else min(1.0, (num_layers or 1) * chunks / layers))
    return Again(modules=modules or frozenset(("core_attn",))) if granularity == "selective" else Again()


def recompute_modules(recipe: Recipe | None) -> frozenset[str]:
    """Return the modules that a recipe recomputes; those that Jobs do not tell apart (shared experts) are left out."""
    named = (recipe.stated("recompute_modules") if recipe else None) or ()
    return frozenset(named).intersection(RECOMPUTED)


def columns_of_recipe(recipe: Recipe, stack: str = "") -> dict[str, float]:
    """Return the columns of Jobs that a table of runs has no column for, by the recipe that a row followed. stack: of
    the row; a release that is earlier than the recipe starts each expert."""
    gradients = recipe.experiment.get("precision.accumulate_allreduce_grads_in_fp32")
    known = {} if gradients is None else {"gradient_bytes": 4.0 if gradients else 2.0}
    later = {"graphed_experts": 0.0} if is_of(recipe.release, stack) is False else {}
    return known | switches(recipe) | kept_in_less(recipe) | later


def _of_torchtitan(recipe: Recipe) -> dict[str, float]:
    """Return what a recipe of TorchTitan says of torch.compile, asynchronous tensor parallelism and float8's scales."""
    stated = recipe.settings
    if (compiled := stated.get("compile.enable")) is None:
        return {}
    return {
        "uncompiled": float(not compiled),
        "overlapped_tensor": float(bool(stated.get("parallelism.enable_async_tensor_parallel"))),
        "fp8_by_rows": float(stated.get("quantize.linear.float8.recipe_name") == "rowwise"),
    }


def kept_in_less(recipe: Recipe) -> dict[str, float]:
    """Return what a recipe keeps in less than usual: weights in fp8; gradients in their parameters' precision, which
    torch's FSDP2 does until the optimizer copies them, when activations are gone (Megatron-Core,
    optimizer/optimizer.py, _copy_model_grads_to_main_grads); the optimizer's states (use_precision_aware_optimizer)."""
    known = {"fp8_params": float(_in_fp8(recipe))}
    if recipe.stated("use_torch_fsdp2"):
        known["gradient_bytes"] = 2.0
    if not recipe.stated("use_precision_aware_optimizer"):
        return known
    kept = [recipe.stated(f"{name}_dtype") for name in ("main_params", "exp_avg", "exp_avg_sq")]
    names = [kind["dtype"] if isinstance(kind, Mapping) else kind or "float32" for kind in kept]
    return known | {"optimizer_bytes": float(sum(_BYTES[str(name)] for name in names))}


def released(model: str, job: Mapping[str, Any]) -> dict[str, float]:
    """Return columns of Jobs as the recipe of a release, or the configuration of a submission, had them that ran a
    published layout (`released` of spellings.yaml): a later one of the same layout may dispatch otherwise. model: as
    its row spells it. Empty where none is known."""
    framework, _, release = str(job["stack"]).partition("-")
    if (known := spellings()["released"].get(framework)) is None:
        return {}
    key = (release, plain(model), *(job[_PLACES[place]] for place in known["by"]))
    return dict(_released(framework).get(key, {}))


_PLACES = {name: f"{whole}_parallel_size" for name, whole in zip(("tp", "pp", "vp", "cp", "ep"), _SIZES, strict=True)}
_PLACES |= {"gpu": "hardware", "precision": "precision", "mbs": "micro_batch_size"}


@cache
def _released(framework: str) -> Mapping[tuple[Any, ...], Mapping[str, float]]:
    known = spellings()["released"][framework]
    read: Mapping[str, Callable[[str], Any]] = {
        "gpu": lambda text: hardware_named(text).name,
        "precision": lambda text: word("precision", text),
    }
    with (TABLES / known["table"]).open(newline="", encoding="utf-8") as file:
        return {
            (row["release"], plain(row["model"]), *(read.get(place, int)(row[place]) for place in known["by"])): {
                column: float(text) for column, text in row.items() if column in _OF_A_RELEASE and text
            }
            for row in csv.DictReader(file)
        }


def overlaps_tensor(job: Mapping[str, Any]) -> float:
    """Return whether published runs of a stack overlap tensor-parallel collectives with products (spellings.yaml)."""
    known, device = spellings()["overlapped_tensor"], hardware(str(job["hardware"]))
    kinds = known["kinds"].get(str(job["stack"]).partition("-")[0], ())
    of_maker = device is not None and device.vendor == known["vendor"]
    return float(of_maker and job["trained"] in kinds and job["precision"] != known["not_in"])


def packed_tokens(job: Mapping[str, Any]) -> float:
    """Return the tokens of the samples that published runs of a stack pack into a sequence; 0 where none are."""
    known: Mapping[str, float] = spellings()["packed_tokens"].get(str(job["stack"]).partition("-")[0], {})
    return float(known.get(str(job["trained"]), 0))


def layers_by_number(recipe: Recipe | None) -> int:
    """Return how many layers a recipe recomputes that it names by number (Primus' recompute_layer_ids)."""
    named = recipe.stated("recompute_layer_ids") if recipe else None
    return len(str(named).split(",")) if named else 0


def of_torchtitan(recipe: Recipe | None) -> Again | None:
    """Return what a recipe of TorchTitan recomputes in its own words: of each layer, or every so many layers whole."""
    if recipe is None or recipe.stated("mode") != "selective":
        return None
    option = str(recipe.stated("selective_ac_option"))
    return Again(1 / int(option)) if option.isdecimal() and int(option) else BY_OPERATOR


def _in_fp8(recipe: Recipe) -> bool:
    """Return whether a recipe's weights rest in fp8: as it states, else as the preset of its precision has it."""
    stated = [value for name in _FP8_PARAMS if (value := recipe.stated(name)) is not None]
    return any(stated) if stated else recipe.precision in _FP8


def recomputed_by(recipe: Recipe, chunks: int, layers: int) -> Again:
    """Return what a recipe recomputes."""
    if by_number := layers_by_number(recipe):
        return Again(by_number / layers)
    if selective := of_torchtitan(recipe):
        return selective
    granularity, method, count = (
        recipe.experiment.get(f"training.recompute_{name}") for name in ("granularity", "method", "num_layers")
    )
    return again((granularity, method, count), recompute_modules(recipe), chunks, layers)


def followed(models: Iterable[str], job: Mapping[str, Any]) -> Recipe | None:
    """Return the recipe of the row's stack that a job is by all that the row states: model, GPU, precision, layout and
    batch; of the newest release that is no later than the row's first, then of the others, the oldest first. None where
    there is none: all recipes train all weights. models: its names in conf/model."""
    folders = _folders(str(job["stack"]).partition("-")[0]) if job["trained"] != "lora" else ()
    if not folders:
        return None
    earlier = [folder for folder in folders if is_of(folder.partition("-")[2], str(job["stack"])) is True]
    folders = (*reversed(earlier), *(folder for folder in folders if folder not in earlier))
    case = (job["hardware"], job["precision"], job["micro_batch_size"], *(job[f"{n}_parallel_size"] for n in _SIZES))
    cases = (_by_case(folder, model) for folder in folders for model in models)
    known = [recipe for known_cases in cases for recipe in known_cases.get(case, ())]
    same = [r for r in known if r.experiment[GLOBAL_BATCH] == job["global_batch_size"]]
    return next(iter(same or known), None)


@cache
def images_of(framework: str) -> Mapping[str, str]:
    """Return the release of a framework by that of NVIDIA's container, as published rows state it (26.06: 0.5.0)."""
    known: Mapping[str, Mapping[str, Any]] = read_yaml(TABLES / "images.yaml")
    held = {image.rpartition(":")[2]: releases.get(framework) for image, releases in known.items() if releases}
    return {tag: str(release) for tag, release in held.items() if release}


def is_of(release: str, stack: str) -> bool | None:
    """Return whether a framework's release is no later than that of a stack, which states the framework's own or that
    of NVIDIA's container, of which the nearest before it counts; None where neither is known."""
    framework, _, stated = stack.partition("-")
    held, own = {_version(tag): _version(text) for tag, text in images_of(framework).items()}, _version(stated)
    if not held or not own or own[0] > _LAST_YEAR:
        return None
    if own[0] < min(held)[0] // 2:  # 0.3.1, not 26.02.01
        return _version(release) <= own
    earlier = [tag for tag in held if tag <= own]
    return bool(earlier) and _version(release) <= held[max(earlier)]


def _version(text: str) -> tuple[int, ...]:
    """Return the numbers of a release, of which tuples compare as releases do."""
    return tuple(map(int, re.findall(r"\d+", text)))


@cache
def _folders(framework: str) -> tuple[str, ...]:
    """Return the folders of the recipes of a framework, by release."""
    return tuple(sorted(path.name for path in RECIPES.iterdir() if path.name.partition("-")[0] == framework))


@cache
def _by_case(folder: str, model: str) -> Mapping[tuple[Any, ...], list[Recipe]]:
    cases: dict[tuple[Any, ...], list[Recipe]] = {}
    for recipe in recipes(folder, model):
        sizes = (recipe.experiment.get(f"layout.{name}_parallel_size") or 1 for name in _SIZES)
        precision = _PRECISIONS.get(recipe.precision, recipe.precision)
        case = (precision, recipe.experiment[MICRO_BATCH], *sizes)
        for device in recipe.hardware:
            cases.setdefault((device, *case), []).append(recipe)
    return cases
