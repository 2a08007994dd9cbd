"""From the values that a program logged to a tracker to the steps of a run, by what each tag means (tags.yaml)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from conf.frameworks import facts
from conf.vendors import maker_of
from conf.vocabulary import printed, read_yaml
from parsers.dialects import load
from parsers.driver import Argument, Event, Fact, Setting
from parsers.record import Step, Validation
from parsers.segment import Parsed, Segment
from parsers.values import FIELDS, Column, as_count, literal, number, real, step_fields, whole

TABLE = Path(__file__).with_name("tags.yaml")
_INTEGERS = {"global_batch_size", "consumed_samples", "memory_bytes", "skipped", "nan"}
_EXACT_FLOAT32 = 2**24  # beyond it not every integer is one of its numbers


class Point(NamedTuple):
    """Values that were logged together. axis: what they were logged against, a step or a count of calls; place: of the
    line, record or entry, from 1."""

    axis: int | None
    values: Mapping[str, float]
    place: int


@dataclass(frozen=True, slots=True)
class Export:
    """One run as a tracker keeps it. points: a fresh iterator over all of them, in the order in which they were logged.
    counts_calls: the axis counts calls of the logger (W&B), where the program logs its step beside the values. sampled:
    points may be missing between two. framework: of the program, where its tags do not say."""

    kind: str
    points: Callable[[], Iterable[Point]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    counts_calls: bool = False
    sampled: bool = False
    framework: str | None = None


class Writer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A program that logs: an entry of the table, whose head says what each key means."""

    framework: str
    signs: tuple[tuple[str, ...], ...]
    first: int
    dialect: str | None = None
    prefix: str = ""
    columns: Mapping[str, str] = {}
    validations: Mapping[str, str] = {}
    settings: Mapping[str, str] = {}
    counted_in: str | None = None
    axis_counts: bool = True
    rate: Literal["own", "next"] | None = None
    means: tuple[str, ...] = ()
    divided: tuple[str, ...] = ()
    memory_kind: str | None = None
    ends: str | None = None
    asynchronous: bool = False
    zero_is_unset: bool = False

    @cached_property
    def targets(self) -> Mapping[str, Column]:
        """Return what each tag of a step means."""
        shared = load(self.dialect).columns if self.dialect else {}
        return {f"{self.prefix}{name}": to for name, to in shared.items()} | {
            tag: _column(text) for tag, text in self.columns.items()
        }

    def reads(self, tag: str) -> bool:
        """Return whether a tag means anything here."""
        others = (self.counted_in, self.ends)
        return tag in self.targets or tag in self.validations or tag in self.settings or tag in others


def _column(text: str) -> Column:
    """Return the column that "field", "field * N" or "field / N" describes."""
    name, sign, by = [*text.split(" "), "*", "1"][:3]
    factor = Decimal(by) if sign == "*" else 1 / Decimal(by)
    if "_percent" in name:
        return name, _share
    return name, partial(_converted, factor=factor, integer=name in _INTEGERS or name.endswith("_bytes"))


def _converted(text: str, factor: Decimal, integer: bool) -> Any:
    value = number(text)
    if value is None:
        return None
    value = value if factor == 1 else float(Decimal(text) * factor)  # 4403.9 / 1000 is no 4.4039 to a float
    return whole(value) if integer else value


def _share(text: str) -> float | None:
    value = number(text)
    return value if value is not None and value >= 0 else None  # nanoGPT logs -100 % before it knows


@cache
def writers() -> Sequence[Writer]:
    """Return the programs of the table, the special before the general."""
    return [msgspec.convert(entry, Writer) for entry in read_yaml(TABLE).values()]


def plain_tag(tag: str) -> str:
    """Return a tag without the group of the same name in which Megatron-DeepSpeed puts it: grad-norm/grad-norm."""
    group, _, name = tag.partition("/")
    return name if group == name else tag


