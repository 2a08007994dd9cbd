"""How fast logs are read: generated logs, one line in ten of a step, against `grep -c` and against patterns a line.

    .venv/bin/python benchmarks/parsers.py [--mb 32] [--full] [--dialect megatron …]

For each dialect: MB/s of `python -m parsers`' reader in a process of its own (with its peak memory), every step read to
its last field; the same file through `grep -c` of the step marker, and through the usual way, five patterns searched in
every line. --full: 1 GB for Megatron
and 200 MB for each other dialect. Seconds are CPU seconds: a core may be shared. Fails where the steps found are not
those written.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

_MEGATRON = (
    " [2026-08-14 00:18:46.584592] iteration {i:8d}/{n:8d} | consumed samples: {s:12d} | elapsed time per iteration "
    "(ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 512.3 | learning rate: 6.000000E-05 | global batch size:   128 | "
    "lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 | number of nan "
    "iterations:   0 |"
)
_PRIMUS = "[20260514 10:25:03][rank-7/8][DEBUG]    [---------------utils.py:425] :" + _MEGATRON.replace(
    "512.3 |", "512.3/510.1  | tokens/s/GPU inst/harmonic mean: 7079.2/6293.3 |"
).replace("1234.5", "1234.5/1240.2")
# dialect: its step line (i from 1), and what of it `grep` counts.
STEP_LINES: dict[str, tuple[str, str]] = {
    "megatron": (_MEGATRON, "elapsed time per iteration"),
    "primus": (_PRIMUS + " hip mem usage/free/total/usage_ratio: 169.09GB/118.89GB/287.98GB/58.71%", "hip mem usage"),
    "megatron_bridge": (
        "Step Time : 1.23s GPU utilization: 512.3MODEL_TFLOP/s/GPU\n" + _MEGATRON,
        "elapsed time per iteration",
    ),
    "megatron_deepspeed": (
        _MEGATRON.replace(" | throughput per GPU (TFLOP/s/GPU): 512.3", "")
        + " samples per second: 1.013 | TFLOPs: 37.10 |",
        "samples per second",
    ),
    "gpt_neox": (
        " samples/sec: 250.374 | iteration {i:8d}/{n:8d} | elapsed time per iteration (ms): 2044.9 | learning rate: "
        "2.000E-05 | approx flops per GPU: 16.1TFLOPS | lm_loss: {loss:.6E} | loss scale: 4096.0 | number of skipped "
        "iterations:   0 | number of nan iterations:   0 |",
        "approx flops per GPU",
    ),
    "torchtitan": (
        "[titan] 2026-11-21 12:10:29,101 - root - INFO - step: {i:2d}  loss: {loss:8.5f}  grad_norm:  1.2345  "
        "memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%",
        "tps: ",
    ),
    "nemo2": (
        "Training epoch 0, iteration {z}/{m} | lr: 0.0005 | global_batch_size: 4 | global_step: {z} | "
        "reduced_train_loss: {loss:.4f} | train_step_timing in s: 0.06313 | consumed_samples: {s}",
        "train_step_timing",
    ),
    "maxtext": (
        "completed step: {z}, seconds: 20.585, TFLOP/s/device: 97.566, Tokens/s/device: 1989.820, "
        "total_weights: 31457280, loss: {loss:.3f}",
        "completed step:",
    ),
    "nanotron": (
        "11/21/2026 12:10:29 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: {i} / {n} | consumed_tokens: 480B | "
        "elapsed_time_per_iteration_ms: 8.79K | tokens_per_sec: 182K | tokens_per_sec_per_gpu: 699 | "
        "global_batch_size: 1.6M | lm_loss: {loss:.2f} | lr: 0.0001 | model_tflops_per_gpu: 15.4 | "
        "hardware_tflops_per_gpu: 15.4 | grad_norm: 0.112",
        "elapsed_time_per_iteration_ms",
    ),
    "deepspeed": (
        "[2026-11-21 03:36:05,695] [INFO] [engine.py:100] [Rank 0] steps: {i} loss: {loss:.4f} iter time (s): 1.250 "
        "samples/sec: 102.400",
        "iter time",
    ),
    "hf": (
        "{{'loss': {loss:.4f}, 'grad_norm': 0.9704080820083618, 'learning_rate': 4.175257731958763e-05, "
        "'memory(GiB)': 61.2, 'epoch': 0.16, 'global_step/max_steps': '{i}/{n}', 'percentage': '12.00%'}}",
        "'learning_rate'",
    ),
    "nemo1": (
        "Epoch 0: :  10%|#         | {i}/{n} [00:49<07:25, v_num=None, reduced_train_loss=11.20, global_step={z}.0, "
        "consumed_samples={s}.0, train_step_timing in s=24.80]DLL 2025-06-11 01:56:01.007935 - {z} "
        "reduced_train_loss : {loss:.6f}  lr : 7.500000265281415e-08  global_step : {z}.0  consumed_samples : {s}.0  "
        "grad_norm : 44.68564987182617  train_step_timing in s : 24.767144799232483  epoch : 0 ",
        "DLL ",
    ),
    "mllog": (
        '0: :::MLLOG {{"namespace": "", "time_ms": 1759802854882, "event_type": "POINT_IN_TIME", "key": '
        '"tracked_stats", "value": {{"train_step_time": 1.5, "reduced_train_loss": {loss:.6f}}}, "metadata": {{'
        '"file": "a.py", "lineno": 480, "step": {z}, "samples_count": {s}}}}}',
        ":::MLLOG",
    ),
    "composer": (
        "[batch={i}/{n}]:\n\t Train time/batch: {z}\n\t Train loss/train/total: {loss:.4f}\n"
        "\t Train memory/reserved_mem: 20.7700\n\t Train throughput/device/tokens_per_sec: 15798.5924",
        "Train loss/train/total",
    ),
}
_NOISE = (
    "    forward-backward ...............................: (1196.75, 1197.12)",
    "INFO:megatron.core.timers: all gradients are reduced, 128 buckets of 40000000 elements, overlap with the backward",
    "2026-08-14 00:18:46 | WARNING | torch.distributed.distributed_c10d | a library says that something is deprecated",
)
_USUAL = tuple(
    re.compile(pattern)
    for pattern in (
        r"iteration\s+(\d+)\s*/\s*(\d+)",
        r"elapsed time per iteration \(ms\):\s*([0-9.]+)",
        r"lm loss:\s*([0-9.E+-]+)",
        r"learning rate:\s*([0-9.E+-]+)",
        r"tokens/s/GPU[^:]*:\s*([0-9.]+)",
    )
)
_CHILD = """
import json, resource, sys, time
from pathlib import Path
import parsers
began = time.process_time()
runs = parsers.parse_all(Path(sys.argv[1]))
steps = sum(sum(step.loss is not None for step in run.steps) for run in runs)
took = time.process_time() - began
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([took, rss, runs[-1].dialect, steps, runs[-1].steps[-1].loss]))
"""


def main() -> int:
    """Measure each dialect and print a line for it."""
    options = _options()
    ours = f"{'dialect':<20}{'MB':>6}{'steps':>9}{'MB/s':>7}{'peak MB':>9}"
    print(f"{ours}{'grep MB/s':>11}{'usual MB/s':>12}  ours/grep  ours/usual")
    right = True
    with tempfile.TemporaryDirectory() as folder:
        for dialect in options.dialect or STEP_LINES:
            megabytes = options.mb if not options.full else 1000 if dialect == "megatron" else 200
            right = _measure(dialect, megabytes, Path(folder) / f"{dialect}.log") and right
    return 0 if right else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="how fast logs are read")
    parser.add_argument("--mb", type=int, default=32, help="size of each log (default 32)")
    parser.add_argument("--full", action="store_true", help="1 GB for Megatron, 200 MB for each other dialect")
    parser.add_argument("--dialect", nargs="+", choices=sorted(STEP_LINES))
    return parser.parse_args()


def _measure(dialect: str, megabytes: int, log: Path) -> bool:
    steps, loss = write_log(dialect, megabytes * 10**6, log)
    size = log.stat().st_size / 1e6
    command = [sys.executable, "-c", _CHILD, str(log)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    took, peak, name, read, last = json.loads(done.stdout)
    # To a pipe: with /dev/null as its output grep stops at the first match.
    grep = _timed(
        lambda: subprocess.run(["grep", "-c", STEP_LINES[dialect][1], str(log)], check=True, capture_output=True)
    )
    usual = _timed(lambda: _the_usual_way(log))
    print(
        f"{dialect:<20}{size:>6.0f}{read:>9}{size / took:>7.0f}{peak:>9.0f}"
        f"{size / grep:>11.0f}{size / usual:>12.1f}"
        f"{grep / took:>11.2f}{usual / took:>12.1f}"
    )
    log.unlink()
    right = (name, read) == (dialect, steps) and abs(last - loss) < 0.01
    if not right:
        print(f"  WRONG: {name} with {read} steps, last loss {last}; written: {steps} steps, {loss}")
    return right


def write_log(dialect: str, size: int, log: Path) -> tuple[int, float]:
    """A log of `size` bytes in which one line in ten tells of a step (Composer takes five lines for one, Bridge two);
    how many steps it has and the last loss."""
    step = STEP_LINES[dialect][0]
    noise = "\n".join(_NOISE[i % len(_NOISE)] for i in range(9 * (step.count("\n") + 1))) + "\n"
    count = size // (len(step.format(i=1, n=10**6, s=10**8, z=1, m=10**6, loss=1.0)) + 1 + len(noise)) + 1
    with log.open("w", encoding="utf-8") as stream:
        for i in range(1, count + 1):
            stream.write(step.format(i=i, n=count, s=128 * i, z=i - 1, m=count - 1, loss=_loss(i)) + "\n" + noise)
    return count, _loss(count)


def _loss(iteration: int) -> float:
    return 2.0 + 9.0 / (1 + iteration / 1000)


def _the_usual_way(log: Path) -> int:
    # Counted, not kept: what this process holds would be counted as the next child's peak.
    return sum(1 for _ in _read_the_usual_way(log))


def _read_the_usual_way(log: Path) -> Iterator[dict[str, str]]:
    with log.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            found = [pattern.search(line) for pattern in _USUAL]
            if found[0] is not None:
                yield {f"{n}": match[1] for n, match in enumerate(found) if match}


def _timed(work: Callable[[], object]) -> float:
    """CPU seconds of this process and the children that it waited for."""
    before = _cpu_seconds()
    work()
    return _cpu_seconds() - before


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    sys.exit(main())
