"""Conditions of a layout, as arithmetic that one layout (integers) and many side by side (arrays of them) go
through alike. conf/check.py says in words which condition is broken and what is valid; a search keeps what breaks none.

r: a Request whose layout and training are filled in; s: Sizes. For many layouts the fields of both that differ are
arrays of one shape, and so is the result. All sizes are at least 1."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Any

from conf.schema import BEST
from conf.shapes import tensor_widths


def micro_batches(r: Any, s: Any) -> Any:
    """Return (samples of one micro-batch on all ranks, micro-batches of one rank), of sizes that split the world."""
    step = r.training.micro_batch_size * (r.world_size // (s.tp * s.pp * s.cp))
    return step, r.training.global_batch_size // step


def sequence_parts(r: Any, s: Any) -> Any:
    """Return in how many parts a sequence is cut: two for each CP rank, for an even load, and by sequence parallelism
    over the TP ranks."""
    return s.cp * (1 + (s.cp > 1)) * (1 + r.layout.sequence_parallel * (s.tp - 1))


def expert_ranks(r: Any, s: Any) -> Any:
    """Return the ranks that hold all experts of all layers once; a recipe may not split its experts' matrices."""
    return (1 if r.method == BEST else s.tp) * s.pp * s.ep


def repeats_experts(r: Any, s: Any) -> Any:
    """Return whether the replicas of what is sharded divide the ranks that hold the same experts."""
    ranks = expert_ranks(r, s)
    return (s.ep == 1) | ((r.world_size % ranks == 0) & (r.world_size // ranks % r.layout.data_parallel_replicas == 0))


def splits_world(r: Any, s: Any) -> Any:
    """Return whether TP × PP × CP divides the GPUs."""
    return r.world_size % (s.tp * s.pp * s.cp) == 0


def splits_widths(r: Any, s: Any) -> Any:
    """Return whether TP divides all that it cuts."""
    return reduce(and_, (n % s.tp == 0 for n in tensor_widths(r.model).values()))


def splits_layers(r: Any, s: Any) -> Any:
    """Return whether all chunks have as many layers, with embedding and loss where they count as one; a recipe brings
    the shares of its stages with it."""
    return (r.method == BEST) | ((r.model.num_layers + s.first + s.last) % (s.pp * s.vp) == 0)


def fills_ends(r: Any, s: Any) -> Any:
    """Return whether the first and the last chunk have a layer beside what counts as one."""
    counted = s.first + s.last
    return (r.method == BEST) | (counted == 0) | ((s.pp > 1) & (r.model.num_layers + counted >= 2 * s.pp * s.vp))


def has_stages(r: Any, s: Any) -> Any:
    """Return whether there is a pipeline, where there are virtual stages."""
    return (s.vp == 1) | (s.pp > 1)


def splits_sequence(r: Any, s: Any) -> Any:
    """Return whether the sequence is cut into equal parts."""
    return r.training.seq_length % sequence_parts(r, s) == 0


def has_tensor_ranks(r: Any, s: Any) -> Any:
    """Return whether there are TP ranks, where sequence parallelism splits over them."""
    return s.tp > r.layout.sequence_parallel


def splits_batch(r: Any, s: Any) -> Any:
    """Return whether the batch is so many micro-batches on every rank."""
    return r.training.global_batch_size % micro_batches(r, s)[0] == 0


def fills_stages(r: Any, s: Any) -> Any:
    """Return whether the micro-batches are a multiple of the stages, where they interleave."""
    return (s.vp == 1) | (micro_batches(r, s)[1] % s.pp == 0)


def splits_experts(r: Any, s: Any) -> Any:
    """Return whether each EP rank has as many experts; a model without any has one rank for them."""
    return (s.ep == 1) if r.model.moe is None else (r.model.moe.num_experts % s.ep == 0)


def splits_world_by_experts(r: Any, s: Any) -> Any:
    """Return whether the ranks that hold all experts once divide the GPUs."""
    return (s.ep == 1) | (r.world_size % expert_ranks(r, s) == 0)


def routes_apart(r: Any, s: Any) -> Any:
    """Return whether TP ranks route different tokens to experts: by sequence parallelism."""
    return (s.tp == 1) | (r.model.moe is None) | (r.layout.sequence_parallel > 0)


def splits_biases(r: Any, s: Any) -> Any:
    """Return whether no expert with biases is split over TP, which Megatron-Core cannot; a recipe may split none."""
    return (s.tp == 1) | (r.model.moe is None) | (r.method == BEST) | (not r.model.add_bias_linear)


def gathers_equal(r: Any, s: Any) -> Any:
    """Return whether gloo gathers pieces of one size: on a CPU not with TP and EP."""
    return (s.tp == 1) | (s.ep == 1) | (r.model.moe is None) | (r.hardware.vendor is not None)


CONDITIONS = (
    *(splits_world, splits_widths, splits_layers, fills_ends, has_stages, splits_sequence, has_tensor_ranks),
    *(splits_experts, splits_world_by_experts, routes_apart, splits_biases, gathers_equal),
)
OF_THE_BATCH = (splits_batch, fills_stages)
"""Conditions of layouts that split the world."""
