"""A search as people read it: the best layouts with the parts that the others lose by, the commands that run the first
three, and those that no other beats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import join
from typing import Any

from conf.errors import listed
from conf.resolve import Experiment
from estimate.jobs import GB
from estimate.layouts import command, stages_of
from estimate.search import Found, Search
from metrics.bill import Terms, bill
from metrics.quantity import Quantity, shown

_RUN = 3
_SURE = 0.05
"""Share of a GPU's memory that must be free for a layout to fit for sure (docs/guide/estimate.md, "How wrong")."""
_FRONT = 12
_NOTHING = 1e-6


def lines(result: Search, terms: Terms, typed: Sequence[str]) -> Iterator[str]:
    """Yield the tables. typed: the overrides of the search, which the commands begin with; lists of values in them are
    replaced by those of each layout."""
    for space in result.spaces:
        r, count = space.layouts.request, int(space.within.sum())
        batch = f"{r.training.global_batch_size:,} sequences of {r.training.seq_length:,} tokens"
        fit = f"{count:,} of {len(space.layouts):,} valid layouts fit the limits"
        yield f"{r.model.name} on {space.label}, {batch}: {fit}"
    several = len(result.spaces) > 1
    yield from ("", f"best in {result.objective}", _row(_HEAD))
    yield from (_row(_cells(n, found, several)) for n, found in enumerate(result.best, 1))
    if result.unfit is not None:
        taken, room = result.unfit.space.memory_bytes[result.unfit.index], result.unfit.space.room_bytes
        how = _how(result.unfit.estimate.experiment)
        needs = f"{taken / GB:,.0f} GB of {room / GB:,.0f}"
        better = "faster" if result.objective in ("throughput", "time") else "better"
        yield f"{better} but too large: {how} of {result.unfit.space.label} ({result.unfit.behind}) needs {needs}"
    columns = "".join(f"{f'{n}.':>10}" for n, _ in _numbered(result))
    yield from ("", f"{'the parts of a step, s':<22}{columns}", *_parts(result.best[:_RUN]))
    if several:
        yield from ("", "the best of each", _row(_HEAD))
        yield from (_row(_cells(n, found, True)) for n, found in enumerate(result.of_each, 1))
        yield from (
            f"{label}: {ranged(ratio)} × the best{not_decided(ratio)}; {ratio.note}" for label, ratio in result.ratios
        )
    yield from ("", *_front(result, terms))
    yield from ("", "to run", *(f"{n}. {_command(found.estimate.experiment, typed)}" for n, found in _numbered(result)))


def nearly_full(best: Found) -> Iterator[str]:
    """Yield that the best may not fit: memory is predicted to within a few percent."""
    taken, room = best.space.memory_bytes[best.index], best.space.room_bytes
    if taken > (1 - _SURE) * room:
        needs = f"the best needs {taken / GB:,.1f} GB of {room / GB:,.1f}, predicted to within a few percent"
        less = f"headroom={100 * _SURE:g}% keeps only layouts below {(1 - _SURE) * room / GB:,.0f} GB"
        yield f"memory is nearly full: {needs}; {less}"


def excluded(result: Search) -> list[str]:
    """Return why some candidates have no layout."""
    return [", ".join(filter(None, (one.what, one.found, f"allowed: {one.allowed}"))) for one in result.excluded]


def few_stages(result: Search) -> Iterator[str]:
    """Yield of whose layers no pipeline of usual length is made, which vendors' recipes cut by hand."""
    for layouts in (space.layouts for space in result.spaces):
        r, tried = layouts.request, sorted({*layouts.pp.tolist()})
        usual = range(4, min(32, r.world_size, r.model.num_layers) + 1)
        typed, lengths = r.layout.pipeline_model_parallel_size, stages_of(r)
        if typed is None and usual and not any(n in usual and r.world_size % n == 0 for n in lengths):
            what = (
                f"{r.model.num_layers} layers make a pipeline of {listed([*map(str, tried)])} stages here, and no other"
            )
            yield f"{what}: layouts by hand are not searched (method=max_performance has those of vendors' recipes)"


def to_json(result: Search, terms: Terms, typed: Sequence[str]) -> dict[str, Any]:
    """Return a search as plain data: each layout with its figures, bill, parts and command."""
    spaces = [
        {"gpus": space.label, "valid": len(space.layouts), "within": int(space.within.sum())} for space in result.spaces
    ]
    ratios = [{"gpus": label, "ratio": ratio.to_json()} for label, ratio in result.ratios]
    named = {"best": result.best, "best_of_each": result.of_each, "front": result.front}
    found = {name: [_object(one, terms, typed) for one in several] for name, several in named.items()}
    too_large = _object(result.unfit, terms, typed) if result.unfit else None
    return {
        "objective": result.objective,
        "tokens": terms.tokens,
        "spaces": spaces,
        **found,
        "faster_but_too_large": too_large,
        "ratios": ratios,
    }


