"""Canonical settings → attribute paths of a vendor's config, as launchers/settings/FRAMEWORK.yaml says. Pure.

A path is written only if the request decides it or the table gives a constant; a setting that is nowhere in the table
is an error of ours, which a test looks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from conf.errors import Problem
from conf.resolve import Declared, Experiment
from conf.vocabulary import follow, vocabulary

FOLDER = Path(__file__).parent / "settings"
CHECKPOINTS = "checkpoints"  # in the run's directory
_NEVER = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What becomes of one setting; exactly one of to, program, derived and cannot is given.

    of: where the Experiment has it. to: where it is written, an attribute path or {path, from, before} with releases,
    or a list of them. convert: a name of CONVERSIONS. absent_is: a class without the attribute behaves as with this
    value; if_there: as with any. unless_null: nothing is written where the request is null. program, derived: who sees
    to it. cannot: why the stack has no such setting; `only` is the Experiment's path, or `only_value` the value, that
    it is refused without; `becomes` (path) or `becomes_value`: what runs instead, which is then declared.
    """

    name: str
    of: str
    to: Any = ()
    convert: str | None = None
    absent_is: Any = _NEVER
    if_there: bool = False
    unless_null: bool = False
    program: str | None = None
    derived: str | None = None
    cannot: str | None = None
    only: str | None = None
    only_value: Any = _NEVER
    becomes: str | None = None
    becomes_value: Any = _NEVER

    def paths(self, release: str | None) -> Iterator[str]:
        """Where `release` has it."""
        for target in self.to if isinstance(self.to, list) else [self.to] if self.to else []:
            entry = {"path": target} if isinstance(target, str) else target
            if in_range(release, entry.get("from"), entry.get("before")):
                yield entry["path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """settings: by canonical name. parts: what more of the Experiment is written. always: path → value, as are those of
    some releases only, for a machine without an accelerator, and for an environment without TransformerEngine, which
    only the ranks can tell."""

    settings: Mapping[str, Row]
    parts: tuple[Row, ...]
    always: Mapping[str, Any]
    always_if_there: Mapping[str, Any]
    without_accelerator: Mapping[str, Any]
    without_transformer_engine: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Assignments:
    """path → plain value, in the order in which they are set. `if_there`: no fault where the class has no such name."""

    set: Mapping[str, Any]
    set_if_there: Mapping[str, Any]


@cache
def table(framework: str) -> Table:
    """launchers/settings/FRAMEWORK.yaml."""
    import yaml

    raw = yaml.safe_load((FOLDER / f"{framework}.yaml").read_text(encoding="utf-8"))
    of = {name: setting.request or "" for name, setting in vocabulary().items()}
    settings = {name: _row(name, {"of": of[name], **_entry(entry)}) for name, entry in raw["settings"].items()}
    parts = tuple(_row(entry["of"], entry) for entry in raw.get("parts") or ())
    return Table(settings=settings, parts=parts, **{part: raw.get(part) or {} for part in _CONSTANTS})


def assignments(e: Experiment, settings: Table) -> Assignments:
    """Everything that is set on the vendor's config for `e`; `parts` after `settings`, constants last."""
    values: dict[str, Any] = {}
    optional: dict[str, Any] = {}
    for row, asked in _asked(e, settings):
        if asked is None and row.unless_null:
            continue
        value = CONVERSIONS[row.convert](asked, e) if row.convert else asked
        for path in row.paths(e.framework.release):
            (optional if row.if_there or _equal(value, row.absent_is) else values)[path] = value
    values |= settings.always
    optional |= settings.always_if_there
    if e.accelerator is None:
        values |= settings.without_accelerator
    return Assignments(values, {path: value for path, value in optional.items() if path not in values})


def problems(e: Experiment, settings: Table) -> Iterator[Problem]:
    """Requests that the stack cannot be told and that nothing may stand in for."""
    if e.resume and e.training.save_interval:
        what = f"{e.framework.name} would go on from its own checkpoints, which was not shown to be the same run"
        yield Problem("resume", what, "true", "false", "resume=false begins anew; framework=megatron goes on")
    for row, asked in _asked(e, settings):
        needed = follow(e, row.only) if row.only else row.only_value
        if row.cannot and needed is not _NEVER and not _equal(asked, needed):
            word = "null" if needed is None else str(needed)
            yield Problem(row.of, row.cannot, str(asked), word, f"{row.of}={word}")


def declared(e: Experiment, settings: Table) -> tuple[Declared, ...]:
    """What runs otherwise than asked for, with the reason."""
    found = [_attention(e)] if e.training.attention != _kernel(e) else []
    for row, asked in _asked(e, settings):
        instead = follow(e, row.becomes) if row.becomes else row.becomes_value
        if row.cannot and instead is not _NEVER and not _equal(asked, instead):
            found.append(Declared(row.name, instead, row.cannot))
    return tuple(found)


def _kernel(e: Experiment) -> str:
    """attention_backend as Megatron-Core's own stacks have it; without a GPU there is no TransformerEngine."""
    return "auto" if e.accelerator and e.training.attention == "sdpa" else "unfused"


def _attention(e: Experiment) -> Declared:
    gpu = "TransformerEngine chooses its attention kernel itself, and none is torch's"
    reason = gpu if e.accelerator else "without TransformerEngine the stack has Megatron's own attention only"
    return Declared("attention_backend", _kernel(e), reason)


def _asked(e: Experiment, settings: Table) -> Iterator[tuple[Row, Any]]:
    for row in (*settings.settings.values(), *settings.parts):
        yield row, follow(e, row.of)


def _entry(entry: Any) -> dict[str, Any]:
    """What follows a canonical name: the whole row, or where it is written alone."""
    return entry if isinstance(entry, dict) and "path" not in entry else {"to": entry}


def _row(name: str, entry: dict[str, Any]) -> Row:
    row = Row(name=name, **entry)
    ways = [way for way in (row.to, row.program, row.derived, row.cannot) if way]
    if len(ways) != 1 or (row.convert and row.convert not in CONVERSIONS):
        raise ValueError(f"{name}: one of to, program, derived and cannot; convert is one of {sorted(CONVERSIONS)}")
    return row


def in_range(release: str | None, first: str | None, end: str | None) -> bool:
    """Whether `release` is at least `first` and before `end`; of no release, everything holds."""
    if release is None:
        return True
    at = _numbers(release)
    return (first is None or at >= _numbers(first)) and (end is None or at < _numbers(end))


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.lstrip("v").split(".") if part.isdigit())


