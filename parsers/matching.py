"""Which runs are meant by `platform=amd model=llama`: by what their records say, without running anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from conf.compose import CONF, choices
from conf.errors import InputError, Problem, closest, listed
from conf.vocabulary import vocabulary
from parsers.record import Record, Run
from parsers.storage import experiment_of
from parsers.values import literal

FIELDS = (
    *("id", "name", "provenance", "status", "platform", "vendor", "hardware"),
    *("framework", "framework_version", "image"),
)
MODEL = "model"
_SHOWN = 8


def matching(runs: Sequence[Run], filters: Sequence[str], other_keys: Sequence[str] = ()) -> tuple[Run, ...]:
    """Return the runs for which every key has one of the values asked for: with commas, or the key again. A value may
    hold * and ?. A setting is what ran, else what was requested. other_keys: those that the command takes beside
    filters, for suggestions. InputError: a key that no run knows."""
    asked: dict[str, list[str]] = {}
    for text in filters:
        key, _, value = text.partition("=")
        asked.setdefault(key.strip(), []).extend(_meant(key.strip(), value))
    environment = {name for run in runs for name in run.record.environment}
    known = {*FIELDS, MODEL, *vocabulary(), *environment}
    problems = [
        Problem(key, "no such key", allowed=_allowed(), hint=closest(key, [*known, *other_keys]))
        for key in asked
        if key not in known
    ]
    if problems:
        raise InputError(*problems)
    return tuple(run for run in runs if all(_is_one_of(value_of(run, key), texts) for key, texts in asked.items()))


def none_matches(runs: Sequence[Run], filters: Sequence[str]) -> Iterator[Problem]:
    """What is there instead, for each filter."""
    for text in filters:
        key = text.partition("=")[0].strip()
        there = list(dict.fromkeys(str(value_of(run, key)) for run in runs))
        shown = listed(there[:_SHOWN]) + (" …" if len(there) > _SHOWN else "")
        yield Problem(text, f"no run of {len(runs)} fits all filters", allowed=f"{key} is {shown} here")


def value_of(run: Run, key: str) -> Any:
    """What a run is known by; None where it does not say."""
    record = run.record
    if key == MODEL:
        model = record.given.get(MODEL) or _model(run.path)
        return _named(model) if isinstance(model, str) else None
    if key in FIELDS:
        return getattr(record, key)
    if key in vocabulary():
        return _setting(record, key)
    return record.environment.get(key)


def _setting(record: Record, name: str) -> Any:
    told: Mapping[str, Any] = record.effective
    return record.setting(name) if name in told or name in record.given else record.requested.get(name)


def _model(directory: str) -> str | None:
    """Return the name of the model in the experiment that lies beside the record."""
    return experiment_of(directory, MODEL).get("name")


def _meant(key: str, text: str) -> Iterator[str]:
    """All that a value may mean: a comma may part two, or be of one, as in split=99,1,0."""
    for value in dict.fromkeys((text, *text.split(","))):
        yield _named(value) if key == MODEL else value


@cache
def _named(model: str) -> str:
    """The model behind conf/model/llama.yaml, which is nothing but another name for llama31_8b."""
    import yaml

    if model in choices("model"):
        entry = yaml.safe_load((CONF / "model" / f"{model}.yaml").read_text(encoding="utf-8"))
        if [*entry] == ["defaults"]:
            return str(entry["defaults"][0])
    return model


def _is_one_of(value: Any, texts: Sequence[str]) -> bool:
    return any(_is(value, text) for text in texts)


def _is(value: Any, text: str) -> bool:
    if value is None or isinstance(value, bool):
        return str(value).lower() == text.lower() or (value is None and text == "null")
    if isinstance(value, int | float):
        wanted = literal(text)
        return isinstance(wanted, int | float) and not isinstance(wanted, bool) and wanted == value
    return fnmatchcase(str(value), text)


def _allowed() -> str:
    return f"{listed([*FIELDS, MODEL])}, a setting of conf/vocabulary.yaml, or a fact of the environment"
