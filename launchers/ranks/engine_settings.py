"""Read the engine's settings file: one flat JSON object in canonical (Megatron) names.

What a value may be and what the engine cannot do is checked before the file is written (conf/, launchers/frameworks/
megatron.py). Nothing has a default: settings that the file lacks are refused by name. Does not import torch, so that
a refusal takes no time."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rank_program import Problem, Refused, missing, read_mapping

sys.path.append(str(Path(__file__).with_name("rehearsal")))  # the engine's other modules import from there, too
from tprimat_settings import TABLE


class EngineError(Exception):
    """This machine, its communication library or a checkpoint cannot do what is requested; the message says why."""


class Settings(SimpleNamespace):
    """One run of the engine. Sizes are global (not per rank); rates are per step; `None` means "not used"."""

    def options(self, builder: Callable[..., Any], *objects: str) -> dict[str, Any]:
        """Return the arguments of `builder` that are settings: those that are read back off one of `objects` under an
        argument's name (the column `built` of conf/vocabulary.yaml). One that is not used keeps its default."""
        accepted, made = inspect.signature(builder).parameters, {}
        for name in TABLE["requested"]:
            if name in TABLE["only_if"] and not getattr(self, TABLE["only_if"][name], True):
                continue
            for place in TABLE["built"].get(name, ()):
                owner, _, argument = place.partition(".")
                if owner in objects and argument in accepted and getattr(self, name) is not None:
                    made[argument] = getattr(self, name)
        return made


def read_settings(path: str) -> Settings:
    """Return the settings in the JSON file at `path`.
    Raises Refused: the file cannot be read, lacks settings, was written for another number of processes, or its data do
    not fit."""
    settings = Settings(**read_mapping(path, json.loads))
    for check in (_missing, _world_problems, _data_problems):
        if problems := [*check(settings)]:
            raise Refused(*(problem._replace(where=f"{path}: {problem.where}") for problem in problems))
    return settings


def _missing(s: Settings) -> Iterator[Problem]:
    """Yield each setting that the file lacks."""
    return missing({*TABLE["requested"], "device", "keep_checkpoints"}, vars(s))


def _world_problems(s: Settings) -> Iterator[Problem]:
    started = os.environ.get("WORLD_SIZE")
    if started != str(s.world_size):
        found = f"torchrun started {started}" if started else "no WORLD_SIZE is in the environment, so no torchrun"
        hint = "start with torchrun, or another --nproc-per-node, --nnodes or layout"
        yield Problem("world_size", "is not the number of processes", f"{s.world_size}, and {found}", hint=hint)


def samples(s: Settings) -> tuple[int, int]:
    """Return the samples of training and of validation that a run asks for, as `get_train_valid_test_num_samples` in
    megatron/training/training.py: those of one validation more than are made while it trains."""
    validations = s.train_iters // (s.eval_interval or s.train_iters) + 1 if s.eval_iters else 0
    return s.train_iters * s.global_batch_size, validations * s.eval_iters * s.global_batch_size


def _data_problems(s: Settings) -> Iterator[Problem]:
    """Check that the corpus fits the run. corpus.py has checked its ids once, before the ranks start."""
    if s.data == "mock":
        return
    from corpus_order import Reading, check_reading

    train, valid = samples(s)
    try:
        reading = Reading(s.seq_length, s.global_batch_size, train, s.seed, s.split, valid)
        check_reading(s.data_path or "", reading)
    except Refused as error:
        yield from (problem._replace(where=f"data_path: {problem.where}") for problem in error.problems)
