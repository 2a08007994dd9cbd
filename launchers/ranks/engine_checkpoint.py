"""Save and resume in Megatron-Core's distributed format (torch_dist): any layout may read what another one wrote.

A checkpoint counts only once the file `latest` names it, which is replaced in one step after everything else is on
disk: a kill at any time costs the steps since the last checkpoint, never that one. Then the oldest are removed.

A checkpoint may come from a stranger: nothing in it is called. Megatron and torch unpickle `.metadata`, so what it
names is looked at before; all else torch reads by weights alone."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from engine_optimizer import sharded_optimizer_state, take_optimizer_state
from engine_settings import EngineError, Settings
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.strategies import torch as torch_dist
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.utils import get_attr_wrapped_model
from rank_program import mark
from torch.distributed import checkpoint
from tprimat_settings import TABLE

_MARKER = "latest"
_LAYOUT = tuple(name for name, kind in TABLE["requested"].items() if kind == "layout")
_MAY_DIFFER = (
    *(*_LAYOUT, "train_iters", "save_interval", "keep_checkpoints", "attention_backend", "data_path"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers"),
    *("overlap_grad_reduce", "overlap_param_gather"),
)
"""Settings that may change between two parts of one run; any other makes it another run."""


_LITTLE_BYTES = 2**20
_METADATA = ".metadata"
_PLAIN = frozenset(
    ("torch.distributed.checkpoint.metadata", name)
    for name in ("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta")
) | {
    ("torch.distributed.checkpoint.metadata", "TensorProperties"),
    ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    *(("pathlib", name) for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")),
}
"""Classes of `.metadata` of a checkpoint, beside torch's types of numbers."""


class Built(NamedTuple):
    """The objects that one rank trains with."""

    settings: Settings
    chunks: list[Any]
    """Megatron's DistributedDataParallel around GPTModel; several with a virtual pipeline."""
    optimizer: Any
    scheduler: Any
    data: Any  # engine_train.TokenData


def save(built: Built, folder: Path, iteration: int) -> None:
    """Write a checkpoint of the state after `iteration` steps into `folder`; every rank must call it.
    Raises OSError: the disk is full."""
    started, path = time.monotonic(), _path(folder, iteration)
    if dist.get_rank() == 0:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    dist.barrier()
    if built.settings.overlap_param_gather:  # else the last step's parameters would be gathered by the next forward
        for chunk in built.chunks:
            chunk.start_param_sync(force_sync=True)
    state = {**_state(built, loading=False), "settings": _settings(built), **_generators(alike=True)}
    try:
        dist_checkpointing.save(state, str(path), sharded_strategy=_InProcess("torch_dist", 1))
    except RuntimeError:
        if shutil.disk_usage(folder).free < _LITTLE_BYTES:  # of which torch's writer says "iostream error"
            raise OSError(
                errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)
            ) from None  # the first of a chain is what a log is read for
        raise
    dist.barrier()
    if dist.get_rank() == 0:
        sizes = {file.name: file.stat().st_size for file in path.iterdir()}
        with (folder / "latest.part").open("w", encoding="utf-8") as file:
            file.write(json.dumps({"iteration": iteration, "files": sizes}))
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, folder / _MARKER)
        seconds = time.monotonic() - started
        mark("saved", {"iteration": iteration, "bytes": sum(sizes.values()), "seconds": seconds})
        for old in sorted(folder.glob("iter_*"))[: -built.settings.keep_checkpoints]:
            shutil.rmtree(old, ignore_errors=True)


def resume(built: Built, folder: Path) -> int:
    """Load the newest complete checkpoint of `folder` into `built`; return its number of steps, 0 without one. Every
    rank must call it. What a kill left half-written is removed.
    Raises EngineError: it is of another run, or damaged."""
    iteration, sizes = _latest(folder)
    path = _path(folder, iteration)
    if dist.get_rank() == 0:
        for later in folder.glob("iter_*"):
            if later > path:
                shutil.rmtree(later)
    if not iteration:
        return 0
    _check_files(path, sizes)
    _check_metadata(path / _METADATA)
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"  # torch's planner asks for all of pickle (default_planner.py:387)
    saved = _saved_settings(path)
    _check_settings(path, saved, _settings(built))
    alike = all(saved[name] == getattr(built.settings, name) for name in _LAYOUT)
    state = dist_checkpointing.load({**_state(built, loading=True), **_generators(alike)}, str(path))
    for index, gpt in enumerate(_models(built)):
        gpt.load_state_dict(state[f"model{index}"])
    take_optimizer_state(built.optimizer, state["optimizer"])
    built.scheduler.load_state_dict(state["scheduler"])
    if alike:
        generators = state["generators"]
        torch.set_rng_state(generators["cpu"])
        if torch.cuda.is_available():
            torch.cuda.set_rng_state(generators["cuda"])
        get_cuda_rng_tracker().set_states(generators["tracker"])
    if dist.get_rank() == 0:
        mark("resumed", {"iteration": iteration, "path": str(path), "same_layout": alike})
    return iteration


