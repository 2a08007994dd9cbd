"""The part of the report that shows what differs in the stacks' own configuration objects, folded: by the part of a
step that a field can change, what can matter first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compare.objects import FieldRow, by_cause, text_of
from compare.report.blocks import Block, Cell, Details, Tag, table
from conf.errors import listed, some
from metrics.repeats import gathered

_BESIDE = 6  # groups that have a column each
_SHOWN = 120  # characters of a value
_WORDS: Mapping[str, str] = {
    "differs": "",
    "alone": "not in every class",
    "default": "not in every class, elsewhere at its default",
    "idle": "no effect on any side",
}


def fields_block(rows: Sequence[FieldRow]) -> list[Block]:
    """Return the folded part; nothing where nothing differs, or nothing was read."""
    if not rows:
        return []
    first = [row for row in rows if row.order[0] == 0]
    tables: list[Block] = []
    for cause, same in by_cause(first).items():
        tables += _table(f"Can change: {cause}", same)
    others = [row for row in rows if row.order[0]]
    tables += _table("Without an effect, or at a default that only some of the classes have", others)
    summary = f"{len(first)} that may matter" if first else "none that may matter"
    return [Details(f"{len(rows)} fields of the stacks' own configuration differ, {summary}", tables)]


def _table(caption: str, rows: Sequence[FieldRow]) -> list[Block]:
    labels = list(rows[0].values) if rows else []
    beside = len(labels) <= _BESIDE
    cells: list[list[Cell]] = []
    for row in rows:
        texts = {label: _text(row, label) for label in row.values}
        alike = gathered((text, label) for label, text in texts.items())
        values: list[Cell] = (
            [*texts.values()] if beside else [tuple(f"{text}: {some(by)}" for text, by in alike.items())]
        )
        note = listed([text for text in (_WORDS[row.weight], row.setting and f"read as {row.setting}") if text])
        cells.append(
            [(f"{row.object}.{row.field}", (Tag(note, "quiet"),)) if note else f"{row.object}.{row.field}", *values]
        )
    return [*table(caption, ("field", *(labels if beside else ["values"])), cells)]


def _text(row: FieldRow, label: str) -> str:
    text = text_of(row.values[label])
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
    return f"{text} (default)" if label in row.at_default else text
