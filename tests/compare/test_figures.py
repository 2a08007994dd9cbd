"""Test what is shown of runs and groups: figures, prices and words; ratios and intervals, compared with scipy.stats."""

from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy import stats

from compare import Comparison
from compare.cli import main
from compare.figures import FIGURES, Figure, pool, worded
from compare.report.charts import curve_charts
from compare.statistics import Ratio, ratio_of, word_of
from metrics import METRICS, Quantity, summarise
from metrics.bill import Prices, Terms, priced
from metrics.repeats import DIFFER, mean_of, pooled, predicted, t_quantile
from metrics.terms import read_prices
from parsers import Power, Record
from tests.compare.made import compared, made, repeats, save

SHAPE = {
    **dict(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32, kv_channels=128),
    **dict(num_query_groups=8, padded_vocab_size=128256, vocab_size=128256, swiglu=True, num_experts=None),
    **dict(gated_linear_unit=True, multi_latent_attention=False, mtp_num_layers=None, window_size=None),
    **dict(untie_embeddings_and_output_weights=True, recompute_granularity=None, params_dtype="bfloat16"),
    **dict(seq_length=8192, window_attn_skip_freq=None),
}
Captured: TypeAlias = "pytest.CaptureFixture[str]"
PRICES = Terms(tokens=1e12, prices=Prices("USD", {"mi355x": 3.0, "b200": 5.0}))
AT = ("price.usd_per_gpu_hour.mi355x=3.0", "price.usd_per_gpu_hour.b200=5.0")


def pair(ours: tuple[float, ...] = (8.0, 8.1, 7.9), theirs: tuple[float, ...] = (9.0, 9.1, 8.9)) -> list[Record]:
    """Return three MI355X runs and three B200 runs of Llama 3.1 8B, by their step times."""
    amd = [replace(r, platform="amd", hardware="mi355x") for r in repeats("amd", ours, SHAPE)]
    return amd + [replace(r, platform="nvidia", hardware="b200") for r in repeats("nvidia", theirs, SHAPE)]


def word(of: Comparison, metric: str) -> tuple[str | None, str]:
    result = next(item for item in of.ratios if item.metric == metric)
    return (None if result.ratio is None else result.word), result.reason


def test_an_impossible_run_has_no_number_in_verdict_price_or_plot(tmp_path: Path, capsys: Captured) -> None:
    """4,216 TFLOP/s on an MI355X: its GPU, its step times or its tokens are wrong, and nobody can say which."""
    records = pair(ours=(0.4, 0.41, 0.39))
    save(tmp_path, *records)
    assert main([str(tmp_path), *AT]) == 3
    told = " ".join(capsys.readouterr().out.split())
    why = "impossible: tflops_per_gpu of 4,216 TFLOP/s/GPU: 168 % of 2,517 TFLOP/s (mi355x bf16 dense); check: "
    assert f"- breaks figures: amd_1 is {why}" in told and "precision=bf16, world_size=2 are right" in told
    accepted = compared(*records, terms=PRICES, accept={"figures": "a test"})
    amd, nvidia = (accepted.group_figures[group.label] for group in accepted.groups)
    numbers = {name for name, figure in amd.items() if figure.value is not None}
    assert numbers == {"peak_memory_bytes", "power_w_per_gpu", "price", "restarts", "loss_last"} < nvidia.keys()
    assert why in amd["training_cost"].note and nvidia["training_cost"].value
    assert word(accepted, "step_time_mean_s") == (None, "impossible of AMD Instinct MI355X")
    times = next(chart for chart in curve_charts(accepted) if chart.title == "Step time")
    assert times.alternative.endswith("3 runs of NVIDIA B200.")


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
    assert word(result, "cost_per_trillion_tokens")[0] == "more expensive"
    assert word(result, "training_days")[0] == "slower"
    assert [worded(f, "same") for f in FIGURES] == ["same"] * len(FIGURES)


def test_without_the_users_price_there_is_no_word_about_money() -> None:
    result = compared(*pair())
    cost = result.group_figures["AMD Instinct MI355X"]["cost_per_trillion_tokens"]
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
    mine, rival = (
        result.group_figures[label]["cost_per_trillion_tokens"] for label in ("AMD Instinct MI355X", "NVIDIA B200")
    )
    tokens_per_s = 8 * 8192 / 8.0 / 2
    assert mine.value == pytest.approx(3.0 * 1e12 / tokens_per_s / 3600)
    assert mine.unit == "USD/1e12 tokens"
    assert (rival.value or 0) / (mine.value or 1) == pytest.approx(5.0 / 3.0 * 10 / 8)
    even = {e.option: e.up_to.value for e in result.break_evens}
    assert even == pytest.approx({"AMD Instinct MI355X": 5.0 * 10 / 8, "NVIDIA B200": 3.0 * 8 / 10})
    without_mine = Terms(tokens=1e12, prices=Prices("EUR", {"b200": 5.0}))
    (even_,) = compared(*pair((8.0,), (10.0,)), terms=without_mine).break_evens
    assert (even_.option, even_.up_to.unit) == ("AMD Instinct MI355X", "EUR/gpu-hour")
    assert even_.up_to.value == pytest.approx(6.25)
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


