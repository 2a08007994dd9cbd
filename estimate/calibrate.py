"""Learn from own runs: one corrects the speed of its stack on this machine and of its model; three refine the matrix
products, too, and six the communication that computing does not hide; everything else stays. A run that contradicts the
model is not learned from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import log, sqrt
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from estimate.fit import problem_of, solved, with_values
from estimate.fitted import FEW, OWN_RUNS, Error, Kind, Parameters, Value
from estimate.jobs import Jobs, Numbers
from estimate.predict import HOST, predict
from estimate.step_time import OFFSETS, OWN, cases_of

REFINED = ((3, ("gemm_efficiency.",)), (6, ("exposed_",)))
"""How many runs it takes, and how the names of the parameters begin that they refine."""
FEW_RUNS = 6
"""Up to so many own runs intervals are wider: the most anchors of benchmarks/estimate.py, by which that is known."""
REPEATS = 0.06
"""Standard deviation of the logarithm of the step time of a run that its stack and machine do not explain: of one
configuration that is run again elsewhere, and of what the formulas leave out of it (SCATTER of estimate/fit.py)."""
MACHINE, MODEL = 0.15, 0.05
"""The same of what one machine and stack differ by from published ones, and of what one model of it does besides."""
NINETY_FIVE = 1.96  # standard deviations that hold 95 of 100
_MEASURED_HERE = (
    "peak_flops",
    "peak_bf16_flops",
    "memory_bandwidth",
    "link_bandwidth",
    "nic_bandwidth",
    "memory_bytes",
)
SLOWER = "throttling, a lower clock or power limit, a slow or broken link, a busy host or slow data"
FASTER = "a smaller model, sequence or batch than stated, another precision, or steps that were not all counted"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Calibrated parameters. used: the runs that were learned from, shape (n,). warnings: of the others."""

    parameters: Parameters
    used: NDArray[np.bool_]
    warnings: tuple[str, ...]


def calibrate(
    parameters: Parameters, jobs: Jobs, step_time_s: Numbers, names: Sequence[str] | None = None
) -> Calibration:
    """Return the parameters after own runs of any number of stacks. step_time_s: shape (n,), measured. names: of the
    runs, as warnings have them.

    Runs that contradict what the others say are left out, the farthest off first, until none does: one slow run would
    make the others look too fast."""
    used, warnings = np.ones(jobs.count, dtype=bool), dict[int, str]()
    while used.any():
        runs = np.flatnonzero(used).tolist()
        off = {i: beside for i in runs if (beside := _beside_its_like(jobs, step_time_s, i, used)).times > 1}
        off = off or {i: _off(parameters, jobs, step_time_s, i, used) for i in runs}
        worst = max(off, key=lambda i: off[i].times)
        if off[worst].times <= 1:
            break
        if len(runs) == len(off) == 2:
            none = np.zeros_like(used)  # two contradict each other alike: what is known of other machines decides
            worst = max(off, key=lambda i: _off(parameters, jobs, step_time_s, i, none).times)
        used[worst] = False
        warnings[worst] = f"{names[worst] if names else f'run {worst + 1}'} was not learned from: {off[worst].text}"
    learned = _learned(parameters, jobs.take(used), step_time_s[used]) if used.any() else parameters
    learned = _widened(learned) if 0 < used.sum() <= FEW_RUNS else learned
    return Calibration(learned, used, tuple(warnings[i] for i in sorted(warnings)))


def _widened(parameters: Parameters) -> Parameters:
    """Return the parameters with the wider intervals of a stack that few runs are known of: theirs are of stacks that
    the fit knows by many. A calibration that goes on from this one widens them no further."""
    if (wider := parameters.wider.get(FEW)) is None:
        return parameters
    by_80, by_95 = wider.by
    errors = {
        distance: {name: Error(one.n, one.half_80 * by_80, one.half_95 * by_95) for name, one in classes.items()}
        for distance, classes in parameters.errors.items()
    }
    rest = {name: one for name, one in parameters.wider.items() if name != FEW}
    return msgspec.structs.replace(parameters, errors=errors, wider=rest)


class _Off(NamedTuple):
    """How far a run is from what is expected of it. times: of half of the interval that holds 95 of 100."""

    times: float
    text: str


