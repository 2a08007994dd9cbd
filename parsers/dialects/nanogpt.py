"""nanoGPT (train.py).

`iter 250: loss 1.7221, time 33.24ms, mfu 17.21%`, from 0, and before it, where it evaluates, `step 250: train loss …`.
The loss is of rank 0's last micro-batch. The time goes from one iteration's dispatch to the next, and includes an
evaluation made before it: then it is no step's. mfu is a fading mean against an A100, and -100.00% at first. max_iters
itself is run, too: with 2000 there are 2001. A later setting replaces an earlier one (configurator.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from parsers.driver import Dialect, Driver, Event, Fact, Setting, Values
from parsers.record import Validation
from parsers.values import count, milliseconds, number


class _Driver(Driver):
    """Keeps settings until the first step: the last statement counts."""

    _evaluated: int | None = None

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._kept: dict[str, Setting] = {}

    def step(self, line: int, values: Values, text: str) -> Iterable[Event]:
        if self._evaluated == values["iteration"] and values.get("step_time_s") is not None:
            values["metrics"]["time_with_evaluation_s"] = values.pop("step_time_s")
        kept, self._kept = self._kept, {}
        return (*kept.values(), *super().step(line, values, text))

    def other(self, line: int, text: str) -> Iterator[Event]:
        for event in super().other(line, text):
            if isinstance(event, Validation):
                self._evaluated = event.iteration
            if isinstance(event, Setting):
                self._kept[event.name] = event
            elif isinstance(event, Fact) and event.name == "train_iters":
                yield Fact("train_iters", event.value + 1, line)
            else:
                yield event


DIALECT = Dialect(
    framework="nanogpt",
    looks_for="nanoGPT: lines 'iter 250: loss …, time …ms, mfu …%'",
    signs=(b"ms, mfu ", b"0: loss "),
    marks=(b": loss ", b": train loss "),
    startup=(b" = ", b"tokens per iteration", b"number of parameters: "),
    head=r"\biter (\d{1,9}): (?=loss \S{1,16}, time )",
    first=0,
    fields=r"(loss|time|mfu) ([\d.]{1,16}(?=ms|%|,)|nan|inf)",  # what is cut lacks its unit
    columns={
        "loss": ("loss", number),
        "time": ("step_time_s", milliseconds),
        "mfu": ("mfu_percent_running_mean", number),
    },
    complete=r"mfu -?[\d.]{1,9}%|ms\s{0,20}$",
    validates_before=True,
    validations=(
        r"\bstep (?P<iteration>\d{1,9}): train loss (?P<estimated_train_loss>[^\s,]{1,16}), val loss"
        r" (?P<loss>\S{1,16})",
    ),
    entry=r"(?:^|[:\])>] ?|found )(\w{1,32}) = ([\d.e+-]{1,16})(?=\s|$)",
    printed_facts={"max_iters": "train_iters"},
    facts=(
        r"tokens per iteration will be: (?P<global_batch_tokens>[\d,]{1,20})",
        r"number of parameters: (?P<parameters_million>[\d.]{1,12})M",
        r"tokens per iteration will be: (?P<tokens_per_iteration>[\d,]{1,20})",
    ),
    conversions={"parameters_million": number, **dict.fromkeys(("tokens_per_iteration", "global_batch_tokens"), count)},
    driver=_Driver,
)
