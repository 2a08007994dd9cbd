"""tprimat measure: time kernels, links and small trainings on this machine, and write what it can do as
DIR/machine.yaml."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from conf import devices
from conf.arguments import OUTPUT, Command, Key, between, positive_integer
from conf.errors import InputError, Problem, blamed, command, listed, writing
from conf.frameworks import is_module
from conf.locks import lock_of, take
from conf.machine import VERSION, Figure, Machine, write
from conf.plain import terminal
from conf.vendors import Devices
from launchers.plan import Plan
from launchers.rank_modules import FOLDER
from launchers.runner import Ending, execute
from measure import trainings
from measure.cases import Case, Scope, cases, visits
from measure.rates import Samples, figures, samples_of
from metrics.quantity import shown
from parsers import marks

FILE, SETTINGS, TODO, LOG = "machine.yaml", "settings.json", "todo.json", "measure.log"
SIZES = {"quick": (5, 2.0), "full": (15, 10.0)}
"""Rounds, and the minutes after which it ends with what it has."""
OF_KERNELS = 0.6
"""Share of the time after which kernels and links end, for the trainings to have the rest."""
MOST_RANKS, SHARE_OF_MEMORY = 64, 0.5
SLOWER = 0.05
"""A rank that takes so much longer than the median of its like is named."""
BAD_LINK = 0.7
"""A pair whose rate is below so much of the median of pairs is named."""
DRIFT = 0.1
"""Between the first and the last third of the rounds: throttling, or others on the machine."""

MEASURE = Command(
    name="measure",
    summary="Time kernels, links and small trainings on this machine by torch: what estimate uses of it.",
    words="quick|full",
    words_help="quick: two minutes (default); full: more sizes and rounds, ten minutes",
    keys=(
        Key(
            "ranks",
            "GPUs, or processes of a CPU (default: all, two a core)",
            positive_integer,
            None,
            "4",
        ),
        Key("minutes", "end after so long with what there is", between(0.1, 24 * 60, "0.1 to 1440"), None, "5"),
    ),
    output="where machine.yaml and every sample go (default: machine); one that was stopped there goes on",
    examples=("", "full -o machine"),
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Measure. 0: machine.yaml is written; 1: a rank died, or nothing was timed; 2: it cannot be measured here."""
    given = MEASURE.parse(argv)
    size = given.words[0] if given.words else "quick"
    if len(given.words) > 1 or size not in SIZES:
        raise InputError(Problem("measure", "how far?", " ".join(given.words), listed([*SIZES])))
    here, folder = devices.find(), given.output or Path("machine")
    scope = _scope(here, given["ranks"], size == "full")
    rounds, minutes = SIZES[size]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with lock_of(folder.resolve()).open("w") as lock:
            if not take(lock):
                raise InputError(Problem(OUTPUT, "another measurement runs there", str(folder), hint=f"{OUTPUT} OTHER"))
            known, limit_s, began = _planned(scope, folder), 60 * (given["minutes"] or minutes), time.monotonic()
            left = visits(len(known), rounds, _done(folder, known))
            runs, why = _trainings(scope)
            ending = _run(scope, known, left, limit_s * (OF_KERNELS if runs else 1), folder) if left else None
            if runs and not (ending and (ending.exit_code or ending.signal_sent)):
                trainings.run(folder, runs, began + limit_s, _said)
            machine = machine_of(scope, here, known, [*_lines(folder)], _facts(folder))
            if why:
                machine = replace(machine, unknown={**machine.unknown, "trainings": why})
            machine = trainings.with_trainings(machine, [*trainings.done(folder, runs)], len(runs))
            if machine.figures:
                write(folder / FILE, machine)
    print(json.dumps(_plain(machine), indent=1) if "--json" in given.switches else "\n".join(_text(machine, folder)))
    return 0 if machine.figures and not (ending and ending.exit_code) else 1


