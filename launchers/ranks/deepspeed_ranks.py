"""Pre-train a dense Llama or Qwen of transformers with DeepSpeed's ZeRO, and its tensor parallelism (AutoTP): one
process is one rank.

python -m torch.distributed.run --standalone --nproc-per-node N deepspeed_ranks.py --settings FILE.json"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import deepspeed
import hf_model
import plain_ranks
import torch
import torch.distributed as dist
from deepspeed.utils import groups, safe_get_full_fp32_param, safe_get_full_grad
from deepspeed.utils.logging import set_log_level_from_string
from numpy.typing import NDArray
from plain_ranks import Reporter, Settings, adam, global_batches, micro_batches, schedule_of
from plain_readings import Readings, Source, decays_of, held


def config(s: Settings) -> dict[str, Any]:
    """Return DeepSpeed's configuration, none of which is left to a default that decides a comparison."""
    kept = "fp32" if s.accumulate_allreduce_grads_in_fp32 or s.params_dtype == "float32" else "bf16"
    made: dict[str, Any] = {
        "data_types": {"grad_accum_dtype": kept},
        "communication_data_type": kept,
        "zero_optimization": {"stage": int(s.use_distributed_optimizer)},
        "zero_allow_untested_optimizer": True,  # torch's AdamW, as of the other stacks
        "steps_per_print": 1,
    }
    for path, value in s.arguments.items():
        *outer, last = path.split(".")
        part = made
        for name in outer:
            part = part.setdefault(name, {})
        part[last] = value
    if s.tensor_model_parallel_size == 1:
        del made["tensor_parallel"]  # with it, it looks for what it could cut
    return made