class _InProcess(torch_dist.TorchDistSaveShardedStrategy):
    """Write Megatron-Core's format in the rank itself. Megatron's own writer forks a process for each file, and a
    manager process for their answers, which takes seconds and would outlive a rank that is killed
    (dist_checkpointing/strategies/filesystem_async.py:266)."""

    def save(self, sharded_state_dict: Any, checkpoint_dir: Any) -> None:
        named, _, _ = torch_dist._replace_state_dict_keys_with_sharded_keys(sharded_state_dict, True)
        checkpoint.save(
            torch_dist.mcore_to_pyt_state_dict(named, False),
            storage_writer=checkpoint.FileSystemWriter(checkpoint_dir),
            planner=torch_dist.MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
        )


def _state(built: Built, loading: bool) -> dict[str, Any]:
    models = {f"model{index}": gpt.sharded_state_dict() for index, gpt in enumerate(_models(built))}
    optimizer = sharded_optimizer_state(built.optimizer, models, loading)
    return {**models, "optimizer": optimizer, "scheduler": built.scheduler.state_dict()}


def _models(built: Built) -> list[Any]:
    """Return the bare GPTModels: DDP's names would begin with `module.`."""
    return [get_attr_wrapped_model(chunk, "decoder", return_model_obj=True) for chunk in built.chunks]


def _generators(alike: bool) -> dict[str, Any]:
    """Return this rank's random states. Another layout has other ranks, which go on with their own."""
    if not alike:
        return {}
    states = {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state()}
    states["tracker"] = get_cuda_rng_tracker().get_states()
    return {"generators": ShardedObject("generators", states, (dist.get_world_size(),), (dist.get_rank(),))}


def _path(folder: Path, iteration: int) -> Path:
    return folder / f"iter_{iteration:07d}"


def _latest(folder: Path) -> tuple[int, dict[str, int]]:
    """Return the newest complete checkpoint, as the marker states it: its iteration, 0 without one, and the size in
    bytes of each of its files."""
    marker = folder / _MARKER
    try:
        stated = json.loads(marker.read_text(encoding="utf-8"))
        iteration, sizes = int(stated["iteration"]), {str(name): int(size) for name, size in stated["files"].items()}
        if iteration < 1 or not sizes or any("/" in name for name in sizes):
            raise ValueError("it names no checkpoint of ours")
        return iteration, sizes
    except FileNotFoundError:
        return 0, {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise EngineError(f"{marker}: cannot be read ({error}); try: remove {folder} to begin anew") from error


def _check_files(path: Path, sizes: dict[str, int]) -> None:
    for file, size in ((path / name, size) for name, size in sizes.items()):
        here = f"has {file.stat().st_size} bytes" if file.is_file() else "is missing"
        if here != f"has {size} bytes":
            raise EngineError(f"{file} {here}, and had {size} when it was saved; try: remove {path.parent}")


class _Plain(pickle.Unpickler):
    """Reads what a checkpoint's `.metadata` may be made of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _check_metadata(path: Path) -> None:
    """Raise EngineError where `.metadata` names what no checkpoint of ours is made of: it would be called."""
    try:
        with path.open("rb") as stream:
            _Plain(stream).load()
    except Exception as error:  # damaged bytes raise anything
        what = f"is no metadata of a checkpoint, and may be code ({error})"
        raise EngineError(f"{path} {what}; try: remove {path.parent.parent} to begin anew") from error


def _saved_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a checkpoint. Raises EngineError: it has none, or names code."""
    try:
        saved = dist_checkpointing.load_common_state_dict(str(path))["settings"]
        experts = int(saved["expert_model_parallel_size"])
        return {**dict.fromkeys(TABLE["requested"]), **saved, "expert_model_parallel_size": experts}
    except Exception as error:  # damaged bytes raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        hint = f"try: remove {path.parent} to begin anew"
        raise EngineError(f"{path} has no settings of ours ({reason}); {hint}") from error


def _settings(built: Built) -> dict[str, Any]:
    return {**vars(built.settings), "data_first_batch": built.data.first_batch()}


def _check_settings(path: Path, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    names = [name for name in wanted if name not in _MAY_DIFFER and saved.get(name) != wanted[name]]
    if (saved["expert_model_parallel_size"] > 1) != (wanted["expert_model_parallel_size"] > 1):
        names.append("expert_model_parallel_size")  # above 1, and only then, experts have an optimizer of their own
    if names:
        lines = [f"  {name}: found: {saved.get(name)!r}; requested: {wanted[name]!r}" for name in names]
        raise EngineError("\n".join([f"{path} is of another run; try: another directory", *lines]))
