"""The parameters of one machine that a plan is made with, each by a formula of what was run; pure. Their definitions
are ours where the field has several: the formula stands in the figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from conf.machine import Figure, Machine, Training
from measure.cases import COLLECTIVES, DTYPES, Case
from measure.rates import Numbers

DRAWS, LEVELS = 500, (0.025, 0.975)
SAME_LIMIT = 0.01
"""Limits of power that differ by less are one."""
_DEGREES = {"tp": "layout.tensor_model_parallel_size", "pp": "layout.pipeline_model_parallel_size"}


def parameters(machine: Machine, known: Sequence[Case], lines: Sequence[Mapping[str, object]]) -> Iterator[Figure]:
    """Yield the parameters that one machine's samples and trainings give by themselves."""
    yield from _base(machine, known)
    yield from _jitter(known, lines)
    for name in _DEGREES:
        yield from _intensity(name, machine.trainings)


def _base(machine: Machine, known: Sequence[Case]) -> Iterator[Figure]:
    """Yield throughput and utilisation of one device at the best batch and sequence."""
    steps = [one for one in machine.figures if one.name == "training_tokens"]
    if not steps:
        return
    best = max(steps, key=lambda one: one.value)
    text = "most of training_tokens over batch and sequence, one device alone"
    yield Figure("base_throughput", best.value, best.unit, text, best.of, best.interval, len(steps), best.samples)
    precision = str(best.of["precision"])
    rate = machine.value("gemm_best", ranks=1, precision=precision)
    sizes = {"batch": best.of["batch"], "seq": best.of["seq"], "backward": 1}
    case = next((one for one in known if one["kind"] == "model" and sizes.items() <= one.items()), None)
    if rate and case:
        per_token = case["flops"] / case["batch"] / case["seq"]
        share = per_token / rate
        ends = best.interval and (best.interval[0] * share, best.interval[1] * share)
        text = "base_throughput × FLOPs of a token (causal attention counted half) / gemm_best, one device alone"
        yield Figure("base_utilisation", best.value * share, "1", text, best.of, ends, len(steps), best.samples)


def shares_of(machine: Machine, peaks: Mapping[str, float]) -> Iterator[Figure]:
    """Yield the share of the data sheet's peak that the best product reaches. peaks: FLOP/s by precision."""
    for one in machine.figures:
        if one.name == "gemm_best" and (peak := peaks.get(str(one.of["precision"]))):
            ends = one.interval and (one.interval[0] / peak, one.interval[1] / peak)
            text = f"gemm_best / {peak:.4g} FLOP/s of the data sheet"
            yield replace(one, name="peak_share", value=one.value / peak, unit="1", formula=text, interval=ends)


def _jitter(known: Sequence[Case], lines: Sequence[Mapping[str, object]]) -> Iterator[Figure]:
    """Yield by how much the slowest steps exceed the mean, alone and on all devices at once; of the slowest rank."""
    generator = np.random.default_rng(0)
    for index, case in enumerate(known):
        own = [line["each"] for line in lines if line["case"] == index and isinstance(line.get("each"), list)]
        if case["kind"] != "jitter" or not own:
            continue
        times = np.max(np.array(own, dtype=float), axis=0)
        drawn = [_over_mean(generator.choice(times, len(times))) for _ in range(DRAWS)]
        low, high = np.quantile(drawn, LEVELS)
        of = {"ranks": case["ranks"], "precision": DTYPES[case["dtype"]][0]}
        text = f"95th percentile / mean of {len(times)} steps of the standard model; of ranks the slowest at each step"
        yield Figure("jitter", _over_mean(times), "1", text, of, (float(low), float(high)), 1, len(times))


def _over_mean(times: Sequence[float] | Numbers) -> float:
    return float(np.quantile(times, 0.95) / np.mean(times))


def _intensity(name: str, trainings: Sequence[Training]) -> Iterator[Figure]:
    """Yield the slope of the overhead over log2 of the degree, through 0 at degree 1."""
    pairs = _pairs(name, trainings)
    if not pairs:
        return
    x, y = [], []
    for degree, (split, whole) in sorted(pairs.items()):
        ideal = whole.step_time_s / _batch(whole, "global") * _batch(split, "global")
        if name == "pp":
            ideal *= 1 + (degree - 1) / (_batch(split, "global") / _batch(split, "micro"))
        x.append(float(np.log2(degree)))
        y.append(split.step_time_s / ideal - 1)
    slope = float(np.dot(x, y) / np.dot(x, x))
    bubble = ", each stage idle (degree - 1) / micro-batches of it" if name == "pp" else ""
    text = f"slope of t / t of data parallelism on as many processes{bubble}, - 1, over log2(degree); per sequence"
    steps = sum(split.steps + whole.steps for split, whole in pairs.values())
    of = {"degrees": " ".join(map(str, sorted(pairs)))}
    yield Figure(f"communication_{name}", slope, "1", text, of, _ends(x, y, slope), 2 * len(pairs), steps)


