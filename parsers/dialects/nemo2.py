"""The dialect of NeMo 2, where it prints a line a step (nemo/lightning/pytorch/callbacks/progress_printer.py).

`Training epoch 0, iteration 1/7 | lr: 0.0005 | global_batch_size: 4 | global_step: 1 | reduced_train_loss: 6.976 | …`
Counts from 0; iteration begins anew with every epoch, global_step does not; 4 significant digits, integers without
a point; which fields there are, and in which order, varies. With a log interval k all but global_step are means over k.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from parsers.dialects.megatron import PARAMETERS, parameters
from parsers.driver import Dialect, Driver, Event, Fact, Setting, Values, WrappedLines
from parsers.record import Step, Validation
from parsers.text import body
from parsers.values import UNREAD, Place, count, literal, number

# nemo/lightning/megatron_init.py, in NeMo 1 modules/common/megatron/megatron_init.py: of rank 0, the ranks of a group.
_GROUP = re.compile(r"Rank 0 has ([a-z ]{4,40}group) ?: ?\[([\d, ]{1,60000})\]")
# NeMo 1 says of each field of Megatron's TransformerConfig that is not in its configuration that it keeps its default.
_DEFAULT = re.compile(r"MegatronGPTModel\(\) does not have field\.name: (\w{1,60}) in its cfg")
_DEFAULTS: Mapping[str, tuple[str, object]] = {
    "num_moe_experts": ("num_experts", None),
    "multi_latent_attention": ("multi_latent_attention", False),
    "mtp_num_layers": ("mtp_num_layers", None),
    "window_size": ("window_size", None),
}
STARTUP = (
    *(b"`Trainer.fit` stopped", b"GLOBAL_RANK: 0, MEMBER", b"Rank 0 has", b"Padded vocab_size"),
    *(b"number of parameters on (tensor", b"OptimizerConfig(", b"DistributedDataParallelConfig("),
    *(b"You are using a CUDA device", b"of microbatches to constant", b"of micro-batches to constant"),
    *(b"distributed_backend=", b": NVIDIA ", b"MegatronGPTModel() does not have field.name: "),
)
SETTINGS = (
    r"GLOBAL_RANK: 0, MEMBER: \d{1,7}/(?P<world_size>\d{1,7})",
    r"Padded vocab_size: (?P<padded_vocab_size>\d{1,9}), original vocab_size: (?P<vocab_size>\d{1,9})",
    r"number of micro-?batches to constant (?P<num_micro_batches>\d{1,7})",
    r"^distributed_backend=(?P<distributed_backend>\w{1,20})\s*$",
)
FACTS = (
    r"You are using a CUDA device \('(?P<device_name>[^']{1,100})'\)",
    r"^GPU \d{1,3}: (?P<device_name>[^()]{1,100}) \(UUID",  # nvidia-smi -L
    r"`Trainer\.fit` stopped: `max_(?P<completed>steps|epochs)=\d{1,12}` reached",
    r"`Trainer\.fit` stopped: `max_steps=(?P<train_iters>\d{1,12})` reached",
)

_HEAD = re.compile(r"Training epoch {1,12}(\d{1,12}), iteration {1,12}(\d{1,12})/(\d{1,12}) ?\|?")
_MEANS = ("lr", "step_time_s", "loss", "grad_norm", "tokens_per_s_per_gpu", "tflops_per_gpu")
_CUT = (":", "|", ".", "-", "+", "e", ",")
_TAIL = re.compile(r"[\d.e+-]{1,12}")


class NemoDriver(Driver):
    """A reader of what NeMo 1 and NeMo 2 both print before they train: process groups, Megatron's config objects,
    sizes."""

    def other(self, line: int, text: str) -> Iterator[Event]:
        plain, known = body(text), self.dialect.known
        yield from super().other(line, plain)
        if match := PARAMETERS.search(plain):
            yield from parameters(match, line)
        group, default = _GROUP.search(plain), _DEFAULT.search(plain)
        if group is not None and group[1] in known:
            yield Setting(known[group[1]].name, group[2].count(",") + 1, line)
        if default is not None and default[1] in _DEFAULTS:
            yield Setting(*_DEFAULTS[default[1]], line)
        for kind in ("OptimizerConfig", "DistributedDataParallelConfig"):
            # A dataclass as Python shows it: of several fields of one name, in nested objects, the first is its own.
            parts = [part.partition("=")[::2] for part in plain.partition(f"{kind}(")[2].split(", ")]
            values = {name: literal(printed.rstrip(")").strip("'")) for name, printed in reversed(parts)}
            stated = [(known[f"{kind}.{name}"].name, values[name]) for name, _ in parts if f"{kind}.{name}" in known]
            yield from (Setting(name, value, line) for name, value in dict(stated).items() if value is not None)


class _Lines(WrappedLines):
    """Broken lines where no field is always the last: the next line shows whether one goes on."""

    wraps = True  # until the first step shows that it stands on one line

    def _feed(self, number: int, text: str) -> Iterable[tuple[int, str]]:
        if self.pieces and _HEAD.search(text) is None and not _continues(body(text)):
            return (*self.end(), (number, text))
        return super()._feed(number, text)

    def end(self) -> list[tuple[int, str]]:
        pieces, self.pieces = self.pieces, []
        if not pieces:
            return []
        self.wraps = len(pieces) > 1
        return [(pieces[0][0], "".join([pieces[0][1], *(body(text) for _, text in pieces[1:])]))]


class _Driver(NemoDriver):
    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._wrapped: _Lines = _Lines(self._head, self._is_complete)
        self._previous: Step | None = None
        self._open: Values | None = None  # the first step, while the log interval is not known
        self._fields = self._most = 0
        self._cut = False  # the last step line lacks its end
        self._usual: int | None = None  # steps from line to line, the fewest so far
        self._val_loss: float | None = None
        self._stated: int | None = None  # the last total that was stated

    def _is_complete(self, text: str) -> bool:
        """Return whether a line goes on in no other: where none did so far, and it has as many fields as the last."""
        alone = not (self._wrapped.wraps or self._wrapped.pieces or text.endswith(_CUT))
        return alone and text.count("|") >= self._fields

    def end(self) -> Iterable[Event]:
        events = tuple(super().end())
        values, self._open = self._open, None
        return events if values is None else (*events, self._settled(values, None))

    def other(self, line: int, text: str) -> Iterator[Event]:
        self._stated = None
        return super().other(line, text)

    def step(self, line: int, values: Values, text: str) -> Iterator[Event]:
        if values["step"] == 0:
            self._previous, self._val_loss, self._cut, self._most = None, None, False, 0  # every run has its own
        self._fields, cut = text.count("|"), self._cut
        self._most = max(self._fields, self._most)
        self._cut = self._fields < self._most or " " in text.rstrip().rpartition(": ")[2]
        values["line"] = line
        before, metrics, head = self._previous, values["metrics"], _HEAD.search(text)
        # The printer's total - 1; that of an epoch where training has no max_steps.
        total = 0 if head is None else int(head[3]) + 1
        goes_on = before is not None and before.step < values["step"] and self._open is None
        if values["step"] < total and not (goes_on and total == self._stated):
            self._stated = total if goes_on else None  # what comes first may still be another run's
            yield Fact("train_iters", total, line)
        if metrics:
            yield from self._validated(line, metrics, cut)
        if self._open is not None:
            first, self._open = self._open, None
            before = self._settled(first, values["step"] - first["step"])
            yield before
        # consumed_samples shows that the values are the step's own: it is (global_step + 1) * global_batch_size then,
        # and a line that was lost or grepped away changes nothing about it.
        own = (values["step"] + 1) * (values.get("global_batch_size") or 0)
        if before is None and values["step"] and not (own and values.get("consumed_samples") == own):
            self._open = values
        elif before is None or (own and values.get("consumed_samples") == own):
            yield self._settled(values, 1)
        else:
            yield self._settled(values, values["step"] - before.step)

    def _validated(self, line: int, metrics: Values, cut: bool) -> Iterator[Event]:
        """Yield a validation. val_loss stays on the lines until the next: it is new where it changes, and came before
        this step. cut: the line before lacks its end, where it may have been new already."""
        loss, before = metrics.pop("val_loss", None), self._previous
        others = {name: metrics.pop(name) for name in tuple(metrics) if name.startswith("val_")}
        if loss is not None and loss != self._val_loss:
            self._val_loss = loss
            if cut:
                return
            step, iteration = (None, None) if before is None else (before.step, before.iteration)
            yield Validation(line=line, step=step, iteration=iteration, loss=loss, metrics=others)

    def _settled(self, values: Values, gap: int | None) -> Step:
        """Return the step, with what follows from the steps since the line before: with a log interval k, k divides
        iteration + 1."""
        if gap == 1:
            values["interval_steps"] = 1
        else:
            values["lr_used"] = values["consumed_samples"] = None
        self._usual = min(gap or 1, self._usual or gap or 1)
        if gap is not None and 1 < gap < 2 * self._usual and (values["iteration"] + 1) % gap == 0:
            values["interval_steps"] = gap
            values["flags"] = tuple(f"{name}:interval_mean" for name in _MEANS if values.get(name) is not None)
        self._previous = Step(**values)
        return self._previous


def _places(text: str) -> list[Place] | None:
    head = _HEAD.search(text)
    if head is None:
        return None
    parts, at = text[head.end() :].rstrip().split("|"), head.end()
    if parts[-1].endswith("."):
        parts.pop()  # "46.": a number cut short, and a wrong one
    places: list[Place] = [("iteration", int, *head.span(2))]
    for part in parts:
        name, _, printed = part.rstrip().rpartition(": ")
        end = at + len(part.rstrip())
        places.append((*DIALECT.columns.get(name.lstrip(), UNREAD), end - len(printed), end))
        at += len(part) + 1
    return places


def _settle(values: Values, text: str) -> Values | None:
    if values.get("step") is None:
        head = _HEAD.search(text)
        if head is None or head[1] != "0":
            return None  # in a later epoch the iteration alone does not give the step
        values["step"] = values["iteration"]
    # The parameter groups' rate, logged before the scheduler steps: the one that this step uses (nvidia.md, section 4).
    values["lr_used"] = values.get("lr")
    # The run's need; max_memory_allocated stands beside it, and alone where a line was cut. 0 bytes is what a stand-in
    # for torch.cuda answers: no measurement.
    metrics = values["metrics"]
    measured = metrics.get("max_memory_reserved_bytes") or metrics.get("peak_memory_usage_bytes")
    if measured:
        values["memory_bytes"], values["memory_kind"] = int(measured), "reserved"
    return values


def _continues(text: str) -> bool:
    """Return whether a line can be the rest of a wrapped one: fields that we know, or the tail of a number."""
    first, bar, _ = text.strip().partition("|")
    name = first.rpartition(": ")[0].strip()
    known = bool(name) and any(column.endswith(name) for column in DIALECT.columns)
    return known or (bool(bar) and len(first) < 40) or bool(_TAIL.fullmatch(first))


DIALECT = Dialect(
    framework="nemo",
    rate_of=(0,),
    looks_for="NeMo 2: lines 'Training epoch 0, iteration 1/7 | lr: … | global_step: … | reduced_train_loss: …'",
    signs=(b"Training epoch ",),
    marks=(b"Training epoch ", b"heckpoint save for step", b"Global Checkpoint Save"),
    startup=STARTUP,
    head=r"Training epoch {1,12}\d{1,12}, iteration {1,12}\d{1,12}/\d",
    complete=".",  # see _Driver
    columns={
        "lr": ("lr", number),
        "global_step": ("step", count),
        "global_batch_size": ("global_batch_size", count),
        "reduced_train_loss": ("loss", number),
        "grad_norm": ("grad_norm", number),
        "consumed_samples": ("consumed_samples", count),
        "train_step_timing in s": ("step_time_s", number),
        "tokens_per_sec_per_gpu": ("tokens_per_s_per_gpu", number),
        "TFLOPS_per_GPU": ("tflops_per_gpu", number),
        "tflops_per_sec_per_gpu": ("tflops_per_gpu", number),
        **{name: (name, number) for name in ("val_loss", "val_ppl", "val_acc", "val_mse")},
        "max_memory_reserved": ("max_memory_reserved_bytes", count),
        "max_memory_allocated": ("max_memory_allocated_bytes", count),
        "peak_memory_usage": ("peak_memory_usage_bytes", count),
        "memory_allocated": ("memory_allocated_bytes", count),
    },
    settings=SETTINGS,
    facts=FACTS,
    stalls={
        "checkpoint": (
            r"Global Checkpoint Save : Rank: 0 : Iteration: (?P<iteration>\d{1,12}) .{0,80}"
            r"Save duration: (?P<seconds>[\d.]{1,20})s"
        ),
        "asynchronous checkpoint": (r"heckpoint save for step (?P<iteration>\d{1,12}) .{0,600}finalized successfully"),
    },
    driver=_Driver,
    places=_places,
    adjust=_settle,
)
