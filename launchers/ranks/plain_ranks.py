"""Share among the stacks that are not built on Megatron-Core (fsdp2, hf, deepspeed): the settings file, the samples in
Megatron's order, first weights by Megatron's names, the one schedule, and the lines that we print.

Each stack's own program builds its model and its optimizer, steps, and reads back what it has built."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from corpus_order import Reading, batches, fingerprint
from numpy.typing import NDArray
from rank_program import (
    Refused,
    die_with_parent,
    is_first_rank,
    machine_facts,
    mark,
    missing,
    peak_memory,
    read_mapping,
    stop,
    torch_device,
)

sys.path.append(str(Path(__file__).with_name("rehearsal")))
import torch
import torch.distributed as dist
from tprimat_parameters import full_matrix, standard_deviation
from tprimat_settings import TABLE, first_group, read

OF_THE_REQUEST = (
    "vocab_size",
    "init_method_std",
    "micro_batch_size",
    "train_iters",
    "seed",
    "data",
    "data_path",
    "split",
    "eval_interval",
    "eval_iters",
    "tokenizer_model",
)
"""No object of these stacks keeps them."""


class Settings(SimpleNamespace):
    """One run: every requested setting by canonical name, and beside them the device that it is for, `arguments` under
    the stack's own names, `names`, which settings those are, and `always`, what the program does whatever is
    requested."""

    def group(self) -> dict[str, Any]:
        """Return the arguments of torch's AdamW: what is read back off its parameter groups (the column `built` of
        conf/vocabulary.yaml)."""
        made: dict[str, Any] = {}
        for name in TABLE["requested"]:
            for place in TABLE["built"].get(name, ()):
                owner, *path = place.split(".")
                if owner == "group":
                    made[path[0]] = (*made.get(path[0], ()), getattr(self, name)) if path[1:] else getattr(self, name)
        return made


def main(train: Callable[[Settings], str | None]) -> int:
    """Run the program of a rank and return its exit code: 0 the training ran to its end, 2 the settings, the data or
    this machine were refused, 3 the loss was not finite. train: returns what the loss was where it was not finite."""
    die_with_parent()
    parser = argparse.ArgumentParser(description="one rank of a training; start it with torchrun")
    parser.add_argument("--settings", required=True, metavar="FILE.json")
    try:
        stopped = train(read_settings(parser.parse_args().settings))
    except Refused as refused:
        return stop(2, "engine: the settings, the data or this machine were refused", refused.problems)
    if stopped:
        return stop(3, f"engine: {stopped}; try a smaller lr or a longer warm-up")
    dist.barrier()  # torchrun ends all ranks as soon as one has ended: all must have printed
    dist.destroy_process_group()
    return 0


def read_settings(path: str) -> Settings:
    """Return the settings in the JSON file at `path`. Raises Refused: it cannot be read, or lacks settings."""
    values = read_mapping(path, json.loads)
    problems = [*missing({*TABLE["requested"], "device", "arguments", "names", "always"}, values)]
    if problems:
        raise Refused(*(problem._replace(where=f"{path}: {problem.where}") for problem in problems))
    return Settings(**values)


def check_machine(s: Settings) -> None:
    """Raise Refused where torch has another kind of device than the settings are for, or too few of it."""
    here = torch_device()
    gpu = here != "cpu"
    if here != s.device:
        raise Refused.of(
            "device", "torch has another one here", here, s.device, f"a torch that is built for {s.device}"
        )
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if gpu and ranks > torch.cuda.device_count():
        raise Refused.of("device", f"{ranks} ranks need as many", f"{torch.cuda.device_count()} visible GPUs")
    if os.environ.get("WORLD_SIZE", "1") != str(s.world_size):
        found = os.environ.get("WORLD_SIZE", "1")
        raise Refused.of(
            "world_size", "is not the number of processes", found, str(s.world_size), "start with torchrun"
        )
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def print_facts(seed: int, **versions: str) -> None:
    """Print once what this process runs on, after the process group has begun. seed: of the first weights, which are
    always those of every stack here. versions: of the stack's packages."""
    if dist.get_rank() == 0:
        facts = {"backend": dist.get_backend(), "omp_num_threads": torch.get_num_threads(), **versions}
        # by which a reader of the log alone knows that no speed in it counts
        rehearsed = {"stand_in": "gloo"} if os.environ.get("TPRIMAT_REHEARSED") else {}
        mark("facts", {**machine_facts(torch.cuda.is_available()), **facts, "equal_init": seed, **rehearsed})


