"""Published figures that cannot be: the literature that this project grew from, by name."""

from __future__ import annotations

import json

import pytest

from tensorprimat.claims import main

# 1.45 M tokens/s, 16 layers, 100,000 tokens: 1.45e6 / 16 * 6 * 16 * (2 * 4096**2 + 4096 * 1e5) = 3,855 TFLOP/s.
WIDE = "num_layers=16 hidden_size=4096 seq_length=100000 hardware=h100 gpus=16 tokens_per_s=1.45e6"
LLAMA = "model=llama31_8b hardware=h100"
STEP = "gpus=8 global_batch_size=128"
# Of 8,192 tokens a sequence full attention counts 1.125 times as much: 1,100 are 977.6, no 111 % of the peak.
FULL = "model=llama31_8b hardware=h100 convention=full_attention"
CONVERTED = "1,100 TFLOP/s on each GPU by full_attention at 8,192 tokens a sequence, so 977.6"
# 25,000 tokens/s of training are impossible; a forward pass takes a third.
FORWARD = "whether only the forward pass was timed"


@pytest.mark.parametrize(
    ("claim", "word", "texts"),
    [
        (WIDE, "impossible", ["so 3,855 TFLOP/s on each GPU: 390 % of 989.4 TFLOP/s (h100 bf16 dense)"]),
        (WIDE, "impossible", ["left out: keys' and values' projections, MLP, logits"]),
        (f"{WIDE} precision=fp8", "impossible", []),  # nor in fp8, which it did not use
        (
            "hardware=h100 precision=fp8 peak_tflops=989",
            "impossible",
            ["the dense fp8 peak of h100 is 1,979 TFLOP/s; 989.0 is that of bf16, dense"],
        ),
        ("hardware=h100 peak_tflops=1979", "impossible", ["of bf16 with sparsity"]),
        ("hardware=h100 peak_tflops=989.4", "possible", []),
        ("hardware=mi300x peak_tflops=653.7", "impossible", []),  # that is its TF32 peak
        ("ratio=6.34 of=13363,5115", "impossible", ["13,363 / 5,115 = 2.61, not 6.34\n"]),
        ("ratio=2.61 of=13363,5115", "possible", []),
        ("ratio=0.383 of=13363,5115", "possible", []),
        # 725 TFLOP/s on an H100 in fp8 (Megatron-Bridge's performance summary)
        (f"{LLAMA} tokens_per_s_per_gpu=14079 precision=fp8", "possible", ["so 724.7 TFLOP/s on each GPU"]),
        (f"{LLAMA} tokens_per_s_per_gpu=14079", "possible", ["in training at 8,192 tokens a sequence, so 724.7"]),
        (
            f"{LLAMA} tokens_per_s_per_gpu=9k mfu_percent=46.8 tflops_per_gpu=470 {STEP} step_time_s=14.5",
            "possible",
            [],
        ),
        (f"{LLAMA} tokens_per_s_per_gpu=17000", "implausible", ["so 875.0 TFLOP/s on each GPU"]),
        (f"{LLAMA} tokens_per_s_per_gpu=14000 seq_length=131072", "impossible", ["at 131,072 tokens a sequence"]),
        (f"{LLAMA} tokens_per_s_per_gpu=25000", "impossible", [FORWARD]),
        (f"{LLAMA} tokens_per_s_per_gpu=25000 mode=forward", "possible", []),
        # gh:AMD-AGI/Primus/pull/772 as TFLOP/s: 312, the A100's peak, taken for an MI355X's: an MFU of 563 %
        ("hardware=mi355x tflops_per_gpu=1756.56", "implausible", []),
        ("hardware=a100 tflops_per_gpu=1756.56TFLOPS", "impossible", ["1,757 TFLOP/s on each GPU: 563 %"]),
        ("hardware=h100 tflops_per_gpu=1100", "impossible", ["how FLOPs were counted"]),
        (f"{FULL} tflops_per_gpu=1100", "implausible", [CONVERTED]),
        (f"{FULL} tflops_per_gpu=800", "possible", []),
        (f"{LLAMA} tflops_per_gpu=800 convention=megatron_causal", "implausible", []),
        ("model=llama31_8b tokens_per_s_per_gpu=1e9 hardware=tpu7", "cannot tell", ["unknown GPU"]),
        ("model=llama31_8b tokens_per_s_per_gpu=1e9 hardware=a100 precision=fp8", "cannot tell", []),
    ],
)
def test_a_claim(claim: str, word: str, texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    codes = {"possible": 0, "implausible": 1, "impossible": 1, "cannot tell": 3}
    assert main(["check", *claim.split()]) == codes[word]
    out = capsys.readouterr().out
    assert out.startswith(f"{word}: ")
    assert [text for text in texts if text not in out] == []
    assert FULL not in claim or "how FLOPs were counted" not in out
    assert main(["check", *claim.split(), "--json"]) == codes[word]
    assert json.loads(capsys.readouterr().out)["word"] == word


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("check", "no figure to check"),
        ("check hardware=mi300 tokens_per_s=5", "did you mean mi300x?"),
        ("check hardware=h100 tokens_per_s=5 num_layers=4", "hidden_size, seq_length: needed"),
        ("check hardware=h100 tokens_per_s=-5 num_layers=-4", "num_layers: cannot be used"),
        ("check hardware=h100 tokens_per_s=nan", "tokens_per_s: cannot be used"),
        ("check ratio=2", "of which two numbers?"),
        ("check hardware=h100 tokens_per_s=5 model=lama31_8b", "did you mean llama31_8b?"),
        ("check tokens_per_s=5 model=llama31_8b num_layers=4", "num_layers: the model has its own"),
        ("check tflops_per_gpu=5 gpus=8", "gpus: has no part in"),
        (f"check {LLAMA} tokens_per_s_per_gpu=9k mfu_percent=30", "contradict each other: its speed makes 46.82 % MFU"),
        (f"check {LLAMA} tokens_per_s_per_gpu=9k tflops_per_gpu=800", "its speed makes 463.2 TFLOP/s, not 800.0"),
        (f"check {LLAMA} tokens_per_s_per_gpu=9k {STEP} step_time_s=7", "makes 18,720 tokens/s/GPU, not 9,000"),
        (f"check {LLAMA} tokens_per_s=72k {STEP} step_time_s=7", "makes 18,720 tokens/s/GPU, not 9,000"),
        ("check model=llama31_8b tokens_per_s_per_gpu=9k mfu_percent=46", "only of a known model= and hardware="),
        (f"check {LLAMA} tokens_per_s_per_gpu=9k step_time_s=7 global_batch_size=8", "step_time_s: needs"),
        (f"check {LLAMA} tokens_per_s_per_gpu=9k step_time_s=7", "needs global_batch_size= and gpus="),
        ("check tokens_per_s=5 model=llama31_8b of=3,4", "of: has no part in"),
        ("check tflops_per_gpu=5 convention=palm", "convention: is converted by the model's FLOPs"),
        ("check tflops_per_gpu=5 convention=hardware", "allowed: megatron_causal, full_attention, palm, 6n"),
        ("check tflops_per_gpu=5 model=llama31_8b", "no convention is given"),
        ("flops model=llama31_8b tokens_per_s=5", "tokens_per_s: no such key"),
        ("flops model=llama31_8b tflops=5 tflops_per_gpu=5", "exclude each other"),
        ("flops model=llama31_8b convention=palm", "convention: of which figure?"),
        ("flops model=llama31_8b tflops=500 convention=hardware", "without knowing what was recomputed"),
    ],
)
def test_bad_input(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    assert message in capsys.readouterr().err


def test_flops_and_their_conversion_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    llama = ["flops", "model=llama31_8b", "seq_length=8192"]
    assert main([*llama, "tflops_per_gpu=1441", "convention=full_attention", "--json"]) == 0
    rows = {row["convention"]: row for row in json.loads(capsys.readouterr().out)["conventions"]}
    assert rows["megatron_causal"]["flops_per_token"] == pytest.approx(5.147e10, rel=1e-4)
    assert rows["megatron_causal"]["tflops"] == pytest.approx(1280.7, rel=1e-4)
    assert rows["full_attention"]["tflops"] == 1441
    assert main(llama) == 0
    assert "5.7913e+10  1.125 ×" in capsys.readouterr().out
    assert main([*llama, "tflops=400"]) == 0
    assert "400.0 TFLOP/s taken as counted by megatron_causal (convention=… says otherwise)" in capsys.readouterr().out
