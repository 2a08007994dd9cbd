"""Choose the work that is measured: pure. A case is one piece of work of one size on so many ranks at once;
launchers/ranks/measured_work.py runs its kinds; how much each of them computes and moves stands here."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from conf.machine import GROUPED
from estimate.step_time import KEYS_OF_HOST, length_of_host

Case = Mapping[str, Any]
"""kind, dtype, ranks, least_s (how long a timing takes at least) and the sizes of its kind; group: of ranks that
exchange in groups of so many side by side, neighbours or, with stride, so far apart."""

DTYPES = {
    "float32": ("fp32", 4),
    "tf32": ("tf32", 4),
    "bfloat16": ("bf16", 2),
    "float16": ("fp16", 2),
    "fp8": ("fp8", 1),
}
"""Name of a case: that of a precision, and bytes."""
BACKENDS = {True: ("flash", "efficient", "cudnn", "math"), False: ("flash", "math")}
"""Kernels of torch's scaled_dot_product_attention, on a GPU and on a CPU."""
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
PROBED = {True: 4096, False: 512}
"""Rows, columns and depth of the product that quick, full and probe all have, of a GPU and of a CPU: what a box is
checked by has to be of one size."""
LAYERS: Mapping[bool, Mapping[str, tuple[int, int, int]]] = {
    True: {
        "qkv": (2048, 6144, 4096),
        "projection": (2048, 4096, 4096),
        "fc1": (2048, 28672, 4096),
        "fc2": (2048, 4096, 14336),
        "output": (2048, 128256, 4096),
    },
    False: {
        "qkv": (256, 256, 128),
        "projection": (256, 128, 128),
        "fc1": (256, 704, 128),
        "fc2": (256, 128, 352),
        "output": (256, 512, 128),
    },
}
"""Products of a layer of Llama 3.1 8B, of 2,048 tokens, on a GPU, and of llama_tiny, of 256 tokens, on a CPU
(conf/model): fc1 has gate and up; no number of tokens is one of the grid's, so that none is timed twice."""
STEPS_OF_JITTER = 100
_LEAST_S = 2e-3  # a timing of many calls
_LEAST_OF_MORE_S = 25e-3
"""Several turns of the scheduler, for ranks that share cores with one another or, as a probe has to see, with other
programs: else a rank times its own turn alone."""


_LEAST_OF_WAKING_S = 0.1
"""A core that waits is halted by and by, and wakes within 10 or 60 microseconds: in 2 ms one or the other by chance."""


@dataclass(frozen=True, slots=True)
class Standard:
    """The standard model. sizes: its settings by Megatron's names; batches, sequences: what its steps are timed at;
    flops_per_token: of a training step, by sequence length; parameters: their number."""

    name: str
    sizes: Mapping[str, Any]
    batches: tuple[int, ...]
    flops_per_token: Mapping[int, float]
    parameters: int

    @property
    def sequences(self) -> tuple[int, ...]:
        return tuple(self.flops_per_token)


