"""Fit the parameters of the step time to measured runs: least squares on the logarithm of the ratio, with a soft L1
loss against outliers and a Gaussian prior on the logarithm of each parameter.

Nothing identifies a bandwidth by whole steps alone: collectives that were timed by themselves give its prior, physics
its bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import msgspec
import numpy as np
from numpy.typing import NDArray

from estimate.fitted import Parameters, Value
from estimate.jobs import Jobs, Numbers
from estimate.step_time import OFFSETS, OWN, Case, architecture_of, attention_gpu, cases_of, step_time, vendor_of

SCATTER = {"dense": 0.05, "moe": 0.09, "lora": 0.05}
"""Standard deviation of the logarithm of a measured time that the model cannot explain, by kind of work: that of
repeats of one configuration by others, with what the formulas leave out. Repeats with experts differ twice as much
(3.7 and 8.3 % on average: one layout of Qwen3 30B took 51.3 and 28.9 s in Megatron-Bridge 26.02 and 26.02.01)."""
REACHED = ("seq_length", "world_size", "expert_model_parallel_size")
"""Columns of jobs beyond whose largest value an interval is wider."""
_STEP = 1e-4  # of a parameter in units of its prior's deviation, for derivatives
_MOST_STEPS = 40
_KEPT = 4  # steps for which the derivatives of the physics serve, which hardly change
_AT_ONCE = 16  # kinds of parameters that are moved in one call, whose arrays stay in a core's cache
_SETTLED = 1e-5  # share of the loss by which a step with fresh derivatives still lessens it


@dataclass(frozen=True, slots=True)
class Problem:
    """A fit: names of physical parameters with their kind, prior, deviation and bound; for each row and kind
    the parameter that it uses; the offsets, with the rows (n, q) that have them, and which (q) are of the whole
    step. measured: the GEMM efficiencies of the precisions that its jobs are in."""

    names: tuple[str, ...]
    prior: Numbers
    sd: Numbers
    most: Numbers
    together: tuple[tuple[tuple[int, ...], NDArray[np.intp]], ...]
    offsets: tuple[tuple[str, ...], ...]
    offset_sd: tuple[Numbers, ...]
    design: Numbers
    whole: NDArray[np.bool_]
    measured: tuple[str, ...]

    def factors(self, x: Numbers) -> tuple[Numbers, Numbers]:
        """Return by which factors offsets at x slow what is computed, and the whole step, of each row."""
        return np.exp(self.design @ np.where(self.whole, 0.0, x)), np.exp(self.design @ np.where(self.whole, x, 0.0))


def weights(groups: Sequence[object]) -> Numbers:
    """Return a weight of each row: rows that resemble each other count less, as the root of their number."""
    names = [str(group) for group in groups]
    _, index, count = np.unique(names, return_inverse=True, return_counts=True)
    weight: Numbers = np.power(np.asarray(count[index], dtype=float), -0.25)
    return weight


def scatter(jobs: Jobs) -> Numbers:
    """Return the scatter of each job's time."""
    return cases_of(jobs).by(attrgetter("kind"), SCATTER.__getitem__)


def fit(
    jobs: Jobs, measured_step_time_s: Numbers, groups: Sequence[object], parameters: Parameters, source: str
) -> Parameters:
    """Return the parameters fitted to measured step times. groups: of each job, that which makes rows alike (source,
    GPU, model, precision). parameters: the kinds and priors; their values are not used, so that nothing of a former fit
    gets into this one."""
    known = priors(parameters)
    problem = problem_of(jobs, known)
    weight = weights(groups) / scatter(jobs)
    found, jacobian = solved(jobs, np.log(measured_step_time_s), weight, known, problem)
    reach = {name: float(np.max(getattr(jobs, name))) for name in REACHED}
    return msgspec.structs.replace(with_values(known, problem, found, jacobian), source=source, reach=reach)


