"""The audit's part of a report: what differs and whether it may, and every setting for who wants to see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compare.comparison import Comparison
from compare.curves import Check
from compare.report.blocks import Block, Cell, Details, Paragraph, Section, Table, Tag, Tone, cell, line
from compare.report.numbers import UNKNOWN
from compare.row import Row
from compare.unlike import Unlike
from conf.errors import listed

STATES: Mapping[str, Tone] = {
    "identical": "quiet",
    "equal": "quiet",
    "varied": "plain",
    "allowed": "plain",
    "declared": "open",
    "unknown": "open",
    "not rehearsed": "open",
    "unexplained": "bad",
    "apart": "bad",
}
_ORDER = ("unexplained", "declared", "varied", "allowed")
_SIDE_BY_SIDE = 6  # groups that a page has columns for


def audit_section(comparison: Comparison) -> Section:
    """What decides first, then what differs, then everything, folded."""
    audited = comparison.audit
    differing = [row for state in _ORDER for row in audited.rows if row.state == state and differs(row)]
    differing += [row for row in audited.rows if row.state not in (*_ORDER, "identical", "unknown")]
    silent = [row for row in audited.rows if row.state in (*_ORDER, "unknown") and row not in differing]
    unknown = sorted(silent, key=lambda row: not row.decides)
    blocks: list[Block] = [Paragraph(line(_counted(audited.rows)))]
    blocks += _table("Differences", differing)
    blocks += _checks(comparison.checks)
    blocks += _unlike(audited.unlike)
    if unknown:
        blocks.append(Details(f"Not told: {len(unknown)} settings", tuple(_table("Not told by every group", unknown))))
    if audited.rows:
        blocks.append(Details(f"All {len(audited.rows)} settings", tuple(_by_kind(audited.rows))))
    return Section("Audit", tuple(blocks), "audit")


def differs(row: Row) -> bool:
    """What no group tells may differ, and is not seen to."""
    return any(found is not None for found in row.values.values())


def _counted(rows: Sequence[Row]) -> str:
    if not rows:
        return "Nothing was audited: no group has a run that counts."
    states = [row.state for row in rows]
    counts = listed([f"{states.count(state)} {state}" for state in dict.fromkeys(states)])
    return f"{len(rows)} settings and facts as they ran: {counts}."


def _by_kind(rows: Sequence[Row]) -> Iterator[Table]:
    for kind in dict.fromkeys(row.kind for row in rows):
        yield from _table(f"Kind: {kind}", [row for row in rows if row.kind == kind])


def _table(caption: str, rows: Sequence[Row]) -> Iterator[Table]:
    if not rows:
        return
    labels = list(rows[0].values)
    beside = len(labels) <= _SIDE_BY_SIDE
    heads = ("setting", "state", *(labels if beside else ["values"]))
    cells = tuple(
        ((line(row.setting), line(row.reason)), _state(row.state, row.decides), *_values(row, beside)) for row in rows
    )
    yield Table(caption, tuple(map(line, heads)), cells)


def _state(state: str, decides: bool) -> Cell:
    mark = (", ", Tag("decides", "bad")) if decides else ()
    return ((Tag(state, STATES.get(state, "plain")), *mark),)


def _values(row: Row, beside: bool) -> tuple[Cell, ...]:
    if beside:
        return tuple((UNKNOWN,) if found is None else cell(listed(found)) for found in row.values.values())
    alike: dict[str, list[str]] = {}
    for label, found in row.values.items():
        alike.setdefault("unknown" if found is None else listed(found), []).append(label)
    if len(alike) == 1:
        return (cell(next(iter(alike))),)
    return (tuple(line(f"{value}: {listed(labels)}") for value, labels in alike.items()),)


def _checks(checks: Sequence[Check]) -> Iterator[Table]:
    if not checks:
        return
    heads = ("property", "state", "first step apart", "what was found")
    rows = tuple(
        (
            cell(check.name),
            _state(check.state, check.decides),
            cell("" if check.step is None else f"{check.step}"),
            cell(check.reason),
        )
        for check in checks
    )
    yield Table("Step by step", tuple(map(line, heads)), rows)


def _unlike(found: Sequence[Unlike]) -> Iterator[Table]:
    if not found:
        return
    heads = ("run", "setting", "requested", "ran", "reason given")
    rows = tuple(
        (
            cell(item.run),
            cell(item.setting),
            cell(f"{item.requested}"),
            cell(f"{item.effective}"),
            ((Tag("none", "bad"),),) if item.declared is None else cell(item.declared),
        )
        for item in found
    )
    yield Table("Requested, and not what ran", tuple(map(line, heads)), rows)
