"""Measured runs that parameters are fitted to: rows of a table with a step time, a complete layout and a batch. Shipped
ones: conf/tables/measured.csv, whose rows say where they are from."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import inf
from pathlib import Path

import numpy as np

from conf.errors import InputError, Problem, listed, some
from estimate.held_out import Runs
from estimate.rows import EMPTY, Row, jobs_of, table_rows

SHIPPED = Path(__file__).parents[1] / "conf" / "tables" / "measured.csv"
STEP_TIME = "step_time_used_s"
_OF_THE_LAYOUT = ("tp", "pp", "vp", "cp", "ep", "dp", "mbs", "gbs", "seq", "precision", "recompute", "fsdp_zero")
_MAY_LACK = frozenset({"recompute"})  # a source that states its layout and no recomputation has none


def usable(row: Row) -> bool:
    """Return whether a row decides anything: its step time is known, it is not of confidence C, and nothing that a time
    follows from was put in by default or is marked as a guess."""
    return not _why_not(row)


def _why_not(row: Row) -> str:
    """Return why a row decides nothing; empty where it does."""
    guessed = [name for name in _OF_THE_LAYOUT if "?" in row.cells.get(name, "")]
    if row.job is None or row.missing - _MAY_LACK:
        return row.refused or f"{listed(sorted(row.missing - _MAY_LACK))} unknown"
    if guessed:
        return f"{listed(guessed)} a guess"
    if _seconds(row) is None:
        return f"step time {_stated(row) or 'unknown'}"
    return "confidence C" if row.cells.get("confidence", "A") == "C" else ""


def _stated(row: Row) -> str:
    return (row.cells.get(STEP_TIME, "") or row.cells.get("step_time_s", "")).strip()


def _seconds(row: Row) -> float | None:
    """Return the step time of a row; None where it has none, or no time."""
    with suppress(ValueError):
        seconds = float(_stated(row))
        return seconds if 0 < seconds < inf else None
    return None


def runs_of(rows: Sequence[Row]) -> Runs:
    """Return the runs of usable rows. All rounds of MLPerf (mlperf-v5.0) are one source."""
    cells = [row.cells for row in rows]
    alike = tuple((c.get("source_group"), c["gpu"], c["model"], c.get("precision")) for c in cells)
    sources = tuple((c.get("source_group") or c.get("source") or "").partition("-v")[0] for c in cells)
    jobs = jobs_of([row.job for row in rows if row.job])
    return Runs(jobs, np.array([_seconds(row) for row in rows], dtype=float), alike, sources)


def read_runs(path: Path = SHIPPED) -> Runs:
    """Return the usable runs of a table. InputError: it is none, or has fewer than two."""
    every = table_rows(path)
    no_time = [row for row in every if _seconds(row) is None and _stated(row).lower() not in ("", *EMPTY)]
    if no_time:
        allowed, hint = "seconds, above 0", "leave it empty where it is unknown"
        what = "the step time is none"
        raise InputError(*(Problem(f"{path}:{row.number + 1}", what, _stated(row), allowed, hint) for row in no_time))
    rows = [row for row in every if usable(row)]
    if len(rows) < 2:
        why = [f"line {row.number + 1}: {text}" for row in every if (text := _why_not(row))]
        what = "has fewer than two runs with a complete layout and a step time"
        hint = f"columns gpu, model, tp, pp, cp, mbs, gbs, seq and {STEP_TIME}: as conf/tables/measured.csv has them"
        raise InputError(Problem(str(path), what, some(why, between="; "), hint=hint))
    return runs_of(rows)
