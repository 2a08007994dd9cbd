"""Judge nodes that were looked at and timed before a run: what is a finding, and what is noise. Pure.

Times are compared round by round, all ranks at once, with the median of the others: what slows all of them slows no
ratio. Of 25 rounds the eighth smallest and the eighth largest ratio are an interval of the median's that holds in 96 %
of cases, whatever the distribution (order statistics, 1 - 2 Σ C(25, k) / 2²⁵ for k < 8; rounds one after the other are
less independent than that). A finding needs its whole interval above the bound, and its best rounds too: the quarter
of a node's rounds in which nothing came in between, beside that of the others. What is only slower in the middle, or
at times, is noise. Bounds: 5 % for nodes, 10 % for the ranks of one node, since GPUs of one machine differ by 5 % and
more (github.com/stas00/ml-engineering, MAMF). A CPU has others' work in its caches and on its hyperthreads: 25 %, and
of products alone, as an all-reduce there waits for whoever gets no core."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

SLOWER_NODE, SLOWER_RANK, SLOWER_LINK, SLOWER_CPU = 1.05, 1.10, 1.10, 1.25
HALF_RATE = 1 / 0.6
"""Times as long as by a machine's file: a link at half rate, as conf/box.py has it."""
IDLE_PERCENT, IDLE_BYTES = 5.0, 2**30
"""Most that an idle GPU may report: a driver keeps up to some hundreds of MiB for itself."""
ROUNDS, END, BEST = 25, 7, 6
"""Rounds, and which of their sorted ratios ends the interval; which of their sorted times stands for the best ones."""
Node = Mapping[str, Any]
Reference = Mapping[str, Any]


def findings(nodes: Sequence[Node], reference: Reference | None = None) -> list[dict[str, Any]]:
    """Return what speaks against a fair and fast run. nodes: as launchers/ranks/node_check.py reports them. reference:
    conf.schema.NodeReference, with the seconds that its figures make of what was timed."""
    known = [*_kinds(nodes), *_idle(nodes), *_limits(nodes), *_versions(nodes), *_links(nodes), *_slow(nodes)]
    return [*known, *(_beside(nodes, reference) if reference else ())]


def expected_s(reference: Reference, size: int, moved: int, ranks: int, world: int) -> dict[str, float]:
    """Return the seconds that a machine's file makes of a product of `size` rows, columns and depth, and of all-reduces
    of so many bytes in a node and over all."""
    seconds = {"brief_s": 2 * size**3 / reference["product_flops_per_s"]}
    groups = [("reduce_s", "node_all_reduce", ranks), ("all_s", "all_reduce", world)]
    for name, of, count in groups:
        if reference[of] and (of == "node_all_reduce" or reference["nodes"] * ranks == world):
            latency, rate = reference[of]
            seconds[name] = latency + 2 * (count - 1) / count * moved / rate
    return seconds


def _beside(nodes: Sequence[Node], reference: Reference) -> Iterator[dict[str, Any]]:
    """Yield nodes that are surely slower than a machine's file, as `_slower` judges, or have another device. The file's
    figures are means over ranks, and so are these: one slow rank is named beside its neighbours."""
    for node in nodes:
        if str(node.get("device")).lower() not in (name.lower() for name in reference["devices"]):
            text = f"has {node.get('device')}, machine= is a file of {reference['devices'][0]}"
            yield _finding(node, "another device", text)
            continue
        for name, what in (
            ("brief_s", "products"),
            ("reduce_s", "its own all-reduce"),
            ("all_s", "all-reduces of all"),
        ):
            expected = reference["expected_s"].get(name)
            if expected is None or (node.get("on_cpu") and name != "brief_s"):
                continue
            own = [fmean(of_round) for of_round in zip(*node[name], strict=True)]
            bound = HALF_RATE if name != "brief_s" else SLOWER_CPU if node.get("on_cpu") else SLOWER_NODE
            if how := _slower(own, [expected] * len(own), bound):
                text = f"takes {_times(how)} as long as by machine= (of {reference['date'][:10]}) for {what}"
                yield _finding(node, "slower than its file", text, ratio=how[0], interval=how[1:])