def train(s: Settings) -> str | None:
    """Run the complete training in this rank; see plain_ranks.main."""
    plain_ranks.check_machine(s)
    set_log_level_from_string("info")  # it is silent by default
    if s.device == "cpu":
        # it would compile a kernel for it, a minute at the first start, and a start that is killed then leaves a lock
        # for which every later one waits for ever
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    batches = global_batches(s)
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")  # "nccl" is RCCL on ROCm
    plain_ranks.print_facts(s.seed, framework_version=deepspeed.__version__)
    model = hf_model.build(s)
    if s.recompute_granularity == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    readings = Readings()
    readings.watch(model, s.seq_length, s.num_layers)
    optimizer = adam(model.parameters(), s)
    decays = decays_of(optimizer)  # of the model's parameters: ZeRO steps copies
    whole, built = {id(p): p.shape for p in model.parameters()}, hf_model.read_back(model)
    engine = wrapped(model, optimizer, s)
    reporter, rank, tp = Reporter(s), dist.get_rank(), s.tensor_model_parallel_size
    for index, batch in enumerate(batches):
        if index == 0:
            built |= trained(engine, s)
            reporter.built(
                plain_ranks.effective(s, optimizer, lambda path: argument(engine, path), batch, **built), batch
            )
            objects = {"DeepSpeedConfig": engine._config, "ModelConfig": model.config}
            cut = partial(cut_over_ranks, whole, tp)
            source = Source(engine.module, partial(plain_ranks.together, s, hf_model.NAMES), partial(full, cut), cut)
            readings.begin(source, objects, decays, tensor=rank % tp, data=rank // tp)
        lr_used = optimizer.param_groups[0]["lr"]
        loss = step(engine, micro_batches(batch, s, rank // tp, dist.get_world_size() // tp), readings)
        norm = engine.get_global_grad_norm()  # of stage 0 in fp32 it is not known
        reporter.step(index, loss, None if norm is None else float(norm), lr_used)
        if reporter.stopped:
            break
    readings.finish(reporter.effective)
    return reporter.stopped


def wrapped(model: Any, optimizer: Any, s: Settings) -> Any:
    """Return DeepSpeed's engine around a model and its optimizer."""
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config=config(s),
        lr_scheduler=lambda optimizer: schedule_of(optimizer, s),
        mpu=split(s),
    )
    return engine


def step(engine: Any, parts: NDArray[Any], readings: Readings) -> float:
    """Take one step over this rank's micro-batches [micro-batches, samples, sequence + 1], and return the mean loss of
    the global batch."""
    loss = torch.zeros((), device=engine.device)
    for part in torch.from_numpy(parts).to(engine.device).long():
        tokens, labels = part[:, :-1], part[:, 1:].contiguous()
        share = engine(input_ids=tokens, labels=labels, shift_labels=labels).loss
        engine.backward(share)
        if engine.is_gradient_accumulation_boundary():
            whole = engine.zero_optimization_stage() == 0 and engine.dp_world_size == dist.get_world_size()
            readings.gradients(engine.module.parameters() if whole else (), whole)
        engine.step()
        loss += share.detach().float() / len(parts)
    dist.all_reduce(loss)
    return float(loss.item() / dist.get_world_size())


def split(s: Settings) -> Any:
    """Return the groups of ranks by which DeepSpeed counts a batch; None: all of them read their own. By itself it
    counts one for each tensor parallel rank."""
    if s.tensor_model_parallel_size == 1:
        return None
    groups._init_tp_mesh_device(tensor_model_parallel_size=s.tensor_model_parallel_size)
    return groups


def full(cut: Callable[[torch.Tensor], tuple[int, int]], parameter: torch.Tensor, what: str) -> torch.Tensor | None:
    """Return the complete weight or gradient of a parameter, of which ZeRO keeps parts in fp32, and tensor parallel
    ranks have parts of it. cut: as plain_readings.tensor_cut."""
    zero = (safe_get_full_fp32_param if what == "weight" else safe_get_full_grad)(parameter)
    of = held(parameter, what) if zero is None else zero.detach()  # without ZeRO it keeps nothing
    dim, size = cut(parameter)
    if of is None or size == 1:
        return of
    parts = [torch.empty_like(of) for _ in range(size)]
    dist.all_gather(parts, of.contiguous(), group=groups.get_tensor_model_parallel_group())
    return torch.cat(parts, dim)


def cut_over_ranks(whole: Mapping[int, torch.Size], size: int, parameter: torch.Tensor) -> tuple[int, int]:
    """Return along which dimension a parameter is cut over how many tensor parallel ranks. whole: its shape before
    DeepSpeed cut it, by id, where it is not in parts of ZeRO's."""
    before, now = whole[id(parameter)], getattr(parameter, "ds_shape", parameter.shape)
    return next(((dim, size) for dim, (a, b) in enumerate(zip(before, now, strict=True)) if a != b), (0, 1))


def argument(engine: Any, path: str) -> Any:
    """Return what DeepSpeed's configuration has at a dotted path, after it has checked and completed it."""
    value = {
        "train_batch_size": engine.train_batch_size,
        "train_micro_batch_size_per_gpu": engine.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": engine.gradient_accumulation_steps,
        "gradient_clipping": engine.gradient_clipping,
        "zero_optimization.overlap_comm": engine.zero_overlap_comm,
        "tensor_parallel.autotp_size": engine.autotp_size,
    }
    return value[path]()


def trained(engine: Any, s: Settings) -> dict[str, Any]:
    """Return how an engine trains, by canonical name."""
    stage, recompute = engine.zero_optimization_stage(), engine.module.is_gradient_checkpointing
    return {
        "params_dtype": next(engine.module.parameters()).dtype,
        "tensor_model_parallel_size": dist.get_world_size() // engine.dp_world_size,
        "data_parallel_size": engine.dp_world_size,
        "num_micro_batches": engine.gradient_accumulation_steps(),
        "accumulate_allreduce_grads_in_fp32": engine.get_data_types()[1] == torch.float32,
        "use_distributed_optimizer": stage > 0,
        "data_parallel_shards": engine.dp_world_size if stage else 1,
        "data_parallel_replicas": 1 if stage else engine.dp_world_size,
        "overlap_grad_reduce": stage > 0 and bool(engine.zero_overlap_comm()),
        "overlap_param_gather": stage == 3,
        "recompute_granularity": "full" if recompute else None,
        "recompute_method": "uniform" if recompute else None,
        "recompute_num_layers": 1 if recompute else None,
    }


if __name__ == "__main__":
    sys.exit(plain_ranks.main(train))
