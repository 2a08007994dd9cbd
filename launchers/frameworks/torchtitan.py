"""framework=torchtitan: TorchTitan's own Trainer (launchers/ranks/torchtitan_ranks.py). Releases 0.2 and 0.3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conf.check import wrong
from conf.errors import Problem
from conf.resolve import Declared, Experiment
from launchers.attribute_settings import options
from launchers.plain import RANKS, Plain

OURS = "tprimat"
"""The name under which TorchTitan knows what we give it, as launchers/ranks/torchtitan_ranks.py has it."""


RELEASE = "0.2.2"
"""The release whose JobConfig is written; rocm/primus:v26.5 has it, too."""
NEW = "0.3.0"
"""The release whose configuration is Python (launchers/ranks/torchtitan_030_ranks.py)."""


class TorchTitan(Plain):
    """See launchers.plain.Plain."""

    name = "torchtitan"
    takes_options = True  # of JobConfig
    no_fp8 = "its fp8 (torchao's) is a vendor's recipe's alone here: nothing has been held against its losses"

    def program(self, e: Experiment) -> str:
        """See Plain."""
        return str(RANKS / "torchtitan_030_ranks.py") if _is_new(e) else super().program(e)

    def arguments(self, e: Experiment) -> dict[str, Any]:
        """See Plain: with what is written of every run. No default decides a comparison."""
        if _is_new(e):  # its configuration is Python, made in the ranks
            return {"arguments": {}, "names": {}}
        made = super().arguments(e)
        optimizer = e.optimizer
        always = {
            "job.dump_folder": "torchtitan",
            "job.print_config": True,
            "model.name": OURS,
            "model.flavor": OURS,
            "metrics.log_freq": 1,
            "metrics.disable_color_printing": True,
            "training.dtype": "float32",  # of what is kept; mixed_precision_param is what is computed in
            "training.mixed_precision_reduce": "float32",
            "lr_scheduler.total_steps": optimizer.lr_decay_iters or e.training.train_iters,
            "lr_scheduler.min_lr_factor": optimizer.min_lr / optimizer.lr,
        }
        return {**made, "arguments": {**always, **made["arguments"]}}

    def otherwise(self, e: Experiment) -> Iterator[Declared]:
        """See Plain."""
        yield Declared("overlap_grad_reduce", True, "FSDP2 always reduces gradients while the backward pass goes on")
        why = "FSDP2 gathers a layer's parameters while the one before computes, wherever they are sharded"
        yield Declared("overlap_param_gather", _is_sharded(e), why)
        yield Declared("max_position_embeddings", e.training.seq_length, "TorchTitan computes RoPE for the sequence")
        if e.precision.params_dtype == "bfloat16" and not _is_sharded(e) and not _is_new(e):
            why = "without FSDP2 TorchTitan's bf16 is autocast over fp32 weights"
            yield Declared("enable_autocast", True, why)

    def refusals(self, e: Experiment) -> Iterator[Problem]:
        """See Framework."""
        yield from super().refusals(e)
        yield from _release_refused(e)
        yield from _new_refused(e) if _is_new(e) else _layout_refused(e)
        model = e.model
        if model.moe and model.moe.moe_router_load_balancing_type != "none":
            what = (
                "TorchTitan 0.2.2 and 0.3.0 balance experts by a bias alone, without the auxiliary loss of the other "
                "stacks (github.com/pytorch/torchtitan/pull/2061)"
            )
            yield Problem(
                "model.moe.moe_router_load_balancing_type", what, str(model.moe.moe_router_load_balancing_type)
            )
        if model.add_qkv_bias:
            what = "TorchTitan's models have no biases of queries, keys and values"
            yield wrong(e, "model.add_qkv_bias", what, "false", "another framework")
        plain = model.num_attention_heads * model.kv_channels == model.hidden_size
        untied = model.untie_embeddings_and_output_weights
        if not untied and _is_sharded(e):
            what = "TorchTitan 0.2.2 puts the two ends of tied embeddings into two groups of FSDP2, which torch refuses"
            yield wrong(e, "model.untie_embeddings_and_output_weights", what, "true, or one replica")
        if model.use_rope_scaling and (model.qk_layernorm or not untied or not plain):
            what = "TorchTitan's Llama scales RoPE and its Qwen 3 does not, which alone has these parts"
            yield wrong(e, "model.use_rope_scaling", what, "false, or untied weights and heads of hidden_size")
        if not e.precision.accumulate_allreduce_grads_in_fp32:
            what = "TorchTitan reduces gradients in fp32 alone"
            yield wrong(e, "precision.accumulate_allreduce_grads_in_fp32", what, "true")


def _is_sharded(e: Experiment) -> bool:
    """Return whether FSDP2 cuts the parameters."""
    layout = e.layout
    shards = layout.data_parallel_size if e.training.use_distributed_optimizer else 1
    return shards * layout.context_parallel_size > 1


def _release_refused(e: Experiment) -> Iterator[Problem]:
    """Yield a release whose configuration is not written here. Below Primus the release is that of Primus."""
    release = e.framework.release or RELEASE
    if e.framework.backend is None and release not in (RELEASE, NEW):
        what = "is a release of TorchTitan that is not written here"
        yield wrong(e, "framework.release", what, f"{RELEASE}, {NEW}")


def _is_new(e: Experiment) -> bool:
    """Return whether it is the release whose configuration is Python."""
    return e.framework.backend is None and e.framework.release == NEW


def _new_refused(e: Experiment) -> Iterator[Problem]:
    """Yield what this release is not given here."""
    for name, value in options(e).items():
        what = "TorchTitan 0.3 is configured in Python, by the program in the ranks"
        if "spmd_backend" in name:
            what = (
                "it is partial_dtensor: spmd_types needs a torch newer than 2.13, and full_dtensor prints as many "
                "times the loss there as there are data parallel ranks (since then removed: "
                "github.com/pytorch/torchtitan/pull/4217)"
            )
        yield Problem(f"framework.options.{name}", what, str(value), "none", f"framework.release={RELEASE} takes them")
    layout, model = e.layout, e.model
    if layout.pipeline_model_parallel_size > 1:
        what = "TorchTitan 0.3's pipelines need a torch newer than 2.13, and none is here to try them on"
        yield wrong(e, "layout.pipeline_model_parallel_size", what, "1")
    if layout.context_parallel_size > 1:
        what = "TorchTitan 0.3 has context parallelism for other attention than is written here"
        yield wrong(e, "layout.context_parallel_size", what, "1", f"framework.release={RELEASE} on GPUs")
    if layout.tensor_model_parallel_size > 1 and not layout.sequence_parallel:
        what = "TorchTitan always cuts the sequence with tensor parallelism"
        yield wrong(e, "layout.sequence_parallel", what, "true")
    if model.qk_layernorm or not model.untie_embeddings_and_output_weights:
        key = "qk_layernorm" if model.qk_layernorm else "untie_embeddings_and_output_weights"
        what = "TorchTitan 0.3's Llama alone is written here"
        yield wrong(e, f"model.{key}", what, str(key[0] == "u").lower(), f"framework.release={RELEASE}")


def _layout_refused(e: Experiment) -> Iterator[Problem]:
    """Yield the layouts in which this release trains otherwise than it says."""
    layout = e.layout
    if layout.data_parallel_size > 1 and not e.training.use_distributed_optimizer:
        what = (
            "TorchTitan 0.2.2 divides the gradients of DDP by its ranks twice (github.com/pytorch/torchtitan/pull/2323)"
        )
        yield wrong(e, "training.use_distributed_optimizer", what, "true, which is FSDP2")
    if layout.pipeline_model_parallel_size > 1:
        what = (
            "in a pipeline TorchTitan 0.2.2 steps with the gradients of the tokens' sum, so that it clips every step "
            "(github.com/pytorch/torchtitan/issues/2972)"
        )
        yield wrong(e, "layout.pipeline_model_parallel_size", what, "1")
    if layout.context_parallel_size > 1 and e.accelerator is None:
        # NotImplementedError: aten._scaled_dot_product_flash_attention_for_cpu has no sharding strategy (torch 2.13)
        what = "torch's context parallelism is for its attention kernels on GPUs, and has none for a CPU's"
        yield wrong(e, "layout.context_parallel_size", what, "1, or platform=nvidia or amd")
    elif layout.context_parallel_size > 1 and e.training.attention == "unfused":
        what = "torch's context parallelism is for fused attention kernels"
        yield wrong(e, "training.attention", what, "sdpa")
    if layout.context_parallel_size > 1 and not e.training.use_distributed_optimizer:
        what = "TorchTitan always shards over the ranks of context parallelism"
        yield wrong(e, "training.use_distributed_optimizer", what, "true")
    if layout.tensor_model_parallel_size > 1 and not layout.sequence_parallel:
        what = "TorchTitan always cuts the sequence with tensor parallelism"
        yield wrong(e, "layout.sequence_parallel", what, "true")
    if e.precision.params_dtype == "bfloat16" and layout.tensor_model_parallel_size > 1 and not _is_sharded(e):
        what = "TorchTitan 0.2.2 computes in fp32 where tensor parallelism has no FSDP2 beside it"
        yield wrong(e, "precision.params_dtype", what, "float32, or data parallelism beside it")


FRAMEWORK = TorchTitan()
