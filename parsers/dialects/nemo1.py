"""The dialect of NeMo 1 (and of NeMo 2 with its bar): Lightning's tqdm, redrawn several times a step, and DLLogger.

`Epoch 0: :  10%|█ | 2/20 [00:49<07:25, v_num=, reduced_train_loss=11.20, global_step=1.000, consumed_samples=256.0,
train_step_timing in s=24.80]DLL 2025-06-11 01:56:01.007935 - 1 reduced_train_loss : 11.159525871276855  lr : …`
tqdm prints 3 significant digits and fills up with zeros (2e+3 may be 1999); a redraw first shows the step before.
train_step_timing is a mean over the last buffer_size steps: own values are recovered where the digits allow."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from parsers.dialects.nemo2 import FACTS, SETTINGS, STARTUP, NemoDriver
from parsers.driver import Dialect, Event, Fact, Setting, Values
from parsers.record import Step, Validation
from parsers.text import body
from parsers.values import UNREAD, Place, count, literal, number

# "Epoch 0: :  10%|█    | 2/20 […]"; where tqdm knows no total "Epoch 0: |    | 3/? […]" or "Epoch 1: : 1it […]".
_BAR = re.compile(
    r"Epoch (\d{1,9}):[^|\[]{0,40}(?:\|[^|]{0,300}\| {0,4}(\d{1,12})/(?:\d{1,12}|\?)| (\d{1,12})it) \[([^\]]{1,2000})\]"
)
_DLL = re.compile(r"DLL [\d-]{10} [\d:.]{8,20} - (\d{1,12}) (?=.{0,2000}reduced_train_loss : )")
_FIRST_EPOCH = re.compile("Epoch 0:")
_VALIDATED = re.compile(r"Epoch \d{1,9}, global step (\d{1,12}): 'val(?:idation)?_loss' reached ([\d.e+-]{1,24}) ")
_PRINTED = "step_time_s_running_mean"


def _exact(text: str) -> int | None:
    """Return a count that is not rounded: tqdm takes 3 significant digits where that is shorter (2e+3, 1.28e+6)."""
    return None if "e" in text else count(text)


_TQDM_DIGITS, _FLOAT32_DIGITS = 3, 7
_PRECISE_ENOUGH = 0.01  # a recovered time counts where what the digits leave open is below this share of it


class SlidingMean:
    """Recovers the steps behind a sliding mean, from the means of consecutive steps since the first that the timer saw.

    train_step_timing is a mean over the last `window` steps (nemo/utils/timers.py, NamedTimer with reduction "mean" and
    buffer_size; nemo/utils/exp_manager.py, StepTimingParams: 1 by default); None where the log does not say. The second
    mean may prove that it is 1, whatever was said: a mean over at least the first two cannot be below half the first.
    """

    def __init__(self, window: int | None) -> None:
        self.window = window
        self._own: deque[tuple[float, float]] = deque(maxlen=max(1, window or 1))  # and how far each can be off
        self._first = 0.0
        self._count = 0

    def take(self, mean: float, digits: int) -> float | None:
        """Return the step's own time; None where the digits do not suffice. digits: of the printed mean."""
        self._count += 1
        error = 0.5 * 10.0 ** (math.floor(math.log10(abs(mean))) - digits + 1) if mean else 0.0
        if self._count == 1:
            self._first = mean - error
        elif self._count == 2 and 2 * (mean + error) < self._first:
            self.window = 1
        if self._count == 1 or (self.window is not None and self.window <= 1):
            self._own.append((mean, error))
            return mean  # a mean of one
        if self.window is None:
            return None
        count = min(self._count, self.window)
        others = list(self._own)[-(count - 1) :]
        value = count * mean - math.fsum(own for own, _ in others)
        doubt = count * error + math.fsum(off for _, off in others)
        if self._count > count:
            # The oldest of the window before leaves, all others stay: its error alone comes with it.
            doubt = min(doubt, 2 * count * error + self._own[0][1])
        self._own.append((value, doubt))
        return value if value > 0 and doubt <= _PRECISE_ENOUGH * value else None


_CONFIG_FACTS: Mapping[str, str] = {
    "trainer.precision": "precision",
    "trainer.num_nodes": "num_nodes",
    "trainer.devices": "gpus_per_node",
    "model.optim.name": "optimizer_name",
}
# megatron_base_model.py, build_transformer_config: "fast-" names a fused kernel of the same.
_GATED, _UNGATED = ("swiglu", "geglu", "reglu"), ("gelu", "relu", "silu", "squared-relu")
_YAML_NULL = ("null", "", "None")


