"""MaxText (MaxText/metric_logger.py), on TPUs and GPUs.

`completed step: 3, seconds: 10.344, TFLOP/s/device: 346.932, Tokens/s/device: 19006.461, total_weights: …, loss: …`
Counts from 0. The time is between two dispatches: JAX runs ahead of the device, and after compilation, a profile or a
stall a step is dispatched in a hundredth of its time (8,638 TFLOP/s per device). Such figures are kept and flagged."""

from __future__ import annotations

from collections.abc import Iterable

from parsers.driver import Dialect, Driver, Event, Values
from parsers.record import Step
from parsers.values import number

_SPEEDS = ("step_time_s", "tflops_per_gpu", "tokens_per_s_per_gpu")
_RAN_AHEAD = 0.25  # a step that took less than this share of both its neighbours was dispatched, not run, in that time
_NO_DEVICE_TFLOPS = 5000.0
"""Above the dense FP8 peak of every device to date (B300 4,500 to 5,000; TPU 7x 4,614: conf/hardware, Google Cloud)."""


class _Driver(Driver):
    """Holds each step until the next: only both neighbours show that one was merely dispatched."""

    _waiting: tuple[int, Values] | None = None
    _seconds_before: float | None = None

    def step(self, line: int, values: Values, text: str) -> Iterable[Event]:
        if self._waiting is not None and self._waiting[1]["step"] == values["step"]:
            return ()  # another process prints it too
        events = self._release(values.get("step_time_s"))
        self._waiting = line, values
        return events

    def other(self, line: int, text: str) -> Iterable[Event]:
        events = super().other(line, text)  # the configuration is another run's: not before this one's last step
        return (*self._release(None), *events) if "Config param " in text else events

    def end(self) -> Iterable[Event]:
        return (*super().end(), *self._release(None))

    def _release(self, seconds_after: float | None) -> tuple[Step, ...]:
        if self._waiting is None:
            return ()
        (line, values), self._waiting = self._waiting, None
        seconds = values.get("step_time_s")
        neighbours = [other for other in (self._seconds_before, seconds_after) if other is not None]
        ran_ahead = seconds is not None and neighbours and seconds < _RAN_AHEAD * min(neighbours)
        if ran_ahead or (values.get("tflops_per_gpu") or 0.0) > _NO_DEVICE_TFLOPS:
            values["flags"] = tuple(f"{name}:asynchronous" for name in _SPEEDS if values.get(name) is not None)
        self._seconds_before = seconds
        return (Step(line=line, **values),)


DIALECT = Dialect(
    framework="maxtext",
    looks_for="MaxText: lines 'completed step: 3, seconds: …, TFLOP/s/device: …, loss: …'",
    signs=(b"completed step: ",),
    marks=(b"completed step: ", b"eval metrics after step: "),
    startup=(b"Config param ", b"Num_devices: ", b"TpuDevice(", b"number parameters: ", b"otal TFLOPs"),
    head=r"completed step: {1,12}(\d{1,12}), ",
    first=0,
    fields=r"([\w/]{1,40}): {1,12}([^\s,]{1,40}?(?=[\s,]|$|(?<=\.\d{3})[\[(])|[^\s,]{1,40})",  # all to three digits
    columns={
        "seconds": ("step_time_s", number),
        "TFLOP/s/device": ("tflops_per_gpu", number),
        "TFLOP/s": ("tflops_per_gpu", number),  # the same until November 2023, per device too
        "Tokens/s/device": ("tokens_per_s_per_gpu", number),
        "loss": ("loss", number),
        "lr": ("lr", number),
        "grad_norm": ("grad_norm", number),
        "total_weights": ("total_weights", number),
        "lm_loss": ("lm_loss", number),
        "perplexity": ("perplexity", number),
        "moe_lb_loss": ("load_balancing_loss", number),
        "mtp_loss": ("mtp_loss", number),
    },
    complete=r", loss: (?:-?\d{1,12}\.\d{3}|nan|-?inf)\b",  # always three digits after the point
    validations=(r"eval metrics after step: (?P<iteration>\d{1,12}), loss=(?P<loss>[^,\s]{1,24})",),
    settings=(r"Num_devices: (?P<world_size>\d{1,7})\b",),
    facts=(
        r"number parameters: (?P<parameters_billion>[\d.]{1,16}) billion",
        r"(?:Per train step, total TFLOPs will be|Total TFLOPs:) (?P<tflops_per_step_per_device>[\d.]{1,20})",
        r"Config param steps: (?P<train_iters>\d{1,18})\s*$",
        r"(?P<vendor>TpuDevice)\(",
    ),
    conversions={"parameters_billion": number, "tflops_per_step_per_device": number, "vendor": lambda text: "google"},
    # MaxText/pyconfig.py prints every setting after it has derived them.
    entry=r"Config param (\w{1,80}): (\S{1,200})\s*$",
    zero_is_unset=True,
    driver=_Driver,
)
