"""The time of one training step from what a job computes and moves: closed formulas, all jobs at once.

Terms after Korthikanti 2022 (arXiv:2205.05198: tensor and sequence parallelism, recomputation), Narayanan 2021
(arXiv:2104.04473: pipelines), Rajbhandari 2020 (arXiv:1910.02054: sharded states), Liu 2023 (arXiv:2310.01889: ring
attention) and Lepikhin 2020 (arXiv:2006.16668: experts); what is fitted, and to what, is in parameters.yaml."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import pairwise
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from conf.facts import hardware
from estimate.cells import named, spellings
from estimate.fitted import Value
from estimate.jobs import Jobs, Numbers
from estimate.parameters import matrices, short_ends

CHUNK = 8192  # jobs whose arrays stay in a core's cache
BF16 = 2  # bytes
HOPPER = "sm_90"
OFFSETS = (
    ("software",),
    ("software", "kind"),
    ("software", "vendor", "kind"),
    ("software", "architecture", "precision", "kind"),
    ("framework",),
    ("framework", "kind"),
    ("stack", "kind"),
    ("stack", "hardware", "kind"),
    ("framework", "hardware", "precision", "kind"),
    ("framework", "model"),
    ("framework", "hardware", "model", "precision"),
)
"""Jobs that have these in common share a factor: from all of a framework to one model on one GPU."""
OWN = (("stack", "hardware", "kind"), ("framework", "hardware", "model", "precision"))
"""Offsets of one machine and its network, which one own run refines: they slow the whole step. All others slow only
what the software computes, not what it sends to other stages, replicas and experts."""
SHARED = tuple(level for level in OFFSETS if level not in OWN)
_Factors = tuple[Numbers | float, Numbers | float]


class Values(Protocol):
    """Parameters of estimate/fitted.py, or of a fit at several points: numbers, or arrays of shape (points, 1)."""

    @property
    def offsets(self) -> Mapping[str, Value]: ...

    def of(self, kind: str, *parts: str) -> Numbers | float: ...


A100 = 312e12  # FLOP/s to which the sizes that halve the rates of matrix products and attention belong
NVLS_RANKS = 5
"""Ranks from which NCCL adds up in the switches (stas00/ml-engineering@744d01e, network/README.md: from 5 on H200)."""
_OF_BIAS = 28
"""Bytes that the bias of an expert's second product moves for each element, forward: Megatron-Core adds it expert by
expert in fp32 and joins the pieces (v0.15.3 megatron/core/transformer/moe/experts.py, TEGroupedMLP._apply_bias)."""
KEYS_OF_HOST = 512
"""Keys of a block of torch's attention on a CPU, which it computes whole where causality needs a part of it (torch
v2.13.0 aten/src/ATen/native/cpu/FlashAttentionKernel.cpp, flash_attention_kernel_impl)."""
_NORM = 4  # of launching and computing side by side, of which the slower counts
_NORM_OF_EXPERTS = 2  # a host that waits for how many tokens each expert got is not ahead of its GPU
_NORM_OF_HOST = 1  # a CPU that launches does not compute meanwhile
_NORM_OF_GRADIENTS = 1.5
"""Norm of computing a weight's gradient beside moving what it is added to: on a B200 products of 2,048, 4,096, 8,192
and 16,384 rows that add to gradients in fp32 take 15, 8, 9 and 0 % longer than others in the mean
(MooreThreads/SimuMax@4dcaae5 configs/system/b200_bf16_ceperm.json), and by this norm 16, 6, 2 and 1 %."""
_GATHERED_AGAIN = 0.5
"""Share of a layer's collectives of one pass that its backward pass makes besides: inputs gathered once more for the
weights' gradients (Korthikanti, 4.2.2), which GPUs do meanwhile and a CPU does not."""
_OF_HEAD, _OF_STEP = 8.0, 4.0
"""Collectives of embedding, output layer and loss in a micro-batch under tensor parallelism, and those of a step:
gradients, parameters, the gradients' norm, the loss. Counted in steps of the embedded engine (calls of
torch.distributed with Megatron-Core 0.15.3); they count on a CPU, where each takes as long as a layer's."""
CALLS_OF_LAYER = 162
"""Calls of a dense layer's forward pass on a CPU, which computes nothing meanwhile: a third of those of both passes.
Counted in steps of the embedded engine: calls of torch by its profiler, and half as many as calls of Python functions,
which take about half as long. So are all numbers of calls below."""
_CALLS_OF_TP, _CALLS_OF_CP, _CALLS_OF_EP = 0.6, 0.6, 0.33
"""Share by which a layer has more calls where tensors, the context or experts are split."""
_CALLS_OF_EMBEDDING, _CALLS_OF_HEAD = 100, 366
"""Calls of a micro-batch, both passes: of the first stage, and of output layer and loss."""
_CALLS_OF_STEP, _CALLS_OF_TENSOR = 240, 53
"""Calls of a step: of all of it, and of the optimizer for each tensor of a rank's parameters."""
_CALLS_AGAIN = 2.0
"""Forward calls of a layer that is recomputed, by those of a layer: the state of random numbers is kept, too."""
_TENSORS, _TENSORS_OF_EXPERT, _TENSORS_OF_ENDS = (6, 5), 2, 3
"""Tensors of parameters: of a dense layer and of one with experts without these; of an expert; of embedding, last norm
and output layer."""


def length_of_host(queries: Numbers | float) -> Numbers:
    """Return the sequence length to which torch's block of queries (256, 64 or 32) belongs, four times the block: a CPU
    is as fast as its blocks are large."""
    return np.select([np.asarray(queries) >= 768, np.asarray(queries) >= 192], [1024.0, 256.0], 128.0)


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of one step, arrays of shape (n,), none negative. Communication counts only where nothing hides it.
    memory_bound: norms, activations, quantising, loss, adding up gradients and the steps of rings. bubble: with the
    wait for the longest stage. other: per step and micro-batch."""

    gemm: Numbers
    attention: Numbers
    memory_bound: Numbers
    tensor_parallel: Numbers
    context_parallel: Numbers
    expert_parallel: Numbers
    bubble: Numbers
    pipeline_sends: Numbers
    data_parallel: Numbers
    optimizer: Numbers
    recompute: Numbers
    launches: Numbers
    offload: Numbers
    other: Numbers
    stragglers: Numbers

    @property
    def total(self) -> Numbers:
        """Return the step time, the sum of all parts."""
        return np.asarray(sum(getattr(self, part.name) for part in fields(self)), dtype=float)

    def of(self, job: int) -> dict[str, float]:
        """Return the parts of one job."""
        columns = {part.name: np.atleast_1d(getattr(self, part.name)) for part in fields(self)}
        return {name: float(column[job if column.size > 1 else 0]) for name, column in columns.items()}


PARTS = tuple(part.name for part in fields(Parts))


class Case(NamedTuple):
    """A key of parameters: the stack, the machine and the model of a job."""

    stack: str
    hardware: str
    precision: str
    trained: str
    model: int

    @property
    def framework(self) -> str:
        return self.stack.partition("-")[0]

    @property
    def software(self) -> str:
        """Return what the framework is built on, whose kernels and collectives it has; itself where that is nothing."""
        return software_of(self.framework)

    @property
    def vendor(self) -> str:
        return vendor_of(self.hardware)

    @property
    def architecture(self) -> str:
        return architecture_of(self.hardware)

    @property
    def kind(self) -> str:
        """Return dense, moe or lora."""
        return "lora" if self.trained == "lora" else "moe" if self.model & 0xFFF else "dense"

    @property
    def offsets(self) -> tuple[str, ...]:
        """Return the names of its offsets; nothing is known of a stack that nobody names."""
        return _offsets_of(self)


@cache
def _offsets_of(case: Case) -> tuple[str, ...]:
    """Return the names of a case's offsets; text that a fit needs a hundred thousand times."""
    levels = OFFSETS if case.stack else ()
    return tuple(",".join(f"{part}:{getattr(case, part)}" for part in level) for level in levels)