def _equal(a: Any, b: Any) -> bool:
    """Equality without Python's True == 1."""
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _layer_frequency(first_dense: Any, e: Experiment) -> Any:
    if first_dense is None:
        return None
    return [int(layer >= first_dense) for layer in range(e.model.num_layers)]


CONVERSIONS: Mapping[str, Callable[[Any, Experiment], Any]] = {
    "opposite": lambda value, _: not value,
    "is_set": lambda value, _: value is not None,
    "is_null": lambda value, _: value is None,
    "one_if_null": lambda value, _: 1.0 if value is None else value,
    "silu": lambda swiglu, _: {"function": "silu"} if swiglu else None,
    "zero_if_null": lambda value, _: 0.0 if value is None else value,
    "activation": lambda swiglu, _: {"function": "silu" if swiglu else "quick_gelu"},
    "window": lambda size, _: None if size is None else [size - 1, 0],
    "checkpoints": lambda interval, _: None if interval is None else CHECKPOINTS,
    "blend": lambda path, _: None if path is None else [[path], None],
    "plain_rope": lambda model, _: model.mla is None and model.yarn is None,
    "position_embedding": lambda model, _: "yarn" if model.yarn and not model.mla else "rope",
    "layer_frequency": _layer_frequency,
    "rope_type": lambda yarn, _: "rope" if yarn is None else "yarn",
    "less_one": lambda value, _: value - 1,
    "whole": lambda value, _: int(value) if value == int(value) else value,
    "padding_unit": lambda rows, e: rows // e.layout.tensor_model_parallel_size,
    "layer_frequency_text": lambda first, e: f"([0]*{first}+[1]*{e.model.num_layers - first})" if first else 1,
    "is_bf16": lambda name, _: name == "bfloat16",
    "is_mock": lambda name, _: name == "mock",
    "data_prefix": lambda path, _: None if path is None else "${DATA_PREFIX}",
    "attention_backend_name": lambda name, _: "auto" if name == "sdpa" else name,
    "attention_backend": lambda name, _: {"enum": f"AttnBackend.{'auto' if name == 'sdpa' else 'unfused'}"},
}
_CONSTANTS = ("always", "always_if_there", "without_accelerator", "without_transformer_engine")
