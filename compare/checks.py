"""The curves' part of the audit: learning rates, tokens and losses, aligned by step, never by position. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Literal

from compare.curve import Curve, Finding, Traced
from compare.groups import SEED, Side, gathered
from compare.losses import losses
from compare.question import TOKENS
from conf.vocabulary import vocabulary
from parsers.storage import STEPS_FILE

CheckState = Literal["equal", "apart", "unknown", "varied", "declared"]

_EXACT = 1e-12
_SCHEDULE = ("lr", "min_lr", "lr_warmup_iters", "lr_warmup_init", "lr_decay_iters", "lr_decay_style", "train_iters")
_COUNT = ("seq_length", "global_batch_size", "train_iters")
_OF_LOSS = ("model", "optimizer", "data")


@dataclass(frozen=True, slots=True)
class Check:
    """One property that the groups must share over their steps. step: the first, from 0, at which they part; reason:
    the numbers there, or why it is not known. decides: alone it forbids the comparison, or leaves it open.
    varied, declared: apart, for a setting behind it is what is compared, or is declared."""

    name: str
    state: CheckState
    reason: str
    step: int | None
    decides: bool


def checks(
    counted: Sequence[Side], curves: Mapping[str, Curve], states: Mapping[str, str], baseline: str | None = None
) -> tuple[Check, ...]:
    """Return every check over all runs that count. states: of the settings, by the audit; a difference that follows
    from what is varied or declared does not decide. What is not known decides nothing: the settings behind it do."""
    runs = [Traced(side.label, run, curves[run.path]) for side in counted for run in side.usable]
    if len(runs) < 2:
        return ()

    def quality(run: Traced) -> tuple[bool, bool, int]:
        """Order rates: exact, then used, then any."""
        return run.curve.digits is None, run.curve.offsets == (0,), sum(map(math.isfinite, run.curve.rates))

    kinds = {name: setting.kind for name, setting in vocabulary().items()}
    of_loss = [name for name in states if kinds.get(name) in _OF_LOSS and name not in _SCHEDULE]
    shape = [*of_loss, *_SCHEDULE, *_COUNT, SEED]
    return (
        *_without_steps(runs),
        _check(
            "lr_used", _against_one(runs, max(runs, key=quality), _rates), states, _SCHEDULE, ("varied", "declared")
        ),
        _check("tokens_seen", _against_one(runs, runs[0], _tokens), states, _COUNT, ("varied", "declared")),
        _check("tokens_checksum", _checksums(runs, len(counted)), states, (TOKENS, SEED, *_COUNT), ("varied",)),
        _check("loss", losses(counted, runs, baseline), states, shape, ("varied",)),
    )


def _without_steps(runs: Sequence[Traced]) -> Iterator[Check]:
    """Yield a check on completed runs without any step: their speed and their losses are not known."""
    empty = [one.run for one in runs if not one.curve.steps and one.run.record.provenance != "rehearsed"]
    if empty:
        file = Path(empty[0].path) / STEPS_FILE
        more = f"; and so for {len(empty) - 1} more" if len(empty) > 1 else ""
        reason = f"{file} {'has no step' if file.exists() else 'is missing'}{more}"
        yield Check("steps", "unknown", reason, None, decides=True)


def same_checksums(counted: Sequence[Side], curves: Mapping[str, Curve]) -> bool:
    """Return whether all groups report that they saw the same tokens, step by step."""
    runs = [Traced(side.label, run, curves[run.path]) for side in counted for run in side.usable]
    return len(runs) > 1 and _checksums(runs, len(counted)).state == "equal"


def _check(
    name: str, finding: Finding, states: Mapping[str, str], behind: Sequence[str], excuses: Sequence[CheckState]
) -> Check:
    if finding.state == "apart":
        for excuse in excuses:
            because = [setting for setting in dict.fromkeys(behind) if states.get(setting) == excuse]
            if because:
                return Check(name, excuse, f"{because[0]} is {excuse}: {finding.reason}", finding.step, decides=False)
    return Check(name, finding.state, finding.reason, finding.step, decides=finding.state == "apart")


def _against_one(runs: Sequence[Traced], first: Traced, pair: Callable[[Traced, Traced], Finding]) -> Finding:
    """Compare each run with `first`; return where they part first."""
    findings = [pair(first, run) for run in runs if run is not first]
    apart = [one for one in findings if one.state == "apart"]
    if apart:
        worst = min(apart, key=lambda one: math.inf if one.step is None else one.step)
        more = f"; {len(apart) - 1} more runs part" if len(apart) > 1 else ""
        return Finding("apart", worst.reason + more, worst.step)
    return next((one for one in findings if one.state == "unknown"), findings[0])


def _rates(first: Traced, other: Traced) -> Finding:
    """Compare rates: to 1e-12 where both are exact, else to the digits printed. Where it is not known which step's rate
    is printed, the one and the next are both tried: only what agrees in no way is a difference, and only what agrees in
    every way equal."""
    a, b = first.curve, other.curve
    for run in (first, other):
        if not any(map(math.isfinite, run.curve.rates)):
            return Finding("unknown", f"{run.name} reports no learning rate")
    ways = [(i, j) for i, j in product(a.offsets, b.offsets) if i == j or not _alike_printed(first, other)]
    tried = [(way, *_first_apart(a, b, *way)) for way in ways]
    compared = [(way, step, count) for way, step, count in tried if count]
    if not compared:
        return Finding("unknown", f"{first.name} and {other.name} report no rate of the same step")
    agreeing = [way for way, step, _ in compared if step is None]
    if not agreeing:
        step = max(step or 0 for _, step, _ in compared)
        texts = []
        for run in (first, other):
            rate = dict(zip(run.curve.steps, run.curve.rates, strict=True)).get(step - run.curve.offsets[0])
            texts.append(f"{run.name} {'?' if rate is None else format(rate, '.10g')}")
        return Finding("apart", f"{'; '.join(texts)} at step {step}", step)
    if len(agreeing) < len(compared):
        what = "they agree only if one prints the rate of the step, the other of the next"
        return Finding("unknown", f"which step's rate is printed is not known ({first.name}, {other.name}); {what}")
    digits = min((d for d in (a.digits, b.digits) if d), default=None)
    to = "to 1e-12" if digits is None else f"to the {digits} digits printed"
    return Finding("equal", f"{to}, over {max(count for _, _, count in compared)} steps")


def _alike_printed(first: Traced, other: Traced) -> bool:
    """Return whether both are of one framework: whatever it prints, both print it."""
    names = {(run.run.record.framework, run.run.record.dialects) for run in (first, other)}
    return len(names) == 1 and first.run.record.framework is not None and len(first.curve.offsets) > 1


def _first_apart(a: Curve, b: Curve, i: int, j: int) -> tuple[int | None, int]:
    """Return the first step whose rates part, and how many steps were compared. i, j: whose step's rate an entry is."""
    if i == j and a.steps == b.steps and a.rates.tobytes() == b.rates.tobytes():
        return None, sum(map(math.isfinite, a.rates))
    theirs = {step + j: rate for step, rate in zip(b.steps, b.rates, strict=True) if math.isfinite(rate)}
    count = 0
    for step, rate in zip(a.steps, a.rates, strict=True):
        other = theirs.get(step + i)
        if other is None or not math.isfinite(rate):
            continue
        count += 1
        if rate != other and abs(rate - other) > _slack(rate, a.digits) + _slack(other, b.digits):
            return step + i, count
    return None, count