@cache
def software_of(framework: str) -> str:
    """Return the library below a framework (spellings.yaml)."""
    return next((name for name, built in spellings()["software"].items() if framework in built), framework)


@dataclass(frozen=True, slots=True)
class Cases:
    """The distinct cases of jobs, and the case of each; index is None where all have one. places: by a key of cases,
    what is distinct of it and which of them each job has; fixed: numbers that no parameter changes. A fit asks for them
    ten thousand times."""

    distinct: tuple[Case, ...]
    index: NDArray[np.intp] | None
    places: dict[Callable[[Case], Any], tuple[list[Any], NDArray[np.intp]]] = field(default_factory=dict, compare=False)
    fixed: dict[Callable[[Case], float], Numbers] = field(default_factory=dict, compare=False)

    def of_jobs(self, count: int) -> NDArray[np.intp]:
        """Return the place in `distinct` of each of `count` jobs."""
        return np.zeros(count, dtype=np.intp) if self.index is None else self.index

    def spread(self, values: list[float]) -> Numbers:
        """Return a value of each case as one of each job."""
        array = np.array(values, dtype=float)
        return array[0] if self.index is None else array[self.index]

    def take(self, some: slice) -> Cases:
        """Return the cases of some of the jobs, without those that none of them has."""
        if self.index is None:
            return self
        found, index = np.unique(self.index[some], return_inverse=True)
        return Cases(tuple(self.distinct[i] for i in found), index)

    def by(self, key: Callable[[Case], Any], value: Callable[..., Numbers | float]) -> Numbers:
        """Return a value of each job that depends on `key` of its case alone, worked out once for each; shape (n,), or
        (points, n) where a value is of several points."""
        if key not in self.places:
            keys = [key(case) for case in self.distinct]
            where = {one: place for place, one in enumerate(dict.fromkeys(keys))}
            own = np.array([where[one] for one in keys], dtype=np.intp)
            self.places[key] = [*where], own if self.index is None else own[self.index]
        distinct, place = self.places[key]
        values = np.broadcast_arrays(*(value(one) for one in distinct))
        if self.index is None:
            return np.asarray(values[0], dtype=float)
        return np.concatenate(values, axis=-1)[..., place] if values[0].ndim else np.array(values, dtype=float)[place]

    def of(self, number: Callable[[Case], float]) -> Numbers:
        """Return a number of each job that its case alone decides, whatever the parameters, worked out once."""
        if number not in self.fixed:
            self.fixed[number] = self.spread([number(case) for case in self.distinct])
        return self.fixed[number]


def cases_of(jobs: Jobs) -> Cases:
    """Return what the parameters of jobs are looked up by. A model is known by its widths, whatever its layers."""
    shape = (jobs.hidden_size, jobs.ffn_hidden_size + 7 * jobs.moe_ffn_hidden_size, jobs.num_experts)
    wide, inner, experts = (np.asarray(column).astype(np.int64) for column in shape)
    columns = [jobs.stack, jobs.hardware, jobs.precision, jobs.trained, (wide << 40) + (inner << 12) + experts]
    if not any(np.ndim(column) for column in columns):
        return Cases((Case(*(np.asarray(column).item() for column in columns)),), None)
    codes, names = zip(*(_coded(np.asarray(column)) for column in columns), strict=True)
    key = np.zeros((), dtype=np.int64)
    for code, name in zip(codes, names, strict=True):
        key = key * len(name) + code
    found, index = np.unique(key, return_inverse=True)
    return Cases(tuple(Case(*_digits(int(k), names)) for k in found), index)


def _coded(column: NDArray[Any]) -> tuple[NDArray[np.int64], list[Any]]:
    """Return integers for values, and the values; a dict is ten times faster than sorting words."""
    values = column.reshape(-1).tolist()
    known = {value: code for code, value in enumerate(dict.fromkeys(values))}
    if column.ndim == 0:
        return np.zeros((), dtype=np.int64), list(known)
    return np.fromiter((known[value] for value in values), dtype=np.int64, count=len(values)), list(known)


def _digits(key: int, names: tuple[list[Any], ...]) -> list[Any]:
    found: list[Any] = []
    for name in reversed(names):
        key, code = divmod(key, len(name))
        found.append(name[code])
    return found[::-1]


def step_time(
    jobs: Jobs,
    parameters: Values,
    cases: Cases | None = None,
    slower: Numbers | float = 1.0,
    whole: Numbers | float = 1.0,
) -> Parts:
    """Return the parts of a step of each job, in seconds, shape (n,), or (points, n) of parameters at several points;
    nan where a data sheet lacks a rate that it needs. cases: of the jobs, where many steps are worked out of the same
    ones. slower, whole: factors besides the offsets of `parameters`, on what is computed and on all (OWN), of all jobs
    or shape (n,)."""
    count, known = jobs.count, cases or cases_of(jobs)
    if count <= CHUNK:
        chunks = [_parts(jobs, parameters, known, (slower, whole))]
    else:
        cuts, factors = [*range(0, count, CHUNK), count], [np.broadcast_to(each, count) for each in (slower, whole)]
        some = (slice(*ends) for ends in pairwise(cuts))
        chunks = [
            _parts(jobs.take(each), parameters, known.take(each), (factors[0][each], factors[1][each])) for each in some
        ]
    sizes = [min(CHUNK, count - start) for start in range(0, count, CHUNK)]
    shapes = [(*np.shape(chunk.total)[:-1], size) for chunk, size in zip(chunks, sizes, strict=True)]

    def whole_of(part: str) -> Numbers:
        each = (np.broadcast_to(getattr(chunk, part), shape) for chunk, shape in zip(chunks, shapes, strict=True))
        return np.concatenate([*each], axis=-1)

    return Parts(*map(whole_of, PARTS))


