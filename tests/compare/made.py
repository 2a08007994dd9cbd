"""Records made by hand for these tests, with numbers that are easy to follow, and some as large as real ones."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import compare
from conf import load_experiment
from conf.resolve import Experiment
from conf.vocabulary import requested, vocabulary
from metrics.bill import Terms
from parsers import Power, Reading, Record, Step, differences, write
from parsers.read_back import Batch, Object, Optimizer, Process, ReadBack, Tensor

SCHEMA = json.loads(Path(compare.__file__).with_name("compare.schema.json").read_text(encoding="utf-8"))

SETTINGS: Mapping[str, Any] = {
    **dict.fromkeys(vocabulary(), 1),
    **dict(seq_length=100, global_batch_size=8, world_size=2, data_parallel_size=2, train_iters=12, lr=0.003),
    **dict(seed=1, params_dtype="float32", fp8=None, fp8_recipe=None, recompute_granularity=None),
    **dict(fp4=None, fp4_recipe=None),
    **dict(attention_backend="sdpa", layout="explicit"),
}
TP2 = {"tensor_model_parallel_size": 2, "data_parallel_size": 1, "num_micro_batches": 2}


def made(name: str, seconds: float = 2.0, over: Mapping[str, Any] | None = None, **known: Any) -> Record:
    """Return a completed run of 12 steps of `seconds` each; over: settings that stand over SETTINGS."""
    settings = {**SETTINGS, **(over or {})}
    steps = tuple(
        Step(
            step=i,
            line=i + 1,
            iteration=i + 1,
            loss=6.0 - 0.1 * i,
            step_time_s=seconds,
            consumed_samples=8 * (i + 1),
            end_monotonic_s=100 + seconds * i,
            memory_bytes=2_000_000_000,
            memory_kind="rss",
        )
        for i in range(12)
    )
    record = Record(
        id=name,
        name=name,
        provenance="measured",
        status="completed",
        framework="megatron",
        platform="cpu",
        hardware="cpu",
        requested=settings,
        effective={key: Reading(value, 3) for key, value in settings.items() if key != "layout"},
        environment={"host": "box", "device_name": "a processor"},
        steps=steps,
    )
    return replace(record, **known)


def toy(name: str, over: dict[str, Any] | None = None, **known: Any) -> Record:
    """Return a rehearsal from equal weights that reports all that a comparison needs."""
    record = made(name, over={"params_dtype": "float32", **(over or {})}, provenance="rehearsed", **known)
    facts = {"equal_init": 1, "host": "box", "torch": "2.13", "launcher_commit": "a" * 40}
    known_ = {"read_back": read_back(), **known}["read_back"]
    return each(
        replace(record, environment={**facts, **known.get("environment", {})}, read_back=known_),
        lambda s: replace(s, lr_used=1e-3, grad_norm=2.5, metrics={"tokens_checksum": 5.0}),
    )


_IN_LAYER = ("input_layernorm.weight", "self_attention.linear_qkv.weight", "mlp.linear_fc1.weight")
PARAMETERS = (
    "embedding.word_embeddings.weight",
    *(f"decoder.layers.{layer}.{name}" for layer in (0, 1) for name in _IN_LAYER),
    "decoder.final_layernorm.weight",
    "output_layer.weight",
)


def tensors(factor: float = 1.0, only: str = "", dtype: str = "float32") -> dict[str, Tensor]:
    """Return a tensor of each parameter; of those whose name has `only` in it, `factor` times as large."""
    factors = {name: factor if only in name else 1.0 for name in PARAMETERS}
    rows = enumerate(factors.items(), start=1)
    return {n: Tensor(shape=(4,), dtype=dtype, checksum=round(at * f * 2**20), norm=at * f) for at, (n, f) in rows}


def drawn(times: float = 1.0, only: str = "") -> dict[str, Tensor]:
    """Return what a stack draws, matrices from a deviation of 0.02; of those whose name has `only` in it `times` as
    large."""
    ones = Tensor(shape=(128,), mean=1.0, std=0.0, least=1.0, most=1.0)
    return {name: ones if "norm" in name else _matrix(times if only in name else 1.0) for name in PARAMETERS}


def _matrix(times: float) -> Tensor:
    std = 0.02 * times
    return Tensor(shape=(128, 128), mean=0.0, std=std, least=-4 * std, most=4 * std)


def objects(**own: Object) -> dict[str, Object]:
    """Return a stack's own objects beside those that every stack has."""
    return {"Switches": Object(kind="Switches", fields={"garbage_collection": True}), **own}


def read_back(**known: Any) -> ReadBack:
    """Return what the probe reads of a toy of two layers."""
    given = {"tokens": 5, "order": 4, "labels": 6, "loss_mask": 7, "position_ids": 8, "attention_mask": 9, "masked": 0}
    adam = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "decoupled_weight_decay": True}
    read = ReadBack(
        drawn=drawn(),
        first_weights=tensors(),
        last_weights=tensors(),
        first_gradients=tensors(),
        batches=tuple(Batch(step=step, **given) for step in range(12)),
        optimizer=Optimizer(
            kind="torch.optim.adamw.AdamW",
            arguments=adam,
            groups=(adam, {**adam, "weight_decay": 0.0}),
            weight_decays=(0.1,) * 12,
            state={"exp_avg": "float32", "master": "float32"},
        ),
        objects=objects(),
        process=Process(),
    )
    return replace(read, **known)


