"""The dialects by name, the special before the general: of two that read a line of one log, the first is taken.

To add one: a module here with a `parsers.driver.Dialect` called DIALECT, and its name in this list."""

from __future__ import annotations

import re
from functools import cache

from conf.errors import ConfigError, Problem, closest, object_of
from conf.vocabulary import vocabulary
from parsers.driver import Dialect

DIALECTS = (
    *("primus", "primus_torchtitan", "megatron_bridge", "nemo2", "nemo1", "gpt_neox", "megatron_deepspeed", "megatron"),
    *("automodel", "lingua", "olmo", "levanter"),
    *("torchtitan", "maxtext", "nanotron", "composer", "hf", "deepspeed"),
    *("nanochat", "modded_nanogpt", "llm_c", "litgpt", "nanogpt", "lightning"),
    "mllog",
)


@cache
def load(name: str) -> Dialect:
    """Return the dialect of this name. ConfigError: object_of refuses it, or a named group is no setting."""
    dialect = object_of(__name__, name, "DIALECT", Dialect)
    groups = [group for pattern in dialect.settings for group in re.findall(r"\(\?P<(\w+)>", pattern)]
    if unknown := [group for group in groups if group not in vocabulary()]:
        what, hint = "a named group of `settings` is not a setting of conf/vocabulary.yaml", "`facts` takes any name"
        file = f"parsers/dialects/{name}.py"
        raise ConfigError(*(Problem(file, what, group, hint=closest(group, vocabulary()) or hint) for group in unknown))
    return dialect
