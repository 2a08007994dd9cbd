"""Time pieces of work on every rank at once: what `tprimat measure` starts by torchrun, on CPU, CUDA or ROCm.

    python -m torch.distributed.run --standalone --nproc-per-node N measure_ranks.py --settings FILE.json

The settings name the visits (a case in a round), in random order. Each rank appends one line of JSON to
samples-RANK.jsonl beside them for each visit; a visit whose line is cut is made again. Needs torch and nothing else."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rank_program import die_with_parent, machine_facts, mark, say

sys.path.append(str(Path(__file__).with_name("rehearsal")))

Groups = Mapping[tuple[int, int], Any]
WARM = 0.05  # a call that is no more faster than this than the fastest before it is warm
MOST_WARM_UP = 20  # calls
_SLICE_S = 0.1  # of which work takes a share
_LOST = ("gloo/", "NCCL", "RCCL")  # in an error of a connection: another rank has died
_COUNTER = ("energy_uj", "max_energy_range_uj")


def main() -> int:
    die_with_parent()
    parser = argparse.ArgumentParser(description="one rank of tprimat measure; start it with torchrun")
    parser.add_argument("--settings", required=True, metavar="FILE.json")
    path = Path(parser.parse_args().settings)
    settings = json.loads(path.read_text(encoding="utf-8"))
    # their new names are those of torch 2.13, the old ones work everywhere
    warnings.filterwarnings("ignore", message="`torch.distributed.*is deprecated")
    at_start = _resident()
    import torch
    import torch.distributed as dist

    gpu = torch.cuda.is_available() and settings["accelerator"]
    local = int(os.environ["LOCAL_RANK"])
    if gpu:
        torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")
    hosts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, platform.node())
    if dist.get_rank() == 0:
        own = {"hosts": hosts[:: int(os.environ["LOCAL_WORLD_SIZE"])], "host_load": settings.get("host_load")}
        mark("facts", {**machine_facts(gpu), **own})
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    memory = _memory(device, at_start)
    if settings.get("engine") and dist.get_rank() == 0:  # before tensors leave room that it would fill
        memory |= _of_megatron()
    try:
        _visit_all(settings, path.parent, device)
        if dist.get_rank() == 0:
            mark("memory", memory)
        return 0
    finally:
        dist.destroy_process_group()


def _visit_all(settings: Mapping[str, Any], folder: Path, device: Any) -> None:
    import torch
    import torch.distributed as dist

    world = dist.get_world_size()
    cases = settings["cases"]
    wanted = {(world, 1), *((case["ranks"], 1) for case in cases)}
    wanted |= {(case["group"], case.get("stride", 1)) for case in cases if "group" in case}
    groups = {key: _own_group(*key) for key in sorted(wanted)}
    ends, stopped = time.monotonic() + settings["limit_s"], _Stopped()
    torch.manual_seed(dist.get_rank())
    gc.disable()
    if _timed_all(settings, folder, device, groups, ends, stopped):
        _phases(settings, folder, device, groups, stopped)


def _own_group(count: int, stride: int) -> Any:
    """Return the process group of this rank among groups of so many ranks, each so far from the next; None where they
    leave it over."""
    import torch.distributed as dist

    own, block = None, count * stride
    for start in range(0, dist.get_world_size() - block + 1, block):
        for first in range(start, start + stride):
            members = range(first, first + block, stride)
            group = dist.new_group([*members])  # by every rank, in one order
            own = group if dist.get_rank() in members else own
    return own


def _timed_all(  # noqa: PLR0913
    settings: Mapping[str, Any],
    folder: Path,
    device: Any,
    groups: Groups,
    ends: float,
    stopped: _Stopped,
) -> bool:
    """Make the visits that are left; return whether nobody ended them."""
    import torch
    import torch.distributed as dist

    rank, of_a_node = dist.get_rank(), int(os.environ["LOCAL_WORLD_SIZE"])
    with (folder / f"samples-{rank}.jsonl").open("a", encoding="utf-8") as samples:
        for done, (turn, index) in enumerate(_paused(settings["visits"], settings.get("pause_s", 0.0))):
            # the first rank decides for all, so that none waits for one that has ended
            late = torch.tensor([float(stopped.signal is not None or time.monotonic() > ends)])
            dist.all_reduce(late, dist.ReduceOp.MAX)
            if late.item():
                if rank == 0:
                    say(f"measure: stopped after {done} of {len(settings['visits'])} visits")
                return stopped.signal is None
            case = settings["cases"][index]
            if rank in case.get("pair", range(case["ranks"])):
                torch.set_num_threads(max(1, settings["cores"] // min(case["ranks"], of_a_node)))
                line = {"case": index, "round": turn, "rank": rank, **_visit(case, device, groups)}
                if device.type == "cuda" and "model" in case:
                    released()
                samples.write(json.dumps(line) + "\n")
                samples.flush()
            if rank == 0 and done % 50 == 0:
                say(f"measure: {done} of {len(settings['visits'])} visits")
    return True


def _paused(visits: Sequence[Sequence[int]], pause_s: float) -> Iterator[Sequence[int]]:
    """Yield the visits, with a pause before each round but the first."""
    for before, visit in zip([None, *visits], visits, strict=False):
        if before and before[0] != visit[0]:
            time.sleep(pause_s)
        yield visit


def _phases(settings: Mapping[str, Any], folder: Path, device: Any, groups: Groups, stopped: _Stopped) -> None:
    """Do one kind of work for some seconds on every rank, then the next, while power is sampled or counted."""
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    with (folder / f"phases-{rank}.jsonl").open("a", encoding="utf-8") as lines:
        for one in settings.get("phases", []):
            ended = torch.tensor([float(stopped.signal is not None)])
            dist.all_reduce(ended, dist.ReduceOp.MAX)
            if ended.item():
                return
            if rank == 0:
                say(f"measure: power, {one['phase']}")
            line = _sustained(one, device, groups, settings.get("counters") if rank == 0 else None)
            lines.write(json.dumps({"phase": one["phase"], "rank": rank, **line}) + "\n")
            lines.flush()


def _sustained(one: Mapping[str, Any], device: Any, groups: Groups, counters: Sequence[str] | None) -> dict[str, Any]:
    """Do work for a share of each tenth of a second; return from when to when, how many calls, and joules by the
    processors' own `counters`."""
    import torch
    import torch.distributed as dist
    from measured_work import work_of

    with torch.set_grad_enabled(bool(one["case"].get("backward"))):
        work = work_of(one["case"], device, groups) if one["share"] else None
        dist.barrier()
        before, begin = _joules(counters), time.monotonic()
        calls, now, readings = 0, begin, list[tuple[int, int]]()
        while now < begin + one["seconds"]:
            until = now + _SLICE_S * one["share"]
            while work and time.monotonic() < until:
                work()
                calls += 1
                if device.type == "cuda":
                    torch.cuda.synchronize()
            readings += _reading(device)
            if one["share"] < 1:
                time.sleep(max(0.0, now + _SLICE_S - time.monotonic()))
            now = time.monotonic()
        after = _joules(counters)
    used = None if before is None or after is None else sum(_used(*pair) for pair in zip(before, after, strict=True))
    clocks, degrees = zip(*readings, strict=True) if readings else ((), ())
    of_device = {"clock_mhz": median(clocks), "temperature_c": max(degrees)} if readings else {}
    return {"begin_s": begin, "end_s": now, "calls": calls, "joules": used, **of_device}


