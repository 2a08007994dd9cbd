"""One run in a log: all that its lines say, gathered event by event. Of a long log only packed steps take memory."""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, overload

import msgspec
from msgspec.structs import fields, replace

from conf.frameworks import facts
from conf.vocabulary import vocabulary
from parsers import marks
from parsers.driver import Argument, Cut, Event, Fact, Resumed, Setting
from parsers.faults import Faults, Trail
from parsers.megatron_dump import in_effect
from parsers.record import Reading, Restart, Stall, Step, Validation
from parsers.software import printed

_MANY, _HEAD, _RECENT = 10_000, 1 << 18, 16
_IN_TOKENS = {"global_batch_tokens": "global_batch_size", "micro_batch_tokens": "micro_batch_size"}
# All ranks pass a step together, so a line that repeats one is never further behind.
_TWINS_WITHIN = 3
# A step takes half a kB as it is, some 30 bytes packed; packing and unpacking it take a third of the time to read it.
_PACK, _KEPT = 4096, 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """One run as its log reports it. dialect is None where nothing in it was recognised. arguments: by the framework's
    names; effective, dumped, configured: by canonical ones. completed: the framework's own end marker was seen;
    finished: whether all was done, where it says so. tail: the last lines. lines: of all of the log; first_line: where
    the run begins in it."""

    dialect: str | None
    dialects: tuple[str, ...] = ()
    framework: str | None
    steps: Sequence[Step]
    facts: Mapping[str, Any]
    arguments: Mapping[str, Reading]
    effective: Mapping[str, Reading]
    dumped: Mapping[str, Reading]
    configured: Mapping[str, Reading]
    requested: Mapping[str, Any]
    validations: tuple[Validation, ...]
    stalls: tuple[Stall, ...]
    restarts: tuple[Restart, ...]
    train_iters: int | None
    completed: bool
    finished: bool | None = None
    faults: Faults
    notes: tuple[str, ...]
    tail: tuple[str, ...]
    lines: int
    first_line: int

    @property
    def reached(self) -> int:
        """Return how many iterations were done by the last step line; 0 if none, or the log does not say."""
        return self.steps[-1].step + 1 if self.steps and self.steps[-1].numbered else 0


