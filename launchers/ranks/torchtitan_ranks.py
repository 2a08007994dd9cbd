"""Pre-train a dense Llama or Qwen 3 with TorchTitan 0.2: one process is one rank.

    python -m torch.distributed.run --standalone --nproc-per-node N torchtitan_ranks.py --settings FILE.json

Its own Trainer trains. By the hooks that it has for them (torchtitan/protocols/train_spec.py) it is given the samples
and first weights of every stack here; our schedule, as none of its own has this warm-up; and two groups of parameters,
as norms decay in its one. It prints fewer digits of a step than we do."""

from __future__ import annotations

import logging
import os
import sys
import types
from collections.abc import Iterator
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import plain_ranks
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from plain_ranks import Reporter, Settings, global_batches, micro_batches, rate
from plain_readings import Readings, Source, decays_of
from rank_program import Problem, Refused, installed, is_first_rank

OURS = "tprimat"
"""The name under which TorchTitan knows what we give it."""
TREE = Path(os.environ.get("TORCHTITAN_PATH", "/workspace/Primus/third_party/torchtitan"))
"""Where a source tree is taken from if TorchTitan is not installed, by the variable that Primus has for it: rocm/primus
v26.5 has it there, and installs it at the start of Primus alone (examples/torchtitan/prepare.py)."""


def train(s: Settings) -> str | None:
    """Run the complete training in this rank; see plain_ranks.main."""
    plain_ranks.check_machine(s)
    if find_spec("torchtitan") is None:
        sys.path.append(str(TREE))
    if not release().startswith("0.2."):
        what = "another release has other entries, and trains otherwise than it says on some layouts"
        hint = "pip install torchtitan==0.2.2, or TORCHTITAN_PATH=/path/to/its/source/tree"
        raise Refused(Problem("torchtitan", what, release(), "0.2.2", hint))
    if s.device == "cpu":
        on_a_cpu()
    from torchtitan.distributed.utils import init_distributed
    from torchtitan.tools.logging import init_logger
    from torchtitan.train import Trainer

    class Stopping(Trainer):  # type: ignore[misc]
        """Stop where the loss is no number."""

        def should_continue_training(self) -> bool:
            return super().should_continue_training() and reporter.stopped is None

    init_logger()
    if not is_first_rank():
        logging.getLogger().setLevel(logging.WARNING)  # each rank prints every step
    job, samples = configuration(s), Samples(s)
    init_distributed(job.comm, base_folder=job.job.dump_folder)  # Trainer finds that it is there
    reporter = Reporter(s)
    register(s, samples, reporter)
    plain_ranks.print_facts(s.seed, framework_version=release())
    trainer = Stopping(job)
    import torchtitan_model

    objects = {"JobConfig": trainer.job_config, "ModelArgs": trainer.model_parts[0].model_args}
    readings = watched(trainer, s, torchtitan_model.named, objects)
    trainer.train()
    readings.finish(reporter.effective)
    trainer.close()
    return reporter.stopped


def release() -> str:
    """Return which TorchTitan Python finds: as it is installed, or as its source tree says."""
    found = find_spec("torchtitan")
    said = Path(found.origin).parents[1] / "assets" / "version.txt" if found and found.origin else None
    stated = said.read_text(encoding="utf-8").strip() if said and said.is_file() else None
    return stated or installed("torchtitan")["torchtitan"] or "unknown"


