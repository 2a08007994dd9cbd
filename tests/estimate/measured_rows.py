"""Choose the rows of conf/tables/measured.csv among those collected in ../shared/data/published_runs.csv, and keep
those of MLPerf Training v5.1, which are not among them: of mlcommons/training_results_v5.1 the median logged step time,
or batch / median rate of blocks, without the first one and the evaluation; the layout is of the submitter's only
configuration whose nodes, batch and accumulation agree.

`UPDATE_GOLDEN=1 pytest tests/estimate/test_fit.py` writes the file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
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


_LATER = {"date": "26.02.01", "gpu": "GB300", "model": "llama3-70b"}
CORRECTIONS: tuple[tuple[Mapping[str, str], Mapping[str, str]], ...] = (
    (
        {"gpus": "256", "model": "llama3.1-405b", "precision": "nvfp4", "recompute": "full:1layers"},
        {"recompute": "none"},
    ),
    (
        {"date": "26.02.01", "gpu": "H100", "model": "qwen3-30b-a3b"},
        {"pp": "1", "vp": "1", "ep": "16", "dp": "16"},
    ),
    (_LATER | {"precision": "nvfp4"}, {"mbs": "1", "pp": "4", "vp": "5", "dp": "16"}),
    (_LATER | {"precision": "mxfp8"}, {"mbs": "1", "vp": "5"}),
)
"""Rows of Megatron-Bridge that their own recipes contradict (NVIDIA-NeMo/Megatron-Bridge scripts/performance/configs):
what is theirs, and what the recipe has. The recomputation was collected from the recipe for half as many GPUs; that of
256 sets recompute_num_layers=None (LLAMA31_405B_PRETRAIN_CONFIG_GB200_NVFP4_V2; a layer of each part was proposed and
not merged in pull request 3590 of 30 April 2026). The table of 26.02.01 repeats the layout of 26.02, which v0.3.1 has
left (pull request 2477 of 23 February 2026); 26.04 is as fast with the layout that v0.3.1 has, too. Of 70B on GB300 it
prints layouts of no recipe, of which one takes 2.8 times the memory that there is; 26.02, v0.3.1 and 26.04 have PP 4.
"""


def corrected(cells: Mapping[str, str]) -> Mapping[str, str]:
    """Return the cells of a row, without what its own source contradicts."""
    if cells.get("source_group") == "mbridge":
        for theirs, ours in CORRECTIONS:
            if all(cells.get(name) == text for name, text in theirs.items()):
                return {**cells, **ours}
    return cells


def built() -> str:
    """Return the text of the file. Of the notes only what the reader of rows uses is kept."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in table_rows(COLLECTED):
        if usable(row) and row.cells["source_group"] not in LEFT_OUT:
            notes = row.cells["notes"]
            used = noted(notes) or any(word in notes.lower() for word in ("mtp", "dense_layers"))
            writer.writerow({**corrected(row.cells), "notes": notes if used else ""})
    with SHIPPED.open(newline="", encoding="utf-8") as shipped:
        writer.writerows(row for row in csv.DictReader(shipped) if row["source_group"] == LATER)
    return file.getvalue()