def _reading(device: Any) -> list[tuple[int, int]]:
    """Return a GPU's clock, MHz, and its temperature, °C; empty where torch cannot read them: it needs a package of the
    vendor's (nvidia-ml-py, amdsmi)."""
    import torch

    if device.type != "cuda":
        return []
    try:
        clock, degrees = torch.cuda.clock_rate(device), torch.cuda.temperature(device)
    except Exception:  # noqa: BLE001 - the vendors' packages have errors of their own
        return []
    known = clock and all(isinstance(one, int | float) for one in (clock, degrees))  # AMD's may be 0 or "N/A"
    return [(clock, degrees)] if known else []


def _joules(counters: Sequence[str] | None) -> list[tuple[float, float]] | None:
    """Return what each processor's energy counter says, J, and where it begins again; None where there are none."""
    if counters is None:
        return None
    return [
        tuple(int(Path(counter, name).read_text()) / 1e6 for name in _COUNTER)  # type: ignore[misc]
        for counter in counters
    ]


def _used(before: tuple[float, float], after: tuple[float, float]) -> float:
    return after[0] - before[0] + (after[1] if after[0] < before[0] else 0.0)


def _memory(device: Any, at_start: int) -> dict[str, Any]:
    """Return the bytes that torch and its process groups take without a tensor of ours: of the device what torch has
    not given out, else of this process's resident memory. at_start: of the process, before torch was imported."""
    import torch
    import torch.distributed as dist

    square = torch.ones(256, 256, device=device)
    dist.all_reduce(square @ square)
    if device.type != "cuda":
        return {"torch": _resident() - at_start, "of": "process"}
    del square
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return {"torch": total - free - torch.cuda.memory_reserved(), "of": "device"}


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _of_megatron() -> dict[str, Any]:
    """Return the bytes that importing Megatron-Core adds to the process, on a CPU without torch's compiler as in the
    engine (engine_standin.py); None where it is not installed."""
    import torch

    if not torch.cuda.is_available():
        from tprimat_light import install as leave_out_compiler

        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        leave_out_compiler()
    before = _resident()
    try:
        import megatron.core.models.gpt  # noqa: F401
    except ImportError:
        return {"engine": None}
    return {"engine": _resident() - before}


