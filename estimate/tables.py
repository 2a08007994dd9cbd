"""Tables in, tables out: the columns of each row unchanged, with its prediction and what was assumed for it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from conf.errors import InputError, Problem, writing
from estimate.completion import Judged, completed
from estimate.jobs import GB, Jobs
from estimate.memory import memory
from estimate.predict import predict
from estimate.rows import Row, chunks, jobs_of, read_rows
from metrics.flops import flops_per_token

ADDED = (
    *("predicted_step_time_s", "predicted_step_time_low_s", "predicted_step_time_high_s"),
    *("predicted_memory_gb", "predicted_tflops_per_gpu", "note"),
)
"""Columns of a prediction; low and high are the ends of a 95 % interval, low never faster than the GPUs' peak.
memory: what the fullest GPU shows. tflops_per_gpu: as metrics/flops.py counts, causal attention as half and no
recomputation."""


_UNSTATED = 4.0
"""Factor on the width of the interval, in logarithms, of a row without a layout: of 32 published ones nine in ten step
times lay within a factor of 2.3, where those of rows with one lay within 1.11 (November 2026)."""
_DECIDING = frozenset(("tp", "precision", "gbs"))
"""Columns without which it is so wide: of the measured runs, emptied of layout and recomputation, of the precision or
of the batch (time of a token), 67 to 75 % lie in an interval as it is, 94 to 98 in this (docs/guide/estimate.md)."""


_OF_LORA = "TFLOP/s as of training every weight: frozen ones need about a third less"


class Counts(NamedTuple):
    """Rows of a table: how many were predicted, and refused."""

    predicted: int
    refused: int


def predict_table(source: Path, target: Path) -> Counts:
    """Write the table `source` with its predictions to `target`. InputError: it is no table of runs, or one of the two
    cannot be read or written."""
    counts = Counts(0, 0)
    try:
        with source.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            header, rows, between = read_rows(file, source.name)
            if double := [name for name in ADDED if name in (text.strip().lower() for text in header)]:
                raise InputError(
                    Problem(source.name, "has a column of the result already", double[0], hint="rename it")
                )
            with writing(target), target.open("w", newline="", encoding="utf-8", errors="surrogateescape") as out:
                writer = csv.writer(out, lineterminator="\n", delimiter=between)
                writer.writerow((*header, *ADDED))
                for some in chunks(rows):
                    done = completed(some, judged)
                    writer.writerows(_lines(done, len(header)))
                    refused = sum(bool(row.refused) for row in done)
                    counts = Counts(counts.predicted + len(done) - refused, counts.refused + refused)
    except OSError as error:
        raise InputError(Problem(str(source), "cannot be read", error.strerror or str(error))) from error
    return counts


def judged(jobs: Jobs) -> Judged:
    """Return step times, and what the fullest GPU shows."""
    return Judged(predict(jobs).step_time_s, memory(jobs).on_device.max(axis=0))


def _lines(rows: Sequence[Row], width: int) -> Iterator[Sequence[str]]:
    """Yield the cells of each row: as they were, then the prediction; those beyond the header stand last."""
    known = [row for row in rows if row.job]
    predictions = iter(_predictions(known) if known else ())
    for row in rows:
        own, beyond = row.texts[:width], row.texts[width:]
        padded = (*own, *("",) * (width - len(own)))
        figures = next(predictions) if row.job else ("",) * (len(ADDED) - 1)
        note = "; ".join(row.notes) if row.job else f"not predicted: {row.refused}"
        extra = figures[len(ADDED) - 1 :]
        yield (*padded, *figures[: len(ADDED) - 1], "; ".join(filter(None, (note, *extra))), *beyond)


def _predictions(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """Yield the figures of each row, and behind them what the model says of it."""
    jobs = jobs_of([row.job for row in rows if row.job])
    predicted, bytes_ = predict(jobs), memory(jobs).on_device.max(axis=0)
    room, peak = (np.broadcast_to(column, len(rows)) for column in (jobs.memory_bytes, jobs.peak_flops))
    tokens = np.broadcast_to(jobs.global_batch_size * jobs.seq_length / jobs.world_size, len(rows))
    for at, row in enumerate(rows):
        assert row.shape is not None, row
        operations = flops_per_token(row.shape, int(row.job["seq_length"])) if row.job else 0.0
        seconds = predicted.step_time_s[at]
        wide = (predicted.high_95_s[at] / seconds) ** (_UNSTATED if row.missing & _DECIDING else 1.0)
        stated = row.job and row.job["trained"] == "pretraining" and "precision" not in row.missing
        least = operations * tokens[at] / peak[at] if stated else 0.0
        figures = [seconds, min(max(seconds / wide, least), seconds), seconds * wide, bytes_[at] / GB]
        figures.append(operations * tokens[at] / seconds / 1e12)
        over = f"{bytes_[at] / GB:.0f} GB do not fit {room[at] / GB:.0f}" if bytes_[at] > room[at] else ""
        more = _OF_LORA if row.job and row.job["trained"] == "lora" else ""
        yield (*(f"{figure:.6g}" for figure in figures), over, more, *predicted.notes[at])