def _beside_its_like(jobs: Jobs, step_time_s: Numbers, run: int, used: NDArray[np.bool_]) -> _Off:
    """Return by how much a run is slower than the median of other used ones that differ in nothing that is requested:
    that needs no model, and says more than one."""
    names = [each.name for each in fields(jobs) if each.name not in _MEASURED_HERE]
    columns = [np.broadcast_to(getattr(jobs, name), (jobs.count,)) for name in names]
    same = [
        column == column[run] if column.dtype.kind != "f" else np.isclose(column, column[run], equal_nan=True)
        for column in columns
    ]
    like = used & (np.arange(jobs.count) != run) & np.logical_and.reduce(same)
    if not like.any():
        return _Off(0.0, "")
    seconds, usual = float(step_time_s[run]), float(np.median(step_time_s[like]))
    beside = f"where a run of the same configuration took {usual:.4g}"
    half = sqrt(2) * NINETY_FIVE * REPEATS
    return _Off(log(seconds / usual) / half, f"{seconds:.4g} s a step, {beside}: slower, as by {SLOWER}")


def _off(parameters: Parameters, jobs: Jobs, step_time_s: Numbers, run: int, used: NDArray[np.bool_]) -> _Off:
    """Return how far a run is from what the other used ones say; from what was published where there are none."""
    others = used & (np.arange(jobs.count) != run)
    known = _learned(parameters, jobs.take(others), step_time_s[others]) if others.any() else parameters
    said, seconds = predict(jobs.take(slice(run, run + 1)), known), float(step_time_s[run])
    expected, low, high = (float(ends[0]) for ends in (said.step_time_s, said.low_95_s, said.high_95_s))
    cause = f"slower, as by {SLOWER}" if seconds > expected else f"faster, as by {FASTER}"
    text = f"{seconds:.4g} s a step, where the model expects {low:.4g} to {high:.4g}: {cause}"
    return _Off(abs(log(seconds / expected)) / log(high / expected), text)


def _learned(parameters: Parameters, jobs: Jobs, step_time_s: Numbers) -> Parameters:
    """Return the parameters with those refined that so many runs allow; their former values are the priors."""
    free, on_host = _free(jobs.count, jobs), bool(np.all(jobs.hardware == "cpu"))
    known = msgspec.structs.replace(
        parameters,
        values={name: msgspec.structs.replace(value, prior=value.value) for name, value in parameters.values.items()},
        kinds={name: _as_known(parameters, name, on_host) for name in parameters.kinds},
    )
    physics = np.log(predict(jobs, known).step_time_s)
    problem = problem_of(jobs, known, free)
    problem = replace(problem, sd=np.array([_deviation(parameters, name) for name in problem.names]))
    target, weight = np.log(step_time_s), np.full(jobs.count, 1 / REPEATS)
    assert np.isfinite(physics).all(), "a rate of the machine is unknown"
    found, jacobian = solved(jobs, target, weight, known, problem)
    learned = with_values(known, problem, found, jacobian)
    values = {name: _with_prior(parameters, name, value) for name, value in learned.values.items()}
    return msgspec.structs.replace(
        learned, kinds=parameters.kinds, values=values, source=f"{parameters.source.removesuffix(OWN_RUNS)}{OWN_RUNS}"
    )


def _with_prior(parameters: Parameters, name: str, value: Value) -> Value:
    before = parameters.values.get(name)
    return msgspec.structs.replace(value, prior=before.prior if before else None)


def _as_known(parameters: Parameters, name: str, on_host: bool) -> Kind:
    """Return a kind with what is known of it: the deviation behind the fit; of a stack's offset that of machines, of
    which nothing is known where they are CPUs, and of a model's that of models."""
    kind, value = parameters.kinds[name], parameters.values.get(name)
    own = {"offset.stack": HOST / 2 if on_host else MACHINE, "offset.framework,hardware,model": MODEL}
    fitted = value.sd if value and value.sd else kind.sd
    return msgspec.structs.replace(kind, sd=next((own[begins] for begins in own if name.startswith(begins)), fitted))


def _deviation(parameters: Parameters, name: str) -> float:
    """Return how well a parameter is known: by its own fit, else as its kind."""
    value = parameters.values.get(name)
    return value.sd if value and value.sd else parameters.kinds[name.partition(".")[0]].sd


def _free(count: int, jobs: Jobs) -> Callable[[str], bool]:
    """Return whether a parameter is refined by so many runs."""
    begins = tuple(begin for least, names in REFINED if count >= least for begin in names)
    levels = [dict(zip(OFFSETS, case.offsets, strict=False)) for case in cases_of(jobs).distinct]
    own = {names[level] for names in levels for level in OWN if names}
    return lambda name: name in own or (name.startswith(begins) and "_software." not in name)