@dataclass(frozen=True, slots=True)
class Scope:
    """How far to measure. accelerator: whether there are GPUs; ranks: how many devices, or processes of a CPU, on all
    nodes together; cores: of the host; memory_bytes: that one rank may use; full: all sizes and many rounds, not those
    of two minutes; standard: the model whose steps are timed (measure/standard.py); probe: only what tells a sick box,
    in seconds; nodes: with as many ranks each, numbered node by node."""

    accelerator: bool
    ranks: int
    cores: int
    memory_bytes: int
    full: bool
    standard: Standard | None = None
    probe: bool = False
    nodes: int = 1

    def least_s(self, ranks: int) -> float:
        """Return how long a timing of so many ranks at once takes at least."""
        shared = self.probe or min(ranks, self.node_ranks) > self.cores
        return _LEAST_OF_MORE_S if shared and not self.accelerator else _LEAST_S

    @property
    def node_ranks(self) -> int:
        """Return how many ranks each node has."""
        return self.ranks // self.nodes

    @property
    def counts(self) -> tuple[int, ...]:
        """Return how many ranks work at once: one, powers of two, all of a node, all."""
        powers = {1 << power for power in range(self.node_ranks.bit_length()) if 1 << power < self.node_ranks}
        return tuple(sorted({*powers, self.node_ranks, self.ranks}))

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return the ranks between which links are timed: each two of a node, and each with its like on the next
        node, the last node's with the first's."""
        own, nodes = self.node_ranks, self.nodes
        within = [(node * own + a, node * own + b) for node in range(nodes) for a, b in combinations(range(own), 2)]
        nexts = {tuple(sorted((node, (node + 1) % nodes))) for node in range(nodes) if nodes > 1}
        return (*within, *((a * own + rank, b * own + rank) for a, b in sorted(nexts) for rank in range(own)))


def flops_of(case: Case) -> float:
    """Return the FLOPs of one call, a multiply-add as two; 0 of work that is bound by memory or by a link."""
    if case["kind"] in ("gemm", "grouped", "grouped_kernel", "overlap"):
        return float(2 * case["m"] * case["n"] * case["k"] * case.get("experts", 1))
    if case["kind"] in ("model", "jitter"):
        return float(case["flops"])
    if case["kind"] == "attention":  # causal: half of two products of seq × seq × channels; 2.5 times as much backward
        forward = 2.0 * case["batch"] * case["heads"] * case["seq"] ** 2 * case["channels"]
        return float(forward * (3.5 if case["backward"] else 1))
    if case["kind"] == "sdpa":
        square = 2.0 * case["batch"] * case["heads"] * case["seq"] ** 2 * case["channels"]
        return float(square * (2 - case["causal"]))
    return 0.0


def moved_bytes(case: Case) -> float:
    """Return the bytes that one call has to read and write: each operand once; of a link those of the whole tensor, one
    way."""
    if "bytes" in case:
        return float(case["bytes"])
    if case["kind"] in ("to_device", "to_host"):
        return float(case["n"])
    if case["kind"] == "data":
        return float(4 * case["batch"] * (case["seq"] + 1))
    size, kind = DTYPES[case["dtype"]][1], case["kind"]

    def operands() -> int:
        return int(case["m"] * case["k"] + case["n"] * case["k"] + case["m"] * case["n"]) * int(case.get("experts", 1))

    def heads() -> int:
        return int(4 * case["batch"] * case["heads"] * case["seq"] * case["channels"])

    elements: dict[str, Callable[[], int]] = {
        **dict.fromkeys(("gemm", "grouped", "grouped_kernel"), operands),
        **dict.fromkeys(("attention", "sdpa"), heads),
        "copy": lambda: 2 * case["n"],
        "triad": lambda: 3 * case["n"],
        "rms_norm": lambda: 2 * case["rows"] * case["width"],
        "swiglu": lambda: 3 * case["rows"] * case["width"],
        "rope": lambda: 2 * case["rows"] * (case["width"] + case["channels"]),
        "softmax": lambda: 2 * case["rows"] * case["width"],
        "adam": lambda: 7 * case["n"],  # weight and two moments read and written, the gradient read
    }
    return float(size * elements[kind]()) if kind in elements else 0.0


def needed_bytes(case: Case) -> float:
    """Return about the most memory that a case needs at once."""
    if case["kind"] == "sdpa":  # one of its kernels has all scores in memory
        return 3 * (moved_bytes(case) + float(DTYPES[case["dtype"]][1] * case["heads"] * case["seq"] ** 2))
    if case["kind"] not in ("model", "jitter"):
        return 3 * moved_bytes(case)
    sizes, width = case["model"], DTYPES[case["dtype"]][1]
    layers = sizes["num_layers"] * (10 * sizes["hidden_size"] + 4 * sizes["ffn_hidden_size"])
    activations = case["batch"] * case["seq"] * (layers * width + sizes["padded_vocab_size"] * (2 * width + 8))
    return float(16 * case["parameters"] + activations)  # weight, gradient and two moments in fp32


def cases(scope: Scope) -> tuple[Case, ...]:
    """Return what is measured of a machine, but for work that needs more than half of a rank's memory."""
    return tuple(case for case in _all(scope) if needed_bytes(case) < scope.memory_bytes / 2)


def too_large(scope: Scope) -> tuple[Case, ...]:
    """Return what is not measured, as it needs more than half of a rank's memory."""
    return tuple(case for case in _all(scope) if needed_bytes(case) >= scope.memory_bytes / 2)


def _all(scope: Scope) -> Iterator[Case]:
    if scope.probe:
        yield from _of_a_probe(scope)
        return
    yield from _kernels(scope)
    yield from _ways_of_attention(scope)
    yield from _links(scope)
    yield from _whole(scope)


def _of_a_probe(scope: Scope) -> Iterator[Case]:
    """Yield products, copies and links of all ranks at once, and each pair."""
    dtype = _usual(scope)
    for case in (*_kernels(scope), *_links(scope)):
        if case["kind"] == "send" or case["ranks"] == scope.ranks:
            known = case["dtype"] == dtype and case["kind"] in ("gemm", "triad")
            if known or case["kind"] in ("send", "all_reduce"):
                yield case


