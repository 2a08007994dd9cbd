"""Published speeds beside a run's: only of the same model by shape, GPU and precision, and none that contradicts
itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from compare.comparison import compare, to_json
from conf import facts
from conf.compose import choices
from metrics import published
from metrics.published import TABLE, Row, beside, beyond, contradiction, models, rows
from metrics.summary import summarise
from parsers import Run, write
from tensorprimat.claims import main
from tests.metrics.metrics_made import made, settings
from tests.metrics.published_rows import COLLECTED, built
from tests.metrics.test_rules import result

LLAMA = Row(
    model="llama3-8b",
    hardware="h100",
    gpus=8,
    precision="bf16",
    task="pretraining",
    seq_length=8192,
    tokens_per_s_per_gpu=10_000.0,
    global_batch_size=128,
    step_time_s=13.11,
    tflops_per_gpu=515.0,
    mfu_percent=52.0,
    date="2026",
    confidence="A",
    source="a table",
)


@pytest.mark.skipif(not COLLECTED.is_file(), reason="no ../shared")
def test_the_shipped_rows_are_those_that_qualify() -> None:
    """`UPDATE_GOLDEN=1 pytest tests/metrics/test_references.py` writes them; others stand beside them, and stay."""
    text = built()
    if os.environ.get("UPDATE_GOLDEN") == "1":
        TABLE.write_text(text, encoding="utf-8")
    assert text.splitlines() == TABLE.read_text(encoding="utf-8").splitlines()


def test_every_shipped_row_is_of_a_known_model_and_gpu_and_agrees_with_itself() -> None:
    assert len(rows()) > 600
    assert {row.hardware for row in rows()} < {*choices("hardware")}
    assert {row.model for row in rows()} <= models().keys()
    assert all(row.source and row.date for row in rows())
    assert [why for why in map(contradiction, rows()) if why] == []


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({}, ""),
        ({"step_time_s": 6.5}, "its step time makes 20,160 tokens/s/GPU, not 10,000"),
        ({"tflops_per_gpu": 300.0}, "its speed makes 514.7 TFLOP/s, not 300.0"),
        ({"tflops_per_gpu": 900.0}, "not 900.0"),
        ({"mfu_percent": 20.0}, "its speed makes 52.02 % MFU, not 20.00"),
        ({"tokens_per_s_per_gpu": 25_000.0, "step_time_s": None}, "above the peak of 989.4"),
        ({"tokens_per_s_per_gpu": 0.0}, "no speed"),
        # three ways of counting that are no contradiction: full attention, recomputed work, LoRA
        ({"tflops_per_gpu": 579.0, "mfu_percent": None}, ""),
        ({"tflops_per_gpu": 690.0, "mfu_percent": None}, ""),
        ({"tflops_per_gpu": 345.0, "mfu_percent": 34.9, "task": "lora"}, ""),
    ],
)
def test_a_row_that_contradicts_itself(wrong: dict[str, Any], text: str) -> None:
    found = contradiction(replace(LLAMA, **wrong))
    assert text in found and bool(text) == bool(found)


def test_no_speed_stands_beside_a_row_that_contradicts_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(published, "rows", lambda: (replace(LLAMA, step_time_s=6.5),))
    assert main(["check", "model=llama31_8b", "hardware=h100", "tokens_per_s_per_gpu=9k"]) == 2
    assert "not 10,000" in (err := capsys.readouterr().err) and "leave the row out" in err


ABOUT = {"hardware": "h100"}


@pytest.mark.parametrize(
    ("case", "speed", "known", "texts"),
    [
        (
            "as issue 17 has it",
            9_000,
            ABOUT,
            ["Published for Llama 3.1 8B on H100, bf16, 8 GPUs: from ", "yours 9,000, 8"],
        ),
        ("other GPUs", 9_000, ABOUT | {"world_size": 4}, ["8 GPUs (yours 4)"]),
        (
            "another sequence",
            9_000,
            ABOUT | {"seq_length": 4096},
            ["8,192 tokens a sequence (yours 4,096)", "in FLOP/s"],
        ),
        ("another precision", 9_000, ABOUT | {"fp8": "hybrid"}, [", fp8, "]),
        ("padded rows of the vocabulary", 9_000, ABOUT | {"padded_vocab_size": 128_512}, ["Llama 3.1 8B"]),
        ("a GPU that has none", 9_000, {"hardware": "gh200"}, None),
        ("no GPU", 9_000, {"hardware": None}, None),
        ("another model of nearly that shape", 9_000, ABOUT | {"ffn_hidden_size": 14_848}, None),
        ("another vocabulary", 9_000, ABOUT | {"vocab_size": 32_000, "padded_vocab_size": 32_000}, None),
    ],
)
def test_what_is_published_for_the_same_work_alone(
    case: str, speed: float, known: dict[str, Any], texts: list[str] | None
) -> None:
    stated = settings(**{name: value for name, value in known.items() if name != "hardware"})
    record = made(speed * stated["world_size"] / 8, hardware=known["hardware"], settings=stated)
    reference, _ = beside(record, summarise(record))
    assert (reference is None) == (texts is None), (case, str(reference))
    assert all(text in str(reference) for text in texts or ()), (case, str(reference))


@pytest.mark.parametrize(("hardware", "precision"), [("b200", "bf16"), ("mi300x", "bf16"), ("h100", "fp32")])
def test_too_few_published_models_say_nothing_about_others(hardware: str, precision: str) -> None:
    assert beyond(2_000, facts.hardware(hardware), precision) == ""


def test_a_low_speed_on_many_more_gpus_is_no_wonder() -> None:
    for gpus, odd in ((256, True), (1024, False)):  # published: up to 128
        record = made(3_000 * gpus / 8, hardware="h100", settings=settings(world_size=gpus))
        reference, warnings = beside(record, summarise(record))
        assert "128 GPUs (yours" in str(reference) and bool(warnings) == odd


def test_a_result_of_mlperf_is_beside_those_of_its_benchmark_in_any_precision() -> None:
    record = result(rate=1.0)
    reference, _ = beside(record, summarise(record))
    assert "Llama 2 70B (LoRA) on MI300X, any precision, 8 GPUs" in str(reference)
    pretraining, _ = beside(made(hardware="h100"), summarise(made(hardware="h100")))
    assert pretraining and {row.task for row in pretraining.rows} == {"pretraining"}


@pytest.mark.parametrize(
    ("speed", "odd"),
    [
        (14_000, "above all that was published on H100 in bf16, whatever the model: 55.6 % of the peak is the most"),
        (3_000, "less than half of the least that was published for it; usual causes: "),
        (9_000, ""),
    ],
)
def test_odd_speeds_are_said_by_metrics_and_by_its_check(
    speed: int, odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """72.8 % of an H100's peak passed without a word."""
    write(made(speed, hardware="h100"), tmp_path)
    for command in ([str(tmp_path)], ["check", "model=llama31_8b", "hardware=h100", f"tokens_per_s_per_gpu={speed}"]):
        assert main(command) == 0
        text = capsys.readouterr().out
        assert "Published for Llama 3.1 8B on H100, bf16, " in text and odd in text
        assert ("Warning" in text) == bool(odd)
        assert main([*command, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        found = found[0] if isinstance(found, list) else found
        assert found["published"]["text"] in text and found["published"]["sources"]
        assert bool(odd) == any(odd in warning for warning in found["warnings"])


def test_a_comparison_has_them_by_group() -> None:
    """One line for each group, in compare.json, too; nothing where nothing was published."""
    runs = [Run(gpu, made(9_000, hardware=gpu, id=gpu)) for gpu in ("h100", "gh200")]
    comparison = compare(runs)
    lines = {label: beside.lines for label, beside in comparison.references.items()}
    assert sorted(map(len, lines.values())) == [0, 1]
    assert any(line.startswith("Published for Llama 3.1 8B on H100") for (line, *_) in filter(None, lines.values()))
    found = {group["hardware"]: group["published"] for group in to_json(comparison)["groups"]}
    assert found["gh200"] is None and 80 < found["h100"]["percent_of_best"] < 90
