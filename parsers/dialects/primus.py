"""Primus' Megatron backend, v25.9 to main: Megatron's lines in Primus' own log prefix, with AMD's additions.

Five layouts of the iteration line (order of fields, "this step/mean", memory in the middle or last) are all read by
parsers/dialects/megatron.py: it goes by the fields' names. Quirks: the console holds the lines only at level DEBUG;
from v26.3 on each line stands twice; the first two iterations have no tokens and another label for the same throughput.

What its command line sets stands before all that a backend prints, as a dictionary: where that prints no arguments, it
says what ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from conf.vocabulary import vocabulary
from parsers.dialects import megatron
from parsers.dialects.megatron import MegatronDriver
from parsers.driver import Driver, Event, Fact, Setting
from parsers.values import literal, real

OVERRIDES = "Applying CLI overrides: {"
# 'key': value, 'key': { …, or the end of that.
_PAIR = re.compile(r"'([\w.]{1,80})': (?:(\{)|('[^']{0,300}'|[^\s,{}()'\[\]]{1,60})(?=[,}]))|\}")
_RANKS = re.compile(r"\brank-\d{1,7}/(\d{1,7})\b")
_DEEPEST = 20


class OverridesDriver(Driver):
    """Reads what the command line sets: of Megatron's arguments by their names, of sections with a dot; and how many
    ranks there are, from the prefix."""

    _ranks_known = False

    def feed(self, number: int, text: str) -> Iterable[Event]:
        events = super().feed(number, text)
        if self._ranks_known or self.iteration is None or (ranks := _RANKS.search(text)) is None:
            return events
        self._ranks_known = True  # in a step's line, behind all that may state them otherwise
        return (Setting("world_size", int(ranks[1]), number), *events)

    def other(self, line: int, text: str) -> Iterator[Event]:
        path: tuple[str, ...] = ()
        names = self.dialect.known
        for pair in _PAIR.finditer(text.partition(OVERRIDES)[2]):
            key, opens, printed = pair.groups()
            if opens and len(path) < _DEEPEST:
                path = (*path, key)
            elif key is None:
                path = path[:-1]
            elif printed:
                name = ".".join((*path, key))
                setting, value = names.get(name) or vocabulary().get(name), literal(printed.strip("'"))
                known = setting is not None and setting.dump and value is not None
                if setting is not None and known and (real(value) or 0) >= 0:  # -1: to be derived
                    yield Setting(setting.name, value, line)
        yield from super().other(line, text)


class _Driver(OverridesDriver, MegatronDriver):
    _vendor_known = False

    def feed(self, number: int, text: str) -> Iterable[Event]:
        events = super().feed(number, text)
        if " arguments --" in text:
            self._vendor_known = False  # every run has its own
        if self._vendor_known or not ("hip mem usage/" in text or "AMD Instinct" in text):
            return events
        self._vendor_known = True
        return (Fact("vendor", "amd", number), *events)


DIALECT = replace(
    megatron.DIALECT,
    framework="primus",
    looks_for="Primus: its '[rank-7/8]' prefix, 'hip mem usage/free/total' or 'tokens/s/GPU' in the iteration line",
    signs=(b"hip mem usage/", b"Primus", b"tokens/s/GPU inst/harmonic", b"tokens per GPU (tokens/s/GPU)"),
    startup=(*megatron.DIALECT.startup, b"backend_version=", b"AMD Instinct", b"Final image: ", OVERRIDES.encode()),
    facts=(
        *megatron.DIALECT.facts,
        r"\bbackend_version=(?!None)(?P<megatron_version>[\w.+-]{1,40}),",
        r"\bprimus_version=(?!None)(?P<framework_version>[\w.+-]{1,40}),",
        r"(?P<device_name>AMD Instinct MI\w{3,6})",
        r"\[container\] Final image: (?P<image_started>\S{1,300})",  # runner/primus-cli-container.sh
    ),
    conversions={"megatron_version": str, "image_started": str},
    driver=_Driver,
)
