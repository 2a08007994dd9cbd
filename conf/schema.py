"""The shape of an experiment: one frozen dataclass a Hydra group. Field names are Megatron's, units are in the names.
Of a model, one for each part that only some have, too, and null in the others: a file says what a model lacks.
`Request` is what `conf/` composes to, with None where the layout table or the hardware decides; `Experiment`
(`conf/resolve.py`) is the same with everything settled: what both have is `Common`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

Method = Literal["identical", "max_performance"]
IDENTICAL, BEST = METHODS = get_args(Method)
ALL_TRAINS = "100,0,0"  # a split: training, validation, test


@dataclass(frozen=True, slots=True, kw_only=True)
class MoE:
    """Experts in place of the MLP, in every layer but the first moe_first_dense_layers.
    moe_shared_expert_intermediate_size: of all shared experts together. moe_router_enable_expert_bias: the correction
    bias that is not trained but moved by the load (DeepSeek-V3). moe_router_num_groups and moe_router_group_topk: only
    experts of the best groups are chosen from."""

    num_experts: int
    moe_router_topk: int
    moe_ffn_hidden_size: int
    moe_shared_expert_intermediate_size: int | None
    moe_first_dense_layers: int
    moe_router_load_balancing_type: Literal["none", "aux_loss", "seq_aux_loss"]
    moe_aux_loss_coeff: float
    moe_router_score_function: Literal["softmax", "sigmoid"]
    moe_router_pre_softmax: bool
    moe_router_topk_scaling_factor: float | None
    moe_router_num_groups: int | None
    moe_router_group_topk: int | None
    moe_router_enable_expert_bias: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MLA:
    """Multi-head latent attention: keys and values through a low rank, queries too unless q_lora_rank is null. A head
    of queries and keys is qk_head_dim + qk_pos_emb_head_dim wide, one of values v_head_dim."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_head_dim: int
    qk_pos_emb_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """YaRN scaling of the rotary embedding, from original_max_position_embeddings on."""

    rotary_scaling_factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    mscale: float | None
    mscale_all_dim: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickGeglu:
    """gpt-oss's gated activation in place of SwiGLU: quick GELU, both halves clamped, the linear one shifted."""

    activation_func_clamp_value: float
    glu_linear_offset: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer, exact to the config file named in `source`. Sizes in elements, not bytes.
    window_size: tokens that a query sees, itself among them (Megatron writes (window_size - 1, 0)), in all layers but
    every window_attn_skip_freq-th. softmax_type learnable: an attention sink for each head. mtp_num_layers: multi-token
    prediction modules after the last layer."""

    name: str
    source: str
    hf_id: str | None
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    kv_channels: int
    vocab_size: int
    make_vocab_size_divisible_by: int
    max_position_embeddings: int
    rotary_base: float
    use_rope_scaling: bool
    rope_scaling_factor: float | None
    yarn: Yarn | None
    normalization: Literal["RMSNorm"]
    norm_epsilon: float
    qk_layernorm: bool
    swiglu: bool
    quick_geglu: QuickGeglu | None
    add_bias_linear: bool
    add_qkv_bias: bool
    softmax_type: Literal["vanilla", "learnable"]
    window_size: int | None
    window_attn_skip_freq: int | None
    untie_embeddings_and_output_weights: bool
    mla: MLA | None
    moe: MoE | None
    mtp_num_layers: int | None
    init_method_std: float
    hidden_dropout: float
    attention_dropout: float

    @property
    def padded_vocab_size(self) -> int:
        """Return the rows of the embedding: vocab_size rounded up to make_vocab_size_divisible_by, the same in every
        layout. Megatron pads to a multiple of that times TP, so its model depends on the layout; ours does not, and the
        layout check requires that TP divides it."""
        return -(-self.vocab_size // self.make_vocab_size_divisible_by) * self.make_vocab_size_divisible_by

    @property
    def multi_latent_attention(self) -> bool:
        """Return whether attention goes through a low rank."""
        return self.mla is not None

    @property
    def gated_linear_unit(self) -> bool:
        """Return whether the MLP has a gate beside its first matrix."""
        return self.swiglu or self.quick_geglu is not None

    @property
    def dense_layers(self) -> int:
        """Count the layers with an MLP of ffn_hidden_size, not experts: the first ones."""
        return self.num_layers if self.moe is None else min(self.moe.moe_first_dense_layers, self.num_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Which side of the comparison: a vendor's GPUs, or this machine's CPU. frameworks: what framework=auto takes the
    first of that is there."""

    name: str
    vendor: str | None
    frameworks: tuple[str, ...]