def solved(
    jobs: Jobs, target: Numbers, weight: Numbers, known: Parameters, problem: Problem
) -> tuple[Numbers, Numbers]:
    """Return what is nearest to the logarithms of measured step times, in deviations from the priors, and the
    derivatives of the residuals there: Gauss and Newton's steps, halved until they lessen the loss. What a bound holds
    back stays at it for a step."""
    count, cases = len(problem.names), cases_of(jobs)

    def predicted(x: Numbers, factors: tuple[Numbers, Numbers] | None = None) -> Numbers:
        parts = step_time(jobs, points(known, problem, x), cases, *(factors or problem.factors(x[count:])))
        return np.asarray(np.log(parts.total), dtype=float)

    def steep(error: Numbers) -> Numbers:
        return np.asarray((weight * _soft_slope(error))[:, None] * columns)

    x = np.zeros(count + len(problem.offsets))
    bound = np.maximum(np.log(problem.most / problem.prior) / problem.sd, 1e-9)
    most = np.concatenate([bound, np.full(len(problem.offsets), np.inf)])
    own = predicted(x)
    error, age, columns = weight * (own - target), 0, np.zeros((0, 0))
    for _ in range(_MOST_STEPS):
        if age == 0:
            slower, whole = factors = problem.factors(x[count:])
            computed = (predicted(x, (slower * np.exp(_STEP), whole)) - own) / _STEP
            of_offsets = problem.design * np.where(problem.whole, 1.0, computed[:, None])
            columns = np.hstack([_slopes(problem, x, own, partial(predicted, factors=factors)), of_offsets])
        there = _stepped(x, steep(error), _soft(error), most)
        found = _lower(x, there, _loss(error, x), lambda at_x: weight * (predicted(at_x) - target))
        before, fresh = _loss(error, x), age == 0
        if found is not None:
            x, error = found
            own = error / weight + target
        gained = before - _loss(error, x)
        if gained <= _SETTLED * before and fresh:
            break
        age = 0 if gained <= _SETTLED * before else (age + 1) % _KEPT
    return x, np.vstack([steep(error), np.eye(x.size)])


def _loss(error: Numbers, x: Numbers) -> float:
    """Return the soft L1 loss of errors in their deviations, with what the priors say of x."""
    return float(np.sum(np.sqrt(1 + error * error) - 1) + x @ x / 2)


def _stepped(x: Numbers, slopes: Numbers, residual: Numbers, most: Numbers) -> Numbers:
    """Return where the linearised residuals and the priors are least, none above its bound."""
    downhill = -(slopes.T @ residual + x)
    free = (x < most - 1e-12) | (downhill < 0)
    step, chosen = np.zeros(x.size), slopes[:, free]
    step[free] = np.linalg.solve(chosen.T @ chosen + np.eye(int(free.sum())), downhill[free])
    return np.asarray(np.minimum(x + step, most))


def _lower(
    x: Numbers, there: Numbers, loss: float, errors_at: Callable[[Numbers], Numbers]
) -> tuple[Numbers, Numbers] | None:
    """Return the first of `there` and points ever nearer to x whose loss is lower, with its errors; None of none."""
    for share in (1.0, 0.5, 0.25, 0.1, 0.02):
        between = x + share * (there - x)
        error = errors_at(between)
        if _loss(error, between) < loss:
            return between, error
    return None


def priors(parameters: Parameters) -> Parameters:
    """Return parameters at their priors, as if nothing had been measured."""
    values = {
        name: msgspec.structs.replace(value, value=value.prior)
        for name, value in parameters.values.items()
        if value.prior is not None
    }
    return msgspec.structs.replace(parameters, values=values, offsets={}, errors={}, measured=(), reach={})


def _soft(error: Numbers) -> Numbers:
    """Return what squares to twice the soft L1 loss, 2(√(1+e²) - 1), with the sign of the error."""
    size: Numbers = np.sqrt(2 * (np.sqrt(1 + error * error) - 1))
    return np.asarray(np.copysign(size, error), dtype=float)


def _soft_slope(error: Numbers) -> Numbers:
    root = np.sqrt(1 + error * error)
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = np.abs(error) / root / np.sqrt(2 * (root - 1))
    return np.asarray(np.where(np.abs(error) < 1e-4, 1.0, slope), dtype=float)


