"""An Experiment as a job: every field of Jobs, with what a vendor's recipe sets beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan

from conf.errors import ConfigError, Problem, listed
from conf.recipes import Recipe
from conf.resolve import Experiment
from estimate.cells import Again, network_bandwidth, word
from estimate.jobs import PEAK_OF, RECOMPUTED, Jobs, adam_bytes, columns_of_hardware, columns_of_shape
from estimate.rows import Column, jobs_of
from metrics.shape import shape_of_model

_SHARDED = ("use_megatron_fsdp", "use_torch_fsdp2", "fsdp")
"""Settings of recipes that switch on sharding of parameters and gradients: Bridge's, Primus', NeMo's."""

_FP8_PARAMS = ("fp8_param", "fp8_param_gather", "fp8_params")
"""Settings of recipes by which weights rest in fp8, in Bridge, Primus and NeMo."""
_BYTES = {"float32": 4, "fp32": 4, "bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "uint8": 1, "fp8": 1}


def jobs_of_experiments(*experiments: Experiment) -> Jobs:
    """Return a job for each. ConfigError: hardware of which too little is known."""
    return jobs_of([columns_of(e) for e in experiments])


def columns_of(e: Experiment) -> dict[str, Column]:
    """Return the columns of Jobs of `e`; on a CPU those of the machine are nan. ConfigError: unknown hardware."""
    precision = precision_of(e)
    machine = columns_of_hardware(e.hardware, precision)
    if e.hardware.vendor is not None and (problems := [*_unknown(e, machine, precision)]):
        raise ConfigError(*problems)
    machine.setdefault("nic_bandwidth", network_bandwidth("", e.hardware, e.gpus_per_node)[0])
    if e.nodes > 1 and machine["gpus_per_domain"] == machine["gpus_per_node"]:
        machine["gpus_per_domain"] = min(e.gpus_per_node, float(machine["gpus_per_domain"]))
    again, recipe = recomputed(e), e.recipe
    offloads = recipe is not None and bool(recipe.stated("cpu_offloading"))
    sharded = recipe is not None and any(recipe.stated(name) for name in _SHARDED)
    return {
        **columns_of_shape(shape_of_model(e.model)),
        **machine,
        **_layout(e),
        "gpus_per_node": e.gpus_per_node,
        "seq_length": e.training.seq_length,
        "micro_batch_size": e.training.micro_batch_size or 1,
        "global_batch_size": e.training.global_batch_size,
        "trained": "pretraining",
        "precision": precision,
        "gradient_bytes": 4 if _fp32_gradients(e) else 2,
        "optimizer_bytes": _optimizer_bytes(e),
        "fp8_params": float(recipe is not None and any(recipe.stated(name) for name in _FP8_PARAMS)),
        "distributed_optimizer": float(sharded or bool(e.training.use_distributed_optimizer)),
        "fsdp": float(sharded),
        "recompute_layers": again.layers,
        **{f"again_{name}": float(name in again.modules) for name in RECOMPUTED},
        "offloaded_layers": (recipe.stated("cpu_offloading_num_layers") or 0) if recipe and offloads else 0,
        "stack": f"{e.framework.name}-{e.framework.release}" if e.framework.release else e.framework.name,
    }


def precision_of(e: Experiment) -> str:
    """Return the precision of the matrix products, as in Jobs."""
    if e.precision.fp8:
        return "mxfp8" if e.precision.fp8_recipe == "mxfp8" else "fp8"
    return "bf16" if e.precision.params_dtype == "bfloat16" else "fp32"


def recomputed(e: Experiment) -> Again:
    """Return what is recomputed. `block` does the first recompute_num_layers of each chunk of each stage again
    (Megatron-LM@d98e8a6 megatron/core/recompute.py:170-180), `uniform` all layers."""
    training, sizes = e.training, e.sizes()
    if training.recompute_granularity == "full":
        if training.recompute_method == "uniform":
            return Again(1.0)
        return Again(min(1.0, (training.recompute_num_layers or 1) * sizes.pp * sizes.vp / e.model.num_layers))
    if training.recompute_granularity != "selective":
        return Again()
    named = _modules(e.recipe) or ["core_attn"]
    return Again(modules=frozenset(word("recompute_modules", name) for name in named))


def _modules(recipe: Recipe | None) -> list[str]:
    """Return the modules that a recipe recomputes; those that Jobs do not tell apart (shared experts) are left out."""
    named = (recipe.stated("recompute_modules") if recipe else None) or []
    return [name for name in named if name in RECOMPUTED]


def _optimizer_bytes(e: Experiment) -> float:
    """Return the bytes a parameter of what the optimizer keeps: a recipe may keep it in less than fp32 (Megatron-Core,
    use_precision_aware_optimizer)."""
    if e.recipe is None or not e.recipe.stated("use_precision_aware_optimizer"):
        return adam_bytes(e.precision.params_dtype == "float32")
    kept = [e.recipe.stated(f"{name}_dtype") for name in ("main_params", "exp_avg", "exp_avg_sq")]
    return float(sum(_BYTES[str(kind["dtype"] if isinstance(kind, Mapping) else kind or "float32")] for kind in kept))


def _fp32_gradients(e: Experiment) -> bool:
    return e.precision.accumulate_allreduce_grads_in_fp32 or e.precision.params_dtype == "float32"


def _layout(e: Experiment) -> dict[str, Column]:
    names = ("tensor_model", "pipeline_model", "virtual_pipeline_model", "context", "expert_model", "data")
    sizes: dict[str, Column] = {f"{n}_parallel_size": getattr(e.layout, f"{n}_parallel_size") or 1 for n in names}
    split = {"expert_tensor_parallel_size": e.sizes().expert_tp, "sequence_parallel": float(e.layout.sequence_parallel)}
    return {**sizes, **split}


def _unknown(e: Experiment, machine: dict[str, Column], precision: str) -> Iterator[Problem]:
    """Yield what an estimate needs of the hardware and conf/hardware does not have."""
    if isnan(float(machine["peak_flops"])):
        known = listed(sorted(e.hardware.peak_dense_tflops)) or "none"
        what = f"no peak of {PEAK_OF[precision]} is known of {e.hardware.name}, without which nothing is estimated"
        yield Problem("hardware", what, precision, known, "hardware=h100 or another of `tprimat gpus`")
    names = ("memory_bytes", "memory_bandwidth", "link_bandwidth", "gpus_per_domain")
    missing = [name for name in names if isnan(float(machine[name]))]
    if missing and not isnan(float(machine["peak_flops"])):
        file = f"conf/hardware/{e.hardware.name}.yaml"
        yield Problem("hardware", f"{listed(missing)} of {e.hardware.name} are not known", hint=f"add them to {file}")
