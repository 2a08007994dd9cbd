"""Test Hugging Face's Trainer and what is built on it: which step a line is of, its memory, its files, its crashes."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from conf.errors import InputError
from parsers import Ending, judge
from parsers.cli import discover, imported
from parsers.record import numbered
from tests.parsers.helpers import all_runs, parse_text, steps_of


def line(epoch: float | str, loss: float = 2.5, rest: str = "") -> str:
    return f"{{'loss': {loss}, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': {epoch}{rest}}}"


def bar(step: int, total: int = 97) -> str:
    return f" 10%|█         | {step}/{total} [01:44<08:41,  6.39s/it]"


def header(examples: int = 100_000, batch: int = 1024, micro: int = 16, planned: int = 97, epochs: int = 1) -> str:
    return (
        f"***** Running training *****\n  Num examples = {examples:,}\n  Num Epochs = {epochs}\n"
        f"  Total train batch size (w. parallel, distributed & accumulation) = {batch:,}\n"
        f"  Gradient Accumulation steps = {micro}\n  Total optimization steps = {planned}"
    )


def dump(every: str, rest: str = "") -> str:
    return f"TrainingArguments(\nlogging_first_step=False,\nlogging_steps={every},\n{rest}"


AWS = [line(epoch) for epoch in (0.16, 0.33, 0.49, 0.66, 0.82)]
# A log, and the number of each line's step as far as the log shows it.
NUMBERS: dict[str, tuple[list[str], list[int | None]]] = {
    "nothing": (AWS, [None] * 5),
    "bars that are not next to a line": ([AWS[0], bar(18), AWS[1], bar(35), AWS[2], bar(50)], [None] * 3),
    "the header's batches and the epoch": ([header(), *AWS], [16, 32, 48, 64, 80]),
    "Unsloth's header": (
        [
            "==((====))==  Unsloth - 2x faster free finetuning | Num GPUs used = 1",
            r"   \\   /|    Num examples = 1,600 | Num Epochs = 1 | Total steps = 50",
            r"O^O/ \_/ \    Batch size per device = 16 | Gradient accumulation steps = 2",
            r"\        /    Data Parallel GPUs = 1 | Total batch size (16 x 2 x 1) = 32",
            *map(line, (0.1, 0.2)),
        ],
        [5, 10],
    ),
    "logging_steps": ([dump("16"), *AWS], [16, 32, 48, 64, 80]),
    "logging_steps in YAML": (["logging_steps: 16", *AWS], [16, 32, 48, 64, 80]),
    "logging_steps of a command": (["train --bf16 --logging_steps 16 --lr 1", *AWS], [16, 32, 48, 64, 80]),
    "logging_steps as a number with a point": ([dump("16.0"), *AWS], [16, 32, 48, 64, 80]),
    "a share of all steps is no logging_steps": ([dump("0.16"), *AWS], [None] * 5),
    "lines of epochs": ([dump("500", "logging_strategy=IntervalStrategy.EPOCH,"), line(1.0), line(2.0)], [None] * 2),
    "a first line of its own": (
        ["logging_first_step=True,", "logging_steps=5,", header(), *map(line, (0.01, 0.05, 0.1))],
        [1, 5, 10],
    ),
    "the same on a command line": (
        ["train --logging_first_step --logging_steps 5 \\", header(), *map(line, (0.01, 0.05))],
        [1, 5],
    ),
    "logging_steps and a log that begins elsewhere": ([dump("16"), line(2.16), line(2.33)], [None] * 2),
    "logging_steps and a checkpoint": (
        [dump("16"), "  Continuing training from global step 32", AWS[2], AWS[3]],
        [48, 64],
    ),
    "a checkpoint that the dump names": ([dump("16", "resume_from_checkpoint=out/c-32,"), *AWS[2:]], [48, 64, 80]),
    "a checkpoint that it does not": ([dump("16", "resume_from_checkpoint=None,"), *AWS[:2]], [16, 32]),
    "logging_steps where two digits leave many": (
        [dump("10"), header(10**7, 64, 1, 156250), line(0.0), line("0.0", 2.4), line("0.0", 2.3)],
        [10, 20, 30],
    ),
    "a line that was lost": ([dump("16"), header(), AWS[0], AWS[1], AWS[3], AWS[4]], [16, 32, 64, 80]),
    "bars around lines": (
        [x for n, text in zip((16, 32), AWS, strict=False) for x in (bar(n), text, bar(n))],
        [16, 32],
    ),
    "bars of something else before": (
        [bar(4, 4), bar(0), bar(1), line(0.01), bar(1), bar(9, 40), bar(40, 40), bar(2), line(0.02, 2.4), bar(2)],
        [1, 2],
    ),
    "lines that were kept back while bars came": (
        [*(bar(n) for n in range(97)), *AWS, bar(97)],
        [None] * 5,
    ),
    "lines that were kept back, and bars that were drawn again for them": (
        [*(bar(n) for n in range(60) for _ in range(1 + (n % 16 == 0))), *AWS[:3], bar(60), *AWS[3:], bar(97)],
        [16, 32, 48, 64, 80],
    ),
    "the same, but every bar is drawn twice: of two nodes": (
        [*(bar(n) for n in range(60) for _ in range(2)), *AWS[:3], bar(60), *AWS[3:], bar(97)],
        [None] * 5,
    ),
    "a line that was lost between bars": (
        [bar(0), bar(1), line(0.01), bar(1), bar(2), line(0.02, 2.4), bar(2), bar(3), bar(3), line(0.04, 2.2), bar(5)],
        [1, 2, None],
    ),
    "a text that is there twice": (
        [bar(0), *(x for n in (16, 32) for _ in range(2) for x in (bar(n - 1), bar(n), AWS[n // 16 - 1])), bar(32)],
        [16, 32],
    ),
    "bars ahead of lines": ([dump("16"), bar(0), bar(48), AWS[0], bar(48)], [None]),
    "LLaMA Board's rounded values beside the Trainer's": (
        [header(), "[INFO] >> {'loss': 2.5000, 'learning_rate': 5.0000e-05, 'epoch': 0.16}", AWS[0], AWS[1]],
        [16, 32],
    ),
    "the batch of GRPO counts completions": (
        [header(5498, 224, 4, 196), line(0.5), line(0.75)],
        [None] * 2,
    ),
    "four significant digits since transformers 5": (
        [header(10**6, 256, 4, 3907), line("'0.01536'"), line("'0.01562'")],
        [60, 61],
    ),
    "step": ([line(0.5, rest=", 'step': 7"), line(0.6, rest=", 'step': 9")], [7, 9]),
    "global_step": ([line(0.5, rest=", 'global_step': 7")], [7]),
    "two processes that write one file": (
        [line(0.5, 2.5, ", 'step': 7"), line(0.5, 2.51, ", 'step': 7"), line(0.6, rest=", 'step': 9")],
        [7, 9],
    ),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_the_step_of_a_line_is_never_the_count_of_lines(what: str) -> None:
    lines, expected = NUMBERS[what]
    (run,) = parse_text("\n".join(lines))
    assert [step.step + 1 if step.numbered else None for step in run.steps] == expected


def test_how_many_steps_the_first_line_covers() -> None:
    """A bar begins at 0 after a checkpoint, too."""
    drawn = [bar(0), *(x for n in (16, 32) for x in (bar(n), AWS[n // 16 - 1], bar(n)))]
    resumed = [header(), "  Continuing training from global step 20", *AWS[1:3]]
    for lines, expected in (drawn, [None, 16]), ([header(), *AWS[:2]], [16, 16]), (resumed, [12, 16]):
        assert [step.interval_steps for step in steps_of("hf", "\n".join(lines))] == expected


def test_what_every_rank_and_a_traceback_say() -> None:
    """Each rank names the checkpoint; a call in a traceback names none; LLaMA-Factory is built on TRL.
    A log that ends without a line end has its last word, where that is a word."""
    call = "    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)"
    places = [f'  File "/a/{name}.py", line 5, in <module>' for name in ("trl/trainer/x", "llamafactory/train/y")]
    rank = "  Continuing training from global step 20"
    (run,) = all_runs("\n".join([header(), rank, rank, *AWS[1:3], *places, call, "KeyboardInterrupt"]).encode())
    assert [restart.steps for restart in run.restarts] == [20] and run.facts["trainer"] == "llamafactory"
    assert "resumed_from" not in run.facts and run.faults.interrupted == "KeyboardInterrupt"
    assert not any("no end" in note for note in run.notes)
    swift = "[INFO:swift] rank: 0, local_rank: 0, world_size: 16, local_world_size: 8"
    (run,) = parse_text("\n".join([swift, header(), "resume_from_checkpoint=/a/checkpoint-20,", *AWS[1:3]]))
    assert run.effective["world_size"].value == 16
    assert run.facts["resumed_from"] == "/a/checkpoint-20"


def log_of(rng: random.Random) -> tuple[str, dict[float, int]]:
    """Return a log as the Trainer writes it, and the step of each loss."""
    micro, batch, every = rng.choice([1, 2, 8]), 64, rng.choice([1, 5, 16])
    examples, version, keeps_back = rng.randint(batch, 90_000), rng.choice(["cut", "carry", "add"]), rng.random() < 0.3
    batches = math.ceil(examples * micro / batch)
    steps = max(1, -(-batches // micro) if version == "add" else batches // micro)
    planned = min(3 * steps, 30 * every)
    lines = [dump(str(every))] if rng.random() < 0.5 else []
    lines += [header(examples, batch, micro, planned, math.ceil(planned / steps))] if rng.random() < 0.5 else []
    drawn, digits4, kept, losses = rng.choice([0.0, 0.2, 1.0]), rng.random() < 0.3, [], {}
    for step in range(1, planned + 1):
        lines += [bar(step, planned)] if rng.random() < drawn else []
        if step % every == 0:
            epochs, place = divmod(step - 1, steps)
            epoch = step * micro / batches if version == "carry" else epochs + min(1, (place + 1) * micro / batches)
            loss = round(9 - step * 1e-4, 4)
            losses[loss] = step
            kept.append(line(f"'{epoch:.4g}'" if digits4 else round(epoch, 2), loss))
            if not keeps_back or len(kept) > 5:
                lines, kept = [*lines, *kept], []
            lines += [bar(step, planned)] if drawn == 1 else []
    return "\n".join([*lines, *kept]), losses


def test_no_number_is_wrong() -> None:
    known = 0
    for seed in range(80):
        text, losses = log_of(random.Random(seed))
        read = [step for run in parse_text(text) for step in run.steps]
        assert len(read) == len(losses)
        for step in (step for step in read if step.numbered):
            assert (seed, step.loss, step.step + 1) == (seed, step.loss, losses[step.loss or 0])
            known += 1
    assert known > 800


def test_lines_without_a_number_are_no_iterations_and_have_no_place_beside_another_runs() -> None:
    (run,) = parse_text("\n".join(["Total optimization steps = 97", *AWS]))
    assert judge(Ending(), run).notes == ("the log ends after 5 lines of steps whose numbers the log does not print",)
    assert numbered(run.steps) == []
    assert run.reached == 0


@pytest.mark.parametrize(
    ("rest", "memory_bytes", "metrics"),
    [
        (
            ", 'memory/max_active (GiB)': '2.5', 'memory/max_allocated (GiB)': '2.25', 'memory/device_reserved (GiB)': "
            "'4.5', 'tokens/train_per_sec_per_gpu': '3049', 'tokens/total': 512, 'tokens/trainable': 93, 'ppl': '10.5'",
            4.5,
            {"active_bytes": 2.5 * 2**30, "allocated_bytes": 2.25 * 2**30, "trainable_tokens_per_s_per_gpu": 3049.0}
            | {"consumed_tokens": 512.0, "trainable_tokens": 93.0, "perplexity": 10.5},
        ),
        (
            ", 'memory/max_mem_active(gib)': 2.5, 'memory/device_mem_reserved(gib)': 4.5",
            4.5,
            {"active_bytes": 2.5 * 2**30},
        ),
        (", 'memory/max_active (GiB)': 2.5, 'memory/device_reserved (GiB)': 0", None, {"active_bytes": 2.5 * 2**30}),
        (
            ", 'step': 7, 'step_time_sec': 3.5, 'avg_step_time_sec': 3.25, 'step_peak_memory_reserved_MB': 4608.0, "
            "'total_peak_memory_reserved_MB': 9216.0, 'step_tokens_per_second': 18801.5",
            4.5,
            {"step_time_s_running_mean": 3.25, "tokens_per_s": 18801.5},
        ),
        (", 'memory(GiB)': 4.5", 4.5, {}),
    ],
)
def test_memory(rest: str, memory_bytes: float | None, metrics: dict[str, float]) -> None:
    (step,) = steps_of("hf", line(0.5, rest=rest))
    assert step.memory_bytes == (None if memory_bytes is None else memory_bytes * 2**30)
    assert step.memory_kind == (None if memory_bytes is None else "reserved")
    assert step.metrics == {"epoch": 0.5, **metrics}
    assert step.step_time_s == (3.5 if "step_time_sec" in rest else None)


HISTORY: list[dict[str, Any]] = [
    {"epoch": 0.25, "grad_norm": 1.5, "learning_rate": 1e-05, "loss": 2.5, "step": 10},
    {"epoch": 0.5, "grad_norm": 1.5, "learning_rate": 5e-06, "loss": 2.25, "step": 20, "confusion": [[1, 2], [3, 4]]},
    {"epoch": 0.5, "eval_loss": 2.375, "eval_runtime": 7.25, "step": 20},
]
END = {"epoch": 0.55, "step": 22, "total_flos": 1e17, "train_loss": 2.4, "train_runtime": 612.5}


def state(history: list[dict[str, Any]], planned: int = 22) -> str:
    entries = {"epoch": 0.55, "global_step": 22, "log_history": history, "logging_steps": 10, "max_steps": planned}
    return json.dumps(entries, indent=2, sort_keys=True)


def swift(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: value for name, value in entry.items() if name != "step"},
        "global_step/max_steps": f"{entry['step']}/22",
    }


def factory(entry: dict[str, Any], rate: str = "lr", **more: Any) -> dict[str, Any]:
    known = {"loss": entry.get("loss"), "eval_loss": entry.get("eval_loss"), rate: entry.get("learning_rate")}
    return {"current_steps": entry["step"], "total_steps": 22, **known, "epoch": entry["epoch"], **more}


def lines_of(entries: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in entries)


FILES = {
    "trainer_state.json": state([*HISTORY, END]),
    "trainer_log.jsonl": lines_of([factory(entry, "learning_rate") for entry in (*HISTORY, END)]),
    "trainer_log_of_today.jsonl": lines_of(
        [{k: v for k, v in factory(entry).items() if v is not None} for entry in (*HISTORY, END)]
    ),
    "logging.jsonl": lines_of([swift(entry) for entry in (*HISTORY, END)])
    + json.dumps({"model_info": "x", "log_history": [*HISTORY, END], "memory": 16.5}),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(FILES[name])
    record = imported(path)
    assert [(s.step, s.iteration, s.loss, s.lr) for s in record.steps] == [(9, 10, 2.5, 1e-5), (19, 20, 2.25, 5e-6)]
    assert [step.interval_steps for step in record.steps] == [10 if name == "trainer_state.json" else None, 10]
    assert [(point.step, point.loss) for point in record.validations] == [(19, 2.375)]
    assert (record.status, record.framework) == ("completed", "hf")
    assert [log.path.name for log in discover([tmp_path])[0]] == [name]


def test_a_state_of_the_middle_is_not_complete(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(state(HISTORY, planned=438))
    record = imported(path)
    assert (record.status, record.notes[-1]) == ("unknown", "the log ends at iteration 20 of 438")
    assert path.read_text().split("\n")[record.steps[0].line] == '      "epoch": 0.25,'
    path.write_text(state(HISTORY))  # of the last step, which prints no line and whose summary came later
    assert imported(path).status == "completed"


TRACEBACK = (
    'Traceback (most recent call last):\n  File "/venv/lib/python3.11/site-packages/{}", line 2279, in train\n{}'
)
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize(
    ("text", "trainer", "status"),
    [
        (TRACEBACK.format("transformers/trainer.py", OUT_OF_MEMORY), "transformers", "out_of_memory"),
        (TRACEBACK.format("llamafactory/train/tuner.py", "ValueError: no data"), "llamafactory", "failed"),
        (TRACEBACK.format("axolotl/cli/train.py", "KeyError: 'x'"), "axolotl", "failed"),
        (
            f"\u2502 /venv/transformers/trainer.py:2203 in train  \u2502\n{OUT_OF_MEMORY}",
            "transformers",
            "out_of_memory",
        ),
        (TRACEBACK.format("swift/llm/train/sft.py", "KeyError: 'x'"), "swift", "failed"),
        ("[INFO:swift] last_model_checkpoint: None\nKeyError: 'x'", "swift", "failed"),
        ("[2026-01-02 10:00:00,000] [INFO] [axolotl.train:99] loading\nKeyError: 'x'", "axolotl", "failed"),
        (f"{header()}\n  0%|          | 0/97 [00:00<?, ?it/s]{OUT_OF_MEMORY}\n{OUT_OF_MEMORY}", None, "out_of_memory"),
    ],
)
def test_a_crash_before_the_first_step_is_a_failed_run(text: str, trainer: str | None, status: str) -> None:
    (run,) = parse_text(text)
    ended = judge(Ending(), run)
    assert (run.dialect, ended.status, run.facts.get("trainer")) == ("hf", status, trainer)
    assert ended.cause == text.rsplit("\n", maxsplit=1)[-1]


def test_what_is_no_trainers_crash() -> None:
    for text in (
        TRACEBACK.format("nanogpt/train.py", "KeyError: 'x'"),
        '{"optimizer": "adam", "learning_rate": 0.001, "loss": "mse", "epochs": 3}',
    ):
        (run,) = parse_text(text)
        assert (run.dialect, len(run.steps)) == (None, 0)


SUMMARY = "{'train_runtime': 612.25, 'train_samples_per_second': 163.3, 'train_loss': 2.84, 'epoch': 1.0}"


def ended(*lines: str) -> str:
    (run,) = parse_text("\n".join((*lines, SUMMARY)))
    return judge(Ending(), run).status


def test_the_trainers_end_is_the_runs() -> None:
    assert ended() == "completed"
    assert ended(*AWS) == "completed"
    assert ended(header(), *AWS, line(0.98)) == "completed"  # step 96 of 97, every 16
    assert ended(header(), *AWS[:3]) == "unknown"  # stopped at 48 of 97
    assert ended(header(), line("nan", loss=float("nan"))) == "diverged"


def test_an_evaluations_examples_are_not_the_trainings_and_steps_without_a_line_may_lie_before_it() -> None:
    examples = "***** Running Evaluation *****\n  Num examples = 7"
    points = [f"{{'eval_loss': 2.5, 'epoch': {epoch}}}" for epoch in (0.16, 0.2)]
    (run,) = parse_text("\n".join((header(), AWS[0], examples, *points, SUMMARY)))
    assert run.facts["num_examples"] == 100_000
    assert [point.step for point in run.validations] == [15, None]


STATED = {"lr": 2e-05, "micro_batch_size": 4, "num_micro_batches": 8, "seed": 42, "lr_decay_style": "cosine"}
GIVEN = "bf16=True,gradient_accumulation_steps=8,learning_rate=2e-05,lr_scheduler_type={},max_steps=-1,"
GIVEN += "per_device_train_batch_size=4,seed=42"
AXOLOTL = {"bf16": True, "learning_rate": 2e-05, "lr_scheduler": "cosine", "micro_batch_size": 4, "sequence_len": 4096}
AXOLOTL |= {"gradient_accumulation_steps": 8, "seed": 42, "fsdp_config": {"seed": [7]}, "world_size": 2}


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (f"parameters TrainingArguments({GIVEN.format('SchedulerType.COSINE').replace(',', ', ')})", {}),
        ("parameters Seq2SeqTrainingArguments(\n" + GIVEN.format("cosine").replace(",", ",\n") + ",\n)\nseed=7,", {}),
        ("SFTConfig(\n" + GIVEN.format("<SchedulerType.COSINE: 'cosine'>").replace(",", ",\n") + ",\n)", {}),
        (
            f"[INFO] [axolotl.cli.config.load_cfg:248] [PID:1] config:\n{json.dumps(AXOLOTL, indent=2)}",
            {"world_size": 2},
        ),
    ],
    ids=["one line", "many lines", "TRL", "axolotl"],
)
def test_a_dump_of_what_the_trainer_was_given_states_settings(text: str, more: dict[str, int]) -> None:
    (run,) = parse_text("\n".join([text, header(batch=64, micro=8), *map(line, (0.1, 0.2)), text.replace("42", "43")]))
    stated = {name: reading.value for name, reading in run.effective.items()}
    assert stated == {**STATED, **more, "global_batch_size": 64}
    assert run.facts["precision"] == "bf16"
    (source,) = parse_text("\n".join([f"args = TrainingArguments(\n{GIVEN}\n)", *map(line, (0.1, 0.2))]))
    assert source.effective == {}


def test_a_state_of_one_line_is_read_as_one_of_many(tmp_path: Path) -> None:
    entries = [{"epoch": at / 30, "learning_rate": 1e-05, "loss": 2.5 - at / 30, "step": at} for at in (10, 20, 30)]
    state = {"best_metric": None, "global_step": 30, "log_history": entries, "logging_steps": 10, "max_steps": 30}
    for name, text in (("a", json.dumps(state, indent=2)), ("b", json.dumps(state))):
        path = tmp_path / name / "trainer_state.json"
        path.parent.mkdir()
        path.write_text(text)
    both = [imported(tmp_path / name / "trainer_state.json") for name in "ab"]
    assert both[0].steps == both[1].steps != ()
    assert [record.status for record in both] == ["completed", "completed"]
    assert [log.dialect for log in discover([tmp_path / "b"])[0]] == ["hf"]


TORCHS = 'Traceback (most recent call last):\n  File "/x/torch/cuda/__init__.py", line 1\nRuntimeError: no device\n'


def test_a_folder_whose_only_log_crashed_before_its_first_step_has_a_failed_run(tmp_path: Path) -> None:
    (tmp_path / "job.e").write_text(TORCHS)
    assert [log.path.name for log in discover([tmp_path])[0]] == ["job.e"]
    assert imported(tmp_path / "job.e").cause == "RuntimeError: no device"
    (tmp_path / "train.log").write_text(f"{header()}\n{TORCHS}")
    assert [log.path.name for log in discover([tmp_path])[0]] == ["train.log"]
    (tmp_path / "other.log").write_text("\n".join([header(), *AWS]))
    assert [log.path.name for log in discover([tmp_path])[0]] == ["other.log"]
    (tmp_path / "job.e").write_text(TORCHS.replace("torch", "pip"))
    with pytest.raises(InputError, match="not a training log"):
        imported(tmp_path / "job.e")


LAUNCH = "[2026-05-01 10:00:00,1] [ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = "
ENDS = {
    "Killed": ("killed", "Killed"),
    f"{bar(16)}Killed": ("killed", bar(16).strip() + "Killed"),
    f"{LAUNCH}-9": ("failed", "a process that was started died by SIGKILL"),
    f"ValueError: bad\n{LAUNCH}1": ("failed", "ValueError: bad"),
    f"subprocess.CalledProcessError: Command '{['x' * 900]}' died with <Signals.SIGKILL: 9>.": (
        "failed",
        "a process that was started died by SIGKILL",
    ),
    "Killed workers: 3": ("unknown", None),
}


@pytest.mark.parametrize("end", ENDS, ids=range(len(ENDS)))
def test_a_launchers_last_words_are_the_cause(end: str) -> None:
    (run,) = parse_text("\n".join([header(), *AWS, end]))
    outcome = judge(Ending(), run)
    assert (outcome.status, outcome.cause) == ENDS[end]


def test_unsloth_names_its_device() -> None:
    for text in ("NVIDIA A100-SXM4-80GB. Num GPUs = 1. Max memory: 79.5 GB.", "GPU: Tesla T4. Max memory: 14.5 GB."):
        (run,) = parse_text("\n".join([f"   \\\\   /|    {text} Platform: Linux.", *map(line, (0.1, 0.2))]))
        name, _, rest = text.removeprefix("GPU: ").partition(". ")
        assert run.facts["device_name"] == name
        assert run.facts["device_memory_bytes"] == (79.5 if "79.5" in rest else 14.5) * 2**30


def test_the_default_log_level_and_no_bar_tell_the_outcome_and_every_step() -> None:
    """Trainer at its defaults prints no header, and its values as strings (transformers 5, trainer_callback.py)."""
    lines = ["{'loss': '6.2', 'grad_norm': '3.8', 'learning_rate': '0.00025', 'epoch': '0.5'}"]
    lines += ["{'loss': '6.0', 'grad_norm': '3.0', 'learning_rate': '0.0005', 'epoch': '1'}"]
    end = "{'train_runtime': '9.6', 'train_samples_per_second': '8.3', 'train_loss': '6.1', 'epoch': '1'}"
    (whole,), (cut,) = (parse_text("\n".join(text)) for text in ([*lines, end], lines))
    assert [step.loss for step in whole.steps] == [6.2, 6.0]
    assert [judge(Ending(), run).status for run in (whole, cut)] == ["completed", "unknown"]
