"""Train: process groups, the objects of a run, the loop over Megatron-Core's pipeline schedules, what is printed
(Megatron-LM's own lines, and marks of ours that begin with `[tprimat]`), and what is read: Megatron-Core's own
datasets over indexed corpora, which corpus.py has made or checked before, or its own mock data."""

from __future__ import annotations

import gc
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import megatron.core
import numpy as np
import torch
import torch.distributed as dist
from corpus_order import batch_of, fingerprint, members, stated
from engine_checkpoint import Built, resume, save
from engine_model import build_model, context_shard
from engine_optimizer import build_optimizer, build_scheduler
from engine_settings import EngineError, Settings, samples
from engine_stop import Stop
from megatron.core import parallel_state
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.utils import get_attr_wrapped_model, get_model_config
from numpy.typing import NDArray
from rank_program import machine_facts, mark, peak_memory, proc_value, say, torch_device
from tokenizer_facts import read as read_tokenizer
from tokenizer_files import MEGATRON_TYPES, kind_by_name
from tprimat_settings import megatron_schedule, read, stated_aux_loss, training

Reader = Callable[[int, int, int], NDArray[np.int64]]
"""TokenData.rank_batches, and valid_batches."""
Batch = tuple[torch.Tensor, torch.Tensor]
"""Tokens and labels, [micro-batch size, sequence length] each."""


def train(settings: Settings, stand_in: bool, checkpoints: Path) -> str | None:
    """Run the complete training in this rank; `stand_in` says whether torch.cuda is the CPU stand-in.
    Goes on from the newest checkpoint in the folder `checkpoints`, where there is one. Returns None after the last
    iteration, or, where the loss was not finite, what it was and when. Equal on all ranks.
    Raises EngineError: this machine has fewer accelerators than ranks, or none and a layout that needs them; or what is
    in `checkpoints` is of another run, or damaged."""
    _set_up_groups(settings)
    first = dist.get_rank() == 0
    if first:
        mark("facts", _facts(stand_in))
    built = _build(settings)
    if first:
        _print_arguments(effective_arguments(built))
        mark("facts", {"data_first_batch": built.data.first_batch()})
    if parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0:
        tp, pp = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank()
        count = sum(parameter.numel() for chunk in built.chunks for parameter in chunk.parameters())
        say(f" > number of parameters on (tensor, pipeline) model parallel rank ({tp}, {pp}): {count}")
    done = resume(built, checkpoints)
    gc.freeze()  # what is here now stays to the end; searched at exit as well, it would cost a second there
    gc.enable()
    reached, stopped = _loop(built, done, checkpoints)
    if first and reached == settings.train_iters and not stopped:
        say(f"[after training is done] datetime: {datetime.now().strftime('%Y-%m-%d %H:%M:%S')}")  # as Megatron-LM
    dist.barrier()  # torchrun ends all ranks as soon as one fails: all must have printed
    dist.destroy_process_group()
    return stopped


def _set_up_groups(s: Settings) -> None:
    gpu, device = torch.cuda.is_available(), torch_device()
    if device != s.device:  # or a CPU's figures would be kept as a GPU's
        here = f"torch {torch.__version__} has {device} here"
        raise EngineError(f"meant for {s.device}, and {here}; try a torch built for {s.device}")
    if gpu:
        ranks, devices = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
        if ranks > devices:
            raise EngineError(f"{ranks} ranks on a machine with {devices} visible GPUs; try --nproc-per-node {devices}")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    elif s.tensor_model_parallel_size > 1 and s.expert_model_parallel_size > 1:
        sizes = f"TP {s.tensor_model_parallel_size} x EP {s.expert_model_parallel_size}"
        raise EngineError(f"{sizes}: gloo cannot gather the experts' unequal numbers of tokens; try TP 1 or EP 1")
    dist.init_process_group("nccl" if gpu else "gloo")  # "nccl" is RCCL on ROCm
    set_up = parallel_state.initialize_model_parallel
    set_up(**s.options(set_up, "sizes", "ddp"), create_gloo_process_groups=False)
    # as megatron/training/initialize.py: pipeline stages hold different layers, so their dropout differs
    seed = s.seed + 100 * parallel_state.get_pipeline_model_parallel_rank()
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)


