"""Measured runs that parameters are fitted to: rows of a table with a step time, a complete layout and a batch. Shipped
ones: conf/tables/measured.csv, whose rows say where they are from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from conf.errors import InputError, Problem
from estimate.held_out import Runs
from estimate.rows import Row, jobs_of, table_rows

SHIPPED = Path(__file__).parents[1] / "conf" / "tables" / "measured.csv"
STEP_TIME = "step_time_used_s"
_OF_THE_LAYOUT = ("tp", "pp", "vp", "cp", "ep", "dp", "mbs", "gbs", "seq", "precision", "recompute", "fsdp_zero")
_MAY_LACK = frozenset({"recompute"})  # a source that states its layout and no recomputation has none


def usable(row: Row) -> bool:
    """Return whether a row decides anything: its step time is known, it is not of confidence C, and nothing that a time
    follows from was put in by default or is marked as a guess."""
    cells = row.cells
    guessed = any("?" in cells.get(name, "") for name in _OF_THE_LAYOUT)
    known = row.job is not None and row.missing <= _MAY_LACK and not guessed
    return known and _seconds(row) > 0 and cells.get("confidence", "A") != "C"


def _seconds(row: Row) -> float:
    try:
        return float(row.cells.get(STEP_TIME, "") or row.cells.get("step_time_s", ""))
    except ValueError:
        return 0.0


def runs_of(rows: Sequence[Row]) -> Runs:
    """Return the runs of usable rows. All rounds of MLPerf (mlperf-v5.0) are one source."""
    cells = [row.cells for row in rows]
    alike = tuple((c.get("source_group"), c["gpu"], c["model"], c.get("precision")) for c in cells)
    sources = tuple((c.get("source_group") or c.get("source") or "").partition("-v")[0] for c in cells)
    jobs = jobs_of([row.job for row in rows if row.job])
    return Runs(jobs, np.array([_seconds(row) for row in rows]), alike, sources)


def read_runs(path: Path = SHIPPED) -> Runs:
    """Return the usable runs of a table. InputError: it is none, or has fewer than two."""
    rows = [row for row in table_rows(path) if usable(row)]
    if len(rows) < 2:
        hint = f"columns gpu, model, tp, pp, cp, mbs, gbs, seq and {STEP_TIME}: as conf/tables/measured.csv has them"
        raise InputError(
            Problem(str(path), "has fewer than two runs with a complete layout and a step time", hint=hint)
        )
    return runs_of(rows)
