"""`tprimat demo`: what a comparison looks like, in seconds and from the package alone: published results of MLPerf for
both vendors, and a pair of rehearsals.

mlperf.jsonl: a run a line, as figures with their source. rehearsed.jsonl: two records of rehearsals of our own."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec

from compare.cli import main as compare
from conf.arguments import Command, program
from conf.errors import command, writing
from conf.facts import hardware
from metrics.quantity import shown
from parsers import Reading, Record, Validation, write

_PUBLISHED, _REHEARSED = "mlperf.jsonl", "rehearsed.jsonl"
_REHEARSALS = "rehearsed"
_HERE = Path(__file__).parent
_PLACE = Path("tprimat-demo")
_BENCHMARK = "llama2_70b_lora"
_COLUMNS: Mapping[str, tuple[str, float]] = {  # of the printed table: title, and what a figure is divided by
    "time_to_train_s": ("time to train, min", 60.0),
    "tokens_per_s_per_gpu": ("tokens/s/GPU", 1.0),
    "cost_to_target": ("cost to the target, USD", 1.0),
}
_NOTE = """Times, evaluations and samples are published; each record has its source. Ratios, tokens/s (of the time to
train without its evaluations) and cost are worked out here, hold for these systems, and are not verified by MLCommons.
Prices are examples: give your own."""
DEMO = Command(
    name="demo",
    summary="Compare published MLPerf results of both vendors, and two rehearsals: in seconds, no GPU, no torch.",
    switches={},
    output=f"write records and reports there (default: {_PLACE})",
    examples=("-o DIR",),
)


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of a published result of MLPerf, as a line of mlperf.jsonl. source: repository, commit and path of its
    log. evaluation_s: from every eval_start to its eval_stop. evaluations: samples seen, loss of validation and the
    samples/s that the log states since the one before; the last at the target."""

    system: str
    submitter: str
    round: str
    hardware: str
    nodes: int
    gpus: int
    global_batch_size: int
    lr: float
    seed: int
    started_at_unix_s: int
    time_to_train_s: float
    evaluation_s: float
    evaluations: tuple[tuple[int, float, float], ...]
    source: str

    def record(self, line: int) -> Record:
        """Return the record of the run. line: of mlperf.jsonl, which each of its values is from."""
        device = hardware(self.hardware)
        settings = ("global_batch_size", "lr", "seed")
        name = Path(self.source).stem
        return Record(
            id=f"{self.hardware}-{name}",
            name=f"{self.hardware}-{name}",
            provenance="imported",
            status="completed",
            notes=(f"figures of MLPerf Training {self.round}: {self.source}",),
            hardware=self.hardware,
            vendor=device.vendor if device else None,
            effective={
                **{key: Reading(getattr(self, key), line) for key in settings},
                "world_size": Reading(self.nodes * self.gpus, line),
            },
            environment={
                "mlperf_submission_benchmark": _BENCHMARK,
                "mlperf_submission_division": "closed",
                "mlperf_submission_org": self.submitter,
                "mlperf_submission_platform": self.system,
                "mlperf_run_start_unix_s": float(self.started_at_unix_s),
                "mlperf_time_to_train_s": self.time_to_train_s,
                "mlperf_evaluation_s": self.evaluation_s,
                "mlperf_samples_to_target": self.evaluations[-1][0],
                "num_nodes": self.nodes,
            },
            log=_PUBLISHED,
            validations=tuple(
                Validation(line=line, loss=loss, metrics={"samples_count": samples, "samples_per_s": rate})
                for samples, loss, rate in self.evaluations
            ),
        )


def published() -> tuple[Published, ...]:
    """Return all published runs, in the order of their lines."""
    return tuple(msgspec.json.Decoder(Published).decode_lines((_HERE / _PUBLISHED).read_bytes()))


