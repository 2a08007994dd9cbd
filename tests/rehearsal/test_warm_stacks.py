"""A rank of a vendor's own stack leaves the same record, whether it shares its imports or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from launchers import warm
from parsers import Record
from tests.rehearsal.stacks import rehearsed

pytestmark = pytest.mark.nvidia
_OF_THE_RUN = ("started_at", "ended_at", "wall_time_s", "id", "summary", "last_lines")


_PRINTED_AT_IMPORT = "torch_printed"
"""A fact that Hugging Face's datasets print, which Primus' logger shows only if it is set up before the imports."""


def lasting(record: Record) -> dict[str, Any]:
    """Return what of a record neither a clock nor the number of a line of the log decides."""
    known: dict[str, Any] = msgspec.to_builtins(record)
    for name in ("probe_time_s", _PRINTED_AT_IMPORT):
        known["environment"].pop(name, None)
    for setting in (*known["dumped"].values(), *known["effective"].values()):
        setting.pop("line")
    return {name: value for name, value in known.items() if name not in _OF_THE_RUN}


@pytest.mark.parametrize("stack", ["nemo", "megatron_bridge", "primus"])
def test_a_record_is_the_same(stack: str, tmp_path: Path) -> None:
    sizes = ("layout=tp2_pp2", "nodes=2", "gpus_per_node=8")
    alone, _ = rehearsed(tmp_path / "alone", stack, "rehearse=layout", "model=llama_tiny", *sizes)
    assert alone.status == "completed", alone.cause
    with warm.kept():
        shared, _ = rehearsed(tmp_path / "shared", stack, "rehearse=layout", "model=llama_tiny", *sizes)
    assert lasting(shared) == lasting(alone)
    assert set(shared.environment["parameters_by_rank"]) == {"0", "14"}


@pytest.mark.parametrize("stack", ["nemo", "megatron_bridge", "primus"])
def test_a_toy_of_one_rank_trains_the_same(stack: str, tmp_path: Path) -> None:
    alone, _ = rehearsed(tmp_path / "alone", stack)
    assert alone.status == "completed", alone.cause
    with warm.kept():
        shared, _ = rehearsed(tmp_path / "shared", stack)
    assert numbers(shared) == numbers(alone)


def numbers(record: Record) -> list[Any]:
    """Return what was computed, and of what: without clocks, lines of the log and paths."""
    read = record.read_back
    assert read is not None and read.first_weights and read.first_gradients and read.last_weights and read.process
    tensors = (read.drawn, read.first_weights, read.first_gradients, read.last_weights, read.batches, read.optimizer)
    return [*((s.step, s.loss, s.grad_norm, s.lr_used) for s in record.steps), *tensors, read.process.variables]
