"""A machine of several nodes: which links are timed, a node that is slow, and the network that estimate takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from conf import load_experiment
from conf.machine import VERSION, Machine
from estimate.figures import estimate
from measure.cases import Scope, cases
from measure.rates import Samples, figures, samples_of
from measure.suspicious import suspicious
from tests.measure.test_rates import LINK, lines_of

TWO = Scope(accelerator=True, ranks=8, cores=16, memory_bytes=80 << 30, full=False, nodes=2)
NETWORK = 0.25
"""The rate of a link between nodes, as a share of one within."""


def lines(slower: Mapping[int, float]) -> Iterator[Mapping[str, Any]]:
    """Yield the samples of two nodes of four ranks; slower: by how much a rank takes longer for any kernel."""
    known = cases(TWO)
    for line in lines_of(known, noise=0.002):
        case, factor = known[line["case"]], slower.get(line["rank"], 1.0)
        if case["kind"] == "send" and case["pair"][1] - case["pair"][0] == 4:
            factor /= NETWORK
        yield {**line, "seconds": line["seconds"] * factor}


def made(**slower: float) -> tuple[Machine, Samples]:
    samples = samples_of(cases(TWO), [*lines({int(name[1:]): factor for name, factor in slower.items()})], TWO.ranks)
    about = ("2026-11-27T00:00:00+00:00", "a", "NVIDIA H100 80GB HBM3", True, 8, TWO.cores, {"hosts": ["a", "b"]})
    return replace(Machine(VERSION, *about, tuple(figures(samples))), nodes=2), samples


def test_links_within_nodes_and_between_the_same_ranks_of_neighbours_are_timed() -> None:
    across = [pair for pair in TWO.pairs if pair[0] // 4 != pair[1] // 4]
    assert len(TWO.pairs) - len(across) == 12
    assert across == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert TWO.counts == (1, 2, 4, 8)
    four = Scope(accelerator=True, ranks=24, cores=16, memory_bytes=80 << 30, full=False, nodes=4)
    assert len([pair for pair in four.pairs if pair[0] // 6 != pair[1] // 6]) == 4 * 6, "each node with the next"
    assert four.counts == (1, 2, 4, 6, 24)


@pytest.mark.parametrize(("nodes", "sizes"), [(1, []), (2, [2]), (6, [2, 6]), (8, [2, 4, 8])])
def test_groups_of_one_rank_of_each_node_are_timed_side_by_side(nodes: int, sizes: list[int]) -> None:
    scope = Scope(accelerator=True, ranks=4 * nodes, cores=16, memory_bytes=80 << 30, full=False, nodes=nodes)
    assert sorted({case["group"] for case in cases(scope) if case.get("stride") == 4}) == sizes
    known, _ = made()
    assert known.value("all_reduce_rate", ranks=8, group=2, stride=4)
    assert known.value("all_reduce_rate", ranks=4, group=2), "of one node"


@pytest.mark.parametrize(
    ("slower", "said"),
    [
        ({}, []),
        (dict.fromkeys(("r4", "r5", "r6", "r7"), 1.2), ["node 1 (b) takes 1.2"]),
        ({"r5": 1.2}, ["rank 5 takes 1.2"]),
    ],
)
def test_a_slow_node_is_named_and_a_slow_rank_of_one(slower: Mapping[str, float], said: list[str]) -> None:
    warnings = [one for one in suspicious(*made(**slower), {}) if one.startswith(("node", "rank"))]
    assert len(warnings) == len(said)
    for warning, begin in zip(warnings, said, strict=True):
        assert warning.startswith(begin)


def test_estimate_takes_the_network_from_the_pairs_across_nodes() -> None:
    machine, _ = made()
    e = load_experiment("platform=nvidia", "model=llama31_8b", "hardware=h100", "nodes=2", "layout=data_parallel")
    jobs = estimate(e, machine=machine).jobs
    assert jobs.link_bandwidth[0] == pytest.approx(LINK, rel=0.05)
    assert jobs.nic_bandwidth[0] == pytest.approx(NETWORK * LINK, rel=0.05)
