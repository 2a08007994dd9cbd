"""Runs as large as real ones, made by hand: of the config's own experiments, with noise, spikes, gaps and nan."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from functools import cache

from msgspec.structs import replace

from conf import load_experiment
from conf.resolve import Experiment
from conf.vocabulary import requested, vocabulary
from parsers import Power, Reading, Record, Step

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
    made = _steps(over, SPEED[hardware] * 0.97 ** math.log2(nodes), seed, steps)
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
        steps=tuple(made),
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


def without(record: Record, first: int, last: int) -> Record:
    """`record` with the steps from first to last lost."""
    return replace(record, steps=tuple(s for s in record.steps if not first <= s.step <= last))


def broken(record: Record, at: int) -> Record:
    """`record` whose loss was printed as nan at one step."""
    steps = (replace(s, loss=None, nonfinite=("loss",)) if s.step == at else s for s in record.steps)
    return replace(record, steps=tuple(steps))
