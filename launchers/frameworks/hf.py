"""framework=hf: the Trainer of Hugging Face's transformers, with FSDP2 or DDP (launchers/ranks/hf_ranks.py)."""

from __future__ import annotations

from collections.abc import Iterator

from conf.resolve import Declared, Experiment
from launchers.plain import Plain


class HuggingFace(Plain):
    """See launchers.plain.Plain."""

    name = "hf"
    takes_options = True  # of TrainingArguments
    one_group_of_shards = (
        "on a CPU accelerate shards nothing, so that nobody has checked its replicas of shards (ParallelismConfig) "
        "against the losses of another stack"
    )

    def otherwise(self, e: Experiment) -> Iterator[Declared]:
        """See Plain."""
        sharded = bool(e.training.use_distributed_optimizer)
        if e.accelerator is None and e.layout.world_size > 1:
            # accelerate 1.15, state.py: a distributed_type of MULTI_CPU never becomes FSDP, whatever Trainer is given
            why = "accelerate shards nothing on a CPU, and does not say so: DDP runs there"
            yield Declared("use_distributed_optimizer", False, why)
            sharded = False
        yield Declared("overlap_grad_reduce", True, "FSDP2 and DDP always reduce gradients during the backward pass")
        yield Declared("overlap_param_gather", sharded, "FSDP2 always gathers a layer ahead, and DDP has nothing to")
        if e.precision.params_dtype == "bfloat16":
            why = "Trainer's bf16 is autocast over fp32 weights: it rounds at other places than bf16 weights do"
            yield Declared("enable_autocast", True, why)


FRAMEWORK = HuggingFace()
