"""framework=deepspeed: DeepSpeed's ZeRO around the model of transformers (launchers/ranks/deepspeed_ranks.py)."""

from __future__ import annotations

from collections.abc import Iterator

from conf.check import wrong
from conf.errors import Problem
from conf.resolve import Declared, Experiment
from launchers.attribute_settings import options
from launchers.plain import Plain

STAGE = "zero_optimization.stage"


class DeepSpeed(Plain):
    """See launchers.plain.Plain. The stage follows from use_distributed_optimizer, 1 or 0; 2 and 3 are an option."""

    name = "deepspeed"
    takes_options = True  # of DeepSpeed's configuration
    one_group_of_shards = (
        "ZeRO cuts over all data parallel ranks: its hpZ repeats the weights alone, and its MiCS needs stage 3 and "
        "another way of making the model"
    )

    def otherwise(self, e: Experiment) -> Iterator[Declared]:
        """See Plain."""
        why = "ZeRO gathers parameters ahead in stage 3 alone, and then always"
        yield Declared("overlap_param_gather", options(e).get(STAGE) == 3, why)
        if not e.training.use_distributed_optimizer:
            yield Declared("overlap_grad_reduce", False, "without ZeRO gradients are reduced after the backward pass")

    def uncut(self, e: Experiment) -> tuple[str, ...]:
        """See Framework: AutoTP cuts an embedding with the output layer that it is tied to, and no other."""
        return ("embedding.word_embeddings.weight",) if e.model.untie_embeddings_and_output_weights else ()

    def refusals(self, e: Experiment) -> Iterator[Problem]:
        """See Framework."""
        yield from super().refusals(e)
        stage = options(e).get(STAGE, 1)
        if stage not in (1, 2, 3) or (STAGE in options(e) and not e.training.use_distributed_optimizer):
            what = "is not a stage that shards what the layout does"
            yield Problem(f"framework.options.{STAGE}", what, str(stage), "1, 2, 3 with a distributed optimizer")
        if e.precision.params_dtype == "bfloat16" and not e.training.use_distributed_optimizer:
            # runtime/fp16/unfused_optimizer.py, initialize_optimizer_states: 0.074 nats/token in ten steps
            what = (
                "DeepSpeed's bf16 without ZeRO counts one step of Adam before the first, so its corrections are off "
                "(github.com/deepspeedai/DeepSpeed/pull/5104)"
            )
            yield wrong(e, "training.use_distributed_optimizer", what, "true, or precision=fp32")


FRAMEWORK = DeepSpeed()