def global_batches(s: Settings) -> Iterator[NDArray[np.int32]]:
    """Return the token ids [global_batch_size, seq_length + 1] of each step, as every stack sees them. Raises Refused:
    the corpus is missing, damaged or too small."""
    reading = Reading(s.seq_length, s.global_batch_size, s.train_iters * s.global_batch_size, s.seed, s.split)
    return batches(s.data_path, reading)


def micro_batches(batch: NDArray[np.int32], s: Settings, rank: int, world: int) -> NDArray[np.int32]:
    """Return those of one data parallel rank: [micro-batches, micro_batch_size, seq_length + 1]."""
    return batch.reshape(-1, world, s.micro_batch_size, batch.shape[1])[:, rank]


def rate(s: Settings, step: int) -> float:
    """Return the learning rate of step 0, 1, …: a warm-up of W steps at lr (s + 1) / (W + 1), then a cosine from lr to
    min_lr at step lr_decay_iters."""
    warmup, decay = s.lr_warmup_iters, s.lr_decay_iters
    if step < warmup:
        return float(s.lr * (step + 1) / (warmup + 1))
    share = min(1.0, (step - warmup) / (decay - warmup))
    return float(s.min_lr + (s.lr - s.min_lr) * 0.5 * (1 + math.cos(math.pi * share)))


def schedule_of(optimizer: torch.optim.Optimizer, s: Settings) -> torch.optim.lr_scheduler.LRScheduler:
    """Return torch's scheduler of `rate`: call its step() after each step of the optimizer."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(s, step) / s.lr)


def decayed(parameters: Iterable[torch.nn.Parameter]) -> list[dict[str, Any]]:
    """Return the groups of an optimizer over `parameters`: matrices decay, norms and biases do not."""
    known = list(parameters)
    return [
        {"params": [p for p in known if p.dim() > 1]},
        {"params": [p for p in known if p.dim() < 2], "weight_decay": 0.0},
    ]


def adam(parameters: Iterable[torch.nn.Parameter], s: Settings) -> torch.optim.AdamW:
    """Return torch's AdamW over `parameters`."""
    return torch.optim.AdamW(decayed(parameters), lr=s.lr, fused=torch.cuda.is_available() or None, **s.group())


def matrices(s: Settings) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the first value of each matrix of the complete model, float32, by Megatron's name: what every stack begins
    with. Those of bf16 are rounded to it, as Megatron's fp32 main weights are copies of its bf16 ones."""
    hidden, ffn, width = s.hidden_size, s.ffn_hidden_size, s.kv_channels
    shapes = {"embedding.word_embeddings.weight": (s.padded_vocab_size, hidden)}
    if s.untie_embeddings_and_output_weights:
        shapes["output_layer.weight"] = (s.padded_vocab_size, hidden)
    for layer in (f"decoder.layers.{number}" for number in range(s.num_layers)):
        rows = (s.num_attention_heads + 2 * s.num_query_groups) * width
        shapes[f"{layer}.self_attention.linear_qkv.weight"] = (rows, hidden)
        shapes[f"{layer}.self_attention.linear_proj.weight"] = (hidden, s.num_attention_heads * width)
        shapes[f"{layer}.mlp.linear_fc1.weight"] = (2 * ffn, hidden)
        shapes[f"{layer}.mlp.linear_fc2.weight"] = (hidden, ffn)
    dtype = getattr(torch, s.params_dtype)
    for name, shape in shapes.items():
        values = full_matrix(name, shape, standard_deviation(name, s), s.seed)
        yield name, torch.from_numpy(values).to(dtype).float().numpy()


