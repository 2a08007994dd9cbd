"""TensorPrimat from Python: describe an experiment, read runs, compare them.

from tensorprimat import compare, load_experiment, read_runs
e = load_experiment("model=llama", "platform=nvidia")
comparison = compare(read_runs("runs/nvidia", "runs/amd"))
comparison.audit.verdict.word, comparison.ratios
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conf import version

if TYPE_CHECKING:
    from compare import Comparison, Question, compare
    from conf import load_experiment
    from conf.errors import UserError
    from parsers import Run

__version__ = version.VERSION
__all__ = ["Comparison", "Question", "Run", "UserError", "__version__", "compare", "load_experiment", "read_runs"]


def read_runs(*places: str) -> tuple[Run, ...]:
    """Return the runs in or below run directories, globs and filters: read_runs("runs/", "platform=amd").

    Raises:
        UserError: no run there, or records that cannot be used, all of them.
    """
    from parsers import find_runs

    return find_runs(places)


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used, so that importing the package costs nothing."""
    if name == "load_experiment":
        from conf import load_experiment

        return load_experiment
    if name == "UserError":
        from conf.errors import UserError

        return UserError
    if name in ("Comparison", "Question", "Run", "compare"):
        import compare

        return getattr(compare, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
