"""What a user knows of a log that the log does not say: `model=llama31_8b hardware=h100 framework_version=2.7.3 …`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from conf.errors import InputError, Problem, closest
from conf.vocabulary import follow, vocabulary
from parsers.record import Record
from parsers.values import literal

FIELDS = ("name", "platform", "vendor", "framework", "framework_version", "image")
_CHOICES = ("model", "hardware")


def given_of(texts: Sequence[str]) -> dict[str, Any]:
    """Key to value. InputError: keys and choices that do not exist, all of them."""
    pairs = [text.partition("=")[::2] for text in texts]
    problems = [problem for key, value in pairs for problem in _problems(key, value)]
    if problems:
        raise InputError(*problems)
    return {key: value if key in (*FIELDS, *_CHOICES) else literal(value) for key, value in pairs}


def _problems(key: str, value: str) -> Iterator[Problem]:
    from conf.compose import choice_problems

    known = (*_CHOICES, *FIELDS, *vocabulary())
    if key in _CHOICES:
        yield from choice_problems(key, value)
    elif key not in known:
        allowed = f"{', '.join((*_CHOICES, *FIELDS))}, or a setting of conf/vocabulary.yaml"
        yield Problem(key, "is nothing that can be given", allowed=allowed, hint=closest(key, known))


def with_given(record: Record, given: Mapping[str, Any]) -> Record:
    """`record` with what was given, where it does not say so itself; `record.given` holds what was taken.

    A model's settings are those of its file in conf/model. A log that says otherwise is right, and a note tells it.
    """
    if not given:
        return record
    hardware = given.get("hardware")
    fields = {
        name: value for name, value in given.items() if name in FIELDS and (name == "name" or not getattr(record, name))
    }
    fields |= (
        {"hardware": hardware, "vendor": record.vendor or _vendor(hardware)} if hardware and not record.hardware else {}
    )
    settings = {name: value for name, value in given.items() if name in vocabulary()}
    if "model" in given:
        settings = {**_model(given["model"]), **settings}
    told = {name: record.effective[name].value for name in settings if name in record.effective}
    other = [
        f"{name} is {told[name]} in the log, {settings[name]} as given" for name in told if told[name] != settings[name]
    ]
    taken = {name: value for name, value in settings.items() if name not in told}
    kept = {name: given[name] for name in (*_CHOICES, *FIELDS) if name in given}
    return replace(record, **fields, given={**kept, **taken}, notes=(*record.notes, *other))


def _model(name: str) -> dict[str, Any]:
    """The canonical settings of a model of conf/model."""
    from conf.architecture import Model
    from conf.compose import compose
    from conf.freeze import freeze

    problems: list[Problem] = []
    model = freeze(Model, compose([f"model={name}"])["model"], "model", problems)
    if problems:
        raise InputError(*problems)
    own = {
        s.name: s.request for s in vocabulary().values() if s.kind == "model" and (s.request or "").startswith("model.")
    }
    return {setting: follow(model, path.removeprefix("model.")) for setting, path in own.items() if path}


def _vendor(hardware: str) -> str | None:
    from conf.compose import compose

    facts = compose([f"hardware={hardware}"])["hardware"]
    return facts.get("vendor") if isinstance(facts, dict) else None
