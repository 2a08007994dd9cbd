"""Compare the bytes that torch allocates in the embedded engine on this CPU with the prediction, at seventeen layouts.

    .venv/bin/python benchmarks/engine_memory.py              all, about nine minutes on two cores
    .venv/bin/python benchmarks/engine_memory.py TP2 PP2      some, by name

Each rank builds its model and takes two steps under torch's profiler, whose memory events state what the CPU allocator
gives out and takes back; what gloo's threads take back it does not see before the address is given out again, so that a
measured peak may be a few percent too large. The prediction is estimate.memory of the
same sizes: attention is torch's flash kernel on the CPU, or Megatron's own, and no operation is fused."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "launchers" / "ranks")]

SMALL: dict[str, Any] = json.loads((ROOT / "tests" / "engine" / "small.json").read_text("utf-8"))
SIZES: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 256,
    "ffn_hidden_size": 704,
    "num_attention_heads": 8,
    "num_query_groups": 2,
    "kv_channels": 32,
    "vocab_size": 4096,
    "padded_vocab_size": 4096,
    "max_position_embeddings": 512,
    "seq_length": 256,
    "micro_batch_size": 2,
    "global_batch_size": 16,
    "data": "mock",
    "data_path": None,
}
_P = "_parallel_size"
TP, PP = {f"tensor_model{_P}": 2}, {f"pipeline_model{_P}": 2}
DP, CP = {f"data{_P}": 2}, {f"context{_P}": 2}
RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 352,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_aux_loss_coeff": 0.01,
    "moe_first_dense_layers": 0,
    "global_batch_size": 8,  # each micro-batch costs dozens of collectives
}
EP = {**EXPERTS, **DP, f"expert_model{_P}": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "TP2": TP,
    "TP2+SP": {**TP, "sequence_parallel": True},
    "PP2": PP,
    "PP2xVP2": {**PP, f"virtual_pipeline_model{_P}": 2},
    "DP2": DP,
    "DP2+sharded": {**DP, "use_distributed_optimizer": True},
    "CP2": CP,
    "recompute": RECOMPUTE,
    "micro-batch 4": {"micro_batch_size": 4},
    "PP2+few": {**PP, "global_batch_size": 2},
    "TP2xPP2+SP": {**TP, **PP, "sequence_parallel": True},
    "experts": EXPERTS,
    "EP2": EP,
    "EP2xPP2": {**EP, **PP},
    "unfused": {"attention_backend": "unfused"},
    "unfused, long": {"attention_backend": "unfused", "seq_length": 512},
}


class Measured(NamedTuple):
    """Peak bytes of each rank, the first pipeline stage first, and the predicted ones of the first and last stage."""

    ranks: tuple[int, ...]
    predicted: tuple[float, float]

    @property
    def errors(self) -> tuple[float, float]:
        """Return the relative error of the first and of the last rank."""
        return self.predicted[0] / self.ranks[0] - 1, self.predicted[1] / self.ranks[-1] - 1


def measure(changes: dict[str, Any], directory: Path) -> Measured:
    """Train two steps with `changes` and return what the ranks allocated and what was predicted."""
    settings = {**SMALL, **SIZES, **changes}
    names = ("tensor_model", "pipeline_model", "context", "data")
    settings["world_size"] = prod(settings[f"{name}{_P}"] for name in names)
    ranks = settings["micro_batch_size"] * settings[f"data{_P}"]
    settings["num_micro_batches"] = settings["global_batch_size"] // ranks
    path = directory / "settings.json"
    path.write_text(json.dumps(settings), "utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, f"--nproc-per-node={settings['world_size']}", __file__, "--rank", str(path)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=directory, check=False, timeout=600)
    peaks = dict(json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("PEAK "))
    if len(peaks) != settings["world_size"]:
        raise SystemExit(f"{changes}: the engine failed\n{done.stderr[-2000:]}")
    return Measured(tuple(peaks[rank] for rank in sorted(peaks)), predicted(settings))


def predicted(settings: dict[str, Any]) -> tuple[float, float]:
    """Return the bytes on the first and on the last stage that the model predicts for an engine's settings."""
    import numpy as np

    from estimate.jobs import Jobs
    from estimate.memory import memory

    kept = {name: np.array(float(settings.get(name) or 0)) for name in Jobs.__dataclass_fields__}
    kept |= {name: np.maximum(kept[name], 1) for name in kept if name.endswith(_P)}
    full = settings["recompute_granularity"] == "full"
    dense = settings["moe_first_dense_layers"] if settings["num_experts"] else settings["num_layers"]
    own = {"dense_layers": dense, "vocabulary": settings["padded_vocab_size"], "gated": 1}
    own |= {"tied": not settings["untie_embeddings_and_output_weights"], "recompute_layers": full, "optimizer_bytes": 8}
    own |= {"distributed_optimizer": settings["use_distributed_optimizer"], "gradient_bytes": 4, "precision": "fp32"}
    own |= {"unfused_attention": settings["attention_backend"] == "unfused"}
    own |= {"hardware": "cpu", "stack": "megatron", "trained": "pretraining"}
    found = memory(Jobs(**kept | {name: np.array(value) for name, value in own.items()})).allocated[:, 0]
    return float(found[0]), float(found[-1])