class _Driver(NemoDriver):
    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._path: list[tuple[int, str]] | None = None  # of keys in the dump of the configuration, while it lasts
        self._fp8: dict[str, Any] = {}
        # buffer_size of train_step_timing; the default, 1, where exp_manager is shown without it. (The dictionary that
        # exp_manager itself logs shows its defaults, not what runs.)
        self._window: int | None = None
        self._mean: SlidingMean | None = None
        self._fresh = False  # a process has started since the last step
        self._previous: Step | None = None
        self._recent: deque[tuple[int, str]] = deque(maxlen=4)
        self._val_loss: float | None = None
        self._validation: Validation | None = None

    def feed(self, number: int, text: str) -> Iterable[Event]:
        if self._path is not None:
            stepped = self._head.search(text) is not None
            events = None if stepped else self._dumped(number, body(text), self._path)
            if events is not None:
                self.wants = 1
                return tuple(events)
            self._path = None
        return super().feed(number, text)

    def _dumped(self, line: int, text: str, path: list[tuple[int, str]]) -> Iterator[Event] | None:
        """Return the events of one line of a dump; None where it is over."""
        stripped, indent = text.strip(), len(text) - len(text.lstrip(" "))
        name, colon, shown = stripped.partition(":")
        if not stripped or stripped.startswith("- ") or (not path and stripped.startswith("[NeMo")):
            return iter(())
        if not colon or stripped.startswith("[NeMo") or (indent == 0 and path and path[0][0] > 0):
            return None
        self._path = [*takewhile(lambda outer: outer[0] < indent, path), (indent, name)]
        if self._window is None and self._path[0][1] == "exp_manager":
            self._window = 1
        return self._entry(line, ".".join(name for _, name in self._path), shown.strip().strip("'\""))

    def _entry(self, line: int, path: str, shown: str) -> Iterator[Event]:
        if path == "model.kv_channels" and shown in _YAML_NULL:
            yield Setting("kv_channels", None, line)  # hidden size by heads
        if shown in _YAML_NULL or shown.startswith("${"):
            return
        value, known = {"true": True, "false": False}.get(shown, literal(shown)), self.dialect.known
        if path in known:
            yield Setting(known[path].name, value, line)
            if path == "trainer.max_steps" and isinstance(value, int) and value > 0:
                yield Fact("train_iters", value, line)
        elif path == "model.activation":
            if (activation := shown.removeprefix("fast-")) in (*_GATED, *_UNGATED):
                yield Setting("gated_linear_unit", activation in _GATED, line)
                yield Setting("swiglu", shown.endswith("swiglu"), line)
        elif path in _CONFIG_FACTS:
            yield Fact(_CONFIG_FACTS[path], value, line)
        elif path in ("model.fp8", "model.fp8_hybrid", "model.fp8_e4m3"):
            self._fp8[path] = value
            yield from self._fp8_setting(line)
        elif path == "exp_manager.step_timing_kwargs.buffer_size" and isinstance(value, int):
            self._window = value

    def _fp8_setting(self, line: int) -> Iterator[Event]:
        # fp8 comes first in NeMo's files, its format in the lines that follow.
        if self._fp8 == {"model.fp8": False}:
            yield Setting("fp8", None, line)
        for name in ("hybrid", "e4m3") if self._fp8.get("model.fp8") is True else ():
            if self._fp8.pop(f"model.fp8_{name}", None) is True:
                yield Setting("fp8", name, line)

    def end(self) -> Iterable[Event]:
        validation, self._validation = self._validation, None
        return () if validation is None else (validation,)

    def step(self, line: int, values: Values, text: str) -> Iterator[Event]:
        if values["step"] is None:
            yield from self._by_order(line, values)
            return
        validates = values["metrics"].pop("val_loss", None)
        # The bar draws a step again, and so does a line printed twice: this one, or one shortly before. Steps that are
        # redone after a restart have other losses, or are skipped.
        before, loss = self._previous, values.get("loss")
        now = values["step"], "nan" if loss is None else f"{loss:.3g}"  # as the bar shows it
        new = now not in self._recent and (before is None or before.step != values["step"])
        if new:
            yield from self.end()
        if validates is not None and validates != self._val_loss:
            # It stays on the bar until the next. After the last step the bar is drawn anew, else with the next one.
            self._val_loss = validates
            step, iteration = (None, None) if before is None else (before.step, before.iteration)
            self._validation = Validation(line=line, step=step, iteration=iteration, loss=validates)
        if new:
            self._settle_time(values, _FLOAT32_DIGITS if "lr_used" in values else _TQDM_DIGITS)
            self._previous = Step(line=line, **values)
            self._recent.append(now)
            yield self._previous

    def _settle_time(self, values: Values, digits: int) -> None:
        printed = values["metrics"].get(_PRINTED)
        follows = self._previous is not None and values["step"] == self._previous.step + 1
        if self._fresh or values["step"] == 0:
            self._mean = SlidingMean(self._window)
        elif not follows:
            self._mean = SlidingMean(1) if self._window is not None and self._window <= 1 else None
        self._fresh = False
        if printed is None or self._mean is None:
            self._mean = None
            return
        values["step_time_s"] = self._mean.take(printed, digits)
        if self._mean.window is not None and self._mean.window <= 1:
            del values["metrics"][_PRINTED]
            values["interval_steps"] = 1
        elif values["step_time_s"] is not None:
            values["flags"] = ("step_time_s:recovered",)

    def _by_order(self, line: int, values: Values) -> Iterator[Event]:
        # NeMo Automodel's bar: no global_step, and it counts batches, of which several make a step (the log that we
        # have: 15 batches, and "`Trainer.fit` stopped: `max_steps=5` reached"). A step is where loss and rate are new.
        before, now = self._previous, (values.get("loss"), values.get("lr"))
        if values["iteration"] != 0 and (before is None or now != (before.loss, before.lr)):
            flags = ("step:by_order", *(["step:rounded"] if values["iteration"] is None else []))
            by_order: Values = {"step": 0 if before is None else before.step + 1, "flags": flags}
            self._previous = Step(line=line, **{**values, **by_order})
            yield self._previous

    def other(self, line: int, text: str) -> Iterator[Event]:
        if " configuration ****" in text:  # Experiment or, in BioNeMo, Trainer configuration
            self._path, self._fp8, self._window, self.wants = [], {}, None, 3
            return
        validated = _VALIDATED.search(text)
        if "GLOBAL_RANK: 0, MEMBER" in text:
            self._fresh = True
        if validated is not None and self._validation is not None and self._validation.step == int(validated[1]) - 1:
            self._validation = replace(self._validation, line=line, loss=number(validated[2]))
        yield from super().other(line, text)


