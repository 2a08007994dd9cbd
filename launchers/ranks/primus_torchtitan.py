"""Give TorchTitan below Primus what torchtitan_ranks.py gives it: model, samples, groups and schedule of all stacks.

TorchTitan imports this module in every rank (experimental.custom_import of its configuration), before its process
groups begin; PYTHONPATH leads here, and EXP, which Primus has of its own, to the folder of the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import plain_ranks
import torchtitan_ranks

SETTINGS = "settings.json"


class Samples(torchtitan_ranks.Samples):
    """Say on what this process runs when the groups are there: the samples are asked for then."""

    def build(self, **options: Any) -> Any:
        plain_ranks.print_facts(self.settings.seed, torchtitan=torchtitan_ranks.release(), model_code="TorchTitan")
        return super().build(**options)


def install() -> None:
    """Register it. Raises Refused: the settings, the data or this machine."""
    folder = Path(os.environ["EXP"]).parent
    os.chdir(folder)  # paths of corpora begin there, and Primus started in its checkout
    s = plain_ranks.read_settings(SETTINGS)
    plain_ranks.check_machine(s)
    torchtitan_ranks.register(s, Samples(s), plain_ranks.Reporter(s))


install()
