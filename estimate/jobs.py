"""Training jobs side by side, as arrays: what the memory and the time of a step follow from. A search holds a million
layouts of one model, a table of published runs a job for each row, an Experiment is one job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isnan
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from conf.facts import peak_of
from conf.schema import Hardware
from metrics.shape import Shape

Numbers: TypeAlias = NDArray[np.float64]
Words: TypeAlias = NDArray[np.str_]
Column: TypeAlias = float | str
GB = 1e9
RECOMPUTED = ("core_attn", "mlp", "moe", "layernorm", "moe_act", "mla_up_proj", "by_operator")
"""Megatron's recompute_modules that count differently, and TorchTitan's selective_ac_option=op."""
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
_OF_SHAPE = (
    *("num_layers", "dense_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
    *("kv_channels", "vocabulary", "window_size", "window_attn_skip_freq", "num_experts", "moe_router_topk"),
    *("moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "mtp_num_layers"),
    *("qk_layernorm", "add_qkv_bias", "add_bias_linear", "attention_sinks"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """n jobs. Each field is an array of shape (n,), or of shape () where all have one value. Sizes in elements, rates
    in bytes/s or FLOP/s of one GPU in one direction; switches are 0 or 1; a size is 0 of what the model has not.

    Model: as in metrics.shape.Shape. mla: attention is latent; q_lora_rank is 0 where queries are not compressed.
    Layout: in ranks. embedding_counts: as a layer, so that the first chunk has one fewer; nan: by what is missing of
    layers that do not divide (estimate.parameters.short_ends). distributed_optimizer: its states are cut over DP × CP;
    fsdp: parameters and gradients, too; data_parallel_replicas: and so many groups of ranks have all of them.
    recompute_layers: share of the layers whose forward pass is done again; again_*: modules done again in the
    others; by_operator: of each layer all but attention and every second matrix product. stops_early: a layer is done
    again until all is there that the backward pass needs (torch.utils.checkpoint), not to its end.
    precision: of the matrix products, a key of PEAK_OF. trained: pretraining, sft or lora. gradient_bytes,
    optimizer_bytes: of one parameter; fp8_params: weights of matrix products rest in fp8 alone. stack: framework and
    release (nemo-25.04), the framework alone where its release is unknown, "" where both are. hardware: the name in
    conf/hardware. cuda_graphs: share of the layers in graphs. flex_dispatcher: tokens go to experts by one that sends
    each to a GPU once (DeepEP, HybridEP), not by plain all-to-all. overlapped_experts: their exchange overlaps other
    micro-batches. padded_experts: each gets the same number of tokens, by dropping and padding (a capacity factor).
    graphed_experts: their products are one kernel, or in a graph of the whole step.
    overlapped_tensor: products are cut so that their tensor-parallel collectives overlap them (tp_comm_overlap of
    TransformerEngine, asynchronous ones of TorchTitan). cp_a2a: context parallelism gives each rank all tokens of some
    heads for some tokens of all (cp_comm_type a2a), no keys and values around a ring. packed_tokens: of the samples
    that share a sequence, at whose ends attention stops; 0 where it spans the sequence. fp8_activations: what an
    activation function needs backward is kept in fp8 (activation_func_fp8_input_store). uncompiled: without
    torch.compile; fp8_by_rows: float8 has a scale for each row, both of TorchTitan. unfused_attention: products and
    softmax one by one. fp32_logits: the loss copies the logits into fp32 (Megatron-Core's own), where
    TransformerEngine's writes over them. overlapped_data: gradients and parameters go between replicas while others are
    computed.
    nan: unknown. mesh_links: links of a GPU that lead to one other each; 0 behind a switch.
    all_reduce_gain: by how much switches that add up speed an all-reduce."""

    # the model
    num_layers: Numbers
    dense_layers: Numbers
    hidden_size: Numbers
    ffn_hidden_size: Numbers
    num_attention_heads: Numbers
    num_query_groups: Numbers
    kv_channels: Numbers
    vocabulary: Numbers
    gated: Numbers
    tied: Numbers
    window_size: Numbers
    window_attn_skip_freq: Numbers
    num_experts: Numbers
    moe_router_topk: Numbers
    moe_ffn_hidden_size: Numbers
    moe_shared_expert_intermediate_size: Numbers
    mtp_num_layers: Numbers
    mla: Numbers
    q_lora_rank: Numbers
    kv_lora_rank: Numbers
    qk_head_dim: Numbers
    qk_pos_emb_head_dim: Numbers
    v_head_dim: Numbers
    qk_layernorm: Numbers
    add_qkv_bias: Numbers
    add_bias_linear: Numbers
    attention_sinks: Numbers
    # the layout
    tensor_model_parallel_size: Numbers
    pipeline_model_parallel_size: Numbers
    virtual_pipeline_model_parallel_size: Numbers
    context_parallel_size: Numbers
    expert_model_parallel_size: Numbers
    expert_tensor_parallel_size: Numbers
    data_parallel_size: Numbers
    sequence_parallel: Numbers
    embedding_counts: Numbers = field(default_factory=lambda: np.array(np.nan))
    data_parallel_replicas: Numbers = field(default_factory=lambda: np.array(1.0))
    distributed_optimizer: Numbers
    fsdp: Numbers
    # the work
    seq_length: Numbers
    micro_batch_size: Numbers
    global_batch_size: Numbers
    trained: Words
    # how
    precision: Words
    gradient_bytes: Numbers
    optimizer_bytes: Numbers
    fp8_params: Numbers
    recompute_layers: Numbers
    again_core_attn: Numbers
    again_mlp: Numbers
    again_moe: Numbers
    again_layernorm: Numbers
    again_moe_act: Numbers
    again_mla_up_proj: Numbers
    again_by_operator: Numbers = field(default_factory=lambda: np.array(0.0))
    stops_early: Numbers = field(default_factory=lambda: np.array(0.0))
    offloaded_layers: Numbers
    stack: Words
    cuda_graphs: Numbers = field(default_factory=lambda: np.array(np.nan))
    flex_dispatcher: Numbers = field(default_factory=lambda: np.array(np.nan))
    overlapped_experts: Numbers = field(default_factory=lambda: np.array(np.nan))
    padded_experts: Numbers = field(default_factory=lambda: np.array(0.0))
    graphed_experts: Numbers = field(default_factory=lambda: np.array(0.0))
    overlapped_tensor: Numbers = field(default_factory=lambda: np.array(0.0))
    cp_a2a: Numbers = field(default_factory=lambda: np.array(0.0))
    packed_tokens: Numbers = field(default_factory=lambda: np.array(0.0))
    fp8_activations: Numbers = field(default_factory=lambda: np.array(0.0))
    uncompiled: Numbers = field(default_factory=lambda: np.array(0.0))
    fp8_by_rows: Numbers = field(default_factory=lambda: np.array(0.0))
    unfused_attention: Numbers = field(default_factory=lambda: np.array(0.0))
    fp32_logits: Numbers = field(default_factory=lambda: np.array(0.0))
    overlapped_data: Numbers = field(default_factory=lambda: np.array(1.0))
    # the machine
    hardware: Words
    peak_flops: Numbers
    peak_bf16_flops: Numbers
    memory_bytes: Numbers
    memory_bandwidth: Numbers
    link_bandwidth: Numbers
    gpus_per_domain: Numbers
    mesh_links: Numbers
    all_reduce_gain: Numbers = field(default_factory=lambda: np.array(1.0))
    transposes_fp8: Numbers = field(default_factory=lambda: np.array(1.0))
    gpus_per_node: Numbers
    nic_bandwidth: Numbers
    tdp_w: Numbers

    @property
    def world_size(self) -> Numbers:
        """Return the GPUs of each job."""
        sizes = self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size
        return sizes * self.data_parallel_size

    @property
    def num_micro_batches(self) -> Numbers:
        """Return the micro-batches of one rank in a step."""
        return self.global_batch_size / (self.micro_batch_size * self.data_parallel_size)

    @property
    def count(self) -> int:
        """Return n."""
        return max(np.size(getattr(self, each.name)) for each in fields(self))

    def take(self, index: Any) -> Jobs:
        """Return the jobs at `index` (integers or a mask over n); what all have in common stays."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return Jobs(**{name: value[index] if np.ndim(value) else value for name, value in values.items()})


def columns_of_shape(shape: Shape) -> dict[str, float]:
    """Return the model's columns."""
    mla = shape.mla
    latent = {name: getattr(mla, name) or 0 for name in mla.__slots__} if mla else dict.fromkeys(_LATENT, 0)
    same = {name: getattr(shape, name) or 0 for name in _OF_SHAPE}
    tied = shape.untie_embeddings_and_output_weights is False
    return same | latent | {"gated": shape.gated_linear_unit, "tied": tied, "mla": mla is not None}


def adam_bytes(fp32: bool) -> float:
    """Return the bytes a parameter of Adam's two moments in fp32, and the copy in fp32 of one that is in 16 bits."""
    return 8.0 if fp32 else 12.0


def columns_of_hardware(device: Hardware, precision: str) -> dict[str, float | str]:
    """Return the machine's columns, of one device as software sees it; nan where its data sheet does not say."""
    packages = device.devices_per_package
    of_attention = "fp32" if precision == "fp32" else "bf16"  # no precision of 8 bits reaches it
    peaks = {"peak_flops": peak_of(device, PEAK_OF[precision]), "peak_bf16_flops": peak_of(device, of_attention)}
    rates = {
        "memory_bytes": (device.room_bytes, 1),
        "memory_bandwidth": (device.memory_bandwidth_tb_s, 1e12 / packages),
        "link_bandwidth": (device.link_gb_s_per_gpu_unidirectional, GB / packages),
        "gpus_per_domain": (device.gpus_per_domain, packages),
        "gpus_per_node": (device.gpus_per_node, packages),
        "nic_bandwidth": (device.network_gbit_s_per_gpu, 1e9 / 8 / packages),
        "tdp_w": (device.tdp_w, 1 / packages),
    }
    mesh = (device.gpus_per_domain or 1) * packages - 1 if device.link == "xGMI" else 0
    known = {name: peak[1] * 1e12 if peak else np.nan for name, peak in peaks.items()}
    known |= {name: value * unit if value is not None else np.nan for name, (value, unit) in rates.items()}
    gain = _NVLS.get(device.architecture or "", 1.0) if (device.gpus_per_domain or 0) >= 8 else 1.0
    in_one_order = float(device.architecture not in _ANY_ORDER)
    return {
        **known,
        "hardware": device.name,
        "mesh_links": float(mesh),
        "all_reduce_gain": gain,
        "transposes_fp8": in_one_order,
    }


def on_smaller_nodes(columns: Mapping[str, Column], of_node: float) -> dict[str, Column]:
    """Return the machine's columns where each of several nodes has `of_node` devices, fewer than a standard one: links
    that end at the node join no more."""
    domain, usual = float(columns["gpus_per_domain"]), float(columns["gpus_per_node"])
    joined = min(of_node, domain) if domain == usual else domain
    return {**columns, "gpus_per_domain": joined, "gpus_per_node": min(of_node, usual)}


def unknown_rates(columns: Mapping[str, Column]) -> list[str]:
    """Return which of a machine's columns no step can be timed without are not known."""
    names = ("memory_bytes", "memory_bandwidth", "link_bandwidth", "gpus_per_domain")
    return [name for name in names if isnan(float(columns[name]))]


_NVLS = {"sm_90": 1.31, "sm_100": 1.23, "sm_103": 1.23}
"""By how much an all-reduce is faster where NVLink's switches add up (NVLS), by architecture: bus bandwidth on 8 GPUs
with it by that without, 480 GB/s by 365.6 on H200, 838 by 682.2 on B200 (nccl-tests in stas00/ml-engineering@744d01e,
network/README.md, and Azure/AI-benchmarking-guide@8fd0c6e); that of B300 is taken to be B200's."""
_ANY_ORDER = ("sm_100", "sm_103")
"""Architectures whose fp8 matrix products take operands in any order (TransformerEngine, pytorch/utils.py,
is_non_tn_fp8_gemm_supported)."""


PEAK_OF = {"bf16": "bf16", "fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "fp32": "fp32", "fp16": "bf16"}
"""Precision of the matrix products: the peak of a data sheet that bounds it."""
