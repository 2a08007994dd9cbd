"""The canonical settings (conf/vocabulary.yaml): what decides a comparison, under one name for every framework."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from conf.errors import ConfigError, Problem, blamed, listed

TABLE = Path(__file__).with_name("vocabulary.yaml")
OFF = (None, False)  # what a switch that is off has
Rank = Literal["breaks", "shifts", "bookkeeping"]
"""The weight of a difference: the work is another; the same work is done otherwise; nothing."""
RANKS: tuple[Rank, ...] = ("breaks", "shifts", "bookkeeping")
_SHIFTING = ("layout", "kernels")
_NULL = ("none", "null")
_SPELLING = re.compile(r"[-_. ]|torch\.")
_WORDS = {"bool": "true or false", "int": "an integer", "float": "a number", "str": "a word"}


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place where a stack has a setting, from one release on and before another."""

    path: str
    since: str | None = msgspec.field(name="from", default=None)
    before: str | None = None


class Write(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one framework writes a setting: an entry of the column `write`, whose forms the table's head explains."""

    to: tuple[Target, ...] = ()
    convert: str | None = None
    runs: str | None = None
    absent_is: Any = msgspec.UNSET
    if_there: bool = False
    unless_null: bool = False
    program: str | None = None
    derived: str | None = None
    cannot: str | None = None
    only: str | None = None
    only_value: Any = msgspec.UNSET
    becomes: str | None = None
    becomes_value: Any = msgspec.UNSET

    def __post_init__(self) -> None:
        """Refuse an entry without a meaning, or with two."""
        if sum(map(bool, (self.to, self.program, self.derived, self.cannot))) != 1:
            raise ValueError("exactly one of to, program, derived and cannot")

    def refused_without(self, e: object) -> Any:
        """Return the value of a request that the stack has no setting for and is refused without; UNSET of any other
        setting. e: the request, for what follows from another of its values."""
        if not self.cannot:
            return msgspec.UNSET
        return follow(e, self.only) if self.only else self.only_value


class Idle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a setting has no effect beside another one: an entry of the column `idle`."""

    beside: str
    one_of: tuple[Any, ...] = ()
    reached: bool = False
    because: str

    def applies(self, value: Any, other: Any) -> bool:
        """Return whether the setting does nothing at `value` where the other one is `other`."""
        at_least = type(other) is int and (value is None or (type(value) is int and value >= other))
        return at_least if self.reached else other in self.one_of


class Effect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a difference is known to matter, and who says so: an entry of the column `effect`."""

    text: str
    source: str


class Null(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The value that null stands for, of × times / over: an entry of the column `null_is`."""

    of: str
    times: int = 1
    over: str | None = None
    unless: str | None = None


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One canonical setting: a row of the table, whose head says what each column means. A request path through a part
    that the model does not have (model.moe of a dense one) gives None."""

    name: str
    kind: Literal["model", "training", "optimizer", "precision", "layout", "data", "kernels"]
    rank: Rank
    effect: Effect | None = None
    unit: str
    short: str | None = None
    shown: bool = False
    follows: tuple[str, ...] = ()
    shows_in: tuple[str, ...] = ()
    type: Literal["bool", "int", "float", "str"]
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    one_of: tuple[str | None, ...] = ()
    because: str | None = None
    only_if: str | None = None
    idle: Idle | None = None
    null_is: Null | None = None
    none: int | float | None = None
    spelled: Mapping[str, tuple[str, ...]] = {}
    fixed_by: tuple[str, ...] = ()
    usual: int | None = None
    request: str | None = None
    dump: bool = True
    built: str | list[str] = []
    write: Mapping[str, Write] = {}
    print: Mapping[str, str | list[str]] = {}

    def keys(self, framework: str) -> tuple[str, ...]:
        """Return the names under which `framework` states this setting; empty where its column has none."""
        keys = self.print.get(framework, ())
        return (keys,) if isinstance(keys, str) else tuple(keys)

    def accepts(self, value: Any) -> bool:
        """Return whether `value` can be one of this setting; None, which is "not used", is, unless one_of says else."""
        if value is None or self.one_of:
            return not self.one_of or value in self.one_of
        kinds = {"bool": (bool,), "int": (int,), "float": (int, float), "str": (str,)}[self.type]
        return type(value) in kinds and self.in_bounds(value)

    def in_bounds(self, value: Any) -> bool:
        """Return whether a value of the right type is finite and within the row's bounds."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return True
        low = (self.above is None or value > self.above) and (self.at_least is None or value >= self.at_least)
        most = 2**63 if isinstance(value, int) else float("inf")
        return abs(value) < most and low and (self.below is None or value < self.below)

    @property
    def bounds(self) -> str:
        """Return the bounds in words: "at least 0 and below 1"."""
        bounds = {"above": self.above, "at least": self.at_least, "below": self.below}
        return " and ".join(f"{word} {bound:.10g}" for word, bound in bounds.items() if bound is not None)

    @property
    def allowed(self) -> str:
        """Return the values that `accepts` takes, in words: "an integer at least 1, or null"."""
        if self.one_of:
            return ", ".join("null" if value is None else value for value in self.one_of)
        return " ".join(filter(None, (_WORDS[self.type], self.bounds))) + ", or null"


@cache
def vocabulary() -> Mapping[str, Setting]:
    """Return all settings by canonical name, in the table's order. ConfigError: a row is not as the table's head says;
    it is named."""
    rows: dict[str, Setting] = {}
    for name, entry in read_yaml(TABLE).items():
        with blamed(f"conf/{TABLE.name}: {name}", "is not as the table's head says"):
            write = {framework: written(framework, form) for framework, form in entry.get("write", {}).items()}
            rank = "shifts" if entry.get("kind") in _SHIFTING else "breaks"
            rows[name] = msgspec.convert({"rank": rank, **entry, "name": name, "write": write}, Setting)
    frameworks = {path.stem for path in TABLE.parent.glob("framework/*.yaml")}
    settings = {*rows, None, *(row.kind for row in rows.values())}
    for row in rows.values():
        others = {*row.follows, *row.fixed_by, row.only_if, row.idle and row.idle.beside}
        others |= {row.null_is.of, row.null_is.over, row.null_is.unless} if row.null_is else set()
        if unknown := [*(others - settings), *(row.write.keys() - frameworks)]:
            raise ConfigError(Problem(f"conf/{TABLE.name}: {row.name}", "names what is not there", listed(unknown)))
    return MappingProxyType(rows)


@cache
def read_yaml(path: Path, kind: type = dict) -> Any:
    """Return the mapping, or by `kind` the list, in a YAML file of ours, shared by all callers: do not change it. Read
    by libyaml, ten times as fast, where PyYAML has it. ConfigError: nothing of that kind can be read there."""
    import yaml

    where = "/".join(path.parts[-3:])
    try:
        with path.open(encoding="utf-8") as file:
            document = yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(Problem(where, "is not valid YAML", " ".join(str(error).split()))) from error
    if document is not None and not isinstance(document, kind):
        raise ConfigError(Problem(where, "is not a mapping" if kind is dict else "is not a list", repr(document)))
    return document or kind()


def written(name: str, entry: Any) -> Write:
    """Return an entry of `write` in any of its forms: a path, a list of them, or the long form. ValueError: it is not
    as the table's head says; `name` begins the message."""
    entry = entry if isinstance(entry, dict) and "path" not in entry else {"to": entry}
    to = entry.get("to") or []
    targets = [{"path": at} if isinstance(at, str) else at for at in (to if isinstance(to, list) else [to])]
    try:
        return msgspec.convert({**entry, "to": targets}, Write)
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}") from error


@cache
def shown_in(result: str) -> tuple[str, ...]:
    """Return the settings whose differences show in this result of a run: lr_used, tokens_seen, data_first_batch."""
    return tuple(name for name, setting in vocabulary().items() if result in setting.shows_in)


@cache
def short_names() -> Mapping[str, str]:
    """Return the settings that people write short, TP2 PP2, with that name."""
    return MappingProxyType({name: setting.short for name, setting in vocabulary().items() if setting.short})


@cache
def printed(framework: str) -> Mapping[str, Setting]:
    """Return the settings that `framework` states in its dump or its log, by the key under which they stand there."""
    return MappingProxyType({key: setting for setting in vocabulary().values() for key in setting.keys(framework)})


def meant(name: str, value: Any, values: Mapping[str, Any]) -> Any:
    """Return what a value of a setting means beside the others of its run: null as what it is derived as, a word in one
    spelling. What is derived of a value that is not known is left null."""
    row = vocabulary().get(name)
    if row is None:
        return value
    if isinstance(value, str) and value.casefold() not in _NULL:
        plain = _SPELLING.sub("", value.casefold())
        spelled = {_SPELLING.sub("", own.casefold()): word for word, many in row.spelled.items() for own in many}
        return value if row.kind == "data" else spelled.get(plain, plain)
    null = row.null_is
    if value is not None and not isinstance(value, str) and (isinstance(value, bool) or value != row.none):
        return value
    if null is None or (null.unless and values.get(null.unless) is not False):
        return None
    of, over = values.get(null.of), values.get(null.over) if null.over else 1
    if not (isinstance(of, int) and isinstance(over, int) and over > 0 and of * null.times % over == 0):
        return None
    return of * null.times // over


def switched_off(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings that have no effect beside `values`, by canonical name: their switch is None or False."""
    for setting in vocabulary().values():
        if setting.only_if is not None and values.get(setting.only_if, True) in OFF:
            yield setting.name


def requested(experiment: object, partial: bool = False) -> dict[str, Any]:
    """Return every requested setting by canonical name. partial: of a Request, what it settles already."""
    values = {}
    for setting in vocabulary().values():
        try:
            if setting.request:
                values[setting.name] = follow(experiment, setting.request)
        except AttributeError:
            if not partial:
                raise
    return values


def program_settings(experiment: object) -> dict[str, Any]:
    """Return the settings of a training program: `requested` without the facts of the request alone."""
    return {name: value for name, value in requested(experiment).items() if vocabulary()[name].dump}


def follow(value: Any, path: str) -> Any:
    """Return the attribute of `value` at a dotted path; None where it leads through a part that is null."""
    for attribute in path.split("."):
        value = None if value is None else getattr(value, attribute)
    return value


def leaves(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a nested mapping, each with its dotted path."""
    for name, value in mapping.items():
        is_part = isinstance(value, Mapping)
        yield from leaves(value, f"{prefix}{name}.") if is_part else [(f"{prefix}{name}", value)]
