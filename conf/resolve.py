"""Request → Experiment: the layout row, the defaults and the derived sizes filled in, each with its reason."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from conf.check import Case, check_layout, setting_problems
from conf.errors import ConfigError, Problem
from conf.facts import LayoutRow, find_row
from conf.schema import Common, Hardware, LayoutChoice, Request, Training
from conf.vocabulary import short_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the job is cut: TP × PP × CP × DP = world_size; sizes in ranks. source: where a table's row came from."""

    name: str
    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int | None
    context_parallel_size: int
    expert_model_parallel_size: int
    sequence_parallel: bool
    data_parallel_size: int
    num_micro_batches: int
    world_size: int
    source: str | None

    @property
    def gradient_accumulation_steps(self) -> int:
        """Return micro-batches a rank and step, by the name that users and the README give them."""
        return self.num_micro_batches

    def __str__(self) -> str:
        sizes = ((short, getattr(self, name) or 1) for name, short in short_names().items())
        shown = [f"{short}{size}" for short, size in sizes if size > 1 or short == "DP"]
        return " ".join(shown) + (" SP" if self.sequence_parallel else "")


@dataclass(frozen=True, slots=True)
class Declared:
    """A setting that one platform was given on purpose."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(Common):
    """The complete request, frozen and valid. reasons: why a derived value is what it is; warnings: what to mind."""

    name: str
    layout: Layout
    gpus_per_node: int
    declared: tuple[Declared, ...]
    reasons: tuple[str, ...]
    warnings: tuple[Problem, ...]

    @property
    def accelerator(self) -> str | None:
        """Whose GPUs it runs on; None on a CPU, as every rehearsal is."""
        return None if self.rehearse else self.platform.vendor


def resolve(request: Request, reasons: tuple[str, ...]) -> Experiment:
    """Return the experiment that `request` means; what one side declares is not known here.

    Raises:
        ConfigError: no row for the requested layout, or everything that is wrong with layout, batch and schedule.
    """
    per_node = request.gpus_per_node
    gpus_per_node = default_gpus_per_node(request.hardware) if per_node is None else per_node
    request = replace(request, layout=_explicit(request.layout))
    row = _row(request, gpus_per_node)
    training = _filled(request.training, row, _TRAINING_DEFAULTS)
    if training.recompute_granularity == "none":
        training = replace(training, recompute_granularity=None, recompute_method=None, recompute_num_layers=None)
    choice = _filled(request.layout, row, _LAYOUT_DEFAULTS)
    if choice.sequence_parallel is None:
        choice = replace(choice, sequence_parallel=(choice.tensor_model_parallel_size or 1) > 1)
    optimizer = request.optimizer
    if optimizer.lr_decay_iters is None:
        optimizer = replace(optimizer, lr_decay_iters=training.train_iters)
    r = request
    case = Case(r.model, r.hardware, choice, training, optimizer, r.precision, r.nodes, gpus_per_node)
    data_parallel_size, warnings = _checked(case, row)
    layout = _layout(case, data_parallel_size, row)
    data = request.data
    if data.name == "prefix" and data.path:  # from the root: a run happens in a directory of its own
        data = replace(data, path=os.path.abspath(data.path))  # noqa: PTH100
    filled_in = {"training": training, "optimizer": optimizer, "data": data}
    return Experiment(
        **{field.name: getattr(request, field.name) for field in fields(Common)} | filled_in,
        name=request.name or f"{request.model.name}-{'rehearsal' if request.rehearse else request.platform.name}",
        layout=layout,
        gpus_per_node=gpus_per_node,
        declared=(),
        reasons=(*reasons, *_layout_reasons(case, layout, request), *_row_reasons(row, training)),
        warnings=warnings,
    )


def _checked(case: Case, row: LayoutRow | None) -> tuple[int, tuple[Problem, ...]]:
    """Apply check_layout; where a table's row does not fit the experiment, report the row's purpose with it."""
    try:
        return check_layout(case)
    except ConfigError as error:
        row_says = [Problem("layout", f"the row says: {row.note} [{row.source}]")] if row else []
        raise ConfigError(*error.problems, *row_says) from None


def _row_reasons(row: LayoutRow | None, training: Training) -> tuple[str, ...]:
    if row is None:
        return ()
    kept = (f for f in row.__slots__ if hasattr(training, f) and getattr(row, f) is not None)
    changed = [f for f in kept if getattr(row, f) != getattr(training, f)]
    note = row.note.partition(";")[0] + (f", but changed: {', '.join(changed)}" if changed else "")
    return (f"layout {row.table}: {note} [{row.source}]",)


_TRAINING_DEFAULTS: Mapping[str, Any] = {
    "micro_batch_size": 1,
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
}
_LAYOUT_DEFAULTS: Mapping[str, Any] = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
}


def default_gpus_per_node(hardware: Hardware) -> int:
    """Return how many devices software sees in a standard node."""
    return hardware.gpus_per_node * hardware.devices_per_package


def _explicit(choice: LayoutChoice) -> LayoutChoice:
    """Let sizes that the user typed beat a table: half a vendor's row is nobody's recipe."""
    sizes = (f for f in choice.__slots__ if f.endswith("_size"))
    if choice.table and any(getattr(choice, f) is not None for f in sizes):
        return replace(choice, name="explicit", table=None)
    return choice


def _row(request: Request, gpus_per_node: int) -> LayoutRow | None:
    """Return the table's row. Where there is none, what else is wrong is reported with it."""
    if request.layout.table is None:
        return None
    gpus = request.nodes * gpus_per_node
    try:
        return find_row(request.layout.table, request.model.name, request.hardware.name, gpus, request.precision.name)
    except ConfigError as error:
        r = request
        case = Case(r.model, r.hardware, r.layout, r.training, r.optimizer, r.precision, r.nodes, gpus_per_node)
        raise ConfigError(*error.problems, *setting_problems(case)) from None


