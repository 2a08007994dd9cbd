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
class Deviation:
    """A setting that ran otherwise than requested. declared: the reason given for it. decides: alone it forbids
    the comparison."""

    run: str
    setting: str
    requested: Any
    effective: Any
    declared: str | None
    decides: bool


def deviations_of(run: Run) -> Iterator[Deviation]:
    """Yield all of a run. Made anew: a record edited by hand may have an old list."""
    record = run.record
    for one in differences(record.requested, record.effective):
        reason = declared_by([run], one.setting)
        yield Deviation(record.id, one.setting, one.requested, one.effective, reason, decides=reason is None)
    never = record.environment.get(NEVER_READ)
    for key in never if isinstance(never, list | tuple) else ():
        # A setting that the log reports has been judged by what ran.
        if str(key) not in record.effective:
            requested = record.requested.get(str(key), "written")
            reason = declared_by([run], str(key))
            decides = reason is None and str(key) in vocabulary()
            yield Deviation(record.id, str(key), requested, "never read", reason, decides)


def declared_by(runs: Sequence[Run], name: str) -> str | None:
    """Return the reason that all of `runs` give for a setting."""
    reasons = [[d.reason for d in run.record.declared if _speaks_of(d, name, run.record)] for run in runs]
    return reasons[0][0] if reasons and all(reasons) else None


def _speaks_of(declaration: Declaration, name: str, record: Record) -> bool:
    """Return whether a declaration is about a setting. Under its canonical name the declared value must be the one that
    ran. Older records have paths of the config, with values as they were typed."""
    setting = vocabulary().get(name)
    if setting is None:
        return declaration.key == name
    if declaration.key == name:
        return same(declaration.value, record.setting(name))
    return declaration.key == setting.request