@cache
def nominal_power_w(name: str) -> float:
    """Return the power of one device by its data sheet; nan where it has none or is not of conf/hardware."""
    device = hardware(name)
    return device.tdp_w / device.devices_per_package if device and device.tdp_w else float("nan")


_HARDWARE, _MACHINE, _SOFTWARE = attrgetter("hardware"), attrgetter("hardware", "precision"), attrgetter("software")


def _is_quantised(case: Case) -> bool:
    return case.precision not in ("bf16", "fp16", "fp32")


def _is_pretraining(case: Case) -> bool:
    return case.trained != "lora"


def _is_host(case: Case) -> bool:
    return case.hardware == "cpu"


def _is_unfused(case: Case) -> bool:
    return bool(named(case.stack, "unfused_attention"))


def _bytes(case: Case) -> float:
    """Return the bytes of an activation, and of a weight that is gathered."""
    return 2.0 * BF16 if case.precision == "fp32" else BF16


def _bytes_of_fp8(case: Case) -> float:
    """Return the bytes of a weight that is gathered in fp8; Megatron gathers those of blocks in bf16."""
    return 1.0 if case.precision == "fp8" else _bytes(case)


def _adapted_rows(case: Case) -> float:
    return float(spellings()["adapted_rows"].get(case.framework, 2.0))


def _nominal_power_w(case: Case) -> float:
    return nominal_power_w(case.hardware)


def _in_bf16(case: Case) -> tuple[str, str]:
    """Return the machine of a case's output layer."""
    return case.hardware, "bf16"


@cache
def _older_attention(case: Case) -> tuple[str, ...]:
    """Return the parameters by which attention is slower than a GPU's best: of the first FlashAttention, of Ampere's
    kernels on Hopper; none where neither is true, or attention is no one kernel (unfused_attention)."""
    device = hardware(case.hardware)
    on_hopper = device is not None and device.architecture == HOPPER
    older = {"attention_of_flash_1": True, "attention_of_ampere": on_hopper}
    fused = not named(case.stack, "unfused_attention")
    return tuple(kind for kind, matters in older.items() if fused and matters and named(case.stack, kind))


def attention_gpu(case: Case) -> str:
    """Return the GPU whose best attention is scaled down: the job's own; the A100 of the first FlashAttention on
    Hopper, where it is a kernel of Ampere and no faster."""
    return "a100" if len(_older_attention(case)) > 1 else case.hardware


class _Rates(NamedTuple):
    """Rates of one GPU that the jobs reach, FLOP/s and bytes/s."""

    matrix: Numbers
    matrix_bf16: Numbers
    attention: Numbers
    memory: Numbers
    nic: Numbers
    host: Numbers
    launch: Numbers
    power: Numbers


def _rates(j: Jobs, p: Values, cases: Cases) -> _Rates:
    """Return what the data sheet has, times the efficiency of the GPU, its maker and the precision."""

    def matrix(used: Callable[[Case], tuple[str, str]]) -> Numbers:
        return cases.by(used, lambda key: matrix_efficiency(p, *key))

    attention = cases.by(attention_gpu, lambda name: attention_efficiency(p, name))
    attention = attention * cases.by(_SOFTWARE, lambda name: p.of("attention_software", name))
    attention = attention * cases.by(_older_attention, lambda names: prod(map(p.of, names)))
    host = cases.by(_HARDWARE, lambda name: p.of("host_link", name))
    launch = cases.by(_HARDWARE, lambda name: p.of("host_vendor", vendor_of(name)) * p.of("host", name))
    nominal = cases.of(_nominal_power_w)
    share = np.where(nominal > 0, j.tdp_w / nominal, 1.0)
    power = np.where(np.abs(share - 1) > 1e-9, np.minimum(share, 1.0) ** p.of("power"), 1.0)
    return _Rates(
        matrix=j.peak_flops * matrix(_MACHINE) * power,
        matrix_bf16=j.peak_bf16_flops * matrix(_in_bf16) * power,
        attention=j.peak_bf16_flops * attention * power,
        memory=j.memory_bandwidth * p.of("memory_efficiency"),
        nic=j.nic_bandwidth * p.of("nic_efficiency"),
        host=host,
        launch=launch,
        power=power,
    )


@cache
def vendor_of(name: str) -> str:
    """Return the maker of a GPU of conf/hardware, "other" of any other."""
    device = hardware(name)
    return device.vendor if device and device.vendor else "other"


@cache
def architecture_of(name: str) -> str:
    """Return the architecture of a GPU of conf/hardware, "other" of any other. Those of one run the same kernels."""
    device = hardware(name)
    return device.architecture if device and device.architecture else "other"


def matrix_efficiency(p: Values, name: str, precision: str) -> Numbers | float:
    """Return the share of the peak that large matrix products reach, of any GPU the prior of all."""
    shared = p.of("gemm_vendor", vendor_of(name)) * p.of("gemm_architecture", architecture_of(name))
    return shared * p.of("gemm_precision", precision) * p.of("gemm_efficiency", name, precision)


def attention_efficiency(p: Values, name: str) -> Numbers | float:
    """Return the share of the bf16 peak that attention reaches on long sequences."""
    shared = p.of("attention_vendor", vendor_of(name)) * p.of("attention_architecture", architecture_of(name))
    return shared * p.of("attention_efficiency", name)


def link_rate(jobs: Jobs, p: Values, ranks: Numbers) -> Numbers:
    """Return bytes/s of one GPU to its domain: over point-to-point links only those to the group's ranks count."""
    used = np.where(jobs.mesh_links > 0, np.minimum(1.0, (ranks - 1) / np.maximum(jobs.mesh_links, 1)), 1.0)
    rate: Numbers = jobs.link_bandwidth * p.of("link_efficiency") * np.where(ranks > 1, used, 1.0)
    return rate


def offset_of(p: Values, case: Case, levels: Collection[tuple[str, ...]] = OFFSETS) -> float:
    """Return the product of a case's offsets at `levels`; 1 of what no fitted job had."""
    product = 1.0
    for level, name in zip(OFFSETS, case.offsets, strict=False) if p.offsets else ():
        if level in levels and (found := p.offsets.get(name)) is not None:
            product *= found.value
    return product


def _offset_factors(p: Values, cases: Cases, levels: Collection[tuple[str, ...]]) -> Numbers:
    """Return `offset_of` of each job."""
    return cases.spread([offset_of(p, case, levels) for case in cases.distinct]) if p.offsets else np.ones(())


