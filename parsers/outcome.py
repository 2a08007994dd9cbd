"""The outcome of a run: judged from what its launcher saw and what its log says. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, takewhile

from parsers.faults import signal_name
from parsers.record import Status, Step
from parsers.segment import Parsed
from parsers.text import colourless

FROM_LAUNCHER = " from its launcher"
"""The end of a cause: a signal that we were sent, and passed on."""
_NO_STEP = '; no step was read: print [tprimat] step {"step": 0, "loss": …}, or add a dialect (CONTRIBUTING.md)'
_NO_TOTAL = '; whether that is all is unknown without train_iters: print [tprimat] effective {"train_iters": …}'


_PRINTED = (
    *("loss", "lr", "grad_norm", "step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "memory_bytes"),
    *("loss_scale", "global_batch_size", "skipped", "nan"),
)
_FEW = 0.3  # of the steps
_WIDTH = 400  # characters of a line that a cause quotes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end as the launcher saw it; all unknown for a log that was brought from elsewhere.

    signal_sent: the signal that the launcher or the user sent (SIGTERM …). hung: ended for want of progress.
    over_limit: ended for taking longer than it might. oom_kills: processes that the kernel's OOM killer ended during
    the run. said: the last line before the launcher ended it; None: that of the log."""

    exit_code: int | None = None
    signal_sent: str | None = None
    hung: bool = False
    over_limit: bool = False
    oom_kills: int | None = None
    said: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of a run that has ended, its first cause where it did not complete, and remarks."""

    status: Status
    cause: str | None = None
    notes: tuple[str, ...] = ()


def judge(ending: Ending, parsed: Parsed) -> Outcome:
    """Judge a run: completed if every step was done and the loss stayed finite; else by the first cause reported."""
    status, cause = _judge(ending, parsed)
    return Outcome(status, cause, tuple(_notes(ending, parsed, status)))


def _judge(ending: Ending, parsed: Parsed) -> tuple[Status, str | None]:
    if (ending.oom_kills or 0) > 0 and not _all_done(parsed):
        processes = "1 process" if ending.oom_kills == 1 else f"{ending.oom_kills} processes"
        return "out_of_memory", f"the kernel's OOM killer ended {processes}"
    if stopped := _stopped(parsed):
        return "failed", stopped
    if diverged := _diverged(parsed):
        return "diverged", diverged
    return ("completed", None) if _all_done(parsed) else _cut_short(ending, parsed)


def _cut_short(ending: Ending, parsed: Parsed) -> tuple[Status, str | None]:
    """Return how a run ended that did not do all its steps, by the first cause reported."""
    faults = parsed.faults
    if faults.out_of_memory is not None:
        return "out_of_memory", faults.out_of_memory
    if ending.hung or ending.over_limit:
        what = "no progress after" if ending.hung else "ended at its time limit, after"
        return "hung", f"{what} {_reached(parsed)}{_last(parsed, ending.said)}"
    killer = _killer(ending)
    if killer is not None:
        return "killed", killer
    cause = faults.root or faults.death or faults.aftermath or _missed(parsed)
    if faults.interrupted is not None and faults.root is None:
        return "killed", faults.interrupted
    if cause is not None:
        return "failed", cause
    if ending.exit_code is None:
        return "unknown", None
    unsaid = "" if ending.exit_code else _NO_STEP if not parsed.steps else _NO_TOTAL if not parsed.train_iters else ""
    return "failed", f"exit code {ending.exit_code} after {_reached(parsed)}{unsaid}{_last(parsed)}"


def _stopped(parsed: Parsed) -> str | None:
    """Return what a look at the nodes found, where the run was not started for it (launchers/ranks/node_check.py): of
    several nodes one that is done ends the others, which then say no more than that."""
    looked = parsed.facts.get("preflight")
    said = looked.get("stopped") if isinstance(looked, dict) and not parsed.steps else None
    return said if isinstance(said, str) else None


def _diverged(parsed: Parsed) -> str | None:
    """Return a loss that is not finite where the log ends: earlier ones were overcome."""
    at = next(iter(deque(takewhile(_not_finite, reversed(parsed.steps)), maxlen=1)), None)
    if at is not None:
        return f"loss is not finite at iteration {_iteration(at)} (line {at.line})"
    return parsed.faults.not_finite if not _all_done(parsed) else None


def _iteration(step: Step) -> int:
    return step.step + 1 if step.iteration is None else step.iteration


def _not_finite(step: Step) -> bool:
    return "loss" in step.nonfinite or (step.loss is None and bool(step.nan))


def _all_done(parsed: Parsed) -> bool:
    if parsed.finished is not None:
        return parsed.finished
    if parsed.train_iters is None or parsed.reached == 0:
        return False
    if parsed.reached >= parsed.train_iters:
        return True
    # The last iterations print no line where train_iters is no multiple of the logging interval.
    interval = parsed.arguments.get("log_interval")
    every = interval.value if interval is not None and isinstance(interval.value, int) else 1
    return parsed.completed and parsed.reached + every > parsed.train_iters


def _missed(parsed: Parsed) -> str | None:
    """Return that a run ended short of its aim, where its log says so."""
    return f"by its log the target was not reached, after {_reached(parsed)}" if parsed.finished is False else None


def _killer(ending: Ending) -> str | None:
    if ending.signal_sent is not None:
        return f"ended by {ending.signal_sent}{FROM_LAUNCHER}"
    code = ending.exit_code
    if code is None or not (code < 0 or 128 < code < 160):
        return None
    return f"ended by {signal_name(-code if code < 0 else code - 128)} from outside"


def _last(parsed: Parsed, said: str | None = None) -> str:
    line = colourless(said)[:_WIDTH] if said else parsed.tail[-1] if parsed.tail else None
    return f"; last line: {line}" if line else "; the log is empty"


def _reached(parsed: Parsed) -> str:
    total = "" if parsed.train_iters is None else f" of {parsed.train_iters}"
    if parsed.steps and not parsed.steps[-1].numbered:
        lines = sum(not step.numbered for step in parsed.steps)
        return f"{lines} line{'s' if lines > 1 else ''} of steps whose numbers the log does not print"
    return f"iteration {parsed.reached}{total}" if parsed.reached else "no iteration"


def _notes(ending: Ending, parsed: Parsed, status: Status) -> Iterator[str]:
    if status != "completed":
        if parsed.steps:
            yield f"the log ends {'at' if parsed.reached else 'after'} {_reached(parsed)}"
    elif ending.exit_code not in (0, None) or ending.hung:
        why = parsed.faults.root or parsed.faults.death or "nothing is said of it"
        how = "a hang" if ending.hung else f"exit code {ending.exit_code}"
        ceiling = parsed.train_iters is None or parsed.finished
        total = "" if ceiling else f" {parsed.train_iters}"
        yield f"all{total} iterations were done; {how} came after them: {why}"
    ordered = sum("step:by_order" in step.flags for step in parsed.steps)
    if ordered and (status == "completed" or parsed.steps[-1].numbered):  # else said above
        yield f"the log does not show the numbers of {ordered} steps, which are counted in their order"
    yield from _lost(parsed.steps)
    bad = [step for step in parsed.steps if _not_finite(step)]
    if bad:
        yield f"{len(bad)} steps with a loss that is not finite, the first at iteration {_iteration(bad[0])}"
    if skipped := sum(step.skipped or 0 for step in parsed.steps):
        yield f"{skipped} skipped iterations"


def _lost(steps: Sequence[Step]) -> Iterator[str]:
    """Yield which values a few step lines lack that all others have, and where lines of steps are missing: another
    process may have written into them, or the log was cut. The first two and skipped steps may print less."""
    usual, lacking, first = 0, Counter[str](), dict[str, Step]()
    for step in islice(steps, 2, None):  # one after another: they are packed
        if not (step.skipped or step.nan or step.nonfinite):
            usual += 1
            for name in [name for name in _PRINTED if getattr(step, name) is None]:
                lacking[name] += 1
                first.setdefault(name, step)
    few = {name: lacking[name] for name in _PRINTED if 0 < lacking[name] <= _FEW * usual}
    if few:
        each = (f"{name} ({count}, the first at iteration {_iteration(first[name])})" for name, count in few.items())
        yield f"steps whose lines lack a value that the others have, and may be cut: {', '.join(each)}"
    between, begins = Counter[int](), dict[int, int]()
    for step, after in pairwise(steps):
        between[after.step - step.step] += 1
        begins.setdefault(after.step - step.step, _iteration(step))
    interval, times = max(between.items(), key=lambda entry: entry[1], default=(0, 0))
    if times >= (1 - _FEW) * (len(steps) - 1) > 1:
        wide = [gap for gap in begins if gap >= 2 * interval]  # in the order of their first places
        if wide:
            places = sum(between[gap] for gap in wide)
            where = "1 place" if places == 1 else f"{places} places, the first"
            yield f"step lines are missing in {where} after iteration {begins[wide[0]]}"
