"""Facts kept as data: the layout table, and the rule that no fact enters without a source. Derives nothing."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from math import inf, log2
from pathlib import Path
from typing import Any, TypeVar

from msgspec import json

from conf.compose import choices, read_choice
from conf.errors import ConfigError, Problem, blamed, listed
from conf.freeze import field_types, freeze, required
from conf.schema import Hardware

LAYOUTS = Path(__file__).parent / "tables" / "layouts.csv"

_FROM_MEMORY = re.compile(r"\b(recalled|unverified)\b", re.IGNORECASE)
PRECISIONS = ("fp32", "tf32", "bf16", "fp8", "fp4")
_DTYPES = {"bfloat16": "bf16", "float16": "bf16", "float32": "fp32"}  # fp16 and bf16 have one peak on every GPU here
_NEAREST = 4
_WORDS = {"": None, "true": True, "false": False}  # cells of CSV; a number is read by `freeze`
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """One layout that serves both sides: any GPU, in any precision."""

    table: str
    model: str
    gpus: int
    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int | None
    context_parallel_size: int
    expert_model_parallel_size: int
    sequence_parallel: bool
    micro_batch_size: int
    recompute_granularity: str | None
    recompute_method: str | None
    recompute_num_layers: int | None
    use_distributed_optimizer: bool | None
    overlap_grad_reduce: bool | None
    overlap_param_gather: bool | None
    source: str
    note: str

    def __str__(self) -> str:
        return f"{self.model} on {self.gpus} GPUs"


def read_lines(path: Path, kind: type[_Row]) -> tuple[_Row, ...]:
    """Return each line of a JSONL file of ours as a `kind`. ConfigError: the first one that does not fit, and why."""
    rows: list[_Row] = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        with blamed(f"{path.parent.name}/{path.name}:{number}", "cannot be used"):
            rows.append(json.decode(line, type=kind))
    return tuple(rows)


@cache
def hardware(name: str | None) -> Hardware | None:
    """Return conf/hardware/NAME.yaml, None if there is none. ConfigError: all that is wrong with the file."""
    if name is None or name not in choices("hardware"):
        return None
    facts, problems = read_choice("hardware", name), list[Problem]()
    device = freeze(Hardware, facts, f"hardware {name}", problems)
    if problems := [*problems, *check_hardware(asdict(device) if device else facts)]:
        raise ConfigError(*problems)
    return device  # type: ignore[no-any-return]


@cache
def named_by_driver(device_name: str) -> Hardware | None:
    """Return the hardware whose file lists `device_name`, as the driver spells it."""
    spelled = device_name.strip().lower()
    devices = filter(None, map(hardware, choices("hardware")))
    return next((device for device in devices if spelled in map(str.lower, device.device_names)), None)


def precision_of(settings: Mapping[str, Any]) -> str | None:
    """Return fp4, fp8, bf16 or fp32; None where canonical settings do not report both whether fp8 ran and the type of
    the computation: Lightning's (mixed precision has other parameters), else that of the parameters.

    In an fp8 run attention and logits stay in bf16, so that it cannot reach the peak of fp8."""
    if settings.get("fp4"):
        return "fp4"
    if "fp8" not in settings:
        return None
    dtype = settings.get("compute_dtype") or settings.get("params_dtype")
    return "fp8" if settings["fp8"] else _DTYPES.get(str(dtype).removeprefix("torch."))


def peak_of(device: Hardware | None, precision: str | None) -> tuple[str, float] | None:
    """Return the dense peak of one device by its data sheet, in TFLOP/s, behind its precision; of an unknown precision
    the highest. None where no peak is known."""
    if device is None:
        return None
    peaks = device.peak_dense_tflops
    best = precision or max(peaks, key=lambda name: peaks[name], default="")
    return (best, peaks[best] / device.devices_per_package) if best in peaks else None


def check_hardware(mapping: Mapping[str, Any]) -> list[Problem]:
    """Return why a hardware entry (as YAML gives it) is not believed: no source, from memory, or no real figure."""
    name = f"hardware {mapping.get('name') or 'without a name'}"
    numbers = (key for key, kind in field_types(Hardware).items() if required(kind) in (int, float))
    figures = [(key, mapping[key]) for key in numbers if mapping.get(key) is not None]
    problems = _sourced(name, mapping, ("source", "status", "note"))
    for group in ("peak_dense_tflops", "achievable_tflops"):
        of_precisions = mapping[group] if isinstance(mapping.get(group), Mapping) else {}
        figures += [(f"{group}.{precision}", value) for precision, value in of_precisions.items()]
        what, allowed = f"{group} of an unknown precision", listed(PRECISIONS)
        problems += [Problem(name, what, str(key), allowed) for key in of_precisions if key not in PRECISIONS]
    return problems + [
        Problem(name, f"`{key}` is not a positive number", repr(value), hint="leave out what is not known")
        for key, value in figures
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf
    ]


@cache
def layout_rows() -> tuple[LayoutRow, ...]:
    """Return all rows of conf/tables/layouts.csv. Raises as `read_rows`."""
    with LAYOUTS.open(newline="", encoding="utf-8") as file:
        return read_rows(file)


def read_rows(lines: Iterable[str]) -> tuple[LayoutRow, ...]:
    """Return the rows of a layout table given as CSV lines with a header. ConfigError: with every row that has no
    source, a wrong cell, or a double."""
    reader = csv.DictReader(lines, restkey="a cell beyond the header")
    rows: dict[Any, LayoutRow] = {}
    problems: list[Problem] = []
    for cells in reader:
        where = f"conf/tables/layouts.csv:{reader.line_num}"
        problems += _sourced(where, cells, ("source", "note"))
        typed = {key: _WORDS.get(str(text), text) for key, text in cells.items()}
        row = freeze(LayoutRow, typed, where, problems)
        if row is not None and rows.setdefault((row.table, str(row)), row) is not row:
            problems.append(Problem(where, "second row for the same case", found=str(row)))
    problems += [] if rows or problems else [Problem("conf/tables/layouts.csv", "has no rows")]
    if problems:
        raise ConfigError(*problems)
    return tuple(rows.values())


def find_row(table: str, model: str, gpus: int) -> LayoutRow | None:
    """Return the row of `table` for this model and number of GPUs, else that for the largest number of which this is a
    multiple: the same layout with more data parallel ranks, each of which then needs no more memory. None: no such."""
    own = (row for row in layout_rows() if (row.table, row.model) == (table, model) and gpus > 0)
    return max((row for row in own if gpus % row.gpus == 0), key=lambda row: row.gpus, default=None)


def no_row(table: str, model: str, gpus: int) -> Problem:
    """Return the problem of a case that `table` has no row for; it names the nearest ones."""

    def distance(row: LayoutRow) -> tuple[bool, float]:
        return row.model != model, abs(log2(row.gpus / gpus)) if gpus > 0 else inf

    return Problem(
        where="layout",
        what=f"no row for this case in table {table} of conf/tables/layouts.csv",
        found=f"{model} on {gpus} GPUs",
        allowed=listed(sorted((row for row in layout_rows() if row.table == table), key=distance)[:_NEAREST]),
        hint="layout=data_parallel, or layout.tensor_model_parallel_size=2 layout.pipeline_model_parallel_size=1",
    )


def _sourced(where: str, mapping: Mapping[str, Any], keys: tuple[str, ...]) -> list[Problem]:
    problems = []
    if not str(mapping.get("source") or "").strip():
        problems.append(Problem(where, "a fact without a source", hint="name the document or file that it was read in"))
    for key in keys:
        if word := _FROM_MEMORY.search(str(mapping.get(key) or "")):
            what = f"`{key}` says that the fact is from memory"
            problems.append(Problem(where, what, word[0], hint="look it up, or leave it empty"))
    return problems