def each(record: Record, change: Callable[[Step], Step]) -> Record:
    """Return `record` with every step changed."""
    return replace(record, steps=tuple(map(change, record.steps)))


def ran(record: Record, **effective: Any) -> Record:
    """`record` as if its log reported other values than were requested; None of a name: the log does not report it."""
    expected = {**record.effective, **{name: Reading(value, 4) for name, value in effective.items()}}
    return replace(record, effective=expected, differences=differences(record.requested, expected))


def silent(record: Record, *names: str) -> Record:
    """Return `record` as if its log did not report these settings."""
    return replace(record, effective={k: v for k, v in record.effective.items() if k not in names})


def without(record: Record, *names: str) -> Record:
    """Return `record` as if these settings had not been requested."""
    return replace(record, requested={k: v for k, v in record.requested.items() if k not in names})


def compared(*records: Record, terms: Terms | None = None, **question: Any) -> compare.Comparison:
    """Return their comparison; each run is in a directory of its own name, below its place among them."""
    runs = [compare.Run(f"{place}/{record.name}", record) for place, record in enumerate(records)]
    return compare.compare(runs, compare.Question(**question), terms)


def save(directory: Path, *records: Record) -> None:
    """Each in a directory of its own name."""
    for record in records:
        write(record, directory / record.name)


def editable(directory: Path) -> None:
    """Make all records below those of an earlier version: steps that a hand changed are read then, too."""
    for path in directory.rglob("run.json"):
        entry = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**entry, "steps_file": None}, indent=1), encoding="utf-8")


def repeats(name: str, times: tuple[float, ...], over: Mapping[str, Any] | None = None) -> list[Record]:
    """Return a group of runs that differ in seed and pace."""
    seeds = enumerate(times, start=1)
    return [made(f"{name}_{seed}", seconds, {**(over or {}), "seed": seed}) for seed, seconds in seeds]


SPEED = {"h100": 13_400.0, "mi300x": 11_600.0}  # tokens/s of one GPU
WATTS = {"h100": 640.0, "mi300x": 700.0}


def vendor_run(platform: str, hardware: str, seed: int, steps: int = 1000, nodes: int = 0) -> Record:
    """A run of Llama 3.1 8B that ran what was requested, and reported all of it. nodes: of 8 GPUs, all data-parallel;
    0: one, in the layout of the tables."""
    layout = ("layout=data_parallel", f"nodes={nodes}") if nodes else ()
    e = _experiment("model=llama31_8b", f"platform={platform}", f"hardware={hardware}", *layout)
    nodes = nodes or 1
    over = {**requested(e), "seed": seed, "train_iters": steps, "lr_decay_iters": steps}
    expected = {name for name, setting in vocabulary().items() if setting.dump}
    steps_ = _steps(over, SPEED[hardware] * 0.97 ** math.log2(nodes), seed, steps)
    energy = WATTS[hardware] * 8 * nodes * steps
    return Record(
        id=f"{hardware}-{nodes}x8-{seed}",
        name=f"llama31_8b-{platform}",
        provenance="measured",
        status="completed",
        framework=e.framework.name,
        framework_version="1.0",
        platform=platform,
        vendor=platform,
        hardware=hardware,
        image=f"{platform}:25.11",
        requested=over,
        effective={name: Reading(value, 3) for name, value in over.items() if name in expected},
        environment={"host": "node1", "device_name": hardware, "launcher_commit": "0" * 40},
        power=(Power(kind="gpu", source="sampler", gpus=8 * nodes, seconds=float(steps), energy_integrated_j=energy),),
        steps=tuple(steps_),
    )


@cache
def _experiment(*overrides: str) -> Experiment:
    return load_experiment(*overrides)


def _steps(over: dict[str, object], speed: float, seed: int, count: int) -> Iterator[Step]:
    noise = random.Random(seed)
    batch, length, gpus = (int(str(over[n])) for n in ("global_batch_size", "seq_length", "world_size"))
    run = 1 + noise.gauss(0, 0.004)
    clock = 100.0
    for i in range(count):
        seconds = batch * length / (speed * gpus) * run * (1 + 0.01 * noise.random()) * (3 if i < 4 else 1)
        seconds *= 2.2 if i % 250 == 200 else 1  # a checkpoint
        clock += seconds
        yield Step(
            step=i,
            line=i + 1,
            iteration=i + 1,
            lr_used=3e-4 * min(1.0, (i + 1) / 51) * (0.55 + 0.45 * math.cos(math.pi * i / count)),
            loss=2.1 + 9 * math.exp(-i / 60) + 0.05 * noise.gauss(0, 1),
            step_time_s=seconds,
            consumed_samples=batch * (i + 1),
            end_monotonic_s=clock,
            memory_bytes=61_000_000_000 + 1_000_000 * (i % 7),
            memory_kind="allocated",
        )


def without_steps(record: Record, first: int, last: int) -> Record:
    """Return `record` with the steps from first to last lost."""
    return replace(record, steps=tuple(s for s in record.steps if not first <= s.step <= last))


def broken(record: Record, at: int) -> Record:
    """Return `record` whose loss was printed as nan at one step."""
    steps = (replace(s, loss=None, nonfinite=("loss",)) if s.step == at else s for s in record.steps)
    return replace(record, steps=tuple(steps))
