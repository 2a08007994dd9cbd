"""How fast the embedded engine is on this CPU: paired in one process with plain PyTorch, and against its matmul rate.

    .venv/bin/python benchmarks/engine.py [--pairs 20]

Prints, for llama_tiny and a model of 32 M parameters, tokens/s of both, the ratio with its 95 % interval over pairs of
steps that follow each other, each first in turn (so that a drift of the machine's speed cancels), and the engine's MFU
against the best large matmul measured here. Fails on nothing: a slow machine is not a wrong one."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "launchers" / "ranks")]

TINY = ("platform=cpu",)
MEDIUM = (
    *("platform=cpu", "model.num_layers=8", "model.hidden_size=512", "model.ffn_hidden_size=1376"),
    *("model.kv_channels=64", "model.vocab_size=8192", "model.max_position_embeddings=512"),
    *("training.seq_length=512", "training.global_batch_size=2"),
)


def main() -> None:
    """Measure both models and print a line for each."""
    parser = argparse.ArgumentParser(description="the embedded engine against plain PyTorch, paired")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of steps (default 20; of llama_tiny five times)")
    pairs = parser.parse_args().pairs
    if pairs < 3:
        parser.error("--pairs: at least 3, for an interval")
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    import engine_standin

    engine_standin.install()
    import torch

    print(f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
    rates = [matmul_flops_per_s()]
    lines = []
    for name, overrides, count in (("llama_tiny", TINY, 5 * pairs), ("32 M", MEDIUM, pairs)):
        lines.append(measure(name, overrides, count))
        rates.append(matmul_flops_per_s())  # again: another program may have taken its share the first time
    for text, flops_per_s in lines:
        print(f"{text}; engine's MFU {flops_per_s / max(rates):.1%}")
    print(f"best fp32 matmul: {max(rates) / 1e9:.0f} GFLOP/s; load {os.getloadavg()[0]:.1f}")


def measure(name: str, overrides: tuple[str, ...], pairs: int) -> tuple[str, float]:
    """Warm both up on one model, step them in turn; return what to print and the engine's FLOP/s."""
    from conf import load_experiment
    from launchers import corpus
    from launchers.frameworks.megatron import settings
    from metrics.flops import flops_per_token
    from metrics.repeats import mean_of
    from metrics.shape import shape_of_model

    with tempfile.TemporaryDirectory() as directory:
        e = load_experiment(*overrides, f"data.path={directory}/corpus")
        for argv in corpus.setup(e, sys.executable):
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        engine, plain = steppers(settings(e))
    for _ in range(3):
        engine(), plain()
    times = [(timed(engine), timed(plain)) if i % 2 else (timed(plain), timed(engine))[::-1] for i in range(pairs)]
    tokens = e.training.global_batch_size * e.training.seq_length
    ours, theirs = (median(t[i] for t in times) for i in (0, 1))
    ratio, interval = mean_of([b / a for a, b in times])
    ends = f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else "unknown"
    text = (
        f"{name}: engine {tokens / ours:,.0f} tokens/s, plain PyTorch {tokens / theirs:,.0f}; "
        f"engine / plain {ratio:.3f} (95 % interval {ends}, {pairs} pairs)"
    )
    return text, tokens * flops_per_token(shape_of_model(e.model), e.training.seq_length) / ours


def steppers(s: dict[str, Any]) -> tuple[Callable[[], float], Callable[[], float]]:
    """Return one step of the engine and one of the peer, on the same tokens."""
    import engine_train
    import torch
    from engine_settings import Settings
    from plain_llama import Peer

    if not torch.distributed.is_initialized():
        engine_train._set_up_groups(Settings(**s))
    built = engine_train._build(Settings(**s))
    peer = Peer(s)
    batches = torch.stack(
        [torch.cat([t, label[:, -1:]], 1) for t, label in engine_train._batches(built.data.rank_batches, 0)]
    )
    return lambda: engine_train._step(built, 0)["loss"], lambda: peer.step(batches)


def timed(step: Callable[[], float]) -> float:
    """Return the wall seconds of one step."""
    return timeit.timeit(step, number=1)


def matmul_flops_per_s(size: int = 2048) -> float:
    """Return the best of ten large fp32 matmuls."""
    import torch

    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / min(timed(lambda: float((a @ b)[0, 0])) for _ in range(10))


if __name__ == "__main__":
    main()
