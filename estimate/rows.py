"""Tables of runs into Jobs: a CSV with the columns of published runs. A row says what was derived or defaulted, or why
it is no job; it is never dropped, and nothing in a cell raises or is executed."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, islice
from math import ceil, isnan, nan
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from conf.check import LAYOUT_RULES
from conf.errors import InputError, Problem, listed
from conf.recipes import Recipe
from conf.schema import Hardware
from estimate.cells import (
    Again,
    count,
    hardware_named,
    is_date,
    named,
    names_network,
    network_bandwidth,
    plain,
    quoted,
    recompute,
    sharding,
    spellings,
    stack,
    tokens,
    word,
)
from estimate.jobs import (
    PEAK_OF,
    RECOMPUTED,
    Column,
    Jobs,
    adam_bytes,
    columns_of_hardware,
    columns_of_shape,
    on_smaller_nodes,
)
from estimate.row_request import RowTraining, row_request, sizes_of
from estimate.row_shape import ours_named, row_shape
from estimate.switches import (
    SWITCHED_OFF,
    UNKNOWN,
    columns_of_recipe,
    followed,
    overlaps_tensor,
    packed_tokens,
    recomputed_by,
    released,
)
from metrics.shape import Shape

NEEDED = ("gpu", "gpus", "model", "seq", "gbs")
"""Columns without which a table is none of runs."""
DIRECTIONS = ("tp", "pp", "vp", "cp", "ep")
_MICRO_BATCHES = 8  # of a stage, where no batch is stated
CHUNK = 4096
EMPTY = ("-", "\N{EN DASH}", "\N{EM DASH}", "?", "n/a", "na", "nan", "null", "unknown")
_MAY_BE_NONE = ("recompute", "fsdp_zero")
_MOST_GPUS, _MOST_TOKENS, _MOST_SEQUENCES = 1_000_000, 100_000_000, 10_000_000
"""Ten, four hundred and six hundred times as many as anybody published."""
_LONGEST_CELL = 2**20


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table. number: from 1, the header not counted. texts: as they are in the file. job: its columns of
    Jobs; None where it is refused, with the reason. missing: columns that were empty and decide the time, for which a
    default stands in the job. notes: what was derived or defaulted."""

    number: int
    cells: Mapping[str, str]
    texts: tuple[str, ...] = ()
    job: Mapping[str, Column] | None = None
    shape: Shape | None = None
    missing: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    refused: str = ""


def read_rows(file: TextIO, name: str) -> tuple[list[str], Iterator[Row], str]:
    """Return the header and the rows of a table, and what stands between its cells: a spreadsheet writes semicolons
    where the comma is in its numbers, and tabs as text. InputError: it is none."""
    csv.field_size_limit(_LONGEST_CELL)
    line = file.readline(_LONGEST_CELL)
    between = max((",", ";", "\t"), key=line.count)
    reader = csv.reader(chain((line,), file), delimiter=between)
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise InputError(Problem(name, f"is no table: {error}", hint="a CSV with a header")) from None
    keys = [text.strip().strip("\ufeff").lower() for text in header]
    if missing := [key for key in NEEDED if key not in keys]:
        known = "the columns of published runs: docs/guide/estimate.md"
        hint = "the table saved as UTF-8: this one is UTF-16" if "\0" in line else ""
        what = f"is no table of runs: no column {listed(missing)}"
        raise InputError(Problem(name, what, quoted(",".join(header)), known, hint))
    if double := sorted({key for key in keys if key and keys.count(key) > 1}):
        raise InputError(Problem(name, f"has a column twice: {listed([quoted(key) for key in double])}"))
    return header, _rows(reader, keys), between


def _rows(reader: Iterator[list[str]], keys: Sequence[str]) -> Iterator[Row]:
    number = 0
    while True:
        unread = ""
        try:
            texts = next(reader, None)
        except csv.Error as error:
            texts, unread = [], f"the line cannot be read: {error}"
        if texts is None:
            return
        if not texts and not unread:
            continue
        number += 1
        row = Row(number, {}, refused=unread) if unread else read_row(dict(zip(keys, texts, strict=False)), number)
        if len(texts) > len(keys):
            row = Row(number, row.cells, refused=f"{len(texts)} cells under {len(keys)} columns")
        yield replace(row, texts=tuple(texts))


def table_rows(path: Path) -> list[Row]:
    """Return all rows of a file. InputError: it cannot be read, or is no table."""
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            return [*read_rows(file, path.name)[1]]
    except OSError as error:
        raise InputError(Problem(str(path), "cannot be read", error.strerror or str(error))) from error


def chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Yield rows, as many at a time as are predicted at once."""
    while some := [*islice(rows, CHUNK)]:
        yield some


def read_row(cells: Mapping[str, str], number: int = 1) -> Row:
    """Return what a row says. Total: whatever is wrong with it is its reason."""
    texts = {key: text for key, text in cells.items() if isinstance(text, str)}
    reader = _Reader(texts)
    try:
        return reader.row(number)
    except ValueError as error:
        return Row(number, reader.cells, missing=frozenset(reader.missing), refused=str(error))


def jobs_of(columns: Sequence[Mapping[str, Column]]) -> Jobs:
    """Return jobs of their columns, each a mapping with every field of Jobs that has no default."""
    names = [field.name for field in fields(Jobs) if field.name in columns[0]]
    return Jobs(**{name: np.array([one[name] for one in columns]) for name in names})


class _Reader:
    """Read one row; note what was derived, and which columns were empty."""

    def __init__(self, cells: Mapping[str, str]) -> None:
        self.cells = {name: _stated(name, text) for name, text in cells.items()}
        self.notes: list[str] = []
        self.missing: set[str] = set()

    def row(self, number: int) -> Row:
        """Return it. ValueError: why it is no job."""
        device = self.read("gpu", hardware_named)
        if device is None:
            raise ValueError("gpu: empty")
        known = row_shape(self.cells)
        self.notes += known.notes
        shape = self.shape_by_notes(known.shape)
        layout = self.layout(shape)
        work = self.work(layout)
        if problem := next(iter(layout_problems(shape, layout, work, device)), None):
            raise ValueError(problem.what)
        job = columns_of_shape(shape) | self.machine(device, layout["gpus"]) | _named(layout) | work
        if (date := self.text("date")) and not is_date(date):
            self.notes.append(f"date: {quoted(date)} is neither a date nor a release, and not used")
        job |= {
            **UNKNOWN,
            **dict.fromkeys(SWITCHED_OFF, 0.0),
            "overlapped_data": 1.0,
            "stack": stack(self.text("framework"), self.text("date")),
        }
        job["stops_early"] = float(named(str(job["stack"]), "recomputation_stops_early"))
        job["overlapped_tensor"] = overlapped = overlaps_tensor(job)
        job["packed_tokens"] = packed = packed_tokens(job)
        recipe = followed(ours_named(self.text("model")), job)
        as_released = released(self.text("model"), job)
        redone = as_released.pop("recompute_layers", None)
        job |= {**self.how(shape, layout, job, recipe, redone), **as_released}
        self.notes += ["graphs and overlap, and what it leaves open, as its release had them"] if as_released else []
        job |= noted(self.text("notes"))
        if job["overlapped_tensor"] == overlapped > 0 and layout["tp"] > 1 and "overlapped_tensor" not in as_released:
            self.notes.append("products overlap TP's collectives, as in published runs of its framework")
        if job["packed_tokens"] == packed > 0:
            self.notes.append(f"samples of {packed:g} tokens packed, as benchmarks of its framework have them")
        span = float(job["expert_model_parallel_size"]) * float(job["expert_tensor_parallel_size"])
        if job["cp_a2a"] and (job["mla"] or int(job["num_query_groups"]) % (layout["tp"] * layout["cp"])):
            raise ValueError("CP-A2A: needs query groups that TP × CP divides, and no latent attention")
        if span > layout["gpus"] / layout["pp"]:
            raise ValueError(f"EP × ETP = {span:g} is more than the {layout['gpus'] // layout['pp']} GPUs of a stage")
        return Row(number, self.cells, (), job, shape, frozenset(self.missing), tuple(self.notes))

    def text(self, name: str) -> str:
        return self.cells.get(name, "").strip()

    def read(self, name: str, reader: Callable[[str], Any]) -> Any:
        """Return a cell by its reader; None where it is empty. ValueError: of which column."""
        try:
            return reader(self.text(name)) if self.text(name) else None
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def default(self, name: str, value: Any, note: str) -> Any:
        """Return the default of an empty cell, and note it."""
        self.missing.add(name)
        self.notes.append(note)
        return value

    def shape_by_notes(self, shape: Shape) -> Shape:
        """Return the shape with what a note says of multi-token prediction and of dense layers."""
        text = self.text("notes").lower()
        if "w/o mtp" in text:
            shape = replace(shape, mtp_num_layers=0)
        if shape.num_experts and (stated := text.partition("dense_layers=")[2][:2].strip(" ;,")).isdecimal():
            shape = replace(shape, moe_first_dense_layers=int(stated))
        return shape

    def layout(self, shape: Shape) -> dict[str, int]:
        """Return the sizes of the layout, 1 where they are not stated, and the GPUs."""
        sizes = {name: self.read(name, count) for name in (*DIRECTIONS, "dp", "gpus")}
        if sizes["gpus"] is None:
            raise ValueError("gpus: empty")
        _at_most("gpus", sizes["gpus"], _MOST_GPUS)
        absent = [name for name in ("tp", "pp", "cp") if sizes[name] is None]
        absent += ["ep"] if shape.num_experts and sizes["ep"] is None else []
        absent += ["vp"] if sizes["vp"] is None and sizes["pp"] != 1 else []
        if absent:
            self.missing.update(absent)
            self.notes.append(f"{listed([name.upper() for name in absent])} not stated, taken as 1")
        known = {name: size or 1 for name, size in sizes.items()}
        rest, left = divmod(known["gpus"], known["tp"] * known["pp"] * known["cp"])
        if left or (sizes["dp"] is not None and sizes["dp"] != rest):
            parts = f"TP {known['tp']} × PP {known['pp']} × CP {known['cp']}"
            parts += "" if sizes["dp"] is None else f" × DP {sizes['dp']}"
            raise ValueError(f"{parts} is not {known['gpus']} GPUs")
        if known["pp"] == 1 < known["vp"]:
            self.notes.append(f"VP {known['vp']} without a pipeline: none")
            known["vp"] = 1
        chunks = known["pp"] * known["vp"]
        if chunks > shape.num_layers + 2:  # embedding and loss may count as a layer each
            raise ValueError(f"PP {known['pp']} × VP {known['vp']} = {chunks} parts of {shape.num_layers} layers")
        if shape.num_layers % chunks:
            self.notes.append(f"{shape.num_layers} layers uneven over {chunks} parts")
        return known | {"dp": rest}

    def work(self, layout: Mapping[str, int]) -> dict[str, Column]:
        """Return the sequence, the batch and what is trained."""
        micro, batch = (self.read(name, count) for name in ("mbs", "gbs"))
        sequence = self.read("seq", tokens)
        _at_most("seq", sequence or 0, _MOST_TOKENS)
        if sequence is None:
            raise ValueError("seq: empty")
        _at_most("gbs", batch or 0, _MOST_SEQUENCES)
        if micro is None:
            micro = self.default("mbs", 1, "micro-batch not stated, taken as 1")
        if batch is None:
            each = _MICRO_BATCHES if layout["pp"] > 1 else 1
            many = f"{each} micro-batch{'es' if each > 1 else ''} a rank"
            text = f"global batch not stated: step time of {many}, interval of the time of a token"
            batch = self.default("gbs", micro * layout["dp"] * each, text)
        task = self.read("task", lambda text: word("task", text)) or "pretraining"
        return {"seq_length": sequence, "micro_batch_size": micro, "global_batch_size": batch, "trained": task}

    def machine(self, device: Hardware, gpus: int) -> dict[str, Column]:
        """Return the columns of the hardware, the network and the precision."""
        peaks = device.peak_dense_tflops
        precision = self.read("precision", lambda text: word("precision", text))
        if precision is None:
            best = "fp8" if self.text("framework").lower().startswith("mlperf") and "fp8" in peaks else "bf16"
            precision = self.default("precision", best, f"precision not stated, taken as {best}")
        columns = columns_of_hardware(device, precision)
        if isnan(float(columns["peak_flops"])):
            raise ValueError(f"precision: no peak of {PEAK_OF[precision]} is known of {device.name}")
        if device.vendor != spellings()["precision_of_one_maker"].get(precision, device.vendor):
            raise ValueError(f"precision: {device.name} has no units for {precision}, which another maker's GPUs have")
        if precision == "mxfp8" and not device.scales_blocks:
            raise ValueError(f"precision: {device.name} has no units for mxfp8")
        nodes, usual = self.read("nodes", count) or 0, float(columns["gpus_per_node"])
        if nodes and nodes != ceil(gpus / usual) and (gpus % nodes or gpus / nodes > usual):
            found = f"nodes {nodes} not used: {gpus} GPUs would be {gpus / nodes:.3g} a node"
            self.notes.append(f"{found}; nodes of {usual:g} taken, as {device.name} has them")
        if nodes > 1 and gpus % nodes == 0:
            columns = on_smaller_nodes(columns, gpus / nodes)
        domain, network = float(columns["gpus_per_domain"]), self.text("interconnect")
        rate, note = network_bandwidth(network, device, float(columns["gpus_per_node"]))
        self.notes += [] if names_network(network) else [f"interconnect: {quoted(network)} not understood"]
        if isnan(domain) and gpus > 1:  # as estimate/step_time.py takes it
            what = f"gpus_per_domain of {device.name} is not known"
            self.notes.append(f"{what}: taken as 1, so that all is sent over the network")
        self.notes += [note] if note and gpus > (1 if isnan(domain) else domain) else []
        return {**columns, "precision": precision, "nic_bandwidth": rate}

    def how(
        self,
        shape: Shape,
        layout: Mapping[str, int],
        job: Mapping[str, Column],
        recipe: Recipe | None,
        redone: float | None,
    ) -> dict[str, Column]:
        """Return sharding, recomputation, offloading and sequence parallelism; of the recipe that the row followed,
        what has no column. redone: the share of layers that the configuration of the run recomputed, where known."""
        switches = self.read("fsdp_zero", sharding)
        if switches is None:
            switches = {"distributed_optimizer": 1, "fsdp": 0}
            self.notes.append("distributed optimizer assumed")
        if plain(self.text("fsdp_zero")).startswith(("hsdp", "hybrid")):
            self.notes.append("groups of shards are not read: sharded over all GPUs")
        layers = shape.num_layers
        again = self.again(layout["pp"] * layout["vp"], layers, recipe, redone)
        self.notes += [f"graphs, dispatcher and gradients by the recipe {recipe.name}"] if recipe else []
        framework, fp32 = str(job["stack"]), job["precision"] == "fp32"
        offloaded = self.read("offload_layers", count) or 0
        if offloaded and layout["pp"] > 1:  # Megatron-Core refuses it: transformer_config.py, cpu_offloading
            self.notes.append("no activations are offloaded in a pipeline: offload_layers ignored")
            offloaded = 0
        modules = {f"again_{name}": float(name in again.modules) for name in RECOMPUTED}
        return {
            **switches,
            **modules,
            "recompute_layers": again.layers,
            "offloaded_layers": min(offloaded, layers),
            "sequence_parallel": float(layout["tp"] > 1 and not named(framework, "without_sequence_parallel")),
            "data_parallel_replicas": 1.0,  # a table has no column of them
            "embedding_counts": nan,
            "gradient_bytes": 2 if named(framework, "bf16_gradients") and not fp32 else 4,
            "optimizer_bytes": adam_bytes(fp32),
            "fp8_params": 0.0,
            **(columns_of_recipe(recipe, framework) if recipe else {}),
        }

    def again(self, chunks: int, layers: int, recipe: Recipe | None, redone: float | None) -> Again:
        """Return what is recomputed: as stated, as known of the run, by its recipe, or nothing, which is noted."""
        known: Again | None = self.read("recompute", lambda text: recompute(text, chunks, layers))
        if known is None and redone is not None:
            known = Again(redone)
        if known is None and recipe is not None:
            known = recomputed_by(recipe, chunks, layers)
        if known is None:
            known = self.default("recompute", recompute("none", 1, 1), "recomputation not stated, taken as none")
        self.notes += [known.note] if known.note else []
        return known


_COUNTED = {"expert_tensor_parallel_size": r"etp([1-9]\d{0,2})", "packed_tokens": r"packed([1-9]\d{0,5})"}
"""Words of notes that have a number behind them."""


def noted(text: str) -> dict[str, Column]:
    """Return the columns of Jobs that the notes of a row state (notes in spellings.yaml)."""
    words = {plain(word) for word in re.split(r"[\s;,()]+", text)}
    stated = (columns for word, columns in spellings()["notes"].items() if word in words)
    known: dict[str, Column] = {name: float(value) for columns in stated for name, value in columns.items()}
    sizes = ((name, re.fullmatch(pattern, word)) for name, pattern in _COUNTED.items() for word in words)
    return known | {name: float(found[1]) for name, found in sizes if found}


def _at_most(name: str, value: int, most: int) -> None:
    """Raise ValueError of a value beyond all sense: a figure that nobody can check is worse than none."""
    if value > most:
        raise ValueError(f"{name}: {value:,} is more than the {most:,} that are predicted")


def _stated(name: str, text: str) -> str:
    """Return a cell; nothing of one that says in a word that it is empty."""
    word = text.strip().casefold()
    return "" if word in EMPTY or (word == "none" and name not in _MAY_BE_NONE) else text


_NAMES = {"tp": "tensor_model", "pp": "pipeline_model", "vp": "virtual_pipeline_model", "cp": "context"}
_NAMES |= {"ep": "expert_model", "dp": "data"}


def _named(layout: Mapping[str, int]) -> dict[str, Column]:
    sizes: dict[str, Column] = {f"{name}_parallel_size": layout[short] for short, name in _NAMES.items()}
    return sizes | {"expert_tensor_parallel_size": 1 if layout["ep"] > 1 else layout["tp"]}


def layout_problems(
    shape: Shape, layout: Mapping[str, int], work: Mapping[str, Column], device: Hardware
) -> list[Problem]:
    """Return what the launcher's own rules have against a layout (conf/check.py)."""
    sequence, micro, batch = (int(work[name]) for name in ("seq_length", "micro_batch_size", "global_batch_size"))
    training = RowTraining(seq_length=sequence, micro_batch_size=micro, global_batch_size=batch)
    request: Any = row_request(shape, layout, training, device)
    return [problem for rule in LAYOUT_RULES for problem in rule(request, sizes_of(layout))]
