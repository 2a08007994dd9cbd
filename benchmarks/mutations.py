"""Show what is read of a log that launchers, containers and terminals have changed, or that was cut.

    .venv/bin/python benchmarks/mutations.py [--dialect megatron …] [--mutation "host: " …] [--tries 12] [--why]

26 mutations of a log of each of ten dialects, which ends in a crash. Every value of the changed log (step by step,
facts, settings, validations, how it ended and why) is compared with the unchanged log's:

    same     all values are there, and none is another one
    less     some are missing, and a note says so
    SILENT   some are missing, and no note says so: a defect
    WRONG    a value is another one, or one that the unchanged log does not have: a defect

What depends on a place (cuts, wraps, interleaved lines) is tried at several, drawn with a fixed seed; the worst counts.
--why: name the values. Fails where there is a defect."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # before this folder, whose parsers.py is the other benchmark

from parsers import Ending, Parsed, Parser, Stall, Step, Validation, judge  # noqa: E402

FIXTURES = ROOT / "tests" / "parsers" / "fixtures"
LOGS = {
    "megatron": "megatron_modern",
    "megatron_bridge": "megatron_bridge",
    "megatron_deepspeed": "megatron_deepspeed_ezpz",
    "primus": "primus_c2",
    "torchtitan": "torchtitan_tiny",
    "nemo2": "nemo2_tiny",
    "hf": "hf_trainer",
    "deepspeed": "deepspeed_tiny",
    "maxtext": "maxtext_tiny",
    "nanotron": "nanotron_tiny",
}
CRASH = """Traceback (most recent call last):
  File "/opt/train.py", line 412, in <module>
    main()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB
