"""The shape of an experiment: one frozen dataclass a Hydra group. Field names are Megatron's, units are in the names.

`Request` is what `conf/` composes to, with None where the layout table or the hardware decides; `Experiment`
(`conf/resolve.py`) is the same with everything settled: what both have is `Common`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from conf.architecture import Model as Model  # the group model/ is long enough for a file of its own

Rehearsal = Literal["train", "layout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Which side of the comparison: a vendor's GPUs, or this machine's CPU. frameworks: what framework=auto takes the
    first of that is there."""

    name: str
    vendor: str | None
    frameworks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Facts of one device, from its vendor's data sheet where there is one; None is unknown.

    peak_dense_tflops and achievable_tflops map a precision (fp32, tf32, bf16, fp8, fp4) to TFLOP/s of one package
    without sparsity, vendor spec and best measured matmul. A package may show several devices to software
    (MI250X: 2 dies). gpus_per_domain: packages joined by the fast link.
    """

    name: str
    vendor: str | None
    device_names: tuple[str, ...]
    architecture: str | None
    peak_dense_tflops: Mapping[str, float]
    achievable_tflops: Mapping[str, float]
    achievable_note: str | None
    memory_gb: float | None
    memory_bandwidth_tb_s: float | None
    link: str | None
    link_gb_s_per_gpu_unidirectional: float | None
    gpus_per_domain: int | None
    gpus_per_node: int
    devices_per_package: int
    tdp_w: float | None
    launch_year: int | None
    source: str
    status: Literal["data sheet", "verified", "host"]
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkChoice:
    """The training stack as conf/framework/NAME.yaml has it; conf/config.yaml says what each key is, and its default.
    How it is run is in launchers/frameworks/NAME.py. install: the line that installs it."""

    name: str
    label: str
    install: str
    distributions: tuple[str, ...]
    release: str | None
    python: str | None
    checkout: str | None
    checkout_holds: str
    entry: str | None
    cache: str | None
    recipes: Mapping[str, str]
    own_models: bool
    strict: bool
    prints_megatron_arguments: bool
    aliases: tuple[str, ...]
    unread: tuple[str, ...]
    unread_on_a_cpu: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChoice:
    """A layout by name or by sizes. `table` names the rows of conf/tables/layouts.csv that fill what is None."""

    name: str
    table: Literal["identical", "max_performance"] | None
    tensor_model_parallel_size: int | None
    pipeline_model_parallel_size: int | None
    virtual_pipeline_model_parallel_size: int | None
    context_parallel_size: int | None
    expert_model_parallel_size: int | None
    sequence_parallel: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Batch, length, seed, memory and communication switches. None: the layout's row decides, else off or 1.

    recompute_granularity "none" switches off what a row switches on. attention: torch's scaled_dot_product_attention
    or Megatron's own, which writes out all scores. save_interval: a checkpoint every so many steps, None: none.
    """

    micro_batch_size: int | None
    global_batch_size: int
    seq_length: int
    train_iters: int
    seed: int
    recompute_granularity: Literal["full", "selective", "none"] | None
    recompute_method: Literal["uniform", "block"] | None
    recompute_num_layers: int | None
    use_distributed_optimizer: bool | None
    overlap_grad_reduce: bool | None
    overlap_param_gather: bool | None
    attention: Literal["sdpa", "unfused"]
    save_interval: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The types of computation and of what is kept. Main parameters and optimizer states are fp32 everywhere."""

    name: str
    params_dtype: Literal["float32", "bfloat16"]
    accumulate_allreduce_grads_in_fp32: bool
    fp8: Literal["e4m3", "hybrid"] | None
    fp8_recipe: Literal["delayed", "tensorwise", "mxfp8"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """AdamW and the one schedule: warm-up of W steps at lr (s+1)/(W+1), then cosine to min_lr."""

    optimizer: Literal["adam"]
    lr: float
    min_lr: float
    lr_warmup_iters: int
    lr_decay_iters: int | None
    lr_decay_style: str
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_eps: float
    clip_grad: float

    @property
    def lr_warmup_init(self) -> float:
        """Megatron's start of the warm-up that makes step 0 use lr / (W + 1), as NeMo does by itself."""
        return self.lr / (self.lr_warmup_iters + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The corpus. synthetic: a corpus made for the run; prefix: one of the user's; mock: each stack's own.

    path: of .bin and .idx, without those endings; a relative one is in the run's directory. split: Megatron's weights
    of training, validation and test.
    """

    name: Literal["synthetic", "mock", "prefix"]
    path: str | None
    split: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where the processes start, and paths there. container: what starts the image; none: it is where we are already.
    forward_env: variables passed on by name, never read by us."""

    name: str
    master_addr: str
    master_port: int
    node_rank: int
    hf_home: str
    container: Literal["none", "docker", "podman", "enroot", "pyxis"]
    forward_env: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The user's own prices: hardware name to USD per GPU-hour; their date and source as the user gives them."""

    usd_per_gpu_hour: Mapping[str, float]
    date: str | None
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A named matrix of runs: override key to its values, expanded like `-m key=a,b`."""

    name: str
    axes: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """All of conf/config.yaml that an Experiment keeps as it was requested, one field a group or a root key; only
    training, optimizer and data have their null values filled in."""

    model: Model
    platform: Platform
    hardware: Hardware
    framework: FrameworkChoice
    image: str | None
    training: Training
    precision: Precision
    optimizer: Optimizer
    data: Data
    cluster: Cluster
    price: Price
    grid: Grid
    nodes: int
    repeat: int
    runs_dir: str
    hang_after_s: float
    dry_run: bool
    bundle: str | None
    rerun: bool
    resume: bool
    rehearse: Rehearsal | None
    probe: bool
    equal_init: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Common):
    """The result of composing conf/. per_platform: overrides for one side only."""

    name: str | None
    layout: LayoutChoice
    gpus_per_node: int | None
    per_platform: Mapping[str, Any]
