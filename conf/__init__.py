"""The Python door: the same frozen Experiment as the command line, and the lists of what can be requested.

```python
from tensorprimat import load_experiment, problems, summary

e = load_experiment("model=llama", "platform=nvidia")
e.training.global_batch_size, e.layout.data_parallel_size, e.hardware.peak_dense_tflops["bf16"]
print(summary(e))
problems("model=qwen", "platform=amd", "layout.tensor_model_parallel_size=8")  # what the layout check says
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conf.errors import Problem
    from conf.resolve import Experiment


def load_experiment(*overrides: str) -> Experiment:
    """Return the experiment that conf/ and `overrides` (Hydra's grammar, `model=llama`, `training.seed=1`) describe.

    Raises:
        conf.errors.ConfigError: with every problem found.
    """
    from conf.load import load

    return load(overrides)


def problems(*overrides: str) -> tuple[Problem, ...]:
    """Check only: return everything that is wrong with such an experiment, its layout above all; empty if nothing."""
    from conf.errors import ConfigError

    try:
        load_experiment(*overrides)
    except ConfigError as error:
        return error.problems
    return ()


def summary(experiment: Experiment) -> str:
    """Return `experiment` on one screen, each derived number with its reason."""
    from conf.overview import summary as overview

    return overview(experiment)


def models() -> tuple[str, ...]:
    """Return what `model=` takes."""
    from conf.compose import choices

    return choices("model")


def platforms() -> tuple[str, ...]:
    """Return what `platform=` takes."""
    from conf.compose import choices

    return choices("platform")
