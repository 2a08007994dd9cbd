"""Pre-train a dense Llama or Qwen with the Trainer of Hugging Face's transformers: one process is one rank.

    python -m torch.distributed.run --standalone --nproc-per-node N hf_ranks.py --settings FILE.json

Three things of Trainer's own are replaced, each of which would train otherwise than every other stack: its sampler,
which shuffles anew; its schedules, of which none has this warm-up; and labels, which it would shift once more."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import hf_model
import numpy as np
import plain_ranks
import torch
import torch.distributed as dist
import transformers
from numpy.typing import NDArray
from plain_ranks import Reporter, Settings, global_batches, schedule_of
from plain_readings import Readings, Source, decays_of
from torch.utils.data import Dataset, Sampler, SequentialSampler


class Samples(Dataset[dict[str, torch.Tensor]]):
    """The samples of the run in their order, each read when it is asked for; later ones only."""

    def __init__(self, s: Settings) -> None:
        self.settings, self.batches, self.number = s, global_batches(s), -1
        self.first = self.batch = self.of(0)

    def of(self, number: int) -> NDArray[np.int32]:
        """Return global batch `number`, which is the last one or a later."""
        while self.number < number:
            self.batch, self.number = next(self.batches), self.number + 1
        return self.batch

    def __len__(self) -> int:
        return int(self.settings.train_iters * self.settings.global_batch_size)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        number, row = divmod(index, self.settings.global_batch_size)
        tokens = torch.from_numpy(self.of(number)[row].astype(np.int64))
        # labels count the tokens of a batch; shift_labels are what is compared (transformers/loss/loss_utils.py)
        return {"input_ids": tokens[:-1], "labels": tokens[1:], "shift_labels": tokens[1:]}


class Trainer(transformers.Trainer):
    """See the head of this file."""

    settings: Settings
    readings: Readings

    def _clip_grad_norm(self, model: Any) -> Any:
        self.readings.gradients(model.parameters())
        return super()._clip_grad_norm(model)

    def _get_train_sampler(self, *_: Any) -> Sampler[int]:
        return SequentialSampler(self.train_dataset)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        self.lr_scheduler = schedule_of(optimizer or self.optimizer, self.settings)
        return self.lr_scheduler


class Report(transformers.TrainerCallback):
    """Print what was built, and each step: the console has four digits."""

    def __init__(self, s: Settings, trainer: Trainer) -> None:
        self.settings, self.trainer, self.lr_used = s, trainer, 0.0
        self.reporter = Reporter(s)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        model = self.trainer.model
        named = partial(plain_ranks.together, self.settings, hf_model.NAMES)
        objects = {"TrainingArguments": args, "ModelConfig": model.config}
        self.trainer.readings.begin(Source(model, named), objects, decays_of(self.trainer.optimizer))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.lr_used = self.trainer.optimizer.param_groups[0]["lr"]
        self.trainer.readings.gradients(self.trainer.model.parameters())  # where nothing is clipped
        if state.global_step == 0:
            built = {
                **hf_model.read_back(self.trainer.accelerator.unwrap_model(self.trainer.model)),
                **trained(self.trainer),
            }
            batch = self.trainer.train_dataset.first
            optimizer = getattr(self.trainer.optimizer, "optimizer", self.trainer.optimizer)
            values = plain_ranks.effective(self.settings, optimizer, partial(getattr, args), batch, **built)
            self.reporter.built(values, batch)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self.reporter.step(state.global_step - 1, float(logs["loss"]), float(logs["grad_norm"]), self.lr_used)
            control.should_training_stop |= self.reporter.stopped is not None


def trained(trainer: Trainer) -> dict[str, Any]:
    """Return how a Trainer trains, by canonical name."""
    args, s = trainer.args, trainer.settings
    sharded = trainer.is_fsdp_enabled or (s.world_size == 1 and bool(s.use_distributed_optimizer))  # one has all anyway
    recompute = args.gradient_checkpointing
    return {
        "params_dtype": torch.bfloat16 if args.bf16 else torch.float32,
        "enable_autocast": args.bf16,
        "accumulate_allreduce_grads_in_fp32": next(trainer.model.parameters()).dtype == torch.float32,
        "use_distributed_optimizer": sharded,
        "data_parallel_shards": s.world_size if sharded else 1,
        "data_parallel_replicas": 1 if sharded else s.world_size,
        "overlap_grad_reduce": True,
        "overlap_param_gather": sharded,
        "recompute_granularity": "full" if recompute else None,
        "recompute_method": "uniform" if recompute else None,
        "recompute_num_layers": 1 if recompute else None,
    }


def arguments(s: Settings) -> transformers.TrainingArguments:
    """Return Trainer's arguments, none of which is left to a default that decides a comparison."""
    world = s.world_size
    fsdp = {"fsdp_version": 2, "transformer_layer_cls_to_wrap": [f"{hf_model.kind(s)}DecoderLayer"]}
    sharded = {"fsdp": "full_shard", "fsdp_config": fsdp} if s.use_distributed_optimizer and world > 1 else {}
    return transformers.TrainingArguments(
        output_dir="trainer",
        use_cpu=s.device == "cpu",
        optim="adamw_torch",
        gradient_checkpointing_kwargs={"use_reentrant": False} if s.recompute_granularity else None,
        logging_steps=1,
        logging_nan_inf_filter=False,  # it would print the loss of before in place of one that is no number
        log_level="info",
        disable_tqdm=True,
        save_strategy="no",
        report_to=[],
        remove_unused_columns=False,
        dataloader_num_workers=0,
        **{**sharded, **s.arguments},
    )


def train(s: Settings) -> str | None:
    """Run the complete training in this rank; see plain_ranks.main."""
    plain_ranks.check_machine(s)
    samples = Samples(s)
    args = arguments(s)  # begins the process group
    if not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    plain_ranks.print_facts(s.seed, framework_version=transformers.__version__)
    model, readings = hf_model.build(s), Readings()
    readings.watch(model, s.seq_length, s.num_layers)
    trainer = Trainer(model=model, args=args, train_dataset=samples)
    trainer.settings, trainer.readings = s, readings
    report = Report(s, trainer)
    trainer.add_callback(report)
    trainer.train()
    readings.finish(report.reporter.effective)
    return report.reporter.stopped


if __name__ == "__main__":
    sys.exit(plain_ranks.main(train))
