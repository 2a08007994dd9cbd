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

from conf.compose import choices
from conf.errors import ConfigError, Problem
from conf.load import load as _load
from conf.overview import summary as summary
from conf.resolve import Experiment


def load_experiment(*overrides: str) -> Experiment:
    """Return the experiment that conf/ and `overrides` (Hydra's grammar, `model=llama`, `training.seed=1`) describe.

    Raises:
        conf.errors.ConfigError: with every problem found.
    """
    return _load(overrides)


def problems(*overrides: str) -> tuple[Problem, ...]:
    """Check only: return everything that is wrong with such an experiment, its layout above all; empty if nothing."""
    try:
        _load(overrides)
    except ConfigError as error:
        return error.problems
    return ()


def models() -> tuple[str, ...]:
    """Return what `model=` takes."""
    return choices("model")


def platforms() -> tuple[str, ...]:
    """Return what `platform=` takes."""
    return choices("platform")