def watched(trainer: Any, s: Settings, named: Any, objects: dict[str, Any]) -> Readings:
    """Return what reads a rehearsal of this trainer from now on. named: as of plain_readings.Source, with the settings
    before it; objects: as of Readings.begin."""
    from torchtitan.distributed import utils

    readings, model, dims = Readings(), trainer.model_parts[0], trainer.parallel_dims
    readings.watch(model, s.seq_length, s.num_layers)
    decays = {k: v for one in trainer.optimizers.optimizers for k, v in decays_of(one).items()}
    source, rank = Source(model, lambda tensors: named(s, tensors)), dist.get_rank()
    readings.begin(source, objects, decays, tensor=rank % dims.tp, data=rank // dims.tp)
    clip = utils.clip_grad_norm_

    def read_and_clip(parameters: Any, *arguments: Any, **options: Any) -> Any:
        known = [*parameters]
        readings.gradients(known)
        return clip(known, *arguments, **options)

    utils.clip_grad_norm_ = read_and_clip
    return readings


def on_a_cpu() -> None:
    """Let TorchTitan take the CPU. It takes "cuda" where torch has no accelerator, imports experts' kernels, which need
    Triton, and reads a GPU's memory and number."""
    torch._utils._get_available_device_type = lambda: "cpu"
    kernels = types.ModuleType("torchtitan.models.moe.kernels")
    kernels.generate_permute_indices = None  # type: ignore[attr-defined]
    sys.modules.setdefault(kernels.__name__, kernels)
    from torchtitan.components import metrics
    from torchtitan.distributed import utils

    metrics.build_device_memory_monitor = NoMemory
    utils.set_pg_timeouts = lambda timeout, parallel_dims: None  # gloo does not take the number of a device


class NoMemory:
    """Be what TorchTitan reads the memory of a GPU by where there is none."""

    device_name = "CPU"

    def get_peak_stats(self) -> Any:
        from torchtitan.components.metrics import DeviceMemStats

        return DeviceMemStats(*(0,) * len(DeviceMemStats._fields))

    def reset_peak_stats(self) -> None:
        pass


def configuration(s: Settings) -> Any:
    """Return TorchTitan's JobConfig (launchers/frameworks/torchtitan.py says what is written).
    Raises Refused: it has no such entry."""
    from torchtitan.config import JobConfig

    job = JobConfig()
    for path, value in s.arguments.items():
        *outer, last = path.split(".")
        part = reduce(lambda owner, name: getattr(owner, name, None), outer, job)
        if not hasattr(part, last):
            raise Refused(Problem(f"framework.options.{path}", "is no entry of TorchTitan's JobConfig", path))
        setattr(part, last, value)
    return job


class Samples:
    """The samples of the run in their order: TorchTitan's dataloader of the rank that it is built for."""

    def __init__(self, s: Settings) -> None:
        self.settings, self.batches = s, global_batches(s)
        self.first: NDArray[np.int32] | None = None
        self.world, self.rank = 1, 0

    def build(self, *, dp_world_size: int, dp_rank: int, **_: Any) -> Samples:
        self.world, self.rank = dp_world_size, dp_rank
        return self

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for batch in self.batches:
            self.first = batch if self.first is None else self.first
            for part in micro_batches(batch, self.settings, self.rank, self.world):
                tokens = torch.from_numpy(part.astype(np.int64))
                yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def register(s: Settings, samples: Samples, reporter: Reporter) -> None:
    """Let TorchTitan train our model, samples, groups and schedule under the name `OURS`."""
    import torchtitan_model
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.attention import SDPBackend
    from torchtitan.components.loss import build_cross_entropy_loss
    from torchtitan.components.lr_scheduler import LRSchedulersContainer
    from torchtitan.models.attention import ScaledDotProductAttentionWrapper
    from torchtitan.protocols.train_spec import TrainSpec, register_train_spec

    if s.attention_backend == "unfused":
        ScaledDotProductAttentionWrapper.sdpa_backends = [SDPBackend.MATH]

    def parallelized(*arguments: Any) -> Any:
        model = torchtitan_model.parallelize(s)(*arguments)
        for module in model.modules():
            if isinstance(module, FSDPModule) and s.device == "cpu":
                module.set_force_sum_reduction_for_comms(True)  # gloo has no sum of multiples
        return model

    spec = TrainSpec(
        model_cls=torchtitan_model.model_class(s),
        model_args={OURS: torchtitan_model.arguments(s)},
        parallelize_fn=parallelized,
        pipelining_fn=None,
        build_optimizers_fn=lambda parts, config, dims: optimizers(parts, config),
        build_lr_schedulers_fn=lambda made, *_: LRSchedulersContainer(made, lambda step: rate(s, step) / s.lr),
        build_dataloader_fn=samples.build,
        build_tokenizer_fn=None,
        build_loss_fn=build_cross_entropy_loss,
        build_metrics_processor_fn=processor(s, samples, reporter),
    )
    register_train_spec(OURS, spec)


def processor(s: Settings, samples: Samples, reporter: Reporter) -> Any:
    """Return TorchTitan's class that logs steps, which prints ours, too, and before the first what was built."""
    import torchtitan_model
    from torchtitan.components.metrics import MetricsProcessor

    class Processor(MetricsProcessor):  # type: ignore[misc]
        def log(self, step: int, loss: float, most: float, norm: float, extra_metrics: Any = None) -> None:
            if step == 1:
                built = {**torchtitan_model.read_back(self.model_parts[0]), **trained(self, s)}
                argument, optimizer = _of(self.job_config), self.optimizers.optimizers[0]
                assert samples.first is not None
                effective = plain_ranks.effective(s, optimizer, argument, samples.first, **built)
                reporter.built(effective, samples.first)
            reporter.step(step - 1, loss, norm, extra_metrics["lr"])
            super().log(step, loss, most, norm, extra_metrics=extra_metrics)

    return Processor


def optimizers(parts: list[Any], config: Any) -> Any:
    """Return TorchTitan's container with one AdamW a part of the model: matrices decay, norms do not."""
    from torchtitan.components.optimizer import OptimizersContainer

    class Groups(OptimizersContainer):  # type: ignore[misc]
        def __init__(self) -> None:
            self.model_parts, self.optimizers, known = parts, [], []
            for part in parts:
                trained = [p for p in part.parameters() if p.requires_grad]
                known += trained
                self.optimizers.append(torch.optim.AdamW(plain_ranks.decayed(trained), **given))
            self._validate_length(len(parts))
            self._post_init(known, given)

    how = {name: config.implementation == name for name in ("fused", "foreach")}
    betas = (config.beta1, config.beta2)
    given = {"lr": config.lr, "betas": betas, "eps": config.eps, "weight_decay": config.weight_decay, **how}
    return Groups()


def _of(job: Any) -> Any:
    """Return what returns an entry of a JobConfig by its dotted path."""
    return lambda path: reduce(getattr, path.split("."), job)


def trained(processor: Any, s: Settings) -> dict[str, Any]:
    """Return how TorchTitan trains, by canonical name."""
    from torch.nn.attention import SDPBackend

    dims, job = processor.parallel_dims, processor.job_config
    recompute = job.activation_checkpoint.mode != "none"
    layer = next(iter(processor.model_parts[0].layers.values()))
    backends = layer.attention.inner_attention.sdpa_backends
    sharded, replicas = dims.fsdp_enabled, dims.dp_replicate * dims.dp_shard
    precision = job.training.mixed_precision_param
    return {
        "tensor_model_parallel_size": dims.tp,
        "pipeline_model_parallel_size": dims.pp,
        "context_parallel_size": dims.cp,
        "data_parallel_size": replicas,
        "data_parallel_shards": dims.dp_shard,
        "data_parallel_replicas": dims.dp_replicate,
        "sequence_parallel": dims.tp_enabled,
        "num_micro_batches": s.global_batch_size // (s.micro_batch_size * replicas),
        "clip_grad": job.training.max_norm,
        "params_dtype": precision,
        "enable_autocast": precision == "bfloat16" and not sharded,
        "accumulate_allreduce_grads_in_fp32": job.training.mixed_precision_reduce == "float32",
        "attention_backend": "unfused" if backends == [SDPBackend.MATH] else "sdpa",
        "recompute_granularity": job.activation_checkpoint.mode if recompute else None,
        "recompute_method": "uniform" if recompute else None,
        "recompute_num_layers": 1 if recompute else None,
        "use_distributed_optimizer": sharded or bool(s.use_distributed_optimizer and replicas == 1),
        "overlap_grad_reduce": True,
        "overlap_param_gather": sharded,
    }


if __name__ == "__main__":
    sys.exit(plain_ranks.main(train))
