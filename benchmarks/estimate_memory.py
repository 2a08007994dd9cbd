"""Compare the predicted memory of a GPU with what published runs measured, by source.

    python benchmarks/estimate_memory.py ../shared/data/published_runs.csv          the table, in a second
    python benchmarks/estimate_memory.py ../shared/data/published_runs.csv --rows   each row, with its parts

Of a table with the columns of published runs, rows that measured memory (mem_gb) count; a row that is no job is shown
with its reason. What a source measured is in MEASURED: bytes that torch allocated, those that its allocator reserved,
or those that the device shows. The first are compared with the predicted tensors, the others with the assumed
parts, too. No constant of the model was fitted to any row.

Rows that stay bad, and why. amd-moe, amd-pipeline: the driver's figure, of layouts without a stated batch (and of
schedules that are none of Megatron's: zero-bubble, V), with 20 GB that no tensor of ours explains. torchtitan: what
the allocator reserved, of 2024 without torch.compile (6 % low: eager mode keeps a product that nothing needs), and of
405B in a pipeline with context parallelism (10 and 18 % low). tprimat: means over steps, not peaks, and layouts that
are not stated. Context parallelism of SimuMax exchanges heads (a2a) and keeps the output twice, which its rows do not
say: 1 to 3 % low, and 0.1 to 0.9 % with CP-A2A in their notes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from estimate.jobs import GB
from estimate.memory import Memory, memory
from estimate.rows import Row, jobs_of, table_rows


class Source(NamedTuple):
    """Meaning of a source's figure, and its unit in bytes."""

    kind: str
    unit: float = GB


MEASURED = {
    "simumax-b200": Source("allocated"),  # max_memory_allocated, the fullest rank
    "torchtitan": Source("reserved", 2**30),  # max_reserved_gib of its logs: the table's head says GiB
    "amd-moe": Source("device"),  # a share of 288 GB, as the driver shows it
    "amd-pipeline": Source("device"),  # of Primus' log, which reads the driver
    "tprimat": Source("allocated"),  # mean over steps, not the peak
}


class Result(NamedTuple):
    """A row, its figure and the prediction in bytes."""

    row: Row
    source: str
    measured: float
    predicted: float
    parts: dict[str, float]

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def compared(rows: Sequence[Row]) -> list[Result]:
    """Return each row that is a job, with its prediction."""
    found: Memory = memory(jobs_of([row.job for row in rows if row.job]))
    results = []
    for index, row in enumerate(row for row in rows if row.job):
        name = row.cells.get("source_group") or row.cells["id"].rpartition("-")[0]
        source = MEASURED.get(name, Source("allocated"))
        whole = {"allocated": found.allocated, "reserved": found.reserved, "device": found.on_device}[source.kind]
        parts = {part: size for part, size in found.parts(index).items() if size}
        measured = float(row.cells["mem_gb"]) * source.unit
        results.append(Result(row, name, measured, float(whole[:, index].max()), parts))
    return results


def table(results: Sequence[Result], refused: Sequence[Row]) -> str:
    """Return the errors by source."""
    lines = [f"{'source':<16}{'measured':<11}{'rows':>5}{'median':>9}{'p90':>8}{'worst':>8}{'bias':>8}"]
    for name in sorted({result.source for result in results}):
        errors = np.array([result.error for result in results if result.source == name])
        size = np.abs(errors)
        figures = (np.median(size), np.quantile(size, 0.9), size.max(), np.median(errors))
        kind = MEASURED.get(name, Source("allocated")).kind
        shown = "".join(f"{100 * figure:>{width}.1f}" for figure, width in zip(figures, (9, 8, 8, 8), strict=True))
        lines.append(f"{name:<16}{kind:<11}{len(errors):>5}{shown}")
    lines.append("errors in percent; bias is the median with its sign")
    lines += [f"not a job: {row.cells['id']}: {row.refused}" for row in refused]
    return "\n".join(lines)


def row_text(result: Result) -> str:
    """Return one row with its figure, the prediction and the parts, in GB."""
    parts = ", ".join(f"{name} {size / GB:.1f}" for name, size in result.parts.items())
    measured, predicted = result.measured / GB, result.predicted / GB
    return f"{result.row.cells['id']:<18}{measured:7.1f} GB{predicted:7.1f} {100 * result.error:+6.1f} %  {parts}"


def main() -> None:
    """Print the table, and each row where that is requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", action="store_true", help="each row, too")
    options = parser.parse_args()
    rows = [row for row in table_rows(options.file) if row.cells.get("mem_gb")]
    if not any(row.job for row in rows):
        parser.error(f"{options.file}: no row that can be predicted has a memory (mem_gb)")
    results = compared(rows)
    if options.rows:
        print("\n".join(row_text(result) for result in results))
    print(table(results, [row for row in rows if not row.job]))


if __name__ == "__main__":
    main()