class _Layer(NamedTuple):
    """Seconds of one layer's forward pass of one micro-batch on one GPU. attention_gemm: without up; up: of latent
    attention; mlp: dense or shared; experts; norm, activation, moving, scores: bound by memory; quantise: to 8 or 4
    bits; added: by which products of the backward pass take longer since they add to gradients."""

    attention_gemm: Numbers
    up: Numbers
    mlp: Numbers
    last: Numbers
    experts: Numbers
    attention: Numbers
    norm: Numbers
    activation: Numbers
    moving: Numbers
    scores: Numbers
    quantise: Numbers
    added: Numbers
    tensor_parallel: Numbers
    context_parallel: Numbers
    expert_parallel: Numbers
    launch: Numbers

    @property
    def gemm(self) -> Numbers:
        return self.attention_gemm + self.up + self.mlp + self.experts

    @property
    def memory_bound(self) -> Numbers:
        return self.norm + self.activation + self.moving + self.scores + self.quantise


class _Maker:
    """Computes the layers of jobs; holds what all terms need."""

    def __init__(self, jobs: Jobs, parameters: Values, cases: Cases, factors: _Factors = (1.0, 1.0)) -> None:
        self.j, self.p = jobs, parameters
        self.rates = _rates(jobs, parameters, cases)
        shared = factors[0] * _offset_factors(parameters, cases, SHARED)
        self.slower = shared * factors[1] * _offset_factors(parameters, cases, OWN)
        self.tp, self.cp, self.ep = (
            jobs.tensor_model_parallel_size,
            jobs.context_parallel_size,
            jobs.expert_model_parallel_size,
        )
        self.tokens = jobs.micro_batch_size * jobs.seq_length / self.cp
        self.own_tokens = self.tokens / np.where(jobs.sequence_parallel > 0, self.tp, 1.0)
        self.domain = np.maximum(np.nan_to_num(jobs.gpus_per_domain, nan=1.0), 1.0)
        self.bytes = cases.of(_bytes)
        self.weight_bytes = np.where(jobs.fp8_params > 0, cases.of(_bytes_of_fp8), self.bytes)
        self.quantised, self.pretrained = cases.of(_is_quantised), cases.of(_is_pretraining)
        self.host, self.adapted = cases.of(_is_host), cases.of(_adapted_rows)
        self.unfused = np.maximum(cases.of(_is_unfused), jobs.unfused_attention)
        # what leaves for other stages, replicas and experts is as fast in slow software: its factor is taken out of it
        self.sent = np.where(self.host, 1.0, 1 / shared)
        self.norm = np.where(self.host, _NORM_OF_HOST, _NORM)
        self.norm_of_experts = np.where((self.host + jobs.padded_experts) > 0, self.norm, _NORM_OF_EXPERTS)
        self.exposed_tensor = self._exposed(cases, "exposed_tensor")
        self.exposed_tensor = self.exposed_tensor * self.where(jobs.overlapped_tensor, "exposed_tensor_overlapped")
        overlap = jobs.overlapped_experts
        self.overlap = np.where(np.isnan(overlap), parameters.of("overlap_unknown"), overlap) * (self.ep > 1)
        self.starts = self.rates.launch * self.where(self.overlap, "launch_overlapped")
        # of one call of torch on a CPU, where each counts; GPUs have few outside of layers (step_overhead)
        self.call = self.host * self.starts * parameters.of("launch_dense") / CALLS_OF_LAYER
        self.exposed_fsdp = self._exposed(cases, "exposed_fsdp")
        self.moe_layers = jobs.num_layers - jobs.dense_layers + jobs.mtp_num_layers
        one = matrices(jobs)
        self.weights = one._replace(shared=one.shared + jobs.hidden_size * jobs.num_experts)  # with the router
        self.own_experts = jobs.num_experts / self.ep
        self.sizes = (parameters.of("gemm_tokens"), parameters.of("gemm_width"), parameters.of("gemm_width"))

    def _exposed(self, cases: Cases, kind: str) -> Numbers:
        """Return the share of communication that nothing hides, times the factor of the software."""
        shared = self.p.of(kind)
        return cases.by(_SOFTWARE, lambda name: np.minimum(1.0, shared * self.p.of(f"{kind}_software", name)))

    def where(self, share: NDArray[Any], name: str) -> Numbers:
        """Return a parameter for a share of the work and 1 for the rest, in the mean."""
        mean: Numbers = 1 + share * (self.p.of(name) - 1)
        return mean

    def product(self, m: Numbers, n: Numbers, k: Numbers, rate: Numbers, peak: Numbers) -> Numbers:
        """Return the seconds of an m × k by k × n product: slower the fewer tiles it has for the GPU's rate."""
        halving = np.sqrt(peak / A100)
        m0, n0, k0 = self.sizes
        seconds: Numbers = (2 * m * n * k + 2 * halving * (m0 * n * k + n0 * m * k + k0 * m * n)) / rate
        return seconds

    def matmul(self, m: Numbers, n: Numbers, k: Numbers) -> Numbers:
        """Return the seconds of a product in the job's precision."""
        return self.product(m, n, k, self.rates.matrix, self.j.peak_flops)

    def link(self, ranks: Numbers) -> Numbers:
        return link_rate(self.j, self.p, ranks)

    def ring(self, ranks: Numbers, stride: Numbers) -> Numbers:
        """Return bytes/s of one rank in a collective of `ranks` that lie `stride` GPUs apart: within the domain its
        links; beyond it the network cards of all ranks that the group has in a domain."""
        inside = np.clip(self.domain / stride, 1.0, ranks)
        link = self.link(np.minimum(ranks, inside))
        return np.where(ranks * stride <= self.domain, link, np.minimum(link, self.rates.nic * inside))

    def all_reduce_gain(self, ranks: Numbers) -> Numbers:
        """Return by how much faster an all-reduce of neighbours is than its all-gather and reduce-scatter."""
        switched = (ranks >= NVLS_RANKS) & (ranks <= self.domain)
        return np.where(switched, self.j.all_reduce_gain, 1.0)

    def attention_products(self) -> tuple[Numbers, Numbers]:
        """Return the seconds of an attention's products without and of the up-projections of latent attention."""
        j, t, h, tp = self.j, self.tokens, self.j.hidden_size, self.tp
        heads = j.num_attention_heads
        wide = j.kv_channels * heads / tp
        plain = self.matmul(t, wide + 2 * j.kv_channels * j.num_query_groups / tp, h) + self.matmul(t, h, wide)
        if not np.any(j.mla):
            return plain, np.zeros(())
        query = j.qk_head_dim + j.qk_pos_emb_head_dim
        low, compressed = np.maximum(j.q_lora_rank, 1), j.q_lora_rank > 0
        down = self.matmul(t, j.kv_lora_rank + j.qk_pos_emb_head_dim, h) + self.matmul(t, h, j.v_head_dim * heads / tp)
        down = down + np.where(compressed, self.matmul(t, low, h), 0.0)
        up = self.matmul(t, (j.qk_head_dim + j.v_head_dim) * heads / tp, np.maximum(j.kv_lora_rank, 1))
        up = up + self.matmul(t, query * heads / tp, np.where(compressed, low, h))
        return np.where(j.mla > 0, down, plain), np.where(j.mla > 0, up, 0.0)

    def core_attention(self) -> Numbers:
        """Return the seconds of causal attention: half of 4·t·s·heads·channels, less where layers have a window, all of
        it where products multiply whatever the mask drops."""
        j, s = self.j, self.j.seq_length
        s = np.where(j.packed_tokens > 0, np.minimum(j.packed_tokens, s), s)
        window = np.where(j.window_size > 0, np.minimum(j.window_size, s), s)
        seen = window - window * window / (2 * s)
        every = np.maximum(j.window_attn_skip_freq, 1)
        seen = np.where(j.window_attn_skip_freq > 1, (seen * (every - 1) + s / 2) / every, seen)
        latent = (j.qk_head_dim + j.qk_pos_emb_head_dim + j.v_head_dim) / 2
        channels = np.where(j.mla > 0, latent, j.kv_channels)
        seen = np.where(self.unfused > 0, s, seen)
        flops = 4 * self.tokens * seen * j.num_attention_heads / self.tp * channels
        cut = np.where(j.cp_a2a > 0, 1.0, self.cp)
        # what a kernel does besides its products gets no faster with them, and is not more where they are twice as many
        few = self.p.of("attention_half_rate_tokens") * j.peak_bf16_flops / A100 * cut / s / (1 + self.unfused)
        narrow = self.p.of("attention_channels") / channels
        small = np.where(self.host, self._on_a_host(narrow), (1 + few) * (1 + narrow))
        seconds: Numbers = flops * small / self.rates.attention
        return seconds

    def _on_a_host(self, narrow: Numbers) -> Numbers:
        """Return by how much longer attention takes on a CPU than its FLOPs say, as `measure` fits it."""
        queries = self.j.seq_length / self.cp
        few = self.p.of("attention_half_rate_tokens") / length_of_host(queries)
        whole = 1 + np.minimum(KEYS_OF_HOST, queries) / self.j.seq_length
        seconds: Numbers = whole * (1 + few + narrow)
        return seconds

    def layers(self) -> tuple[_Layer, _Layer]:
        """Return a dense layer and one with experts; the second is the first where no job has experts."""
        j, p, t, h, tp = self.j, self.p, self.tokens, self.j.hidden_size, self.tp
        attention_gemm, up = self.attention_products()
        wide = np.where(
            j.mla > 0,
            (j.qk_head_dim + j.v_head_dim) * j.num_attention_heads,
            j.kv_channels * (j.num_attention_heads + 2 * j.num_query_groups),
        )
        gated = 1 + j.gated
        last = self.matmul(t, h, j.ffn_hidden_size / tp)
        mlp = self.matmul(t, gated * j.ffn_hidden_size / tp, h) + last
        per_byte = p.of("traffic") * self.where(j.uncompiled, "traffic_uncompiled") / self.rates.memory
        norm = self.bytes * 10 * h * self.own_tokens * per_byte
        ffn = j.ffn_hidden_size / tp
        quantise = p.of("quantise") * self.quantised / self.rates.memory
        quantise = quantise * self.where(j.fp8_by_rows, "quantise_by_rows")
        zero = np.zeros(())
        dense = _Layer(
            attention_gemm=attention_gemm,
            up=up,
            mlp=mlp,
            last=last,
            experts=zero,
            attention=self.core_attention(),
            norm=norm,
            activation=self.bytes * (gated + 1) * ffn * t * per_byte,
            moving=self.bytes * 4 * wide / tp * t * per_byte,
            scores=self.bytes * self.scores() / self.rates.memory,
            quantise=quantise * t * (2 * h + wide / tp + ffn) * 3,
            added=self.added(attention_gemm + up + mlp, self.weights.attention + self.weights.mlp),
            tensor_parallel=self.tensor_parallel(4.0),
            context_parallel=self.context_parallel(),
            expert_parallel=zero,
            launch=self.launch("launch_dense"),
        )
        if not np.any(j.num_experts):
            return dense, dense
        return dense, self.with_experts(dense, quantise, per_byte, gated)

    def with_experts(self, dense: _Layer, quantise: Numbers, per_byte: Numbers, gated: Numbers) -> _Layer:
        """Return a layer with experts: each rank's experts get as many tokens as its ranks send, shared out evenly."""
        j, p, h, tp = self.j, self.p, self.j.hidden_size, self.tp
        cut = np.maximum(j.expert_tensor_parallel_size, 1)
        routed = self.tokens / tp * cut * j.moe_router_topk
        own = np.maximum(j.num_experts / self.ep, 1)
        width, shared = j.moe_ffn_hidden_size / cut, j.moe_shared_expert_intermediate_size / tp
        each = routed / own
        several = np.where(self.host, 1.0, 1 - 1 / own)  # on a GPU the product of one expert alone is one as any other
        rows = each + np.where(self.host, 0.0, p.of("grouped_rows") * several * np.sqrt(j.peak_flops / A100))
        grouped = 1 + (p.of("grouped") - 1) * several
        experts = grouped * own * (self.matmul(rows, gated * width, h) + self.matmul(rows, h, width))
        both = self.matmul(self.tokens, gated * np.maximum(shared, 1), h) + self.matmul(self.tokens, h, shared)
        router = self.product(self.tokens / tp, j.num_experts, h, self.rates.matrix_bf16, self.j.peak_bf16_flops)
        permute = p.of("permute") * self.bytes * 6 * h * routed / self.rates.memory
        bias = _OF_BIAS * j.add_bias_linear * h * routed * per_byte
        t, mlp = self.tokens, np.where(shared > 0, both, 0.0) + router
        added = self.added(dense.attention_gemm + dense.up + mlp, self.weights.attention + self.weights.shared)
        return dense._replace(
            mlp=mlp,
            last=np.zeros(()),
            experts=experts,
            activation=self.bytes * (gated + 1) * (width * routed + shared * t) * per_byte,
            moving=dense.moving + permute + bias,
            quantise=dense.quantise
            - quantise * 3 * t * (h + j.ffn_hidden_size / tp)
            + quantise * 3 * (routed * (h + width) + shared * t),
            added=added + self.added(experts, self.own_experts * self.weights.expert),
            tensor_parallel=self.tensor_parallel(2.0),
            expert_parallel=self.expert_parallel(),
            launch=self.launch("launch_moe") + self.launch_of_experts(own),
        )

    def launch(self, name: str) -> Numbers:
        """Return the seconds in which the host starts a layer's kernels, fewer from a graph; of the share of layers in
        graphs that nobody states the fitted one. A CPU, and a host with adapters, starts those around a split layer's
        collectives, too."""
        adapted = (1 - self.pretrained) * (1 - self.host)
        graphs = np.where(np.isnan(self.j.cuda_graphs), self.p.of("graphs_unknown"), self.j.cuda_graphs)
        split = _CALLS_OF_TP * (self.tp > 1) + _CALLS_OF_CP * (self.cp > 1) + _CALLS_OF_EP * (self.ep > 1)
        own = np.where(adapted > 0, self.p.of("launch_lora"), self.p.of(name)) * (1 + (self.host + adapted) * split)
        seconds: Numbers = own * self.starts * self.where(graphs, "graphs_left")
        return seconds

    def launch_of_experts(self, own: Numbers) -> Numbers:
        """Return the seconds in which the host starts the products of a rank's own experts, one after the other, and
        in 8 or 4 bits first quantises each operand. Graphs of parts of a layer leave them out, for their sizes differ;
        experts that are padded to one size are one product, and so are those that TransformerEngine fuses; a graph of
        the whole step, whose buffers have a size for all cases (moe_paged_stash), has them, too."""
        each = self.p.of("launch_expert") + self.p.of("launch_expert_scales") * self.quantised
        seconds: Numbers = self.starts * own * each * (1 - np.maximum(self.j.padded_experts, self.j.graphed_experts))
        return seconds

    def tensor_parallel(self, collectives: float) -> Numbers:
        """Return the exposed seconds of a layer's all-gathers and reduce-scatters (Korthikanti, 4.2.2), one way.
        Without sequence parallelism two of them are one all-reduce, which switches that add up speed. Adapters
        of the two products whose inputs are cut gather what they make, and its gradient, a collective each way for each
        (NeMo's ParallelLinearAdapter: gather_output of linear_out, scatter_to_sequence_parallel_region)."""
        tp = self.tp
        moved = self.bytes * self.j.hidden_size * self.tokens * (tp - 1) / tp
        gain = np.where(self.j.sequence_parallel > 0, 1.0, self.all_reduce_gain(tp))
        seconds = moved / (gain * self.ring(tp, np.ones(()))) + self.p.of("collective_latency") * (tp > 1)
        times = collectives * (1 + (1 - self.pretrained) * self.adapted / 4)
        return np.where(tp > 1, times * self.exposed_tensor * seconds, 0.0)

    def context_parallel(self) -> Numbers:
        """Return the seconds in which keys and values go around the ring (Liu 2023), one way, before overlap. On a CPU
        they are gathered at once, and the gradients scattered: two collectives in the three ways of both passes. By
        heads (Jacobs 2023, arXiv:2309.14509) queries, keys, values and what comes out are exchanged."""
        j, cp = self.j, self.cp
        latent = (j.qk_head_dim + j.qk_pos_emb_head_dim + j.v_head_dim) * j.num_attention_heads
        each = np.where(j.mla > 0, latent, 2 * j.num_query_groups * j.kv_channels) / self.tp
        crossing = np.where(self.tp * cp <= self.domain, self.link(cp), self.rates.nic)
        seconds = self.bytes * each * self.tokens * (cp - 1) / crossing
        starts = np.where(self.host, 2 / 3 * self.p.of("collective_latency"), (cp - 1) * self.p.of("send_latency"))
        heads = 2 * np.where(j.mla > 0, latent, j.kv_channels * (j.num_attention_heads + j.num_query_groups)) / self.tp
        exchanged = self.bytes * heads * self.tokens * (cp - 1) / cp / crossing + 2 * self.p.of("send_latency")
        return np.where(cp > 1, np.where(j.cp_a2a > 0, exchanged, seconds + starts), 0.0)

    def scores(self) -> Numbers:
        """Return the elements that a layer's forward pass moves of attention, besides its products. To add up the steps
        of a ring, of each step 14 bytes an element: the output read, its product with the scale written and read in
        fp32, the sum read and written (TransformerEngine's flash_attn_fwd_out_correction); a CPU gathers keys and
        values. Where attention is no one kernel, 13 bytes of each query and key: scores and softmax written and read,
        dropout with its mask, and read again (Korthikanti, 4.1)."""
        j = self.j
        out = j.num_attention_heads * np.where(j.mla > 0, j.v_head_dim, j.kv_channels) / self.tp * self.tokens
        ring = (self.cp > 1) & (j.cp_a2a == 0) & (self.host == 0)
        of_ring = np.where(ring, self.p.of("ring") * 7 * self.cp * out, 0.0)
        elements: Numbers = of_ring + self.unfused * 6.5 * j.num_attention_heads / self.tp * self.tokens * j.seq_length
        return elements

    def expert_parallel(self) -> Numbers:
        """Return the exposed seconds of dispatch and combine, one way: each token to its experts' ranks, or once to
        each domain that has one of them and from there over its links, by kernels that sort tokens meanwhile."""
        j, p, ep = self.j, self.p, self.ep
        flex = np.where(np.isnan(j.flex_dispatcher), p.of("flex_unknown"), j.flex_dispatcher)
        span = ep * np.maximum(j.expert_tensor_parallel_size, 1)
        inside = np.minimum(1.0, self.domain / span)
        domains = np.maximum(span / self.domain, 1.0)
        ranks = ep * (1 - (1 - 1 / ep) ** j.moe_router_topk)
        reached = domains * (1 - (1 - 1 / domains) ** j.moe_router_topk)
        over_links = flex * np.minimum(ranks, j.moe_router_topk) + (1 - flex) * j.moe_router_topk * inside
        over_network = (flex * np.minimum(reached, j.moe_router_topk) + (1 - flex) * j.moe_router_topk) * (1 - inside)
        moved = self.bytes * j.hidden_size * self.tokens / self.tp * (ep - 1) / ep
        seconds = moved * (over_links / self.link(ep) + np.where(inside < 1, over_network / self.rates.nic, 0.0))
        exposed = p.of("exposed_experts") * self.where(self.overlap, "exposed_overlapped")
        exposed = exposed * self.where(flex, "exposed_flex")
        return np.where(ep > 1, 2 * exposed * self.sent * (seconds + p.of("collective_latency") * 2), 0.0)

    def head(self) -> tuple[Numbers, Numbers]:
        """Return the seconds of the output layer's products, forward, and of the loss, both ways, of a micro-batch; the
        second with what adding to the output matrix' gradients takes."""
        j, rows = self.j, self.j.vocabulary / self.tp
        heads = 1 + j.mtp_num_layers
        products = self.product(self.tokens, rows, j.hidden_size, self.rates.matrix_bf16, j.peak_bf16_flops)
        loss = heads * 7 * self.bytes * rows * self.tokens / self.rates.memory
        return heads * products, loss + self.added(heads * products, rows * j.hidden_size)

    def parameters_of_rank(self) -> tuple[Numbers, Numbers]:
        """Return the weights of one rank's matrix products, an even share of the pipeline's, and those of experts."""
        j, one, pp = self.j, self.weights, self.j.pipeline_model_parallel_size
        layers = (j.num_layers + j.mtp_num_layers) * one.attention + j.dense_layers * one.mlp
        layers = layers + self.moe_layers * one.shared
        vocabulary = (2 - j.tied) * j.vocabulary * j.hidden_size / self.tp
        return (layers + vocabulary) / pp, self.moe_layers * self.own_experts * one.expert / pp

    def added(self, product: Numbers, weights: Numbers) -> Numbers:
        """Return the seconds by which a micro-batch takes longer since it adds the gradients of so many weights to
        those before: they are read and written beside the product that makes them, which takes about as long as the
        forward one; a CPU does so by three passes of their own. FSDP adds to a shard alone, but in a pipeline."""
        j, product = self.j, self.p.of("gemm_backward") * product
        whole = np.where((j.fsdp > 0) & (j.pipeline_model_parallel_size == 1), 0.0, 1.0)
        passes = np.where(self.host, 3.0, 2 * self.p.of("accumulate") * whole)
        moved = passes * weights * j.gradient_bytes / self.rates.memory
        both = (product**_NORM_OF_GRADIENTS + moved**_NORM_OF_GRADIENTS) ** (1 / _NORM_OF_GRADIENTS)
        return np.asarray(self.pretrained * np.where(self.host, moved, both - product), dtype=float)