def summary(found: Sequence[Mapping[str, Any]]) -> str:
    """Return why a run is not started."""
    return f"preflight: {len(found)} findings: {'; '.join(str(one['text']) for one in found[:4])}"


def _finding(node: Node | None, kind: str, text: str, **more: Any) -> dict[str, Any]:
    where = {} if node is None else {"node": node["node"], "host": node["host"]}
    return {**where, "kind": kind, "text": text if node is None else f"{_name(node)}: {text}", **more}


def _name(node: Node) -> str:
    return f"node {node['node']} ({node['host']})"


def _kinds(nodes: Sequence[Node]) -> Iterator[dict[str, Any]]:
    kinds: dict[str, list[str]] = {}
    for node in nodes:
        for gpu in node["gpus"]:
            kinds.setdefault(str(gpu.get("kind")), []).append(f"{node['node']}:{gpu['index']}")
    if len(kinds) > 1:
        listed = "; ".join(f"{kind} ({len(where)}, first {where[0]})" for kind, where in sorted(kinds.items()))
        yield _finding(None, "kind", f"GPUs of several kinds (node:GPU): {listed}")
    counts = {len(node["gpus"]) for node in nodes}
    if len(counts) > 1:
        listed = ", ".join(f"{_name(node)} {len(node['gpus'])}" for node in nodes)
        yield _finding(None, "kind", f"nodes list different numbers of GPUs: {listed}")


def _idle(nodes: Sequence[Node]) -> Iterator[dict[str, Any]]:
    for node in nodes:
        if node["busy"]:
            yield _finding(node, "busy", f"others compute on its GPUs: {'; '.join(node['busy'][:4])}")
        for gpu in node["gpus"]:
            use, memory = gpu.get("use_percent") or 0.0, gpu.get("memory_used_bytes") or 0
            if use > IDLE_PERCENT or memory > IDLE_BYTES:
                yield _finding(node, "busy", f"GPU {gpu['index']} is in use: {use:.0f} %, {memory / 2**30:.1f} GiB")
            if gpu.get("uncorrected_errors"):
                yield _finding(
                    node, "errors", f"GPU {gpu['index']}: {gpu['uncorrected_errors']:.0f} uncorrected memory errors"
                )
            if gpu.get("held_back"):
                yield _finding(node, "held back", f"GPU {gpu['index']} is held back by {', '.join(gpu['held_back'])}")
            default = gpu.get("power_default_w")
            if default and gpu.get("power_limit_w") and gpu["power_limit_w"] < default:
                text = f"GPU {gpu['index']} may take {gpu['power_limit_w']:.0f} W, by default {default:.0f} W"
                yield _finding(node, "power", text)


def _limits(nodes: Sequence[Node]) -> Iterator[dict[str, Any]]:
    """Yield limits in which GPUs differ from most of them."""
    labels = {"power_limit_w": "power limit, W", "clock_limit_mhz": "clock limit, MHz", "performance_level": "level"}
    for name, label in labels.items():
        every = [(node, gpu) for node in nodes for gpu in node["gpus"] if gpu.get(name) is not None]
        values = [gpu[name] for _, gpu in every]
        if len({*values}) > 1:
            usual = max({*values}, key=lambda value: (values.count(value), str(value)))
            for node, gpu in every:
                if gpu[name] != usual:
                    text = f"GPU {gpu['index']} has {label} {gpu[name]}, most have {usual}"
                    yield _finding(node, "limit", text)


def _versions(nodes: Sequence[Node]) -> Iterator[dict[str, Any]]:
    for name in sorted({name for node in nodes for name in node["versions"]}):
        values = [node["versions"].get(name) for node in nodes]
        if len({*values}) > 1:
            listed = ", ".join(f"{_name(node)} {value}" for node, value in zip(nodes, values, strict=True))
            yield _finding(None, "version", f"{name} differs: {listed}")