def _slack(rate: float, digits: int | None) -> float:
    """Return how far a rate may be off: half a digit of what was printed, or what rounding leaves."""
    if digits is None or rate == 0:
        return _EXACT / 2 * abs(rate)
    return 0.5000001 * 10.0 ** (math.floor(math.log10(abs(rate))) - digits + 1)


def _tokens(first: Traced, other: Traced) -> Finding:
    a, b = first.curve, other.curve
    for run in (first, other):
        if not run.curve.tokens or min(run.curve.tokens) < 0:
            return Finding("unknown", f"{run.name} does not report how many tokens it saw")
    if a.steps == b.steps and a.tokens == b.tokens:
        return Finding("equal", f"{a.tokens[-1]:,} by step {a.steps[-1]}")
    theirs = dict(zip(b.steps, b.tokens, strict=True))
    common = [(step, seen, theirs[step]) for step, seen in zip(a.steps, a.tokens, strict=True) if step in theirs]
    if not common:
        return Finding("unknown", f"{first.name} and {other.name} report no step that is the same")
    for step, seen, others in common:
        if seen != others:
            return Finding("apart", f"{first.name} {seen:,}; {other.name} {others:,} at step {step}", step)
    # Lines every k-th step may end up to k - 1 steps before the other's.
    distance = max(min((after - at for at, after in pairwise(one.steps)), default=1) for one in (a, b))
    if abs(a.steps[-1] - b.steps[-1]) >= distance:
        last = f"{first.name} ends with step {a.steps[-1]}, {other.name} with step {b.steps[-1]}"
        planned = {run.run.record.setting("train_iters") for run in (first, other)}
        if len(planned) == 1 and None not in planned:  # and completed: lines are lost, no steps
            return Finding("unknown", f"{last}, of {planned.pop()} on both sides")
        return Finding("apart", last, min(a.steps[-1], b.steps[-1]) + 1)
    return Finding("equal", f"{common[-1][1]:,} by step {common[-1][0]}")


def _checksums(runs: Sequence[Traced], sides: int) -> Finding:
    """Compare the tokens themselves, between runs of one seed: another seed is another order."""
    by_seed = gathered((run.seed, run) for run in runs).values()
    seeds = [same for same in by_seed if len({run.label for run in same}) == sides]
    findings = [_same_tokens(same[0], run) for same in seeds for run in same[1:]]
    if not findings:
        return Finding("unknown", "no two sides report a checksum of their tokens for one seed")
    return next((one for state in ("apart", "unknown") for one in findings if one.state == state), findings[0])


def _same_tokens(first: Traced, run: Traced) -> Finding:
    common = sorted(first.curve.checksums.keys() & run.curve.checksums.keys())
    if not common:
        return Finding("unknown", f"{first.name} and {run.name} report no checksums of the same step")
    apart = next((step for step in common if first.curve.checksums[step] != run.curve.checksums[step]), None)
    if apart is not None:
        return Finding("apart", f"{first.name} and {run.name} read other tokens at step {apart}", apart)
    return Finding("equal", f"the same tokens, step by step, over {len(common)} steps")
