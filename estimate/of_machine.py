"""Take what was measured on a machine (`tprimat measure`) in place of data sheets and priors, term by term: kernels and
links by themselves, and what whole trainings there say beside."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import log
from statistics import fmean, harmonic_mean
from typing import TypeVar

import msgspec
import numpy as np

from conf.errors import ConfigError, Problem
from conf.load import hardware_named
from conf.machine import BEHIND, GROUPED, Factor, Machine, processes_of
from conf.resolve import Experiment
from conf.threads import threads_of, useful_threads
from estimate.fitted import Error, Parameters, Value, shipped
from estimate.host import EXPOSED, PARAMETERS
from estimate.jobs import Column, Jobs, Numbers
from estimate.predict import DISTANCES
from estimate.rows import jobs_of
from estimate.step_time import A100, CALLS_OF_LAYER, architecture_of, cases_of, step_time, vendor_of

MEASURED = 0.05
"""Standard deviation of the logarithm of what was measured on the very machine."""
_MOVED = ("rms_norm_rate", "swiglu_rate", "rope_rate")
CROWDED = "crowded."
"""Before the name of a parameter whose factor is another one where ranks share cores."""
_OF_GPU = ("step_overhead", "micro_overhead")  # of a GPU: on a CPU they are calls, which are counted
FITTED: Mapping[str, float] = {
    **dict.fromkeys(_OF_GPU, 1.5),
    "straggler": 0.7,
    **dict.fromkeys(("host", "permute", "collective_latency", f"{CROWDED}collective_latency"), 0.4),
    **dict.fromkeys(("grouped", "optimizer", *(f"exposed_{name}" for name in EXPOSED)), 0.2),
    **dict.fromkeys(("traffic", "traffic_backward", "link_efficiency"), 0.15),
    "gemm_backward": 0.08,
}
"""Parameters that trainings correct (host: of their device, all its starts), and the standard deviation of the
logarithm of the factor before any: least is known of what ranks wait for, most of what was timed by itself."""
CALLS: Mapping[str, tuple[int, int]] = {
    "launch_dense": (CALLS_OF_LAYER, 8),
    "launch_moe": (196, 9),
    "launch_expert": (72, 4),
    "launch_expert_scales": (0, 0),
}
"""Calls of a layer's forward pass on a CPU as estimate.step_time counts them; of a layer with experts without those of
each expert, which stand beside it. Second, the products and larger kernels among them that all threads of a rank begin
together. The trainings correct all of them together."""
REPEATED = 0.12
"""Standard deviation of the logarithm of a training's step time that is measured again: two runs of one are 5 % apart
in the median on two cores of a virtual machine, and 10 to 20 % in one of six."""
Terms = Mapping[str, float | None]
_T = TypeVar("_T")


def with_machine(
    e: Experiment, machine: Machine, columns: Mapping[str, Column], parameters: Parameters
) -> tuple[dict[str, Column], Parameters]:
    """Return the columns of Jobs of `e` and the parameters with the machine's figures in their place, those of as many
    ranks at once as a node of `e` has, or the nearest number. ConfigError: it is another machine than that of `e`."""
    _check(e, machine)
    source = f"{parameters.source}; {machine.device} on {machine.host}, measured {machine.date}"
    known, values = _replaced(machine, columns, parameters)
    if why_a_guess(e, machine):
        return known, msgspec.structs.replace(values, source=source)
    offsets = {name: Value(1.0, MEASURED) for case in cases_of(jobs_of([known])).distinct for name in case.offsets}
    errors = {DISTANCES[0][0]: {"all": _error(machine)}}
    times = _corrected(values, _applying(machine.factors, _crowded(machine, columns)))
    efficiency = f"gemm_efficiency.{columns['hardware']}.{columns['precision']}"
    measured = tuple(sorted({*parameters.measured, efficiency}))
    return known, msgspec.structs.replace(times, offsets=offsets, errors=errors, measured=measured, source=source)


def why_a_guess(e: Experiment, machine: Machine) -> tuple[str, str] | None:
    """Return why no training on the machine says how long a step of `e` takes, and what to try; None where they do. On
    a GPU another framework than theirs has other kernels; one process waits for no other; and ranks that share cores
    wait for one another's turns."""
    if not machine.factors:
        few = machine.unknown.get("factors", f"{len(machine.trainings)} trainings completed")
        hint = "call `tprimat measure` again with its folder, which goes on, with more minutes or on an idle machine"
        return few, hint
    if machine.accelerator and not any(f"framework={e.framework.name}" in one.run for one in machine.trainings):
        return f"no training was by {e.framework.name}", "`tprimat estimate calibrate` by runs of it"
    most = max(processes_of(one) for one in machine.trainings)
    if e.gpus_per_node > most == 1:
        return "all trainings were of one process", "call `tprimat measure` with more ranks"
    if not machine.accelerator and e.gpus_per_node > machine.cores >= most:
        return f"no training had more processes than the {machine.cores} cores", "call `tprimat measure full`"
    return None