"""
OTHERS = (
    "WARNING: NCCL is slow today",
    "[rank3]:[W1122 10:00:00.123 socket.cpp:464] retrying",
    "(RayTrainWorker pid=7) 12 files",
)
"""Texts that another process writes into a line."""
_SHOWN, _CAUSE = 4, 8  # values of a cell; characters of a cause that is cut
_LESS = (
    "status",
    "validation valid None",
    "validation test None",
    "stall checkpoint None",
)  # by what is missing, or without its step
Lines = list[str]
Mutation = Callable[[Lines, random.Random], bytes]


def prefixed(prefix: str) -> Mutation:
    """Return a mutation that puts `prefix` before every line."""
    return lambda lines, draw: _bytes([prefix + line for line in lines])


def _bytes(lines: Lines) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _docker(lines: Lines, draw: random.Random) -> bytes:
    entries = ({"log": f"{line}\n", "stream": "stdout", "time": "2026-11-22T10:00:00.1Z"} for line in lines)
    return _bytes([json.dumps(entry, separators=(",", ":")) for entry in entries])


def _cut_end(lines: Lines, draw: random.Random) -> bytes:
    data = _bytes(lines[:-4])  # without the crash, which would follow the cut
    return data[: draw.randrange(len(data) // 2, len(data))].rstrip(b"\n")


def _tail(lines: Lines, draw: random.Random) -> bytes:
    """Leave what stands behind one of the steps."""
    return _bytes(lines[draw.choice(parsed(_bytes(lines)).steps[:-1]).line :])


def _cut_head(lines: Lines, draw: random.Random) -> bytes:
    tail = _tail(lines, draw)
    return tail[draw.randrange(max(1, tail.index(b"\n"))) :]


def _wrapped(lines: Lines, draw: random.Random, trimmed: bool = False) -> bytes:
    width = draw.choice((72, 80, 100, 120, 132))
    rows = [line[at : at + width] for line in lines for at in range(0, len(line) or 1, width)]
    return _bytes([row.rstrip(" ") for row in rows] if trimmed else rows)


def _interrupted(lines: Lines, draw: random.Random) -> bytes:
    """Let another process write a line into the middle of one in three."""
    rows = [*lines]
    for index in draw.sample(range(len(lines) - 4), (len(lines) - 4) // 3):
        at = draw.randrange(len(lines[index]) or 1)
        rows[index] = f"{lines[index][:at]}{draw.choice(OTHERS)}\n{lines[index][at:]}"
    return _bytes(rows)


def _glued(lines: Lines, draw: random.Random) -> bytes:
    """Let lines come one behind the other, their ends after them."""
    late = set(draw.sample(range(len(lines) - 5), (len(lines) - 4) // 4))
    ends = ("" if n in late else "\n\n" if n - 1 in late else "\n" for n in range(len(lines)))
    return "".join(map(str.__add__, lines, ends)).encode()


def _again(lines: Lines, draw: random.Random) -> bytes:
    """Let the run crash somewhere and begin anew."""
    return _bytes(lines[: draw.randrange(1, len(lines) - 4)] + lines[-4:] + lines)


MUTATIONS: Mapping[str, Mutation] = {
    "host: ": prefixed("node017: "),
    "host.domain: ": prefixed("gpu-3.cluster.local: "),
    "address: (pdsh)": prefixed("10.0.0.17: "),
    "CRI": prefixed("2026-11-22T10:00:00.123456789Z stdout F "),
    "syslog": prefixed("Nov 22 10:00:00 node017 train[4112]: "),
    "journald": prefixed("2026-11-22T10:00:00+0000 node017 python[4112]: "),
    "ts": prefixed("Nov 22 10:00:00 "),
    "docker logs -t": prefixed("2026-11-22T10:00:00.123456789Z "),
    "Ray": prefixed("(TrainWorker pid=4112, ip=10.0.0.17) "),
    "torchrun --tee": prefixed("[default0]:"),
    "srun --label": prefixed("0: "),
    "mpirun --tag-output": prefixed("[1,0]<stdout>:"),
    "CRI and srun": prefixed("2026-11-22T10:00:00.123456789Z stdout F 0: "),
    "docker json-file": _docker,
    "UTF-16": lambda lines, draw: _bytes(lines).decode().encode("utf-16"),
    "CR LF": lambda lines, draw: _bytes(lines).replace(b"\n", b"\r\n"),
    "colours": lambda lines, draw: _bytes([f"\x1b[36m{line}\x1b[0m" for line in lines]),
    "four ranks": lambda lines, draw: _bytes([f"{rank}: {line}" for line in lines for rank in range(4)]),
    "cut at the end": _cut_end,
    "cut at the start": _cut_head,
    "the last lines": _tail,
    "wrapped": _wrapped,
    "wrapped, trimmed": partial(_wrapped, trimmed=True),
    "interrupted lines": _interrupted,
    "late line ends": _glued,
    "begun again": _again,
}
PLACED = list(MUTATIONS)[18:]
"""The mutations that depend on a place."""


class Cell(NamedTuple):
    """A word for what became of a log. values: the missing ones, or those that differ."""

    word: str
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.word} {len(self.values)}" if self.values else self.word


def parsed(log: bytes) -> Parsed:
    """Return the last run in a log."""
    parser = Parser()
    parser.feed_bytes(log)
    return parser.finish()[-1]


def values_of(run: Parsed) -> dict[str, Any]:
    """Return all that a run's log says, by name, without the numbers of lines."""
    outcome = judge(Ending(), run)
    values: dict[str, Any] = {
        "dialect": run.dialect,
        "train_iters": run.train_iters,
        "completed": run.completed or None,
    }
    values |= {"status": outcome.status, "out of memory": _cause(run.faults.out_of_memory)}
    values |= {f"setting {name}": reading.value for name, reading in run.effective.items()}
    values |= {f"fact {name}": value for name, value in run.facts.items()}
    counts: Counter[str] = Counter()
    for entry in (*run.steps, *run.validations, *run.stalls):
        at = f"{type(entry).__name__.lower()} {_place(entry)}"
        counts[at] += not (isinstance(entry, Stall) and counts[at] and entry.seconds is None)  # ranks save on their own
        values |= {f"{at} {f'#{counts[at]} ' * (counts[at] > 1)}{name}": value for name, value in _fields(entry)}
    return {name: value for name, value in values.items() if value not in (None, (), {})}