def visits(
    count: int, rounds: int, done: Mapping[tuple[int, int], bool], seed: int = 0, once: Collection[int] = ()
) -> list[tuple[int, int]]:
    """Return (round, case) in the order of visiting: every case once a round, in an order of its own, so that no drift
    of the machine falls on one kind of work. done: visits that are not made again; once: cases of the first round
    alone."""
    order = []
    for turn in range(rounds):
        indices = [index for index in range(count) if turn == 0 or index not in once]
        random.Random(seed + turn).shuffle(indices)
        order += [(turn, index) for index in indices if (turn, index) not in done]
    return order


def _kernels(scope: Scope) -> Iterator[Case]:
    for ranks, dtype in product(scope.counts, _dtypes(scope)):
        common = {"dtype": dtype, "ranks": ranks, "least_s": scope.least_s(ranks)}
        yield from (common | case for case in _dense(scope, dtype))
        yield from (case | common for case in _attention(scope))
        yield from (case | common for case in _memory_bound(scope))
        sizes = dict.fromkeys("mnk", 4096) if scope.accelerator else GROUPED
        for experts in (4, 16) if scope.full else (4,):
            yield {"kind": "grouped", **common, "experts": experts, **sizes}
            if dtype == "bfloat16" or not scope.accelerator:  # of which torch has a kernel
                yield {"kind": "grouped_kernel", **common, "experts": experts, **sizes}
    for ranks in scope.counts:
        common = {"dtype": "float32", "ranks": ranks, "least_s": scope.least_s(ranks)}
        yield {"kind": "adam", **common, "n": _large(scope)}
        yield {"kind": "launches", **common}
        if scope.accelerator:
            yield {"kind": "graph", **common}
            yield {"kind": "to_device", **common, "n": 1 << 28}
            yield {"kind": "to_host", **common, "n": 1 << 28}
        else:
            yield {"kind": "thread_launches", **common, "least_s": _LEAST_OF_WAKING_S}


def _dense(scope: Scope, dtype: str) -> Iterator[dict[str, Any]]:
    """Yield products over the grid, in the matrix units' own precision, too, and those of a model's layers."""
    more = {"float32": ("tf32",), "bfloat16": ("fp8",)}.get(dtype, ()) if scope.accelerator else ()
    for (m, n, k), one in product(_products(scope), (dtype, *more)):
        yield {"kind": "gemm", "dtype": one, "m": m, "n": n, "k": k}
    if dtype == _usual(scope) and not scope.probe:
        for layer, (m, n, k) in LAYERS[scope.accelerator].items():
            yield {"kind": "gemm", "dtype": dtype, "layer": layer, "m": m, "n": n, "k": k}


def _attention(scope: Scope) -> Iterator[dict[str, Any]]:
    """Yield attention forward, and with both passes unless that takes longer than all the rest. length, keys: four
    times the queries, and the keys, of a block, which a CPU computes whole."""
    for seq, channels, backward in product(_sequences(scope), _channels(scope), (0, 1)):
        sizes = {"batch": 1, "heads": 8, "seq": seq, "channels": channels, "backward": backward}
        if scope.accelerator:
            yield {"kind": "attention", **sizes}
        elif not backward or seq < 1024:
            block = {"length": int(length_of_host(seq)), "keys": min(KEYS_OF_HOST, seq)}
            yield {"kind": "attention", **sizes, **block}


