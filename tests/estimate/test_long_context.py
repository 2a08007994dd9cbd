"""TP × PP against CP at long sequences: the shipped experiment, and what must hold at every length."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from conf import load_experiment
from conf.load import model_named
from conf.resolve import Experiment
from conf.shapes import count
from estimate.figures import estimate
from estimate.long_context import LENGTHS, Mode, crossing, lines, schemes
from metrics.check import check, named_model, weights_at_least

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
    for one in schemes(shipped(), LENGTHS, mode):
        assert (np.diff(one.step_time_s) > 0).all()
        assert (np.diff(one.memory_bytes) > 0).all()
        assert one.sent_bytes[-1] / one.sent_bytes[0] == pytest.approx(LENGTHS[-1] / LENGTHS[0])
        assert one.time_per_token_s * one.tokens_per_s == pytest.approx(1)


def test_the_volumes_are_those_of_their_papers() -> None:
    s, h, layers, batch = 100_000, 4096, 16, 16
    split, ring, gathered = schemes(shipped(), None, "forward")
    tensor = 4 * 2 * s * h * 7 / 8 * layers / 2
    assert split.sent_bytes[0] == pytest.approx(batch * (tensor + 2 * s * h / 8))
    assert ring.sent_bytes[0] == pytest.approx(batch * layers * 2 * (2 * 8 * 128) * s / 16 * 15)
    assert gathered.sent_bytes[0] == ring.sent_bytes[0]
    assert gathered.memory_bytes[0] - ring.memory_bytes[0] == pytest.approx(2 * (2 * 8 * 128) * s)


def test_forward_alone_is_faster_and_smaller() -> None:
    for both, forward in zip(schemes(shipped()), schemes(shipped(), None, "forward"), strict=True):
        assert forward.tokens_per_s[0] > 2 * both.tokens_per_s[0]
        assert forward.memory_bytes[0] < both.memory_bytes[0]


def test_from_the_crossing_on_the_ring_is_ahead() -> None:
    at = crossing(shipped())
    assert at is not None
    split, ring, _ = schemes(shipped(), [n for n in LENGTHS if n >= at])
    assert (ring.tokens_per_s > split.tokens_per_s).all()
    split, ring, _ = schemes(shipped(), [at // 2])
    assert ring.tokens_per_s[0] <= split.tokens_per_s[0]
    assert f"from {at:,} tokens on" in "\n".join(lines(shipped()))


@pytest.mark.parametrize("claim", ["1.20M", "1.45M"])
@pytest.mark.parametrize("mode", MODES)
def test_the_published_speeds_of_it_are_impossible(claim: str, mode: Mode, capsys: pytest.CaptureFixture[str]) -> None:
    about = ("num_layers=16", "hidden_size=4096", "seq_length=100000", "hardware=h100", "gpus=16", f"mode={mode}")
    assert check([*about, f"tokens_per_s={claim}"]) == 1
    assert "impossible" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("claim", "split", "code"),
    [("78", 16, 0), ("5", 16, 0), ("5", 1, 1), ("90", 16, 1)],
)
def test_the_published_memory_of_it_is_possible_only_where_weights_are_split(
    claim: str, split: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """78 GB fit an H100; 5 GB hold the weights under TP8 × PP2, and under CP16, where each GPU has them all, never."""
    sizes = ("num_layers=16", "hidden_size=4096", "ffn_hidden_size=14336", "gated_linear_unit=true")
    about = (*sizes, "vocab_size=128256", "seq_length=100000", "hardware=h100", "mode=forward")
    assert check([*about, f"memory_gb={claim}", f"model_parallel_size={split}"]) == code
    assert capsys.readouterr().out.startswith("impossible: " if code else "possible: ")


@pytest.mark.parametrize("name", ["llama31_8b", "mixtral_8x7b", "qwen3_235b_a22b", "qwen25_0p5b"])
def test_weights_at_least_are_those_of_the_model_without_norms(name: str) -> None:
    model = model_named(name)
    assert model is not None
    assert 0.999 < weights_at_least(named_model(name, None)[0]) / count(model).total < 1


def test_the_command_prints_what_the_arithmetic_says(capsys: pytest.CaptureFixture[str]) -> None:
    from estimate.cli import main

    assert main(["long_context", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    split = schemes(shipped(), None, "forward")[0]
    one = next(row for row in said["schemes"] if (row["mode"], row["scheme"]) == ("forward", split.name))
    assert one["time_per_token_s"] == pytest.approx(float(split.time_per_token_s[0]))
    assert said["seq_length"] == 100_000 and said["ring_ahead_from_tokens"]["training"] == crossing(shipped())
    assert main(["long_context", "training.seq_length=131072"]) == 0
    assert "131,072 tokens a sequence" in capsys.readouterr().out
