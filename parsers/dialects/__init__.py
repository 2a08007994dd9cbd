"""The dialects by name, the special before the general: of two that read a line of one log, the first is taken.

To add one: a module here with a `parsers.driver.Dialect` called DIALECT, and its name in this list."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module

from conf.errors import InputError, Problem, closest
from conf.vocabulary import vocabulary
from parsers.driver import Dialect

DIALECTS = (
    *("primus", "primus_torchtitan", "megatron_bridge", "nemo2", "nemo1", "gpt_neox", "megatron_deepspeed", "megatron"),
    *("torchtitan", "maxtext", "nanotron", "composer", "hf", "deepspeed"),
    "mllog",
)


@cache
def load(name: str) -> Dialect:
    """Return the dialect of this name.
    InputError: its module or the module's DIALECT is missing, or a named group of its settings is no setting."""
    file = f"parsers/dialects/{name}.py"
    try:
        module = import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        what, hint = "is missing, and parsers/dialects/__init__.py lists it", "parsers/README.md, Add a dialect"
        raise InputError(Problem(file, what, hint=hint)) from error
    dialect = getattr(module, "DIALECT", None)
    if not isinstance(dialect, Dialect):
        raise InputError(Problem(file, "has no DIALECT", hint="DIALECT = Dialect(…), as in parsers/README.md"))
    groups = [group for pattern in dialect.settings for group in re.findall(r"\(\?P<(\w+)>", pattern)]
    unknown = [group for group in groups if group not in vocabulary()]
    if unknown:
        what = "a named group of `settings` is not a setting of conf/vocabulary.yaml"
        raise InputError(*(Problem(file, what, group, hint=closest(group, vocabulary())) for group in unknown))
    return dialect
