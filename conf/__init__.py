"""The Python door: the same frozen Experiment as the command line, and the lists of what can be asked for.

from conf import load_experiment
e = load_experiment("model=llama", "platform=nvidia")
e.training.global_batch_size, e.layout.data_parallel_size, e.hardware.peak_dense_tflops["bf16"]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conf.resolve import Experiment


def load_experiment(*overrides: str) -> Experiment:
    """The experiment that conf/ and `overrides` (Hydra's grammar, `model=llama`, `training.seed=1`) describe.

    Raises:
        conf.errors.ConfigError: with every problem found.
    """
    from conf.load import load

    return load(overrides)


def models() -> tuple[str, ...]:
    """What `model=` takes."""
    from conf.compose import choices

    return choices("model")


def platforms() -> tuple[str, ...]:
    """What `platform=` takes."""
    from conf.compose import choices

    return choices("platform")
