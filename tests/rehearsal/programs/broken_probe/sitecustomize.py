"""Breaks every function of the probe but those that keep faults and write the file. It comes behind the rehearsal's own
sitecustomize, which hands over to it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FunctionType

if "tprimat_probe" in sys.modules:
    import tprimat_probe
    import tprimat_probe_read
    import tprimat_probe_settings

    def fail(*_: object, **__: object) -> None:
        if os.environ.get("RANK"):
            Path("broken").touch()
        raise RuntimeError("drill")

    kept = {
        "guarded",
        "fault",
        "finish",
        "_write",
        "replace",
        "install",
        "after",
        "after_making",
        "_no_value",
        "__init__",
    }
    for holder in (tprimat_probe.Probe, tprimat_probe, tprimat_probe_read, tprimat_probe_settings):
        for name, value in list(vars(holder).items()):
            if isinstance(value, FunctionType) and name not in kept:
                setattr(holder, name, fail)
