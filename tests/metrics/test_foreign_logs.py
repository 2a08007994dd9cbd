"""FLOPs and MFU of logs that others printed: what their dumps report, and their own TFLOP/s beside ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from metrics import Quantity, summarise
from parsers.cli import imported
from parsers.given import given_of, with_given

LOGS = Path(__file__).parents[3] / "shared" / "logs"
pytestmark = pytest.mark.skipif(not LOGS.is_dir(), reason="no ../shared")


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


@pytest.mark.parametrize(
    ("name", "hardware", "mfu"),
    [
        ("megatron/gh200_elena2256087", "gh200", 25.0),
        ("megatron/pier_resume_60010", "a100_40gb", 23.3),
        ("primus/mi300x_ut_grok2", "mi300x", 24.4),
    ],
)
def test_an_mfu_needs_the_gpu_which_their_logs_do_not_name(name: str, hardware: str, mfu: float) -> None:
    assert figures(name)["mfu_percent"].note == "unknown GPU"
    assert figures(name, f"hardware={hardware}")["mfu_percent"].value == pytest.approx(mfu, abs=0.1)


@pytest.mark.parametrize(
    ("name", "tflops", "mfu"),
    [("b200_llama3_70b_64gpu_fp8", 1553.8, 34.5), ("b200_qwen25_32b_64gpu_tp2", 958.2, 42.6)],
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