def rehearsed() -> tuple[Record, ...]:
    """Return the two records of rehearsals."""
    return tuple(msgspec.json.Decoder(Record).decode_lines((_HERE / _REHEARSED).read_bytes()))


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write records and reports, print what they say. 0: done; 2: bad input."""
    place = DEMO.parse(argv).output or _PLACE
    rows = published()
    with writing(place, "-o DIR"):
        place.mkdir(parents=True, exist_ok=True)
        (place / _PUBLISHED).write_bytes((_HERE / _PUBLISHED).read_bytes())
        for line, row in enumerate(rows, start=1):
            record = row.record(line)
            write(record, place / "runs" / _name(row) / record.id)
        for record in rehearsed():
            write(record, place / "runs" / _REHEARSALS / record.id)
    for name in dict.fromkeys(map(_name, rows)):
        _report_published(place, next(row for row in rows if _name(row) == name))
    _report_rehearsed(place)
    print(f"{_NOTE}\n\nNext:")
    for why, typed in _next(place):
        print(f"  # {why}\n  {typed}")
    return 0


def _name(row: Published) -> str:
    return f"mlperf-{row.round}"


def _compared(place: Path, name: str) -> Mapping[str, Any]:
    """Compare the runs in place/runs/NAME as `tprimat compare` does, its reports in place/NAME; return its JSON."""
    with redirect_stdout(io.StringIO()) as printed:
        compare([str(place / "runs" / name), "-o", str(place / name), "--json"])
    result: Mapping[str, Any] = json.loads(printed.getvalue())
    return result


def _report_published(place: Path, first: Published) -> None:
    """Print the table of a round: the systems of one submitter."""
    compared = _compared(place, _name(first))
    about = f"{first.submitter}, {first.nodes} node of {first.gpus} GPUs a side"
    print(f"MLPerf Training {first.round}, Llama 2 70B LoRA, closed division: {about}")
    cells = [["", *(title for title, _ in _COLUMNS.values()), "runs"]]
    for side in compared["groups"]:
        figures = [_cell(side["figures"][metric], by) for metric, (_, by) in _COLUMNS.items()]
        cells.append([f"{first.nodes * first.gpus} × {side['label']}", *figures, str(side["counted_runs"])])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  " + "  ".join(f"{cell:{'>' if at else '<'}{widths[at]}}" for at, cell in enumerate(row)).rstrip())
    for item in compared["ratios"]:
        if item["metric"] == "time_to_train_s":
            low, high = item["interval"]
            times = f"{shown(item['ratio'], 3)} (95 %: {shown(low, 3)} to {shown(high, 3)})"
            ratio = f"time to train of {item['group']} over {item['baseline']}: {times}, {item['word']}"
            print(f"  {_verdict(compared)}; {ratio}")
    print(f"  {place / _name(first) / 'compare.html'}\n")


def _verdict(compared: Mapping[str, Any]) -> str:
    return str(compared["verdict"]["word"]) + (", on conditions" if compared["standing"] == "conditional" else "")


def _cell(figure: Mapping[str, Any], by: float) -> str:
    """Return a figure with half of its interval, as a share."""
    low, high = figure["interval"]
    return f"{shown(figure['value'] / by, 4)} ±{shown(50 * (high - low) / figure['value'], 2)} %"


def _report_rehearsed(place: Path) -> None:
    compared = _compared(place, _REHEARSALS)
    sides = " and ".join(f"{side['framework']} as for {side['hardware']}" for side in compared["groups"])
    losses = next(check["reason"] for check in compared["checks"] if check["name"] == "loss")
    print(f"Rehearsed on a CPU, a toy of Llama 3.1 8B from equal weights: {sides}")
    print(f"  {_verdict(compared)}; {len(compared['audit'])} settings and facts audited; losses {losses}")
    print(f"  {place / _REHEARSALS / 'compare.html'}\n")


def _next(place: Path) -> Iterator[tuple[str, str]]:
    """Yield what to type next, each after what it is for."""
    runs = shlex.quote(str(place / "runs" / _name(published()[0])))
    prices = "price.usd_per_gpu_hour.b200=4.75 price.usd_per_gpu_hour.mi355x=3.10"
    yield "the same at your prices, which makes a ratio of cost", f"{program('compare')} {runs} {prices}"
    yield "logs of yours; then compare runs/imported", f"{program('parse')} YOUR.log --save"
    yield "boxes of yours: what would run, and why", f"{program('launch')} model=llama platform=amd dry_run=true"
