"""Jobs for tests: a model of conf/model on one kind of GPU, and what differs."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from conf.facts import hardware
from conf.load import model_named
from conf.schema import Model
from estimate.jobs import Jobs, columns_of_hardware, columns_of_shape
from metrics import Quantity
from metrics.shape import shape_of_model

_SIZES = ("tensor_model", "pipeline_model", "virtual_pipeline_model", "context", "expert_model", "data")


def value_of(quantity: Quantity) -> float:
    """Return a value that must be known."""
    assert quantity.value is not None
    return quantity.value


def interval_of(quantity: Quantity) -> tuple[float, float]:
    """Return an interval that must be known."""
    assert quantity.interval is not None
    return quantity.interval


def jobs(model: str | Model, gpu: str = "h100", /, **different: Any) -> Jobs:
    """Return jobs, one for each member of an array among `different`."""
    device, found = hardware(gpu), model_named(model) if isinstance(model, str) else model
    assert device is not None and found is not None
    columns: dict[str, Any] = {field.name: 0 for field in fields(Jobs)}
    columns |= columns_of_shape(shape_of_model(found)) | {f"{name}_parallel_size": 1 for name in _SIZES}
    columns |= {"seq_length": 4096, "micro_batch_size": 1, "global_batch_size": 1024, "trained": "pretrain"}
    columns |= {"precision": "bf16", "gradient_bytes": 4, "stack": "", "distributed_optimizer": 1}
    columns |= {"optimizer_bytes": 12, "overlapped_data": 1}
    columns |= columns_of_hardware(device, "bf16") | {"nic_bandwidth": 50e9}
    columns |= different
    if not np.any(columns["expert_tensor_parallel_size"]):
        columns["expert_tensor_parallel_size"] = columns["tensor_model_parallel_size"]
    return Jobs(**{name: np.asarray(value) for name, value in columns.items()})
