"""Memory hardly grows with the log: a long one is read in a process of its own, and its peak is looked at. Time and
memory do not follow what a log claims."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parsers import Step
from parsers.segment import Steps
from parsers.unread import not_supported
from tests.parsers.helpers import parse_text

ROOT = Path(__file__).parents[2]
STEPS = 60_000
PROGRAM = """
import json, sys
from pathlib import Path
import parsers
# not getrusage, whose peak is that of the tests' process, which this one was forked from
peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
runs = parsers.parse_all(Path(sys.argv[1]))
read = peak()
parsers.judge(parsers.Ending(), runs[-1])
judged = peak()
seen = sum(1 for step in runs[-1].steps if step.loss == 2.5)
record = parsers.Record(id="a", name="a", provenance="imported", status="unknown", steps=runs[-1].steps)
parsers.write(record, Path(sys.argv[2]))
print(json.dumps([len(runs), len(runs[-1].steps), seen, runs[-1].steps[-1].iteration, peak(), judged - read]))
"""


def test_a_long_log_takes_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    fields = "elapsed time per iteration (ms): 500.0 | lm loss: 2.5 | number of nan iterations: 0"
    line = " iteration {i:8d}/{n:8d} | " + fields
    log = tmp_path / "a.log"
    with log.open("w") as stream:
        stream.writelines(line.format(i=i, n=STEPS) + " |\n" + "noise\n" * 9 for i in range(1, STEPS + 1))
    command = [sys.executable, "-c", PROGRAM, str(log), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    runs, steps, seen, last, peak_mb, judged_mb = json.loads(done.stdout)
    assert (runs, steps, seen, last) == (1, STEPS, STEPS, STEPS)
    assert peak_mb < 100 and judged_mb < 9
    assert sum(1 for _ in (tmp_path / "out" / "steps.jsonl").open()) == STEPS


@pytest.mark.parametrize(
    "lines",
    [
        [f"[timer.py:197:stop] 0/{n}, RunningAvgSamplesPerSec=12.5, CurrSamplesPerSec=12.5" for n in (1, 10**12 - 1)],
        [
            "***** Running training *****",
            *(
                f" {n}%| | {n}/100 [00:09<01:00, 6s/it]\n{{'loss': 2.5, 'epoch': {n}, 'num_input_tokens_seen': {seen}}}"
                for n, seen in enumerate(("1e-199", "1e-199", "1e199", "1e199"))
            ),
        ],
        ["step:1 - " * 150_000, "refactor/"],
    ],
    ids=["a count of steps", "a ratio without bounds", "a line of many beginnings"],
)
def test_a_strangers_numbers(lines: list[str]) -> None:
    began = time.perf_counter()
    assert not_supported("\n".join(lines).encode()) is None
    assert time.perf_counter() - began < 9
    assert all(step.step < 100 for run in parse_text("\n".join([*lines, ""])) for step in run.steps)


def test_packed_steps_are_the_steps() -> None:
    plain = [Step(step=i, line=i + 1, iteration=i + 1, loss=i / 7, flags=("loss:by_order",)) for i in range(20_000)]
    steps = Steps()
    for step in plain:
        steps.append(step)
    early = steps.copy()
    for left in (19_999, 12_289, 12_288, 4097, 5, 0):
        steps.take_back(left)
        assert (len(steps), list(steps)) == (left, plain[:left])
        if left:
            assert [steps[-1], steps[0], steps[left // 2]] == [plain[left - 1], plain[0], plain[left // 2]]
            steps.replace(-min(3, left), plain[left - min(3, left)])
    assert len(early) == 20_000
    assert early[8190:8195] == tuple(plain[8190:8195])
    assert [*reversed(early)][:3] == plain[:-4:-1]
