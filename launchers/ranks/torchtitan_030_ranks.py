"""Pre-train a dense Llama with TorchTitan 0.3: one process is one rank.

    python -m torch.distributed.run --standalone --nproc-per-node N torchtitan_030_ranks.py --settings FILE.json

Its configuration is Python: what torchtitan_ranks.py gives release 0.2 by a TrainSpec is here the classes and values of
one Trainer.Config. Its backend is always partial_dtensor: with full_dtensor it prints the loss times the data parallel
ranks on torch 2.13, which is why it was removed (github.com/pytorch/torchtitan/pull/4217), and spmd_types, its default,
needs a newer torch."""

from __future__ import annotations

import logging
import sys
import types
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import plain_ranks
import torch
import torch.distributed as dist
import torchtitan_ranks
from numpy.typing import NDArray
from plain_ranks import Reporter, Settings, matrices, rate, together
from rank_program import Problem, Refused, is_first_rank
from torch.nn.attention import SDPBackend
from torchtitan_names import NAMES, adjacent, plain_name, put

_NAMES = {**NAMES, "output": "lm_head"}
_QKV = "attention.qkv_linear.wqkv"


def train(s: Settings) -> str | None:
    """Run the complete training in this rank; see plain_ranks.main."""
    plain_ranks.check_machine(s)
    release = torchtitan_ranks.release()
    if not release.startswith("0.3."):
        what = "another release is configured otherwise"
        raise Refused(Problem("torchtitan", what, release, "0.3.0", "pip install torchtitan==0.3.0"))
    if s.device == "cpu":
        on_a_cpu()
    elif not hasattr(dist, "set_timeout"):
        what = "TorchTitan 0.3 calls torch.distributed.set_timeout after its first step, which this torch does not have"
        raise Refused(Problem("torch", what, torch.__version__, "newer than 2.13", "framework.release=0.2.2"))
    from torchtitan.tools.logging import init_logger
    from torchtitan.trainer import Trainer

    init_logger()
    if not is_first_rank():
        logging.getLogger().setLevel(logging.WARNING)  # each rank prints every step
    reporter, samples = Reporter(s), torchtitan_ranks.Samples(s)

    class Stopping(Trainer):  # type: ignore[misc]
        """Say on what it runs when the process groups are there."""

        def init_distributed(self) -> Any:
            dims = super().init_distributed()
            plain_ranks.print_facts(s.seed, framework_version=release)
            return dims

    trainer = Stopping(configuration(s, samples, reporter))
    trainer.metrics_processor.configured = trainer.config  # which reads back what was built
    sum_on_gloo(trainer.model_parts[0], s)
    objects = {type(part).__name__: part for part in (trainer.config.training, trainer.config.parallelism)}
    readings = torchtitan_ranks.watched(trainer, s, named, {name: plainly(part) for name, part in objects.items()})
    try:
        trainer.train()
    except RuntimeError as error:  # it ends itself where the loss is no number
        if "Loss is not finite" not in str(error):
            raise
        reporter.stopped = str(error)
    readings.finish(reporter.effective)
    trainer.close()
    return reporter.stopped


def plainly(config: Any) -> types.SimpleNamespace:
    """Return the fields of a configuration whose class has slots, as an object that can be read by name."""
    return types.SimpleNamespace(**{field.name: getattr(config, field.name) for field in fields(config)})


def on_a_cpu() -> None:
    """Let TorchTitan take the CPU: as torchtitan_ranks.on_a_cpu, under this release's names."""
    torch._utils._get_available_device_type = lambda: "cpu"
    kernels = types.ModuleType("torchtitan.distributed.minimal_async_ep.kernels")
    vars(kernels)["__getattr__"] = lambda name: None  # experts' kernels, which need Triton
    sys.modules.setdefault(kernels.__name__, kernels)
    from torchtitan.components import metrics as measured
    from torchtitan.distributed import utils

    measured.build_device_memory_monitor = torchtitan_ranks.NoMemory
    utils.set_pg_timeouts = lambda timeout, parallel_dims: None  # gloo does not take the number of a device