class Steps(Sequence[Step]):
    """Steps in ascending order. The last _PACK can be replaced, any number taken back."""

    def __init__(self, packs: Sequence[bytes] = (), recent: Sequence[Step] = ()) -> None:
        self._packs, self._recent = [*packs], [*recent]

    def append(self, step: Step) -> None:
        """Add the step that follows the last."""
        self._recent.append(step)
        if len(self._recent) >= _KEPT:
            self._packs.append(zlib.compress(msgspec.msgpack.encode(self._recent[:_PACK]), 1))
            del self._recent[:_PACK]

    def replace(self, index: int, step: Step) -> None:
        """Put another description of the same step at `index`, which counts from the end: -1 is the last."""
        self._recent[index] = step

    def take_back(self, number: int) -> None:
        """Drop all steps from `number` on."""
        while self._recent and self._recent[-1].step >= number:
            self._recent.pop()
            if len(self._recent) < _PACK and self._packs:
                self._recent[:0] = _unpacked(self._packs.pop())

    def copy(self) -> Sequence[Step]:
        """Return the steps so far; appending later does not change what was returned."""
        return Steps(self._packs, self._recent) if self._packs else tuple(self._recent)

    def __len__(self) -> int:
        return len(self._packs) * _PACK + len(self._recent)

    def __iter__(self) -> Iterator[Step]:
        for pack in self._packs:
            yield from _unpacked(pack)
        yield from self._recent

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | Sequence[Step]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if -len(self._recent) <= index < 0:
            return self._recent[index]
        at = range(len(self))[index]
        packed = len(self._packs) * _PACK
        return self._recent[at - packed] if at >= packed else _unpacked(self._packs[at // _PACK])[at % _PACK]


@lru_cache(maxsize=1)
def _unpacked(pack: bytes) -> list[Step]:
    return _DECODER.decode(zlib.decompress(pack))


_DECODER = msgspec.msgpack.Decoder(list[Step])


class Segment:
    """Takes the events of one run. What comes between two steps may belong to a run that begins: the reader decides.
    before: what stands in the log between the last step of the run before and this one's first."""

    def __init__(self, first_line: int, before: bytes = b"") -> None:
        self.first_line = first_line
        self._begins, self._size = bytearray(before[-_HEAD // 2 :]), min(len(before), _HEAD // 2)
        self.steps = Steps()
        self.last_step = -1  # its number
        self.trail = Trail()
        self._facts: dict[str, Any] = {}
        self._arguments: dict[tuple[str, str], Reading] = {}
        self._settings: dict[str, Reading] = {}
        self._marked: dict[str, dict[str, Reading]] = {kind: {} for kind in marks.SETTINGS}
        self._contradicted: set[str] = set()
        self._tokens: dict[str, Reading] = {}  # batches that are stated so
        self._validations: list[Validation] = []
        self._validated: dict[int, Validation] = {}  # those of marks, by iteration
        self._stalls: list[Stall] = []
        self._restarts: list[Restart] = []
        self._points: deque[tuple[int, Validation]] = deque(maxlen=_RECENT)
        self._stall: Stall | None = None  # the last one
        self._cut: dict[str, int] = {}  # what the log states and another text has cut, with its line
        self._train_iters: int | None = None
        self._completed = False
        self._finished: bool | None = None
        self._complete = False
        self._marked_only: set[int] = set()  # of the last steps, those that no line has reported yet
        self._joint_s: float | None = None
        self._shift_s = 0.0

    def take(self, event: Event, framework: str) -> None:
        """Take in any event but a Step."""
        if isinstance(event, Argument):
            self._state(self._arguments, (framework, event.name), event)
        elif isinstance(event, Setting):
            self._state(self._settings, event.name, event)
        elif isinstance(event, Fact):
            self._take_fact(event)
        elif isinstance(event, Cut):
            self._cut.setdefault(event.name, event.line)
        elif isinstance(event, Resumed):
            self.resume(event.done, event.line)
        elif isinstance(event, Validation):
            self._keep_validation(self._placed(event))
        elif isinstance(event, Stall):
            self._keep_stall(replace(event, seconds=None) if (event.seconds or 0) < 0 else event)

    @property
    def began(self) -> bool:
        """Return whether there is a run here, with steps or with an end of its own."""
        return bool(self.steps) or self._finished is not None

    def pass_by(self, block: bytes, steps_end: list[int]) -> None:
        """Take in the next bytes of the run; steps_end: see `Trail.take`."""
        self.trail.take(block, steps_end)
        self._begins += block[: max(0, _HEAD - len(self._begins))]
        self._size += len(block)

    def head(self) -> bytes:
        """Return how its part of the log begins, not beyond its last step: what follows may be another run's."""
        return bytes(self._begins[: max(0, self._size - len(self.trail.newer))])

    def twin(self, step: Step) -> int | None:
        """Return where the same step stands already, printed by another rank or twice, as an index from the end."""
        index = self._place(step.step)
        known = None if index is None else self.steps[index]
        return index if known and (known.step in self._marked_only or _alike(known, step)) else None

    def _place(self, number: int) -> int | None:
        """Return where one of the last steps stands."""
        places = range(-1, -min(len(self.steps), _TWINS_WITHIN) - 1, -1)
        return next((index for index in places if self.steps[index].step == number), None)

    def merge(self, index: int, step: Step) -> Step:
        """Merge two reports of a step: the first counts, later ones add what it lacks; a mark keeps its own fields."""
        known = self.steps[index]
        if known.step in self._marked_only:
            self._marked_only.remove(known.step)
            merged = _over(step, known)
        else:
            merged = _filled(known, step)
        if merged is not known:
            self.steps.replace(index, merged)
        return merged

    def add(self, step: Step) -> None:
        """Add a step that follows; one that goes back takes back what it redoes."""
        if step.step <= self.last_step:
            self._restart(step.step, step.line)
        self.steps.append(step)
        self.last_step = step.step

    def mark(self, text: str, line: int) -> tuple[Step | None, bool]:
        """Read a line of our own programs. Return the step that it reports or refines, and whether it is a new one."""
        done, reported = marks.read_resumed(text), marks.read_step(text)
        if done is not None:
            self.resume(done, line)
        if (point := marks.read_validation(text, line)) is not None and len(self._validated) < _MANY:
            self._validated[point.iteration or 0] = point
        for name, value in (marks.read("facts", text) or {}).items():
            self._take_fact(Fact(name, value, line))
        for kind, into in self._marked.items():
            for name, value in (marks.read(kind, text) or {}).items():
                if len(into) < _MANY:
                    into[name] = Reading(value, line)
        return (None, False) if reported is None else self._mark_step(*reported, line)

    def _mark_step(self, number: int, mark: Mapping[str, Any], line: int) -> tuple[Step, bool]:
        index = self._place(number)
        if index is not None:
            refined = self._clocked(marks.refine(self.steps[index], mark))
            self.steps.replace(index, refined)
            return refined, False
        step = self._clocked(marks.step_of(number, mark, line))
        self.add(step)
        self._marked_only = {number, *(n for n in self._marked_only if n > number - _TWINS_WITHIN)}
        return step, True

    def resume(self, done: int, line: int) -> None:
        """Go on after a checkpoint in the same log: what came after it is done again, and no fault ended the run."""
        self._restart(done, line)

    def _restart(self, done: int, line: int) -> None:
        last = self._restarts[-1] if self._restarts else None
        if last is not None and last.steps == done and (not self.steps or self.steps[-1].line < last.line):
            return  # another rank says so, too
        self._validations = [point for point in self._validations if point.step is None or point.step < done]
        self._validated = {iteration: point for iteration, point in self._validated.items() if iteration <= done}
        self._points.clear()
        if not self.steps:
            if done:
                self._keep(self._restarts, Restart(done, line))
            return
        self.steps.take_back(done)
        self.last_step = self.steps[-1].step if self.steps else -1
        self._marked_only, self._completed, self._finished, self._shift_s = set(), False, None, 0.0
        self._joint_s = self.steps[-1].end_monotonic_s if self.steps else None
        self._keep(self._restarts, Restart(done, line))

    def _clocked(self, step: Step) -> Step:
        """Return `step` on the clock of the log's first part: what lies between two parts is no training."""
        if step.end_monotonic_s is None:
            return step
        if self._joint_s is not None:
            self._shift_s = self._joint_s + (step.step_time_s or 0.0) - step.end_monotonic_s
            self._joint_s = None
        return replace(step, end_monotonic_s=step.end_monotonic_s + self._shift_s) if self._shift_s else step

    def _placed(self, point: Validation) -> Validation:
        known = point.step is not None or point.iteration is not None
        if self.steps and "loss:interval_mean" in self.steps[-1].flags:
            return point  # steps without a line may lie before it
        return (
            point
            if known or not self.steps or not self.steps[-1].numbered or self._is_late(point)
            else replace(point, step=self.steps[-1].step)
        )

    def _is_late(self, point: Validation) -> bool:
        """Return whether a point at the end of training stands behind a step that is not the last: that was lost."""
        return point.split == "test" and self._train_iters not in (None, self.last_step + 1)

    def _take_fact(self, fact: Fact) -> None:
        if fact.name == "train_iters":
            self._train_iters = fact.value if type(fact.value) is int else None
        elif fact.name == "completed":
            self._completed = fact.value is not False
            if fact.value in ("all", False):
                self._finished = fact.value == "all"
        elif fact.name == "dump_complete":
            self._complete = True
        elif fact.name in _IN_TOKENS:
            self._tokens.setdefault(fact.name, Reading(fact.value, fact.line))
        else:
            known = self._facts.get(fact.name)
            if isinstance(known, dict) and isinstance(fact.value, dict):
                if len(known) < _MANY:
                    known.update(fact.value)
            elif len(self._facts) < _MANY:
                self._facts[fact.name] = fact.value

    def _state(self, readings: dict[Any, Reading], key: Any, event: Argument | Setting) -> None:
        if key not in readings and len(readings) >= _MANY:
            return
        before = readings.setdefault(key, Reading(event.value, event.line))
        if repr(before.value) != repr(event.value):
            self._contradicted.add(event.name)

    def _keep_validation(self, point: Validation) -> None:
        """Keep a point that no other rank has printed since the last step."""
        printed = self.last_step, replace(point, line=1, seconds=None)
        if printed not in self._points:
            self._points.append(printed)
            self._keep(self._validations, point)

    def _all_validations(self) -> tuple[Validation, ...]:
        """Return the points of marks, with what was printed of each, and the other printed ones, in order."""
        alone, points = dict(self._validated), []
        for point in self._validations:
            same = next((at for at, marked in alone.items() if _is_one(point, marked)), None)
            points.append(point if same is None else replace(alone.pop(same), metrics=point.metrics))
        return tuple(sorted((*points, *alone.values()), key=lambda point: point.line))

    def _keep_stall(self, stall: Stall) -> None:
        """Keep a stall but where the line before gives the same seconds, of another rank."""
        before, self._stall = self._stall, stall
        if not (before and stall.seconds and replace(stall, line=stall.line - 1) == before):
            self._keep(self._stalls, stall)

    def _keep(self, entries: list[Any], entry: Any) -> None:
        if len(entries) < _MANY:
            entries.append(entry)

    def parsed(self, dialect: str | None, framework: str | None, dialects: tuple[str, ...], lines: int) -> Parsed:
        """Return the run as it was reported so far."""
        stated = {key: at for key, at in self._arguments.items() if key[1] not in self._contradicted}
        dumped = self._dumped(stated, framework)
        damaged = {name: at for name, at in dumped.items() if _is_damaged(name, at.value)}
        dumped = {name: at for name, at in dumped.items() if name not in damaged}
        planned = self._marked["effective"].get("train_iters", dumped.get("train_iters"))
        if planned is not None and self._train_iters is None:
            self._take_fact(Fact("train_iters", planned.value, planned.line))
        return Parsed(
            dialect=dialect,
            dialects=dialects,
            framework=framework,
            steps=self.steps.copy(),
            facts={**dict(printed(self.head() or bytes(self._begins))), **self._facts},
            arguments={name: at for (column, name), at in stated.items() if column == framework},
            effective={**dumped, **self._marked["effective"]},
            dumped=dumped,
            configured=dict(self._marked["configured"]),
            requested={name: at.value for name, at in self._marked["requested"].items()},
            validations=self._all_validations(),
            stalls=tuple(self._stalls),
            restarts=tuple(self._restarts),
            train_iters=self._train_iters,
            completed=self._completed,
            finished=self._finished,
            faults=self.trail.faults(),
            notes=tuple(self._notes(dumped, {**self._cut, **{name: at.line for name, at in damaged.items()}})),
            tail=self.trail.lines(),
            lines=lines,
            first_line=self.first_line,
        )

    def _dumped(self, stated: Mapping[tuple[str, str], Reading], framework: str | None) -> dict[str, Reading]:
        """Return what the log states by canonical names. stated: the arguments that it does not contradict."""
        dumped: dict[str, Reading] = {}
        for column in dict.fromkeys((framework, *(column for column, _ in stated))):
            own = {name: at for (of, name), at in stated.items() if of == column}
            if column:
                named = canonical(own, column)
                megatrons = facts(column).get("prints_megatron_arguments")
                dumped = {**(in_effect(named, own, self._complete) if megatrons else named), **dumped}
        settings = {name: at for name, at in self._settings.items() if name not in self._contradicted}
        length = self._settings.get("seq_length")
        for name, tokens in self._tokens.items() if length and length.value else ():
            if length and tokens.value and tokens.value % length.value == 0:
                settings.setdefault(_IN_TOKENS[name], Reading(tokens.value // length.value, tokens.line))
        return dumped | {n: at for n, at in settings.items() if n not in dumped or dumped[n].value is None}

    def _notes(self, dumped: Mapping[str, Reading], damaged: Mapping[str, int]) -> Iterator[str]:
        if damaged:
            named = ", ".join(f"{name} (line {line})" for name, line in sorted(damaged.items())[:8])
            yield f"cut short by another text in its line, and unknown therefore: {named}"
        if not self.steps:
            yield "the log has no step lines"
        else:
            yield from self._beginning({*dumped, *self._marked["effective"]})
        for restart in self._restarts:
            yield f"resumed after iteration {restart.steps} (line {restart.line})"
        if self._contradicted:
            names = ", ".join(sorted(self._contradicted)[:8])
            yield f"the log dumps its arguments more than once, with other values; unknown therefore: {names}"

    def _beginning(self, settings: set[str]) -> Iterator[str]:
        """Yield what the log lacks at its beginning, where it is a run's tail. settings: those that were read."""
        first, second = self.steps[0], self.steps[min(1, len(self.steps) - 1)]
        resumed = any(restart.line < first.line for restart in self._restarts)
        if settings <= {"world_size"}:
            but = "but world_size " if settings else ""
            yield f"no settings {but}were read: the log prints none, or what it begins with is missing"
        if not resumed and first.iteration and first.step > max(1, second.step - first.step):
            yield f"the log begins at iteration {first.iteration}: what came before it is missing"


def _is_damaged(name: str, value: Any) -> bool:
    """Return whether a number, a flag or one of few words is printed as another text: another process wrote into its
    line."""
    setting = vocabulary().get(name)
    if setting is None or not isinstance(value, str):
        return False
    return not value or " " in value or "[" in value if setting.one_of else setting.type != "str"


def ends_a_run(event: Event) -> bool:
    """Return whether an event comes after a program's last step, and never before its first: so may a validation."""
    if isinstance(event, Validation):
        return event.step is None or event.step >= 0
    return isinstance(event, Stall) or (isinstance(event, Fact) and event.name == "completed")


def canonical(arguments: Mapping[str, Reading], framework: str) -> dict[str, Reading]:
    """Return the settings of our vocabulary that a framework's argument dump states."""
    settings = [setting for setting in vocabulary().values() if setting.dump]
    # A key with a dot is of a dump with sections, which its dialect reads itself.
    keys = ((s.name, key) for s in settings for key in s.keys(framework) or (s.name,) if "." not in key)
    return {name: arguments[key] for name, key in keys if key in arguments}


def _alike(known: Step, other: Step) -> bool:
    pairs = ((known.loss, other.loss), (known.lr, other.lr))
    return known.nonfinite == other.nonfinite and all(a is None or b is None or a == b for a, b in pairs)


_FILLED = tuple(f.name for f in fields(Step) if f.default is None)


def _is_one(point: Validation, marked: Validation) -> bool:
    """Return whether a printed point is the marked one, which a stack may print with four digits, and a step later."""
    if point.split != marked.split or point.loss is None or marked.loss is None:
        return False
    near = point.step is None or abs(point.step - (marked.step or 0)) <= 1
    return near and math.isclose(point.loss, marked.loss, rel_tol=1e-3)


def _filled(known: Step, other: Step) -> Step:
    lacks = {name: getattr(other, name) for name in _FILLED if getattr(known, name) is None}
    new: dict[str, Any] = {n: value for n, value in lacks.items() if value is not None and n not in known.nonfinite}
    more = {name: value for name, value in other.metrics.items() if name not in known.metrics}
    if more:
        new["metrics"] = {**known.metrics, **more}
    return replace(known, **new) if new else known


def _over(step: Step, mark: Step) -> Step:
    names = ("lr_used", "loss", "grad_norm", "end_monotonic_s", "memory_bytes", "memory_kind")
    return replace(step, **{name: getattr(mark, name) for name in names if getattr(mark, name) is not None})
