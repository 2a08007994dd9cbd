"""Set up what the variables below request, in every process of the vendor's: Python imports this at its start through
PYTHONPATH. Then hand over to the sitecustomize that would have been imported without it. No torch is imported.

TPRIMAT_REHEARSE=train|layout   a stand-in for torch.cuda where there is no accelerator (tprimat_standin.py)
TPRIMAT_PLAY_RANK=R, TPRIMAT_PLAY_WORLD=W   this one process plays rank R of W (there, too)
TPRIMAT_EQUAL_INIT=SEED         weights by global name (tprimat_parameters.py)
TPRIMAT_PROBE=DIR               what is built and stepped is read into DIR (tprimat_probe.py)
TPRIMAT_WARM=SOCKET             a rank that is alone, or is played, runs in a process that has imported its stack
                                (tprimat_warm.py)"""

from __future__ import annotations

import os
import sys
import time


def _set_up() -> None:
    parts = {
        "TPRIMAT_REHEARSE": ("tprimat_standin", "arm"),
        "TPRIMAT_PLAY_RANK": ("tprimat_standin", "play"),
        "TPRIMAT_EQUAL_INIT": ("tprimat_parameters", "install"),
    }
    for variable, (module, function) in parts.items():
        if os.environ.get(variable):
            getattr(__import__(module), function)()
    if os.environ.get("TPRIMAT_WARM") and (os.environ.get("TPRIMAT_PLAY_RANK") or os.environ.get("WORLD_SIZE") == "1"):
        __import__("tprimat_warm").hand_over()
    if os.environ.get("TPRIMAT_PROBE"):
        from tprimat_after_import import after

        after("torch")(_install_probe)


def _install_probe(_: object) -> None:
    """Load the probe after torch, which has loaded what it needs: before, each start of Python would pay for it."""
    started = time.perf_counter()
    import tprimat_probe

    tprimat_probe.install(started)


def _hand_over() -> None:
    """Run the first sitecustomize on the path that has not run: there may be another copy of this folder (a bundle's),
    or one that hands over to us in turn."""
    import importlib.machinery
    import importlib.util

    for entry in sys.path:
        spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [entry])
        if spec is not None and spec.loader is not None and spec.origin not in _RUN:
            _RUN.add(spec.origin)
            module = importlib.util.module_from_spec(spec)
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
            return


_RUN = vars(sys).setdefault("_tprimat_sitecustomize", set())
"""The files that have run, kept where another copy of this one can read it."""
_FIRST = not _RUN
_RUN.add(os.path.abspath(__file__))  # noqa: PTH100 - pathlib would cost each start of Python more than all else here
try:
    if _FIRST:
        _set_up()
finally:
    _hand_over()