def _cause(text: str | None) -> str | None:
    return None if text is None else text[text.find("torch.OutOfMemoryError") :]


def _place(entry: Any) -> str:
    if isinstance(entry, Step):
        return str(entry.step)
    return f"{entry.split} {entry.step}" if isinstance(entry, Validation) else f"{entry.kind} {entry.iteration}"


def _fields(entry: Any) -> Iterator[tuple[str, Any]]:
    for name, value in msgspec.structs.asdict(entry).items():
        if name == "metrics":
            yield from value.items()
        elif name not in ("line", "flags"):
            yield name, value


def judged(clean: Parsed, changed: Parsed) -> Cell:
    """Compare a run with the same of the changed log. No value to be wrong is what the log says it guesses: a step by
    its order, a time without the line before."""
    before, after = values_of(clean), values_of(changed)
    guessed = {f"step {step.step} " for step in changed.steps if "step:by_order" in step.flags}
    recovered = [step.step for step in clean.steps if "step_time_s:recovered" in step.flags]
    guessed |= {f"step {number} {name}" for number in recovered for name in ("step_time_s", "interval_steps")}
    other = [name for name in after if after[name] != before.get(name) and not name.startswith((*guessed, *_LESS))]
    if wrong := [name for name in other if not _is_part(after[name], before.get(name))]:
        return Cell("WRONG", tuple(f"{name}: {before.get(name)!r} became {after[name]!r}" for name in wrong))
    missing = tuple(name for name in before if name not in after or name in other)
    noted = {*_notes(changed)} - {*_notes(clean)}
    return Cell("same") if not missing else Cell("less" if noted else "SILENT", missing)


def _is_part(after: Any, before: Any) -> bool:
    """Return whether a text is the beginning of what stood there, names are some of them, or entries are."""
    if isinstance(after, dict) and isinstance(before, dict):
        return after.items() <= before.items()
    if isinstance(after, tuple) and isinstance(before, tuple):
        return {*after} <= {*before}
    return isinstance(after, str) and isinstance(before, str) and len(after) >= _CAUSE and before.startswith(after)


def _notes(run: Parsed) -> tuple[str, ...]:
    return (*run.notes, *judge(Ending(), run).notes)


def tried(dialect: str, mutation: str, tries: int) -> Cell:
    """Return the worst cell of several tries."""
    text = (FIXTURES / f"{LOGS[dialect]}.log").read_text(encoding="utf-8") + CRASH
    lines, change = text.splitlines(), MUTATIONS[mutation]
    clean = parsed(_bytes(lines[:-4] if change is _cut_end else lines))
    draws = (random.Random(seed) for seed in range(tries if mutation in PLACED else 1))
    cells = [judged(clean, parsed(change(lines, draw))) for draw in draws]
    return max(cells, key=lambda cell: (["same", "less", "SILENT", "WRONG"].index(cell.word), len(cell.values)))


def main() -> int:
    """Print the table. Return 1 where a cell is a defect."""
    parser = argparse.ArgumentParser(description="what is read of changed logs")
    parser.add_argument("--dialect", nargs="+", choices=LOGS, default=list(LOGS))
    parser.add_argument("--mutation", nargs="+", choices=MUTATIONS, default=list(MUTATIONS))
    parser.add_argument("--tries", type=int, default=12)
    parser.add_argument("--why", action="store_true", help="name the values")
    options = parser.parse_args()
    print(f"{'':<21}" + "".join(f"{dialect.replace('megatron_', 'm_'):<12}" for dialect in options.dialect))
    defects = 0
    for mutation in options.mutation:
        cells = [tried(dialect, mutation, options.tries) for dialect in options.dialect]
        print(f"{mutation:<21}" + "".join(f"{cell!s:<12}" for cell in cells), flush=True)
        defects += sum(cell.word.isupper() for cell in cells)
        for dialect, cell in zip(options.dialect, cells, strict=True):
            for value in cell.values[:_SHOWN] if options.why else ():
                print(f"    {dialect}: {value}")
    print(f"{defects} defects in {len(options.mutation) * len(options.dialect)} cells")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