def read_runs(export: Export) -> tuple[Parsed, ...]:
    """Return the runs in an export, at least one: without steps where no program of the table has written it."""
    count, tags = 0, set[str]()
    for count, point in enumerate(export.points(), start=1):  # noqa: B007
        tags.update(point.values)
    names = {plain_tag(tag) for tag in tags}
    writer = next((w for w in writers() if any(names.issuperset(sign) for sign in w.signs)), None)
    own = {tag for tag in names if not tag.startswith("_") and not tag.endswith((" vs samples", " vs tokens"))}
    unread = sorted(tag for tag in own if writer is None or not writer.reads(tag))
    shown = ", ".join(unread[:4]) + (", …" if len(unread) > 4 else "")
    notes = [*export.notes]
    if unread:
        notes.append(f"{len(unread)} of {len(own)} tags are not known, and not read: {shown}")
    if writer is None and own:
        notes.append("no program that is known logs these tags: parsers/tags.yaml")
    if writer is not None and not export.sampled and writer.counted_in not in names:
        export = replace(export, counts_calls=False)  # an older release, which gave its step to the logger
    runs, unplaced = _Runs(export, writer or Writer(framework=export.framework or "", signs=(), first=1)), 0
    for number_, logged, place in _rows(export, writer) if writer else ():
        if number_ is None:
            unplaced += 1
        else:
            runs.take(number_, logged, place)
    if unplaced:
        notes.append(f"{unplaced} entries name no step, and are not read")
    return runs.parsed(count, notes)


def _rows(export: Export, writer: Writer) -> Iterator[tuple[int | None, dict[str, float], int]]:
    """Yield the number of a step, None where nothing says it, with all that was logged of it one after another."""
    axis, values, place = None, dict[str, float](), 0
    for point in export.points():
        known = {name: value for tag, value in point.values.items() if writer.reads(name := plain_tag(tag))}
        if known and (point.axis != axis or point.axis is None) and values:
            yield _number(export, writer, axis, values), values, place
            values = {}
        if known:
            axis, place = point.axis, place if values else point.place
            values.update(known)
    if values:
        yield _number(export, writer, axis, values), values, place


def _number(export: Export, writer: Writer, axis: int | None, values: Mapping[str, float]) -> int | None:
    """Return the number of the step that values are of; None where nothing says it."""
    if (counted := values.get(writer.counted_in or "")) is not None:
        return as_count(counted)
    alone = writer.counted_in is not None and (export.counts_calls or not writer.axis_counts)
    return None if alone else axis


