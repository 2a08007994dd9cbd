"""Choose a layout by prediction, on published sweeps: rows of one model, GPUs and batch that differ in their layouts
alone. Regret is the time of the chosen layout against the best of the sweep; of the first three it is that of the
fastest of them. `.venv/bin/python benchmarks/estimate_search.py TABLE.csv`."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # before this folder, whose estimate.py has the package's name

from estimate.jobs import Numbers
from estimate.predict import predict
from estimate.rows import Row, jobs_of, table_rows

SAME = ("source_group", "framework", "model", "layers_run", "gpu", "gpus", "gbs", "seq", "precision", "task")
LAYOUT = ("tp", "pp", "vp", "cp", "ep", "dp", "mbs", "fsdp_zero", "recompute", "offload_layers")
LEAST = 3  # layouts of a sweep
APART = "vtrain-single"
"""Small models at 1,024 tokens on a box that nobody names, recomputation guessed: shown, and not in the claim."""
_TIME = "step_time_used_s"


class Sweep(NamedTuple):
    """Measured and predicted seconds of the layouts of one sweep."""

    name: str
    measured: Numbers
    predicted: Numbers

    def regret(self, first: int) -> float:
        """Return by how much the fastest of the `first` predicted ones is slower than the best, a share."""
        chosen = np.argsort(self.predicted, kind="stable")[:first]
        return float(self.measured[chosen].min() / self.measured.min() - 1)

    def spearman(self) -> float:
        """Return the correlation of the ranks."""
        ranks = [np.argsort(np.argsort(values)) for values in (self.measured, self.predicted)]
        return float(np.corrcoef(np.stack(ranks))[0, 1])

    def error(self) -> float:
        """Return the median of |predicted / measured - 1|."""
        return float(np.median(np.abs(self.predicted / self.measured - 1)))


def sweeps(rows: Sequence[Row]) -> list[Sweep]:
    """Return the sweeps among rows; of repeats of one layout the median counts."""
    groups: dict[tuple[str, ...], dict[tuple[str, ...], list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.job is not None and row.cells.get(_TIME) and row.cells.get("confidence") != "C":
            key, layout = (tuple(row.cells.get(name, "") for name in names) for names in (SAME, LAYOUT))
            groups[key][layout].append(row)
    return [_sweep(key, layouts) for key, layouts in groups.items() if len(layouts) >= LEAST]


def _sweep(key: tuple[str, ...], layouts: dict[tuple[str, ...], list[Row]]) -> Sweep:
    about = dict(zip(SAME, key, strict=True))
    name = " ".join((about["source_group"], about["model"], f"{about['gpus']} × {about['gpu']}", about["precision"]))
    measured = [float(np.median([float(row.cells[_TIME]) for row in same])) for same in layouts.values()]
    predicted = predict(jobs_of([same[0].job for same in layouts.values() if same[0].job])).step_time_s
    return Sweep(f"{name} gbs {about['gbs']} seq {about['seq']}", np.array(measured), predicted)


def main() -> None:
    """Print a row for each sweep, and the regrets by kind of source."""
    parser = argparse.ArgumentParser(description="the regret of a layout that was chosen by prediction")
    parser.add_argument("table", type=Path, help="rows with the columns of published_runs.csv")
    parser.add_argument("--all", action="store_true", help=f"print the sweeps of {APART}, too")
    arguments = parser.parse_args()
    found = sorted(sweeps(table_rows(arguments.table)), key=lambda sweep: -len(sweep.measured))
    apart = [one for one in found if one.name.startswith(APART)]
    print(f"{'sweep':<78} {'n':>3} {'spread':>7} {'top-1 %':>8} {'top-3 %':>8} {'Spearman':>9} {'median error %':>15}")
    for one in found if arguments.all else [one for one in found if one not in apart]:
        spread = one.measured.max() / one.measured.min()
        about = f"{one.name:<78} {len(one.measured):>3} {spread:>6.2f}×"
        both = f"{100 * one.regret(1):>8.1f} {100 * one.regret(3):>8.1f}"
        print(f"{about} {both} {one.spearman():>9.2f} {100 * one.error():>15.1f}")
    kinds = {"all but vtrain-single": [one for one in found if one not in apart], APART: apart}
    for (name, some), first in product(kinds.items(), (1, 3)):
        regrets = np.array([one.regret(first) for one in some if len(one.measured) > first])
        if not len(regrets):
            print(f"{name}: no sweep of more than {first} layouts")
            continue
        median, worst = 100 * np.median(regrets), 100 * regrets.max()
        mean, of = 100 * regrets.mean(), f"{len(regrets)} sweeps of more than {first} layouts"
        print(f"{name}: top-{first} regret median {median:.1f} %, mean {mean:.1f} %, worst {worst:.1f} %, of {of}")


if __name__ == "__main__":
    main()
