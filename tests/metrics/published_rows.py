"""Choose the rows of conf/tables/published.csv among those collected in ../shared/data/published_runs.csv.

`UPDATE_GOLDEN=1 pytest tests/metrics/test_references.py` writes the file."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from metrics.published import TABLE, Row, contradiction, models
from metrics.published import rows as published_rows

COLLECTED = Path(__file__).parents[3] / "shared" / "data" / "published_runs.csv"
_NAMED = {"A100-80": "a100", "A100-40": "a100_40gb", "H100": "h100", "H200": "h200", "B200": "b200", "B300": "b300"}
_NAMED |= {name: name.lower() for name in ("GB200", "GB300", "MI300X", "MI325X", "MI350X", "MI355X")}
_DERIVED = re.compile(r"TFLOPS|150 TFLOPs|seq taken")
_Cells = Mapping[str, str]
# Why a row is left out: the first reason that holds counts.
LEFT_OUT: tuple[tuple[str, Callable[[_Cells], bool]], ...] = (
    ("of shapes that no model has (vTrain)", lambda row: row["source_group"] == "vtrain-single"),
    ("of fewer layers than the model has", lambda row: bool(row["layers_run"])),
    ("whole trainings, stops included", lambda row: row["task"] == "pretrain-run"),
    ("of full fine-tuning, whose samples differ in length", lambda row: row["task"] == "sft"),
    ("of confidence C", lambda row: row["confidence"] not in ("A", "B")),
    ("on devices that conf/hardware does not have", lambda row: row["gpu"] not in _NAMED),
    ("without the number of GPUs or the sequence", lambda row: not row["gpus"] or not row["seq"]),
    ("whose precision or sequence was assumed", lambda row: "assumed" in row["notes"]),
    ("with a speed from TFLOP/s by a guessed count", lambda row: bool(_DERIVED.match(row["derived_how"]))),
    ("of models whose shape their source does not state", lambda row: row["model"] not in models()),
    ("without a speed", lambda row: _speed(row) is None),
    ("that contradict themselves", lambda row: bool(contradiction(shipped(row))) or _too_many(row)),
)
_FIVE_EPOCHS = 5 * 3901  # of MLPerf's GovReport: all others need fewer samples to the target


def _number(row: _Cells, name: str) -> float | None:
    """Return a cell's number; none of a utilisation that counts recomputed work."""
    match = re.match(r"[\d.]+", row[name])
    return float(match[0]) if match and "recompute" not in row[name] else None


def _speed(row: _Cells) -> float | None:
    printed, step, batch = (_number(row, name) for name in ("tokens_per_s_per_gpu", "step_time_used_s", "gbs"))
    if printed is not None or not step or not batch:
        return printed
    return batch * float(row["seq"]) / float(row["gpus"]) / step


def _too_many(row: _Cells) -> bool:
    """Return whether an MLPerf result would have trained far too many samples in its time to train at its speed."""
    minutes, batch, step = (_number(row, name) for name in ("mlperf_ttt_min", "gbs", "step_time_used_s"))
    return bool(row["task"] == "lora" and minutes and batch and step and 60 * minutes / step * batch > _FIVE_EPOCHS)


def shipped(row: _Cells) -> Row:
    """Return a collected row as it is shipped."""
    speed, batch = _speed(row) or 0.0, _number(row, "gbs")
    return Row(
        model=row["model"],
        hardware=_NAMED[row["gpu"]],
        gpus=int(row["gpus"]),
        precision=row["precision"] or None,
        task="lora" if row["task"] == "lora" else "pretraining",
        seq_length=int(row["seq"]),
        tokens_per_s_per_gpu=float(f"{speed:.5g}"),
        global_batch_size=int(batch) if batch else None,
        step_time_s=_number(row, "step_time_s"),
        tflops_per_gpu=_number(row, "tflops_per_gpu"),
        mfu_percent=_number(row, "mfu"),
        date=row["date"],
        confidence=msgspec.convert(row["confidence"], Literal["A", "B"]),
        source=row["source"].partition(" + ")[0],
    )


def _order(row: Row) -> tuple[object, ...]:
    return row.model, row.hardware, row.task, row.precision or "", row.seq_length, row.gpus, row.date, str(row)


def built() -> str:
    """Return the text of conf/tables/published.csv; rows there of other sources stay, as does what its head says."""
    with COLLECTED.open(newline="", encoding="utf-8") as file:
        collected = list(csv.DictReader(file))
    why = [next((text for text, holds in LEFT_OUT if holds(row)), "") for row in collected]
    qualify = [shipped(row) for row, text in zip(collected, why, strict=True) if not text]
    sources = {row["source"].partition(" + ")[0] for row in collected}
    rows = sorted([*qualify, *(row for row in published_rows() if row.source not in sources)], key=_order)
    beside = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("# Beside")]
    left = Counter(filter(None, why))
    table = io.StringIO()
    table.write(
        f"# {len(qualify)} published runs of the {len(collected):,} that were collected: a speed that was printed, or\n"
    )
    table.write("# follows from a printed step time or samples/s, at its source. Left out:\n")
    table.writelines(f"#   {left[text]:>5,}  {text}\n" for text, _ in LEFT_OUT)
    table.writelines(f"{line}\n" for line in beside)
    table.write("# Columns: Row in metrics/published.py. Written by tests/metrics/published_rows.py.\n")
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(Row.__struct_fields__)
    for row in rows:
        cells = [getattr(row, name) for name in Row.__struct_fields__]
        writer.writerow([f"{cell:g}" if isinstance(cell, float) else cell for cell in cells])
    return table.getvalue()
