"""The dialects by name, the special before the general: of two that read a line of one log, the first is taken.

To add one: a module with what `parsers.events.Dialect` asks, and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import cast

from parsers.events import Dialect

DIALECTS: Mapping[str, str] = {
    "primus": "parsers.primus",
    "primus_torchtitan": "parsers.primus_torchtitan",
    "megatron_bridge": "parsers.megatron_bridge",
    "nemo2": "parsers.nemo2",
    "nemo1": "parsers.nemo1",
    "gpt_neox": "parsers.gpt_neox",
    "megatron_deepspeed": "parsers.megatron_deepspeed",
    "megatron": "parsers.megatron",
    "torchtitan": "parsers.torchtitan",
    "maxtext": "parsers.maxtext",
    "nanotron": "parsers.nanotron",
    "composer": "parsers.composer",
    "hf": "parsers.hf",
    "deepspeed": "parsers.deepspeed",
    "mllog": "parsers.mllog",
}


@cache
def load(name: str) -> Dialect:
    """The module of a dialect. KeyError: no such dialect."""
    return cast(Dialect, import_module(DIALECTS[name]))
