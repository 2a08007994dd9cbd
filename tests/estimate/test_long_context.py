"""TP × PP against CP at long sequences: the shipped experiment, and what must hold at every length."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from conf import load_experiment
from conf.resolve import Experiment
from estimate.figures import estimate
from estimate.long_context import LENGTHS, Mode, crossing, lines, schemes
from metrics.check import check

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
