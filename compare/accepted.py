"""Differences that the user accepts on the command line, each with a reason: declared from then on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from compare.curves import Check
from compare.row import Row
from compare.unlike import Unlike
from conf.errors import InputError, Problem, closest, listed

Found = tuple[tuple["Row", ...], tuple[Check, ...], tuple[Unlike, ...]]


def refuse_unknown(
    reasons: Mapping[str, str], rows: Sequence[Row], checks: Sequence[Check], unlike: Sequence[Unlike]
) -> None:
    """InputError: a key that names nothing of the audit. Without rows nothing was audited, and all pass."""
    known = {*(row.setting for row in rows), *(check.name for check in checks), *(item.setting for item in unlike)}
    wrong = [key for key in reasons if key not in known] if rows else []
    allowed = f"{listed([check.name for check in checks])}, or a setting or fact of the audit"
    if wrong:
        shown = "the keys are in the table of the audit: python -m compare RUNS -o DIR"
        hints = {key: closest(key, known) or shown for key in wrong}
        raise InputError(
            *(Problem(f"accept.{k}", "nothing of that name", k, allowed, hint) for k, hint in hints.items())
        )


def accepted(
    reasons: Mapping[str, str], rows: Sequence[Row], checks: Sequence[Check], unlike: Sequence[Unlike]
) -> Found:
    """All three with what `reasons` accepts declared."""
    return (
        tuple(_row(row, reasons.get(row.setting)) for row in rows),
        tuple(_check(check, reasons.get(check.name)) for check in checks),
        tuple(_unlike(item, reasons.get(item.setting)) for item in unlike),
    )


def _row(row: Row, reason: str | None) -> Row:
    if reason is None or not row.decides:
        return row
    what = f"accepted: {reason}" + (f" ({row.reason})" if row.reason else "")
    return replace(row, state="declared", reason=what, decides=False)


def _check(check: Check, reason: str | None) -> Check:
    if reason is None or not check.decides:
        return check
    return replace(check, state="declared", reason=f"accepted: {reason} ({check.reason})", decides=False)


def _unlike(item: Unlike, reason: str | None) -> Unlike:
    return item if reason is None or not item.decides else replace(item, declared=f"accepted: {reason}", decides=False)