def learned(
    machine: Machine, trainings: Sequence[Mapping[str, Column]], step_time_s: Sequence[float]
) -> dict[str, Factor]:
    """Return by what trainings on the machine, as columns of Jobs, multiply the parameters of FITTED: least squares on
    the logarithm of predicted by measured, each factor near 1 by its deviation. step_time_s: shape (n,)."""
    from scipy.optimize import least_squares

    groups = _alike(machine, trainings)
    known = {
        name: sd for name, sd in FITTED.items() if not name.startswith(CROWDED if machine.accelerator else _OF_GPU)
    }
    fitted = {f"host.{trainings[0]['hardware']}" if name == "host" else name: sd for name, sd in known.items()}
    deviations, target = np.array([*fitted.values()]), np.log(step_time_s)

    def residuals(x: Numbers) -> Numbers:
        factors, predicted = dict(zip(fitted, np.exp(x * deviations).tolist(), strict=True)), np.empty(len(target))
        for rows, jobs, parameters, crowded in groups:
            own = {name: factor * _of(parameters, name) for name, factor in _applying(factors, crowded).items()}
            predicted[rows] = step_time(jobs, _with(parameters, own)).total
        return np.concatenate([(np.log(predicted) - target) / REPEATED, x])

    found = least_squares(residuals, np.zeros(len(fitted)), loss="soft_l1", xtol=1e-4, ftol=1e-4)
    sds = np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac))) * deviations
    values, prior = np.exp(found.x * deviations), shipped()
    of = {
        name: _of(prior, name)
        for name in _applying(fitted, crowded=False)
        if all(_of(one, name) == _of(prior, name) for *_, one, _ in groups)
    }
    every = zip(fitted, values, sds, strict=True)
    return {name: Factor(_short(value), _short(sd), of.get(name)) for name, value, sd in every}


def _alike(
    machine: Machine, trainings: Sequence[Mapping[str, Column]]
) -> list[tuple[list[int], Jobs, Parameters, bool]]:
    """Return trainings with the same parameters together: their numbers and jobs, and whether ranks share cores."""
    columns, groups = list[dict[str, Column]](), list[tuple[list[int], Parameters, bool]]()
    for number, one in enumerate(trainings):
        known, parameters = _replaced(machine, one, _without_offsets(shipped()))
        columns.append(known)
        kind = parameters, _crowded(machine, one)
        rows = next((rows for rows, *of in groups if (*of,) == kind), None)
        if rows is None:
            groups.append(([number], *kind))
        else:
            rows.append(number)
    return [(rows, jobs_of([columns[row] for row in rows]), known, crowded) for rows, known, crowded in groups]


def _crowded(machine: Machine, columns: Mapping[str, Column]) -> bool:
    """Return whether more ranks than cores compute, so that each waits for the others' turns."""
    return not machine.accelerator and float(columns["gpus_per_node"]) > machine.cores


def _applying(factors: Mapping[str, _T], crowded: bool) -> dict[str, _T]:
    """Return the factors of ranks that share cores, or of those that do not, by the parameters that they multiply."""
    instead = {name.removeprefix(CROWDED): one for name, one in factors.items() if name.startswith(CROWDED)}
    known = {name: one for name, one in factors.items() if not name.startswith(CROWDED)}
    return {**known, **instead} if crowded else known


def trained(machine: Machine, columns: Mapping[str, Column], factors: Mapping[str, Factor]) -> float:
    """Return the step time of one training, s, by the machine and the factors of others."""
    known, parameters = _replaced(machine, columns, _without_offsets(shipped()))
    own = _corrected(parameters, _applying(factors, _crowded(machine, columns)))
    return float(step_time(jobs_of([known]), own).total[0])


def _corrected(parameters: Parameters, factors: Mapping[str, Factor]) -> Parameters:
    """Return the parameters with what trainings say of them."""
    return _with(parameters, {name: one.value * (one.of or _of(parameters, name)) for name, one in factors.items()})


def _of(parameters: Parameters, name: str) -> float:
    return parameters.of(*name.split(".", 1))


