"""Look at every node before a run: its GPUs by the vendors' tools, a product on each rank, all-reduces within nodes,
between neighbours and over all. Started by torchrun as the run itself will be:

    python -m torch.distributed.run … node_check.py [--cpu] [--stop]

The first and the last node print what all of them report, in a mark that becomes a part of the record. --stop: exit
code 1 where something speaks against the run. Needs torch, and the files beside this one."""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from node_findings import ROUNDS, expected_s, findings, summary
from node_tools import gpus_of_node, nothing_known
from rank_program import die_with_parent, machine_facts, mark, proc_value, say, stop

GEMM = {"cpu": (512, "float32"), "cuda": (4096, "bfloat16")}
"""Rows, columns and depth of the product, and its type: those of the figure gemm_probed of `measure`."""
REDUCED_BYTES = {"cpu": 2**22, "cuda": 2**28}
WARM_S, LEAST_S = {"cpu": 0.2, "cuda": 1.0}, {"cpu": 0.1, "cuda": 0.03}
"""How long products warm up (clocks rise), and how long a timing takes at least: of a CPU turns of the scheduler."""
BRIEF_S, REST_S = 2e-3, 0.05
"""How long a timing takes that a file of `measure` is compared with, as long as in that, and the rest before it."""
WAITED = Path("/proc/thread-self/schedstat")
"""Nanoseconds that this thread ran, and that it waited for a core while others had it (Linux)."""
LIMIT = timedelta(minutes=3)
"""How long a collective may take: a node that hangs ends the run before it begins."""
VERSIONS = ("torch", "cuda", "rocm", "nccl", "cublas", "hipblaslt", "transformer_engine")


