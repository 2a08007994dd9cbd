"""Each row of the stand-in's tables for torch, used as the stacks use it: with the row, then with what torch has.

Prints a line a row: NAME works|fails works|fails. Started with the rehearsal's folder on PYTHONPATH."""

from __future__ import annotations

from collections.abc import Callable

import torch  # the originals, before the stand-in
import torch.distributed.device_mesh as meshes
import tprimat_standin as standin
from torch.utils.checkpoint import checkpoint

ROWS = (*standin.CUDA, *standin.TORCH)
OWNERS = {row: standin.owner_of(row) for row in ROWS}
ORIGINALS = {row: getattr(OWNERS[row], row.name, None) for row in ROWS}


def group_of_nccl() -> bool:
    options = torch.distributed.ProcessGroupNCCL.Options()
    group = torch.distributed.new_group([0], backend="nccl", pg_options=options)
    return bool(torch.distributed.get_backend(group) == "gloo")


def begun() -> bool:
    torch.distributed.destroy_process_group()
    one = {"store": torch.distributed.HashStore(), "rank": 0, "world_size": 1}
    try:
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda:0"), **one)
        return bool(torch.distributed.get_backend() == "gloo")
    finally:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo", **one)


def recomputed() -> bool:
    def layer(x: torch.Tensor) -> torch.Tensor:
        return x * torch.ones(2, device="cuda")

    checkpoint(layer, torch.ones(2, requires_grad=True), use_reentrant=True).sum().backward()
    return True


cuda = torch.cuda
state = torch.get_rng_state()
USES: dict[str, Callable[[], object]] = {
    "torch.cuda.is_available": lambda: cuda.is_available(),
    "torch.cuda.is_initialized": lambda: cuda.is_initialized(),
    "torch.cuda.device_count": lambda: cuda.device_count() == 1,
    "torch.cuda.current_device": lambda: cuda.current_device() == 0,
    "torch.cuda.set_device": lambda: cuda.set_device(0) is None,
    "torch.cuda.get_device_properties": lambda: cuda.get_device_name() and cuda.get_device_capability() == (9, 0),
    "torch.cuda.Stream": lambda: cuda.Stream(device=0).query(),
    "torch.cuda.Event": lambda: cuda.Event(enable_timing=True).record() is None,
    "torch.cuda.stream": lambda: cuda.stream(cuda.Stream()).__enter__() is None,
    "torch.cuda.current_stream": lambda: cuda.current_stream().synchronize() is None,
    "torch.cuda.default_stream": lambda: cuda.default_stream() == cuda.Stream(),
    "torch.cuda.set_stream": lambda: cuda.set_stream(cuda.Stream()) is None,
    "torch.cuda.synchronize": lambda: cuda.synchronize() is None,
    "torch.cuda.manual_seed": lambda: cuda.manual_seed(7) and torch.initial_seed() == 7,
    "torch.cuda.get_rng_state": lambda: torch.equal(cuda.get_rng_state(), torch.get_rng_state()),
    "torch.cuda.set_rng_state": lambda: cuda.set_rng_state(state) is None and torch.equal(torch.get_rng_state(), state),
    "torch.cuda.get_rng_state_all": lambda: len(cuda.get_rng_state_all()) == 1,
    "torch.cuda.default_generators": lambda: cuda.default_generators[0] is torch.default_generator,
    "torch.cuda.random.get_rng_state": lambda: torch.equal(cuda.random.get_rng_state(), torch.get_rng_state()),
    "torch.cuda.random.set_rng_state": lambda: cuda.random.set_rng_state(state) is None,
    "torch.cuda.utilization": lambda: cuda.utilization() == 0,
    "torch.cuda.mem_get_info": lambda: cuda.mem_get_info()[0],
    "torch.cuda.memory_stats": lambda: cuda.memory_stats()["any"] == 0,
    "torch.cuda.memory._record_memory_history": lambda: cuda.memory._record_memory_history() is None,
    "torch.cuda.nvtx.range_push": lambda: cuda.nvtx.range_push("a") is None,
    "torch.cuda.nvtx.range_pop": lambda: cuda.nvtx.range_pop() is None,
    "torch.distributed.ProcessGroupNCCL": lambda: torch.distributed.ProcessGroupNCCL.Options().config,
    "torch.distributed.init_process_group": begun,
    "torch.distributed.new_group": group_of_nccl,
    "torch.distributed.device_mesh.DeviceMesh.__init__": lambda: meshes.DeviceMesh("cuda", [0]).device_type == "cpu",
    "torch.autograd._engine_run_backward": recomputed,
}


def works(use: Callable[[], object]) -> str:
    try:
        return "works" if use() else "fails"
    except Exception:  # noqa: BLE001 - whatever torch says where there is no GPU
        return "fails"


standin.install()
torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
for row, use in zip(ROWS, map(USES.__getitem__, (row.full_name for row in ROWS)), strict=True):
    replaced = vars(OWNERS[row]).get(row.name)
    with_it = works(use)
    setattr(OWNERS[row], row.name, ORIGINALS[row])
    print(row.full_name, with_it, works(use))
    setattr(OWNERS[row], row.name, replaced)
