"""The dialects by name, the special before the general: of two that read a line of one log, the first is taken.

To add one: a module here with a `parsers.driver.Dialect` called DIALECT, and its name in this list.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from parsers.driver import Dialect, Values
from parsers.record import STEP_FIELDS

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
    module = import_module(f"{__name__}.{name}")
    return module.DIALECT if hasattr(module, "DIALECT") else _of_module(module)


def _of_module(module: ModuleType) -> Dialect:
    """Return a dialect that is still a module of its own."""

    def parse(text: str) -> Values | None:
        step = module.read_step(1, text)
        return None if step is None else {name: getattr(step, name) for name in STEP_FIELDS if name != "line"}

    return Dialect(
        framework=module.FRAMEWORK,
        looks_for=module.LOOKS_FOR,
        signs=module.SIGNS,
        marks=module.MARKS,
        startup=getattr(module, "STARTUP", ()),
        companion=module.COMPANION,
        family=getattr(module, "FAMILY", ""),
        driver=lambda dialect: module.reader(),
        parse=parse,
    )