def _build(s: Settings) -> Built:
    chunks = build_model(s)
    optimizer = build_optimizer(s, chunks)
    config = get_model_config(chunks[0])  # all chunks share it
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    return Built(s, chunks, optimizer, build_scheduler(s, optimizer), TokenData(s))


def effective_arguments(built: Built) -> dict[str, Any]:
    """Return every argument under its Megatron name, read from the objects that were built. Read on rank 0, which has
    the first pipeline stage. What is taken from the settings is the request's: no object keeps it."""
    gpt, first = get_attr_wrapped_model(built.chunks[0], "decoder", return_model_obj=True), built.chunks[0]
    objects = training(gpt, first.ddp_config, built.optimizer.config, built.optimizer.param_groups)
    data_size = parallel_state.get_data_parallel_world_size()
    config, kept = built.data.dataset.config, ("train_iters", "eval_interval", "eval_iters", "save_interval")
    micro_batches, micro_batch_size, tokens = built.data.rank_batches(0, 0, data_size).shape
    return {
        **read(**objects, **megatron_schedule(built.scheduler)),
        **stated_aux_loss(gpt.config),
        "data": "mock" if config.mock else built.settings.data,
        "data_path": None if config.mock else stated(*config.blend),
        "split": config.split,
        "seed": config.random_seed,
        **_tokenizer(built.settings, config.tokenizer.eod),
        "seq_length": tokens - 1,  # a sample has one more, for the last label
        "micro_batch_size": micro_batch_size,
        "num_micro_batches": micro_batches,
        "global_batch_size": micro_batches * micro_batch_size * data_size,
        "params_dtype": gpt.embedding.word_embeddings.weight.dtype,  # as Megatron prints it
        "use_rope_scaling": gpt.rotary_scaling,
        "bf16": gpt.config.bf16,
        "device": torch_device(),
        **{name: getattr(built.settings, name) for name in ("rope_scaling_factor", *kept)},
    }


