"""Breaks every function of the probe but those that keep faults and write the file. It comes behind the rehearsal's own
sitecustomize, which hands over to it, and so does its hook."""

from __future__ import annotations

import os
from pathlib import Path
from types import FunctionType

KEPT = {
    *("guarded", "fault", "finish", "_write", "install", "after", "after_making", "wrap", "plain", "__init__"),
    *("_watch_loaders", "_watch_steps"),
    *("_extra_keywords", "_extra_attributes", "_unread_arguments", "_unread_config"),
}


def fail(*_: object, **__: object) -> None:
    if os.environ.get("RANK"):
        Path("broken").touch()
    raise RuntimeError("drill")


def break_all(_: object) -> None:
    import tprimat_probe

    for holder in (tprimat_probe.Probe, tprimat_probe.Tokens, tprimat_probe):
        for name, value in list(vars(holder).items()):
            if isinstance(value, FunctionType) and name not in KEPT:
                setattr(holder, name, fail)


if os.environ.get("TPRIMAT_PROBE"):
    from tprimat_after_import import after

    after("torch")(break_all)