def main() -> int:
    die_with_parent()
    parser = argparse.ArgumentParser(description="look at the nodes of a run; start it with torchrun")
    parser.add_argument("--cpu", action="store_true", help="of a run on the CPU")
    parser.add_argument("--stop", action="store_true", help="exit code 1 where there is a finding")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", message="`torch.distributed.*is deprecated")
    tools = nothing_known("this run is on the CPU")
    if not given.cpu and os.environ["LOCAL_RANK"] == "0":
        tools = gpus_of_node()  # before anything of ours is on a GPU
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=LIMIT)
    try:
        reference = _reference("cpu" if given.cpu else "cuda")
        nodes = _nodes(tools, None if given.cpu else int(os.environ["LOCAL_RANK"]), reference is not None)
        found = findings(nodes, reference)
        stops = bool(found) and given.stop
        ends = (0, int(os.environ["GROUP_WORLD_SIZE"]) - 1)
        if os.environ["LOCAL_RANK"] == "0" and int(os.environ["GROUP_RANK"]) in ends:
            _report(nodes, found, stops, reference)
        dist.barrier()  # whoever ends first has the others ended, who should have reported
    finally:
        dist.destroy_process_group()
    return stop(1, f"engine: {summary(found)}", speaker="LOCAL_RANK") if stops else 0


def _reference(kind: str) -> dict[str, Any] | None:
    """Return what the plan says a node does by a file of `measure`, and what that makes of our timings; None without
    one."""
    text = os.environ.get("TPRIMAT_NODE_REFERENCE")
    if not text:
        return None
    reference, ranks = json.loads(text), int(os.environ["LOCAL_WORLD_SIZE"])
    if ranks != reference["ranks"]:
        if os.environ["RANK"] == "0":
            say(f"preflight: machine= is for {reference['ranks']} ranks a node, here are {ranks}: not checked by it")
        return None
    expected = expected_s(reference, GEMM[kind][0], REDUCED_BYTES[kind], ranks, int(os.environ["WORLD_SIZE"]))
    return {**reference, "expected_s": {name: float(f"{value:.4g}") for name, value in expected.items()}}


def _nodes(tools: dict[str, Any], gpu: int | None, briefly: bool) -> list[dict[str, Any]]:
    """Return what every node reports. gpu: the number of this rank's, None of a run on the CPU. briefly: products are
    timed as `measure` times them, too."""
    import torch
    import torch.distributed as dist

    dist.barrier()  # the tools have looked at the GPUs of every node
    if gpu is not None:
        torch.cuda.set_device(gpu)
    device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
    facts = machine_facts(gpu is not None)
    times = _times(device, briefly)
    about = {"rank": dist.get_rank(), "node": int(os.environ["GROUP_RANK"]), "tools": tools, "times": times}
    # as conf/devices.py names a CPU for `measure`
    named = facts["device_name"] if gpu is not None else proc_value("cpuinfo", "model name") or platform.machine()
    about |= {"on_cpu": gpu is None, "device": named}
    about |= {"host": os.environ.get("SLURMD_NODENAME") or socket.gethostname()}
    about |= {"versions": {name: facts[name] for name in VERSIONS if facts.get(name)}, "load": os.getloadavg()[0]}
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, about)
    return [_node([one for one in every if one["node"] == node]) for node in sorted({one["node"] for one in every})]


def _node(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the ranks of one node say, as launchers/ranks/node_findings.py takes it."""
    first = min(ranks, key=lambda one: one["rank"])
    tools, times = first["tools"], [one["times"] for one in ranks]
    own = {name: tools.get(name) for name in ("tool", "gpus", "links", "busy", "unknown")}
    driver = {"driver": tools["driver"]} if tools.get("driver") else {}
    timed = {name: [one[name] for one in times] for name in ("gemm_s", "brief_s", "reduce_s", "all_s")}
    return {
        **{name: first[name] for name in ("node", "host", "load")},
        **own,
        "versions": {**driver, **first["versions"]},
        **timed,
        **{name: first[name] for name in ("on_cpu", "device")},
        "pairs": times[0]["pairs"],
        "rates": _rates(times),
    }


def _rates(times: list[dict[str, Any]]) -> dict[str, float]:
    """Return medians over rounds: products of the node's slowest rank, and what each rank's link carries in all-reduces
    (2 (ranks - 1) / ranks of the bytes, as nccl-tests count), 4 digits."""
    slowest = max(median(one["gemm_s"]) for one in times)
    rates = {"gemm_tflops": 2 * times[0]["size"] ** 3 / slowest / 1e12}
    for name, ranks in (("reduce_s", len(times)), ("all_s", times[0]["world"])):
        if times[0][name]:
            carried = 2 * (ranks - 1) / ranks * times[0]["bytes"]
            rates[f"{name.removesuffix('_s')}_gb_s"] = carried / max(median(one[name]) for one in times) / 1e9
    return {name: float(f"{value:.4g}") for name, value in rates.items()}


def _times(device: Any, briefly: bool) -> dict[str, Any]:
    """Return the seconds of each round, of this rank: products, all-reduces of its node, with neighbours and of all."""
    import torch
    import torch.distributed as dist

    world, per_node = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    node, nodes = dist.get_rank() // per_node, world // per_node
    size, kind = GEMM[device.type]
    left, right = (torch.randn(size, size, device=device, dtype=getattr(torch, kind)) for _ in range(2))
    moved = torch.zeros(REDUCED_BYTES[device.type] // 4, device=device)

    def reducing(*of: int) -> _Work | None:
        """Return the all-reduce of some nodes, None on the others. All ranks must call it."""
        ranks = [rank for at in of for rank in range(at * per_node, (at + 1) * per_node)]
        group = dist.new_group(ranks, backend="gloo" if device.type == "cpu" else "nccl", timeout=LIMIT)
        return _Work(lambda: dist.all_reduce(moved, group=group), device) if node in of else None

    product = _Work(lambda: torch.nn.functional.linear(left, right), device, alone=device.type == "cpu")
    own = [reducing(at) for at in range(nodes)] if per_node > 1 else []
    couples = [(at, at + 1) for at in range(nodes - 1)] if nodes > 2 else []
    pairs = [reducing(*couple) for couple in couples]
    every = [reducing(*range(nodes))] if nodes > 1 else []
    _warm(product)
    brief = _brief_s(product) if briefly else []
    # even and odd couples apart: no node is in two at once
    turns: tuple[list[_Work | None], ...] = ([product], own, pairs[::2], pairs[1::2], every)
    for work in (work for of_turn in turns for work in of_turn):
        _calibrate(work)
    for _ in range(ROUNDS):
        for of_turn in turns:
            dist.barrier()
            for work in filter(None, of_turn):
                work.time()
    mine = [{"nodes": pair, "seconds": work.seconds} for pair, work in zip(couples, pairs, strict=True) if work]
    of_groups = {
        name: [s for w in works if w for s in w.seconds] for name, works in (("reduce_s", own), ("all_s", every))
    }
    about: dict[str, Any] = {"size": size, "bytes": moved.numel() * 4, "world": world}
    return {**about, **of_groups, "gemm_s": product.seconds, "brief_s": brief, "pairs": mine}


def _brief_s(product: _Work) -> list[float]:
    """Return the seconds of a product in each round as `measure` times it: few at once, after a rest. A GPU at its
    power limit is slower in many."""
    import torch.distributed as dist

    brief = _Work(product.run, product.device, alone=product.alone)
    _calibrate(brief, BRIEF_S)
    for _ in range(ROUNDS):
        dist.barrier()
        time.sleep(REST_S)
        brief.once()
        brief.time()
    return brief.seconds


def _warm(work: _Work) -> None:
    """Run it for a while. Of a CPU by one thread: what that waits for a core is known."""
    if work.device.type == "cpu":
        import torch

        torch.set_num_threads(1)
    ends = time.monotonic() + WARM_S[work.device.type]
    while time.monotonic() < ends:
        work.once()


class _Work:
    """Something that is timed again and again. calls: of one timing, the same on all ranks. alone: this thread alone
    does it, on the CPU."""

    def __init__(self, run: Callable[[], object], device: Any, *, alone: bool = False) -> None:
        self.run, self.device, self.calls, self.alone = run, device, 1, alone
        self.seconds: list[float] = []

    def once(self) -> float:
        """Return the seconds of a call."""
        _synchronize(self.device)
        started = time.perf_counter()
        for _ in range(self.calls):
            self.run()
        _synchronize(self.device)
        return (time.perf_counter() - started) / self.calls

    def time(self) -> None:
        """Note the seconds of a call, without those for which others had its core: their load is not its speed."""
        started = time.perf_counter()  # before the wait is read: none of it lies without
        before = _waited_s() if self.alone else 0.0
        seconds = self.once()
        if self.alone:
            waited = _waited_s() - before
            seconds = (time.perf_counter() - started - waited) / self.calls
        self.seconds.append(float(f"{seconds:.6g}"))


def _waited_s() -> float:
    """Return how long this thread has waited for a core so far; 0 where nobody says."""
    return int(WAITED.read_text(encoding="ascii").split()[1]) / 1e9 if WAITED.exists() else 0.0


def _calibrate(work: _Work | None, least_s: float | None = None) -> None:
    """Choose the calls of a timing, as many on every rank, also of those that have no part in it."""
    import torch
    import torch.distributed as dist

    needed = 1
    if work is not None:
        work.once()  # a first collective connects
        needed = max(1, round((least_s or LEAST_S[work.device.type]) / max(work.once(), 1e-6)))
    agreed = torch.tensor([needed])
    dist.all_reduce(agreed, dist.ReduceOp.MAX)
    if work is not None:
        work.calls = min(int(agreed.item()), 10_000)


def _synchronize(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize()


def _report(
    nodes: list[dict[str, Any]], found: list[dict[str, Any]], stops: bool, reference: dict[str, Any] | None
) -> None:
    """Print a line for each node and finding for people, and all of it as one mark. stops: they end the run."""
    for node in nodes:
        gpus = f"{len(node['gpus'])} GPUs" if node["gpus"] else f"GPUs unknown: {node['unknown'].get('gpus')}"
        rates = ", ".join(f"{name} {value:g}" for name, value in node["rates"].items())
        say(f"preflight: node {node['node']} ({node['host']}): {gpus}; {rates}")
    for one in found:
        say(f"preflight: {one['text']}")
    say(f"preflight: {len(nodes)} nodes, {len(found)} findings")
    more = {**({"stopped": summary(found)} if stops else {}), **({"reference": reference} if reference else {})}
    mark("facts", {"preflight": {"nodes": nodes, "findings": found, **more}})


if __name__ == "__main__":
    sys.exit(main())
