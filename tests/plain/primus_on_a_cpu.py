"""Run Primus' own command where there is no GPU: python primus_on_a_cpu.py CHECKOUT EXPERIMENT.yaml

Of Primus and TorchTitan nothing is edited. What is replaced is what torchtitan_ranks.on_a_cpu replaces, before Primus
imports TorchTitan, and Primus' reading of a GPU's name."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path


def main(checkout: str, experiment: str) -> None:
    os.environ["EXP"] = experiment
    os.chdir(checkout)
    sys.path[:0] = [checkout, f"{checkout}/third_party/torchtitan", str(Path(__file__).parents[2] / "launchers/ranks")]
    import torchtitan_ranks

    torchtitan_ranks.on_a_cpu()
    sys.argv = ["primus/cli/main.py", "train", "pretrain", "--config", experiment]
    runpy.run_path("primus/cli/main.py", run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