def _with(parameters: Parameters, values: Mapping[str, float]) -> Parameters:
    own = {name: Value(value, MEASURED) for name, value in values.items()}
    return msgspec.structs.replace(parameters, values={**parameters.values, **own})


def _without_offsets(parameters: Parameters) -> Parameters:
    return msgspec.structs.replace(parameters, offsets={})


def _error(machine: Machine) -> Error:
    """Return the half widths of intervals that hold one more training, by those that the fit did not have (Student's
    t)."""
    from scipy.stats import t

    logs = [np.log(one.left_out_s / one.step_time_s) for one in machine.trainings if one.left_out_s]
    count = len(logs)
    spread = float(np.sqrt(np.mean(np.square(logs)) * (1 + 1 / count))) if count > 1 else np.inf
    half_80, half_95 = (float(t.ppf(0.5 + level / 2, max(count - 1, 1))) * spread for level in (0.8, 0.95))
    return Error(count, half_80, half_95)


def _replaced(
    machine: Machine, columns: Mapping[str, Column], parameters: Parameters
) -> tuple[dict[str, Column], Parameters]:
    """Return columns and parameters with what kernels and links reached in their place."""
    figures = _Figures(machine, columns)
    known = {name: value for name, value in figures.columns().items() if value is not None}
    values = {name: Value(value, MEASURED) for name, value in figures.values().items() if value is not None}
    return {**columns, **known}, msgspec.structs.replace(parameters, values={**parameters.values, **values})


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _check(e: Experiment, machine: Machine) -> None:
    vendor = e.hardware.vendor
    name = hardware_named(machine.device, vendor) if vendor and machine.accelerator else "cpu"
    if name != e.hardware.name:
        raise ConfigError(Problem("machine", "is another machine", machine.device, e.hardware.name, f"hardware={name}"))


