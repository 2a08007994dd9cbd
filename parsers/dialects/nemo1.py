"""The dialect of NeMo 1 (and of NeMo 2 with its bar): Lightning's tqdm, redrawn several times a step, and DLLogger.

`Epoch 0: :  10%|█ | 2/20 [00:49<07:25, v_num=, reduced_train_loss=11.20, global_step=1.000, consumed_samples=256.0,
train_step_timing in s=24.80]DLL 2025-06-11 01:56:01.007935 - 1 reduced_train_loss : 11.159525871276855  lr : …`
tqdm prints 3 significant digits and fills up with zeros (2e+3 may be 1999); a redraw first shows the step before.
train_step_timing is a mean over the last buffer_size steps: own values are recovered where the digits allow.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from parsers import nemo_facts
from parsers.events import Event, Reader
from parsers.fields import Column, number, step_fields
from parsers.nemo1_config import ConfigDump
from parsers.record import Step, Validation
from parsers.running_mean import SlidingMean
from parsers.text import body

FRAMEWORK = "nemo"
LOOKS_FOR = "NeMo 1: bars 'Epoch 0: … 1/20 [… reduced_train_loss=…, global_step=…, train_step_timing in s=…]'"
SIGNS = (b"reduced_train_loss=", b"reduced_train_loss : ", b"train_step_timing in s=")
MARKS = (b"reduced_train_loss", b", global step ")
STARTUP = (b" configuration ****", *nemo_facts.STARTUP)
COMPANION = False

# "Epoch 0: :  10%|█    | 2/20 […]"; where tqdm knows no total "Epoch 0: |    | 3/? […]" or "Epoch 1: : 1it […]".
_BAR = re.compile(
    r"Epoch (\d{1,9}):[^|\[]{0,40}(?:\|[^|]{0,300}\| {0,4}(\d{1,12})/(?:\d{1,12}|\?)| (\d{1,12})it) \[([^\]]{1,2000})\]"
)
_DLL = re.compile(r"DLL [\d-]{10} [\d:.]{8,20} - (\d{1,12}) (?=.{0,2000}reduced_train_loss : )")
_VALIDATED = re.compile(r"Epoch \d{1,9}, global step (\d{1,12}): 'val(?:idation)?_loss' reached ([\d.e+-]{1,24}) ")
_TIMING = "train_step_timing in s"
_PRINTED = "step_time_s_running_mean"


def _exact(text: str) -> int | None:
    """A count that is not rounded: tqdm takes 3 significant digits where that is shorter (2e+3, 1.28e+6)."""
    value = number(text)
    return int(value) if value is not None and value.is_integer() and "e" not in text else None


_COLUMNS: Mapping[str, Column] = {
    "reduced_train_loss": ("loss", number),
    "lr": ("lr", number),
    "grad_norm": ("grad_norm", number),
    "consumed_samples": ("consumed_samples", _exact),
    "tokens_per_sec_per_gpu": ("tokens_per_s_per_gpu", number),
    "tps": ("tokens_per_s", number),
    "TFLOPS_per_GPU": ("tflops_per_gpu", number),
    "val_loss": ("val_loss", number),
    _TIMING: (_PRINTED, number),
}
_TQDM_DIGITS, _FLOAT32_DIGITS = 3, 7


def read_step(line: int, text: str) -> Step | None:
    """The step that this one piece tells, without what only its neighbours tell."""
    values = _values(text)
    return None if values is None or values.pop("digits") is None else Step(line=line, **values)


def reader() -> Reader:
    """A reader for one log."""
    return _Reader()


class _Reader:
    def __init__(self) -> None:
        self.wants = 0
        self._dump: ConfigDump | None = None
        self._window: int | None = None
        self._mean: SlidingMean | None = None
        self._fresh = False  # a process has started since the last step
        self._step: int | None = None
        self._iteration: int | None = None
        self._last: tuple[float | None, float | None] = (None, None)
        self._order = -1
        self._recent: deque[tuple[int, float | None]] = deque(maxlen=4)
        self._val_loss: float | None = None
        self._validation: Validation | None = None

    def feed(self, number: int, text: str) -> Iterable[Event]:
        values = _values(text) if "reduced_train_loss" in text else None
        if values is not None:
            return self._told(number, values)
        if self._dump is not None:
            found = self._dump.feed(number, body(text))
            if found is not None:
                self.wants = 1
                return tuple(found)
            self._window, self._dump = self._dump.window, None
        return self._other(number, text)

    def end(self) -> Iterable[Event]:
        validation, self._validation = self._validation, None
        return () if validation is None else (validation,)

    def _told(self, line: int, values: dict[str, Any]) -> Iterator[Event]:
        digits = values.pop("digits")
        if digits is None:
            yield from self._by_order(line, values)
            return
        validates = values["metrics"].pop("val_loss", None)
        new = not self._is_redraw(values)
        if new:
            yield from self.end()
        if validates is not None and validates != self._val_loss:
            # It stays on the bar until the next. After the last step the bar is drawn anew, else with the next one.
            self._val_loss = validates
            self._validation = Validation(line=line, step=self._step, iteration=self._iteration, loss=validates)
        if new:
            self._settle_time(values, digits)
            self._step, self._iteration = values["step"], values["iteration"]
            self._recent.append((values["step"], values.get("loss")))
            yield Step(line=line, **values)

    def _is_redraw(self, values: Mapping[str, Any]) -> bool:
        """The step of this line or of one shortly before, drawn again: the bar does it, and so does a line printed
        twice. Steps that are redone after a restart have other losses, or are passed over."""
        now = values["step"], _shown(values.get("loss"))
        return values["step"] == self._step or now in [(step, _shown(loss)) for step, loss in self._recent]

    def _settle_time(self, values: dict[str, Any], digits: int) -> None:
        printed = values["metrics"].get(_PRINTED)
        follows = self._step is not None and values["step"] == self._step + 1
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

    def _by_order(self, line: int, values: dict[str, Any]) -> Iterator[Event]:
        # NeMo Automodel's bar: no global_step, and it counts batches, of which several make a step (the log that we
        # have: 15 batches, and "`Trainer.fit` stopped: `max_steps=5` reached"). A step is where loss and rate are new.
        now = (values.get("loss"), values.get("lr"))
        if now == self._last or values["iteration"] == 0:
            return
        self._last = now
        self._order += 1
        yield Step(line=line, **{**values, "step": self._order, "flags": ("step:by_order",)})

    def _other(self, line: int, text: str) -> Iterator[Event]:
        if " configuration ****" in text:  # Experiment or, in BioNeMo, Trainer configuration
            self._dump, self.wants = ConfigDump(), 3
            return
        validated = _VALIDATED.search(text)
        if "GLOBAL_RANK: 0, MEMBER" in text:
            self._fresh = True
        if validated is not None and self._validation is not None and self._validation.step == int(validated[1]) - 1:
            step, iteration = self._validation.step, self._validation.iteration
            self._validation = Validation(line=line, step=step, iteration=iteration, loss=number(validated[2]))
        yield from nemo_facts.read(line, text, body(text))


def _shown(loss: float | None) -> str:
    """A loss as the bar shows it."""
    return "nan" if loss is None else f"{loss:.3g}"


def _values(text: str) -> dict[str, Any] | None:
    """Keyword arguments of a Step; `digits`: how many the time has, None where the bar names no global_step."""
    exact, bar = _DLL.search(text), _BAR.search(text)
    if exact is not None:
        fields = text[exact.end() :].split("  ")
        pairs = [(name.strip(), value.strip()) for name, _, value in (part.partition(" : ") for part in fields)]
        values, digits = step_fields(pairs, _COLUMNS), _FLOAT32_DIGITS
        values["step"] = values["iteration"] = int(exact[1])
        values["lr_used"] = values.get("lr")  # logged in training_step, before optimizer and scheduler step
        validated = number(bar[4].rpartition("val_loss=")[2].partition(",")[0]) if bar is not None else None
        if validated is not None:
            values["metrics"].setdefault("val_loss", validated)
        return {**values, "digits": digits}
    if bar is None or "reduced_train_loss=" not in bar[4]:
        return None
    pairs = [(name, printed) for name, _, printed in (part.partition("=") for part in bar[4].split(", "))]
    values = step_fields(pairs, _COLUMNS)
    global_step, drawn = number(dict(pairs).get("global_step", "")), int(bar[2] or bar[3])
    if global_step is None or not global_step.is_integer():
        return {**values, "iteration": drawn, "step": 0, "digits": None}
    iteration = int(global_step)
    # NeMo logs global_step before it counts up (bar 20, global_step 19); where both agree it was logged after, or
    # 1999 was rounded to 2e+3: the bar's count tells the step.
    step = iteration - 1 if iteration == drawn and bar[1] == "0" and iteration else iteration
    return {**values, "iteration": iteration, "step": step, "digits": _TQDM_DIGITS}
