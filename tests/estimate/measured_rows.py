"""Choose the rows of conf/tables/measured.csv among those collected in ../shared/data/published_runs.csv, and keep
those of MLPerf Training v5.1, which are not among them: of mlcommons/training_results_v5.1 the median logged step time,
or batch / median rate of blocks, without the first one and the evaluation; the layout is of the submitter's only
configuration whose nodes, batch and accumulation agree.

`UPDATE_GOLDEN=1 pytest tests/estimate/test_fit.py` writes the file."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from estimate.measured import SHIPPED, usable
from estimate.rows import noted, table_rows

COLLECTED = Path(__file__).parents[3] / "shared" / "data" / "published_runs.csv"
COLUMNS = (
    *("source_group", "gpu", "gpus", "nodes", "interconnect", "framework", "date", "model", "layers", "layers_run"),
    *("hidden", "ffn", "heads", "kv_heads", "vocab", "experts", "topk", "params_b", "seq", "gbs", "mbs", "tp", "pp"),
    *("vp", "cp", "ep", "dp", "fsdp_zero", "precision", "recompute", "offload_layers", "task", "step_time_used_s"),
    *("confidence", "notes", "source"),
)
LATER = "mlperf-v5.1"
LEFT_OUT = ("vtrain-single",)  # shapes that no model has, on a node that nobody describes


def built() -> str:
    """Return the text of the file. Of the notes only what the reader of rows uses is kept."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in table_rows(COLLECTED):
        if usable(row) and row.cells["source_group"] not in LEFT_OUT:
            notes = row.cells["notes"]
            used = noted(notes) or any(word in notes.lower() for word in ("mtp", "dense_layers"))
            writer.writerow({**row.cells, "notes": notes if used else ""})
    with SHIPPED.open(newline="", encoding="utf-8") as shipped:
        writer.writerows(row for row in csv.DictReader(shipped) if row["source_group"] == LATER)
    return file.getvalue()
