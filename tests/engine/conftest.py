"""Real runs of the embedded engine under torchrun, each made once per session and shared by the tests.

torch stays out of the test process: it takes seconds to import, and the engine runs in processes of its own anyway."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine.layouts import TOGETHER

RANKS = Path(__file__).parents[2] / "launchers" / "ranks"


@dataclass(frozen=True)
class Run:
    """One finished run of the engine: what it was requested and everything it said."""

    settings: dict[str, Any]
    code: int
    out: str
    err: str

    def marks(self, kind: str) -> list[dict[str, Any]]:
        """Return the JSON objects of our own lines of this kind."""
        start = f"[tprimat] {kind} "
        return [json.loads(line[len(start) :]) for line in self.out.splitlines() if line.startswith(start)]

    @property
    def losses(self) -> list[float]:
        """Return the loss of every step."""
        return [step["loss"] for step in self.marks("step")]

    @property
    def iteration_lines(self) -> list[str]:
        """Megatron's iteration lines."""
        return [line for line in self.out.splitlines() if "] iteration " in line]

    @property
    def arguments(self) -> dict[str, str]:
        """Megatron's argument dump, as printed."""
        dump = self.out.partition(" arguments ")[2].partition(" end of arguments ")[0]
        rows = [line.split(maxsplit=2) for line in dump.splitlines()[1:-1]]
        return {name: value for name, _, value in rows}


def finished(settings: dict[str, Any], command: list[str], limit_s: float = 180, **variables: str) -> Run:
    """Return what a command with one OpenMP thread per rank did."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    ended = subprocess.run(command, env=env, check=False, capture_output=True, text=True, timeout=limit_s)
    return Run(settings, ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture(scope="session")
def settings_of() -> Callable[..., dict[str, Any]]:
    """Return a function from changed settings to all settings of a small model, world size included."""
    small = json.loads(Path(__file__).with_name("small.json").read_text())

    def settings(**changes: Any) -> dict[str, Any]:
        merged = {**small, **changes}
        names = ("tensor_model", "pipeline_model", "context", "data")
        world_size = math.prod(merged[f"{name}_parallel_size"] for name in names)
        micro_batches = merged["global_batch_size"] // (merged["micro_batch_size"] * merged["data_parallel_size"])
        shards = merged["data_parallel_size"] if merged["use_distributed_optimizer"] else 1
        merged |= {"data_parallel_shards": shards, "data_parallel_replicas": merged["data_parallel_size"] // shards}
        return {**merged, "world_size": world_size, "num_micro_batches": micro_batches, **changes}

    return settings


@pytest.fixture(scope="session")
def torchrun() -> Callable[[Path, int], list[str]]:
    """Return a function from a settings file and a number of processes to the engine's command line."""
    return lambda path, processes: [*torchrun_words(processes), str(RANKS / "engine.py"), "--settings", str(path)]


def torchrun_words(processes: int) -> list[str]:
    return [sys.executable, str(RANKS / "start_ranks.py"), "--standalone", "--nproc-per-node", str(processes)]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], str]:
    """Return a function from settings to the prefix of the synthetic corpus for them; equal ones share it."""
    directory = tmp_path_factory.mktemp("corpora")

    def made(settings: dict[str, Any]) -> str:
        batch, seed, vocab = settings["global_batch_size"], settings["seed"], settings["vocab_size"]
        steps = max(settings["train_iters"], 20)  # short runs see the first steps of longer ones
        tokens = (steps + 1) * batch * settings["seq_length"] + 1
        prefix = str(directory / f"{vocab}-{seed}-{tokens}")
        numbers = ("--vocab-size", str(vocab), "--seed", str(seed), "--tokens", str(tokens))
        if not Path(f"{prefix}.json").exists():
            subprocess.run([sys.executable, str(RANKS / "corpus.py"), "--prefix", prefix, *numbers], check=True)
        return prefix

    return made


@pytest.fixture(scope="session")
def run(
    tmp_path_factory: pytest.TempPathFactory,
    settings_of: Callable[..., dict[str, Any]],
    torchrun: Callable[[Path, int], list[str]],
    together: Callable[[dict[Path, dict[str, Any]]], dict[Path, Run]],
    corpus: Callable[[dict[str, Any]], str],
) -> Callable[..., Run]:
    """Return a function from changed settings to the finished run under torchrun; equal changes give the same run."""
    done: dict[str, Run] = {}

    def settled(changes: dict[str, Any]) -> dict[str, Any]:
        settings = settings_of(**changes)
        return {**settings, "data_path": corpus(settings)} if settings["data"] == "synthetic" else settings

    def alone(settings: dict[str, Any]) -> Run:
        path = tmp_path_factory.mktemp("engine") / "settings.json"
        path.write_text(_key(settings))
        return finished(settings, torchrun(path, settings["world_size"]))

    def get(**changes: Any) -> Run:
        settings = settled(changes)
        key, size = _key(settings), settings["world_size"]
        shared = next((runs for runs in TOGETHER if changes in runs), [])
        if key not in done and shared:
            group = [other for c in shared if (other := settled(c))["world_size"] == size]
            folder = tmp_path_factory.mktemp("together")
            runs = together({folder / f"{number}.json": other for number, other in enumerate(group)})
            done.update({_key(run.settings): run for run in runs.values()})
        if key not in done:
            done[key] = alone(settings)
        return done[key]

    return get


@pytest.fixture(scope="session")
def together() -> Callable[[dict[Path, dict[str, Any]]], dict[Path, Run]]:
    """A function from settings by the file that they go to, all of one world size, to the runs that ended, by file.

    The runs share their processes; after one that failed there are none."""

    def execute(group: dict[Path, dict[str, Any]]) -> dict[Path, Run]:
        for path, settings in group.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_key(settings))
        start = torchrun_words(next(iter(group.values()))["world_size"])
        ended = finished({}, [*start, str(Path(__file__).with_name("together.py")), *map(str, group)], limit_s=600)
        done = {}
        for part in ended.out.split("=== ")[1:]:
            named, _, said = part.partition("\n")
            if "[after training is done]" in said:
                done[Path(named)] = Run(group[Path(named)], 0, said, ended.err)
        return done

    return execute


def _key(settings: dict[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


@pytest.fixture(scope="session")
def in_rank() -> Callable[[str], str]:
    """A function that runs Python code where the engine's modules can be imported, and returns what it printed."""

    def execute(code: str) -> str:
        ended = finished({}, [sys.executable, "-c", code], PYTHONPATH=str(RANKS))
        assert ended.code == 0, ended.err
        return ended.out

    return execute


@pytest.fixture
def rank_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test import modules of launchers/ranks that need no torch."""
    monkeypatch.syspath_prepend(str(RANKS))
