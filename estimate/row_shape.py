"""The model of a row of a table of runs: one of ours where name and sizes are, else what its columns say, and what is
left by the number of its parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from math import inf, log, nan
from typing import NamedTuple

from conf.compose import choices
from conf.load import model_named
from conf.schema import MLA
from estimate.cells import count, plain, quoted, spellings
from metrics.flops import CONVENTIONS, flops_per_token
from metrics.published import models
from metrics.shape import Shape, shape_of_model

_COLUMNS = ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "experts", "topk")
_NEEDED = ("layers", "hidden", "ffn", "heads", "vocab")
_AGREE = 0.04  # published sizes leave out, or add, positions, biases and norms
_FAR = 0.1  # of a model of ours: sources round its parameters, too
_LARGEST = 1e6  # of any size of a layer; beyond, a cell is a misprint


class Known(NamedTuple):
    """A shape, and what was derived of it."""

    shape: Shape
    notes: tuple[str, ...] = ()


def row_shape(cells: Mapping[str, str]) -> Known:
    """Return the model of a row. ValueError: why there is none."""
    return _shape(*(cells.get(name, "") for name in ("model", *_COLUMNS, "layers_run", "params_b")))


@cache
def _shape(name: str, *texts: str) -> Known:
    sizes: dict[str, int] = {}
    for column, text in zip((*_COLUMNS, "layers_run"), texts[:-1], strict=True):
        try:
            sizes |= {column: count(text)} if text.strip() not in ("", "0") else {}
        except ValueError as error:
            raise ValueError(f"{column}: {error}") from None
        if sizes.get(column, 0) > _LARGEST * (1e3 if column == "vocab" else 1):
            raise ValueError(f"{column}: {quoted(text)} is larger than any model's")
    ours, (stated, unread) = _ours(name), _stated(texts[-1])
    if run := sizes.pop("layers_run", None):
        if run > (layers := sizes.get("layers", ours.num_layers if ours else run)):
            raise ValueError(f"layers_run: {run:,} is more than the {layers:,} layers")
        sizes["layers"] = run
    if ours and not (wrong := [*_differing(ours, sizes)]):
        known = _cut(ours, sizes)
        return known._replace(notes=(*known.notes, *unread, *_contradicted(name, ours, known.shape, stated)))
    if missing := [column for column in _NEEDED if column not in sizes]:
        what = f"not our {name} ({wrong[0]})" if ours else f"no model of ours is called {quoted(name)}"
        raise ValueError(f"{what}, and its shape is not stated: {', '.join(missing)}")
    known = _derived(sizes, stated)
    differs = (f"not our {name}: {wrong[0]}",) if ours else ()
    return known._replace(notes=(*differs, *unread, *known.notes))


def _stated(params_b: str) -> tuple[float | None, tuple[str, ...]]:
    """Return the parameters of a cell in billions, None where it is empty, and a note where it is no number."""
    try:
        stated = float(params_b or 0) * 1e9
    except ValueError:
        stated = nan
    if 0 <= stated < inf:
        return stated or None, ()
    return None, (f"params_b: {quoted(params_b)} is no number of billions, and not used",)


def _contradicted(name: str, ours: Shape, ran: Shape, stated: float | None) -> tuple[str, ...]:
    """Return a note where a row's parameters are those of its model neither with all layers nor with those that ran."""
    tied = ours.untie_embeddings_and_output_weights
    variants = [
        parameters(replace(shape, untie_embeddings_and_output_weights=untied))
        for shape in (ours, ran)
        for untied in ((True, False) if tied is None else (tied,))
    ]
    if stated is None or any(abs(stated / own - 1) <= _FAR for own in variants):
        return ()
    return (f"{quoted(name)} has {variants[0] / 1e9:.4g} billion parameters, params_b says {stated / 1e9:.4g}",)


@cache
def ours_named(name: str) -> tuple[str, ...]:
    """Return the models of conf/model that people call `name`."""
    names = _names(name)
    published = (known.conf_model for label, known in models().items() if plain(label) in names)
    return tuple(dict.fromkeys((*(one for one in choices("model") if plain(one) in names), *filter(None, published))))


@cache
def _ours(name: str) -> Shape | None:
    """Return the shape of the model that people call `name`: of conf/model, else of published_models.yaml."""
    experts = re.search(r"(?i)(?<![a-z])moe(?![a-z])", name)
    found = (_shape_called(bare) for bare in _names(name))
    return next((known for known in found if known and (known.num_experts or not experts)), None)


def _shape_called(bare: str) -> Shape | None:
    ours = {plain(choice): choice for choice in choices("model")}
    if bare and bare in ours and (model := model_named(ours[bare])):
        return shape_of_model(model)
    published = {plain(label): known.shape for label, known in models().items()}
    more = {plain(label): _written(sizes) for label, sizes in spellings()["shapes"].items()}
    return {**more, **published}.get(bare)


