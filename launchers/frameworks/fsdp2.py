"""framework=fsdp2: plain PyTorch (launchers/ranks/fsdp2_ranks.py), what one gets without a framework."""

from __future__ import annotations

from collections.abc import Iterator

from conf.resolve import Declared, Experiment
from launchers.plain import Plain


class Fsdp2(Plain):
    """See launchers.plain.Plain."""

    name = "fsdp2"

    def otherwise(self, e: Experiment) -> Iterator[Declared]:
        """See Plain."""
        yield Declared("overlap_grad_reduce", True, "FSDP2 always reduces gradients while the backward pass goes on")
        gathers = bool(e.training.use_distributed_optimizer)
        why = "FSDP2 gathers a layer's parameters while the one before computes, wherever they are sharded"
        yield Declared("overlap_param_gather", gathers, why)
        why = "RoPE is computed for the sequence, whatever a model allows"
        yield Declared("max_position_embeddings", e.training.seq_length, why)


FRAMEWORK = Fsdp2()
