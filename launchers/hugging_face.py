"""A config.json of Hugging Face, read into a model of ours: every key of it is used, known to change nothing, or
refused by name. Its tables: conf/tables/hugging_face_models.yaml and, the other way,
launchers/settings/hugging_face.yaml."""

from __future__ import annotations

import json
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from conf.check import model_problems
from conf.compose import CONF
from conf.errors import InputError, Problem, closest, listed
from conf.freeze import freeze
from conf.schema import Model
from conf.vocabulary import read_yaml
from launchers.attribute_settings import FOLDER

TABLE = CONF / "tables" / "hugging_face_models.yaml"
MOST_BYTES = 2**20  # of a config.json, which has a few KB
_MOST_DIGITS = 18
_NONE = object()
HANDLED = ("model_type", "rope_scaling", "rope_parameters", "tie_word_embeddings", "layer_types")


def read_json(path: Path, most: int = MOST_BYTES) -> dict[str, Any]:
    """Return the mapping in a JSON file of a stranger. InputError: there is none that can be used, a key is in it
    twice, or it is larger than `most` bytes."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe that nobody writes to would be waited for
            raise InputError(Problem(str(path), "is no regular file", hint="the path of config.json"))
        with path.open("rb") as file:
            text = file.read(most + 1)
    except OSError as error:
        raise InputError(Problem(str(path), "cannot be read", error.strerror or str(error))) from error
    if len(text) > most:
        raise InputError(Problem(str(path), f"is larger than {most:,} bytes"))
    try:
        document = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_constant, parse_int=_number)
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(str(path), "is not valid JSON", str(error)[:200])) from error
    if not isinstance(document, dict):
        raise InputError(Problem(str(path), "is not a mapping", type(document).__name__))
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            raise ValueError(f"the key {name!r} is in it {times} times")
    return dict(pairs)


def _constant(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON's")


def _number(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


@dataclass(frozen=True, slots=True)
class Default:
    """A key that config.json leaves out, and what is taken for it. source: who takes that."""

    key: str
    value: Any
    source: str


def model_of(config: Mapping[str, Any], **about: str | None) -> tuple[Model, tuple[Default, ...]]:
    """Return the model that config.json describes, and what the file leaves out of it. about: its name, source and
    hf_id. InputError: all keys that no model of ours can express, are not known, missing, or have no sense."""
    table, kind = read_yaml(TABLE), config.get("model_type")
    if not isinstance(kind, str) or kind not in table["families"]:
        parts = table["cannot"].get(kind) if isinstance(kind, str) else None
        what = f"is not expressible: {parts}" if parts else "is of no family that is known here"
        raise InputError(Problem("model_type", what, _shown(kind), listed(sorted(table["families"]))))
    reading = _Reading(_without_rope_parameters(config), table, table["families"][kind])
    fields, problems = reading.fields(), reading.problems
    if not problems:
        model: Model | None = freeze(Model, {**about, **fields}, "", problems)
        problems += [*model_problems(model), *_groups(model)] if model else []
        if model and not problems:
            return model, tuple(reading.defaults)
    raise InputError(*(replace(problem, where=reading.key_of(problem.where)) for problem in problems))


def _without_rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` as files before transformers 5 have it: RoPE's base by itself, its scaling beside it."""
    rope = config.get("rope_parameters")
    if rope is None:
        return dict(config)
    if not isinstance(rope, dict):
        raise InputError(Problem("rope_parameters", "is no mapping", _shown(rope)))
    if twice := sorted({"rope_scaling", "rope_theta"} & {*config}):
        raise InputError(Problem("rope_parameters", "says again what stands beside it", listed(twice)))
    rest = {name: value for name, value in rope.items() if name != "rope_theta"}
    lifted = {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
    others = {name: value for name, value in config.items() if name != "rope_parameters"}
    return {**others, **lifted, "rope_scaling": rest}


@dataclass(frozen=True, slots=True)
class _Section:
    """Known keys of a mapping. rows: key → the fields that it is written to. only: key → the one value that is
    expressible, and why no other. missing: key → what the library takes where it is not there; what is expressible
    where neither says it. usual: keys of `only` that few files have: nothing is said where they are not there. file:
    where in the library this is read."""

    rows: Mapping[str, Sequence[Any]]
    only: Mapping[str, Mapping[str, Any]]
    unused: Mapping[str, str]
    missing: Mapping[str, Any]
    usual: Set[str]
    file: str
    prefix: str = ""


class _Reading:
    """One config.json, and the problems with it."""

    def __init__(self, config: Mapping[str, Any], table: Mapping[str, Any], family: Mapping[str, Any]) -> None:
        self.config, self.table, self.family = config, table, family
        self.problems: list[Problem] = []
        self.defaults: list[Default] = []
        self.keys: dict[str, str] = {}

    def fields(self) -> dict[str, Any]:
        """Return the fields of the model; what is wrong is in `problems`."""
        fields: dict[str, Any] = {**deepcopy(self.table["model"]), **deepcopy(self.family.get("model", {}))}
        self._read(self.config, self._section(), fields)
        self._rope(fields)
        self._layer_types(fields["num_layers"])
        tied = self._value(self.config, self._section(), "tie_word_embeddings")
        if "tie_word_embeddings" in self.config and not isinstance(tied, bool):
            self._problem("tie_word_embeddings", "wrong type or value", tied, "true or false")
        fields["untie_embeddings_and_output_weights"] = not tied
        fields["mtp_num_layers"] = fields["mtp_num_layers"] or None
        return fields

    def key_of(self, field: str) -> str:
        """Return the key that a field of the model was read from, by which its user knows it."""
        path = field.removeprefix("model.")
        return self.keys.get(path, path)

    def _section(self) -> _Section:
        """Return what is known of the family's keys: its rows in hugging_face.yaml, and what the entry here says."""
        hub, own = read_yaml(FOLDER / "hugging_face.yaml"), self.family
        rows = {**hub["common"], **hub["families"][own["hub"]]}
        rows = {key: row for key, row in rows.items() if "." not in key}  # of RoPE: `ropes`
        unused = {**self.table["unused"], **own.get("unused", {})}
        fixed = {key: {"value": row["is"]} for key, row in rows.items() if isinstance(row, dict) and "is" in row}
        only = {**fixed, **self.table["only"], **own.get("only", {})}
        written = {key: [row] for key, row in rows.items() if key not in only and key not in own.get("unused", {})}
        for path, key in own.get("also", {}).items():
            written.setdefault(key, []).append(path)
        only = {key: one for key, one in only.items() if key not in unused}
        usual = only.keys() - own.get("only", {}).keys() - own["missing"].keys() | {*own.get("constant", ())}
        kind = self.config["model_type"]
        return _Section(written, only, unused, own["missing"], usual, f"models/{kind}/configuration_{kind}.py")

    def _read(self, given: Mapping[str, Any], known: _Section, fields: dict[str, Any]) -> None:
        """Write what is given into `fields`. Problems: keys that are not known, missing or not expressible."""
        valid = [*known.rows, *known.only]
        for key, value in given.items():
            if key not in (*valid, *known.unused, *HANDLED):
                what = "is not known here: nobody can say what it changes in the model"
                self._problem(known.prefix + key, what, value, hint=closest(key, valid))
        for key, one in known.only.items():
            value = self._value(given, known, key, one["value"])
            if not _same(value, one["value"]):
                because = f": {one['because']}" if "because" in one else ""
                self._problem(known.prefix + key, f"is not expressible{because}", value, _shown(one["value"]))
        for key, rows in known.rows.items():
            value = self._value(given, known, key)
            if isinstance(value, str):  # no field that is read here has words
                self._problem(known.prefix + key, "wrong type or value", value, "a number, true or false")
            for row in rows:
                self._write(fields, row, value, known.prefix + key)

    def _value(self, given: Mapping[str, Any], known: _Section, key: str, only: Any = _NONE) -> Any:
        """Return what is given, else what the library takes where nothing is. only: the value that is expressible."""
        otherwise = known.missing.get(key, only)
        if isinstance(otherwise, dict) and "over" in otherwise and given.get(key) is None:
            value = self._quotient(given, key, *otherwise["over"])
            self._default(known.prefix + key, value, " / ".join(otherwise["over"]))
            return value
        if key in given:
            return given[key]
        if otherwise is _NONE or known.prefix + key in self.family.get("stated", ()):
            self._problem(known.prefix + key, "missing")
        elif key not in known.usual:
            source = self.family.get("sources", {}).get(known.prefix + key)
            self._default(known.prefix + key, otherwise, source or f"{self.table['library']}, {known.file}")
        return otherwise

    def _default(self, key: str, value: Any, source: str) -> None:
        if value is not None:
            self.defaults.append(Default(key, value, source))

    def _quotient(self, given: Mapping[str, Any], key: str, numerator: str, denominator: str) -> int | None:
        """Return the value of a key that is not there as that of one over that of another."""
        over, under = given.get(numerator), given.get(denominator)
        if _count(over) and _count(under):
            if over % under == 0:
                return over // under
            self._problem(key, f"missing, and {numerator} / {denominator} is no integer", f"{over} / {under}")
        for name in (numerator, denominator):
            if name in given and not isinstance(given[name], str) and not _count(given[name]):
                self._problem(name, "wrong type or value", given[name], "an integer of at least 1")
        return None

    def _write(self, fields: dict[str, Any], row: Any, value: Any, key: str) -> None:
        """Write a value to the field that a row of the tables names."""
        if isinstance(row, dict) and "or_null" in row:
            row = row["or_null"]
        elif isinstance(row, dict) and "opposite" in row:
            row, value = row["opposite"], not value if isinstance(value, bool) else value
        elif isinstance(row, dict):
            row, one = row["share"]
            value = value * _at(fields, one) if _count(value) and _count(_at(fields, one)) else value or None
        *parts, name = row.split(".")
        self.keys[row] = key
        for part in parts:
            fields[part] = fields.get(part) or {}
            fields = fields[part]
        fields[name] = value

    def _rope(self, fields: dict[str, Any]) -> None:
        """Read the scaling of RoPE."""
        given = self.config.get("rope_scaling") or {"rope_type": "default"}
        kind = given.get("rope_type", given.get("type")) if isinstance(given, dict) else None
        allowed = self.family["ropes"]
        if not isinstance(kind, str) or kind not in allowed or given.get("type", kind) != kind:
            what = "is not expressible: RoPE scaling of another kind, or one that is not this family's"
            self._problem("rope_scaling", what, given, listed(allowed))
            return
        form = {"rows": {}, "only": {}, "missing": {}, **self.table["ropes"][kind], **allowed[kind]}
        fields.update(form.get("model", {}))
        rows = {key: [row] for key, row in form["rows"].items()}
        read = {"rope_type": "read above", "type": "read above"}
        known = _Section(rows, form["only"], read, form["missing"], set(), "modeling_rope_utils.py", "rope_scaling.")
        self._read(given, known, fields)

    def _layer_types(self, layers: Any) -> None:
        """Check that the list of layers, where there is one, is the family's pattern."""
        given, pattern = self.config.get("layer_types"), self.family.get("layer_types", ["full_attention"])
        if given is None or (
            isinstance(given, list) and given == (pattern * len(given))[: len(given)] and len(given) == layers
        ):
            return
        what = "is not expressible: layers that do not alternate as the family's do"
        self._problem("layer_types", what, given, f"{listed(pattern)}, … for {layers} layers")

    def _problem(self, key: str, what: str, value: Any = None, allowed: str = "", hint: str = "") -> None:
        self.problems.append(Problem(key, what, "" if value is None else _shown(value), allowed, hint))


def _groups(model: Model) -> Iterator[Problem]:
    """Yield the groups of experts that Megatron chooses in another way: it sums the topk / group_topk best scores of a
    group (core/transformer/moe/moe_utils.py, group_limited_topk), DeepSeek-V3 the two best (its modeling program)."""
    moe = model.moe
    if moe and (moe.moe_router_num_groups or 1) > 1:
        best = moe.moe_router_topk // (moe.moe_router_group_topk or 1)
        if best != 2:
            what = f"is not expressible: the two best experts decide of a group, in Megatron-Core the {best} best"
            yield Problem("moe.moe_router_group_topk", what, str(moe.moe_router_group_topk))


def _same(value: Any, other: Any) -> bool:
    """Compare without Python's True == 1."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value > 0


def _at(fields: Mapping[str, Any], path: str) -> Any:
    for part in path.split("."):
        fields = fields[part]
    return fields


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