def released() -> None:
    """Free what a model held: the first step of an optimizer leaves circles (of importing torch._dynamo) that hold all
    of its tensors, which nothing else collects while times are taken."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()  # NCCL takes its own beside torch's


class _Stopped:
    """Note that somebody wants this to end, which it does after the visit that is running."""

    def __init__(self) -> None:
        self.signal: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, _: object) -> None:
        self.signal = number


def _visit(case: Mapping[str, Any], device: Any, groups: Groups) -> dict[str, Any]:
    """Return seconds of one call of the case's work, how many calls were timed and how many warmed up; or an error,
    that of this rank or that another had one: none waits for a rank that has no work."""
    import torch
    from measured_work import work_of

    alone, error = case["kind"] not in _TOGETHER, ""
    with torch.set_grad_enabled(bool(case.get("backward"))):
        try:
            seconds_of = _clock(work_of(case, device, groups), device)
            warm = _warm(seconds_of, case, groups) if alone else None
        except _REFUSALS as refused:
            error = _said(refused)
        if not _all_can(not error, case, groups):
            return {"seconds": None, "error": error or "another rank could not do it"}
        try:
            return _timed(seconds_of, warm or _warm(seconds_of, case, groups), case, groups)
        except _REFUSALS as refused:
            return {"seconds": None, "error": _said(refused)}


_REFUSALS = (RuntimeError, NotImplementedError, ValueError, OSError)
"""Errors of torch, of a dtype or size that it cannot do or that lacks memory, and of a disk that is full."""


def _said(refused: Exception) -> str:
    """Return what an error says. Raises it where it is of a connection."""
    if any(name in str(refused) for name in _LOST):
        raise refused
    return " ".join(str(refused).split())[:300]


def _clock(work: Callable[[], object], device: Any) -> Callable[[int], float]:
    """Return what makes so many calls and returns the seconds of each."""
    import torch

    def seconds_of(calls: int) -> float:
        started = time.perf_counter()
        for _ in range(calls):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - started) / calls

    return seconds_of


def _warm(seconds_of: Callable[[int], float], case: Mapping[str, Any], groups: Groups) -> tuple[float, int]:
    """Call until it is no faster any more; return the fastest call, s, and how many there were."""
    if "each" in case:
        return min(seconds_of(1) for _ in range(MOST_WARM_UP // 4)), MOST_WARM_UP // 4
    together = case["kind"] in _TOGETHER
    fastest, warm_up = seconds_of(1), 1
    while warm_up < MOST_WARM_UP:
        latest = seconds_of(1)
        warm_up += 1
        settled, fastest = latest > fastest * (1 - WARM), min(latest, fastest)
        if _agreed(settled, case, groups) if together else settled:
            break
    return fastest, warm_up


def _timed(
    seconds_of: Callable[[int], float], warm: tuple[float, int], case: Mapping[str, Any], groups: Groups
) -> dict[str, Any]:
    import torch.distributed as dist

    fastest, warm_up = warm
    calls = max(1, int(case["least_s"] / max(fastest, 1e-9)))
    if case["kind"] in _TOGETHER:  # ranks that wait for each other make as many calls
        calls = _agreed(calls, case, groups)
    if "pair" not in case:
        dist.barrier(groups[case["ranks"], 1])  # at the same time, as in training
    if count := case.get("each"):
        each = [seconds_of(1) for _ in range(count)]
        return {"seconds": sum(each) / count, "calls": count, "each": each}
    return {"seconds": seconds_of(calls), "calls": calls, "warm_up": warm_up}


def _all_can(can: bool, case: Mapping[str, Any], groups: Groups) -> bool:
    """Return whether every rank of the case can do its work."""
    import torch
    import torch.distributed as dist

    if pair := case.get("pair"):
        own, theirs, (first, second) = torch.tensor([int(can)]), torch.tensor([0]), pair
        if dist.get_rank() == first:
            dist.send(own, second)
            dist.recv(theirs, second)
        else:
            dist.recv(theirs, first)
            dist.send(own, first)
        return can and bool(theirs.item())
    return bool(_agreed(can, case, groups))


def _agreed(value: int, case: Mapping[str, Any], groups: Groups) -> int:
    """Return the least value of the ranks of the case."""
    import torch
    import torch.distributed as dist

    shared = torch.tensor([int(value)])
    if pair := case.get("pair"):
        first, second = pair
        if dist.get_rank() == first:
            dist.send(shared, second)
        else:
            dist.recv(shared, first)
    else:
        dist.all_reduce(shared, dist.ReduceOp.MIN, group=groups[case["ranks"], 1])
    return int(shared.item())


_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "overlap")


if __name__ == "__main__":
    sys.exit(main())