def names_of(case: Case) -> dict[str, str]:
    """Return the parameters of a case by kind; the output layer's is that of bf16."""
    gpu, attention, vendor, precision = case.hardware, attention_gpu(case), vendor_of(case.hardware), case.precision
    return {
        "gemm_efficiency": f"gemm_efficiency.{gpu}.{precision}",
        "gemm_efficiency bf16": f"gemm_efficiency.{gpu}.bf16",
        "gemm_precision": f"gemm_precision.{precision}",
        "gemm_architecture": f"gemm_architecture.{architecture_of(gpu)}",
        "gemm_vendor": f"gemm_vendor.{vendor}",
        "attention_efficiency": f"attention_efficiency.{attention}",
        "attention_architecture": f"attention_architecture.{architecture_of(attention)}",
        "attention_vendor": f"attention_vendor.{vendor}",
        "attention_software": f"attention_software.{case.software}",
        "exposed_tensor_software": f"exposed_tensor_software.{case.software}",
        "exposed_fsdp_software": f"exposed_fsdp_software.{case.software}",
        "host_link": f"host_link.{gpu}",
        "host": f"host.{gpu}",
        "host_vendor": f"host_vendor.{vendor}",
    }


def problem_of(jobs: Jobs, known: Parameters, free: Callable[[str], bool] = lambda name: True) -> Problem:
    """Return what of the parameters the jobs depend on, and is free by its name."""
    cases = cases_of(jobs)
    index = cases.of_jobs(jobs.count)
    lookups = [names_of(case) for case in cases.distinct]
    single = [name for name, kind in known.kinds.items() if not kind.each and free(name)]
    names = [*single, *sorted({name for lookup in lookups for name in lookup.values() if free(name)})]
    where = {name: i for i, name in enumerate(names)}
    together = [((i,), np.full(jobs.count, i)) for i in range(len(single))]
    for kind in lookups[0]:
        used = np.array([where.get(lookup[kind], -1) for lookup in lookups])[index]
        if kind == "gemm_efficiency":
            used = np.where(cases.spread([case.precision == "bf16" for case in cases.distinct]) > 0, -1, used)
        together.append((tuple(sorted({*used.tolist()} - {-1})), np.broadcast_to(used, jobs.count)))
    offsets, sds, design, whole = _offsets(known, cases.distinct, free)
    kinds = [known.kinds[name.partition(".")[0]] for name in names]
    products = sorted({lookup["gemm_efficiency"] for lookup in lookups})
    return Problem(
        tuple(names),
        np.array([_prior(known, name) for name in names]),
        np.array([kind.sd for kind in kinds]),
        np.array([kind.most or np.inf for kind in kinds]),
        tuple(together),
        offsets,
        sds,
        design[index],
        whole,
        tuple(products),
    )


def _offsets(
    known: Parameters, cases: Sequence[Case], free: Callable[[str], bool]
) -> tuple[tuple[tuple[str, ...], ...], tuple[Numbers, ...], Numbers, NDArray[np.bool_]]:
    """Return offsets, those of the same cases together, their deviations, the design (cases, groups), and which groups
    are of the whole step. Offsets that occur in the same cases cannot be told apart: one unknown stands for them, split
    in proportion to their variances."""
    sds = {",".join(level): known.kinds[f"offset.{','.join(level)}"].sd for level in OFFSETS}
    own = {",".join(level) for level in OWN}
    members: dict[str, list[int]] = {}
    for i, case in enumerate(cases):
        for name in filter(free, case.offsets):
            members.setdefault(name, []).append(i)
    groups: dict[tuple[bool, tuple[int, ...]], list[str]] = {}
    for name in sorted(members):
        groups.setdefault((_level(name) in own, tuple(members[name])), []).append(name)
    deviations = [np.array([sds[_level(name)] for name in names]) for names in groups.values()]
    design = np.zeros((len(cases), len(groups)))
    for column, ((_, rows), sd) in enumerate(zip(groups, deviations, strict=True)):
        design[list(rows), column] = np.sqrt((sd * sd).sum())
    whole = np.array([of_all for of_all, _ in groups], dtype=bool)
    return tuple(tuple(names) for names in groups.values()), tuple(deviations), design, whole


