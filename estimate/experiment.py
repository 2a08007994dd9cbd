"""An Experiment as a job: every field of Jobs, with what a vendor's recipe sets beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan, nan

from conf.errors import ConfigError, Problem, listed
from conf.resolve import Experiment
from conf.schema import IDENTICAL as IDENTICAL_METHOD
from conf.threads import useful_threads_of
from estimate.cells import Again, named, spellings
from estimate.host import columns_of_host
from estimate.jobs import (
    PEAK_OF,
    RECOMPUTED,
    Column,
    adam_bytes,
    columns_of_hardware,
    columns_of_shape,
    on_smaller_nodes,
    unknown_rates,
)
from estimate.switches import (
    IDENTICAL,
    UNKNOWN,
    again,
    kept_in_less,
    layers_by_number,
    of_torchtitan,
    recompute_modules,
    switches,
)
from metrics.shape import shape_of_model

SHARDED = ("use_megatron_fsdp", "use_torch_fsdp2", "fsdp")
"""Settings of recipes that switch on sharding of parameters and gradients: Bridge's, Primus', NeMo's."""


def columns_of(e: Experiment, timed: bool = True) -> dict[str, Column]:
    """Return the columns of Jobs of `e`; on a CPU those of this machine. ConfigError: unknown hardware, unless nothing
    of it is timed."""
    precision = precision_of(e)
    machine = columns_of_hardware(e.hardware, precision)
    if timed and e.hardware.name == "cpu":
        machine |= columns_of_host(e.gpus_per_node, useful_threads_of(e))
    elif timed and (problems := [*_unknown(e, machine, precision), *_in_tf32(e)]):
        raise ConfigError(*problems)
    if e.nodes > 1:
        machine = on_smaller_nodes(machine, e.gpus_per_node)
    redone, recipe = recomputed(e), e.recipe
    offloads = recipe is not None and bool(recipe.stated("cpu_offloading"))
    sharded = recipe is not None and any(recipe.stated(name) for name in SHARDED)
    stack = e.framework.backend or e.framework.name
    sharded = sharded or (stack in e.framework.fsdp and bool(e.training.use_distributed_optimizer))
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
        "optimizer_bytes": adam_bytes(e.precision.params_dtype == "float32"),
        "fp8_params": 0.0,
        **(kept_in_less(recipe) if recipe else {}),
        "distributed_optimizer": float(sharded or bool(e.training.use_distributed_optimizer)),
        "fsdp": float(sharded),
        "recompute_layers": redone.layers,
        **{f"again_{name}": float(name in redone.modules) for name in RECOMPUTED},
        "stops_early": float(named(stack, "recomputation_stops_early")),
        "offloaded_layers": (recipe.stated("cpu_offloading_num_layers") or 0) if recipe and offloads else 0,
        **unstated(e.method, stack, e.hardware.name),
        **(switches(recipe) if recipe else {}),
        "unfused_attention": float(e.training.attention == "unfused"),
        "overlapped_data": float(_overlaps(e, stack)),
        "stack": f"{stack}-{e.framework.release}" if e.framework.release and not e.framework.backend else stack,
    }


def unstated(method: str | None, stack: str, hardware: str) -> Mapping[str, float]:
    """Return the optional columns of Jobs of a stack where neither its recipe nor what ran states them."""
    if method != IDENTICAL_METHOD or not named(stack, "megatron_modules"):
        return UNKNOWN
    return IDENTICAL if hardware != "cpu" else {**UNKNOWN, "fp32_logits": IDENTICAL["fp32_logits"]}


def _overlaps(e: Experiment, stack: str) -> bool:
    """Return whether the exchange between replicas overlaps other work: the presets of all vendors' recipes have it so
    where a recipe is silent, and torch's own data parallelism always."""
    requested = (
        e.training.overlap_grad_reduce if e.recipe is None else e.recipe.stated("overlap_grad_reduce") is not False
    )
    return bool(requested) or bool(named(stack, "always_overlapped"))


def precision_of(e: Experiment) -> str:
    """Return the precision of the matrix products, as in Jobs."""
    if e.precision.fp8:
        return "mxfp8" if e.precision.fp8_recipe == "mxfp8" else "fp8"
    return "bf16" if e.precision.params_dtype == "bfloat16" else "fp32"


def recomputed(e: Experiment) -> Again:
    """Return what is recomputed."""
    if by_number := layers_by_number(e.recipe):
        return Again(by_number / e.model.num_layers)
    if selective := of_torchtitan(e.recipe):
        return selective
    training, sizes = e.training, e.sizes()
    how = (training.recompute_granularity, training.recompute_method, training.recompute_num_layers)
    return again(how, recompute_modules(e.recipe), sizes.pp * sizes.vp, e.model.num_layers)


def _fp32_gradients(e: Experiment) -> bool:
    return e.precision.accumulate_allreduce_grads_in_fp32 or e.precision.params_dtype == "float32"


def _layout(e: Experiment) -> dict[str, Column]:
    names = ("tensor_model", "pipeline_model", "virtual_pipeline_model", "context", "expert_model", "data")
    sizes: dict[str, Column] = {f"{n}_parallel_size": getattr(e.layout, f"{n}_parallel_size") or 1 for n in names}
    sizes["embedding_counts"] = e.sizes().first if e.recipe is None else nan  # a recipe may have a layout of its own
    sizes["data_parallel_replicas"] = e.layout.data_parallel_replicas if e.layout.data_parallel_shards > 1 else 1
    split = {"expert_tensor_parallel_size": e.sizes().expert_tp, "sequence_parallel": float(e.layout.sequence_parallel)}
    return {**sizes, **split}


def _in_tf32(e: Experiment) -> Iterator[Problem]:
    """Yield that fp32 is not what it is called: TransformerEngine multiplies it in TF32 on NVIDIA's GPUs
    (transformer_engine/common/gemm/cublaslt_gemm.cu, CUBLAS_COMPUTE_32F_FAST_TF32)."""
    known = spellings()["tf32_for_fp32"]
    is_so = e.hardware.vendor == known["vendor"] and e.framework.name in known["frameworks"]
    if is_so and precision_of(e) == "fp32":
        what = "TransformerEngine multiplies fp32 in TF32, of which no run is known that anybody measured"
        yield Problem("precision", what, e.precision.name, "bf16, fp8, mxfp8", "precision=bf16, or framework=megatron")


def _unknown(e: Experiment, machine: dict[str, Column], precision: str) -> Iterator[Problem]:
    """Yield what an estimate needs of the hardware and conf/hardware does not have."""
    if isnan(float(machine["peak_flops"])):
        known = listed(sorted(e.hardware.peak_dense_tflops)) or "none"
        what = f"no peak of {PEAK_OF[precision]} is known of {e.hardware.name}, without which nothing is estimated"
        yield Problem("hardware", what, precision, known, "hardware=h100 or another of `tprimat gpus`")
    if (missing := unknown_rates(machine)) and not isnan(float(machine["peak_flops"])):
        file = f"conf/hardware/{e.hardware.name}.yaml"
        yield Problem("hardware", f"{listed(missing)} of {e.hardware.name} are not known", hint=f"add them to {file}")
