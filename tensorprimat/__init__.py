"""TensorPrimat from Python: describe an experiment, read runs, compare them.

```python
from tensorprimat import compare, load_experiment, read_runs

e = load_experiment("model=llama", "platform=nvidia")
comparison = compare(read_runs("runs/nvidia", "runs/amd"))
comparison.audit.verdict.word, comparison.ratios
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compare import Comparison, Question
    from conf import load_experiment, models, platforms, problems, summary
    from conf.errors import UserError
    from parsers import Run
    from tensorprimat.notebook import Runs
    from tensorprimat.notebook import compared as compare

__version__: str
__all__ = ["Comparison", "Question", "Run", "UserError", "__version__", "compare", "load_experiment", "read_runs"]
__all__ += ["models", "platforms", "problems", "summary"]


def read_runs(*places: str) -> Runs:
    """Return the runs in or below run directories, globs and filters: read_runs("runs/", "platform=amd"). In a notebook
    `read_runs("runs/").to_pandas()` is a table of them.
    Raises UserError: no run there, or records that cannot be used, all of them."""
    from parsers import find_runs
    from tensorprimat.notebook import Runs

    return Runs(find_runs(places))


def __getattr__(name: str) -> Any:
    """Import what is here when it is first used, so that importing the package costs nothing."""
    if name in __all__:
        import compare
        import conf
        from conf.errors import UserError
        from conf.version import VERSION
        from tensorprimat.notebook import compared

        own = {"compare": compared, "UserError": UserError, "__version__": VERSION}
        return own.get(name) or getattr(conf if hasattr(conf, name) else compare, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