def _names(name: str) -> tuple[str, ...]:
    """Return a model's name as it stands, and without its maker, its kind of experts and what it was tuned to, which
    leave its shape: meta-llama/Meta-Llama-3-70B, Mixtral-8x7B-v0.1, Llama3-8B-Instruct."""
    last = name.rpartition("/")[2]
    bare = re.sub(r"(?i)^(meta|nvidia)[- _]|[- _](moe|instruct|base|chat|hf|v0\.\d)(?=$|[- _])", "", last)
    other = spellings()["models"].get(plain(bare), bare)
    return tuple(dict.fromkeys((plain(last), plain(bare), plain(other))))


def _written(sizes: Mapping[str, object]) -> Shape:
    latent = sizes.get("mla")
    return Shape(**{**sizes, "mla": MLA(**latent) if isinstance(latent, dict) else None})  # type: ignore[arg-type]


def _differing(shape: Shape, sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield the columns that contradict a model; layers may be fewer, and the vocabulary padded."""
    ours = {
        "hidden": shape.hidden_size,
        "ffn": shape.moe_ffn_hidden_size or shape.ffn_hidden_size,
        "heads": shape.num_attention_heads,
        "kv_heads": shape.num_query_groups,
        "experts": shape.num_experts,
        "topk": shape.moe_router_topk,
    }
    if shape.mla:
        del ours["kv_heads"]
    for column, own in ours.items():
        if column in sizes and sizes[column] != own:
            yield f"{column} {sizes[column]}, ours has {own}"


def _cut(shape: Shape, sizes: Mapping[str, int]) -> Known:
    """Return a model of ours with the layers and the vocabulary of the row."""
    notes = []
    layers, vocabulary = sizes.get("layers", shape.num_layers), sizes.get("vocab", shape.vocabulary)
    if layers != shape.num_layers:
        notes.append(f"{layers} of {shape.num_layers} layers")
        shape = replace(shape, num_layers=layers, mtp_num_layers=0)
    if shape.untie_embeddings_and_output_weights is None:
        shape = replace(shape, untie_embeddings_and_output_weights=True)
        notes.append("output matrix taken as untied")
    return Known(replace(shape, vocabulary=vocabulary), tuple(notes))


def _derived(sizes: Mapping[str, int], stated: float | None) -> Known:
    """Return the shape that the columns alone describe."""
    heads, hidden, ffn = sizes["heads"], sizes["hidden"], sizes["ffn"]
    experts = sizes.get("experts", 0)
    if bool(experts) != bool(sizes.get("topk", 0)):
        raise ValueError("experts and topk go together: one of them is empty")
    if hidden < heads:
        raise ValueError(f"{heads} heads of a hidden size of {hidden}")
    notes = ["kv_heads taken as heads"] if "kv_heads" not in sizes else []
    notes += [f"head width {hidden // heads} = hidden / heads"]
    notes += ["no shared experts, no dense layers first: not stated"] if experts else []
    shape = Shape(
        num_layers=sizes["layers"],
        hidden_size=hidden,
        ffn_hidden_size=0 if experts else ffn,
        num_attention_heads=heads,
        num_query_groups=sizes.get("kv_heads", heads),
        kv_channels=hidden // heads,
        vocabulary=sizes["vocab"],
        gated_linear_unit=experts > 0 or ffn != 4 * hidden,
        untie_embeddings_and_output_weights=True,
        num_experts=experts,
        moe_router_topk=sizes.get("topk", 0),
        moe_ffn_hidden_size=ffn if experts else 0,
    )
    return _by_parameters(shape, notes, stated)


def _by_parameters(shape: Shape, notes: list[str], stated: float | None) -> Known:
    """Return the shape gated or not, tied or not, whichever comes nearest to the row's number of parameters."""
    if stated is None:
        text = "MLP taken as gated" if shape.gated_linear_unit else "MLP taken as not gated: ffn = 4 × hidden"
        return Known(shape, (*notes, text, "output matrix taken as untied"))
    variants = [
        replace(shape, gated_linear_unit=gated, untie_embeddings_and_output_weights=untied)
        for gated in (shape.gated_linear_unit, not shape.gated_linear_unit)
        for untied in (True, False)
    ]
    best = min(variants, key=lambda one: abs(log(parameters(one) / stated)))
    gate, tie = (
        "gated" if best.gated_linear_unit else "not gated",
        "untied" if best.untie_embeddings_and_output_weights else "tied",
    )
    notes = [*notes, f"MLP {gate}, output matrix {tie}: by params_b"]
    if abs(parameters(best) / stated - 1) > _AGREE:
        notes.append(
            f"its columns make {parameters(best) / 1e9:.4g} billion parameters, params_b says {stated / 1e9:.4g}"
        )
    return Known(best, tuple(notes))


def parameters(shape: Shape) -> float:
    """Return the parameters of a shape whose output matrix is known to be tied or not; without norms and biases."""
    everything = flops_per_token(replace(shape, mtp_num_layers=0), 1, CONVENTIONS["6n"]) / 6
    moe_layers = shape.num_layers - shape.dense_layers
    idle = (shape.num_experts - shape.moe_router_topk) * moe_layers if shape.num_experts else 0
    return everything + idle * shape.hidden_size * shape.moe_ffn_hidden_size * (3 if shape.gated_linear_unit else 2)
