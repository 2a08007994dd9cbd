"""GPT-NeoX: "samples/sec: R | iteration N/ TOTAL | … | lm_loss: …", and NeoX's own names in its argument dump.

A second line a step ("steps: N loss: …", DeepSpeed's) repeats it with fewer digits and is not read. Which step's rate
is printed is not settled, so lr_used stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from parsers import megatron_reader
from parsers.events import Argument, Event, Reader, Setting
from parsers.megatron import read_step
from parsers.megatron_reader import MegatronReader
from parsers.values import integer, literal

FRAMEWORK = "gpt_neox"
LOOKS_FOR = "GPT-NeoX: 'samples/sec: ' before Megatron's iteration line, 'NeoXArgs'"
SIGNS = (b"NeoXArgs", b"| approx flops per GPU: ", b"| lm_loss: ")
MARKS = (*megatron_reader.MARKS, b"save-checkpoint ")
STARTUP = (*(mark for mark in megatron_reader.STARTUP if mark != b"using world size"), b"  world_size .")
COMPANION = False

# NeoX's name in its dump: ours. gpt-neox megatron/neox_arguments/neox_args.py.
_CANONICAL = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "seq_length": "seq_length",
    "max_position_embeddings": "max_position_embeddings",
    "model_parallel_size": "tensor_model_parallel_size",
    "pipe_parallel_size": "pipeline_model_parallel_size",
    "train_batch_size": "global_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "num_micro_batches",
    "train_iters": "train_iters",
    "lr": "lr",
    "min_lr": "min_lr",
    "lr_decay_style": "lr_decay_style",
    "lr_decay_iters": "lr_decay_iters",
    "weight_decay": "weight_decay",
    "seed": "seed",
    "hidden_dropout": "hidden_dropout",
    "attention_dropout": "attention_dropout",
}

__all__ = ["COMPANION", "FRAMEWORK", "LOOKS_FOR", "MARKS", "SIGNS", "STARTUP", "read_step", "reader"]


def reader() -> Reader:
    """A reader for one log."""
    return _NeoxReader(prints_next_rate=False)


class _NeoxReader(MegatronReader):
    def feed(self, number: int, text: str) -> Iterator[Event]:
        for event in super().feed(number, text):
            if not isinstance(event, Argument):
                yield event
                continue
            value = _without_origin(event.value)
            yield Argument(event.name, value, event.line)
            if event.name in _CANONICAL and value is not None:
                yield Setting(_CANONICAL[event.name], value, event.line)

    def _others(self, number: int, text: str) -> Iterator[Event]:
        # DeepSpeed's own dump: the launcher's says None, and "using world size: 1" is said by the launcher too.
        name, dots, value = text.partition(" ..")
        if dots and name.rstrip().endswith("  world_size"):
            size = integer(value.lstrip(". ").strip())
            if size is not None:
                yield Setting("world_size", size, number)
        else:
            yield from super()._others(number, text)


def _without_origin(value: object) -> object:
    """ "512.........................updated" is 512: dots fill up to where the value came from."""
    if not isinstance(value, str):
        return value
    for origin in ("updated", "default"):
        if value.endswith(origin):
            return literal(value.removesuffix(origin).rstrip("."))
    return value
