"""runs/NAME/ID: what identifies a run, its directory, and what happens to an earlier attempt."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import yaml

from conf.errors import InputError, Problem, writing
from conf.locks import beside, lock_of, take
from conf.resolve import Experiment
from conf.vocabulary import program_settings
from launchers.plan import Plan

ATTEMPTS = "attempts"
PLAN, RECORD = "plan.json", "run.json"  # the second alone: the directory was removed while its run went on
NEW = ".new"
RESERVE, RESERVE_BYTES = ".reserve", 64 * 1024
_ELSEWHERE = "runs_dir=DIR puts the runs elsewhere"
DATA = "data"  # the corpus stays where it is: the next attempt finds it complete, or makes it again


def identity(e: Experiment, commit: str | None) -> str:
    """Return a hex digest of all that decides a run: settings, place, image, code. Not its name, price or repeats."""
    settings, model = program_settings(e), {name: v for name, v in asdict(e.model).items() if name != "source"}
    place = {
        "platform": e.platform.name,
        "hardware": e.hardware.name,
        "nodes": e.nodes,
        "gpus_per_node": e.gpus_per_node,
    }
    stack = {"framework": e.framework.name, "release": e.framework.release, "options": e.framework.options}
    how = {"recipe": e.recipe and asdict(e.recipe), "environment": dict(e.environment)}
    extras = {name: value for name, value in how.items() if value}
    extras |= {name: getattr(e, name) for name in ("rehearse", "probe", "equal_init") if getattr(e, name)}
    known = {"settings": settings, "model": model, **place, **stack, "image": e.image, "commit": commit, **extras}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def run_id(e: Experiment, commit: str | None) -> str:
    """Return a readable, unique name: layout, seed, the first digits of the identity; of rehearsals, which lie side by
    side, the framework first."""
    layout = str(e.layout).lower().replace(" ", "-")
    stack = f"{e.framework.name}-{e.rehearse}-" if e.rehearse else ""
    return f"{stack}{layout}-seed{e.training.seed}-{identity(e, commit)[:10]}"


def directory(e: Experiment, commit: str | None) -> Path:
    """Return the directory of the run of `e`."""
    return Path(e.runs_dir) / e.name / run_id(e, commit)


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Hold the run at `path` for this process, also against one on another node that shares the file system.
    InputError: another process holds it, it is a link, or runs_dir cannot be written."""
    if path.is_symlink():
        where, hint = os.path.realpath(path), "remove it, or name=OTHER, or runs_dir=DIR"
        raise InputError(Problem(str(path), "is a link: a run is written to its own directory", where, hint=hint))
    with writing(path, _ELSEWHERE):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_of(path).open("w")
    with lock:
        with writing(path, _ELSEWHERE):  # a file system without locks
            taken = take(lock)
        if not taken:
            hint = "wait for it, or end it"
            raise InputError(Problem(str(path), "another process is running this very run", hint=hint))
        yield


def has_checkpoint(path: Path) -> bool:
    """Return whether the engine left a complete checkpoint (ranks/engine_checkpoint.py) in the run at `path`."""
    return (path / "checkpoints" / "latest").is_file()


def prepare(path: Path, e: Experiment, plan: Plan, go_on: bool = False) -> None:
    """Create the directory with the request, the plan and the rendered files; an earlier attempt moves to attempts/N,
    or stays where it is to be gone on with. InputError: runs_dir cannot be written, or its disk is full; the directory
    holds something else than this run."""
    new = path / NEW
    _ours(path)
    with writing(path, _ELSEWHERE):
        shutil.rmtree(new, ignore_errors=True)
        path.mkdir(parents=True, exist_ok=True, mode=0o750)  # stacks keep more logs in it than ours
        new.mkdir()
        try:
            (new / RESERVE).write_bytes(bytes(RESERVE_BYTES))
            experiment = yaml.safe_dump(asdict(e), sort_keys=False, allow_unicode=True)
            ours = {"experiment.yaml": experiment, PLAN: json.dumps(asdict(plan), indent=2, sort_keys=True) + "\n"}
            for name, text in {**ours, **plan.files}.items():
                (new / name).write_text(text, encoding="utf-8")
        except OSError:
            shutil.rmtree(new, ignore_errors=True)
            raise
        earlier = [] if go_on else [p for p in path.iterdir() if p.name not in (ATTEMPTS, DATA, NEW)]
        if earlier:
            numbers = [int(p.name) for p in path.glob(f"{ATTEMPTS}/*") if p.name.isdigit()]
            target = path / ATTEMPTS / str(1 + max(numbers, default=0))
            target.mkdir(parents=True)
            for p in earlier:
                os.replace(p, target / p.name)
            if beside(path).is_dir():
                os.replace(beside(path), target / "record")
        for written in new.iterdir():
            os.replace(written, path / written.name)
        new.rmdir()


def _ours(path: Path) -> None:
    """Refuse a folder of something else: NeMo and Bridge would go on with what lies in it."""
    names = sorted(p.name for p in path.iterdir()) if path.is_dir() else []
    if set(names) <= {ATTEMPTS, DATA, NEW} or {PLAN, RECORD} & {*names}:
        return
    hint = "move it away, or name=OTHER, or runs_dir=DIR"
    raise InputError(Problem(str(path), "has files of something else, not of a run of ours", names[0], hint=hint))


def release_reserve(path: Path) -> None:
    """Give back the room that was kept for the record of a run that fills the disk."""
    with suppress(OSError):  # a directory that cannot be written any more
        (path / RESERVE).unlink(missing_ok=True)
