"""Read conf/tables/mlperf.yaml: what the closed division of MLPerf fixes of a benchmark, so that two results are of the
same work though no log says so."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from conf.errors import blamed
from conf.vocabulary import read_yaml, vocabulary

TABLE = Path(__file__).parent / "tables" / "mlperf.yaml"
_FIXED_KINDS = ("model", "data", "optimizer")


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The value of the validation metric that ends a run."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None

    def __str__(self) -> str:
        return f"{self.metric} of at {'least' if self.at_most is None else 'most'} {self.at_most or self.at_least:g}"


class Benchmark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A benchmark, as a row of the table, whose head says what each key means."""

    name: str
    model: str
    conf_model: str | None
    task: Literal["pretraining", "fine-tuning", "post-training"]
    dataset: str
    seq_length: int | None
    target: Target
    settings: Mapping[str, Any]
    free: tuple[str, ...]
    bounds: str | None
    samples_to_target: Mapping[int, int] = {}
    rounds: tuple[str, ...]
    changed: str | None
    source: str

    def fixes(self, setting: str) -> bool:
        """Return whether all results of the benchmark have the same value of a canonical setting, known or not."""
        if setting in self.free:
            return False
        row = vocabulary().get(setting)
        return setting in self.settings or setting == "seq_length" or (row is not None and row.kind in _FIXED_KINDS)


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    """Return all benchmarks by the name that logs have (submission_benchmark). ConfigError: a row is not as the table's
    head says."""
    rows = {}
    for name, row in read_yaml(TABLE)["benchmarks"].items():
        with blamed(f"conf/tables/{TABLE.name}: {name}", "is not as the table's head says"):
            rows[name] = msgspec.convert({**row, "name": name}, Benchmark)
    return rows


def benchmark_of(facts: Mapping[str, Any]) -> Benchmark | None:
    """Return the benchmark of a result by the facts of its log (mlperf_submission_benchmark and _division); None of the
    open division, which fixes nothing, and of a benchmark that has no row."""
    if facts.get("mlperf_submission_division") != "closed":
        return None
    return benchmarks().get(str(facts.get("mlperf_submission_benchmark")).replace("-", "_"))


def gpus_of_a_node(hardware: str | None) -> int | None:
    """Return the GPUs of one node with this hardware of conf/hardware, where all systems described have that many."""
    gpus: int | None = read_yaml(TABLE)["boards"]["gpus"].get(hardware)
    return gpus