def peak(moved: list[tuple[int, int, int]]) -> int:
    """Return the most bytes that were allocated at once. moved: (when, address, bytes), below 0 where it was released.
    The profiler does not see what gloo's threads release: an address that is given out again was released before."""
    live: dict[int, int] = {}
    held = most = 0
    for _, address, size in moved:
        held -= live.pop(address, 0)
        if size > 0:
            live[address] = size
            held += size
        most = max(most, held)
    return most


def run_rank(path: str) -> None:
    """Be one rank: print the most bytes that torch had allocated at once."""
    import engine
    import rank_program

    rank_program.die_with_parent()
    engine.silence()
    import engine_standin

    engine_standin.install()
    import engine_train
    import torch
    from engine_settings import Settings
    from torch._C._profiler import _EventType
    from torch.profiler import ProfilerActivity, profile

    settings = Settings(**json.loads(Path(path).read_text("utf-8")))
    engine_train._set_up_groups(settings)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        built = engine_train._build(settings)
        for index in range(2):
            engine_train._step(built, index)
    assert profiler.profiler is not None
    left, moved = [*profiler.profiler.kineto_results.experimental_event_tree()], []
    while left:
        event = left.pop()
        left += event.children
        if event.typed[0] == _EventType.Allocation:
            moved.append((event.start_time_ns, event.typed[1].ptr, event.typed[1].alloc_size))
    most = peak(sorted(moved))
    print("PEAK", json.dumps([torch.distributed.get_rank(), most]), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> None:
    """Print a line for each layout: measured and predicted bytes of the first and of the last rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", help=f"of {', '.join(LAYOUTS)}")
    parser.add_argument("--rank", metavar="FILE.json", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        run_rank(options.rank)
        return
    if unknown := [name for name in options.layouts if name not in LAYOUTS]:
        parser.error(f"no layout {', '.join(unknown)}; there are {', '.join(LAYOUTS)}")
    print(f"{'layout':<16}{'first: MB':>10}{'predicted':>11}{'error':>9}{'last: MB':>11}{'predicted':>11}{'error':>9}")
    for name in options.layouts or LAYOUTS:
        with tempfile.TemporaryDirectory() as directory:
            one = measure(LAYOUTS[name], Path(directory))
        pairs = zip((one.ranks[0], one.ranks[-1]), one.predicted, one.errors, strict=True)
        print(
            f"{name:<15}" + "".join(f"{m / 1e6:>11.2f}{p / 1e6:>11.2f}{100 * e:>+8.1f}%" for m, p, e in pairs),
            flush=True,
        )


if __name__ == "__main__":
    main()
