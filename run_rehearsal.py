"""What is special about the record of a rehearsal: when it has passed, and one that never began."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from conf import shapes
from conf.errors import Problem
from conf.resolve import Experiment
from launchers import rehearse
from parsers import Ending, Outcome, Record, marks
from parsers.probe_files import RankFile

LIMIT_S = {"train": 900.0, "layout": 1800.0}
"""Of a whole rehearsal. A toy takes a minute; two ranks of a large model some minutes each."""
MOST_TOLD = 4
"""Ranks whose parameters are not ours, and parameters of each that are named."""


def outcome(e: Experiment, judged: Outcome, ending: Ending, log: Path) -> Outcome:
    """`judged` as it counts for a rehearsal: one that ends in any way but by itself has not passed; playing ranks has
    no steps, and has passed when each rank came to its first one."""
    if judged.status == "completed" and ending.exit_code != 0:
        return Outcome("failed", judged.notes[0] if judged.notes else f"exit code {ending.exit_code}", judged.notes)
    if e.rehearse != "layout":
        return judged
    wanted, seen = set(rehearse.played(e)), set(_played(log))
    if ending.exit_code == 0 and wanted <= seen:
        return Outcome("completed")
    if judged.status == "failed" and judged.cause and ending.exit_code == 0:
        rank = min(wanted - seen)
        return Outcome("failed", f"rank {rank} of {e.layout.world_size} did not come to a first step: {judged.cause}")
    return judged


def _played(log: Path) -> Iterator[int]:
    """The ranks that came to their first step, by their own marks."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            rank = (marks.read_settings("rehearsed", line) or {}).get("rank")
            if type(rank) is int:
                yield rank


def against_count(record: Record, e: Experiment, files: Iterable[RankFile]) -> Record:
    """`record`, where a parameter that the probe has read in `files` is not, by name and shape, that of our own count
    (conf/shapes.py): failed if it is a rehearsal's, else noted. So is a rehearsal of which a rank tells of none.
    """
    local = record.setting("transformer_impl") == "local"
    wrong = list(islice(_miscounted(files, e, local), MOST_TOLD))
    if not wrong or record.status != "completed" or not e.rehearse:
        return replace(record, notes=(*record.notes, *wrong))
    return replace(record, status="failed", cause=wrong[0], notes=(*record.notes, *wrong[1:]))


def _miscounted(files: Iterable[RankFile], e: Experiment, local: bool) -> Iterator[str]:
    """One sentence for each rank."""
    told = {file.rank: file for file in files if file.parameters is not None}
    wanted = rehearse.played(e) if e.rehearse == "layout" else range(e.layout.world_size if e.rehearse else 0)
    yield from (f"rank {rank} left no word of its parameters" for rank in wanted if rank not in told)
    for rank, file in told.items():
        if not {"pipeline", "expert"} <= file.places.keys():
            yield f"rank {rank} does not tell its place in the layout: its parameters are held against nothing"
            continue
        built = {shapes.usual_name(p.name): p.shape for p in file.parameters or ()}
        ours = _ours(e, file, local, fused=any(name.endswith(".experts.weight1") for name in built))
        if wrong := list(_apart(built, ours)):
            counts = [sum(map(math.prod, named.values())) for named in (built, ours)]
            more = f"; and {len(wrong) - MOST_TOLD} more" if len(wrong) > MOST_TOLD else ""
            which = f"{'; '.join(wrong[:MOST_TOLD])}{more}"
            yield f"rank {rank} holds {counts[0]:,} parameters, and {counts[1]:,} by our own count: {which}"


def _ours(e: Experiment, file: RankFile, local: bool, fused: bool) -> Mapping[str, shapes.Shape]:
    sizes = shapes.Sizes(*(getattr(e.layout, name) or 1 for name in shapes.Sizes._fields))
    place = shapes.Place(file.places["pipeline"], file.places["expert"])
    return shapes.on_rank(e.model, sizes, place, local=local, fused=fused)


def _apart(built: Mapping[str, shapes.Shape], ours: Mapping[str, shapes.Shape]) -> Iterator[str]:
    for name in dict.fromkeys([*ours, *built]):
        if name not in ours:
            yield f"{name}: {built[name]}, not known to our own count"
        elif name not in built:
            yield f"{name}: absent, expected {ours[name]}"
        elif built[name] != ours[name]:
            yield f"{name}: {built[name]}, expected {ours[name]}"


def refused(about: Record, problems: Iterable[Problem]) -> Record:
    """The record of a rehearsal that could not begin."""
    first, *others = dict.fromkeys(problems)
    texts = [" ".join(str(problem).split()) for problem in (first, *others)]
    return replace(about, status="failed", cause=texts[0], notes=(*about.notes, *texts[1:]), ended_at=about.started_at)