def sum_on_gloo(model: Any, s: Settings) -> None:
    """Let FSDP2 add up, and divide by itself: gloo has no sum of multiples."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule) and s.device == "cpu":
            module.set_force_sum_reduction_for_comms(True)


def weights(s: Settings) -> dict[str, NDArray[Any]]:
    """Return the first value of each matrix by TorchTitan's name: its fused queries, keys and values are Megatron's,
    with rows of queries and keys as its RoPE pairs them."""
    made = {}
    for name, values in matrices(s):
        if not name.startswith("decoder."):
            made["tok_embeddings" if name.startswith("embedding") else "lm_head"] = values
            continue
        _, _, number, _, kind, _ = name.split(".")
        layer = f"layers.{number}"
        if kind == "linear_qkv":
            rows = values.reshape(s.num_query_groups, -1, s.kv_channels, s.hidden_size).copy()
            turned = rows[:, :-1].reshape(-1, s.hidden_size)
            heads = turned.shape[0] // s.kv_channels
            rows[:, :-1] = adjacent(turned, heads).reshape(rows[:, :-1].shape)
            made[f"{layer}.{_QKV}"] = rows.reshape(values.shape)
        elif kind == "linear_fc1":
            made[f"{layer}.feed_forward.w1"], made[f"{layer}.feed_forward.w3"] = np.split(values, 2)
        else:
            made[f"{layer}.{_NAMES[{'linear_proj': 'proj', 'linear_fc2': 'down'}[kind]]}"] = values
    return made


def named(s: Settings, tensors: Any) -> Any:
    """Yield complete tensors of the model by Megatron's names: the reverse of `weights`."""
    whole = {}
    for name, tensor in ((plain_name(name), tensor) for name, tensor in tensors.items()):
        if not name.endswith(f"{_QKV}.weight"):
            whole[name] = tensor
            continue
        rows = tensor.reshape(s.num_query_groups, -1, s.kv_channels, tensor.shape[-1])
        halves = rows[:, :-1].unflatten(2, (-1, 2)).transpose(2, 3).flatten(2, 3)
        layer = name.removesuffix(f"{_QKV}.weight")
        for part, of in {"q": halves[:, :-1], "k": halves[:, -1], "v": rows[:, -1]}.items():
            whole[f"{layer}{NAMES[part]}.weight"] = of.reshape(-1, tensor.shape[-1])
    return together(s, _NAMES, whole)


_ONES = {"weight": torch.nn.init.ones_}


def model_config(s: Settings) -> Any:
    """Return TorchTitan's configuration of the model, which begins with our weights."""
    from torchtitan.models.common import Embedding, Linear
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.model import Llama3Model

    if s.attention_backend == "unfused":
        ScaledDotProductAttention.sdpa_backends = [SDPBackend.MATH]
    first = {name: {"weight": partial(put, full=torch.from_numpy(values))} for name, values in weights(s).items()}
    size = {"num_embeddings": s.padded_vocab_size, "embedding_dim": s.hidden_size}
    return Llama3Model.Config(
        dim=s.hidden_size,
        vocab_size=s.padded_vocab_size,
        layers=[layer_config(s, f"layers.{number}", first) for number in range(s.num_layers)],
        norm=norm_config(s),
        tok_embeddings=Embedding.Config(**size, param_init=first["tok_embeddings"]),
        lm_head=Linear.Config(in_features=s.hidden_size, out_features=s.padded_vocab_size, param_init=first["lm_head"]),
    )


def norm_config(s: Settings) -> Any:
    """Return TorchTitan's configuration of a norm."""
    from torchtitan.models.common import RMSNorm

    return RMSNorm.Config(normalized_shape=s.hidden_size, eps=s.norm_epsilon, param_init=_ONES)


def layer_config(s: Settings, layer: str, first: dict[str, Any]) -> Any:
    """Return TorchTitan's configuration of a layer. first: what gives a matrix its first value, by its name."""
    from torchtitan.models.common import ComplexRoPE
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
    from torchtitan.models.llama3.model import Llama3TransformerBlock

    scaled = (
        {"scaling": "llama", "scaling_factor": s.rope_scaling_factor} if s.use_rope_scaling else {"scaling": "none"}
    )
    rope = ComplexRoPE.Config(dim=s.kv_channels, max_seq_len=s.max_position_embeddings, theta=s.rotary_base, **scaled)
    attention = make_gqa_config(
        dim=s.hidden_size,
        n_heads=s.num_attention_heads,
        n_kv_heads=s.num_query_groups,
        head_dim=s.kv_channels,
        wqkv_param_init=_ONES,
        wo_param_init=first[f"{layer}.attention.wo"],
        inner_attention=ScaledDotProductAttention.Config(),
        fuse_qkv=True,
        rope=rope,
    )
    attention.qkv_linear.wqkv.param_init = first[f"{layer}.{_QKV}"]
    up, gate, down = (first[f"{layer}.feed_forward.{name}"] for name in ("w3", "w1", "w2"))
    mlp = make_ffn_config(dim=s.hidden_size, hidden_dim=s.ffn_hidden_size, w1_param_init=gate, w2w3_param_init=_ONES)
    mlp.w2.param_init, mlp.w3.param_init = down, up
    norms = {"attention_norm": norm_config(s), "ffn_norm": norm_config(s)}
    return Llama3TransformerBlock.Config(**norms, attention=attention, feed_forward=mlp)


