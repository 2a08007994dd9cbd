"""A matrix of runs as a journal: what happened, a line each, from which the state of every run is folded. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Event = Mapping[str, Any]
INTERRUPTED = "interrupted"
"""State of a run whose job saved and ended before its time: to be gone on with, and no failure."""
ACTIVE = ("intended", "pending", "running")
"""States of a run that somebody is at work on, or may be: an intention without an answer is one."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run, by its identity, which is the name of its directory. attempt: how often it was started; failures: how
    many of these failed since somebody last began anew. tag: the name of its job, task: its number in an array of
    jobs, job: what the batch system calls it. waits_for: why that does not start it, where it is not simply its turn.
    causes: why it ended early, one for each time."""

    id: str
    state: str = "planned"
    attempt: int = 0
    failures: int = 0
    tag: str | None = None
    task: int | None = None
    job: str | None = None
    waits_for: str | None = None
    causes: tuple[str, ...] = ()

    @property
    def cause(self) -> str | None:
        """Return why it is not completed, where that is known."""
        return self.causes[-1] if self.causes and self.state != "completed" else None


@dataclass(frozen=True, slots=True)
class Matrix:
    """All that a journal says. experiments: as they were requested, by run. unread: lines that are no event, as a kill
    or a full disk leaves them."""

    runs: Mapping[str, Run] = field(default_factory=dict)
    experiments: Mapping[str, Event] = field(default_factory=dict)
    unread: int = 0

    def startable(self, names: Iterable[str], retries: int) -> list[Run]:
        """Return those of `names` that are to be started now; `retries` more after a failure."""
        runs = [self.runs[name] for name in names]
        anyway = ("planned", INTERRUPTED)
        return [r for r in runs if r.state in anyway or (r.state == "failed" and r.failures <= retries)]

    def active(self) -> list[Run]:
        """Return the runs that somebody is at work on, or may be."""
        return [run for run in self.runs.values() if run.state in ACTIVE]


def folded(lines: Iterable[str]) -> Matrix:
    """Return the state that `lines`, a journal's, lead to. Their order counts, never their times: clocks jump."""
    runs: dict[str, Run] = {}
    experiments: dict[str, Event] = {}
    unread = 0
    for line in lines:
        try:
            event = json.loads(line)
            if event["event"] == "planned":
                experiments[event["run"]] = event["experiment"]
                runs.setdefault(event["run"], Run(event["run"]))
            else:
                runs |= {run.id: run for run in _changed(runs, event)}
        except (ValueError, KeyError, TypeError):
            unread += 1
    return Matrix(runs, experiments, unread)


def _changed(runs: Mapping[str, Run], event: Event) -> Iterator[Run]:
    """Yield the runs that `event` changes, as they are after it. KeyError: of one that nobody planned."""
    kind, tag = event["event"], event.get("tag")
    named = [runs[name] for name in event.get("runs", ())]
    if kind == "began":  # somebody wants them: what was cancelled too, and anew what has failed too often
        for run in named:
            state = "planned" if run.state == "cancelled" else run.state
            yield replace(run, state=state, failures=0 if event["anew"] else run.failures)
    elif kind == "cancel":
        yield from (replace(run, state="cancelled") for run in runs.values() if run.state == "planned")
    elif kind == "intends":
        for task, run in enumerate(named):
            yield replace(run, state="intended", attempt=run.attempt + 1, tag=tag, task=task, job=None)
    elif kind in ("submitted", "not submitted"):
        for run in (run for run in runs.values() if run.tag == tag and run.state == "intended"):
            if kind == "submitted":
                yield replace(run, state="pending", job=f"{event['job']}_{run.task}")
            else:  # no attempt: nothing was started
                yield replace(run, state="planned", attempt=run.attempt - 1, tag=None, task=None)
    elif kind == "state" and event["attempt"] == runs[event["run"]].attempt:  # not of an earlier one, which came late
        run, state = runs[event["run"]], event["state"]
        causes = (*run.causes, event["cause"]) if event.get("cause") else run.causes
        failures, waits_for = run.failures + (state == "failed"), event.get("waits_for")
        yield replace(run, state=state, causes=causes, failures=failures, waits_for=waits_for)
