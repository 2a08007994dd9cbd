"""Test lines of nanochat, nanoGPT, modded-nanogpt, llm.c, LitGPT and Lightning in older and newer forms (a log of each:
test_dialect_noise.py)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict

from parsers import judge
from parsers.dialects import load
from parsers.outcome import Ending
from tests.parsers.helpers import FIXTURES, parse_text, steps_of

# What is tried: dialect, line, and fields and metrics of its step; None: it is no step.
LINES: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "nanochat: pretraining counts from 0, and smooths its loss": (
        "nanochat",
        "step 00005/21400 (0.02%) | loss: 4.100000 | grad norm: 0.1234 | lrm: 1.00 | dt: 312.1ms | tok/sec: 1,680",
        {"step": 5, "loss": None, "loss_running_mean": 4.1, "grad_norm": 0.1234, "step_time_s": 0.3121},
    ),
    "nanochat: mid-training counts from 1; no peak is known": (
        "nanochat",
        "step 00001 (0.12%) | loss: 1.9 | lrm: 1.00 | dt: 312.11ms | tok/sec: 80,000 | mfu: 0.00 | total time: 0.00m",
        {"step": 0, "iteration": 1, "tokens_per_s": 80000.0, "mfu_percent": None},
    ),
    "autoresearch counts from 0": (
        "nanochat",
        "step 00150 (42.3%) | loss: 4.123456 | lrm: 1.00 | dt: 312ms | tok/sec: 1,680 | mfu: 45.2% | remaining: 173s",
        {"step": 150, "step_time_s": 0.312, "mfu_percent": 45.2},
    ),
    "nanochat: SFT before 2026 prints the step's own loss": (
        "nanochat",
        "Step 00010/00701 | Training loss: 1.234567| lrm: 0.985735| num_tokens: 10,241",
        {"step": 10, "loss": 1.234567, "lr_multiplier": 0.985735},
    ),
    "nanochat: a mean that is no number stays so": (
        "nanochat",
        "step 00005/21400 (0.02%) | loss: nan | lrm: 1.00 | dt: 312.10ms | tok/sec: 1,680 | mfu: 1.00",
        {"step": 5, "loss": None, "nonfinite": ("loss",)},
    ),
    "nanoGPT before February 2023": (
        "nanogpt",
        "iter 1631: loss 4.0863, time 561.94ms",
        {"step": 1631, "loss": 4.0863, "step_time_s": 0.56194},
    ),
    "nanoGPT: -100 % is no mean": (
        "nanogpt",
        "iter 0: loss 4.0863, time 561.94ms, mfu -100.00%",
        {"step": 0, "mfu_percent_running_mean": None},
    ),
    "modded-nanogpt without a loss": (
        "modded_nanogpt",
        "step:1390/1390 train_time:80605ms step_avg:57.99ms",
        {"step": 1389, "loss": None, "step_time_s": None, "train_time_s": 80.605, "step_time_s_running_mean": 0.05799},
    ),
    "llm.c: an outlier's z, an unknown device": (
        "llm_c",
        "step 9/9 | loss 3.252871 (-1.21z)| norm 0.2281 (+0.02z)| lr 0.00e+00 | 44.96 ms | -100.0% bf16 MFU | 12 tok/s",
        {"step": 8, "loss": 3.252871, "grad_norm": 0.2281, "lr_used": 0.0, "step_time_s": 0.04496, "mfu_percent": None},
    ),
    "llm.c of May 2024": (
        "llm_c",
        "step    1/100: train loss 4.300000 norm 2.1000 lr 1.00e-04 (12.34 ms, 1234 tok/s)",
        {"step": 0, "loss": 4.3, "grad_norm": 2.1, "lr": 1e-4, "step_time_s": 0.01234, "tokens_per_s": None},
    ),
    "llm.c of April 2024": (
        "llm_c",
        "step    3/100: train loss 4.300000 (acc 4.400000) (12.345678 ms, 1234 tok/s)",
        {"step": 2, "loss": 4.3, "step_time_s": 0.012345678},
    ),
    "llm.c in Python prints its own tok/s": (
        "llm_c",
        "step    1/18865 | train loss 10.991000 | norm 15.4000 | lr 6.00e-07 | (3012.01 ms | 174071 tok/s)",
        {"step": 0, "loss": 10.991, "step_time_s": 3.01201, "tokens_per_s": 174071.0},
    ),
    "llm.c's main.log counts from 0": (
        "llm_c",
        "s:10 trl:10.9001 lr:0.000600 norm:1.22",
        {"step": 10, "iteration": 10, "loss": 10.9001, "grad_norm": 1.22, "lr": 0.0006, "lr_used": None},
    ),
    "LitGPT: a micro-batch is no step": ("litgpt", "iter 4810 | step 601: loss 0.2745, iter time: 131.68 ms", None),
    "Lit-GPT before March 2024": (
        "litgpt",
        "iter 77 step 39: loss 10.8259, iter time: 214.40ms (optimizer.step)",
        {"step": 38, "loss": 10.8259, "step_time_s": None, "last_micro_batch_s": 0.2144},
    ),
    "LitGPT: five micro-batches a step": (
        "litgpt",
        "Epoch 34 | iter 3050700 step 610140 | loss train: 2.846, val: 2.861 | iter time: 112.20 ms (step)",
        {"step": 610139, "loss": 2.846, "step_time_s": None, "last_micro_batch_s": 0.1122},
    ),
    "nanoGPT's evaluation is no step of llm.c": ("llm_c", "step 250: train loss 1.5440, val loss 1.7220", None),
}


@pytest.mark.parametrize("case", LINES)
def test_a_line_means(case: str) -> None:
    dialect, line, expected = LINES[case]
    for text in (line, f"[rank0]: {line}"):
        step = load(dialect).read_step(1, text)
        found = {} if step is None else {**step.metrics, **asdict(step)}
        assert (step is None) == (expected is None)
        assert {name: found.get(name) for name in expected or ()} == (expected or {})


CUT = ("nanochat", "modded_nanogpt", "llm_c", "litgpt", "nanogpt")


@pytest.mark.parametrize("dialect", CUT)
def test_a_line_that_another_writer_cut_never_tells_half_a_number(dialect: str) -> None:
    text = (FIXTURES / f"{dialect}_tiny.log").read_text().splitlines()[1]
    (complete,) = steps_of(dialect, text)
    known = {**complete.metrics, **asdict(complete)}
    for at in range(1, len(text)):
        for other in ("\nanother process: 7", "loading 12 files", "[rank1]: hello"):
            for step in steps_of(dialect, text[:at] + other):
                found = {**step.metrics, **asdict(step), "metrics": None, "lr_used": None}
                wrong = [name for name in found if found[name] not in (None, known[name])]
                assert wrong == [], text[:at] + other


def test_of_two_runs_of_one_length_both_are_complete_and_have_their_first_validation() -> None:
    line = "step {0:05d}/00005 ({0}0.00%) | loss: 4.{0}00000 | lrm: 1.00 | dt: 31.10ms | tok/sec: 1,680 | mfu: 1.00\n"
    steps = "".join(map(line.format, range(5)))
    runs = parse_text(f"Step 00000 | Validation bpb: 3.200000\n{steps}Total training time: 0.01m\n" * 2)
    assert [judge(Ending(), run).status for run in runs] == ["completed", "completed"]
    assert [[point.step for point in run.validations] for run in runs] == [[-1], [-1]]


def test_nanochats_pretraining_mid_training_and_sft_are_three_runs() -> None:
    base = "step 0000{0}/00005 ({0}0.00%) | loss: 4.{0} | lrm: 1.00 | dt: 31.10ms | tok/sec: 1 | total time: 0.00m\n"
    mid = "step 0000{0} ({0}0.00%) | loss: 3.{0} | lrm: 1.00 | dt: 31.20ms | tok/sec: 1 | total time: 0.00m\n"
    tuned = "Step 0000{0}/00005 | Training loss: 2.{0}| lrm: 0.985735| num_tokens: 10,241\n"
    first, second = "".join(map(base.format, range(5))), "".join(map(mid.format, range(1, 7)))
    end = "Peak memory usage: {}00.00MiB\nTotal training time: 0.01m\n"
    batch = "Distributed world size: 4\nTarget examples per step: 32\nDevice batch size: 4\n"
    runs = parse_text(first + end.format(1) + second + end.format(2) + batch + "".join(map(tuned.format, range(4))))
    assert [run.facts.get("peak_memory_allocated_mib") for run in runs] == [100, 200, None]
    assert [{name: at.value for name, at in run.effective.items()} for run in runs] == [
        {},
        {},
        {"world_size": 4, "data_parallel_size": 4, "global_batch_size": 32, "micro_batch_size": 4},
    ]
    assert [(len(run.steps), run.steps[0].step) for run in runs] == [(5, 0), (6, 0), (4, 0)]
    assert [judge(Ending(), run).status for run in runs] == ["completed", "completed", "unknown"]


def test_the_longest_lines_that_end_in_a_letter_are_not_one_line_that_a_terminal_broke() -> None:
    line = "step 000{0}/00099 (10.00%) | loss: 4.{0} | lrm: 1.00 | dt: {1}.10ms | tok/sec: 1,680 | total time: 1.00m\n"
    (run,) = parse_text("".join(line.format(n, 131 if n in (20, 30, 40, 50) else 31) for n in range(10, 99)))
    assert len(run.steps) == 89 and not any("broken" in note for note in run.notes)


def test_llm_cs_batch_is_in_tokens() -> None:
    (run,) = parse_text(
        "batch_size B=4 * seq_len T=64 * num_processes=2 and total_batch_size=1024\n"
        "step 1/4 | loss 3.2 (+nanz)| norm 0.2 (+nanz)| lr 1.00e-04 | 44.96 ms | 1.0% bf16 MFU | 12 tok/s\n"
    )
    assert {name: at.value for name, at in run.effective.items()} == {
        "seq_length": 64,
        "global_batch_size": 16,
        "world_size": 2,
        "data_parallel_size": 2,
    }


@pytest.mark.parametrize(("said", "status"), [("out of memory", "out_of_memory"), ("misaligned address", "failed")])
def test_llm_c_that_dies_before_its_first_step(said: str, status: str) -> None:
    error = "[CUDA ERROR] at file train_gpt2.cu:265:"
    (run,) = parse_text(
        f"| padded_vocab_size Vp  | 50304{'':45} |\nallocating 9 MiB for activations\n{error}\n{said}\n"
    )
    outcome = judge(Ending(), run)
    assert (run.dialect, outcome.status, outcome.cause) == ("llm_c", status, f"{error} {said}")


def test_nanochat_that_dies_before_its_first_step() -> None:
    text = "2026-01-02 - nanochat.common - INFO - Distributed world size: 8\n{}AssertionError\n"
    (run,) = parse_text(text.format('  File "/a/nanochat/scripts/base_train.py", line 70, in <module>\n'))
    assert (run.dialect, judge(Ending(), run).status) == ("nanochat", "failed")
    assert [run.dialect for run in parse_text(text.format(""))] == [None]  # an evaluation's


def lightning(text: str) -> list[tuple[int, float | None, float | None]]:
    """Return number, loss and running mean of the steps of a log."""
    (run,) = parse_text(text, "lightning")
    return [(step.step, step.loss, step.metrics.get("loss_running_mean")) for step in run.steps]


def bar(epoch: int, count: int, total: int, values: str) -> str:
    return f"Epoch {epoch}:  50%|#####     | {count}/{total} [00:09<00:09,  4.56s/it, {values}]\n"


def test_lightnings_train_loss_is_a_batchs_or_an_epochs() -> None:
    first, second = "v_num=1", "v_num=1, train_loss=9.100"
    epoch = bar(0, 1, 2, first) + bar(0, 2, 2, first) + bar(0, 2, 2, second) + bar(1, 1, 2, second) * 2
    assert lightning(epoch) == [(0, None, None), (1, None, None), (2, None, None)]
    steps = [bar(0, n, 2, f"v_num=1, train_loss_step=9.{n}, train_loss_epoch=9.9") for n in (1, 2)]
    assert lightning("".join(steps)) == [(0, 9.1, None), (1, 9.2, None)]


def test_lightning_draws_each_count_twice_and_the_last_may_be_half_drawn() -> None:
    one, two, three = (f"v_num=1, train_loss=9.{n}00" for n in (1, 2, 3))
    bars = bar(0, 1, 9, one) + bar(0, 2, 9, one) + bar(0, 2, 9, two) + bar(0, 3, 9, two)
    assert lightning(bars) == [(0, 9.1, None), (1, 9.2, None)]
    assert lightning(bars + bar(0, 3, 9, three)) == [(0, 9.1, None), (1, 9.2, None), (2, 9.3, None)]


def test_lightning_1_counts_the_validation_in_its_bar() -> None:
    def mean(epoch: int, count: int, loss: float) -> str:
        return bar(epoch, count, 4, f"loss={loss}, v_num=1")

    check = "Validating: 100%|#####| 2/2 [00:01<00:00,  2.1it/s]\n"
    text = mean(0, 1, 9.1) + mean(0, 2, 9.2) + check + mean(0, 3, 9.2) + mean(0, 4, 9.2) + mean(1, 1, 9.5)
    assert lightning(text) == [(0, None, 9.1), (1, None, 9.2), (2, None, 9.5)]


def test_a_log_of_lightning_that_begins_later_has_no_steps() -> None:
    assert lightning(bar(3, 1, 9, "v_num=1, train_loss=9.100") + bar(3, 2, 9, "v_num=1, train_loss=9.200")) == []
