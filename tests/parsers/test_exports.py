"""Runs as trackers of experiments keep them become the records that their logs would. The files are written here, byte
by byte, as TensorBoard, W&B and MLflow write them; nothing of theirs is installed."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from parsers import Parsed, find_runs
from parsers.cli import discover, imported_all, main
from parsers.dialects import load
from parsers.exports import EVENTS, kind_of, read_all
from parsers.tags import TABLE, writers
from parsers.values import FIELDS

Rows = Sequence[tuple[int, Mapping[str, float]]]

HF: Rows = [
    *((i, {"train/loss": 2.5 - i / 50, "train/learning_rate": 3e-4, "train/epoch": i / 30}) for i in (10, 20)),
    (20, {"eval/loss": 1.75, "eval/runtime": 12.5}),
    (30, {"train/loss": 1.5, "train/learning_rate": 1e-4, "train/epoch": 1.0}),
    (30, {"train/train_runtime": 100.5, "train/total_flos": 1e15, "train/epoch": 1.0}),
]
SETTINGS = {"num_layers": 4, "global_batch_size": 8, "train_iters": 6, "lr": 0.0003, "world_size": 4, "fp8": None}


def message(*fields: tuple[int, Any]) -> bytes:
    """Return a protobuf message: an integer, a double, or bytes a field; a float of 32 bits as a tuple of one."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        elif isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
        elif isinstance(value, tuple):
            out += varint(number << 3 | 5) + struct.pack("<f", *value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


def events(folder: Path, rows: Rows, texts: Mapping[str, str] = {}, name: str = "1.host.1.0") -> Path:
    """Write an event file: scalars as SummaryWriter writes them, or, of odd steps, as TensorFlow 2 does."""
    folder.mkdir(parents=True, exist_ok=True)
    values = [(0, message((1, f"{tag}/text_summary"), (8, message((1, 7), (8, text))))) for tag, text in texts.items()]
    for step, logged in rows:
        for tag, value in logged.items():
            tensor = (8, message((1, 1), (5, struct.pack("<f", value))))
            values.append((step, message((1, tag), tensor if step % 2 else (2, (value,)))))
    records = [message((1, 1.5), (3, "brain.Event:2"))]
    records += [message((1, 1.5), (2, step), (5, message((1, value)))) for step, value in values]
    path = folder / f"{EVENTS}{name}"
    path.write_bytes(b"".join(len(r).to_bytes(8, "little") + b"crc." + r + b"crc." for r in records))
    return path


def wandb_file(rows: Rows, config: Mapping[str, Any] = {}, code: int = 0, counter: str = "train/global_step") -> bytes:
    """Return a .wandb file, whose records run over the blocks of LevelDB's log."""
    update = [message((1, key), (16, json.dumps(value))) for key, value in config.items()]
    records = [message((1, 1), (17, message((4, message(*((1, item) for item in update))), (8, "my run"))))]
    for call, (step, logged) in enumerate(rows):
        entry = {"_step": call, "_timestamp": 1.7e9 + call, counter: step, "note": "x" * 9000, **logged}
        items = [(1, message((2, key), (16, json.dumps(value)))) for key, value in entry.items()]
        records.append(message((2, message(*items))))
    out = b":W&B\xe1\xbe\x00"
    for record in [*records, message((18, message((1, code))))]:
        pieces, kind = list[bytes](), 2
        rest: bytes | None = record
        while rest is not None:
            left = 32_768 - len(out + b"".join(pieces)) % 32_768
            if left < 7:
                pieces.append(bytes(left))
                continue
            piece, rest = rest[: left - 7], rest[left - 7 :] or None
            kind = (4 if kind == 3 else 1) if rest is None else kind
            pieces.append(struct.pack("<IHB", zlib.crc32(piece, zlib.crc32(bytes([kind]))), len(piece), kind) + piece)
            kind = 3
        out += b"".join(pieces)
    return out


def run_directory(folder: Path, data: bytes, console: str = "") -> Path:
    (folder / "files").mkdir(parents=True)
    (folder / "run-abc.wandb").write_bytes(data)
    about = {"gpu_count": 8, "gpu_devices": [{"name": "NVIDIA H100 80GB HBM3", "memory_total": 85899345920}]}
    (folder / "files" / "wandb-metadata.json").write_text(json.dumps(about))
    (folder / "files" / "output.log").write_text(console)
    return folder


def mlflow(folder: Path, rows: Rows, params: Mapping[str, Any] = {}, status: int = 3) -> Path:
    for at, (step, logged) in enumerate(rows):
        for tag, value in logged.items():
            path = folder / "metrics" / tag
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as stream:
                stream.write(f"{1_700_000_000_000 + at} {value} {step}\n")
    (folder / "params").mkdir()
    for key, value in params.items():
        (folder / "params" / key).write_text(str(value))
    (folder / "meta.yaml").write_text(
        f"artifact_uri: a\nrun_name: nightly\nstatus: {status}\nstart_time: 1700000000000\n"
    )
    return folder


def written(kind: str, path: Path, rows: Rows) -> Path:
    """Return where a tracker keeps these rows."""
    lines: list[dict[str, Any]] = [{"_step": n, "train/global_step": s, **row} for n, (s, row) in enumerate(rows)]
    if kind == "tensorboard":
        return events(path, rows).parent
    if kind == "mlflow":
        return mlflow(path, rows)
    if kind == "run directory":
        return run_directory(path, wandb_file(rows))
    if kind == "history.jsonl":
        text = "".join(json.dumps(line) + "\n" for line in lines)
    else:
        names = list(dict.fromkeys(name for line in lines for name in line))
        chart = [n for n in names if n not in ("_step", "train/global_step")]
        if kind == "chart.csv":
            head = ["train/global_step", *(f"bold-sun-1 - {n}{end}" for n in chart for end in ("", "__MIN", "__MAX"))]
            cells = [[line["train/global_step"], *(line.get(n, "") for n in chart for _ in range(3))] for line in lines]
        else:
            head, cells = names, [[line.get(n, "") for n in names] for line in lines]
        text = "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in [head, *cells])
    (file := path.with_name(kind)).write_text(text)
    return file


@pytest.mark.parametrize(
    "kind", ["tensorboard", "run directory", "history.jsonl", "history.csv", "chart.csv", "mlflow"]
)
def test_one_run_by_every_tracker(kind: str, tmp_path: Path) -> None:
    (record,) = imported_all(written(kind, tmp_path / "run", HF))
    assert record.framework == "hf" and record.provenance == "imported" and record.status == "completed"
    assert [(s.step, s.iteration, s.loss, s.lr) for s in record.steps] == [
        *((9, 10, 2.3, 3e-4), (19, 20, 2.1, 3e-4), (29, 30, 1.5, 1e-4)),
    ]
    assert all(s.step_time_s is None and "loss:interval_mean" in s.flags for s in record.steps), "no time is logged"
    assert [(v.step, v.iteration, v.loss, v.seconds) for v in record.validations] == [(19, 20, 1.75, 12.5)]
    (note,) = [note for note in record.notes if "not known" in note]
    assert "train/total_flos" in note and note.startswith("1 of ")


def megatron(steps: range) -> Rows:
    rows: list[tuple[int, dict[str, float]]] = []
    for i in steps:
        tags = {"learning-rate": 1e-4 * i, "batch-size": 8, "lm loss": 9 - i / 4, "grad-norm": 1.5, "world-size": 4}
        for tag, value in tags.items():
            rows += [(i, {tag: value}), (i * 8, {f"{tag} vs samples": value})]
        if i % 2 == 0:
            rows.append((i, {"iteration-time": 0.5, "throughput": 312.25, "mem-max-allocated-bytes": 2.0**33}))
        if i == 4:
            rows += [(4, {"lm loss validation": 8.75}), (32, {"lm loss validation vs samples": 8.75})]
    return rows


def only(path: Path) -> Parsed:
    (run,) = read_all(path)
    return run


def test_megatrons_events(tmp_path: Path) -> None:
    texts = {name: str(value) for name, value in SETTINGS.items()}
    (record,) = imported_all(events(tmp_path / "tb", megatron(range(1, 7)), texts))
    assert record.status == "completed" and record.framework == "megatron"
    assert {name: record.setting(name) for name in SETTINGS} == SETTINGS
    assert [s.step for s in record.steps] == list(range(6)), "what is logged against samples is no step"
    assert [s.lr_used for s in record.steps] == [None, 1e-4, 2e-4, 3e-4, 4e-4, 5e-4], (
        "the rate logged is the next one's"
    )
    assert [s.step_time_s for s in record.steps] == [None, 0.5] * 3
    timed = record.steps[1]
    assert (timed.tflops_per_gpu, timed.memory_bytes, timed.memory_kind) == (312.25, 2**33, "allocated")
    assert "step_time_s:interval_mean" in timed.flags, "over the iterations since it was logged before"
    assert [(v.iteration, v.loss) for v in record.validations] == [(4, 8.75)]


def test_settings_of_hugging_face(tmp_path: Path) -> None:
    """TrainingArguments and the model's configuration, as TensorBoard and MLflow keep them; -1 is not set."""
    args = {"learning_rate": 2e-5, "per_device_train_batch_size": 4, "max_steps": -1, "num_key_value_heads": 8}
    want = {"lr": 2e-5, "micro_batch_size": 4, "train_iters": None, "num_query_groups": 8}
    events(tmp_path / "tb", HF, {"args": json.dumps(args)})
    mlflow(tmp_path / "ml", HF, args)
    for path in (tmp_path / "tb", tmp_path / "ml"):
        (record,) = imported_all(path)
        assert {name: record.setting(name) for name in want} == want


def test_a_run_that_went_on(tmp_path: Path) -> None:
    folder = events(tmp_path / "tb", megatron(range(1, 7))).parent
    events(folder, megatron(range(4, 9)), name="2.host.1.0")
    run = only(folder)
    assert [s.iteration for s in run.steps] == list(range(1, 9)) and run.restarts[0].steps == 3
    events(folder, megatron(range(1, 3)), name="3.host.1.0")
    assert [len(run.steps) for run in read_all(folder)] == [8, 2]


WRITERS: Mapping[str, tuple[int, Mapping[str, float], Mapping[str, Any]]] = {
    # framework: the axis of a row in an event file, what is logged there, what the step says
    "megatron_bridge": (
        *(5, {"lm loss": 8.5, "throughput/tflops/device": 410.5, "mem-max-allocated-bytes": 2.0**31, "batch-size": 64}),
        {
            "step": 4,
            "iteration": 5,
            "loss": 8.5,
            "tflops_per_gpu": 410.5,
            "memory_bytes": 2**31,
            "global_batch_size": 64,
        },
    ),
    "gpt_neox": (
        *(5, {"train/lm_loss": 8.5, "train/learning_rate": 3e-4, "runtime/flops_per_sec_per_gpu": 125.5 * 2**40}),
        {"step": 4, "loss": 8.5, "lr": 3e-4, "lr_used": None, "tflops_per_gpu": 125.5 * 2**40 / 1e12},
    ),
    "nemo": (
        *(5, {"reduced_train_loss": 8.5, "global_step": 5, "lr": 3e-4, "train_step_timing in s": 1.5}),
        {"step": 5, "loss": 8.5, "lr_used": 3e-4, "step_time_s": None, "metrics": {"step_time_s_running_mean": 1.5}},
    ),
    "maxtext": (
        *(5, {"learning/loss": 8.5, "perf/step_time_seconds": 1.5, "perf/per_device_tflops_per_sec": 9000.0}),
        {"step": 5, "step_time_s": 1.5, "flags": ("step_time_s:asynchronous", "tflops_per_gpu:asynchronous")},
    ),
    "composer": (
        *(99, {"loss/train/total": 8.5, "time/batch": 5, "memory/peak_reserved_mem": 61.5}),
        {"step": 5, "loss": 8.5, "memory_bytes": 61_500_000_000, "memory_kind": "reserved"},
    ),
    "nanotron": (
        *(5, {"lm_loss": 8.5, "consumed_tokens": 2.0**20, "time_per_iteration_ms": 1500.0, "iteration_step": 5}),
        {"step": 4, "loss": 8.5, "step_time_s": 1.5},
    ),
    "olmo": (
        *(5, {"train/CE loss": 8.5, "optim/LR (group 0)": 3e-4, "throughput/device/TPS": 7012.5}),
        {"step": 4, "loss": 8.5, "lr_used": 3e-4, "tokens_per_s_per_gpu": 7012.5},
    ),
    "levanter": (
        *(5, {"train/loss": 8.5, "throughput/tokens_per_second": 7012.5, "throughput/duration": 1.5}),
        {"step": 5, "loss": 8.5, "step_time_s": 1.5, "tokens_per_s_per_gpu": None},
    ),
    "lingua": (
        *(5, {"loss/out": 8.5, "optim/lr": 3e-4, "speed/wps": 7012.5}),
        {"step": 4, "loss": 8.5, "lr_used": 3e-4, "tokens_per_s_per_gpu": 7012.5},
    ),
    "automodel": (
        *(5, {"loss": 8.5, "tps_per_gpu": 7012.5, "num_label_tokens": 4096.0, "lr": 3e-4}),
        {"step": 5, "loss": 8.5, "lr_used": None, "tokens_per_s_per_gpu": None},
    ),
    "litgpt": (
        *(39, {"loss": 8.5, "iter": 40, "iter_time": 0.25, "step": 5, "learning_rate": 3e-4}),
        {"step": 4, "iteration": 5, "loss": 8.5, "step_time_s": None},
    ),
    "nanochat": (
        *(99, {"train/loss": 8.5, "train/dt": 1.5, "step": 5}),
        {"step": 5, "loss": None, "step_time_s": 1.5, "metrics": {"loss_running_mean": 8.5}},
    ),
    "lightning": (
        *(5, {"train_loss": 8.5, "lr-AdamW": 3e-4, "epoch": 0, "hp_metric": -1.0}),
        {"step": 5, "loss": 8.5, "lr": 3e-4},
    ),
}


@pytest.mark.parametrize("framework", WRITERS)
def test_what_each_program_logs(framework: str, tmp_path: Path) -> None:
    axis, logged, says = WRITERS[framework]
    run = only(events(tmp_path, [(axis, logged)]))
    assert run.framework == framework
    assert {name: getattr(run.steps[0], name) for name in says} == says


def test_a_loss_of_training_alone_is_no_validation(tmp_path: Path) -> None:
    """nanoGPT logs both where it evaluates; its forks log the first of each iteration."""
    rows = [
        {"_step": n, "iter": n, "train/loss": 8.5, "lr": 3e-4, **({} if n else {"val/loss": 8.75})} for n in range(3)
    ]
    (history := tmp_path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [(point.step, point.loss) for point in only(history).validations] == [(0, 8.75)]


def test_calls_of_a_logger_are_no_steps(tmp_path: Path) -> None:
    """W&B's _step of Hugging Face counts calls, but in releases of before May 2021, which log no global_step at all."""
    (path := tmp_path / "chart.csv").write_text(
        "Step,a - train/loss,a - train/loss__MIN,a - train/loss__MAX\n7,2.5,2.5,2.5\n"
    )
    assert not only(path).steps
    rows = [{"_step": i, "train/loss": 2.5, "train/epoch": 0.1} for i in (3, 4)]
    (history := tmp_path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = only(history)
    assert not run.steps and "2 entries name no step, and are not read" in run.notes
    old = [(n, {"train/loss": 2.5, "train/epoch": 0.1}) for n in range(3)]
    directory = run_directory(tmp_path / "run", wandb_file(old, counter="unrelated"))
    assert [s.iteration for s in only(directory).steps] == [1, 2]


def test_what_a_line_of_torchtitan_divides_by_the_interval(tmp_path: Path) -> None:
    """A step's time is the time since the line before over log_freq: of lines at another distance it is wrong."""
    row = {"loss_metrics/global_avg_loss": 8.0, "time_metrics/end_to_end(s)": 1.25, "memory/max_reserved(GiB)": 61.5}
    run = only(events(tmp_path, [(i, row) for i in (1, 10, 20, 30)]))
    assert [s.step_time_s for s in run.steps] == [None, None, None, 1.25]
    assert run.steps[0].memory_bytes == round(61.5 * 2**30)


def test_a_chart_of_several_runs(tmp_path: Path) -> None:
    """A point of a chart may stand for many, and a column for a group of runs: those are nobody's."""
    names = ("a - lm loss", "b - lm loss", "Group: c - lm loss", "Group: d - lm loss")
    head = ["Step", *(f"{name}{end}" for name in names for end in ("", "__MIN", "__MAX"))]
    rows: list[list[Any]] = [
        [1, *["9.5"] * 12],
        [2, "9.25", "9.0", "9.5", *["9.125"] * 3, "7", "6", "8", *["7"] * 3],
        [3, *["NaN"] * 3, *[""] * 9],
    ]
    (path := tmp_path / "chart.csv").write_text("\n".join(",".join(map(str, row)) for row in [head, *rows]))
    a, b, several, one = read_all(path)
    assert [(s.step, s.loss) for s in a.steps] == [(0, 9.5), (2, None)] and a.steps[1].nonfinite == ("loss",)
    assert [(s.step, s.loss) for s in b.steps] == [(0, 9.5), (1, 9.125)]
    assert not several.steps and any("group of runs" in note for note in several.notes)
    assert [s.loss for s in one.steps] == [9.5, 7.0], "all members agree: one run's processes"


def test_a_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One run, though its console is a log, too: which says how it ended."""
    monkeypatch.chdir(tmp_path)
    console = "{'loss': 2.3, 'learning_rate': 3e-4, 'epoch': 0.33}\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n"
    run_directory(tmp_path / "wandb" / "run-1", wandb_file(HF[:2], {"seed": 1}, code=1), console)
    assert main(["wandb", "--save"]) == 0
    (run,) = find_runs(["runs"])
    assert run.record.status == "out_of_memory" and [s.iteration for s in run.record.steps] == [10, 20]
    facts = run.record.environment
    assert (
        facts["device_name"] == "NVIDIA H100 80GB HBM3" and facts["device_count"] == 8 and run.record.vendor == "nvidia"
    )
    assert facts["run_name"] == "my run" and "parsed wandb/run-1 (wandb)" in capsys.readouterr().err


def test_a_run_directory_without_a_history(tmp_path: Path) -> None:
    """The console has the steps, and names the program whose settings config.yaml has."""
    lines = [
        f"iteration {i}/ 6 | consumed samples: {i * 8} | lm loss: 9.5 | number of nan iterations: 0 |" for i in (1, 2)
    ]
    folder = run_directory(tmp_path / "run-1", b"", "\n".join([" using world size: 4", *lines, ""]))
    (folder / "run-abc.wandb").unlink()
    (folder / "files" / "config.yaml").write_text("wandb_version: 1\nnum_layers: {desc: null, value: 4}\n")
    (record,) = imported_all(folder)
    assert record.framework == "megatron" and [s.iteration for s in record.steps] == [1, 2]
    assert record.setting("num_layers") == 4 and record.environment["device_count"] == 8


def test_a_history_without_losses_of_steps(tmp_path: Path) -> None:
    """NanoGPT logs to W&B when it evaluates, and prints the steps between."""
    row = {"iter": 0, "train/loss": 4.0, "val/loss": 4.25, "lr": 1e-3, "mfu": -100.0}
    console = "number of parameters: 10.65M\nstep 0: train loss 4.0000, val loss 4.2500\n"
    console += "".join(f"iter {i}: loss 3.5000, time 45.50ms, mfu 8.16%\n" for i in range(3))
    (record,) = imported_all(run_directory(tmp_path / "1", wandb_file([(0, row)], counter="iter"), console))
    assert record.framework == "nanogpt" and [s.loss for s in record.steps] == [3.5] * 3
    (alone,) = imported_all(run_directory(tmp_path / "2", wandb_file([(0, row)], counter="iter")))
    assert [s.loss for s in alone.steps] == [None] and not alone.steps[0].metrics, "-100 % is no share"
    assert [v.loss for v in alone.validations] == [4.25]


def test_two_runs_of_one_notebook(tmp_path: Path) -> None:
    """How the console ends, and the settings, tell of the last one alone."""
    (tmp_path / "run").mkdir()
    folder = run_directory(
        tmp_path / "run" / "1",
        wandb_file([*HF[:2], *HF[:2]], {"seed": 7}),
        "torch.OutOfMemoryError: CUDA out of memory.\n",
    )
    first, second = imported_all(folder)
    assert (first.status, second.status) == ("unknown", "out_of_memory") and len(first.steps) == len(second.steps) == 2
    assert (first.setting("seed"), second.setting("seed")) == (None, 7), "W&B keeps the last settings alone"


def test_a_log_beside_its_export_is_one_run(tmp_path: Path) -> None:
    """Other digits, the same run: where one is below the other's folder. Of another folder it is another run."""
    line = "{{'loss': {:.4f}, 'learning_rate': 3e-4, 'epoch': {:.2f}, 'global_step/max_steps': '{}/30'}}"
    lines = [line.format(2.5 - i / 50, i / 30, i) for i in (10, 20)]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "train.log").write_text("\n".join([*lines, ""]))
    rows = [(i, {"train/loss": 2.50001 - i / 50, "train/learning_rate": 3e-4, "train/epoch": i / 30}) for i in (10, 20)]
    events(tmp_path / "a" / "runs" / "1", rows)
    events(tmp_path / "b" / "runs" / "1", [(i, {**row, "train/learning_rate": 1e-4}) for i, row in rows])
    events(tmp_path / "a" / "runs" / "2", [(i, {**row, "train/loss": 7.0}) for i, row in rows])
    logs, skipped = discover([tmp_path])
    assert {str(log.path.relative_to(tmp_path)) for log in logs} == {"a/train.log", "b/runs/1", "a/runs/2"}
    assert [other.why for other in skipped] == [f"the same run as {tmp_path}/a/train.log"]


def test_what_trackers_say_of_the_end(tmp_path: Path) -> None:
    (failed,) = imported_all(run_directory(tmp_path / "1", wandb_file(HF[:2], code=1)))
    (killed,) = imported_all(mlflow(tmp_path / "2", HF[:2], status=5))
    (unknown,) = imported_all(run_directory(tmp_path / "3", wandb_file(HF[:2])))
    assert (failed.status, killed.status, unknown.status) == ("failed", "killed", "unknown")
    assert (killed.environment["run_name"], failed.exit_code) == ("nightly", 1)
    assert killed.started_at == "2023-11-14T22:13:20+00:00"


def test_repeats_without_times_of_steps_are_no_copies(tmp_path: Path) -> None:
    """Two runs with the same losses began at two times; W&B's latest-run is the last of them again."""
    for name, start in (("run-1", "2026-11-01T00:00:00Z"), ("run-2", "2026-11-02T00:00:00Z"), ("latest-run", "")):
        folder = run_directory(tmp_path / name, wandb_file(HF))
        about = {"startedAt": start or "2026-11-02T00:00:00Z"}
        (folder / "files" / "wandb-metadata.json").write_text(json.dumps(about))
    logs, skipped = discover([tmp_path])
    assert len(logs) == 2 and len(skipped) == 1


def test_unknown_is_nothing(tmp_path: Path) -> None:
    """Values of a program that nobody knows, of which one has a name that others give the loss."""
    run = only(events(tmp_path, [(i, {"loss": 0.5, "accuracy": 0.9}) for i in range(3)]))
    assert not run.steps and run.framework is None
    assert any(note.startswith("2 of 2 tags are not known") for note in run.notes)
    assert kind_of(tmp_path / "none.csv") is None
    (ours := tmp_path / "ours.csv").write_text("log,run,step,interval_steps\n")
    assert kind_of(ours) is None


def test_a_strangers_run(tmp_path: Path) -> None:
    """No link leads out of its directory, and no alias multiplies what a short file says."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "output.log").write_text("Traceback (most recent call last):\nRuntimeError: a secret\n")
    (run := tmp_path / "run").mkdir()
    (run / "run-abc.wandb").write_bytes(wandb_file(HF))
    (run / "files").symlink_to(tmp_path / "mine")
    assert only(run).faults.root is None
    store = mlflow(tmp_path / "store", HF, {"seed": 1})
    (store / "params" / "learning_rate").symlink_to(tmp_path / "mine" / "output.log")
    assert "secret" not in repr(only(store))
    aliases = [
        f"a{at}: &a{at} {{value: {{{', '.join(f'{k}: *a{at - 1}' for k in 'bcdefghi')}}}}}" for at in range(1, 9)
    ]
    (bomb := run_directory(tmp_path / "bomb", b"")).joinpath("files", "config.yaml").write_text(
        "\n".join(["a0: &a0 {value: {}}", *aliases])
    )
    assert not only(bomb).effective
    far = only(mlflow(tmp_path / "far", [*HF[:2], (10**60, HF[3][1])]))
    assert [step.step for step in far.steps] == [9, 19]


@pytest.mark.parametrize("name", ["events", "wandb"])
def test_damaged_files(name: str, tmp_path: Path) -> None:
    """Nothing raises, and nothing that is read is another value than without the damage."""
    file = tmp_path / (f"{EVENTS}1" if name == "events" else "run-1.wandb")
    whole = events(tmp_path, megatron(range(1, 7))).read_bytes() if name == "events" else wandb_file(HF)
    right = {s.step: s for s in _steps(file, whole)}
    assert right
    for at in range(3, len(whole), max(1, len(whole) // 150)):
        assert all(_agrees(s, right[s.step]) for s in _steps(file, whole[:at])), at
        if name == "wandb":  # has checksums that cost nothing
            damaged = whole[:at] + bytes([whole[at] ^ 0x15]) + whole[at + 1 :]
            assert all(_agrees(s, right[s.step]) for s in _steps(file, damaged)), at
        else:
            _steps(file, whole[:at] + bytes([whole[at] ^ 0x15]) + whole[at + 1 :])


def _steps(file: Path, data: bytes) -> Sequence[Any]:
    file.write_bytes(data)
    return [step for run in (read_all(file) if kind_of(file) else ()) for step in run.steps]


def _agrees(step: Any, right: Any) -> bool:
    return all(getattr(step, n) in (None, getattr(right, n)) for n in ("loss", "lr", "grad_norm", "step_time_s"))


def test_the_table() -> None:
    """Each program is recognised by its own signs, ahead of those that come behind it, and reads what they name."""
    assert len(writers()) > 12, TABLE
    for writer in writers():
        for sign in writer.signs:
            first = next(w for w in writers() if any(set(sign).issuperset(other) for other in w.signs))
            assert first is writer, sign
            assert any(map(writer.reads, sign)), sign
        names = {name for name, _ in writer.targets.values()}
        assert {*writer.means, *writer.divided} <= names & FIELDS, writer
        assert "memory_bytes" not in names or writer.memory_kind or (writer.dialect and load(writer.dialect).adjust), (
            writer
        )