def configuration(s: Settings, samples: Any, reporter: Reporter) -> Any:
    """Return TorchTitan's Trainer.Config, none of which is left to a default that decides a comparison."""
    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.config.configs import DebugConfig
    from torchtitan.distributed.activation_checkpoint import FullAC
    from torchtitan.models.llama3 import parallelize_llama
    from torchtitan.protocols.model_spec import ModelSpec
    from torchtitan.trainer import Trainer

    spec = ModelSpec(
        name="llama3",
        flavor=torchtitan_ranks.OURS,
        model=model_config(s),
        parallelize_fn=parallelize_llama,
        pipelining_fn=None,
        post_optimizer_build_fn=None,
        state_dict_adapter=None,
    )
    return Trainer.Config(
        model_spec=spec,
        dump_folder="torchtitan",
        loss=CrossEntropyLoss.Config(global_vocab_size=s.padded_vocab_size),
        tokenizer=no_tokenizer(s),
        dataloader=data(samples),
        metrics=metrics(s, samples, reporter),
        lr_scheduler=schedule(s),
        checkpoint=CheckpointManager.Config(enable=False),
        activation_checkpoint=FullAC.Config() if s.recompute_granularity else None,
        debug=DebugConfig(seed=s.seed, enable_structured_logging=False, print_config=True),
        **training(s),
    )


def training(s: Settings) -> dict[str, Any]:
    """Return TorchTitan's configuration of the optimizer, the batch and the layout: matrices decay, norms do not."""
    from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
    from torchtitan.config import ParallelismConfig, TrainingConfig

    adam = {"lr": s.lr, "betas": (s.adam_beta1, s.adam_beta2), "eps": s.adam_eps}
    decays = {r"norm\.weight$|\.bias$": 0.0, r".*": s.weight_decay}
    groups = [
        ParamGroupConfig(pattern=pattern, optimizer_name="AdamW", optimizer_kwargs={**adam, "weight_decay": decay})
        for pattern, decay in decays.items()
    ]
    batch = TrainingConfig(
        local_batch_size=s.micro_batch_size,
        global_batch_size=s.global_batch_size,
        seq_len=s.seq_length,
        max_norm=s.clip_grad,
        steps=s.train_iters,
        dtype="float32",  # of what is kept; mixed_precision_param is what is computed in
        mixed_precision_param=s.params_dtype,
        mixed_precision_reduce="float32",
        disable_cuda_graphs=True,
    )
    layout = ParallelismConfig(
        data_parallel_replicate_degree=s.data_parallel_replicas,
        data_parallel_shard_degree=s.data_parallel_shards,
        tensor_parallel_degree=s.tensor_model_parallel_size,
        spmd_backend="partial_dtensor",
    )
    optimizer = OptimizersContainer.Config(implementation="fused", param_groups=groups)
    return {"training": batch, "parallelism": layout, "optimizer": optimizer}


def data(samples: Any) -> Any:
    """Return the configuration of a dataloader of our samples."""
    from torchtitan.components.dataloader import BaseDataLoader

    class Data(BaseDataLoader):  # type: ignore[misc]
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):  # type: ignore[misc]
            pass

        def __init__(self, config: Any, *, dp_world_size: int, dp_rank: int, **_: Any) -> None:
            samples.build(dp_world_size=dp_world_size, dp_rank=dp_rank)

        def __iter__(self) -> Any:
            return iter(samples)

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    return Data.Config()


