"""Hold a box, as it was just measured, against what it or one of its kind was measured to do before. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from conf.errors import Problem
from conf.machine import Figure, Machine

SLOWER, HALF = 0.05, 0.6
"""A rate that is surely lower by that share, and the share of a link's rate below which it runs at half of it: where
the intervals of both, of then and of now, say so."""


def against(reference: Machine, here: Machine) -> Iterator[Problem]:
    """Yield why GPU-hours should not be spent on the box `here` yet: another machine, devices or links that are surely
    slower than those of the reference, and what its own measurement warns of (a rank slower than its neighbours)."""
    if here.device != reference.device:
        yield Problem("machine", "is a file of another device", here.device, reference.device, "measure here")
        return
    if here.ranks != reference.ranks:
        ranks = f"ranks={reference.ranks}"
        yield Problem("machine", "was measured with another number of ranks", str(here.ranks), ranks, "measure here")
        return
    if here.nodes != reference.nodes:
        nodes = f"nodes={reference.nodes}"
        yield Problem("machine", "was measured with another number of nodes", str(here.nodes), nodes, "measure here")
        return
    known = {_key(one): one for one in reference.figures}
    if not any(one.interval for one in reference.figures if _least(one) is not None):
        hint = "measure again with more minutes="
        yield Problem("machine", "has too few rounds for a box to be checked against it", reference.date, hint=hint)
        return
    for one in here.figures:
        before = known.get(_key(one))
        if before is None or before.interval is None or (least := _least(one)) is None:
            continue
        if _high(one, before) < least * before.interval[0]:
            share = f"{one.value / before.value:.0%} of the {before.value:.4g} {one.unit} of {reference.date[:10]}"
            cause = "a link at half rate" if least == HALF else "clocks or power are capped, heat, or others use it"
            yield Problem(" ".join(map(str, _key(one))), f"is {share}", f"{one.value:.4g} {one.unit}", hint=cause)
    # slower than its neighbours, or a pair than others; a CPU's ranks have no core of their own, only what others leave
    sick = ("rank", "node") if here.accelerator else ("node",)
    for warning in here.warnings:
        if warning.startswith(sick):
            yield Problem("machine", warning)


def _key(one: Figure) -> tuple[object, ...]:
    return one.name, *(f"{name}={value}" for name, value in sorted(one.of.items()))


def _least(one: Figure) -> float | None:
    """Return the share of the reference's rate that is the least; None of a figure that tells nothing of a sick box."""
    if one.name in ("gemm_probed", "triad_rate"):
        return 1 - SLOWER
    return HALF if one.name in ("send_rate", "all_reduce_rate") else None


def _high(one: Figure, before: Figure) -> float:
    """Return the upper end of a figure, at least as far from it as the reference's: a probe's few rounds are of some
    seconds, and spread less than the machine does."""
    own = one.interval[1] if one.interval else one.value
    return max(own, one.value * before.interval[1] / before.value) if before.interval else own