def _loop(built: Built, done: int, checkpoints: Path) -> tuple[int, str | None]:
    """Return how many iterations are done, and what was not finite, if anything."""
    s, logs, stop = built.settings, dist.get_rank() == dist.get_world_size() - 1, Stop()
    paused_s, last_end = 0.0, time.monotonic()
    for index in range(done, s.train_iters):
        step = _step(built, index)
        end = time.monotonic() - paused_s
        if logs:
            step |= {"iteration": index + 1, "elapsed_s": end - last_end, "end_monotonic_s": end}
            _print_step(step, s.train_iters, s.global_batch_size)
        last_end = end
        if not math.isfinite(step["loss"]):
            return index + 1, f"loss is {step['loss']} at iteration {index + 1} of {s.train_iters}"
        trained = time.monotonic()
        if s.eval_iters and (index + 1) % s.eval_interval == 0:
            loss = _validate(built, (index + 1) // s.eval_interval - 1)
            if logs:
                _print_validation(index + 1, loss)
        ends = index + 1 < s.train_iters and stop.is_wanted()
        if ends or (s.save_interval and (index + 1) % s.save_interval == 0):
            save(built, checkpoints, index + 1)
        paused_s += time.monotonic() - trained
        if ends:
            stop.done(index + 1)
            return index + 1, None
    return s.train_iters, None


def _step(built: Built, index: int) -> dict[str, Any]:
    """Take one step and return what it reports (_print_step), equal on all ranks."""
    lr_used = built.optimizer.param_groups[0]["lr"]
    built.optimizer.zero_grad()
    for chunk in built.chunks:
        chunk.zero_grad_buffer()
    reports = _passes(built, built.data.rank_batches, index, forward_only=False)
    updated, grad_norm, _ = built.optimizer.step()
    built.scheduler.step(1)
    return {
        "loss": _global_loss(_summed(reports)),
        "lr_used": lr_used,
        "lr_next": built.optimizer.param_groups[0]["lr"],
        "loss_scale": built.optimizer.get_loss_scale().item(),
        "grad_norm": None if grad_norm is None else float(grad_norm),
        "skipped": not updated,
    }


def _passes(built: Built, read: Reader, index: int, forward_only: bool) -> list[torch.Tensor]:
    """Take all micro-batches of global batch `index` through the model; return what the last stage reports of each."""
    reports: list[torch.Tensor] = get_forward_backward_func()(
        forward_step_func=_forward,
        data_iterator=[_batches(read, index) for _ in built.chunks],
        model=built.chunks,
        num_microbatches=built.settings.num_micro_batches,
        seq_length=built.settings.seq_length,
        micro_batch_size=built.settings.micro_batch_size,
        forward_only=forward_only,
    )
    return reports


def _validate(built: Built, number: int) -> float:
    """Return the loss over the samples of validation `number`, from 0, as `evaluate` in megatron/training/training.py:
    the mean over the tokens of its batches, which follow those of the validation before."""
    count, sums = built.settings.eval_iters, torch.zeros(2, device=torch.cuda.current_device())
    for chunk in built.chunks:
        if built.settings.overlap_param_gather:
            chunk.disable_forward_pre_hook()
        chunk.eval()
    with torch.no_grad():
        for index in range(number * count, (number + 1) * count):
            sums += _summed(_passes(built, built.data.valid_batches, index, forward_only=True))
    for chunk in built.chunks:
        chunk.train()
        if built.settings.overlap_param_gather:
            chunk.enable_forward_pre_hook()
    return _global_loss(sums)


def _batches(read: Reader, index: int) -> Iterator[Batch]:
    rank, size = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for batch in torch.from_numpy(read(index, rank, size)).to(device):
        yield batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def _forward(batches: Iterator[Batch], model: Any) -> tuple[torch.Tensor, Any]:
    """Be Megatron's forward_step_func: return the output, and the function that makes the last stage's loss of it."""
    tokens, labels = map(context_shard, next(batches))
    # RoPE needs no position ids, and causal SDPA no mask
    return model(tokens, None, None, labels=labels), _loss


def _loss(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the sum, the number of tokens, and both for the report, as loss_func in Megatron-LM's pretrain_gpt.py.
    With the number, schedules.py takes the mean of this rank's tokens, and DDP the mean over data and context parallel
    ranks; with a mean alone it would multiply by the context parallel size."""
    total = losses.float().sum()  # divided in place
    count = torch.tensor(losses.numel(), dtype=torch.int, device=losses.device)
    return total, count, torch.stack((total.detach(), count.to(total.dtype)))


def _summed(reports: list[torch.Tensor]) -> torch.Tensor:
    """Return the sum of losses and the number of tokens of a global batch, in the last stage; elsewhere zeros.
    reports: of its micro-batches."""
    if not parallel_state.is_pipeline_last_stage():
        return torch.zeros(2, device=torch.cuda.current_device())
    summed = torch.stack(reports).sum(dim=0)
    dist.all_reduce(summed, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
    return summed


def _global_loss(summed: torch.Tensor) -> float:
    """Return the mean loss, of the sums that the last stage has, on every rank."""
    loss = summed[0] / summed[1] if parallel_state.is_pipeline_last_stage() else summed[0]
    last = parallel_state.get_pipeline_model_parallel_last_rank()
    dist.broadcast(loss, last, group=parallel_state.get_pipeline_model_parallel_group())
    return float(loss.item())  # waits for the complete step on a GPU: the collectives above come after the optimizer


def _facts(stand_in: bool) -> dict[str, Any]:
    """Return what this process runs on; None: there is none here, or the system does not report it."""
    cpu = {
        "device_name": proc_value("cpuinfo", "model name"),
        "device_memory_bytes": _kilobytes(proc_value("meminfo", "MemTotal")),
    }
    return {
        **machine_facts(torch.cuda.is_available()),
        **({} if torch.cuda.is_available() else cpu),
        "megatron_core": megatron.core.__version__,
        "backend": dist.get_backend(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "cuda_stand_in": stand_in,
        "omp_num_threads": torch.get_num_threads(),
        # by which a reader of the log alone knows that no speed in it counts
        **({"stand_in": "torch.cuda"} if os.environ.get("TPRIMAT_REHEARSED") else {}),
    }


def _print_arguments(values: Mapping[str, Any]) -> None:
    """Print Megatron-LM's argument dump, as `_print_args` in megatron/training/arguments.py does."""
    lines = sorted((f"  {name} {'.' * (48 - len(name))} {value}" for name, value in values.items()), key=str.lower)
    head, tail = "-" * 24 + " arguments " + "-" * 24, "-" * 20 + " end of arguments " + "-" * 21
    say("\n".join((head, *lines, tail)))


def _print_step(step: Mapping[str, Any], train_iters: int, batch: int) -> None:
    """Print Megatron-LM's iteration line (`training_log` in megatron/training/training.py) and our own mark.

    step: iteration (from 1), lr_used, lr_next, loss (mean over the global batch), grad_norm or None, loss_scale,
    skipped, elapsed_s since the last step's end, and end_monotonic_s, whose clock stands still while a checkpoint is
    written. batch: the global batch size. Megatron's line has the rate after the step, so the next step's; ours has the
    rate that this step used."""
    iteration, loss, grad_norm = step["iteration"], step["loss"], step["grad_norm"]
    parts = (
        f" [{datetime.now().strftime('%Y-%m-%d %H:%M:%S.%f')}] iteration {iteration:8d}/{train_iters:8d}",
        f"consumed samples: {iteration * batch:12d}",
        f"elapsed time per iteration (ms): {step['elapsed_s'] * 1000:.1f}",
        f"learning rate: {step['lr_next']:.6E}",
        f"global batch size: {batch:5d}",
        f"lm loss: {loss:.6E}",
        f"loss scale: {step['loss_scale']:.1f}",
        *([f"grad norm: {grad_norm:.3f}"] if grad_norm is not None else []),
        f"number of skipped iterations: {int(step['skipped']):3d}",
        f"number of nan iterations: {int(not math.isfinite(loss)):3d} |",
    )
    say(" | ".join(parts))
    finite = math.isfinite(loss) and math.isfinite(grad_norm or 0.0)
    values = {name: step[name] for name in ("iteration", "lr_used", "loss", "grad_norm", "end_monotonic_s")}
    # not getrusage: ru_maxrss begins with the peak of the process that forked this one (torchrun)
    memory = peak_memory() or {"memory_bytes": _kilobytes(proc_value("self/status", "VmHWM")), "memory_kind": "rss"}
    mark("step", {**values, **memory, **({} if finite else {"nonfinite": True})})


def _print_validation(iteration: int, loss: float) -> None:
    """Print Megatron-LM's line (`evaluate_and_print_results` in megatron/training/training.py) and our own mark."""
    perplexity = math.exp(min(20, loss))
    say(f" validation loss at iteration {iteration} | lm loss value: {loss:.6E} | lm loss PPL: {perplexity:.6E} | ")
    mark("validation", {"iteration": iteration, "loss": loss})


def _kilobytes(text: str | None) -> int | None:
    return None if text is None else int(text.split()[0]) * 1024


class TokenData:
    """The samples of a run, in the order of Megatron's loader `single`, which every layout and every stack shares."""

    def __init__(self, settings: Settings) -> None:
        """Build the dataset; every rank must."""
        self.micro_batch_size, self.global_batch_size = settings.micro_batch_size, settings.global_batch_size
        self.dataset, self.validation = _datasets(settings)

    def rank_batches(self, step: int, data_rank: int, data_size: int) -> NDArray[np.int64]:
        """Return tokens [micro-batches, micro_batch_size, seq_length + 1] of one data parallel rank in step 0, 1, ...
        Micro-batch j of rank r has samples (j * data_size + r) * micro_batch_size onwards, so the samples of a step,
        and their split into micro-batches, are the same in every layout."""
        return self._batches(self.dataset, step, data_rank, data_size)

    def valid_batches(self, index: int, data_rank: int, data_size: int) -> NDArray[np.int64]:
        """Return the same of global batch `index` of all validations."""
        return self._batches(self.validation, index, data_rank, data_size)

    def _batches(self, dataset: Any, index: int, data_rank: int, data_size: int) -> NDArray[np.int64]:
        first = index * self.global_batch_size
        order = np.arange(first, first + self.global_batch_size).reshape(-1, data_size, self.micro_batch_size)
        return np.stack([batch_of(dataset, batch) for batch in order[:, data_rank].tolist()])

    def first_batch(self) -> str | None:
        """Return the fingerprint of the first global batch as this rank reads it; None of mock data, which no stack
        shares."""
        mock = self.dataset.config.mock
        return None if mock else fingerprint(batch_of(self.dataset, range(self.global_batch_size)))


def _tokenizer(s: Settings, eod: int) -> dict[str, Any]:
    """Return what the corpora's tokenizer is; the engine has none of its own, and reads its files."""
    if s.tokenizer_model is None:
        return {"tokenizer_model": None, "vocab_size": eod + 1}  # ids alone: all of them, and no tokenizer's word
    left_out = ("tokenizer_pad", "tokenizer_sha256")  # the latter is corpus.py's to say, for every stack
    read_back = read_tokenizer(s.tokenizer_model, s.vocab_size)
    facts = {name: value for name, value in read_back.items() if name not in left_out}
    kind = MEGATRON_TYPES[kind_by_name(s.tokenizer_model)]
    named = {"tokenizer_type": kind, "tokenizer_model": s.tokenizer_model}
    return {**named, "vocab_size": s.vocab_size, **facts, "tokenizer_eod": eod}


def _datasets(s: Settings) -> tuple[Any, Any]:
    """Return the datasets of training and of validation; None where the split has no such part."""
    for kind in (GPTDataset, BlendedDataset):
        logging.getLogger(kind.__module__).setLevel(logging.ERROR)  # it warns that there is no cache: see below
    corpora, eod = members(s.data_path) if s.data_path is not None else [], s.vocab_size - 1
    if s.tokenizer_model is not None:
        eod = read_tokenizer(s.tokenizer_model, s.vocab_size)["tokenizer_eod"]
    weights = [corpus.weight for corpus in corpora if corpus.weight is not None]
    config = GPTDatasetConfig(
        random_seed=s.seed,
        sequence_length=s.seq_length,
        blend=([corpus.prefix for corpus in corpora], weights or None) if corpora else None,
        split=s.split,
        # Empty, not None: every rank works the order out for itself, in milliseconds. A cache on disk is looked up by
        # the corpus' path, not its contents (gpt_dataset.py), and its ranks must share a file system.
        path_to_cache="",
        # what GPTDataset needs of one where the corpus is ids already
        tokenizer=SimpleNamespace(eod=eod, unique_identifiers={"class": "ids", "eod": eod}),
        **dict.fromkeys(
            ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask"), False
        ),
    )
    kind = GPTDataset if corpora else MockGPTDataset
    train, valid, _ = BlendedMegatronDatasetBuilder(kind, [*samples(s), 0], lambda: True, config).build()
    return train, valid