def no_tokenizer(s: Settings) -> Any:
    """Return the configuration of a tokenizer that has nothing to do: samples are ids."""
    from torchtitan.components.tokenizer import BaseTokenizer

    class Ids(BaseTokenizer):  # type: ignore[misc]
        @dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):  # type: ignore[misc]
            pass

        def __init__(self, config: Any, *, tokenizer_path: str = "") -> None:
            self.eos_id = s.vocab_size - 1

        def encode(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        decode = encode

        def get_vocab_size(self) -> int:
            return int(s.vocab_size)

    return Ids.Config()


def schedule(s: Settings) -> Any:
    """Return the configuration of the one schedule."""
    from torchtitan.components.optimizer import LRSchedulersContainer

    class Config(LRSchedulersContainer.Config):  # type: ignore[misc]
        def build(self, *, optimizers: Any, training_steps: int) -> Any:
            return LRSchedulersContainer(optimizers, lambda step: rate(s, step) / s.lr)

    return Config(warmup_steps=s.lr_warmup_iters, decay_type="cosine", min_lr_factor=s.min_lr / s.lr)


def metrics(s: Settings, samples: Any, reporter: Reporter) -> Any:
    """Return the configuration of what logs steps, which prints ours, too, and before the first what was built."""
    from torchtitan.components.metrics import MetricsProcessor

    class Metrics(MetricsProcessor):  # type: ignore[misc]
        @dataclass(kw_only=True, slots=True)
        class Config(MetricsProcessor.Config):  # type: ignore[misc]
            pass

        def log(self, step: int, loss: float, most: float, norm: float, extra_metrics: Any = None) -> None:
            if step == 1:
                built = {**read_back(self.model_parts[0]), **trained(self, s)}
                optimizer = self.optimizers.optimizers[0]
                values = plain_ranks.effective(s, optimizer, s.arguments.get, samples.first, **built)
                reporter.built(values, samples.first)
            rates = [value for name, value in extra_metrics.items() if name.startswith("lr/")]
            reporter.step(step - 1, loss, norm, rates[0])
            super().log(step, loss, most, norm, extra_metrics=extra_metrics)

    return Metrics.Config(log_freq=1, disable_color_printing=True)


def read_back(model: Any) -> dict[str, Any]:
    """Return the settings that a built model has, by canonical name."""
    layer = next(iter(model.layers.values()))
    attention, mlp = layer.attention, layer.feed_forward
    qkv, rope = attention.qkv_linear, attention.rope.config
    width = qkv.head_dim
    groups = qkv.wqkv.out_features // (width * qkv.r_dim)
    scaled = rope.scaling == "llama"
    return {
        "num_layers": len(model.layers),
        "hidden_size": model.tok_embeddings.embedding_dim,
        "padded_vocab_size": model.tok_embeddings.num_embeddings,
        "ffn_hidden_size": mlp.w2.in_features,
        "num_attention_heads": groups * qkv.heads_per_kv,
        "num_query_groups": groups,
        "kv_channels": width,
        "norm_epsilon": layer.attention_norm.eps,
        "add_qkv_bias": qkv.wqkv.bias is not None,
        "add_bias_linear": mlp.w2.bias is not None,
        "qk_layernorm": getattr(attention, "q_norm", None) is not None,
        "untie_embeddings_and_output_weights": model.lm_head.weight is not model.tok_embeddings.weight,
        "rotary_base": rope.theta,
        "use_rope_scaling": scaled,
        "rope_scaling_factor": rope.scaling_factor if scaled else None,
        "max_position_embeddings": rope.max_seq_len,
    }


def trained(metrics: Any, s: Settings) -> dict[str, Any]:
    """Return how TorchTitan trains, by canonical name."""
    from torch.distributed.fsdp import FSDPModule

    dims, model = metrics.parallel_dims, metrics.model_parts[0]
    layer = next(iter(model.layers.values()))
    fsdp = next((module for module in model.modules() if isinstance(module, FSDPModule)), None)
    policy = fsdp._get_fsdp_state()._mp_policy if fsdp is not None else None
    replicas = dims.dp_replicate * dims.dp_shard
    backends = layer.attention.inner_attention.sdpa_backends
    recompute = "checkpoint" in type(layer).__name__.casefold()
    sharded = dims.dp_shard > 1
    return {
        "tensor_model_parallel_size": dims.tp,
        "pipeline_model_parallel_size": dims.pp,
        "context_parallel_size": dims.cp,
        "data_parallel_size": replicas,
        "data_parallel_shards": dims.dp_shard,
        "data_parallel_replicas": dims.dp_replicate,
        "sequence_parallel": dims.tp > 1,
        "num_micro_batches": s.global_batch_size // (s.micro_batch_size * replicas),
        "clip_grad": metrics.configured.training.max_norm,
        "params_dtype": policy.param_dtype if policy else next(model.parameters()).dtype,
        "accumulate_allreduce_grads_in_fp32": policy is None or policy.reduce_dtype == torch.float32,
        "attention_backend": "unfused" if backends == [SDPBackend.MATH] else "sdpa",
        "recompute_granularity": "full" if recompute else None,
        "recompute_method": "uniform" if recompute else None,
        "recompute_num_layers": 1 if recompute else None,
        "use_distributed_optimizer": sharded or bool(s.use_distributed_optimizer and replicas == 1),
        "overlap_grad_reduce": True,
        "overlap_param_gather": sharded,
    }


if __name__ == "__main__":
    sys.exit(plain_ranks.main(train))
