"""PyTorch Lightning's bar (callbacks/progress/tqdm_progress.py), where no dialect above reads it (NeMo is one).

`Epoch 0:  22%|██▏  | 4/18 [00:17<01:02,  4.47s/it, v_num=5, train_loss_step=9.947]` counts the batches of an epoch; how
many make a step (accumulate_grad_batches) is not printed: flagged by_order. Each count is drawn twice, first with the
values of the batch before. The rate is a mean since the epoch began. Before 2.0 `loss=`, which comes first, is a mean
of 20 batches, and the bar counts those of a validation, too. What is called train_loss is each batch's where epoch 0
begins with it (else it is an epoch's, which comes when that ends). A log that begins in a later epoch has no steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from parsers.driver import Dialect, Driver, Event, Fact
from parsers.record import Step, Validation
from parsers.values import count, number, step_fields

_BAR = re.compile(
    r"Epoch (\d{1,6}):[^|\[]{0,40}?(?:\|[^|]{0,300}\|)? {0,4}(\d{1,12})(?:/(\d{1,12}|\?)|it) "
    r"\[[^\],]{1,40}, {1,4}([\d.]{1,12})(it/s|s/it)((?:, [^\],=]{1,60}=[^\],]{1,40}){1,40})(?=[,\]])"
)
_VALIDATION = re.compile(r"Validat[^|\[]{0,60}\|[^|]{0,300}\| {0,4}\d{1,9}/(\d{1,9}) ")
_RATES = {"it/s": "batches_per_s_running_mean", "s/it": "batch_time_s_running_mean"}
_OWN = ("train_loss_step", "train/loss_step", "loss_step", "train_loss", "train/loss")


def _bare(text: str) -> str:
    """Return a value without the zeros that fill it up where it is no number: nan.0."""
    return text.removesuffix(".0") if text.startswith(("nan", "inf", "-inf")) else text


class _Driver(Driver):
    """Holds each batch until the next count: its last drawing has its values."""

    _epoch, _n, _line = -1, 0, 0
    _base: int | None = 0  # batches of the epochs before
    _through: int | None = None  # batches of the validation, where the bar counts them, too
    _own: bool | None = None  # whether train_loss is a batch's
    _drawn = _usual = 0
    _validated = ""
    _last_of_all = False

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._held: list[tuple[str, str]] = []
        self._last = 0  # count of the bar, the validation's included

    def feed(self, number: int, text: str) -> Iterable[Event]:
        bars = [bar for bar in _BAR.finditer(text) if ", v_num=" in bar[6] and "reduced_train_loss" not in bar[6]]
        validation = _VALIDATION.search(text)
        if validation is not None and self._held and self._held[1][0] == "loss":
            self._through = int(validation[1])
        return [*(event for bar in bars for event in self._bar(number, bar)), *self.other(number, text)]

    def _bar(self, line: int, bar: re.Match[str]) -> Iterator[Event]:
        epoch, n = int(bar[1]), int(bar[2])
        if epoch != self._epoch:
            yield from self._release()
            self._begin(epoch)
        if n == 0:
            return
        self._last = n
        if self._through is not None:
            return
        if n != self._n:
            yield from self._release()
            self._n, self._line, self._drawn = n, line, 0
        self._drawn += 1
        parts = [part.partition("=") for part in bar[6].split(", ")[1:]]
        self._held = [(_RATES[bar[5]], bar[4]), *((name, _bare(printed)) for name, _, printed in parts)]
        self._last_of_all = bar[2] == bar[3]
        validated = next((text for name, text in self._held if name in ("val_loss", "val/loss", "val_loss_epoch")), "")
        if validated and validated != self._validated:
            self._validated = validated
            yield from self._release()
            yield Validation(line=line, loss=number(validated))

    def _begin(self, epoch: int) -> None:
        known = self._base is not None and (self._through is None or self._last - self._n == self._through)
        follows = epoch == self._epoch + 1 and known
        self._base = (self._base or 0) + self._n if follows else 0 if epoch == 0 else None
        self._epoch, self._n, self._through = epoch, 0, None

    def _release(self) -> Iterator[Event]:
        """Return the batch that is held; what is drawn of it later repeats it."""
        held, self._held = self._held, []
        if not held or self._base is None:
            return
        printed = dict(held)
        if self._own is None:
            self._own = self._epoch == 0 and not self._last_of_all and any(name in printed for name in _OWN)
        name = next((name for name in _OWN if name in printed and (self._own or name.endswith("_step"))), "")
        fields = [("loss", number, printed[name])] if name else []
        fields += [("loss_running_mean", number, printed["loss"])] if held[1][0] == "loss" else []
        fields += [("lr", number, printed["lr"])] if "lr" in printed else []
        values = step_fields([(held[0][0], number, held[0][1]), *fields])
        self._usual, step = self._drawn, self._base + self._n - 1
        yield Step(step=step, line=self._line, iteration=self._n, interval_steps=1, flags=("step:by_order",), **values)

    def end(self) -> Iterable[Event]:
        return [*self._release()] if self._drawn >= self._usual else ()

    def other(self, line: int, text: str) -> Iterator[Event]:
        for event in self.dialect.statements(line, text):
            if isinstance(event, Fact) and event.name == "completed":
                yield from self._release()
                if self._base is not None and "max_epochs" in text:
                    yield Fact("train_iters", self._base + self._n, line)
            yield event


DIALECT = Dialect(
    framework="lightning",
    looks_for="PyTorch Lightning: bars 'Epoch 0:  22%|██▏  | 4/18 [00:17<01:02, 4.47s/it, v_num=5, train_loss_step=…]'",
    signs=(b"it/s, v_num=", b"s/it, v_num=", b", v_num="),
    marks=(b", v_num=", b"Validat", b"`Trainer.fit` stopped"),
    startup=(b"distributed processes registered", b"Mixed Precision"),
    settings=(r"processes registered\. Starting with (?P<world_size>\d{1,7}) process",),
    facts=(
        r"(?P<completed>`Trainer\.fit` stopped: `max_(?:steps|epochs)=\d{1,12}` reached)",
        r"`max_steps=(?P<train_iters>\d{1,12})` reached",
        r"Using (?P<precision>\w{2,16}) Automatic Mixed Precision",
    ),
    conversions={"train_iters": count},
    driver=_Driver,
)