_WITHOUT_MXFP8 = ("sm_80", "sm_89", "sm_90", "gfx90a", "gfx942")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Facts of one device, from its vendor's data sheet where there is one; None is unknown. peak_dense_tflops and
    achievable_tflops map a precision (fp32, tf32, bf16, fp8, fp4) to TFLOP/s of one package without sparsity, vendor
    spec and best measured matmul. A package may show several devices to software (MI250X: 2 dies). gpus_per_domain:
    packages joined by the fast link, null where there is none. network_gbit_s_per_gpu: of a typical node
    memory_gb: as the data sheet has it. memory_visible_gib: what torch reports as the capacity of one package; a data
    sheet rounds it, in one unit or the other."""

    name: str
    vendor: str | None
    device_names: tuple[str, ...]
    architecture: str | None
    peak_dense_tflops: Mapping[str, float]
    achievable_tflops: Mapping[str, float]
    achievable_note: str | None
    memory_gb: float | None
    memory_visible_gib: float | None
    memory_bandwidth_tb_s: float | None
    link: str | None
    link_gb_s_per_gpu_unidirectional: float | None
    gpus_per_domain: int | None
    network_gbit_s_per_gpu: float | None
    gpus_per_node: int
    devices_per_package: int
    tdp_w: float | None
    launch_year: int | None
    source: str
    status: Literal["data sheet", "verified", "host"]
    note: str | None

    @property
    def scales_blocks(self) -> bool:
        """Return whether its fp8 units scale blocks (MXFP8), as all do since Blackwell and CDNA 4."""
        return self.architecture not in _WITHOUT_MXFP8

    @property
    def room_bytes(self) -> float | None:
        """Return the memory of one device as software sees it; of a data sheet's round figure where nobody says."""
        if self.memory_visible_gib is not None:
            return self.memory_visible_gib * 2**30 / self.devices_per_package
        return None if self.memory_gb is None else self.memory_gb * 1e9 / self.devices_per_package

    @property
    def spelled(self) -> str:
        """Return the name that people read: as the driver prints it, where one does."""
        return next(iter(self.device_names), self.name)


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
    backend: str | None
    cache: str | None
    recipes: Mapping[str, str]
    any_model: str | None
    own_models: bool
    fsdp: tuple[str, ...]
    model_code: str | None
    strict: bool
    prints_megatron_arguments: bool
    aliases: tuple[str, ...]
    unread: tuple[str, ...]
    unread_on_a_cpu: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChoice:
    """A layout by name or by sizes. `table` names the rows of conf/tables/layouts.csv that fill what is None.
    account_for_*: the embedding, or the loss, counts as a layer when layers are shared out: the first, or the last,
    chunk has one fewer. data_parallel_shards × data_parallel_replicas is DP: over how many of its ranks what is sharded
    (with use_distributed_optimizer) is cut, and how many groups of ranks hold the same shards."""

    name: str
    table: Literal["identical"] | None
    tensor_model_parallel_size: int | None
    pipeline_model_parallel_size: int | None
    virtual_pipeline_model_parallel_size: int | None
    context_parallel_size: int | None
    expert_model_parallel_size: int | None
    sequence_parallel: bool | None
    account_for_embedding_in_pipeline_split: bool | None
    account_for_loss_in_pipeline_split: bool | None
    data_parallel_shards: int | None
    data_parallel_replicas: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Batch, length, seed, memory and communication switches. None: the layout's row decides, else off or 1.
    recompute_granularity "none" switches off what a row switches on. attention: torch's scaled_dot_product_attention or
    Megatron's own, which writes out all scores. save_interval: a checkpoint every so many steps, None: none.
    eval_interval: a validation of eval_iters global batches after every so many steps; None and 0: none.
    keep_checkpoints: how many of them are left; None: 2."""

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
    eval_interval: int | None
    eval_iters: int
    save_interval: int | None
    keep_checkpoints: int | None


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
        """Return Megatron's start of the warm-up that makes step 0 use lr / (W + 1), as NeMo does by itself."""
        return self.lr / (self.lr_warmup_iters + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The corpus. synthetic: a corpus made for the run; tiny: one of English, made for it, too; prefix: one of the
    user's; blend: several of the user's; mock: each stack's own. path: of .bin and .idx, without those endings; a
    relative one is in the run's directory. Of a blend it is resolved: each one's path behind its weight, as in
    Megatron's --data-path. blend: weights by path, or by a name in `corpora`, which has its path; the order of samples
    depends on theirs. split: Megatron's weights of training, validation and test, by documents. tokenizer: the one that
    made the corpora, by its name a folder of Hugging Face's, a model of sentencepiece or a vocabulary of tiktoken
    (launchers/ranks/tokenizer_files.py); None: they are ids, and stacks get a NullTokenizer. tokenizer_sha256: which it
    must be, wherever the run happens."""

    name: Literal["synthetic", "tiny", "mock", "prefix", "blend"]
    path: str | None
    blend: Mapping[str, float]
    corpora: Mapping[str, str]
    split: str
    tokenizer: str | None
    tokenizer_sha256: str | None

    @property
    def given(self) -> bool:
        """Return whether the corpora are the user's, and not made for the run."""
        return self.name in ("prefix", "blend")

    @property
    def shares(self) -> tuple[float, ...]:
        """Return the weights of `split`."""
        return tuple(float(share) for share in self.split.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The wishes of a site of Slurm. modules: loaded in this order. mounts: for a container, beside the run's folder.
    notice_s: before its time limit, for a stack that saves and goes on. options: more of sbatch, by their long names;
    true: an option without a value."""

    partition: str | None
    account: str | None
    qos: str | None
    time_limit: str
    notice_s: int
    modules: tuple[str, ...]
    mounts: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """The wishes of a site of Kubernetes. kind: JobSet, or TrainJob of Kubeflow's Trainer. secret: the Secret that has
    the values of forward_env under these names. resources: limits of a pod beside its GPUs. runs_claim: the claim of a
    volume that keeps the runs; claims: of others, and where they are mounted. deadline_s: seconds after which the job
    is ended."""

    kind: str
    namespace: str
    service_account: str | None
    secret: str | None
    node_selector: Mapping[str, Any]
    resources: Mapping[str, Any]
    runs_claim: str | None
    claims: Mapping[str, Any]
    deadline_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where the processes start, and paths there. container: what starts the image; none: it is where we are already.
    container_options: more words for that runtime, before the image. network: variables of the ranks that this site's
    network needs, under the user's own (environment). forward_env: variables passed on by name, never read by us.
    budget: GPUs, on a CPU cores, that the runs of a matrix take together; None: one run at a time, of a batch system as
    it likes. retries: of a run that failed, in a matrix. job: of a batch system, kubernetes: of that; None: none."""

    name: str
    master_addr: str
    master_port: int
    node_rank: int
    hf_home: str
    container: Literal["none", "docker", "podman", "apptainer", "enroot", "pyxis"]
    container_options: tuple[str, ...]
    network: Mapping[str, Any]
    forward_env: tuple[str, ...]
    budget: int | None
    retries: int
    job: Job | None
    kubernetes: Kubernetes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The user's own prices: hardware name to USD per GPU-hour; their date and source as the user gives them."""

    usd_per_gpu_hour: Mapping[str, Annotated[float, "USD/gpu-hour", "USD/gpu-h"]]
    date: str | None
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A named matrix of runs: override key to its values, expanded like `-m key=a,b`."""

    name: str
    axes: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReference:
    """The least that each node does by a file of `measure` (launch machine=), at the low end of its intervals:
    preflight= holds the nodes against it. devices: how drivers and torch spell the device. ranks: of a node; nodes: of
    the run. product_flops_per_s: of a rank in the mean while all of its node multiply. node_all_reduce, all_reduce:
    latency in s and bytes/s of a rank's link, of a node's ranks and of all; None where the file has no such group."""

    date: str
    devices: tuple[str, ...]
    ranks: int
    nodes: int
    product_flops_per_s: float
    node_all_reduce: tuple[float, ...] | None
    all_reduce: tuple[float, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """All of conf/config.yaml that an Experiment keeps as it was requested, one field a group or a root key; only
    training, optimizer and data have their null values filled in. method: one layout and one set of switches on both
    sides, or on each all that its vendor publishes; then `batch` says whose global batch runs. environment: the user's
    own variables of the ranks."""

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
    method: Method
    batch: Literal["identical", "vendor"]
    environment: Mapping[str, Any]
    nodes: int
    repeat: int
    runs_dir: str
    hang_after_s: float
    dry_run: bool
    bundle: str | None
    rerun: bool
    resume: bool
    rehearse: Literal["train", "layout"] | None
    probe: bool
    preflight: Literal["none", "note", "stop"] | None
    equal_init: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Common):
    """The result of composing conf/. recipe: by its vendor's name. per_platform: overrides for one side only."""

    name: str | None
    recipe: str | None
    layout: LayoutChoice
    gpus_per_node: int | None
    per_platform: Mapping[str, Mapping[str, Any] | None]

    @property
    def ranks_per_node(self) -> int:
        """Return gpus_per_node, by default as many devices as software sees in a standard node."""
        if self.gpus_per_node is not None:
            return self.gpus_per_node
        return self.hardware.gpus_per_node * self.hardware.devices_per_package

    @property
    def world_size(self) -> int:
        """Count the ranks in all."""
        return self.nodes * self.ranks_per_node
