"""LitGPT (litgpt/pretrain.py, finetune/*.py), Lit-GPT before it, and TinyLlama, which is made of that.

`Epoch 1 | iter 8 step 2 | loss train: 1.761, val: n/a | iter time: 121.17 ms (step) remaining time: 0:01:22`, before
March 2024 `iter 8 step 2: loss 1.7612, iter time: 121.17 ms (optimizer.step)`. iter counts micro-batches, step steps
of the optimizer, from 1: the line that ends with one is read. The loss is rank 0's, of the step (in the older form of
its last micro-batch); the time is the last micro-batch's, and the step's where it has one and every step a line.
`val:` repeats the last validation."""

from __future__ import annotations

from collections.abc import Iterable

from parsers.driver import Dialect, Driver, Event, Values
from parsers.values import milliseconds, number


class _Driver(Driver):
    _last, _gap = 0, 0

    def step(self, line: int, values: Values, text: str) -> Iterable[Event]:
        step, metrics = values["iteration"], values["metrics"]
        if step != self._last:
            self._last, self._gap = step, step - self._last
        if self._gap == 1 and f"| iter {step} step {step} |" in text:
            values["step_time_s"] = metrics.pop("last_micro_batch_s", None)
        return super().step(line, values, text)


DIALECT = Dialect(
    framework="litgpt",
    looks_for="LitGPT: lines 'Epoch 1 | iter 8 step 2 | loss train: … | iter time: … ms (step)'",
    signs=(b"iter time: ",),
    marks=(b"step)", b"val loss", b"Saving checkpoint"),
    startup=(
        *(b"micro_batch_size", b"global_batch_size", b"max_seq_length", b"lr_warmup_steps", b"max_norm", b"min_lr"),
        *(b"'n_", b"n_layer=", b"vocab_size", b"'lr'", b"'weight_decay'", b"learning_rate"),
        *(b"raining time", b"raining Time"),
        *(b"otal parameters", b"emory used", b"emory Used"),
    ),
    head=r"\biter \d{1,10}(?: \|)? step (\d{1,9})(?::| \|)(?=.{1,120}\((?:optimizer\.|opt\.)?step\))",
    fields=r"(loss|loss train|iter time):? (\d[\d.]{0,20}(?=[ ,m]|$)|nan|inf)",
    columns={
        "loss": ("loss", number),
        "loss train": ("loss", number),
        "iter time": ("last_micro_batch_s", milliseconds),
    },
    validations=(
        r"(?:iter|step) \d{1,9}: val loss (?P<loss>\d[\d.]{0,12})(?:, val time: (?P<seconds>[\d.]{1,16}) ?ms)?",
        r"Final evaluation \| val loss: (?P<loss>[\d.]{1,12})",
    ),
    stalls={"checkpoint": r"Saving checkpoint to "},
    entry=r"""(?:^|[\s{(,'])(\w{1,32})(?:': |=)([\d.e+-]{1,16})(?=[,)}\s]|$)""",
    facts=(
        r"[Tt]otal parameters:? (?P<parameters>[\d,]{1,24})",
        r"(?P<completed>[Tt]raining [Tt]ime {0,4}: )",
        r"Memory [Uu]sed {0,4}: (?P<peak_memory_allocated_gb>[\d.]{1,12}) GB",
    ),
    conversions={"peak_memory_allocated_gb": number, "completed": lambda text: "all", "seconds": milliseconds},
    driver=_Driver,
)
