"""Published measurements of others: our FLOPs must explain their TFLOP/s, and none of them may be judged impossible."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping
from pathlib import Path

import pytest

from metrics.check import judge_tflops
from metrics.flops import CONVENTIONS, flops_per_token
from metrics.peak import hardware
from metrics.shape import Shape

DATA = Path(__file__).parents[3] / "shared" / "data" / "published_runs.csv"
PRECISIONS = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
GPUS = {"A100-80": "a100"}
pytestmark = pytest.mark.skipif(not DATA.is_file(), reason="no ../shared")


def dense_rows() -> list[Mapping[str, str]]:
    """Of dense models in pre-training, with shape and speed, read at their source."""
    with DATA.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    needed = ("layers", "hidden", "ffn", "heads", "vocab", "seq", "tokens_per_s_per_gpu")
    return [
        row
        for row in rows
        if all(row[name] for name in needed)
        and not row["experts"]
        and row["task"] == "pretrain"
        and row["confidence"] in "AB"
    ]


def shape(row: Mapping[str, str]) -> Shape:
    heads, hidden = int(row["heads"]), int(row["hidden"])
    plain = "mpt" in row["source_group"] or "gpt" in row["model"].lower() or "nemotron" in row["model"].lower()
    return Shape(
        num_layers=int(row["layers"]),
        hidden_size=hidden,
        ffn_hidden_size=int(row["ffn"]),
        num_attention_heads=heads,
        num_query_groups=int(row["kv_heads"] or heads),
        kv_channels=hidden // heads,
        vocabulary=int(row["vocab"]),
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