def _ways_of_attention(scope: Scope) -> Iterator[Case]:
    """Yield attention of one rank by each kernel of torch, with few and many heads, causal and not, in full of two
    lengths."""
    common = {"kind": "sdpa", "ranks": 1, "least_s": scope.least_s(1), "batch": 1, "channels": _channels(scope)[-1]}
    longest = 4096 if scope.accelerator else 256
    lengths = (longest, longest // 2) if scope.full else (longest,)
    ways = product(lengths, _dtypes(scope), BACKENDS[scope.accelerator], (8, 32), (1, 0))
    for seq, dtype, backend, heads, causal in ways:
        yield {**common, "seq": seq, "dtype": dtype, "backend": backend, "heads": heads, "causal": causal}


def _products(scope: Scope) -> Iterator[tuple[int, int, int]]:
    """Yield rows, columns and depth: a grid in equal steps of the logarithm."""
    sizes = (256, 1024, 4096, 8192) if scope.accelerator else (32, 128, 512, 1024)
    more = sizes if scope.full else sizes[:-1]
    yield from product(more, more, more)


def _usual(scope: Scope) -> str:
    return "bfloat16" if scope.accelerator else "float32"


def _dtypes(scope: Scope) -> tuple[str, ...]:
    return ("float32", "bfloat16", "float16") if scope.accelerator else ("float32", "bfloat16")


def _sequences(scope: Scope) -> tuple[int, ...]:
    sizes = (1024, 4096, 16384, 32768) if scope.accelerator else (64, 128, 256, 512, 1024)
    return sizes if scope.full else sizes[:3]


def _channels(scope: Scope) -> tuple[int, ...]:
    return (64, 128) if scope.accelerator else (16, 64)


def _large(scope: Scope) -> int:
    return 1 << (28 if scope.accelerator else 23)  # elements: more than caches hold


def _memory_bound(scope: Scope) -> Iterator[dict[str, Any]]:
    for kind in ("copy", "triad"):
        yield {"kind": kind, "n": _large(scope)}
    for rows, width in ((4096, 4096), (8192, 8192)) if scope.accelerator else ((256, 128), (1024, 512)):
        yield {"kind": "rms_norm", "rows": rows, "width": width}
        yield {"kind": "swiglu", "rows": rows, "width": 3 * width}
        yield {"kind": "rope", "rows": rows, "width": width, "channels": _channels(scope)[0]}
        yield {"kind": "softmax", "rows": rows, "width": 8 * width}


def _whole(scope: Scope) -> Iterator[Case]:
    """Yield what is neither a kernel nor a link: steps of the standard model, files, data."""
    dtype, file_bytes = ("bfloat16", 1 << 30) if scope.accelerator else ("float32", 1 << 26)
    for ranks in sorted({1, scope.ranks}):
        common = {"dtype": dtype, "ranks": ranks, "least_s": scope.least_s(ranks)}
        if scope.standard:
            yield from _steps(scope, scope.standard, common)
        yield {"kind": "save", **common, "bytes": file_bytes}
        yield {"kind": "load", **common, "bytes": file_bytes}
        yield {"kind": "data", **common, "n": 1 << 24, "batch": 8, "seq": 4096 if scope.accelerator else 128}


def _steps(scope: Scope, standard: Standard, common: Mapping[str, Any]) -> Iterator[Case]:
    about = {**common, "name": standard.name, "model": standard.sizes, "parameters": standard.parameters}
    grid = product(standard.batches, standard.sequences) if common["ranks"] == 1 else ()
    for (batch, seq), backward in product(grid, (0, 1)):
        flops = batch * seq * standard.flops_per_token[seq] * (1 if backward else 1 / 3)
        yield {"kind": "model", **about, "batch": batch, "seq": seq, "backward": backward, "flops": flops}
    batch, seq = standard.batches[0], standard.sequences[0]
    flops = batch * seq * standard.flops_per_token[seq]
    sizes = {"batch": batch, "seq": seq, "backward": 1, "flops": flops}
    yield {"kind": "jitter", **about, **sizes, "each": STEPS_OF_JITTER, "once": True}


def _groups(scope: Scope) -> list[int]:
    """Return the sizes of groups of which a node has several side by side, as tensor parallelism makes them."""
    own = scope.node_ranks
    return [count for count in scope.counts if 1 < count < own and own % count == 0]


def _across(scope: Scope) -> list[int]:
    """Return the sizes of groups of one rank of each of so many nodes, side by side, as data parallelism makes them."""
    sizes = {scope.nodes, *(1 << power for power in range(1, scope.nodes.bit_length()))}
    return sorted(size for size in sizes if size > 1 and scope.nodes % size == 0) if scope.node_ranks > 1 else []


def group_of(case: Case) -> int:
    """Return how many ranks of a case exchange with one another: all of them, or as many as each group has."""
    return int(case.get("group", case["ranks"]))


def _links(scope: Scope) -> Iterator[Case]:
    most = 30 if scope.accelerator else 24
    powers = range(10, most + 1, 2 if scope.full else 4)
    # on a CPU a call takes 0.2 to 5 ms as cores sleep and wake
    common: dict[str, Any] = {"dtype": "float32", "least_s": _LEAST_S if scope.accelerator else _LEAST_OF_MORE_S}
    for ranks in scope.counts[1:]:
        for kind, power in product(COLLECTIVES, powers):
            yield {"kind": kind, **common, "ranks": ranks, "bytes": 1 << power}
            for group in _groups(scope) if ranks == scope.node_ranks else ():
                yield {"kind": kind, **common, "ranks": ranks, "group": group, "bytes": 1 << power}
            for group in _across(scope) if ranks == scope.ranks else ():
                apart = {"group": group, "stride": scope.node_ranks}
                yield {"kind": kind, **common, "ranks": ranks, **apart, "bytes": 1 << power}
        sizes = {"bytes": 1 << (26 if scope.accelerator else 22), **dict.fromkeys("mnk", PROBED[scope.accelerator])}
        # both are timed alone, too
        yield {"kind": "overlap", **common, "dtype": _usual(scope), "ranks": ranks, **sizes}
    for pair, power in product(scope.pairs, powers):
        yield {"kind": "send", **common, "ranks": 2, "pair": list(pair), "bytes": 1 << power}
