"""The dialects by name, the special before the general: of two that read a line of one log, the first is taken.

To add one: a module here with a `parsers.driver.Dialect` called DIALECT, and its name in this list.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from parsers.driver import Dialect

DIALECTS = (
    "primus",
    "primus_torchtitan",
    "megatron_bridge",
    "nemo2",
    "nemo1",
    "gpt_neox",
    "megatron_deepspeed",
    "megatron",
    "torchtitan",
    "maxtext",
    "nanotron",
    "composer",
    "hf",
    "deepspeed",
    "mllog",
)


@cache
def load(name: str) -> Dialect:
    """Return the dialect of this name. ModuleNotFoundError: there is none."""
    dialect: Dialect = import_module(f"{__name__}.{name}").DIALECT
    return dialect