def _level(name: str) -> str:
    """Return what an offset's jobs have in common."""
    return ",".join(part.partition(":")[0] for part in name.split(","))


def _prior(known: Parameters, name: str) -> float:
    value = known.values.get(name)
    return value.prior if value and value.prior else known.kinds[name.partition(".")[0]].prior


@dataclass(frozen=True, slots=True)
class _Points:
    """Parameters at several points; what is not fitted has one value. values: by name, numbers or shape (points, 1)."""

    known: Parameters
    values: Mapping[str, Numbers]

    @property
    def offsets(self) -> Mapping[str, Value]:
        return self.known.offsets

    def of(self, kind: str, *parts: str) -> Numbers | float:
        found = self.values.get(".".join((kind, *parts)))
        return self.known.of(kind, *parts) if found is None else found


def points(known: Parameters, problem: Problem, x: Numbers) -> _Points:
    """Return the parameters at x, shape (p,), or at several points, shape (points, p), in deviations from the priors.
    What follows the parameters in x is not used."""
    count = len(problem.names)
    values = problem.prior * np.exp(problem.sd * x[..., :count])
    columns = np.moveaxis(values, -1, 0)
    return _Points(known, dict(zip(problem.names, columns if x.ndim == 1 else columns[..., None], strict=True)))


def at(known: Parameters, problem: Problem, x: Numbers) -> Parameters:
    """Return the parameters at x, shape (p,), each in deviations of its prior from it."""
    fitted = {}
    for name, value in points(known, problem, x).values.items():
        old = known.values.get(name)
        fitted[name] = Value(float(value), 0.0, old.prior if old else None)
    return msgspec.structs.replace(known, values={**known.values, **fitted})


def _slopes(problem: Problem, x: Numbers, own: Numbers, predicted: Callable[[Numbers], Numbers]) -> Numbers:
    """Return the derivatives (n, p) of the logarithm by each parameter. Parameters of one kind belong to different
    rows, so all are moved at once."""
    slopes = np.zeros((own.size, len(problem.names)))
    for start in range(0, len(problem.together), _AT_ONCE):
        some = problem.together[start : start + _AT_ONCE]
        there = np.tile(x, (len(some), 1))
        for point, (moved, _) in zip(there, some, strict=True):
            point[list(moved)] += _STEP
        moved_by = np.broadcast_to((predicted(there) - own) / _STEP, (len(some), own.size))
        for difference, (_, column) in zip(moved_by, some, strict=True):
            used = np.flatnonzero(column >= 0)
            slopes[used, column[used]] = difference[used]
    return slopes


def with_values(known: Parameters, problem: Problem, x: Numbers, jacobian: Numbers) -> Parameters:
    """Return the fit, with the deviations by the curvature at its end."""
    count = len(problem.names)
    deviation = np.sqrt(np.clip(np.diag(np.linalg.inv(jacobian.T @ jacobian)), 0, None))
    fitted = at(known, problem, x[:count])
    values = dict(fitted.values)
    for name, sd in zip(problem.names, deviation[:count] * problem.sd, strict=True):
        values[name] = msgspec.structs.replace(values[name], value=_short(values[name].value), sd=_short(sd))
    offsets = {}
    for names, sds, value in zip(problem.offsets, problem.offset_sd, x[count:], strict=True):
        for name, sd in zip(names, sds, strict=True):
            before = known.offsets[name].value if name in known.offsets else 1.0
            factor = np.exp(value * sd * sd / np.sqrt((sds * sds).sum()))
            offsets[name] = Value(_short(before * factor), float(sd))
    measured = tuple(sorted({*known.measured, *problem.measured}))
    return msgspec.structs.replace(known, values=values, offsets={**known.offsets, **offsets}, measured=measured)


def _short(value: float) -> float:
    return float(f"{value:.5g}")
