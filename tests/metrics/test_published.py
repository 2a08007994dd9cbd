"""Test what others measured, published or printed in their logs: our FLOPs must explain their TFLOP/s, and nothing of
it may be judged impossible."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping
from pathlib import Path

import pytest

from conf.facts import hardware
from metrics import Quantity, summarise
from metrics.flops import CONVENTIONS, flops_per_token
from metrics.peak import judge_tflops
from metrics.shape import Shape
from parsers.cli import imported
from parsers.given import given_of, with_given

SHARED = Path(__file__).parents[3] / "shared"
LOGS, DATA = SHARED / "logs", SHARED / "data" / "published_runs.csv"
PRECISIONS = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
GPUS = {"A100-80": "a100"}
pytestmark = pytest.mark.skipif(not DATA.is_file(), reason="no ../shared")


def dense_rows() -> list[Mapping[str, str]]:
    """Return those of dense models in pre-training, with shape and speed, read at their source."""
    with DATA.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == "pretrain" and row["confidence"] in "AB"]
    needed = ("layers", "hidden", "ffn", "heads", "vocab", "seq", "tokens_per_s_per_gpu")
    return [row for row in rows if all(row[name] for name in needed) and not row["experts"]]


def shape(row: Mapping[str, str]) -> Shape:
    heads, hidden = int(row["heads"]), int(row["hidden"])
    plain = "mpt" in row["source_group"] or "gpt" in row["model"].lower() or "nemotron" in row["model"].lower()
    return Shape(
        hidden_size=hidden,
        num_attention_heads=heads,
        num_layers=int(row["layers"]),
        ffn_hidden_size=int(row["ffn"]),
        vocabulary=int(row["vocab"]),
        num_query_groups=int(row["kv_heads"] or heads),
        kv_channels=hidden // heads,
        gated_linear_unit=not plain,
        untie_embeddings_and_output_weights=True,
    )


@pytest.mark.parametrize(
    ("group", "convention", "least", "within"),
    [("mbridge", "megatron_causal", 80, 0.025), ("mpt", "full_attention", 150, 0.05)],
)
def test_their_tflops_are_their_tokens_times_our_flops(group: str, convention: str, least: int, within: float) -> None:
    """Megatron-Bridge's tables and llm-foundry's, each under its own convention; both columns are rounded there."""
    found = []
    for row in dense_rows():
        if row["source_group"] == group and row["tflops_per_gpu"]:
            ours = flops_per_token(shape(row), int(row["seq"]), CONVENTIONS[convention])
            found.append(float(row["tflops_per_gpu"]) * 1e12 / float(row["tokens_per_s_per_gpu"]) / ours)
    assert len(found) >= least
    assert statistics.median(found) == pytest.approx(1, abs=0.005)
    assert max(abs(ratio - 1) for ratio in found) < within


def test_no_published_speed_is_called_impossible() -> None:
    judged = []
    for row in dense_rows():
        device, precision = hardware(GPUS.get(row["gpu"], row["gpu"].lower())), PRECISIONS.get(row["precision"])
        if device and precision:
            tflops = float(row["tokens_per_s_per_gpu"]) * flops_per_token(shape(row), int(row["seq"])) / 1e12
            judged.append((row["id"], judge_tflops(tflops, device, precision, "", ()).word))
    assert len(judged) > 150
    assert [found for found in judged if found[1] != "possible"] == []


def figures(name: str, *given: str) -> dict[str, Quantity]:
    return summarise(with_given(imported(LOGS / f"{name}.log"), given_of(given)))


@pytest.mark.parametrize(
    ("name", "ratio", "counts"),
    [("megatron/gh200_elena2256087", 1.0, "megatron_causal"), ("primus/mi300x_ut_grok2", 1.058, "full_attention")],
)
def test_the_frameworks_own_figure_is_explained(name: str, ratio: float, counts: str) -> None:
    found = figures(name)
    ours, theirs = found["tflops_per_gpu"].value, found["tflops_per_gpu_framework"]
    assert ours and theirs.value
    assert theirs.value / ours == pytest.approx(ratio, rel=2e-3)
    assert counts in theirs.note


def test_an_mfu_needs_the_gpu_which_their_logs_do_not_name() -> None:
    for name, gpu, mfu in (
        ("megatron/gh200_elena2256087", "gh200", 25.0),
        ("megatron/pier_resume_60010", "a100_40gb", 23.3),
        ("primus/mi300x_ut_grok2", "mi300x", 24.4),
    ):
        assert figures(name)["mfu_percent"].note == "unknown GPU"
        assert figures(name, f"hardware={gpu}")["mfu_percent"].value == pytest.approx(mfu, abs=0.1)


@pytest.mark.parametrize(
    ("name", "tflops", "mfu"), [("b200_llama3_70b_64gpu_fp8", 1553.8, 34.5), ("b200_qwen25_32b_64gpu_tp2", 958.2, 42.6)]
)
def test_nemo_1_reports_model_and_gpu(name: str, tflops: float, mfu: float) -> None:
    """64 B200 each: FP8 against 4,500 TFLOP/s, BF16 against 2,250."""
    found = figures(f"nemo1/{name}")
    assert found["tflops_per_gpu"].value == pytest.approx(tflops, abs=0.5)
    assert found["mfu_percent"].value == pytest.approx(mfu, abs=0.1)


def test_a_dump_from_before_swiglu_has_no_gate() -> None:
    """BigScience's 52 B on V100: about 40 TFLOP/s a GPU, as they report."""
    assert figures("megatron/v100_bigscience_ds_off_n16")["tflops_per_gpu"].value == pytest.approx(40.6, abs=0.1)


def test_a_hyena_hybrid_is_not_counted_as_a_transformer() -> None:
    found = figures("bridge/bionemo_evo2_megatron_cell12", "hardware=h100")["mfu_percent"]
    assert found.value is None
    assert "hybrid_override_pattern" in found.note
