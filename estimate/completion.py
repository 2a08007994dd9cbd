"""Rows that leave a part of their layout empty: completed by the fastest of what fits the GPU, for whoever publishes a
run has tuned it. What was chosen stands in the row's notes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conf.check import divisors
from estimate.cells import count
from estimate.jobs import Jobs, Numbers
from estimate.row_shape import row_shape
from estimate.rows import Row, jobs_of, read_row
from metrics.shape import Shape

_LAYOUT = ("tp", "pp", "vp", "cp", "ep", "mbs")
_CHOSEN = (*_LAYOUT, "recompute")
_ROOM = 1.25  # of a GPU's memory: so much recomputing a part of a layer saves, with the few percent of a prediction
_POWERS = (1, 2, 4, 8, 16, 32, 64)
_MICRO, _MICRO_OF_MANY = (8, 4, 2, 1), (2, 1)
_LONG = 8_192  # tokens of a sequence, from which on context parallelism is tried
_MOST = 2_000  # ways to complete one row


class Judged(NamedTuple):
    """Step time of each job and bytes that its fullest GPU shows, shape (n,)."""

    step_time_s: Numbers
    memory_bytes: Numbers


def completed(rows: Sequence[Row], judge: Callable[[Jobs], Judged]) -> list[Row]:
    """Return `rows` with those completed that leave a part of their layout empty. A row that can be completed in no way
    stays refused."""
    ways = [_ways(row) if row.missing.intersection(_CHOSEN) else [] for row in rows]
    jobs = [way.job for way in chain(*ways) if way.job]
    if not jobs:
        return list(rows)
    table = jobs_of(jobs)
    judged = judge(table)
    fits = judged.memory_bytes <= np.broadcast_to(table.memory_bytes, len(jobs))
    done, first = list[Row](), 0
    for row, some in zip(rows, ways, strict=True):
        own = slice(first, first + len(some))
        first += len(some)
        times, sizes, fit = judged.step_time_s[own], judged.memory_bytes[own], fits[own]
        as_it_is = not some or (not row.missing.intersection(_LAYOUT) and _runs_as_it_is(some, sizes, fit))
        done.append(row if as_it_is else _best(row, some, times, sizes, fit))
    return done


def _runs_as_it_is(ways: Sequence[Row], sizes: Numbers, fits: NDArray[np.bool_]) -> bool:
    """Return whether a row that leaves its recomputation alone empty is taken to recompute nothing, as where parameters
    are fitted: not where only recomputation makes it fit."""
    room = float(ways[0].job["memory_bytes"]) if ways[0].job else 0.0
    return bool(sizes[0] <= _ROOM * room or not fits.any())


def _best(row: Row, ways: Sequence[Row], times: Numbers, sizes: Numbers, fits: NDArray[np.bool_]) -> Row:
    known = np.where(np.isnan(times), np.inf, times)
    best = int(np.argmin(np.where(fits, known, np.inf)) if fits.any() else np.argmin(sizes))
    way = ways[best]
    filled = [name for name in _CHOSEN if way.cells.get(name) and not row.cells.get(name)]
    chosen = [f"{name.upper()} {way.cells[name]}" for name in filled]
    which = f"the fastest of {fits.sum()} that fit" if fits.any() else "nothing tried fits, this needs the least"
    note = f"not stated, taken: {', '.join(chosen)} ({which})" if len(ways) > 1 else f"not stated: {', '.join(chosen)}"
    return replace(
        way, texts=row.texts, cells=row.cells, missing=row.missing.union(way.missing, filled), notes=(*way.notes, note)
    )


def _ways(row: Row) -> list[Row]:
    """Return `row` with its empty cells filled in, in all ways that are jobs."""
    some = (read_row({**row.cells, **cells}, row.number) for cells in _fillings(row))
    return [*islice((way for way in some if way.job and _accumulates(way)), _MOST)]


def _accumulates(way: Row) -> bool:
    """Return whether the micro-batches are as many as MLPerf's log says (ga=), where it does."""
    stated = re.search(r"\bga=(\d+)", way.cells.get("notes", ""))
    if stated is None or way.job is None:
        return True
    ranks = int(way.job["micro_batch_size"]) * int(way.job["data_parallel_size"])
    return int(way.job["global_batch_size"]) == int(stated[1]) * ranks


def _fillings(row: Row) -> Iterator[Mapping[str, str]]:
    """Yield values for the empty cells; least parallelism, largest micro-batch and no recomputation first."""
    gpus, shape = _count(row, "gpus"), _shape(row)
    layers, experts = (shape.num_layers, shape.num_experts) if shape else (1, 0)
    unread = {name for name in _CHOSEN if row.job is None and not row.cells.get(name)}
    missing = row.missing | unread  # of a refused row the cells behind the one that refused it were not read
    empty = [name for name in _CHOSEN if name in missing and (experts or name != "ep")]
    sizes = [size for size in _POWERS if gpus % size == 0]
    options: dict[str, Sequence[str]] = {
        "tp": [*map(str, (size for size in sizes if size <= 8))],
        "pp": [*map(str, (size for size in sizes if size <= layers))],
        "vp": [*map(str, divisors(layers)[:6] if "tp" not in empty else (1, 4))],
        "cp": [*map(str, sizes[:4] if _count(row, "seq") >= _LONG else sizes[:1])],
        "ep": [str(size) for size in sizes if experts % size == 0],
        "mbs": [*map(str, _MICRO if "tp" not in empty else _MICRO_OF_MANY)],
        "recompute": ["none", "full"],
    }
    never_even = not any(_is_even(layers, size) for size in sizes if size > 1)
    for values in product(*(options[name] for name in empty)):
        filled = dict(zip(empty, values, strict=True))
        stages, virtual = (int(filled[name]) if name in filled else _count(row, name) or 1 for name in ("pp", "vp"))
        even = _is_even(layers, stages * virtual) or (never_even and virtual == 1)
        if "vp" in filled and (not even or (stages == 1 and virtual > 1)):
            continue
        yield filled


def _is_even(layers: int, parts: int) -> bool:
    """Return whether layers divide over so many parts of a pipeline, or do with embedding and loss as a layer each."""
    return layers % parts == 0 or (parts > 1 and (layers + 2) % parts == 0)


def _shape(row: Row) -> Shape | None:
    try:
        return row_shape(row.cells).shape
    except ValueError:
        return None


def _count(row: Row, name: str) -> int:
    try:
        return count(row.cells.get(name, "").strip())
    except ValueError:
        return 0
