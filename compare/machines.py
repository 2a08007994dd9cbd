"""Compare what machines were measured to do: each figure that two files of `tprimat measure` share, as a ratio with its
interval. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, hypot, log
from typing import Any, NamedTuple

from conf.errors import InputError, Problem
from conf.machine import Figure, Machine

_LESS_IS_BETTER = ("_latency", "_deviation", "launch", "jitter", "communication_", "_memory", "energy_")
_NEITHER = (
    "power",
    "clock",
    "temperature",
    "attention_backward",
    "roofline_knee",
    "gemm_rows",
    "gemm_width",
    "attention_tokens",
    "attention_channels",
)


class Ratio(NamedTuple):
    """A figure of the second machine over that of the first. interval: 95 %, of independent figures, None where either
    has none; word: better, worse, same (within `difference`), other (neither is better) or undecided."""

    name: str
    of: str
    unit: str
    values: tuple[float, float]
    ratio: float
    interval: tuple[float, float] | None
    word: str


def ratios(first: Machine, second: Machine, difference: float) -> Iterator[Ratio]:
    """Yield each figure that both have, above zero. difference: the smallest that matters, as a share."""
    others = {(one.name, *sorted(one.of.items())): one for one in second.figures}
    for one in first.figures:
        other = others.get((one.name, *sorted(one.of.items())))
        if other and other.unit == one.unit and one.value > 0 and other.value > 0:
            ratio, interval = other.value / one.value, _interval(one, other)
            of = " ".join(f"{name}={value}" for name, value in one.of.items())
            word = _word(one.name, ratio, interval, difference)
            yield Ratio(one.name, of, one.unit, (one.value, other.value), ratio, interval, word)


def _interval(one: Figure, other: Figure) -> tuple[float, float] | None:
    """Return the interval of a ratio: half widths of logarithms add as squares, up and down by themselves."""
    if one.interval is None or other.interval is None or min(*one.interval, *other.interval) <= 0:
        return None
    (low, high), (least, most) = one.interval, other.interval
    middle = log(other.value / one.value)
    down = hypot(log(other.value / least), log(high / one.value))
    up = hypot(log(most / other.value), log(one.value / low))
    return exp(middle - down), exp(middle + up)


def _word(name: str, ratio: float, interval: tuple[float, float] | None, difference: float) -> str:
    if interval is None:
        return "undecided"
    low, high = interval
    if 1 - difference < low and high < 1 + difference:
        return "same"
    if low <= 1 <= high:
        return "undecided"
    if name.startswith(_NEITHER):
        return "other"
    less = any(part in name for part in _LESS_IS_BETTER)
    return "better" if (ratio < 1) == less else "worse"


def compare_machines(paths: Sequence[str], machines: Sequence[Machine], difference: float) -> dict[str, Any]:
    """Return what `compare --json` prints of machines: each but the first against the first.
    InputError: a file stands twice, or two share no figure."""
    compared, first = [], machines[0]
    for path, machine in zip(paths[1:], machines[1:], strict=True):
        if machine == first:
            raise InputError(
                Problem(path, "is the same measurement", machine.date, hint="name that of another machine")
            )
        found = [*ratios(first, machine, difference)]
        if not found:
            what = f"shares no figure with {paths[0]}"
            raise InputError(
                Problem(path, what, f"{machine.ranks} ranks", f"{first.ranks} ranks", "measure ranks=N alike")
            )
        compared.append({"machine": _about(path, machine), "ratios": [one._asdict() for one in found]})
    return {"baseline": _about(paths[0], first), "difference": difference, "compared": compared}


def _about(path: str, machine: Machine) -> dict[str, Any]:
    return {"path": path, "device": machine.device, "host": machine.host, "date": machine.date, "ranks": machine.ranks}


def lines_of(result: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the terminal, of `compare_machines`."""
    from metrics.quantity import shown

    for one in result["compared"]:
        sides = [
            f"{about['device']} ({about['path']}, {about['date'][:10]})"
            for about in (result["baseline"], one["machine"])
        ]
        yield f"{sides[1]} against {sides[0]}"
        yield f"  {'figure':<24} {'of':<43} {'first':>17} {'second':>17} {'unit':<8} ratio"
        for row in one["ratios"]:
            first, second = map(shown, row["values"])
            ends = "({:.3g} to {:.3g})".format(*row["interval"]) if row["interval"] else "(no interval)"
            figure = f"{row['name']:<24} {row['of']:<43} {first:>17} {second:>17} {row['unit']:<8}"
            yield f"  {figure} {row['ratio']:.3g} {ends}: {row['word']}"
        words = [row["word"] for row in one["ratios"]]
        yield ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
