"""Add to a run what MLCommons' rules fix of its benchmark and its log leaves out: tokens of a sample, the shape of the
model, and the GPUs of its nodes where every system of that kind has as many."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from msgspec.structs import replace

from conf.load import model_named
from conf.mlperf import Benchmark, benchmark_of, gpus_of_a_node
from conf.vocabulary import requested
from metrics.peak import device_of
from metrics.quantity import Quantity, Source, weakest
from parsers.record import Record

_NOT_BY_GPU = ("tokens_per_s", "flops_per_token")


class Ruled(NamedTuple):
    """A record with what the rules add, among what was given of it. by_rule: names of settings that were added; gpus:
    why their number is assumed, empty where it was not."""

    record: Record
    by_rule: frozenset[str]
    benchmark: Benchmark | None
    gpus: str

    def mark(self, name: str, figure: Quantity) -> Quantity:
        """Return a figure that the rules made known, with its source and by which rule."""
        rule = f"by MLPerf's rules for {self.benchmark.name}" if self.benchmark else ""
        if self.benchmark and "seq_length" in self.by_rule:
            rule = f"{self.benchmark.seq_length:,} tokens a sample {rule}"
        source: Source = weakest("computed", figure.source)
        if self.gpus and name not in _NOT_BY_GPU:
            source, rule = "assumed", f"{rule}; {self.gpus}"
        return replace(figure, source=source, note="; ".join(filter(None, (rule, figure.note))))


def by_rules(record: Record) -> Ruled:
    """Return the record with all that its benchmark fixes and its log leaves out; unchanged where that is nothing. The
    longest sample that a log states is no length where samples differ in length."""
    benchmark = benchmark_of(record.environment)
    if benchmark is None:
        return Ruled(record, frozenset(), None, "")
    if benchmark.seq_length is None:
        others = {name: reading for name, reading in record.effective.items() if name != "seq_length"}
        record = replace(record, effective=others)
    known = {**record.given, **record.effective}
    added = {name: value for name, value in _settings(benchmark).items() if name not in known}
    nodes, device = record.environment.get("num_nodes"), device_of(record)
    each, why = gpus_of_a_node(device.name if device else None), ""
    if "world_size" not in known and type(nodes) is int and each and device:
        added["world_size"] = nodes * each * device.devices_per_package
        why = f"GPUs assumed: {nodes} node{'s' if nodes > 1 else ''} of {each} × {device.name}"
    return Ruled(replace(record, given={**added, **record.given}), frozenset(added), benchmark, why)


def gpus_of(record: Record) -> int | None:
    """Return the devices that a run used: as its log or its user states, else as `by_rules` assumes."""
    value = by_rules(record).record.setting("world_size")
    return value if type(value) is int and value > 0 else None


def _settings(benchmark: Benchmark) -> Mapping[str, Any]:
    """Return the settings that decide a speed: of fine-tuning without the shape, since frozen weights take fewer
    operations than the formula counts."""
    length = {"seq_length": benchmark.seq_length} if benchmark.seq_length else {}
    if benchmark.conf_model is None or benchmark.task != "pretraining":
        return length
    return {**_shape(benchmark.conf_model), **benchmark.settings, **length}


@cache
def _shape(model: str) -> Mapping[str, Any]:
    return MappingProxyType(requested(SimpleNamespace(model=model_named(model)), partial=True))
