"""Lines that are known by their shape tell the same steps as lines that are read field by field."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from helpers import parse_text, read

from parsers.dialects import load
from parsers.line_shape import LineShape
from parsers.record import Step
from parsers.steps import NOTHING, Sealed


def nemo2(step: int, chance: random.Random) -> str:
    rest = f" | val_loss: {6 - step // 40}.5" if step > 45 else ""
    samples = f" | consumed_samples: {8 * step + 8}" if step else ""
    return (
        f"Training epoch 0, iteration {step}/399 | lr: {chance.choice(['0', '1e-05', '0.0003', '2.999e-07'])} | "
        f"global_batch_size: 8 | global_step: {step} | reduced_train_loss: {chance.choice(['6', '6.5', '7', 'nan'])} | "
        f"train_step_timing in s: {chance.uniform(0.1, 20):.4}{samples}{rest}"
    )


def torchtitan(step: int, chance: random.Random) -> str:
    iteration = 1 if step == 0 else 10 * step
    return (
        f"[rank0]:[titan] 2026-05-04 14:24:{step % 60:02},116 - root - INFO - \x1b[31mstep: {iteration:2}  "
        f"\x1b[32mloss: {chance.uniform(0, 20):8.5f}  \x1b[38mgrad_norm: {chance.uniform(0, 200):7.4f}  "
        f"\x1b[36mmemory: {chance.uniform(1, 90):5.2f}GiB({chance.uniform(1, 90):.2f}%)  "
        f"\x1b[34mtps: {chance.randrange(10, 2_000_000):,}  \x1b[36mtflops: {chance.uniform(1, 900):,.2f}  "
        f"\x1b[35mmfu: {chance.uniform(0, 60):.2f}%\x1b[39m"
    )


def maxtext(step: int, chance: random.Random) -> str:
    seconds = chance.choice([0.02, 1.0, 1.1, 1.2, 30.0, 0.0])
    return (
        f"I0813 17:29:{step % 60:02}.920936 138 metric_logger.py:226] completed step: {step}, seconds: {seconds:.3f}, "
        f"TFLOP/s/device: {252 / (seconds or 1e-3):.3f}, Tokens/s/device: {chance.uniform(1, 30000):.3f}, "
        f"total_weights: 131072, loss: {chance.uniform(0, 13):.3f}"
    )


def nanotron(step: int, chance: random.Random) -> str:
    def human(value: float) -> str:
        return f"{value:.3g}" if value < 1000 else f"{float(f'{value / 1000:.3g}'):g}K"

    return (
        f"12/21 01:38:{step % 60:02} [INFO|DP=0|TP=0|n7]: iteration: {step + 1} / 400 | consumed_tokens: {step + 1}M | "
        f"time_per_iteration_ms: {human(chance.uniform(900, 1100))} | "
        f"tokens_per_sec: {human(chance.uniform(1e4, 1e6))} | "
        f"tokens_per_sec_per_gpu: {human(chance.uniform(100, 5000))} | global_batch_size: 1.05M | "
        f"lm_loss: {chance.choice(['nan', '2', '11.9', '0.0123'])} | lr: {chance.choice(['0.0003', '1e-05', '0'])} | "
        f"model_tflops_per_gpu: {human(chance.uniform(1, 1500))} | eta: 0:0{step % 10}:00"
    )


def deepspeed(step: int, chance: random.Random) -> str:
    iteration = 10 * step + 10
    report = (
        f"[Rank 0] step={iteration}, skipped={step // 9}, lr=[{chance.choice(['0', '5e-05', '0.0003'])}], mom=[0.9]\n"
    )
    return (report if chance.random() < 0.5 else "") + (
        f"[2026-11-21 03:36:{step % 60:02},683] [INFO] [timer.py:199:stop] epoch=0/micro_step={step}/"
        f"global_step={iteration}, RunningAvgSamplesPerSec={chance.uniform(1, 900)}, "
        f"CurrSamplesPerSec={chance.uniform(1, 9)}, MemAllocated={chance.uniform(1, 60):.2f}GB, MaxMemAllocated=61GB"
    )


def pipeline(step: int, chance: random.Random) -> str:
    loss = chance.choice(["nan", "2.5000", "11.1234"])
    rest = f"iter time (s): {chance.uniform(0, 9):.3f} samples/sec: {chance.uniform(1, 900):.3f}"
    return f"steps: {5 * step + 5} loss: {loss} {rest}"


def hf(step: int, chance: random.Random) -> str:
    return str(
        {
            "loss": round(chance.uniform(0, 9), 4),
            "grad_norm": chance.choice([float("nan"), 1.5, 0.25]),
            "learning_rate": chance.choice([0.0, 5e-05, 0.0003]),
            "memory(GiB)": 12.5,
            "epoch": round(step / 30, 2),
            "global_step/max_steps": f"{5 * step + 5}/1500",
        }
    )


def nemo1(step: int, chance: random.Random) -> str:
    loss, samples = chance.uniform(1, 9), 8 * step + 8
    seen = ", val_loss=10.40" if 50 < step < 200 else ", val_loss=9.100" if step >= 200 else ""
    bar = f"reduced_train_loss={loss:.3g}, global_step={step}.0, consumed_samples={samples}.0{seen}"
    return (
        f"Epoch 0: :  10%|█         | {step + 1}/400 [00:49<07:25, v_num=None, {bar}]"
        f"DLL 2025-06-11 01:56:{step % 60:02}.00 - {step} reduced_train_loss : {loss}  "
        f"lr : {chance.choice([0.0, 7.5e-08])}  global_step : {step}.0  "
        f"consumed_samples : {samples}.0  grad_norm : {chance.uniform(0, 90)}  "
        f"train_step_timing in s : {chance.uniform(4, 5) if step else 44.0}  epoch : 0 "
    )


def mllog(step: int, chance: random.Random) -> str:
    stats = {"train_step_time": chance.uniform(1, 9), "reduced_train_loss": chance.choice([2, 5.5, float("nan")])}
    about = {"file": "a.py", "lineno": 4, "step": float(step), "samples_count": 8.0 * step + 8}
    return ":::MLLOG " + json.dumps({"time_ms": 1000 * step, "key": "tracked_stats", "value": stats, "metadata": about})


def composer(step: int, chance: random.Random) -> str:
    # As llm-foundry writes it; sometimes a value that is no number, a name twice, a lost line, another rank's text.
    entries = {
        "time/batch": chance.choice([step, step, step, f"{step:,}"]),
        "time/sample": 8 * step,
        "trainer/device_train_microbatch_size": 2 if step < 200 else 4,
        "loss/train/total": f"{chance.uniform(0, 9):.4f}",
        "memory/peak_reserved_mem": f"{chance.uniform(1, 90):.4f}",
        "metrics/train/LanguageCrossEntropy": chance.choice(["nan", "2.5000", "2.6000", "2.7000"]),
        "throughput/device/tokens_per_sec": f"{chance.uniform(1, 90000):,.4f}",
        "lr-DecoupledAdamW/group0": chance.choice(["0.0000", "0.0003", "1e-05"]),
    }
    lines = [f"\t Train {name}: {value}" for name, value in entries.items() if chance.random() < 0.95]
    if chance.random() < 0.1:
        extra = chance.choice(["\t Train loss/train/total: 1.0", "throughput/ falls"])
        lines.insert(chance.randrange(len(lines)), extra)
    return "\n".join([f"{chance.choice(['', '', '0: '])}[batch={step + 1}/{400 if step < 150 else 500}]:", *lines])


def megatron(step: int, chance: random.Random) -> str:
    energy = f" energy per GPU (J/iter/GPU): {chance.choice([0.0, 0.0, 512.5])} |" if step > 150 else ""
    return (
        f" [2026-08-14 00:18:{step % 60:02}.584592] iteration {step + 1:8d}/ 300 | consumed samples: {8 * step + 8} | "
        f"elapsed time per iteration (ms): {chance.uniform(900, 1100):.1f} |{energy} learning rate: "
        f"{chance.choice(['6.0E-05', '0.0E+00'])} | global batch size: {chance.choice([8, 16]):5d} | lm loss: "
        f"{chance.choice(['nan', '1.1E+01', '9.500000E+00'])} | mtp_1 loss: 2.5E+00 | mtp_2 loss: 3.5E+00 | "
        f"loss scale: {chance.choice(['1.0', '65536.0'])} | number of skipped iterations: {chance.choice([0, 0, 1]):3d}"
        " | number of nan iterations:   0 |"
    )


def primus(step: int, chance: random.Random) -> str:
    time_ms, tokens = chance.uniform(900, 1100), chance.uniform(1000, 9000)
    speeds = f" tokens/s/GPU inst/harmonic mean: {tokens:.1f}/{tokens - 9:.1f} |" if step > 1 else ""
    memory = " hip mem usage/free/total/usage_ratio: 169.09GB/118.89GB/287.98GB/58.71%" if step > 1 else ""
    return (
        f"[20260514 10:25:{step % 60:02}][rank-{chance.choice([7, 15])}/16][DEBUG]    [---------------utils.py:425] : "
        f"[2026-05-14 10:25:{step % 60:02}.071128] iteration {step + 1:8d}/ 300 | consumed samples: {8 * step + 8} | "
        f"elapsed time per iteration (ms): {time_ms:.1f}/{time_ms + 5:.1f} |{speeds} learning rate: "
        f"{chance.choice(['6.000000E-05', '5.0E-05'])} | lm loss: {chance.uniform(2, 9):.6E} | loss scale: 1.0 | "
        f"grad norm: {chance.uniform(0, 20):.3f} | number of nan iterations:   0 |{memory}"
    )


def gpt_neox(step: int, chance: random.Random) -> str:
    return (
        f"10.0.0.1:  samples/sec: {chance.uniform(2, 900):.3f} | iteration {step + 1:8d}/     300 | elapsed time per "
        f"iteration (ms): {chance.uniform(9, 11):.1f} | learning rate: {chance.choice(['2.000E-05', '1.9E-05'])} | "
        f"approx flops per GPU: {chance.uniform(9, 200):.1f}TFLOPS | lm_loss: {chance.uniform(2, 9):.6E} | "
        "loss scale: 4096.0 | number of nan iterations:   0 |"
    )


WRITERS: dict[str, Callable[[int, random.Random], str]] = {
    "nemo2": nemo2,
    "torchtitan": torchtitan,
    "maxtext": maxtext,
    "nanotron": nanotron,
    "deepspeed": deepspeed,
    "hf": hf,
    "deepspeed ": pipeline,
    "nemo1": nemo1,
    "mllog": mllog,
    "composer": composer,
    "megatron": megatron,
    "primus": primus,
    "gpt_neox": gpt_neox,
}


def both(dialect: str, text: str) -> tuple[list[Step], list[Step]]:
    (run,) = parse_text(text, dialect.strip())
    return list(run.steps), [event for event in read(dialect.strip(), plain(text)) if isinstance(event, Step)]


def plain(text: str) -> str:
    return text.replace("\x1b[31m", "").replace("\x1b[32m", "").replace("\x1b[34m", "").replace("\x1b[35m", "").replace(
        "\x1b[36m", ""
    ).replace("\x1b[38m", "").replace("\x1b[39m", "")  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dialect", WRITERS)
def test_both_ways_give_the_same_steps(dialect: str, seed: int) -> None:
    chance = random.Random(seed)
    lines = [WRITERS[dialect](step, chance) for step in range(300)]
    quick, slow = both(dialect, "\n".join(lines) + "\n")
    assert len(slow) == 300
    assert quick == slow


@pytest.mark.parametrize("dialect", WRITERS)
def test_the_quick_way_is_taken(dialect: str) -> None:
    chance, reader, taken = random.Random(1), load(dialect.strip()).reader(), 0
    for number in range(300):
        for text in WRITERS[dialect](number, chance).split("\n"):
            line = text.encode()
            if reader.take(line, number + 1) is not None:  # type: ignore[attr-defined]  # not all have it
                taken += 1
            else:
                list(reader.feed(number + 1, plain(text)))
    assert taken > 100


def test_what_an_ordinary_record_changes_besides_its_step_is_seen() -> None:
    def record(step: int, total: int, micro: int) -> str:
        return (
            f"[batch={step + 1}/{total}]:\n\t Train time/batch: {step}\n\t Train loss/train/total: 2.5000\n"
            f"\t Train trainer/device_train_microbatch_size: {micro}\n"
        )

    first = "".join(record(step, 400, 2) for step in range(50))
    (longer,) = parse_text(first + "".join(record(step, 500, 2) for step in range(50, 99)), "composer")
    assert (longer.train_iters, longer.effective["micro_batch_size"].value, len(longer.steps)) == (500, 2, 99)
    (other,) = parse_text(
        first + "".join(record(step, 400, 4 if step < 60 else 2) for step in range(50, 99)), "composer"
    )
    assert "micro_batch_size" not in other.effective


@pytest.mark.parametrize("dialect", WRITERS)
def test_gaps_and_strange_lines_between(dialect: str) -> None:
    chance = random.Random(7)
    steps = [step for step in range(300) if step % 17 and not 100 < step < 120]
    lines = [WRITERS[dialect](step, chance) + chance.choice(["", "", "\nsome other line 12 | 3.5"]) for step in steps]
    quick, slow = both(dialect, "\n".join(lines) + "\n")
    assert quick == slow
    assert len(quick) == len(steps)


@pytest.mark.parametrize("dialect", WRITERS)
def test_a_step_printed_twice_and_a_restart(dialect: str) -> None:
    chance = random.Random(3)
    lines = [WRITERS[dialect](step, chance) for step in range(60)]
    again = [WRITERS[dialect](step, chance) for step in range(40, 80)]
    (run,) = parse_text("\n".join([line for line in lines for _ in range(2)] + again) + "\n", dialect.strip())
    assert [step.step for step in run.steps] == [
        step.step for step in parse_text("\n".join(lines[:40] + again), dialect.strip())[0].steps
    ]


def test_what_matches_and_what_does_not() -> None:
    shape = LineShape({"step": rb"step ", "loss": rb"loss="})
    line = b"at 10:11 step 5 loss=1.25 of 7K"
    assert shape.match(line, 1) is None
    assert shape.learn(1) == (b"5", b"1.25")
    for other, found in (
        (b"at 23:59 step  123 loss=3e-05 of 7.5M", (b"123", b"3e-05")),
        (b"at 23:59 step 1.5 loss=3 of 7", None),  # was whole
        (b"at 23:59 step 1 loss=nan of 7", None),
        (b"at 23:59 step 1 loss=3 of 7 ", None),
        (b"xx at 23:59 step 1 loss=3 of 7", None),
    ):
        assert shape.match(other, 2) == found, other


def test_a_wanted_number_that_is_absent_is_empty() -> None:
    shape = LineShape({"step": rb"step ", "loss": rb"loss="}, maybe=("loss",))
    shape.match(b"step 5", 1)
    assert shape.learn(1) == (b"5", b"")


def test_a_line_that_it_did_not_see_teaches_nothing() -> None:
    shape = LineShape({"step": rb"step ", "loss": rb"loss="})
    shape.match(b"step 5", 1)
    assert shape.learn(2) is None
    assert shape.match(b"step 6", 3) is None


def test_a_log_whose_lines_never_look_alike_stops_teaching() -> None:
    shape = LineShape({"step": rb"step ", "loss": rb"loss="})
    for number in range(1000):
        line = b"step 5 %s" % (b"x" * (number % 700))
        shape.match(line, number)
        learnt = shape.learn(number)
    assert learnt is None


def test_the_same_words_of_another_rank_are_passed_over_quickly() -> None:
    """Primus has two sinks from v26.3 on; of every rank's log a line comes as often as there are ranks."""
    chance, reader = random.Random(1), load("primus").reader()
    lines = [primus(step, chance).encode() for step in range(9)]
    for number, line in enumerate(lines[:8]):
        list(reader.feed(number + 1, line.decode()))
    assert isinstance(reader.take(lines[8], 9), Sealed)  # type: ignore[attr-defined]
    assert reader.take(b"[rank3]: " + lines[8], 10) is NOTHING  # type: ignore[attr-defined]
    assert reader.take(lines[8].replace(b"grad norm: ", b"grad norm: 1"), 11) is None  # type: ignore[attr-defined]


def test_lines_that_differ_in_a_digit_of_a_name_are_told_apart() -> None:
    def line(iteration: int, name: str) -> str:
        return f" iteration {iteration}/ 90 | lm loss: 2.5 | {name}: {iteration}.5 | number of nan iterations: 0 |\n"

    text = "".join(line(k, "aux 1" if k < 20 else "aux 2") for k in range(1, 40))
    (run,) = parse_text(text, "megatron")
    assert [set(step.metrics) for step in run.steps] == [{"aux_1"}] * 19 + [{"aux_2"}] * 20
