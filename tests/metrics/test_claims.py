"""Published figures that cannot be: the literature that this project grew from, by name."""

from __future__ import annotations

import json

import pytest
from metrics_made import model

from metrics.claims import Speed, judge_peak, judge_ratio, judge_speed, judge_tflops
from metrics.cli import main
from metrics.peak import hardware
from metrics.shape import shape_of_model

LLAMA = shape_of_model(model("llama31_8b"))


def test_145_million_tokens_a_second_of_a_4096_wide_model_on_16_h100s(capsys: pytest.CaptureFixture[str]) -> None:
    """1.45 M tokens/s, 16 layers, 100,000 tokens: attention alone takes four times what 16 H100s can do."""
    shape = ["num_layers=16", "hidden_size=4096", "seq_length=100000"]
    claim = [*shape, "hardware=h100", "gpus=16", "tokens_per_s=1.45e6"]
    assert main(["check", *claim]) == 1
    out = capsys.readouterr().out
    assert out.startswith("impossible: ")
    assert "390 % of 989.4 TFLOP/s (h100 bf16 dense)" in out
    assert "left out: keys' and values' projections, MLP, logits" in out
    assert main(["check", *claim, "precision=fp8"]) == 1, "nor in fp8, which it did not use"
    assert capsys.readouterr().out.startswith("impossible: ")


def test_the_lower_bound_of_that_claim_by_hand() -> None:
    projections, attention = 2 * 4096**2, 2 * 4096 * 100_000 / 2
    tflops = 1.45e6 / 16 * 6 * 16 * (projections + attention) / 1e12
    assert tflops == pytest.approx(3855, rel=1e-3)
    assert tflops / 989.4 == pytest.approx(3.90, rel=1e-2)


def test_989_tflops_fp8_for_an_h100(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "hardware=h100", "precision=fp8", "peak_tflops=989"]) == 1
    out = capsys.readouterr().out
    assert "the dense fp8 peak of h100 is 1,979 TFLOP/s; 989.0 is that of bf16, dense" in out


def test_a_ratio_of_634_where_the_table_says_13363_against_5115(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "ratio=6.34", "of=13363,5115"]) == 1
    assert capsys.readouterr().out == "impossible: 13,363 / 5,115 = 2.61, not 6.34\n"
    assert judge_ratio(2.61, 13363, 5115).word == "possible"
    assert judge_ratio(0.383, 13363, 5115).word == "possible"


def test_1979_tflops_bf16_counts_sparsity() -> None:
    judged = judge_peak(1979, hardware("h100"), "bf16")
    assert judged.word == "impossible"
    assert "of bf16 with sparsity" in judged.reason
    assert judge_peak(989.4, hardware("h100"), "bf16").word == "possible"
    assert judge_peak(653.7, hardware("mi300x"), "bf16").word == "impossible", "that is its TF32 peak"


def test_nvidias_own_figures_are_possible() -> None:
    """14,079 tokens/s of Llama 3.1 8B in fp8 on an H100: 725 TFLOP/s (Megatron-Bridge's performance summary)."""
    for rate, precision, word, tflops in (
        (14_079, "fp8", "possible", "724.7"),
        (14_079, "bf16", "possible", "724.7"),
        (17_000, "bf16", "implausible", "875.0"),
    ):
        judged = judge_speed(
            Speed(shape=LLAMA, seq_length=8192, tokens_per_s_per_gpu=rate), hardware("h100"), precision
        )
        assert judged.word == word
        assert f"so {tflops} TFLOP/s on each GPU" in judged.reason


def test_a_forward_pass_takes_a_third() -> None:
    training = Speed(shape=LLAMA, seq_length=8192, tokens_per_s_per_gpu=25_000)
    forward = Speed(shape=LLAMA, seq_length=8192, tokens_per_s_per_gpu=25_000, mode="forward")
    judged = judge_speed(training, hardware("h100"), "bf16")
    assert judged.word == "impossible"
    assert "whether only the forward pass was timed" in judged.reason
    assert judge_speed(forward, hardware("h100"), "bf16").word == "possible"


def test_the_mfu_of_563_percent() -> None:
    """gh:AMD-AGI/Primus/pull/772 as TFLOP/s: 312, the A100's peak, taken for an MI355X's."""
    judged = judge_tflops(5.63 * 312, hardware("mi355x"), "bf16")
    assert judged.word == "implausible"
    assert judge_tflops(5.63 * 312, hardware("a100"), "bf16").reason.startswith("1,757 TFLOP/s on each GPU: 563 %")


