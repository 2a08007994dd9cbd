"""PyTorch Lightning's bar (callbacks/progress/tqdm_progress.py), where no dialect above reads it (NeMo is one).

`Epoch 0:  22%|██▏  | 4/18 [00:17<01:02,  4.47s/it, v_num=5, train_loss_step=9.947]` counts the batches of an epoch; how
many make a step (accumulate_grad_batches) is not printed: flagged by_order. Each count is drawn twice, first with the
values of the batch before. The rate is a mean since the epoch began. Before 2.0 `loss=`, which comes first, is a mean
of 20 batches, and the bar counts those of a validation, too. What is called train_loss is each batch's where epoch 0
begins with it (else it is an epoch's, which comes when that ends). A log that begins in a later epoch has no steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from parsers.driver import Dialect, Driver, Event
from parsers.record import Step, Validation
from parsers.values import number, step_fields

_BAR = re.compile(
    r"Epoch (\d{1,6}):[^|\[]{0,40}?(?:\|[^|]{0,300}\|)? {0,4}(\d{1,12})(?:/(\d{1,12}|\?)|it) "
    r"\[[^\],]{1,40}, {1,4}([\d.]{1,12})(it/s|s/it)((?:, [^\],=]{1,60}=[^\],]{1,40}){1,40})(?=[,\]])"
)
_VALIDATION = re.compile(r"Validat[^|\[]{0,60}\|[^|]{0,300}\| {0,4}\d{1,9}/(\d{1,9}) ")
_VALID = re.compile(r", val[_/]loss(?:_epoch)?=([^\],]{1,40})")
_RATES = {"it/s": "batches_per_s_running_mean", "s/it": "batch_time_s_running_mean"}
_OWN = ("train_loss_step", "train/loss_step", "loss_step", "train_loss", "train/loss")


class _Driver(Driver):
    """Holds each batch until the next count: its last drawing has its values."""

    _epoch, _n, _line, _drawn, _usual = -1, 0, 0, 0, 0
    _base: int | None = 0  # batches of the epochs before
    _old = False  # before 2.0
    _counted = 0  # by the bar, a validation's batches, too
    _through: int | None = None  # how many those are
    _own: bool | None = None  # whether train_loss is a batch's
    _held: re.Match[str] | None = None
    _validated = ""

    def feed(self, number: int, text: str) -> Iterable[Event]:
        validation = _VALIDATION.search(text) if self._old else None
        if validation is not None:
            self._through = int(validation[1])
        bars = [bar for bar in _BAR.finditer(text) if ", v_num=" in bar[6] and "reduced_train_loss" not in bar[6]]
        events = [event for bar in bars for event in self._bar(number, bar)]
        return events if bars and "`" not in text else [*events, *self.other(number, text)]

    def _bar(self, line: int, bar: re.Match[str]) -> Iterator[Event]:
        epoch, n = int(bar[1]), int(bar[2])
        if epoch != self._epoch:
            yield from self._release()
            known = epoch == self._epoch + 1 and self._through in (None, self._counted - self._n)
            self._base = 0 if epoch == 0 else self._base + self._n if known and self._base is not None else None
            self._epoch, self._n, self._through = epoch, 0, None
        self._counted = n
        if n == 0 or self._through is not None:
            return
        if n != self._n:
            yield from self._release()
            self._n, self._line, self._drawn = n, line, 0
        self._drawn, self._held, self._old = self._drawn + 1, bar, bar[6].startswith(", loss=")
        valid = _VALID.search(bar[6])
        if valid is not None and valid[1] != self._validated:
            self._validated = valid[1]
            yield from self._release()
            yield Validation(line=line, loss=number(valid[1]))

    def _release(self) -> Iterator[Event]:
        """Return the batch that is held; what is drawn of it later repeats it."""
        bar, self._held = self._held, None
        if bar is None or self._base is None:
            return
        printed = dict(part.split("=", 1) for part in bar[6].split(", ")[1:])
        if self._own is None:
            self._own = self._epoch == 0 and bar[2] != bar[3] and any(name in printed for name in _OWN)
        own = next((name for name in _OWN if name in printed and (self._own or name.endswith("_step"))), "")
        mean = printed["loss"] if self._old else ""
        fields = [(_RATES[bar[5]], bar[4]), ("loss", printed.get(own, "")), ("loss_running_mean", mean)]
        bare = [(to, re.sub(r"(nan|inf)\.0", r"\1", text)) for to, text in fields if text]  # it fills up with zeros
        values = step_fields((to, number, text) for to, text in bare)
        self._usual, step = self._drawn, self._base + self._n - 1
        yield Step(step=step, line=self._line, iteration=self._n, interval_steps=1, flags=("step:by_order",), **values)

    def end(self) -> Iterable[Event]:
        return [*self._release()] if self._drawn >= self._usual else ()


DIALECT = Dialect(
    framework="lightning",
    looks_for="PyTorch Lightning: bars 'Epoch 0:  22%|██▏  | 4/18 [00:17<01:02, 4.47s/it, v_num=5, train_loss_step=…]'",
    signs=(b"it/s, v_num=", b"s/it, v_num=", b", v_num="),
    marks=(b", v_num=", b"Validat", b"`Trainer.fit` stopped"),
    startup=(b"distributed processes registered", b"Mixed Precision"),
    settings=(r"processes registered\. Starting with (?P<world_size>\d{1,7}) process",),
    facts=(
        r"(?P<completed>`Trainer\.fit` stopped: `max_(?:steps|epochs)=\d{1,12}` reached)",
        r"Using (?P<precision>\w{2,16}) Automatic Mixed Precision",
    ),
    conversions={"completed": lambda text: "all"},
    driver=_Driver,
)