def _object(found: Found, terms: Terms, typed: Sequence[str]) -> dict[str, Any]:
    e = found.estimate.experiment
    return {
        "gpus": found.space.label,
        "layout": str(e.layout),
        "micro_batch_size": e.training.micro_batch_size,
        "recompute": _recomputed(e),
        "overrides": list(command(e)),
        "command": _command(e, typed),
        "figures": {name: quantity.to_json() for name, quantity in found.estimate.figures.items()},
        "bill": {name: quantity.to_json() for name, quantity in bill(found.estimate.option, terms).items()},
        "parts_s": dict(found.parts),
        "behind": found.behind,
    }


def _numbered(result: Search) -> Iterator[tuple[int, Found]]:
    yield from enumerate(result.best[:_RUN], 1)


_HEAD = ("", "layout", "mbs", "recompute", "step time s, 95 %", "tokens/s/GPU", "memory GB", "behind the best by")
_WIDTHS = (4, 30, 5, 11, 26, 14, 11, 0)


def _recomputed(e: Experiment) -> str:
    return e.training.recompute_granularity or "none"


def _how(e: Experiment) -> str:
    return f"{e.layout}, micro-batch {e.training.micro_batch_size}, recompute {_recomputed(e)}"


def _row(cells: Sequence[str]) -> str:
    return " ".join(f"{cell:<{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _cells(number: int, found: Found, several: bool) -> tuple[str, ...]:
    e, figures = found.estimate.experiment, found.estimate.figures
    where = f"; {found.space.label}" if several else ""
    return (
        f"{number}.",
        str(e.layout),
        str(e.training.micro_batch_size),
        _recomputed(e),
        ranged(figures["step_time_mean_s"]),
        shown(figures["tokens_per_s_per_gpu"].value),
        f"{found.space.memory_bytes[found.index] / GB:,.1f}",
        f"{found.behind or 'the best'}{where}",
    )


def ranged(quantity: Quantity) -> str:
    """Return a value with the ends of its interval, without its unit."""
    if quantity.interval is None:
        return shown(quantity.value)
    low, high = quantity.interval
    return f"{shown(quantity.value)} ({shown(low, 3)} to {shown(high, 3)})"


def not_decided(ratio: Quantity) -> str:
    """Return that a ratio is not decided where its interval holds 1."""
    low, high = ratio.interval or (1.0, 1.0)
    return ", which is not decided" if low <= 1 <= high else ""


def _parts(found: Sequence[Found]) -> Iterator[str]:
    """Yield the parts of the first layouts beside each other; those that are nothing of a step of any are left out."""
    for name in found[0].parts:
        if any(one.parts[name] > _NOTHING * sum(one.parts.values()) for one in found):
            yield f"{name:<22}" + "".join(f"{shown(one.parts[name], 3):>10}" for one in found)


def _front(result: Search, terms: Terms) -> Iterator[str]:
    """Yield the layouts that no other beats, at most a dozen, evenly out of them, and what each costs."""
    every = max(1, -(-len(result.front) // _FRONT))
    some = result.front[::every]
    more = f", {len(some)} of {len(result.front)} shown" if every > 1 else ""
    yield f"not beaten in speed, cost and memory at once{more}"
    for found in some:
        figures = bill(found.estimate.option, terms)
        money = figures["total"] if figures["total"].value is not None else figures["energy_mwh"]
        speed = shown(found.estimate.figures["tokens_per_s_per_gpu"].value)
        taken = found.space.memory_bytes[found.index] / GB
        cost = f"{money} for {terms.tokens:g} tokens"
        e = found.estimate.experiment
        yield f"{_how(e):<54} {speed:>9} tokens/s/GPU {taken:>7,.1f} GB  {cost}; {found.space.label}"


def _command(e: Experiment, typed: Sequence[str]) -> str:
    """Return the command that runs a layout: what was typed, and its sizes in place of a layout's."""
    groups = {"platform": e.platform.name, "hardware": e.hardware.name, "nodes": e.nodes, "precision": e.precision.name}
    if any(text.startswith("gpus_per_node=") for text in typed):
        groups["gpus_per_node"] = e.gpus_per_node
    replaced = {text.partition("=")[0] for text in command(e)} | {*groups, "layout", "method"}
    kept = [text for text in typed if text.partition("=")[0] not in replaced]
    own = [f"{name}={value}" for name, value in groups.items()]
    return join(["tprimat", "launch", *kept, *own, *command(e)])
