"""Read back the arguments that a run really has, from the objects that were built, not echoed from the request."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from engine_data import TokenData
from engine_model import aux_loss_correction
from engine_settings import Settings
from megatron.core import parallel_state
from megatron.core.utils import get_attr_wrapped_model
from tprimat_settings import megatron_schedule, read, training


class Built(NamedTuple):
    """The objects that one rank trains with."""

    settings: Settings
    chunks: list[Any]
    """Megatron's DistributedDataParallel around GPTModel; several with a virtual pipeline."""
    optimizer: Any
    scheduler: Any
    data: TokenData


def effective_arguments(built: Built) -> dict[str, Any]:
    """Return every argument under its Megatron name.

    Read on rank 0, which has the first pipeline stage. `train_iters`, `save_interval` and `rope_scaling_factor` are
    the request's: no object keeps them.
    """
    gpt, first = get_attr_wrapped_model(built.chunks[0], "decoder", return_model_obj=True), built.chunks[0]
    objects = training(gpt, first.ddp_config, built.optimizer.config, built.optimizer.param_groups)
    arguments = read(**objects, **megatron_schedule(built.scheduler))
    coefficient, correction = arguments["moe_aux_loss_coeff"], aux_loss_correction(gpt.config.context_parallel_size)
    return {
        **arguments,
        # as requested, where there are experts: Megatron's config has it corrected for its CP
        **({} if coefficient is None else {"moe_aux_loss_coeff": coefficient / correction}),
        **_batches(built),
        "params_dtype": gpt.embedding.word_embeddings.weight.dtype,  # as Megatron prints it
        "use_rope_scaling": gpt.rotary_scaling,
        "rope_scaling_factor": built.settings.rope_scaling_factor,
        "train_iters": built.settings.train_iters,
        "save_interval": built.settings.save_interval,
        "bf16": gpt.config.bf16,
        "device": ("rocm" if torch.version.hip else "cuda") if torch.cuda.is_available() else "cpu",
    }


def _batches(built: Built) -> dict[str, Any]:
    data_size = parallel_state.get_data_parallel_world_size()
    micro_batches, micro_batch_size, tokens = built.data.rank_batches(0, 0, data_size).shape
    return {
        **built.data.effective(),
        "seq_length": tokens - 1,  # a sample has one more, for the last label
        "micro_batch_size": micro_batch_size,
        "num_micro_batches": micro_batches,
        "global_batch_size": micro_batches * micro_batch_size * data_size,
    }
