"""Play rank R of a job of W in one process: torch's fake process group, whose collectives return at once.

The model, the layout and every rule that the stack checks before the first forward pass are real, at true size.
The process ends there, with exit code 0 and a mark: what would follow has no meaning (a receive leaves a tensor as it
was). Only a rank whose place in its tensor parallel group is 0 gets that far: the others learn from a
broadcast whether they train.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import types
from typing import Any

import tprimat_standin
from tprimat_after_import import after

RANK, WORLD = "TPRIMAT_PLAY_RANK", "TPRIMAT_PLAY_WORLD"
_SCHEDULES = "megatron.core.pipeline_parallel.schedules"
_FILLERS = ("normal_", "uniform_", "trunc_normal_", "xavier_normal_", "xavier_uniform_", "kaiming_uniform_")
"""Functions of torch.nn.init: they would take minutes, and nothing reads the weights."""


def install() -> None:
    """Make this process rank RANK of WORLD; before torch is imported."""
    tprimat_standin.arm()  # whose process groups these stand on
    rank, world = _requested()
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE") or min(8, world))
    node, nodes = rank // local_world, -(-world // local_world)
    sizes = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": local_world, "GPUS_PER_NODE": local_world, "NNODES": nodes}
    place = {"RANK": rank, "LOCAL_RANK": rank % local_world, "GROUP_RANK": node, "NODE_RANK": node}
    # as torchrun; Primus and Lightning read more than that
    os.environ.update({name: str(number) for name, number in (sizes | place).items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
    after("torch")(_play)
    after(_SCHEDULES)(_end_at_the_first_forward)


def _requested() -> tuple[int, int]:
    stated = [str(os.environ.get(name)) for name in (RANK, WORLD)]
    try:
        rank, world = map(int, stated)
    except ValueError:
        rank, world = -1, 0
    if not 0 <= rank < world:
        _refuse(f"{RANK} and {WORLD} must be integers, rank below world: {', '.join(stated)}")
    return rank, world


def _play(torch: types.ModuleType) -> None:
    if not tprimat_standin.is_active():
        _refuse("one process plays a rank on a CPU only, and an accelerator is visible here: hide it")
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend "fake"
    except ImportError as error:
        _refuse(f"torch {torch.__version__} has no fake process group where it was ({error})")
    rank, world = _requested()
    begin, new_group = torch.distributed.init_process_group, torch.distributed.new_group

    def init_process_group(*_: Any, **__: Any) -> Any:
        return begin("fake", store=FakeStore(), rank=rank, world_size=world)

    def fake_group(*arguments: Any, **options: Any) -> Any:
        return new_group(*arguments, **{**options, "backend": "fake"})

    def as_it_is(objects: list[Any], *_: Any, **__: Any) -> None:
        """Broadcast nothing: the objects stay what this process would have sent."""

    torch.distributed.init_process_group, torch.distributed.new_group = init_process_group, fake_group
    torch.distributed.broadcast_object_list = as_it_is
    for name in _FILLERS:
        setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)


def _end_at_the_first_forward(schedules: Any) -> None:
    """End where the schedules call the model: they have checked their own rules by then."""
    if not hasattr(schedules, "forward_step"):
        _refuse(f"{_SCHEDULES} has no forward_step in this release: the training would not end before it")
    schedules.forward_step = _end


def _end(*_: Any, **__: Any) -> None:
    rank, world = _requested()
    sys.stdout.write(f"[tprimat] rehearsed {json.dumps({'rank': rank, 'world': world})}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    atexit._run_exitfuncs()
    os._exit(0)  # no except and no finally of the stack's in between


def _refuse(text: str) -> None:
    sys.stderr.write(f"[tprimat] rehearsal refused: {text}\n")
    sys.stderr.flush()
    os._exit(2)