class _Runs:
    """Makes steps of rows. A step that comes back to the first one begins another run, as in a log."""

    def __init__(self, export: Export, writer: Writer) -> None:
        self._export, self._writer = export, writer
        self._done: list[Segment] = []
        self._begin(1)

    def _begin(self, place: int) -> None:
        writer = self._writer
        self._segment = Segment(place)
        self._waiting: tuple[int, dict[str, float], int] | None = None
        self._before: dict[str, Any] = {}  # the last step
        self._logged: dict[str, int] = {}  # when each mean was logged last
        self._reader = load(writer.dialect).reader() if writer.dialect and writer.asynchronous else None
        for event in _stated(self._export, writer):
            self._segment.take(event, writer.framework)

    def take(self, count: int, logged: Mapping[str, float], place: int) -> None:
        """Take the values of a row; those of one step may come in several."""
        if self._waiting is not None and count != self._waiting[0]:
            self._release()
        trained = {tag: value for tag, value in logged.items() if tag in self._writer.targets}
        if trained and self._waiting is not None:
            self._waiting[1].update(trained)
        elif trained:
            self._waiting = count, trained, place
        for event in self._events(count, logged, place):
            self._segment.take(event, self._writer.framework)

    def _events(self, count: int, logged: Mapping[str, float], place: int) -> Iterator[Event]:
        """Yield what a row says beside its step."""
        writer = self._writer
        point = {to: real(logged[tag]) for tag, to in writer.validations.items() if tag in logged}
        if any(tag in logged and not tag.startswith("train/") for tag in writer.validations):
            loss, seconds = point.pop("loss", None), point.pop("seconds", None)
            at = count - writer.first if count >= writer.first else None
            yield Validation(line=place, step=at, iteration=count, loss=loss, seconds=seconds, metrics=point)
        for tag, name in writer.settings.items():
            if (value := as_count(logged.get(tag))) is not None:
                yield Setting(name, value, place)
        if writer.ends in logged and count:
            yield Fact("completed", True, place)
            yield Fact("train_iters", count, place)

    def _release(self) -> None:
        """Make a step of what waits, where it says anything of one."""
        if self._waiting is None:
            return
        (count, logged, place), self._waiting = self._waiting, None
        writer, segment = self._writer, self._segment
        values = step_fields((*writer.targets[tag], repr(value)) for tag, value in logged.items())
        values.pop("step", None)
        if not values["nonfinite"] and all(values.get(name) is None for name in FIELDS - {"metrics", "nonfinite"}):
            return
        at = count - writer.first
        if at < 0:
            return
        if segment.steps and at <= segment.steps[0].step:
            self._close()
            self._begin(place)
        if writer.dialect and (adjust := load(writer.dialect).adjust):
            values = adjust({**values, "step": at, "iteration": at}, "") or values
        values |= {"step": at, "iteration": count}
        self._describe(values)
        made = (Step(line=place, **values),) if self._reader is None else self._reader.step(place, values, "")
        for step in made:
            self._segment.add(step)  # type: ignore[arg-type]

    def _describe(self, values: dict[str, Any]) -> None:
        """Say over how many steps the values are, which rate was used and what the memory is."""
        writer, at, before = self._writer, values["step"], self._before
        since = at - before.get("step", -1) if before or at == 0 else None
        for name in writer.divided:
            if since is None or since != before.get("since"):
                values[name] = None
        flags: list[str] = []
        for name in (name for name in writer.means if values.get(name) is not None):
            flags += [f"{name}:interval_mean"] * (at - self._logged.get(name, -1) != 1)
            self._logged[name] = at
        if since == 1 or (since is not None and since > 0 and not self._export.sampled):
            values["interval_steps"] = since
        if writer.rate == "own":
            values["lr_used"] = values.get("lr")
        elif writer.rate == "next" and since == 1:
            values["lr_used"] = before.get("lr")
        if values.get("memory_bytes") is not None:
            values["memory_kind"] = writer.memory_kind
        if self._export.kind == "tensorboard" and (values.get("consumed_samples") or 0) >= _EXACT_FLOAT32:
            values["consumed_samples"] = None
        values["flags"] = tuple(flags)
        self._before = {**values, "since": since}

    def _close(self) -> None:
        for step in self._reader.end() if self._reader is not None else ():
            self._segment.add(step)  # type: ignore[arg-type]
        self._done.append(self._segment)

    def parsed(self, count: int, notes: Sequence[str]) -> tuple[Parsed, ...]:
        """Return the runs. count: of the points of the export."""
        self._release()
        self._close()
        kind, framework = self._export.kind, self._writer.framework or None
        *before, last = [segment.parsed(kind, framework, (kind,), count) for segment in self._done]
        # A tracker keeps the last settings: of the runs before nobody knows whether they had others.
        none: dict[str, Any] = {"effective": {}, "dumped": {}, "arguments": {}}
        runs = [replace(run, train_iters=run.train_iters if run.completed else None, **none) for run in before]
        return tuple(replace(run, notes=(*run.notes, *notes)) for run in (*runs, last))


def _stated(export: Export, writer: Writer) -> Iterator[Event]:
    """Yield what an export says of the run beside its steps; settings by the keys that its framework prints."""
    known = printed(writer.framework)
    megatrons, off = facts(writer.framework).get("prints_megatron_arguments"), writer.zero_is_unset
    for key, value in export.settings.items():
        value = literal(value) if isinstance(value, str) else value
        if megatrons:
            yield Argument(key, value, 1)
        elif key in known and value is not None and known[key].accepts(value) and (value or not off):
            yield Setting(known[key].name, value, 1)
        planned = known[key].name if key in known else key if megatrons else None
        if planned == "train_iters" and type(value) is int and value > 0:
            yield Fact("train_iters", value, 1)
    if megatrons and export.settings:
        yield Fact("dump_complete", True, 1)
    vendor = maker_of(str(export.facts.get("device_name", "")))
    for name, value in {**export.facts, **({"vendor": vendor} if vendor else {})}.items():
        yield Fact(name, value, 1)
