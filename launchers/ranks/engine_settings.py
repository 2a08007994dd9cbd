"""Read the engine's settings file: one flat JSON object in canonical (Megatron) names.

What a value may be and what the engine cannot do is checked before the file is written (conf/, launchers/frameworks/
megatron.py). Nothing has a default: a setting that the file lacks ends the run with its name. Does not import torch, so
that a refusal takes no time."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rank_program import Problem, Refused


class EngineError(Exception):
    """This machine, its communication library or a checkpoint cannot do what is requested; the message says why."""


class Settings(SimpleNamespace):
    """One run of the engine. Sizes are global (not per rank); rates are per step; `None` means "not used"."""

    def __getattr__(self, name: str) -> Any:
        """Refuse a setting that the file lacks."""
        near = difflib.get_close_matches(name, vars(self), n=1)
        hint = f"rename {near[0]}" if near else "add it: every setting that the engine reads is required"
        raise Refused(Problem(name, "is missing in the settings", hint=hint))


def read_settings(path: str) -> Settings:
    """Return the settings in the JSON file at `path`.
    Raises Refused: the file cannot be read, was written for another number of processes, or its data do not fit."""
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused.of(path, "cannot be read", str(error), "one JSON object") from error
    if not isinstance(values, dict):
        raise Refused.of(path, "is not a settings file", f"a {type(values).__name__}", "one JSON object")
    settings = Settings(**values)
    if problems := [*_world_problems(settings)] or _data_problems(settings):
        raise Refused(*(problem._replace(where=f"{path}: {problem.where}") for problem in problems))
    return settings


def _data_problems(s: Settings) -> list[Problem]:
    """Check that the corpus fits the run. corpus.py has checked its ids once, before the ranks start."""
    if s.data == "mock":
        return []
    from corpus_order import Reading, check_length, open_corpus

    try:
        samples = s.train_iters * s.global_batch_size
        check_length(open_corpus(s.data_path or ""), Reading(s.seq_length, s.global_batch_size, samples, s.seed))
    except Refused as error:
        return [problem._replace(where=f"data_path: {problem.where}") for problem in error.problems]
    return []


def _world_problems(s: Settings) -> Iterator[Problem]:
    started = os.environ.get("WORLD_SIZE")
    if started is None:
        what = "no WORLD_SIZE in the environment"
        yield Problem("world_size", what, "", "a process of torchrun", "start with torchrun")
    elif started != str(s.world_size):
        here, hint = (
            f"{s.world_size}, and torchrun started {started}",
            "change --nproc-per-node, --nnodes or the layout",
        )
        yield Problem("world_size", "is not the number of processes", here, "the same number", hint)