def _links(nodes: Sequence[Node]) -> Iterator[dict[str, Any]]:
    """Yield pairs of GPUs that are linked otherwise than most, and nodes whose links differ from the others'."""
    every = [link for node in nodes for link in node["links"].values()]
    for node in nodes:
        own = [*node["links"].values()]
        usual = max({*own}, key=lambda link: (own.count(link), link), default=None)
        alone = own.count(usual) > len(own) * 3 / 4 and [p for p, link in node["links"].items() if link != usual]
        if alone:
            shown = ", ".join(f"{pair} {node['links'][pair]}" for pair in alone[:4])
            yield _finding(node, "link", f"GPUs are linked by {usual}, but {shown}")
    shapes = {tuple(sorted(node["links"].items())) for node in nodes}
    if len(shapes) > 1 and not any(node["unknown"].get("links") for node in nodes):
        usual = max({*every}, key=every.count)
        listed = ", ".join(f"{_name(node)} {sum(v == usual for v in node['links'].values())}" for node in nodes)
        yield _finding(None, "link", f"nodes are linked differently inside; pairs by {usual}: {listed}")


def _slow(nodes: Sequence[Node]) -> Iterator[dict[str, Any]]:
    on_cpu = any(node.get("on_cpu") for node in nodes)
    yield from _slow_nodes(nodes, "gemm_s", "products", SLOWER_CPU if on_cpu else SLOWER_NODE)
    if not on_cpu:
        yield from _slow_nodes(nodes, "reduce_s", "its own all-reduce", SLOWER_LINK)
    for node in nodes:
        if len(node["gemm_s"]) < 2:
            continue
        for rank, own in enumerate(node["gemm_s"]):
            others = [times for other, times in enumerate(node["gemm_s"]) if other != rank]
            usual = [median(of_round) for of_round in zip(*others, strict=True)]
            if how := _slower(own, usual, SLOWER_CPU if on_cpu else SLOWER_RANK):
                what = f"local rank {rank} takes {_times(how)} as long as the others of the node for products"
                yield _finding(node, "slow rank", what, ratio=how[0], interval=how[1:])
    if not on_cpu:
        yield from _slow_pairs(nodes)


def _slow_nodes(nodes: Sequence[Node], name: str, what: str, bound: float) -> Iterator[dict[str, Any]]:
    """Yield the nodes that take longer than the others. A node is as slow as its slowest rank in the round."""
    rounds = {node["node"]: [max(of_round) for of_round in zip(*node[name], strict=True)] for node in nodes}
    for node in nodes:
        others = [times for other, times in rounds.items() if other != node["node"] and times]
        if not others or not rounds[node["node"]]:
            continue
        usual = [median(of_round) for of_round in zip(*others, strict=True)]
        if how := _slower(rounds[node["node"]], usual, bound):
            text = f"takes {_times(how)} as long as the other nodes for {what}"
            yield _finding(node, "slow node", text, ratio=how[0], interval=how[1:])


def _slow_pairs(nodes: Sequence[Node]) -> Iterator[dict[str, Any]]:
    """Yield a node all of whose links to its neighbours are slow; each pair is timed by both of its nodes."""
    pairs: dict[tuple[int, int], list[float]] = {}
    for node in nodes:
        for pair in node["pairs"]:
            pairs[pair["nodes"][0], pair["nodes"][1]] = pair["seconds"]
    if len(pairs) < 3:
        return
    slow = {}
    for pair, own in pairs.items():
        others = [times for other, times in pairs.items() if other != pair]
        if how := _slower(own, [median(of_round) for of_round in zip(*others, strict=True)], SLOWER_LINK):
            slow[pair] = how
    for node in nodes:
        mine = [pair for pair in pairs if node["node"] in pair]
        if mine and all(pair in slow for pair in mine):
            how = max(slow[pair] for pair in mine)
            text = f"takes {_times(how)} as long as others for all-reduces with its neighbours"
            yield _finding(node, "slow link", text, ratio=how[0], interval=how[1:])


def _slower(own: Sequence[float], usual: Sequence[float], bound: float) -> tuple[float, float, float] | None:
    """Return the median ratio and its interval, where all of that is above the bound, and the best rounds are."""
    ratios = sorted(mine / theirs for mine, theirs in zip(own, usual, strict=True) if theirs > 0)
    if len(ratios) < ROUNDS:
        return None
    ends = ratios[END], ratios[-END - 1]
    best = sorted(own)[BEST] / sorted(usual)[BEST]
    return (median(ratios), *ends) if min(ends[0], best) > bound else None


def _times(how: tuple[float, float, float]) -> str:
    return f"{how[0]:.2f} times ({how[1]:.2f} to {how[2]:.2f})"