def _filled(group: Any, row: LayoutRow | None, defaults: Mapping[str, Any]) -> Any:
    """Return `group` with its None fields from the row, then from the defaults. What the user set stays."""
    names = [f for f in group.__slots__ if getattr(group, f) is None]
    values = {f: getattr(row, f, None) for f in names}
    return replace(group, **{f: defaults.get(f) if v is None else v for f, v in values.items()})


def _layout(case: Case, data_parallel_size: int, row: LayoutRow | None) -> Layout:
    choice, training = case.layout, case.training
    sizes = {f: getattr(choice, f) for f in choice.__slots__ if f not in ("table",)}
    micro_batches = training.global_batch_size // ((training.micro_batch_size or 1) * data_parallel_size)
    return Layout(
        **sizes,
        data_parallel_size=data_parallel_size,
        num_micro_batches=micro_batches,
        world_size=case.world_size,
        source=row.source if row else None,
    )


def _layout_reasons(case: Case, layout: Layout, request: Request) -> tuple[str, ...]:
    training, choice = case.training, request.layout
    split = [("TP", layout.tensor_model_parallel_size), ("PP", layout.pipeline_model_parallel_size)]
    split += [("CP", layout.context_parallel_size)] if layout.context_parallel_size > 1 else []
    one, many = ("GPU", "GPUs") if case.hardware.vendor else ("process", "processes")
    word = one if layout.world_size == 1 else many
    equation = f"{layout.world_size} {word}" + "".join(f" / {name} {size}" for name, size in split)
    reasons = [
        f"DP = {layout.data_parallel_size}: {equation}",
        f"gradient accumulation = {layout.num_micro_batches}: global batch {training.global_batch_size} / "
        f"(micro-batch {training.micro_batch_size} × DP {layout.data_parallel_size})",
    ]
    if request.gpus_per_node is None:
        reasons.append(f"gpus_per_node = {case.gpus_per_node}: a standard node of {case.hardware.name}")
    if choice.sequence_parallel is None and layout.source is None and layout.tensor_model_parallel_size > 1:
        reasons.append("sequence parallel on: TP > 1, and nothing said otherwise")
    return tuple(reasons)


__all__ = ["Declared", "Experiment", "Layout", "LayoutChoice", "default_gpus_per_node", "resolve"]