def quantity(value: float | None, **more: Any) -> Quantity:
    return Quantity(value, **{"unit": "s", "source": "measured", **more})


SPEED, LOSS = Figure("m", "m", "speed", "lower"), Figure("m", "m", "loss", None, "mean")


def test_repeats_are_pooled_with_an_interval() -> None:
    pooled = pool(SPEED, [quantity(v) for v in (1.0, 2.0, 4.0)])
    assert pooled.value == pytest.approx(2.0)
    assert pooled.interval is not None
    assert pool(SPEED, [quantity(1.0), quantity(2.0)]).interval is None
    mean = pool(LOSS, [quantity(v) for v in (-1.0, 0.0, 1.0)])
    assert mean.value == 0.0
    assert mean.interval == pytest.approx((-2.484, 2.484), abs=1e-3)
    for values, least in (((0.01, 0.02, 0.3), 0), ((0.0, 0.0, 0.3), None)):  # a jitter is never negative
        low = (pool(LOSS, [quantity(v) for v in values]).interval or (None,))[0]
        assert low is least or (low is not None and least is not None and low > least)
    both = [quantity(1.0), quantity(3.0)]
    assert [pool(Figure("m", "m", "memory", None, end), both).value for end in ("max", "min")] == [3.0, 1.0]


def test_predictions_that_differ_have_no_mean_and_like_ones_keep_their_intervals() -> None:
    one, other = (quantity(v, interval=(v / 2, v * 2), interval_80=(v / 1.5, v * 1.5)) for v in (12.0, 14.0))
    for of in (lambda figures: pool(SPEED, figures), pooled):
        assert of([one, one]) == of([one]) == one
        for differ in ([one, other], [one, other, quantity(16.0)], [quantity(16.0), one, other]):
            assert (of(differ).value, of(differ).interval, of(differ).note) == (None, None, DIFFER)
        assert of([one, quantity(None, note="no speed")]).note == "no speed"
    assert predicted([quantity(1.0)] * 3) is None


def test_no_interval_over_predictions_is_called_a_predictions_own(tmp_path: Path, capsys: Captured) -> None:
    """Student's interval over three estimates by other parameters was shown as that of a prediction."""
    from metrics.cli import cost

    def save_estimates(*seconds: float, sure: bool = False) -> list[str]:
        for at, value in enumerate(seconds):
            ends = None if sure else (value / 2, value * 2)
            summary: Any = {"tokens_per_s_per_gpu": quantity(value, unit="tokens/s/GPU", interval=ends).to_json()}
            save(tmp_path, replace(made(f"e{at}", steps=(), provenance="estimated"), summary=summary))
        return [str(tmp_path / f"e{at}") for at in range(len(seconds))]

    def printed(main: Any, *words: str) -> str:
        assert main([*words]) in (0, 3)
        return " ".join(capsys.readouterr().out.split())

    alike = printed(main, *save_estimates(12.0, 12.0, 12.0))
    assert "6.00 to 24.0 predicted" in alike and DIFFER not in alike
    for seconds in ((12.0, 14.0, 16.0), (12.0, 14.0)):
        folders = save_estimates(*seconds)
        shown = printed(main, *folders)
        assert f"{DIFFER} have no speed in common; name one of them" in shown
        assert "tokens/s/GPU" not in shown and "predicted" not in shown
        assert f"tokens_per_s_per_gpu unknown: {DIFFER}" in printed(cost, *folders)
    old = printed(main, *save_estimates(12.0, 14.0, 16.0, sure=True))
    assert "±" in old and "predicted" not in old


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
    assert {even["option"] for even in result["break_even"]} == {"AMD Instinct MI355X", "NVIDIA B200"}
    assert main([str(tmp_path), *AT]) == 0
    shown = capsys.readouterr().out
    assert ("Break-even" in shown, "more expensive" in shown) == (True, True)
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


values = st.lists(st.floats(0.01, 1000), min_size=3, max_size=12)


@pytest.mark.filterwarnings("ignore:Precision loss")
@given(values, values)
def test_the_interval_is_welchs(first: list[float], second: list[float]) -> None:
    ratio = ratio_of(first, second, "higher")
    logs = [math.log(v) for v in first], [math.log(v) for v in second]
    assume(max(map(statistics.stdev, logs)) > 1e-6)  # below, scipy itself loses precision
    interval = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    assert ratio.interval is not None
    assert [math.log(end) for end in ratio.interval] == pytest.approx([interval.low, interval.high], rel=1e-6, abs=1e-9)
    assert ratio.ratio is not None
    assert math.log(ratio.ratio) == pytest.approx(sum(interval) / 2, abs=1e-9)