def _places(text: str) -> list[Place] | None:
    """Return where DLLogger prints the values of a step, or else the bar."""
    exact, bar = _DLL.search(text), _BAR.search(text)
    if exact is not None:
        places: list[Place] = [("step", int, *exact.span(1))]
        at, parts, sign = exact.end(), text[exact.end() :].split("  "), " : "
    elif bar is not None and "reduced_train_loss=" in bar[4]:
        places = [("iteration", int, *bar.span(2 if bar[2] else 3))]
        at, parts, sign = bar.start(4), bar[4].split(", "), "="
    else:
        return None
    for part in parts:
        name, _, printed = part.rstrip().partition(sign)
        end = at + len(part.rstrip())
        places.append((*DIALECT.columns.get(name.strip(), UNREAD), end - len(printed), end))
        at += len(part) + 2
    return places


def _count(values: Values, text: str) -> Values:
    """Number the step; None where the bar names no global_step."""
    metrics, drawn = values["metrics"], values.get("iteration")
    step = metrics.pop("global_step", None)
    if drawn is None:  # by DLLogger
        values["iteration"] = values["step"]
        values["lr_used"] = values.get("lr")  # logged in training_step, before optimizer and scheduler step
        if "val_loss=" in text and (bar := _BAR.search(text)) is not None:
            validated = number(bar[4].rpartition("val_loss=")[2].partition(",")[0])
            if validated is not None:
                metrics.setdefault("val_loss", validated)
    elif step is None or not step.is_integer():
        values["step"] = None
    elif "e+" in text.rpartition("global_step=")[2].partition(",")[0] and step != drawn:
        # Rounded to three digits; nor is it the bar's count, which is drawn with the step before, too.
        values["iteration"] = values["step"] = None
    else:
        # NeMo logs global_step before it counts up (bar 20, global_step 19); where both agree it was logged after, or
        # 1999 was rounded to 2e+3: the bar's count is the step.
        after = step == drawn and step and _FIRST_EPOCH.search(text) is not None
        values["iteration"], values["step"] = int(step), int(step) - after
    return values


DIALECT = Dialect(
    framework="nemo",
    rate_of=(0,),
    looks_for="NeMo 1: bars 'Epoch 0: … 1/20 [… reduced_train_loss=…, global_step=…, train_step_timing in s=…]'",
    signs=(b"reduced_train_loss=", b"reduced_train_loss : ", b"train_step_timing in s="),
    marks=(b"reduced_train_loss", b", global step "),
    startup=(b" configuration ****", *STARTUP),
    # The name of a checkpoint may have its loss, too: "…--reduced_train_loss=2.30-step=100.ckpt".
    head=r"reduced_train_loss : |\[[^\[\]]{0,2000}reduced_train_loss=",
    columns={
        "reduced_train_loss": ("loss", number),
        "global_step": ("global_step", number),
        "lr": ("lr", number),
        "grad_norm": ("grad_norm", number),
        "consumed_samples": ("consumed_samples", _exact),
        "tokens_per_sec_per_gpu": ("tokens_per_s_per_gpu", number),
        "tps": ("tokens_per_s", number),
        "TFLOPS_per_GPU": ("tflops_per_gpu", number),
        "val_loss": ("val_loss", number),
        "train_step_timing in s": (_PRINTED, number),
    },
    settings=SETTINGS,
    facts=FACTS,
    driver=_Driver,
    places=_places,
    adjust=_count,
)