class _Figures:
    """The figures of a machine for so many processes at once. fp8 and narrower products were not measured: what follows
    from them stays as published."""

    def __init__(self, machine: Machine, columns: Mapping[str, Column]) -> None:
        self.machine, self.precision = machine, str(columns["precision"])
        self.hardware = str(columns["hardware"])
        of_a_node = machine.ranks // machine.nodes
        counts = {int(one.of["ranks"]) for one in machine.figures if one.name == "gemm_rate"}
        self.counts = counts = {count for count in counts if count <= of_a_node}
        self.of_node = of_node = float(columns["gpus_per_node"])
        self.ranks = _nearest(counts, of_node if machine.accelerator else max(of_node, _shares(machine, columns)))
        # ranks wait most for those that they split a layer with
        splits = [float(columns[f"{name}_parallel_size"]) for name in ("tensor_model", "context", "expert_model")]
        group = max(splits) if max(splits) > 1 else float(columns["data_parallel_size"])
        self.group = _nearest(counts - {1}, min(group, of_node))
        self.wide = "fp32" if self.precision == "fp32" else "bf16"  # of what is not quantised

    def of(self, name: str, precision: str = "") -> float | None:
        return self.machine.value(name, ranks=self.ranks, precision=precision or self.wide)

    def link(self, name: str) -> float | None:
        """Return the mean of a figure of all-gathers and reduce-scatters, which a step consists of: of one group, or of
        several side by side where a node has more ranks."""
        ranks = _nearest(self.counts, self.of_node)
        sides = [{"ranks": ranks, "group": self.group}] if self.group < ranks else []
        for of in (*sides, {"ranks": self.group}):
            known = [self.machine.value(f"{kind}_{name}", **of) for kind in ("all_gather", "reduce_scatter")]
            if all(known):
                return (harmonic_mean if name == "rate" else fmean)([*filter(None, known)])
        return None

    def columns(self) -> Terms:
        """Return columns of Jobs: rates of one rank."""
        rate = self.link("rate")
        network = self._send("rate", across=True) or (None if self.machine.accelerator else rate)
        return {
            "peak_flops": self.of("gemm_rate", self.precision),
            "peak_bf16_flops": self.of("gemm_rate"),
            "memory_bandwidth": self.of("triad_rate"),
            "link_bandwidth": rate,
            "nic_bandwidth": network,
        }

    def _send(self, name: str, across: bool = False) -> float | None:
        """Return the median latency (s) or rate (bytes/s) from one rank to another of its node, or across nodes."""
        known = [one.value for one in self.machine.pairs(across, f"send_{name}")]
        return float(np.median(known)) if known else None

    def values(self) -> Terms:
        """Return parameters, by their names in parameters.yaml: the efficiency of what was measured itself is 1."""
        rate, triad, moved = self.of("gemm_rate"), self.of("triad_rate"), [*filter(None, map(self.of, _MOVED))]
        halving = (rate / A100) ** 0.5 if rate else None
        return {
            **(self._efficiencies(rate) if rate else {}),
            "gemm_tokens": _over(self.of("gemm_rows"), halving),
            "gemm_width": _over(self.of("gemm_width"), halving),
            "attention_backward": self.of("attention_backward"),
            "attention_half_rate_tokens": _over(self.of("attention_tokens"), self._by_an_a100(rate)),
            "attention_channels": self.of("attention_channels"),
            "memory_efficiency": 1.0 if triad else None,
            "traffic": triad / float(np.median(moved)) if triad and moved else None,
            "optimizer": _over(triad, self.of("adam_rate", "fp32")),
            "link_efficiency": 1.0 if self.link("rate") else None,
            "nic_efficiency": 1.0 if self._send("rate", across=True) else None,
            "collective_latency": self.link("latency"),
            "send_latency": self._send("latency"),
            **({} if self.machine.accelerator else self._of_a_host()),
        }

    def _by_an_a100(self, rate: float | None) -> float | None:
        """Return by how much faster this GPU multiplies than an A100, to which sizes of GPUs belong; 1 of a CPU."""
        return (rate / A100 if rate else None) if self.machine.accelerator else 1.0

    def _of_a_host(self) -> Terms:
        """Return parameters of a CPU, where gloo and the program that launches leave nothing to compute meanwhile, and
        no graph launches, and each token goes to each of its experts."""
        call, with_others = (self.machine.value(name, ranks=self.ranks) for name in ("launch", "thread_launch"))
        names = ("graphs_unknown", "flex_unknown", "straggler")
        known: dict[str, float | None] = {name: PARAMETERS[name] for name in names}
        known |= {f"exposed_{name}": 1.0 for name in EXPOSED} | {"grouped": self._grouped()}
        # while a pipeline fills, ranks that share cores have them for themselves
        known["bubble"] = min(1.0, self.machine.cores / self.of_node)
        if call is None or with_others is None:
            return known
        kernel = max(with_others - BEHIND * call, call)
        return {**known, **{name: calls * call + kernels * kernel for name, (calls, kernels) in CALLS.items()}}

    def _grouped(self) -> float | None:
        """Return the time of the products of experts, one behind the other, by what single products of their sizes
        are predicted to take (the formula of `gemm_rate`)."""
        rate, rows, width, reached = map(self.of, ("gemm_rate", "gemm_rows", "gemm_width", "grouped_rate"))
        if rate is None or rows is None or width is None or not reached:
            return None
        m, n, k = GROUPED.values()
        return rate / (1 + rows / m + width / n + width / k) / reached

    def _efficiencies(self, rate: float) -> Terms:
        vendor, gpu = vendor_of(self.hardware), self.hardware
        known = {self.wide, self.precision} if self.of("gemm_rate", self.precision) else {self.wide}
        # the output layer's products are looked up as bf16's
        products = {f"gemm_efficiency.{gpu}.{precision}": 1.0 for precision in {*known, "bf16"}}
        products |= {f"gemm_precision.{precision}": 1.0 for precision in {*known, "bf16"}}
        return {
            **products,
            f"gemm_vendor.{vendor}": 1.0,
            f"gemm_architecture.{architecture_of(gpu)}": 1.0,
            f"attention_efficiency.{gpu}": _over(self.of("attention_rate"), rate),
            f"attention_architecture.{architecture_of(gpu)}": 1.0,
            f"attention_vendor.{vendor}": 1.0,
            "attention_of_ampere": 1.0,  # what was timed is torch's own, whichever kernels it has
        }


def _shares(machine: Machine, columns: Mapping[str, Column]) -> float:
    """Return into how many shares the cores are cut of which a process uses one: figures of as many ranks are those of
    its threads, too, whoever else computes."""
    tokens = float(columns["micro_batch_size"]) * float(columns["seq_length"]) / float(columns["context_parallel_size"])
    useful = useful_threads(tokens, float(columns["hidden_size"]))
    return machine.cores / threads_of(machine.cores, int(columns["gpus_per_node"]), useful)


def _nearest(counts: Collection[int], count: float) -> int:
    """Return the number that is nearest by its logarithm; 1 of none."""
    return min(counts, key=lambda one: (abs(log(one / max(count, 1))), one), default=1)


def _over(value: float | None, divisor: float | None) -> float | None:
    return None if value is None or not divisor else value / divisor