def _parts(jobs: Jobs, parameters: Values, cases: Cases, factors: _Factors) -> Parts:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _assembled(_Maker(jobs, parameters, cases, factors))


class _Micro(NamedTuple):
    """Seconds of one micro-batch on one GPU of the mean pipeline stage, forward and backward."""

    gemm: Numbers
    attention: Numbers
    memory_bound: Numbers
    tensor_parallel: Numbers
    context_parallel: Numbers
    expert_parallel: Numbers
    recompute: Numbers
    launches: Numbers

    @property
    def total(self) -> Numbers:
        return np.asarray(sum(self), dtype=float)


def _again(j: Jobs, layer: _Layer) -> Numbers:
    """Return the seconds of a layer's forward pass that are computed again (Korthikanti, 5): all of it, but where it
    stops early the last product of a dense layer, which only later layers need, and what scatters it."""
    full = layer.gemm + layer.attention + layer.memory_bound + layer.tensor_parallel + layer.expert_parallel
    full = full - j.stops_early * (layer.last + (layer.last > 0) * layer.tensor_parallel / 4)
    part = j.again_core_attn * (layer.attention + layer.scores) + j.again_mlp * (layer.mlp + layer.activation)
    part = part + j.again_moe * (layer.experts + layer.expert_parallel + layer.activation)
    part = part + j.again_layernorm * layer.norm / 2 + j.again_moe_act * layer.activation / 2
    part = part + j.again_mla_up_proj * layer.up
    # keys, the projection and one product of a gated MLP, all that memory bounds, and what gathers their inputs
    by_operator = layer.attention_gemm / 2 + layer.mlp / 3 + layer.experts / 2 + layer.memory_bound
    part = part + j.again_by_operator * (by_operator + layer.tensor_parallel / 2 + layer.expert_parallel)
    again: Numbers = j.recompute_layers * full + (1 - j.recompute_layers) * np.minimum(part, full)
    return again


