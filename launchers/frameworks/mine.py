"""framework=mine: a training script of the user's own, which takes the settings and prints our marks
(docs/guide/mine.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conf.check import wrong
from conf.errors import ConfigError, Problem
from conf.resolve import Experiment
from launchers.attribute_settings import Table, options, table
from launchers.frameworks import Framework
from launchers.plain import Plain


class Mine(Plain):
    """See launchers.plain.Plain: what the script cannot do is its own to say."""

    name = "mine"
    takes_options = True  # handed on as they are

    @property
    def table(self) -> Table:
        """See Framework: it has all settings under their canonical names."""
        return table(self.name)

    def program(self, e: Experiment) -> str:
        """See Plain."""
        return str(Path(e.framework.entry or "").resolve())

    def own(self, e: Experiment) -> dict[str, Any]:
        """See Plain."""
        return {"options": options(e)}

    def refusals(self, e: Experiment) -> Iterator[Problem]:
        """See Framework."""
        yield from Framework.refusals(self, e)
        if e.framework.entry is None or not Path(e.framework.entry).is_file():
            yield wrong(
                e, "framework.entry", "names no script", "the path of a Python file", "docs/guide/mine.md has one"
            )
        if e.bundle:
            yield Problem("bundle", "a script of your own is not taken along", str(e.bundle), "null", "leave it out")
        if e.data.name == "mock":
            yield Problem("data", "mock data are Megatron-Core's", "mock", "synthetic, or a corpus", "data=synthetic")

    def rehearsed(self, e: Experiment) -> Experiment:
        """See Framework."""
        what = "nobody knows what a script of your own reads back: it runs on a CPU as it is"
        raise ConfigError(Problem("rehearse", what, str(e.rehearse), "null", "platform=cpu framework=mine"))


FRAMEWORK = Mine()
