"""Requested against effective, within one run; and the reasons that its config gives for what it has on purpose.
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conf.vocabulary import vocabulary
from parsers import Declaration, Record, Run
from parsers.assemble import differences, same

NEVER_READ = "probe_never_read"
"""Keys that were written for a framework and that its programs never looked at (parsers/probe.py)."""


@dataclass(frozen=True, slots=True)
class Unlike:
    """A setting that a run was asked for and did not get. declared: the reason given for it. decides: alone it forbids
    the comparison."""

    run: str
    setting: str
    requested: Any
    effective: Any
    declared: str | None
    decides: bool


def unlike_of(run: Run) -> Iterator[Unlike]:
    """All of a run. Made anew: a record edited by hand may hold an old list."""
    record = run.record
    for found in differences(record.requested, record.effective):
        reason = declared_by([run], found.setting)
        yield Unlike(record.id, found.setting, found.requested, found.effective, reason, decides=reason is None)
    never = record.environment.get(NEVER_READ)
    for key in never if isinstance(never, list | tuple) else ():
        # A setting that is told otherwise, or told as asked for, has been judged by what ran.
        if str(key) not in record.effective:
            asked = record.requested.get(str(key), "written")
            reason = declared_by([run], str(key))
            decides = reason is None and str(key) in vocabulary()
            yield Unlike(record.id, str(key), asked, "never read", reason, decides)


def declared_by(runs: Sequence[Run], name: str) -> str | None:
    """The reason that all of `runs` give for a setting."""
    reasons = [[d.reason for d in run.record.declared if _speaks_of(d, name, run.record)] for run in runs]
    return reasons[0][0] if reasons and all(reasons) else None


def _speaks_of(declaration: Declaration, name: str, record: Record) -> bool:
    """Under its canonical name the value that is declared must be the one that ran. Older records hold paths of the
    config, with values as they were typed."""
    setting = vocabulary().get(name)
    if setting is None:
        return declaration.key == name
    if declaration.key == name:
        return same(declaration.value, record.setting(name))
    return declaration.key == setting.request