def _of_layer(m: _Maker, layer: _Layer, norm: Numbers) -> _Micro:
    """Return both passes of a layer: each product twice backward, once where its weights are frozen. norm: of
    launching and computing."""
    j, p = m.j, m.p
    back = 1 + m.pretrained
    attention = (1 + p.of("attention_backward")) * layer.attention
    ring = 3 * layer.context_parallel
    exposed = p.of("exposed_context") * ring + np.where(m.host, 0.0, np.maximum(ring - attention, 0.0))
    exposed = np.where(j.cp_a2a > 0, 2 * layer.context_parallel, exposed)
    micro = _Micro(
        gemm=layer.gemm * (1 + back * p.of("gemm_backward")),
        attention=attention,
        memory_bound=layer.memory_bound * (1 + p.of("traffic_backward")) + layer.added,
        tensor_parallel=layer.tensor_parallel * (2 + m.host * _GATHERED_AGAIN),
        context_parallel=exposed,
        expert_parallel=layer.expert_parallel * 2,
        recompute=_again(j, layer),
        launches=np.zeros(()),
    )
    again = j.recompute_layers * np.where(m.host, _CALLS_AGAIN, 1.0)
    busy, start = micro.total, layer.launch * (3 + again)
    both = (busy**norm + start**norm) ** (1 / norm)
    return micro._replace(launches=np.maximum(both - busy, 0.0))


