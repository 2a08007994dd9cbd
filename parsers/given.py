"""Facts that a user states of a log which does not: `model=llama31_8b hardware=h100 framework_version=2.7.3 …`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, get_args

from msgspec.structs import replace

from conf.arguments import Key
from conf.compose import choice_problems, choices
from conf.errors import InputError, Problem, UserError, closest, listed
from conf.freeze import amount
from conf.vendors import READ_ONLY, vendors
from conf.vocabulary import follow, vocabulary
from parsers.contradictions import contradictions
from parsers.record import Record, Status
from parsers.values import yaml_literal

FIELDS = ("name", "platform", "vendor", "framework", "framework_version", "image")
_OF_SETTINGS = ("model", "precision")  # a choice of conf/ that stands for many settings
_CHOICES = (*_OF_SETTINGS, "hardware")
# Precisions that logs have, and no stack here trains in yet: their recipe, where the name says one.
_FP4: Mapping[str, Mapping[str, Any]] = {"fp4": {}, **{name: {"fp4_recipe": name} for name in ("nvfp4", "mxfp4")}}
STATUS = "status"
"""How a run ended, which some logs do not say."""


def given_keys() -> tuple[Key, ...]:
    """Return the keys for completion."""
    names, one_of = (*_CHOICES, *FIELDS, STATUS, *vocabulary()), _one_of()
    return tuple(Key(name, "", choices=partial(tuple, one_of.get(name) or _offered(name))) for name in names)


def _offered(key: str) -> tuple[str, ...]:
    return (*choices(key), *(_FP4 if key == "precision" else ()))


def _one_of() -> Mapping[str, Sequence[str]]:
    """Return the values of each key that is none of conf/ and takes no others."""
    platforms, makers = sorted({*choices("platform")} - {"auto"}), (*vendors(), *READ_ONLY.values())
    return {STATUS: get_args(Status), "platform": platforms, "vendor": makers}


def given_of(texts: Sequence[str], other_keys: Sequence[str] = ()) -> dict[str, Any]:
    """Return key to value. other_keys: what the command takes beside these, for suggestions. InputError: keys and
    choices that do not exist, all of them."""
    pairs = [text.partition("=")[::2] for text in texts]
    problems = [problem for key, value in pairs for problem in _problems(key, value, other_keys)]
    if problems:
        raise InputError(*problems)
    return {key: value if key in (*FIELDS, *_CHOICES, STATUS) else _value(key, value) for key, value in pairs}


def _problems(key: str, value: str, other_keys: Sequence[str]) -> Iterator[Problem]:
    known = (*_CHOICES, *FIELDS, STATUS, *vocabulary())
    if key == "precision" and value not in choices(key):
        if value not in _FP4:
            yield Problem(key, "no such choice", value, listed(_offered(key)), closest(value, _offered(key)))
    elif key in _CHOICES:
        yield from choice_problems(key, value)
    elif key in (one_of := _one_of()):
        if value not in one_of[key]:
            yield Problem(key, "no such value", value, listed(one_of[key]), closest(value, one_of[key]))
    elif key not in known:
        allowed = f"{', '.join((*_CHOICES, *FIELDS, STATUS))}, or a setting of conf/vocabulary.yaml"
        yield Problem(key, "no such key", allowed=allowed, hint=closest(key, (*known, *other_keys)))
    elif key in vocabulary():
        setting, typed_value = vocabulary()[key], _value(key, value)
        if not setting.accepts(typed_value):  # it would be believed
            hint = "precision=bf16 gives all at once" if setting.kind == "precision" else ""
            yield Problem(key, "no such value", str(typed_value), setting.allowed, hint)


def _value(key: str, text: str) -> Any:
    return amount({"int": int, "float": float}.get(vocabulary()[key].type), yaml_literal(text))


def with_given(record: Record, given: Mapping[str, Any]) -> Record:
    """Return `record` with what was given, where it does not say so itself; `record.given` holds what was taken.

    A model's settings are those of its file in conf/model; where the log has another dropout or the like, it is right,
    and a note says so. InputError: the log contradicts what was given, with both values."""
    settings = {name: value for name, value in given.items() if name in vocabulary()}
    for group in _OF_SETTINGS:
        settings = {**(_chosen(group, given[group]) if group in given else {}), **settings}
    if not given:
        return record
    problems: dict[str, Problem] = {}
    for problem in contradictions(record, given, settings):
        problems.setdefault(problem.where, problem)  # one reason is enough
    if problems:
        raise InputError(*problems.values())
    fields = {name: given[name] for name in FIELDS if name in given and (name == "name" or not getattr(record, name))}
    if "hardware" in given:
        about = {"hardware": given["hardware"], **_maker(given["hardware"])}
        fields |= {name: value for name, value in about.items() if not getattr(record, name)}
    stated = {name: record.effective[name].value for name in settings if name in record.effective}
    apart = [(name, value, settings[name]) for name, value in stated.items() if value != settings[name]]
    had = [(name, getattr(record, name), given[name]) for name in FIELDS[1:] if name in given]
    apart += [(name, value, mine) for name, value, mine in had if value not in (None, mine)]
    other = [f"{name} is {value} in the log, {mine} as given" for name, value, mine in apart]
    if STATUS in given and record.status == "unknown":
        fields[STATUS] = given[STATUS]
    elif given.get(STATUS, record.status) != record.status:
        other.append(f"the log says that it {record.status}, {given[STATUS]} as given")
    taken = {name: value for name, value in settings.items() if name not in stated}
    if "image" in fields:
        fields["image_source"] = "given"
    kept = {name: given[name] for name in (*_CHOICES, *FIELDS, STATUS) if name in given}
    return replace(record, **fields, given={**kept, **taken}, notes=(*record.notes, *other))


def _maker(hardware: str) -> dict[str, Any]:
    """Return vendor and platform of a device; those of `unknown` are left open."""
    from conf import facts

    device = facts.hardware(hardware)
    maker = device and (device.vendor or device.name)  # of the CPU no vendor, and a platform
    known = {"vendor": device and device.vendor, "platform": maker if maker in choices("platform") else None}
    return {field: value for field, value in known.items() if value in vendors()}


def typed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of `Record.given` must be typed to have all of it again: not what model= and precision= stand for."""
    try:
        chosen = [_chosen(group, str(given[group])) for group in _OF_SETTINGS if group in given]
    except UserError:  # a record from elsewhere, of a choice that is not here
        return dict(given)
    implied = {name: value for settings in reversed(chosen) for name, value in settings.items()}
    return {name: value for name, value in given.items() if name not in implied or implied[name] != value}


@cache
def _chosen(group: str, name: str) -> Mapping[str, Any]:
    """Return the canonical settings of a file of conf/model or conf/precision."""
    from conf.compose import compose
    from conf.freeze import frozen
    from conf.schema import Model, Precision

    if group == "precision" and name in _FP4:
        return {"params_dtype": "bfloat16", "fp8": None, "fp8_recipe": None, "fp4": "e2m1", **_FP4[name]}
    kind: type = {"model": Model, "precision": Precision}[group]
    chosen = frozen(kind, compose([f"{group}={name}"])[group], group)
    paths = {s.name: s.request for s in vocabulary().values() if s.kind == group and s.request}
    own, no_fp4 = f"{group}.", {"fp4": None} if group == "precision" else {}
    own_values = ((name, path.removeprefix(own)) for name, path in paths.items() if path.startswith(own))
    return {**no_fp4, **{name: follow(chosen, path) for name, path in own_values}}
