"""An Experiment on one screen: every number with the reason it has."""

from __future__ import annotations

from conf.parameters import count
from conf.resolve import Experiment
from conf.schema import Model


def summary(e: Experiment) -> str:
    """Return what will be trained, where, and how it is cut."""
    t, o = e.training, e.optimizer
    model = f"{e.model.name}, {_parameters(e.model)} ({e.model.source.partition(';')[0]})"
    rows = [
        ("experiment", e.name),
        ("model", model),
        ("platform", f"{e.platform.name}, {e.nodes} × {e.gpus_per_node} × {e.hardware.name}, {e.framework.name}"),
        ("layout", f"{e.layout.name}: {e.layout}"),
        ("batch", f"{t.global_batch_size} × {t.seq_length} = {t.global_batch_size * t.seq_length:,} tokens a step"),
        ("training", f"{t.train_iters} iterations, seed {t.seed}{_repeats(e)}, {e.precision.name}, {_data(e)}"),
        (
            "schedule",
            f"lr {o.lr:g} → {o.min_lr:g} {o.lr_decay_style}, warm-up {o.lr_warmup_iters}/{o.lr_decay_iters}",
        ),
        ("memory savers", _savers(e)),
    ]
    lines = [f"{label:<14}{text}" for label, text in rows]
    lines += [f"{'because':<14}{reason}" for reason in e.reasons]
    lines += [f"{'declared':<14}{d.key} = {d.value} ({d.reason})" for d in e.declared]
    lines += [f"{'warning':<14}{p.where}: {p.what}" for p in e.warnings]
    return "\n".join(lines)


def _parameters(model: Model) -> str:
    parts = count(model)
    text = f"{parts.total:,} parameters"
    if model.moe:
        text += f", {parts.active:,} for a token"
    return text + (f", and {parts.mtp:,} for multi-token prediction" if parts.mtp else "")


def _repeats(e: Experiment) -> str:
    return f" to {e.training.seed + e.repeat - 1}" if e.repeat > 1 else ""


def _data(e: Experiment) -> str:
    return f"data {e.data.path}" if e.data.name == "prefix" else f"data {e.data.name}"


def _savers(e: Experiment) -> str:
    t = e.training
    recompute = f"recompute {t.recompute_granularity}" if t.recompute_granularity else "no recompute"
    optimizer = "distributed optimizer" if t.use_distributed_optimizer else "the complete optimizer on every rank"
    overlap = [name for name in ("overlap_grad_reduce", "overlap_param_gather") if getattr(t, name)]
    return ", ".join([recompute, optimizer, *(overlap or ["no overlap"])])
