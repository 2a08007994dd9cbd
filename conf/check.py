"""All rules of an experiment, run at once: numbers that make sense first, then what must divide and fit together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from conf.errors import ConfigError, Problem
from conf.freeze import field_types, required
from conf.layout_check import LAYOUT_RULES, Case, data_parallel_size
from conf.setting_check import SETTING_RULES, WARNINGS

MAY_BE_ZERO = {"moe_first_dense_layers"}


def check_layout(case: Case) -> tuple[int, tuple[Problem, ...]]:
    """Apply every rule, and return data_parallel_size and the warnings.

    Raises:
        ConfigError: with every violated rule, its equation, its numbers and the nearest valid values.
    """
    problems = list(positive(case))
    if not problems:
        rules = (*LAYOUT_RULES, *SETTING_RULES)
        problems = [problem for rule in rules for problem in rule(case)]
    if problems:
        raise ConfigError(*problems)
    return data_parallel_size(case) or 1, tuple(p for rule in WARNINGS for p in rule(case))


def setting_problems(case: Case) -> list[Problem]:
    """Return what is wrong whatever the layout."""
    return list(positive(case)) or [problem for rule in SETTING_RULES for problem in rule(case)]


def positive(case: Case) -> Iterator[Problem]:
    """Yield counts and sizes below 1, which no rule could divide by."""
    sizes = (name for name in case.layout.__slots__ if name.endswith("_parallel_size"))
    counts = ("micro_batch_size", "global_batch_size", "seq_length", "train_iters", "save_interval")
    values = {f"layout.{name}": getattr(case.layout, name) for name in sizes}
    values |= {f"training.{name}": getattr(case.training, name) for name in counts}
    values |= {"nodes": case.nodes, "gpus_per_node": case.gpus_per_node}
    values |= {"optimizer.lr_decay_iters": case.optimizer.lr_decay_iters, **_counts(case.model, "model")}
    for key, value in values.items():
        if value is not None and value < 1:
            yield Problem(key, "must be at least 1", str(value))


def _counts(part: Any, where: str) -> dict[str, int | None]:
    """Every integer of a model and of its parts, by config key."""
    found: dict[str, int | None] = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if is_dataclass(value):
            found |= _counts(value, f"{where}.{field.name}")
        elif required(field_types(type(part))[field.name]) is int and field.name not in MAY_BE_ZERO:
            found[f"{where}.{field.name}"] = value
    return found