def _pipeline(j: Jobs, stage: Numbers, layers: Numbers, head: Numbers) -> tuple[Numbers, Numbers]:
    """Return the seconds of a micro-batch on the mean and on the longest stage. layers: all of one micro-batch, head:
    the output layer. Where embedding and loss count as layers the first and the last stage have one fewer (Llama 3,
    3.3.2); where more is missing the layers were dealt out by hand, so that none is longer than it must be."""
    pp, count = j.pipeline_model_parallel_size, j.num_layers
    each = layers / np.maximum(count, 1)
    mean = stage + head / pp
    first, last = short_ends(j)
    full = np.ceil(count / (pp * j.virtual_pipeline_model_parallel_size)) * j.virtual_pipeline_model_parallel_size
    whole = np.where(pp > first + last, full, full - 1)  # of two stages that are both short none is whole
    dealt = np.maximum(whole * each, (full - last) * each + head)
    by_hand = np.maximum(np.ceil(count / pp) * each, mean)
    longest = np.where(full * pp - count <= first + last, dealt, by_hand)
    return mean, np.where(pp > 1, np.maximum(longest, mean), mean)


def _assembled(m: _Maker) -> Parts:
    """Return the parts of the step from those of layers."""
    j, p = m.j, m.p
    pp, micro_batches = j.pipeline_model_parallel_size, j.num_micro_batches
    dense, experts = m.layers()
    of_dense = _of_layer(m, dense, m.norm)
    if dense is experts:
        layers = _Micro(*(j.num_layers * part for part in of_dense))
    else:
        of_experts = _of_layer(m, experts, m.norm_of_experts)
        layers = _Micro(*(j.dense_layers * a + m.moe_layers * b for a, b in zip(of_dense, of_experts, strict=True)))
    products, loss = m.head()
    products = products * (2 + m.pretrained)
    overhead = p.of("step_overhead") * m.where(1 - m.pretrained, "step_overhead_lora")
    overhead = overhead + micro_batches * p.of("micro_overhead")
    ends = m.call * (_CALLS_OF_EMBEDDING + _CALLS_OF_HEAD)
    stage = _Micro(*(part / pp for part in layers))
    # of the embedding's gradients, which no product makes and tied matrices have once
    embedding = m.added(np.zeros(()), (1 - j.tied) * j.vocabulary * j.hidden_size / m.tp) / pp
    stage = stage._replace(memory_bound=stage.memory_bound + embedding)
    mean, longest = _pipeline(j, stage.total, layers.total, products + loss + m.call * _CALLS_OF_HEAD)
    bubble = p.of("bubble") * (pp - 1) / j.virtual_pipeline_model_parallel_size * mean
    bubble = bubble + micro_batches * (longest - mean)
    parts = {
        "gemm": micro_batches * (stage.gemm + products / pp),
        "attention": micro_batches * stage.attention,
        "memory_bound": micro_batches * (stage.memory_bound + loss / pp),
        "tensor_parallel": micro_batches * (stage.tensor_parallel + m.host * m.tensor_parallel(_OF_HEAD) / pp),
        "context_parallel": micro_batches * stage.context_parallel,
        "expert_parallel": micro_batches * stage.expert_parallel,
        "bubble": bubble,
        "pipeline_sends": _pipeline_sends(m),
        "data_parallel": _data_parallel(m, longest, micro_batches * longest),
        "optimizer": _optimizer(m),
        "recompute": micro_batches * stage.recompute,
        "launches": micro_batches * stage.launches,
        "offload": _offload(m),
        "other": np.where(m.host, micro_batches * ends / pp, overhead),
    }
    return _with_stragglers(m, parts)


