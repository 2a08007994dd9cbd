"""The least memory that one GPU must hold for a claim (`metrics check … memory_gb=`): by estimate/memory.py, in the
layout, of those that the claim leaves open, that takes least."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from math import gcd
from typing import Any

from conf.check import divisors
from conf.errors import InputError, Problem
from metrics.check import Held, MemoryClaim

_TP, _PP, _CP = (f"{name}_parallel_size" for name in ("tensor_model", "pipeline_model", "context"))
_EP, _DP = "expert_model_parallel_size", "data_parallel_size"
_BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
"""Bytes of a weight by precision. What a stack keeps beside them (copies in 16 bits, scales) is left out."""
_PRECISION = {"tf32": "fp32", "fp4": "nvfp4"}
_ADAM = {"fp32": 8.0, "tf32": 8.0}  # two moments in fp32; below fp32 also a copy of the parameters in fp32
_PASS = "one layer's pass"


def least_memory(claim: MemoryClaim) -> Held | None:
    """Return the least that a GPU holds, by part; None: it is not known how many bytes a weight has.

    Left out is what a method can make small: the logits (in pieces), what FSDP gathers (in pieces), and all that
    frameworks add. Kept are weights, gradients in 16 bits, Adam's states over all replicas, and the activations of one
    sequence, with every layer recomputed or none, whichever is less."""
    if claim.precision not in _BYTES:
        return None
    import numpy as np

    from estimate.jobs import Jobs, columns_of_shape
    from estimate.memory import ACTIVATIONS, STATES, memory

    if not (ways := [*_ways(claim)]):
        stated = {**claim.sizes, **({} if claim.shared_by is None else {"model_parallel_size": claim.shared_by})}
        found = ", ".join(f"{name}={size}" for name, size in stated.items())
        what = f"no layout of {claim.gpus:,} GPUs and {claim.shape.num_layers} layers is so"
        raise InputError(Problem("memory_gb", what, found, hint="gpus= is of all, and model_parallel_size= TP × PP"))
    columns: dict[str, Any] = {field.name: 0.0 for field in fields(Jobs)} | columns_of_shape(claim.shape)
    columns["data_parallel_replicas"] = 1
    columns |= {"seq_length": claim.seq_length, "micro_batch_size": 1, "virtual_pipeline_model_parallel_size": 1}
    columns |= {"precision": _PRECISION.get(claim.precision, claim.precision), "hardware": "gpu", "stack": ""}
    columns |= {"gradient_bytes": 2.0, "optimizer_bytes": _ADAM.get(claim.precision, 12.0), "trained": "pretraining"}
    columns |= {name: np.array([way[name] for way in ways], dtype=float) for name in ways[0]}
    jobs = Jobs(**{name: np.asarray(value) for name, value in columns.items()})
    own = memory(replace(jobs, precision=np.array("bf16")), claim.training)
    passed = memory(replace(jobs, vocabulary=np.array(0.0)), claim.training)
    parts = {name: getattr(own, name) for name in STATES}
    parts["weights"] = parts["weights"] * _BYTES[claim.precision] / 2
    parts["activations"] = sum(getattr(passed, name) for name in ACTIVATIONS)
    parts[_PASS] = passed.backward
    total = sum(parts.values())
    best = int(total.max(axis=0).argmin())
    stage = int(total[:, best].argmax())
    sizes = {name: float(part[stage, best]) for name, part in parts.items() if part[stage, best]}
    states = (parts["weights"] + parts["gradients"]).max(axis=0).min()
    return Held(sizes, _named(ways[best], claim), float(states))


def _ways(claim: MemoryClaim) -> Iterator[dict[str, int]]:
    """Yield the sizes that the claim leaves open: layouts of its GPUs, and whether FSDP cuts all parameters."""
    sizes = divisors(claim.gpus)
    tps, pps, cps = ([claim.sizes[name]] if name in claim.sizes else sizes for name in (_TP, _PP, _CP))
    for tp, pp, cp in product(tps, pps, cps):
        dp, rest = divmod(claim.gpus, tp * pp * cp)
        if rest or not dp or pp > claim.shape.num_layers:
            continue
        for ep, again in product(divisors(gcd(cp * dp, claim.shape.num_experts or 1)), (0, 1)):
            for fsdp in _sharded(claim, tp * pp * ep):
                way = {_TP: tp, _PP: pp, _CP: cp, _EP: ep, _DP: dp, "expert_tensor_parallel_size": tp, "fsdp": fsdp}
                way |= {"global_batch_size": dp, "sequence_parallel": tp > 1}
                yield way | {"distributed_optimizer": 1, "recompute_layers": again}


def _sharded(claim: MemoryClaim, model_parallel: int) -> tuple[int, ...]:
    """Return with which of 0 and 1 for FSDP one copy of the weights is on as many GPUs as the claim says."""
    if claim.shared_by is None:
        return (0,) if claim.sizes else (0, 1)
    return tuple(fsdp for fsdp in (0, 1) if claim.shared_by == (claim.gpus if fsdp else model_parallel))


def _named(way: dict[str, int], claim: MemoryClaim) -> str:
    names = {"TP": _TP, "PP": _PP, "CP": _CP, "EP": _EP, "DP": _DP}
    sizes = [f"{short} {way[name]}" for short, name in names.items() if way[name] > 1]
    sizes += ["FSDP"] if way["fsdp"] and claim.gpus > 1 else []
    sizes += ["every layer recomputed"] if way["recompute_layers"] and claim.training else []
    return ", ".join(sizes)
