"""runs/NAME/ID: what identifies a run, its directory, and what happens to an earlier attempt."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from conf.errors import InputError, Problem
from conf.resolve import Experiment
from conf.vocabulary import requested
from launchers.plan import Plan

ATTEMPTS = "attempts"


def identity(e: Experiment, commit: str | None) -> str:
    """Hex digest of all that decides a run: settings, place, image, code. Not its name, price or repeats."""
    names = {"platform": e.platform.name, "hardware": e.hardware.name}
    place = {**names, "nodes": e.nodes, "gpus_per_node": e.gpus_per_node}
    code = {"framework": e.framework.name, "image": e.image, "commit": commit}
    text = json.dumps({"settings": requested(e), **place, **code}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def run_id(e: Experiment, commit: str | None) -> str:
    """Readable and unique: layout, seed, the first digits of the identity."""
    layout = str(e.layout).lower().replace(" ", "-")
    return f"{layout}-seed{e.training.seed}-{identity(e, commit)[:10]}"


def directory(e: Experiment, commit: str | None) -> Path:
    """Where the run of `e` lives."""
    return Path(e.runs_dir) / e.name / run_id(e, commit)


def prepare(path: Path, e: Experiment, plan: Plan) -> None:
    """Create the directory with the request, the plan and the rendered files; an earlier attempt moves to attempts/N.

    Raises:
        InputError: runs_dir cannot be written, or its disk is full.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        _set_aside(path)
        for name, text in _files(e, plan).items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text, encoding="utf-8")
    except OSError as error:
        hint = "runs_dir=DIR puts the runs elsewhere"
        raise InputError(Problem("runs_dir", f"cannot write {path}: {error.strerror}", hint=hint)) from error


def _files(e: Experiment, plan: Plan) -> dict[str, str]:
    return {
        "experiment.yaml": yaml.safe_dump(plain(asdict(e)), sort_keys=False, allow_unicode=True),
        "plan.json": json.dumps(asdict(plan), indent=2, sort_keys=True) + "\n",
        **plan.files,
    }


def _set_aside(path: Path) -> None:
    earlier = [p for p in path.iterdir() if p.name != ATTEMPTS]
    if not earlier:
        return
    number = 1 + max((int(p.name) for p in path.glob(f"{ATTEMPTS}/*") if p.name.isdigit()), default=0)
    target = path / ATTEMPTS / str(number)
    target.mkdir(parents=True)
    for p in earlier:
        os.replace(p, target / p.name)


def plain(value: Any) -> Any:
    """Tuples as lists, so that YAML stays plain."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value
