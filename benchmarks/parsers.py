"""How fast logs are read: generated logs, one line in ten of a step, against `grep -c`.

    .venv/bin/python benchmarks/parsers.py [--mb 32] [--full] [--dialect megatron …]

For each dialect: MB/s of `python -m parsers`' reader in a process of its own (with its peak memory), every step read to
its last field, and the same file through `grep -c` of the step marker. --full: 1 GB for Megatron, 200 MB for others.
Seconds are CPU seconds, the best of three readings with the dialects' tables loaded: a core may be shared. Fails
where the parsed steps are not those written."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent

STEP_LINES = yaml.safe_load((ROOT / "benchmarks" / "step_lines.yaml").read_text(encoding="utf-8"))
_NOISE = (
    "    forward-backward ...............................: (1196.75, 1197.12)",
    "INFO:megatron.core.timers: all gradients are reduced, 128 buckets of 40000000 elements, overlap with the backward",
    "2026-08-14 00:18:46 | WARNING | torch.distributed.distributed_c10d | a library says that something is deprecated",
)
_CHILD = """
import json, resource, sys, time
from pathlib import Path
import parsers
log, took = Path(sys.argv[1]), []
parsers.parse_all([log.open("rb").read(100_000)])  # loads the tables of the dialects
for _ in range(3):
    runs, began = (), time.process_time()
    runs = parsers.parse_all(log)
    steps = sum(sum(step.loss is not None for step in run.steps) for run in runs)
    took.append(time.process_time() - began)
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([min(took), rss, runs[-1].dialect, steps, runs[-1].steps[-1].loss]))
"""


def main() -> int:
    """Measure each dialect and print a line for it."""
    parser = argparse.ArgumentParser(description="how fast logs are read")
    parser.add_argument("--mb", type=int, default=32, help="size of each log (default 32)")
    parser.add_argument("--full", action="store_true", help="1 GB for Megatron, 200 MB for each other dialect")
    parser.add_argument("--dialect", nargs="+", choices=sorted(STEP_LINES))
    options = parser.parse_args()
    ours = f"{'dialect':<20}{'MB':>6}{'steps':>9}{'MB/s':>7}{'peak MB':>9}"
    print(f"{ours}{'grep MB/s':>11}  ours/grep")
    right = True
    with tempfile.TemporaryDirectory() as folder:
        for dialect in options.dialect or STEP_LINES:
            megabytes = options.mb if not options.full else 1000 if dialect == "megatron" else 200
            right = _measure(dialect, megabytes, Path(folder) / f"{dialect}.log") and right
    return 0 if right else 1


def _measure(dialect: str, megabytes: int, log: Path) -> bool:
    steps, loss = write_log(dialect, megabytes * 10**6, log)
    size = log.stat().st_size / 1e6
    command = [sys.executable, "-c", _CHILD, str(log)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    took, peak, name, read, last = json.loads(done.stdout)
    # To a pipe: with /dev/null as its output grep stops at the first match.
    command = ["grep", "-c", STEP_LINES[dialect]["counted"], str(log)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    grep = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - sum(before[:2])  # user and system
    print(f"{dialect:<20}{size:>6.0f}{read:>9}{size / took:>7.0f}{peak:>9.0f}{size / grep:>11.0f}{grep / took:>11.2f}")
    log.unlink()
    right = (name, read) == (dialect, steps) and abs(last - loss) < 0.01
    if not right:
        print(f"  WRONG: {name} with {read} steps, last loss {last}; written: {steps} steps, {loss}")
    return right


def write_log(dialect: str, size: int, log: Path) -> tuple[int, float]:
    """Write a log of `size` bytes, one line in ten of a step (Composer takes five lines for one, Bridge two); return
    the number of its steps and the last loss."""
    step = STEP_LINES[dialect]["line"]
    noise = "\n".join(_NOISE[i % len(_NOISE)] for i in range(9 * (step.count("\n") + 1))) + "\n"
    count = size // (len(step.format(i=1, n=10**6, s=10**8, z=1, m=10**6, loss=1.0)) + 1 + len(noise)) + 1
    with log.open("w", encoding="utf-8") as stream:
        for i in range(1, count + 1):
            stream.write(step.format(i=i, n=count, s=128 * i, z=i - 1, m=count - 1, loss=_loss(i)) + "\n" + noise)
    return count, _loss(count)


def _loss(iteration: int) -> float:
    return 2.0 + 9.0 / (1 + iteration / 1000)


if __name__ == "__main__":
    sys.exit(main())
