"""Put together what the ranks read of the stack's configuration objects, of its code and of its environment. Where
ranks differ there is a note, and the first one's value is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from parsers.assemble import same
from parsers.read_back import Object, Process

_MOST_NOTES = 12
_OF_A_RANK = ("rank", "device", "pre_process", "post_process", "add_encoder", "add_decoder", "is_pipeline", "vp_stage")
"""A field with one of these words in its name is of a rank, or of its stage."""


def merged_objects(ranks: Sequence[tuple[int, Mapping[str, Object] | None]], notes: list[str]) -> dict[str, Object]:
    """Return every object by its short name, of the first rank that has it. notes: gets what other ranks have
    otherwise, first of all fields."""
    objects: dict[str, tuple[int, Object]] = {}
    for rank, read in ranks:
        for name, one in (read or {}).items():
            first, kept = objects.setdefault(name, (rank, one))
            apart = [f for f, value in one.fields.items() if not same(kept.fields.get(f), value) and not _of_a_rank(f)]
            for field in apart[: max(0, _MOST_NOTES - len(notes))]:
                here, there = kept.fields.get(field), one.fields[field]
                notes.append(f"probe: ranks disagree on {name}.{field}: {here} on rank {first}, {there} on rank {rank}")
    return {name: one for name, (_, one) in objects.items()}


def merged_process(ranks: Sequence[tuple[int, Process | None]], notes: list[str]) -> Process | None:
    """Return what ran, of all nodes: their faults together, and the first one's variables."""
    read = [(rank, one) for rank, one in ranks if one is not None]
    if not read:
        return None
    first_rank, first = read[0]
    for rank, one in read[1:]:
        for what in ("commits", "variables", "files"):
            ours, theirs = getattr(first, what), getattr(one, what)
            if apart := [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]:
                some = ", ".join(sorted(apart)[:_MOST_NOTES])
                notes.append(f"probe: ranks {first_rank} and {rank} have other {what}: {some}")
    return Process(
        commits=_joined(one.commits for _, one in reversed(read)),
        changed=_each(one.changed for _, one in read),
        ahead=_each(one.ahead for _, one in read),
        variables=first.variables,
        files=first.files,
    )


def _joined(mappings: Iterable[Mapping[str, str]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for mapping in mappings:
        joined |= mapping
    return joined


def _each(lists: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(lists)))


def _of_a_rank(field: str) -> bool:
    return any(word in field for word in _OF_A_RANK)
