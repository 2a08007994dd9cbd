"""What is shown of runs and groups: each figure's direction, pooling and word; prices, guesses and rehearsals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made import compared, made, repeats, save
from msgspec.structs import replace

from compare import Comparison
from compare.cli import main
from compare.figures import FIGURES, Figure, pool, worded
from metrics import METRICS, Quantity, summarise
from metrics.bill import Prices, Terms, priced
from metrics.terms import read_prices
from parsers import Power, Record

SHAPE = {
    **dict(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32, kv_channels=128),
    **dict(num_query_groups=8, padded_vocab_size=128256, vocab_size=128256, swiglu=True, num_experts=None),
    **dict(gated_linear_unit=True, multi_latent_attention=False, mtp_num_layers=None, window_size=None),
    **dict(untie_embeddings_and_output_weights=True, recompute_granularity=None, params_dtype="bfloat16"),
    **dict(seq_length=8192, window_attn_skip_freq=None),
}
PRICES = Terms(tokens=1e12, prices=Prices("USD", {"mi355x": 3.0, "b200": 5.0}))
AT = ("price.usd_per_gpu_hour.mi355x=3.0", "price.usd_per_gpu_hour.b200=5.0")


def pair(ours: tuple[float, ...] = (8.0, 8.1, 7.9), theirs: tuple[float, ...] = (9.0, 9.1, 8.9)) -> list[Record]:
    """Three MI355X runs and three B200 runs of Llama 3.1 8B, by their step times."""
    amd = [replace(r, platform="amd", hardware="mi355x") for r in repeats("amd", ours, SHAPE)]
    return amd + [replace(r, platform="nvidia", hardware="b200") for r in repeats("nvidia", theirs, SHAPE)]


def word(of: Comparison, metric: str) -> tuple[str | None, str]:
    result = next(item for item in of.ratios if item.metric == metric)
    return (None if result.ratio is None else result.word), result.reason


def test_every_figure_is_a_metric_and_stands_once() -> None:
    record = made("a")
    names = [figure.metric for figure in FIGURES]
    assert set(names) <= {*METRICS, *priced(record, summarise(record), PRICES)}
    assert len(set(names)) == len(names)


def test_words_suit_their_figures() -> None:
    result = compared(*pair(), terms=PRICES)
    assert result.audit.verdict.word == "comparable"
    assert word(result, "tokens_per_s_per_gpu")[0] == "slower"
    assert word(result, "step_time_mean_s")[0] == "slower"
    assert word(result, "cost_per_trillion_tokens")[0] == "dearer"
    assert word(result, "training_days")[0] == "slower"
    assert [worded(f, "same") for f in FIGURES] == ["same"] * len(FIGURES)


def test_without_the_users_price_there_is_no_word_about_money() -> None:
    result = compared(*pair())
    cost = result.group_figures["amd mi355x"]["cost_per_trillion_tokens"]
    assert (cost.source, result.terms.prices.example) == ("assumed", True)
    of_cost, reason = word(result, "cost_per_trillion_tokens")
    assert (of_cost, reason[:35]) == (None, "assumed: an example, not your price")
    assert word(result, "tokens_per_s_per_gpu")[0] == "slower"


def test_tdp_is_no_measurement_and_gives_no_word() -> None:
    nobody = (None, "assumed: TDP of b200: no power was measured")
    assert word(compared(*pair(), terms=PRICES), "energy_j_per_token") == nobody
    window = Power(
        kind="gpu", source="amd-smi", gpus=2, seconds=20.0, energy_counter_j=20_000.0, first_step=3, last_step=9
    )
    measured = [replace(record, power=(window,)) for record in pair()]
    assert word(compared(*measured, terms=PRICES), "energy_j_per_token")[0] == "worse"
    assert word(compared(*measured[:3], *pair()[3:], terms=PRICES), "energy_j_per_token")[0] is None


def test_the_users_price_by_hand_and_the_break_even() -> None:
    result = compared(*pair((8.0,), (10.0,)), terms=PRICES)
    mine, rival = (result.group_figures[label]["cost_per_trillion_tokens"] for label in ("amd mi355x", "nvidia b200"))
    tokens_per_s = 8 * 8192 / 8.0 / 2
    assert (mine.value, mine.unit) == (pytest.approx(3.0 * 1e12 / tokens_per_s / 3600), "USD/1e12 tokens")
    assert (rival.value or 0) / (mine.value or 1) == pytest.approx(5.0 / 3.0 * 10 / 8)
    even = {e.option: e.up_to.value for e in result.break_evens}
    assert even == pytest.approx({"amd mi355x": 5.0 * 10 / 8, "nvidia b200": 3.0 * 8 / 10})
    without_mine = Terms(tokens=1e12, prices=Prices("EUR", {"b200": 5.0}))
    (even_,) = compared(*pair((8.0,), (10.0,)), terms=without_mine).break_evens
    assert (even_.option, even_.up_to.unit, even_.up_to.value) == ("amd mi355x", "EUR/gpu-hour", pytest.approx(6.25))
    other = [replace(record, requested={}, effective={}) for record in pair()[3:]]
    assert compared(*pair()[:3], *other, terms=PRICES).break_evens == (), "they may not be compared"


def test_a_rehearsal_has_no_figures_whatever_is_in_it() -> None:
    faked = replace(pair()[0], provenance="rehearsed")
    steps = tuple(replace(s, tokens_per_s_per_gpu=1e5, tflops_per_gpu=900.0, memory_bytes=1) for s in faked.steps)
    power = Power(kind="gpu", source="x", gpus=2, seconds=20.0, energy_counter_j=2e4)
    record = replace(faked, steps=steps, power=(power,), wall_time_s=24.0)
    figures = priced(record, summarise(record), PRICES)
    known = {f.metric for f in FIGURES if figures[f.metric].value is not None and f.part not in ("loss", "time lost")}
    assert known <= {"price"}
    assert compared(record, terms=PRICES).group_figures == {}


def test_mfu_is_of_the_dense_peak_of_what_ran() -> None:
    mfu = compared(*pair((8.0,), (9.0,))).group_figures["amd mi355x"]["mfu_percent"]
    assert mfu.value == pytest.approx(100 * 8 * 8192 / 8.0 / 2 * 5.147e10 / 2500e12, rel=0.01)


def quantity(value: float | None, **more: Any) -> Quantity:
    return Quantity(value, **{"unit": "s", "source": "measured", **more})


SPEED, LOSS = Figure("m", "m", "speed", "lower"), Figure("m", "m", "loss", None, "mean")


def test_repeats_are_pooled_with_an_interval() -> None:
    pooled = pool(SPEED, [quantity(v) for v in (1.0, 2.0, 4.0)])
    assert pooled.value == pytest.approx(2.0)
    assert pooled.interval is not None
    assert pool(SPEED, [quantity(1.0), quantity(2.0)]).interval is None
    mean = pool(LOSS, [quantity(v) for v in (-1.0, 0.0, 1.0)])
    assert (mean.value, mean.interval) == (0.0, pytest.approx((-2.484, 2.484), abs=1e-3))
    both = [quantity(1.0), quantity(3.0)]
    assert [pool(Figure("m", "m", "memory", None, end), both).value for end in ("max", "min")] == [3.0, 1.0]


def test_repeats_that_cannot_be_pooled_are_unknown_and_say_why() -> None:
    for other, expected in (
        (quantity(None, note="no speed"), "no speed"),
        (quantity(1.0, unit="ms"), "other units"),
        (quantity(1.0, source="log"), "other sources"),
        (quantity(0.0), "not above zero"),
    ):
        pooled = pool(SPEED, [quantity(1.0), other])
        assert (pooled.value, expected in pooled.note) == (None, True)


def test_prices_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, *pair())
    assert main([str(tmp_path), *AT, "tokens=15e12", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    terms = [result["terms"][name] for name in ("tokens", "currency", "prices_example")]
    assert terms == [15e12, "USD", False]
    assert {even["option"] for even in result["break_even"]} == {"amd mi355x", "nvidia b200"}
    assert main([str(tmp_path), *AT]) == 0
    shown = capsys.readouterr().out
    assert ("Break-even" in shown, "dearer" in shown) == (True, True)
    assert max(map(len, shown.splitlines())) <= 120
    assert main([str(tmp_path)]) == 0
    assert "Break-even" not in capsys.readouterr().out, "of example prices"


def test_the_price_that_runs_were_launched_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An example that was launched with (price=oracle) stays one: our dated examples, and nobody's quote."""
    save(tmp_path, *pair())
    oracle = read_prices("oracle")
    group = {"usd_per_gpu_hour": dict(oracle.per_gpu_hour), "date": oracle.date, "source": oracle.source}
    mine = {"usd_per_gpu_hour": {"mi355x": 3.0, "b200": 5.0}, "date": None}
    for price, example in ((mine, False), (group, True)):
        for run in tmp_path.iterdir():
            text = f"name: x\nprice: {json.dumps(price)}\ngrid: {{}}\n"
            (run / "experiment.yaml").write_text(text, encoding="utf-8")
        assert main([str(tmp_path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["terms"]["prices_example"] is example