def test_an_unknown_gpu_or_precision_cannot_be_judged(capsys: pytest.CaptureFixture[str]) -> None:
    claim = ["model=llama31_8b", "tokens_per_s_per_gpu=1e9"]
    assert main(["check", *claim, "hardware=tpu7"]) == 3
    assert "unknown GPU" in capsys.readouterr().out
    assert main(["check", *claim, "hardware=a100", "precision=fp8", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["word"] == "cannot tell"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no figure to check"),
        (["hardware=mi300", "tokens_per_s=5"], "did you mean mi300x?"),
        (["hardware=h100", "tokens_per_s=5", "num_layers=4"], "hidden_size, seq_length: needed"),
        (["hardware=h100", "tokens_per_s=-5", "num_layers=-4"], "num_layers: cannot be used"),
        (["hardware=h100", "tokens_per_s=nan"], "tokens_per_s: cannot be used"),
        (["ratio=2"], "of which two numbers?"),
        (["hardware=h100", "tokens_per_s=5", "model=lama31_8b"], "did you mean llama31_8b?"),
        (["tokens_per_s=5", "model=llama31_8b", "num_layers=4"], "num_layers: the model has its own"),
        (["tokens_per_s_per_gpu=5", "model=llama31_8b", "gpus=8"], "gpus: has no part in"),
        (["tokens_per_s=5", "model=llama31_8b", "of=3,4"], "of: has no part in"),
        (["tflops_per_gpu=5", "convention=palm"], "convention: is converted by the model's FLOPs"),
        (["tflops_per_gpu=5", "convention=hardware"], "allowed: megatron_causal, full_attention, palm, 6n"),
        (["tflops_per_gpu=5", "model=llama31_8b"], "no convention is named"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_flops_ignore_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for argument, message in (
        ("tokens_per_s=5", "tokens_per_s: no such key"),
        ("convention=palm", "convention: of which figure?"),
    ):
        assert main(["flops", "model=llama31_8b", argument]) == 2
        assert message in capsys.readouterr().err


def test_tflops_of_another_convention_are_converted(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 8,192 tokens a sequence full attention counts 1.125 times as much: 1,100 are 977.6, no 111 % of the peak."""
    claim = ["check", "model=llama31_8b", "hardware=h100", "convention=full_attention"]
    assert main([*claim, "tflops_per_gpu=1100"]) == 1
    out = capsys.readouterr().out
    assert out.startswith(
        "implausible: 1,100 TFLOP/s on each GPU by full_attention at 8,192 tokens a sequence, so 977.6"
    )
    assert "how FLOPs were counted" not in out
    assert main([*claim, "tflops_per_gpu=800"]) == 0
    assert main([*claim[:-1], "tflops_per_gpu=800", "convention=megatron_causal"]) == 1


def test_the_length_that_a_speed_is_judged_at_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    claim = ["check", "model=llama31_8b", "hardware=h100", "tokens_per_s_per_gpu=14000"]
    assert main(claim) == 0
    assert "in training at 8,192 tokens a sequence, so" in capsys.readouterr().out
    main([*claim, "seq_length=131072"])
    assert "at 131,072 tokens a sequence" in capsys.readouterr().out


def test_flops_and_their_conversion_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    llama = ["flops", "model=llama31_8b", "seq_length=8192"]
    assert main([*llama, "tflops=1441", "convention=full_attention", "--json"]) == 0
    rows = {row["convention"]: row for row in json.loads(capsys.readouterr().out)["conventions"]}
    assert rows["megatron_causal"]["flops_per_token"] == pytest.approx(5.147e10, rel=1e-4)
    assert rows["megatron_causal"]["tflops"] == pytest.approx(1280.7, rel=1e-4)
    assert rows["full_attention"]["tflops"] == 1441
    assert main(llama) == 0
    assert "5.7913e+10  1.125 ×" in capsys.readouterr().out
    assert main([*llama, "tflops=400"]) == 0
    assert "400.0 TFLOP/s taken as counted by megatron_causal (convention=… says otherwise)" in capsys.readouterr().out
    assert main([*llama, "tflops=500", "convention=hardware"]) == 2
    assert "without knowing what was recomputed" in capsys.readouterr().err