@given(values, values, st.floats(0.1, 10))
def test_turned_round_or_in_another_unit_it_is_the_same(first: list[float], second: list[float], unit: float) -> None:
    there, back = ratio_of(first, second, "higher"), ratio_of(second, first, "higher")
    assert there.ratio is not None and back.ratio is not None
    assert there.ratio * back.ratio == pytest.approx(1)
    if there.interval is not None and back.interval is not None:
        assert there.interval[0] * back.interval[1] == pytest.approx(1)
        assert there.interval[0] <= there.ratio <= there.interval[1]
    scaled = ratio_of([v * unit for v in first], [v * unit for v in second], "higher")
    assert scaled.ratio == pytest.approx(there.ratio)


def test_words() -> None:
    for interval, higher, lower in (
        ((1.03, 1.10), "faster", "slower"),
        ((1.001, 1.05), "faster", "slower"),
        ((0.90, 0.97), "slower", "faster"),
        ((0.985, 1.015), "same", "same"),
        ((1.001, 1.019), "same", "same"),
        ((1 / 1.02, 1.02), "same", "same"),
        ((0.98, 1.02), "undecided", "undecided"),
        ((0.97, 1.01), "undecided", "undecided"),
        ((0.99, 1.3), "undecided", "undecided"),
    ):
        assert (interval, word_of(interval, "higher"), word_of(interval, "lower")) == (interval, higher, lower)
    assert word_of((0.985, 1.015), "higher", difference=0.01) == "undecided", "what matters is the user's"
    assert word_of((0.96, 1.04), "higher", difference=0.05) == "same"


def test_where_there_is_no_interval() -> None:
    one, few = ratio_of([2.0], [1.0], "higher"), ratio_of([2.0, 2.1, 2.2], [1.0, 1.1], "higher")
    copies = ratio_of([2.0] * 3, [1.0] * 3, "higher")
    assert [(r.interval, r.word) for r in (one, few, copies)] == [(None, "undecided")] * 3
    assert (one.ratio, "one run each" in one.reason, "3 and 2" in few.reason) == (2.0, True, True)
    assert ratio_of([2.0] * 3, [1.0, 1.01, 1.02], "higher").word == "faster"
    tiny = ratio_of([2.0, 2.0, 2.0000000000000004], [1.0, 1.0, 1.0], "higher")
    assert tiny.word == "faster", "a spread too small for floating-point squares"


def test_the_mean_and_the_quantile() -> None:
    for degrees in (1, 2, 2.5, 10, 1000):
        assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-12)
    assert (mean_of([4.0])[1], mean_of([1.0, 1.0, 1.0])[1]) == (None, None)
    centre, interval = mean_of([1.0, 2.0, 4.0])
    assert centre == pytest.approx(2.0)
    assert interval is not None and interval[0] * interval[1] == pytest.approx(4.0)


def spread_around(centre: float, count: int, noise: float) -> list[float]:
    """Return so many values with exactly this spread, whose logarithms have this mean."""
    logs = [math.log(centre) + noise * (2 * i / (count - 1) - 1) for i in range(count)]
    scale = noise / statistics.stdev(logs)
    return [math.exp(math.log(centre) + (log - math.log(centre)) * scale) for log in logs]


@pytest.mark.parametrize(("ratio", "noise"), [(1.0, 0.02), (1.015, 0.02), (1.05, 0.05), (1.03, 0.02)])
def test_so_many_runs_would_decide_and_one_fewer_would_not(ratio: float, noise: float) -> None:
    """Runs with the same ratio and spread: the number named is the smallest that does it."""

    def over(count: int) -> Ratio:
        return ratio_of(spread_around(ratio, count, noise), spread_around(1, count, noise), "higher")

    result = over(3)
    assert result.word == "undecided"
    needed = result.runs_to_decide
    assert needed is not None and needed > 3
    assert f"about {needed} runs a side would decide" in result.reason
    assert (over(needed).word == "undecided", over(needed - 1).word) == (False, "undecided")


def test_where_no_number_of_runs_is_named() -> None:
    assert ratio_of([1.1] * 3, [1.0, 1.001, 0.999], "higher").runs_to_decide is None  # decided
    assert ratio_of([1.1], [1.0], "higher").runs_to_decide is None  # no spread is known
    assert ratio_of([1.1, 1.11], [1.0, 1.01], "higher").runs_to_decide == 3
    hopeless = ratio_of([0.1, 1.0, 10.0], [0.11, 1.0, 9.0], "higher")
    assert (hopeless.runs_to_decide, hopeless.reason.endswith("not even 1,000 runs a side would decide")) == (
        None,
        True,
    )


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """benchmarks/intervals.py does it at length, with steps that depend on each other."""
    noise = random.Random(3)
    covered = 0
    for _ in range(600):
        first, second = ([math.exp(noise.gauss(0, 0.01)) for _ in range(4)] for _ in range(2))
        interval = ratio_of(first, second, "higher").interval
        covered += interval is not None and interval[0] <= 1 <= interval[1]
    assert 0.92 < covered / 600 < 0.98