def _scope(here: Devices, ranks: int | None, full: bool) -> Scope:
    if not is_module("torch", None):
        raise InputError(
            Problem("measure", "torch is not installed here", hint="make install, or a vendor's container")
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most = here.count or min(MOST_RANKS, 2 * cores)
    if ranks is not None and ranks > (here.count or MOST_RANKS):
        raise InputError(Problem("ranks", "more than there are", str(ranks), f"1 to {here.count or MOST_RANKS}"))
    count = ranks or most
    memory = devices.available_memory_bytes() * SHARE_OF_MEMORY / count
    return Scope(here.vendor is not None, count, cores, int(memory), full)


def _planned(scope: Scope, folder: Path) -> list[Case]:
    """Return the cases of the measurement in a folder, begun now or before. InputError: it is another one."""
    path, about = folder / SETTINGS, {**_plain(scope), "memory_bytes": None}  # which others use, too
    if path.is_file():
        with blamed(str(path), "cannot be read"):
            before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if before.get("scope") != about:
            what = "holds another measurement, of other ranks or sizes"
            raise InputError(Problem(OUTPUT, what, str(folder), hint=f"{OUTPUT} OTHER, or remove it"))
        return list(before["cases"])
    known = [*cases(scope)]
    path.write_text(json.dumps({"scope": about, "cases": known}), encoding="utf-8")
    return known


def _run(scope: Scope, known: Sequence[Case], left: Sequence[tuple[int, int]], limit_s: float, folder: Path) -> Ending:
    """Time the visits that are left, on all ranks."""
    todo = {"accelerator": scope.accelerator, "cores": scope.cores, "limit_s": limit_s, "cases": known, "visits": left}
    (folder / TODO).write_text(json.dumps(todo), encoding="utf-8")
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={scope.ranks}")
    program = (str(FOLDER / "measure.py"), "--settings", TODO)
    env = {"OMP_NUM_THREADS": str(max(1, scope.cores // scope.ranks)), "OMP_WAIT_POLICY": "PASSIVE"}
    argv = (sys.executable, "-u", *torchrun, *program)
    return execute(Plan(argv=argv, files={}, env=env, log=LOG), folder, trainings.HANG_S, _show)


def _trainings(scope: Scope) -> tuple[list[tuple[str, ...]], str]:
    """Return the trainings to run here, or why there are none."""
    why = ""
    if scope.accelerator:
        why = "small trainings are run on a CPU only; estimate calibrate learns from runs on a GPU"
    elif not is_module("megatron-core", None):
        why = "megatron-core is not installed here: make install"
    return [] if why else trainings.overrides(scope.ranks, scope.full), why


def _show(line: str) -> bool:
    if is_ours := line.startswith("measure: "):
        _said(line)
    return is_ours


def _said(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{line}", end="", file=terminal(sys.stderr), flush=True)


def _lines(folder: Path) -> Iterator[Mapping[str, Any]]:
    for path in sorted(folder.glob("samples-*.jsonl")):
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                line = json.loads(text)
            except ValueError:  # cut by a kill: that visit is made again
                continue
            if isinstance(line, dict) and {"case", "round", "rank", "seconds"} <= line.keys():
                yield line


def _done(folder: Path, known: Sequence[Case]) -> Mapping[tuple[int, int], bool]:
    """Return the visits of which every rank has written its line."""
    counts: dict[tuple[int, int], int] = {}
    for line in _lines(folder):
        key = line["round"], line["case"]
        counts[key] = counts.get(key, 0) + 1
    return {key: True for key, count in counts.items() if count >= known[key[1]]["ranks"]}


def _facts(folder: Path) -> Mapping[str, Any]:
    log = (folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    return next(filter(None, (marks.read("facts", line) for line in log)), {})


def machine_of(
    scope: Scope,
    here: Devices,
    known: Sequence[Case],
    lines: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
) -> Machine:
    """Return what the samples say of the machine."""
    samples = samples_of(known, lines, scope.ranks)
    found = tuple(figures(samples))
    return Machine(
        version=VERSION,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        host=platform.node(),
        device=here.names[0] if here.names else _processor(),
        accelerator=scope.accelerator,
        ranks=scope.ranks,
        facts=facts,
        figures=found,
        unknown={**_unknown(scope), **_skipped(samples.cases, lines)},
        warnings=(*_slow_ranks(samples), *_bad_links(found), *_drift(samples)),
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _unknown(scope: Scope) -> dict[str, str]:
    if scope.accelerator:
        return {}
    why = "this machine has no GPU"
    return {
        "power": "no counter of power is read on a CPU",
        "graph_launch": why,
        "to_device_rate": why,
        "to_host_rate": why,
    }


def _skipped(known: Sequence[Case], lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the cases that torch refused, with its reason."""
    refused = {line["case"]: str(line.get("error")) for line in lines if line["seconds"] is None}
    sizes = ((known[i], why) for i, why in refused.items())
    return {" ".join(f"{k}={v}" for k, v in case.items() if k != "least_s"): why for case, why in sizes}


def _slow_ranks(samples: Samples) -> Iterator[str]:
    """Yield the ranks that take longer than the others for the same products."""
    every = samples.by_rank.shape[1]
    products = [i for i, case in enumerate(samples.cases) if case["kind"] == "gemm" and case["ranks"] == every > 1]
    own = samples.by_rank[products]
    own = own[~np.isnan(own).any(axis=1)]
    if not len(own):
        return
    ratio = own / np.median(own, axis=1, keepdims=True)
    for rank, slower in enumerate(np.median(ratio, axis=0)):
        if slower > 1 + SLOWER:
            yield f"rank {rank} takes {slower:.2f} times as long as the median rank for the same products"


def _bad_links(found: Sequence[Figure]) -> Iterator[str]:
    """Yield the pairs whose rate is surely below that of the others."""
    pairs = [one for one in found if one.name == "send_rate"]
    usual = float(np.median([one.value for one in pairs])) if pairs else 0.0
    for one in pairs:
        if one.interval and one.interval[1] < BAD_LINK * usual:
            first, second, rate = one.of["first"], one.of["second"], one.value
            yield f"ranks {first} and {second}: {shown(rate)} bytes/s between them, {shown(usual)} in the median"


def _drift(samples: Samples) -> Iterator[str]:
    products = [i for i, case in enumerate(samples.cases) if case["kind"] == "gemm"]
    whole = samples.seconds[products]
    whole = whole[:, ~np.isnan(whole).any(axis=0)]
    third = whole.shape[1] // 3
    if not third:
        return
    ratio = float(np.median(np.median(whole[:, -third:], axis=1) / np.median(whole[:, :third], axis=1)))
    if abs(ratio - 1) > DRIFT:
        cause = "throttling, or others on this machine" if ratio > 1 else "others on this machine at the start"
        yield f"products took {ratio:.2f} times as long in the last rounds as in the first: {cause}"


def _plain(value: object) -> Any:
    import msgspec

    return msgspec.to_builtins(value)


def _text(machine: Machine, folder: Path) -> Iterator[str]:
    yield f"{machine.device}, {machine.ranks} ranks"
    for one in machine.figures:
        of = " ".join(f"{name}={value}" for name, value in one.of.items())
        ends = f"  ({shown(one.interval[0])} to {shown(one.interval[1])})" if one.interval else ""
        yield f"  {one.name:<26}{of:<32}{shown(one.value):>12} {one.unit}{ends}"
    for training in machine.trainings:
        left_out = f", {training.left_out_s:.4g} s predicted by the others" if training.left_out_s else ""
        took = f"{training.step_time_s:.4g} s a step of {training.steps} ± {training.deviation:.0%}{left_out}"
        yield f"  training {' '.join(training.run)}: {took}"
    yield from (f"unknown: {name}: {why}" for name, why in machine.unknown.items())
    yield from (f"warning: {text}" for text in machine.warnings)
    yield f"written: {folder / FILE}" if machine.figures else f"nothing was timed; see {folder / LOG}"