def _with_stragglers(m: _Maker, parts: dict[str, Numbers]) -> Parts:
    """Return the parts as slow as the software of the jobs, and what the slowest of many GPUs adds."""
    few = np.where(m.host, 1.0, 8.0)
    octaves = np.log2(np.maximum(m.j.world_size, few) / few)
    known = {name: np.asarray(part * m.slower, dtype=float) for name, part in parts.items()}
    busy = sum(known.values(), np.zeros(()))
    return Parts(**known, stragglers=np.asarray(m.p.of("straggler") * octaves * busy))


def _pipeline_sends(m: _Maker) -> Numbers:
    """Return the exposed seconds of activations and their gradients between stages (Narayanan, 2.2), which lie as many
    GPUs apart as a stage has: of a domain of 72 that holds four stages of 16 three in four send over its links."""
    j, pp = m.j, m.j.pipeline_model_parallel_size
    inside = np.where(j.world_size <= m.domain, 1.0, np.clip(1 - j.world_size / pp / m.domain, 0.0, 1.0))
    rate = 1 / (inside / m.link(pp) + np.where(inside < 1, (1 - inside) / m.rates.nic, 0.0))
    times = j.virtual_pipeline_model_parallel_size
    # a stage of a CPU, which computes nothing meanwhile, waits for what it gets and for what it gives
    times = np.where(m.host, 2 * times - (pp == 2), times)
    seconds = times * (m.bytes * j.hidden_size * m.own_tokens / rate + m.p.of("send_latency"))
    return np.where(pp > 1, 2 * m.p.of("exposed_pipeline") * j.num_micro_batches * m.sent * seconds, 0.0)


def _data_parallel(m: _Maker, micro: Numbers, work: Numbers) -> Numbers:
    """Return the exposed seconds of gradients and parameters between replicas: once a step behind the last backward
    pass; with FSDP three times a micro-batch behind all of it (Rajbhandari, 7), once a step in a pipeline, whose stages
    stay whole (torchtitan, reshard_after_forward)."""
    j, p = m.j, m.p
    dense, experts = m.parameters_of_rank()
    ranks = j.data_parallel_size * m.cp
    expert_ranks = np.maximum(ranks * m.tp / (m.ep * np.maximum(j.expert_tensor_parallel_size, 1)), 1.0)
    one = np.where(ranks > 1, dense * (ranks - 1) / ranks / m.ring(ranks, m.tp), 0.0)
    far = m.ring(expert_ranks, m.ep * np.maximum(j.expert_tensor_parallel_size, 1))
    one = one + np.where(expert_ranks > 1, experts * (expert_ranks - 1) / expert_ranks / far, 0.0)
    one = one * m.pretrained * m.sent
    once = one * (j.gradient_bytes + m.weight_bytes)
    behind = micro * (2 / 3)
    plain = p.of("exposed_data") * once + np.maximum(once - behind, 0.0)
    plain = np.where((j.overlapped_data > 0) | (m.host > 0), plain, once)  # of a host as it was measured
    times = np.where(j.pipeline_model_parallel_size > 1, 1.0, j.num_micro_batches)
    sharded = one * (2 * m.weight_bytes + j.gradient_bytes) * times
    cut = m.exposed_fsdp * sharded + np.maximum(sharded - work, 0.0)
    starts: Numbers = m.host * (j.world_size > 1) * _OF_STEP * p.of("collective_latency")
    return np.where(j.fsdp > 0, cut, plain) + starts


def _optimizer(m: _Maker) -> Numbers:
    """Return the seconds in which Adam reads and writes 28 bytes of each parameter that the rank keeps states of. On a
    CPU gradients are zeroed and scaled by passes of their own, and each tensor's kernels are started; on GPUs other
    kernels do so meanwhile."""
    j = m.j
    dense, experts = m.parameters_of_rank()
    cut = (j.distributed_optimizer > 0) | (j.fsdp > 0)
    ranks = j.data_parallel_size * m.cp
    expert_ranks = np.maximum(ranks * m.tp / (m.ep * np.maximum(j.expert_tensor_parallel_size, 1)), 1.0)
    shards, expert_shards = (
        np.maximum(n / np.maximum(j.data_parallel_replicas, 1.0), 1.0) for n in (ranks, expert_ranks)
    )
    kept = dense / np.where(cut, shards, 1.0) + experts / np.where(cut, expert_shards, 1.0)
    moe_layers = j.num_layers - j.dense_layers
    tensors = j.dense_layers * _TENSORS[0] + moe_layers * _TENSORS[1] + _TENSORS_OF_ENDS
    own = tensors / np.where(cut, shards, 1.0)
    own = own + moe_layers * j.num_experts / m.ep * _TENSORS_OF_EXPERT / np.where(cut, expert_shards, 1.0)
    starts = m.call * (_CALLS_OF_STEP + _CALLS_OF_TENSOR * own / j.pipeline_model_parallel_size)
    summed = m.host * (dense + experts + 3 * kept) * j.gradient_bytes
    moved = m.p.of("optimizer") * 28 * kept + summed
    return np.asarray(m.pretrained * (moved / m.rates.memory + starts), dtype=float)


def _offload(m: _Maker) -> Numbers:
    """Return the exposed seconds of activations that leave for the host's memory and come back: 34 bytes of each token
    and hidden element of a layer (Korthikanti 2022, 4.1)."""
    j = m.j
    layers = np.minimum(j.offloaded_layers, j.num_layers)
    moved = 2 * 34 * j.hidden_size * m.tokens / m.tp * layers / j.pipeline_model_parallel_size
    seconds: Numbers = j.num_micro_batches * m.p.of("exposed_offload") * moved / m.rates.host
    return seconds