def apart(s: Settings, names: Mapping[str, str]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield `matrices` as a stack has them that keeps queries, keys and values apart, and gate and up. names: its own,
    without .weight, of embedding, output, layer, and in a layer of q, k, v, proj, gate, up and down."""
    groups, per, width = s.num_query_groups, s.num_attention_heads // s.num_query_groups, s.kv_channels
    for name, values in matrices(s):
        if not name.startswith("decoder."):
            yield f"{names[name.partition('_layer')[0].partition('.')[0]]}.weight", values
            continue
        _, _, number, _, kind, _ = name.split(".")
        if kind == "linear_qkv":
            parts = values.reshape(groups, per + 2, width, -1)
            cut = {"q": parts[:, :per], "k": parts[:, per], "v": parts[:, per + 1]}
        elif kind == "linear_fc1":
            cut = dict(zip(("gate", "up"), np.split(values, 2), strict=True))
        else:
            cut = {{"linear_proj": "proj", "linear_fc2": "down"}[kind]: values}
        for part, rows in cut.items():
            yield f"{names['layer']}.{number}.{names[part]}.weight", rows.reshape(-1, values.shape[1])


def together(
    s: Settings, names: Mapping[str, str], tensors: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield complete tensors by Megatron's names: the reverse of `apart`, of weights and of what belongs to them.
    tensors: by the stack's own names. names: also of the norms: input_norm, mlp_norm, q_norm and k_norm in a layer, and
    final_norm."""
    heads, groups, width = s.num_attention_heads, s.num_query_groups, s.kv_channels
    whole = {
        "embedding": "embedding.word_embeddings",
        "output": "output_layer",
        "final_norm": "decoder.final_layernorm",
    }
    inner = {
        "input_norm": "input_layernorm",
        "proj": "self_attention.linear_proj",
        "q_norm": "self_attention.q_layernorm",
        "k_norm": "self_attention.k_layernorm",
        "mlp_norm": "pre_mlp_layernorm",
        "down": "mlp.linear_fc2",
    }
    pairs = [(names[part], name) for part, name in whole.items() if part in names]
    for number in range(s.num_layers):
        layer = f"{names['layer']}.{number}"
        pairs += [(f"{layer}.{names[p]}", f"decoder.layers.{number}.{name}") for p, name in inner.items() if p in names]
        for end in ("weight", "bias"):
            q, k, v = (tensors.get(f"{layer}.{names[part]}.{end}") for part in ("q", "k", "v"))
            if q is not None and k is not None and v is not None:
                rows = [part.reshape(groups, -1, *part.shape[1:]) for part in (q, k, v)]
                mixed = torch.cat(rows, 1).reshape((heads + 2 * groups) * width, *q.shape[1:])
                yield f"decoder.layers.{number}.self_attention.linear_qkv.{end}", mixed
        halves = [tensors.get(f"{layer}.{names[part]}.weight") for part in ("gate", "up")]
        if None not in halves:
            yield f"decoder.layers.{number}.mlp.linear_fc1.weight", torch.cat([h for h in halves if h is not None])
    for own, name in pairs:
        if (tensor := tensors.get(f"{own}.weight")) is not None:
            yield f"{name}.weight", tensor


class Reporter:
    """Print, on the first rank, what was built and each step; keep whether the loss stayed finite."""

    def __init__(self, s: Settings) -> None:
        self.settings, self.first = s, is_first_rank()
        self.stopped: str | None = None
        self.effective: dict[str, Any] = {}

    def built(self, effective: dict[str, Any], batch: NDArray[np.int32]) -> None:
        """Print the settings that were read back, and the fingerprint of the first global batch."""
        self.effective = effective
        if self.first:
            mark("effective", effective)
            mark("facts", {"data_first_batch": fingerprint(batch)})

    def step(self, index: int, loss: float, grad_norm: float | None, lr_used: float) -> None:
        """Print one step, from 0. loss: nats/token, of the global batch, equal on all ranks. grad_norm: before
        clipping. lr_used: by this step."""
        finite = math.isfinite(loss) and math.isfinite(grad_norm or 0.0)
        if self.first:
            values = {"iteration": index + 1, "lr_used": lr_used, "loss": loss, "grad_norm": grad_norm}
            ended = {"end_monotonic_s": time.monotonic(), **peak_memory(), **({} if finite else {"nonfinite": True})}
            mark("step", {**values, **ended})
        if not math.isfinite(loss):
            self.stopped = f"loss is {loss} at iteration {index + 1} of {self.settings.train_iters}"


def effective(
    s: Settings, optimizer: Any, argument: Callable[[str], Any], batch: NDArray[np.int32], **built: Any
) -> dict[str, Any]:
    """Return every setting by canonical name. argument: returns what the stack has under a name of its own. built: what
    its program has read off its objects. Optimizer, schedule and batches are read here; what is left is always so
    with these stacks, or of the request, which alone keeps it."""
    rates = SimpleNamespace(
        max_lr=optimizer.param_groups[0]["initial_lr"],  # the schedule's; an optimizer's default may be another
        min_lr=rate(s, s.lr_decay_iters),
        lr_warmup_steps=s.lr_warmup_iters,
        init_lr=rate(s, 0),
        lr_decay_steps=s.lr_decay_iters,
        lr_decay_style="cosine",
    )
    world = dist.get_world_size()
    return {
        **s.always,
        **{name: getattr(s, name) for name in OF_THE_REQUEST},
        **read(schedule=rates, distributed=dist, **first_group(optimizer.param_groups)),
        **{name: argument(path) for path, name in s.names.items()},
        "data_parallel_size": world,
        "seq_length": batch.shape[1] - 1,
        "global_batch_size": batch.shape[0],
        "num_micro_batches": batch.shape[0] // (s.micro_batch_size * world),
        **built,
    }