def _ends(x: Sequence[float], y: Sequence[float], slope: float) -> tuple[float, float] | None:
    """Return the 95 % interval of a slope through 0, None of fewer than two points."""
    from scipy.stats import t

    free = len(x) - 1
    if free < 1:
        return None
    residual = np.array(y) - slope * np.array(x)
    half = float(t.ppf(0.975, free) * np.sqrt(residual @ residual / free / np.dot(x, x)))
    return slope - half, slope + half


def _pairs(name: str, trainings: Sequence[Training]) -> dict[int, tuple[Training, Training]]:
    """Return by degree a training that is split so alone, and one of data parallelism alone on as many processes, which
    differ in nothing else but the batch; of the model that has the most degrees."""
    families: dict[frozenset[str], dict[int, tuple[Training, Training]]] = {}
    plain = {(_rest(one), _sizes(one)["gpus_per_node"]): one for one in trainings if not _split(one)}
    for one in trainings:
        degree = _sizes(one).get(_DEGREES[name], 1)
        whole = plain.get((_rest(one), degree))
        if degree > 1 and degree == _sizes(one)["gpus_per_node"] and whole:
            families.setdefault(_rest(one), {})[degree] = (one, whole)
    return max(families.values(), key=len, default={})


def _split(training: Training) -> bool:
    return any(word.startswith("layout.") for word in training.run)


def _rest(training: Training) -> frozenset[str]:
    """Return what describes a training beside its layout and global batch."""
    others = ("layout.", "gpus_per_node=", "training.global_batch_size=")
    return frozenset(word for word in training.run if not word.startswith(others))


def _sizes(training: Training) -> dict[str, int]:
    pairs = (word.partition("=") for word in training.run)
    return {key: int(value) for key, _, value in pairs if value.isdigit()}


def _batch(training: Training, which: str) -> int:
    return _sizes(training).get(f"training.{which}_batch_size", 1)


def _figure(machine: Machine, name: str) -> Figure | None:
    """Return the first figure of a name, whatever it belongs to."""
    return next((one for one in machine.figures if one.name == name), None)


def against(machine: Machine, baseline: Machine) -> Iterator[Figure]:
    """Yield the factors of a machine beside a baseline: of its links, and of one device."""
    ratios = [
        (one.value / other, one.samples)
        for one in machine.figures
        if one.name in {f"{kind}_rate" for kind in COLLECTIVES} and (other := baseline.value(one.name, **one.of))
    ]
    of = {"baseline": f"{baseline.device}, {baseline.date}"}
    if ratios:
        values = np.log([ratio for ratio, _ in ratios])
        generator = np.random.default_rng(0)
        drawn = [float(np.exp(np.median(generator.choice(values, len(values))))) for _ in range(DRAWS)]
        low, high = np.quantile(drawn, LEVELS)
        text = "median of rate / the baseline's, of all-reduce, all-gather, reduce-scatter, all-to-all and group sizes"
        ends = (float(low), float(high)) if len(ratios) > 2 else None
        samples = sum(count for _, count in ratios)
        yield Figure("fabric_factor", float(np.exp(np.median(values))), "1", text, of, ends, len(ratios), samples)
    here, there = (_figure(each, "base_throughput") for each in (machine, baseline))
    if here and there and machine.accelerator == baseline.accelerator:
        text = "base_throughput / the baseline's, each at its best batch and sequence of the same standard model"
        factor = _over(here, there, "vendor_factor", text, of)
        yield factor
        yield from _cap(machine, baseline, factor)


def _over(here: Figure, there: Figure, name: str, text: str, of: Mapping[str, int | str]) -> Figure:
    """Return one figure over another, between the ends of both."""
    ends = None
    if here.interval and there.interval:
        ends = (here.interval[0] / there.interval[1], here.interval[1] / there.interval[0])
    return Figure(name, here.value / there.value, "1", text, dict(of), ends, 2, here.samples + there.samples)


def _cap(machine: Machine, baseline: Machine, factor: Figure) -> Iterator[Figure]:
    """Yield what another limit of power leaves of a device's throughput, and of the energy of a token."""
    limit, other = machine.value("power_limit"), baseline.value("power_limit")
    if machine.device != baseline.device or not limit or not other or abs(limit / other - 1) < SAME_LIMIT:
        return
    of = {**factor.of, "limit_w": round(limit), "baseline_limit_w": round(other)}
    yield replace(factor, name="power_cap", of={**of, "what": "base_throughput"})
    here, there = (_figure(each, "energy_per_token") for each in (machine, baseline))
    if here and there:
        text = "energy_per_token / the baseline's"
        yield _over(here, there, "power_cap", text, {**of, "what": "energy_per_token"})
