"""The Python door: the same frozen Experiment as the command line, and the lists of what can be requested.

```python
from tensorprimat import load_experiment, problems, summary

e = load_experiment("model=llama", "platform=nvidia")
e.training.global_batch_size, e.layout.data_parallel_size, e.hardware.peak_dense_tflops["bf16"]
print(summary(e))
problems("model=qwen", "platform=amd", "layout.tensor_model_parallel_size=8")  # what the layout check says
```"""

from __future__ import annotations

from typing import TYPE_CHECKING

from conf.errors import ConfigError, Problem

if TYPE_CHECKING:  # what a function needs it imports itself: every `import conf.errors` runs this file
    from conf.resolve import Experiment


def load_experiment(*overrides: str) -> Experiment:
    """Return the experiment that conf/ and `overrides` (Hydra's grammar, `model=llama`, `training.seed=1`) describe.
    Raises conf.errors.ConfigError: with every problem found."""
    from conf.load import load

    return load(overrides)


def problems(*overrides: str) -> tuple[Problem, ...]:
    """Check only: return everything that is wrong with such an experiment, its layout above all; empty if nothing."""
    try:
        load_experiment(*overrides)
    except ConfigError as error:
        return error.problems
    return ()


def models() -> tuple[str, ...]:
    """Return what `model=` takes."""
    from conf.compose import choices

    return choices("model")


def platforms() -> tuple[str, ...]:
    """Return what `platform=` takes."""
    from conf.compose import choices

    return choices("platform")


_METHODS = {
    "identical": "identical: one layout and the same switches for every vendor",
    "max_performance": "max_performance: all that its vendor publishes for this case; the work is the same for all",
}


def summary(e: Experiment) -> str:
    """Return `e` on one screen: what will be trained, where, how it is cut, each derived number with its reason."""
    from conf.shapes import count

    t, o, parts = e.training, e.optimizer, count(e.model)
    active = f", {parts.active:,} for a token" if e.model.moe else ""
    active += f", and {parts.mtp:,} for multi-token prediction" if parts.mtp else ""
    seeds = f"seed {t.seed}" + (f" to {t.seed + e.repeat - 1}" if e.repeat > 1 else "")
    stack = " ".join(filter(None, (e.framework.label or e.framework.name, e.framework.release)))
    data = f"data {e.data.path if e.data.name == 'prefix' else e.data.name}"
    savers = [f"recompute {t.recompute_granularity}" if t.recompute_granularity else "no recompute"]
    shared = e.recipe.more.get("model_states") if e.recipe else None
    every = shared or "the complete optimizer on every rank"
    savers += ["distributed optimizer" if t.use_distributed_optimizer else every]
    overlap = [name for name in ("overlap_grad_reduce", "overlap_param_gather") if getattr(t, name)]
    rows = {
        "method": _METHODS[e.method] + "; each vendor's own global batch" * (e.batch == "vendor"),
        **({"recipe": f"{e.recipe.name}, {stack} [{e.recipe.source}]"} if e.recipe else {}),
        "experiment": e.name,
        "model": f"{e.model.name}, {parts.total:,} parameters{active} ({e.model.source.partition(';')[0]})",
        "platform": f"{e.platform.name}, {e.nodes} × {e.gpus_per_node} × {e.hardware.name}, {stack}",
        "layout": f"{e.layout.name}: {e.layout}",
        "batch": f"{t.global_batch_size} × {t.seq_length} = {t.global_batch_size * t.seq_length:,} tokens a step",
        "training": f"{t.train_iters} iterations, {seeds}, {e.precision.name}, {data}",
        "schedule": f"lr {o.lr:g} → {o.min_lr:g} {o.lr_decay_style}, warm-up {o.lr_warmup_iters}/{o.lr_decay_iters}",
        "memory savers": ", ".join([*savers, *(overlap or ["no overlap"])]),
    }
    lines = [f"{label:<14}{text}" for label, text in rows.items()]
    lines += [f"{'because':<14}{reason}" for reason in e.reasons]
    lines += [f"{'declared':<14}{d.key} = {d.value} ({d.reason})" for d in e.declared]
    lines += [f"{'warning':<14}{p.where}: {p.what}" for p in e.warnings]
    return "\n".join(lines)
