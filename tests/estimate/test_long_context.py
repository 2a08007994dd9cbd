"""TP × PP against CP at long sequences: the shipped experiment, and what must hold at every length."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from conf import load_experiment
from conf.load import model_named
from conf.resolve import Experiment
from conf.shapes import count
from estimate.cli import main as of_estimate
from estimate.figures import estimate
from estimate.fitted import Value
from estimate.fitted import shipped as parameters
from estimate.least import least_memory
from estimate.long_context import LENGTHS, Mode, crossing, lines, scheme, schemes, undecided
from metrics.check import Held, MemoryClaim, named_model
from tensorprimat.claims import main

MODES: tuple[Mode, ...] = ("training", "forward")


@cache
def shipped(layout: str = "cp16") -> Experiment:
    return load_experiment("experiment=long_context", f"layout={layout}")


def test_its_two_layouts_are_estimated_as_by_themselves() -> None:
    split, ring, _ = schemes(shipped())
    for layout, one in (("tp8_pp2", split), ("cp16", ring)):
        figures = estimate(shipped(layout)).figures
        assert one.tokens_per_s[0] == pytest.approx(figures["tokens_per_s"].value)
        assert one.memory_bytes[0] == pytest.approx(figures["peak_memory_device_bytes"].value)


@pytest.mark.parametrize("mode", MODES)
def test_longer_takes_longer_and_more(mode: Mode) -> None:
    split, *others = schemes(shipped(), LENGTHS, mode)
    for one in (split, *others):
        assert (np.diff(one.step_time_s) > 0).all()
        assert (np.diff(one.memory_bytes) > 0).all()
        sent = one.sent_bytes - (4 + 2) * count(shipped().model).total * 15 / 16 * (
            mode == "training" and one is not split
        )
        assert sent[-1] / sent[0] == pytest.approx(LENGTHS[-1] / LENGTHS[0])
        assert one.time_per_token_s * one.tokens_per_s == pytest.approx(1)


def test_the_volumes_are_those_of_their_papers() -> None:
    s, h, layers, batch = 100_000, 4096, 16, 16
    split, ring, gathered = schemes(shipped(), None, "forward")
    tensor = (4 * layers / 2 + 1) * 2 * s * h * 7 / 8  # of the last stage, with the logits
    assert split.sent_bytes[0] == pytest.approx(batch * (tensor + 2 * s * h / 8))
    assert ring.sent_bytes[0] == pytest.approx(batch * layers * 2 * (2 * 8 * 128) * s / 16 * 15)
    assert gathered.sent_bytes[0] == ring.sent_bytes[0]
    assert gathered.memory_bytes[0] - ring.memory_bytes[0] == pytest.approx(2 * (2 * 8 * 128) * s)


def test_training_sends_again_what_gradients_are_made_of() -> None:
    """10 collectives of hidden states a layer with sequence parallelism, and those between two stages
    once; ranks of CP share the gradients of a step."""
    s, h, layers, batch = 100_000, 4096, 16, 16
    split, ring, _ = schemes(shipped(), None, "training")
    tensor = (10 * layers / 2 + 3) * 2 * s * h * 7 / 8  # of the last stage, with the logits
    assert split.sent_bytes[0] == pytest.approx(batch * (tensor + 2 * s * h / 8))
    keys_and_values = batch * layers * 3 * 2 * (2 * 8 * 128) * s / 16 * 15
    assert ring.sent_bytes[0] == pytest.approx(keys_and_values + (4 + 2) * count(shipped().model).total * 15 / 16)


def test_ranks_of_context_share_the_gradients_of_all_experts() -> None:
    words = ("platform=nvidia", "hardware=h100", "gpus_per_node=8", "nodes=2", "layout=data_parallel")
    e = load_experiment("model=mixtral_8x7b", *words)
    forward, training = (schemes(e, None, mode)[1].sent_bytes[0] for mode in ("forward", "training"))
    assert training - 3 * forward == pytest.approx((4 + 2) * count(e.model).total * 15 / 16)


def test_forward_alone_is_faster_and_smaller() -> None:
    for both, forward in zip(schemes(shipped()), schemes(shipped(), None, "forward"), strict=True):
        assert forward.tokens_per_s[0] > 2 * both.tokens_per_s[0]
        assert forward.memory_bytes[0] < both.memory_bytes[0]


def test_from_the_crossing_on_the_ring_is_ahead() -> None:
    at = crossing(shipped())
    assert at is not None
    split, ring, _ = schemes(shipped(), [n for n in LENGTHS if n >= at])
    assert (ring.tokens_per_s > split.tokens_per_s).all()
    split, ring, _ = schemes(shipped(), [at - 1024])
    assert ring.tokens_per_s[0] <= split.tokens_per_s[0]
    assert f"from {at:,} tokens on" in "\n".join(lines(shipped()))


SIZES = "num_layers=16 hidden_size=4096 seq_length=100000 hardware=h100 gpus=16"
WHOLE = f"{SIZES} ffn_hidden_size=14336 gated_linear_unit=true vocab_size=128256"
SPLIT = "tensor_model_parallel_size=8 pipeline_model_parallel_size=2"
RING = "context_parallel_size=16"


@pytest.mark.parametrize("claim", ["1.20M", "1.45M"])
@pytest.mark.parametrize("mode", MODES)
def test_the_published_speeds_of_it_are_impossible(claim: str, mode: Mode, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *SIZES.split(), f"mode={mode}", f"tokens_per_s={claim}"]) == 1
    assert "impossible" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("claim", "word", "text"),
    [
        (f"{SPLIT} memory_gb=78", "possible", "one h100 has 85.0 GB"),
        (f"{SPLIT} memory_gb=78 mode=forward", "possible", ""),
        (f"{RING} memory_gb=5", "impossible", "GB of weights and gradients at least"),
        (f"{RING} memory_gb=5 mode=forward", "impossible", "GB of weights at least"),
        (f"{RING} memory_gb=5 model_parallel_size=16", "implausible", "optimizer"),
        (f"{RING} memory_gb=5 model_parallel_size=16 mode=forward", "possible", "FSDP"),
        ("memory_gb=5", "implausible", "optimizer"),
        ("memory_gb=5 precision=fp32", "implausible", "optimizer"),
        ("memory_gb=90", "impossible", "less than 90 GB"),
    ],
)
def test_the_published_memory_of_it(claim: str, word: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """5 GB hold neither the weights of CP 16, where each GPU has all of them, nor, cut over all GPUs, what training
    keeps beside them; only a forward pass over weights in sixteen parts is as small."""
    assert main(["check", *WHOLE.split(), *claim.split()]) == (0 if word == "possible" else 1)
    out = capsys.readouterr().out
    assert out.startswith(f"{word}: ")
    assert text in out


def least(sizes: Mapping[str, int], training: bool = True, gpus: int = 16) -> Held:
    shape, _ = named_model("llama31_8b", None)
    named = {f"{name}_parallel_size": size for name, size in sizes.items()}
    held = least_memory(MemoryClaim(shape, 100_000, "bf16", training, gpus, named, None))
    assert held is not None
    return held


@pytest.mark.parametrize(
    ("layout", "sizes"), [("cp16", {"context": 16}), ("tp8_pp2", {"tensor_model": 8, "pipeline_model": 2})]
)
def test_the_least_is_at_most_what_is_predicted_and_at_least_its_states(layout: str, sizes: dict[str, int]) -> None:
    predicted = estimate(load_experiment("experiment=long_context", f"layout={layout}", "model.num_layers=32"))
    held = least(sizes)
    assert held.states < sum(held.parts.values()) < predicted.memory.allocated.max()
    assert sum(least(sizes, training=False).parts.values()) < sum(held.parts.values())


def test_what_a_claim_leaves_open_is_never_more() -> None:
    free = sum(least({}).parts.values())
    stated: tuple[dict[str, int], ...] = ({"tensor_model": 8}, {"context": 16}, {"tensor_model": 2, "context": 8})
    assert all(free <= sum(least(sizes).parts.values()) for sizes in stated)
    assert sum(least({}, gpus=64).parts.values()) < free


def test_the_weights_of_one_gpu_are_those_of_the_model() -> None:
    model = model_named("llama31_8b")
    assert model is not None
    assert least({}, training=False, gpus=1).parts["weights"] == 2 * count(model).total


@pytest.mark.parametrize(
    "claim", ["model_parallel_size=3", "pipeline_model_parallel_size=32", "tensor_model_parallel_size=5"]
)
def test_a_layout_that_cannot_be_is_bad_input(claim: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *SIZES.split(), "memory_gb=5", claim]) == 2
    assert "no layout of 16 GPUs and 16 layers is so" in capsys.readouterr().err


def test_the_command_prints_what_the_arithmetic_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert of_estimate(["long_context", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    split = schemes(shipped(), None, "forward")[0]
    one = next(row for row in said["schemes"] if (row["mode"], row["scheme"]) == ("forward", split.name))
    per_token = one["figures"]["time_per_token_s"]
    assert per_token["value"] == pytest.approx(float(split.time_per_token_s[0])) and per_token["unit"] == "s/token"
    assert said["provenance"] == "estimated"
    assert said["undecided_tokens"]["training"] == [[*ends] for ends in undecided(shipped())]
    assert said["seq_length"] == 100_000 and said["ring_ahead_from_tokens"]["training"] == crossing(shipped())
    assert of_estimate(["long_context", "training.seq_length=131072"]) == 0
    assert "131,072 tokens a sequence" in capsys.readouterr().out


def test_the_intervals_of_its_layouts_are_those_of_estimates_and_where_none_is_known_it_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert of_estimate(["long_context", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["schemes"]
    for row, layout in zip(rows[:2], ("tp8_pp2", "cp16"), strict=True):
        known = estimate(shipped(layout))
        assert row["figures"]["step_time_s"] == known.figures["step_time_mean_s"].to_json()
        low, high = row["figures"]["tokens_per_s"]["interval"]
        assert low < row["figures"]["tokens_per_s"]["value"] < high
        assert row["accuracy"] == known.accuracy
    for row in rows[2:]:
        assert row["figures"]["step_time_s"]["interval"] is row["figures"]["tokens_per_s"]["interval"] is None
        assert row["accuracy"] == row["figures"]["step_time_s"]["note"] and row["accuracy"].startswith(
            "no interval: no"
        )
    text = "\n".join(lines(shipped()))
    names = f"training {rows[0]['scheme']}, training {rows[1]['scheme']}"
    assert f"how wrong: {rows[0]['accuracy']} ({names})" in text
    assert "no run of a forward pass alone was measured" in text


def test_which_is_faster_is_open_where_the_interval_of_their_ratio_holds_1() -> None:
    at, text = crossing(shipped()), "\n".join(lines(shipped()))
    ((first, last),) = undecided(shipped())
    assert at is not None and first <= 100_000 <= at <= last == LENGTHS[-1]
    assert "× the ring's, which is not decided" in text
    assert f"undecided which of the two trains faster: from {first:,} to {last:,} tokens" in text
    split, ring, _ = schemes(shipped(), [first - 1024])
    assert np.log(ring.step_time_s / split.step_time_s) > np.hypot(split.half_95, ring.half_95)


def test_lengths_between_those_that_are_open_are_decided() -> None:
    words = ("model=llama31_8b", "platform=nvidia", "hardware=l40s", "layout=data_parallel")
    e = load_experiment(*words, "training.global_batch_size=512")
    stretches = undecided(e)
    assert len(stretches) > 1
    between = [(last + first) // 2 for (_, last), (first, _) in pairwise(stretches)]
    split, ring, _ = schemes(e, between)
    assert (np.abs(np.log(ring.step_time_s / split.step_time_s)) > np.hypot(split.half_95, ring.half_95)).all()


def test_a_row_is_of_one_model_on_a_cpu_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert of_estimate(["long_context", "model=llama_tiny", "hardware=cpu", "gpus_per_node=4", "--json"]) == 0
    for row in json.loads(capsys.readouterr().out)["schemes"]:
        speed, each = (row["figures"][name]["value"] for name in ("tokens_per_s", "time_per_token_s"))
        assert speed * each == pytest.approx(1)
    e = load_experiment("model=llama_tiny", "platform=cpu", "gpus_per_node=4", "layout=data_parallel")
    split, *_ = schemes(e, None)
    expected = estimate(split.experiment).figures["step_time_mean_s"].value
    assert float(split.step_time_s[0]) == pytest.approx(expected)


@pytest.mark.parametrize("gathered", [False, True])
def test_a_forward_pass_adds_up_no_gradients_and_what_is_gathered_no_ring(gathered: bool) -> None:
    def seconds(mode: Mode, **values: float) -> float:
        known = {name: Value(value, 0.0) for name, value in values.items()}
        p = msgspec.structs.replace(parameters(), values={**parameters().values, **known})
        return float(scheme(shipped(), (8192,), mode, gathered, p).step_time_s[0])

    assert seconds("forward", accumulate=5.0) == seconds("forward")
    assert seconds("training", accumulate=5.0) > seconds("training")
    for mode in MODES:
        assert (seconds(mode, ring=5.0) == seconds(mode)) == gathered
