"""Levanter (levanter/callbacks/_metrics.py, pbar_logger, by tqdm_loggable; tracker/json_logger.py).

`Progress on:train 586it/850it rate:5.5s/it remaining:24:12 elapsed:55:45 postfix:loss=2.45`, about one a minute. Counts
from 1. tqdm prints when it counts, and Levanter sets the loss after that: the loss is the step's before (from ten steps
a second on, and where a count stands twice, its own). Counts from 1,000 on have three digits: `step:rounded`. The rate
is a smoothed mean. Its JSON tracker prints every step with all digits: `"event": "log", "step": 585, …`, from 0; where
it does, the bar is passed over. Evaluation losses name no step, and the bar none near them: not read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from parsers.driver import Dialect, Driver, Event, Fact, Values
from parsers.record import Step
from parsers.values import Column, number, real, step_fields

_NUMBER = r"(\d{1,3}(?:\.\d{1,2})?)([kMG]?)it"
_BAR = re.compile(
    rf"Progress on:train {_NUMBER}/{_NUMBER} rate:(\S{{1,16}}) remaining:\S{{1,24}} elapsed:\S{{1,24}}"
    r"(?:.{0,80}?\bloss=([^\s,]{1,24}))?"
)
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_FAST_S = 0.1  # tqdm's mininterval: of faster steps most are not printed when they are counted


def _seconds(rate: str) -> float | None:
    """Return the seconds a step of a printed rate, 5.5s/it or 49.0it/s; None where there is none yet."""
    value = number(rate.removesuffix("s/it").removesuffix("it/s").replace(",", ""))
    return value if rate.endswith("s/it") or not value else real(1 / value)


class _Driver(Driver):
    """Knows the count before: several hosts print it, and only what is new counts. The bar prints its last count once
    more, with that step's own loss, where it is closed: often that is the only line of it."""

    _count = 0
    _loss: str | None = None  # beside that count, as printed
    _last: Values | None = None  # of the last count's first line, until it is known whose loss that is
    _json = False

    def read(self, line: int, text: str, match: re.Match[str] | None = None) -> Iterable[Event]:
        bar = None if self._json else _BAR.search(text)
        if bar is not None:
            return tuple(self._bar(line, bar))
        if "Progress on:train -/" in text:  # a bar begins
            self._count = 0
        return super().read(line, text, match)

    def end(self) -> Iterable[Event]:
        return (*super().end(), *self._settle(is_own=True))

    def step(self, line: int, values: Values, text: str) -> Iterable[Event]:
        self._json = True
        return super().step(line, values, text)

    def _settle(self, is_own: bool) -> Iterator[Event]:
        values, self._last = self._last, None
        if values is not None:
            yield Step(**{**values, "step": values["step"] + is_own})

    def _bar(self, line: int, bar: re.Match[str]) -> Iterator[Event]:
        counted, total = (round(float(bar[at]) * _UNITS[bar[at + 1]]) for at in (1, 3))
        again, rounded, seconds = counted == self._count, bool(bar[2]), _seconds(bar[5])
        if counted < self._count or (again and (rounded or bar[6] == self._loss or self._last is None)):
            return
        self._count, self._loss = counted, bar[6]
        yield from self._settle(is_own=False)
        if not bar[4]:
            yield Fact("train_iters", total, line)
        is_own = again or seconds is None or seconds < _FAST_S
        if bar[6] is None or counted < 2 - is_own:
            return
        values = step_fields([("loss", number, bar[6])], strict=True)
        values["metrics"] = {} if seconds is None else {"step_time_s_running_mean": seconds}
        values |= {"line": line, "iteration": counted, "step": counted - 2 + is_own}
        values["flags"] = ("step:rounded",) if rounded else ()
        if counted == total and not rounded and not is_own:
            self._last = values
        else:
            yield Step(**values)


_COLUMNS: dict[str, Column] = {
    "train/loss": ("loss", number),
    "optim/learning_rate": ("lr", number),
    "grad/norm/total": ("grad_norm", number),
    "throughput/duration": ("step_time_s", number),
    "throughput/tokens_per_second": ("tokens_per_s", number),
    "throughput/mfu": ("mfu_percent", number),
    "throughput/loading_time": ("data_time_s", number),
}

DIALECT = Dialect(
    framework="levanter",
    looks_for="Levanter: 'Progress on:train 586it/850it rate:… remaining:… elapsed:… postfix:loss=…'",
    signs=(b"Progress on:train ", b'"tracker": "json_logger"'),
    marks=(b"Progress on:train ", b'"event": "log", "step": '),
    startup=(b"Resuming training from step ",),
    head=r'"event": "log", "step": (\d{1,12}), "metrics": \{',
    first=0,
    fields=r'"([\w/]{1,60})": ([^\s,}]{1,32})',
    columns=_COLUMNS,
    rate_of=(0,),
    resumed=r"Resuming training from step (?P<done>\d{1,12})",
    driver=_Driver,
    strict=True,
)
