"""The drawings of the report: no peak lost, no line over a gap, colours that are distinct."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import compare
from compare.report import charts
from compare.report.charts import COLOURS, Axis, Chart, axis, tick_text
from parsers import Record
from parsers.record import Validation
from tests.compare.made import TP2, broken, compared, made, vendor_run, without_steps

CSS = (Path(compare.__file__).parent / "report" / "report.css").read_text(encoding="utf-8")
Point = tuple[float, float]


def curves(*records: Record) -> list[Chart]:
    return charts.curve_charts(compared(*records))


def lines(chart: Chart) -> list[str]:
    """Return the path of every run's line."""
    return re.findall(r'<path d="([^"]*)" class="curve', chart.svg())


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=200))
@settings(max_examples=100, deadline=None)
def test_every_column_keeps_its_extremes_and_every_gap_stays(values: list[float | None]) -> None:
    points = [None if value is None else (float(i), value) for i, value in enumerate(values)]
    x, y = Axis(0, 200, 0, 10), Axis(-1e6, 1e6, 100, 0)
    drawn = list(charts.per_column(points, x, y))
    runs = [list(group) for here, group in itertools.groupby(points, key=bool) if here]
    kept = [list(group) for here, group in itertools.groupby(drawn, key=bool) if here]
    assert len(kept) == len(runs)
    for all_of, some in zip(runs, kept, strict=True):
        for column, inside in itertools.groupby((p for p in all_of if p), key=lambda p: math.floor(x.at(p[0]))):
            heights = [y.at(value) for _, value in inside]
            seen = [p[1] for p in some if p and math.floor(p[0]) == column]
            assert (len(seen) <= 4, min(seen), max(seen)) == (True, min(heights), max(heights))


def test_a_group_has_one_look_in_every_chart_and_a_validation_before_training_is_drawn() -> None:
    points = tuple(Validation(line=n + 1, loss=7.0 - n, metrics={"samples_count": 64.0 * n}) for n in range(3))
    three = compared(
        *(replace(made(n, over={"hidden_size": 2**i}), validations=points) for i, n in enumerate("abc", 1))
    )
    part = replace(three, groups=three.groups[1:])  # as a page shows of very many
    part.__dict__["places"] = three.places
    for chart in charts.all_charts(part):
        assert {*re.findall(r'class="marker (g\d)', chart.svg())} == {"g1", "g2"}, chart.title
    validated = next(chart for chart in charts.all_charts(part) if chart.title == "Validation loss")
    assert [line.count("L") for line in lines(validated)] == [2, 2]


def test_no_line_is_drawn_over_lost_steps_or_nan() -> None:
    loss = curves(broken(without_steps(vendor_run("nvidia", "h100", 1, 60), 20, 29), 40))[0]
    (line,) = lines(loss)
    assert [part.count("L") + 1 for part in line.split("M")[1:]] == [20, 10, 19]
    assert loss.svg().count('class="nan"') == 1
    assert charts.polyline([(0, 0), (1, 1), None, (3, 3)]) == "M0 0h0L1 1M3 3h0"
    record = vendor_run("nvidia", "h100", 1, 100)
    seldom = replace(record, steps=tuple(step for step in record.steps if step.step % 10 == 9))
    assert [line.count("M") for line in lines(curves(seldom)[0])] == [1], "a line every tenth step is no gap"


def test_warm_up_is_left_out_of_step_times_and_reported() -> None:
    times = curves(vendor_run("nvidia", "h100", 1, 60))[2]
    assert times.caption == "Without the warm-up, 4 steps."
    assert [line.count("L") + 1 for line in lines(times)] == [56]


def test_titles_and_captions_say_what_is_drawn() -> None:
    one = vendor_run("nvidia", "h100", 1, 20)
    other = replace(one, id="Run-B", platform="amd")
    unsampled, unrated = (
        replace(other, steps=tuple(replace(s, **{name: None}) for s in one.steps))
        for name in ("consumed_samples", "lr_used")
    )
    assert [curves(*runs)[0].title for runs in ((one,), (one, unsampled))] == [
        "Loss at equal tokens",
        "Loss by iteration",
    ]
    rates = curves(one, unrated)[1]
    assert (rates.title, rates.caption) == ("Learning rate used", "Not reported by Run-B.")
    seeds = [made(f"{a}{seed}", over={**a, "seed": seed}) for a in ({}, TP2) for seed in range(40)]
    loss = curves(*seeds)[0]
    assert (len(lines(loss)), loss.caption) == (24, "24 of 80 runs drawn, the first 12 of every group.")


def test_a_picture_says_in_words_what_it_shows() -> None:
    chart = curves(made("a"), made("b", over=TP2))[0]
    assert f'role="img" aria-label="{chart.alternative}"' in chart.svg()
    assert "2 runs of DP2, TP2" in chart.alternative


def test_ticks_are_round_and_few() -> None:
    for values, texts in (
        ([0.0, 13_400.0], ["0", "5,000", "10,000"]),
        ([0.0, 3e-4], ["0", "1e-4", "2e-4", "3e-4"]),
        ([0.0, 1.05e9], ["0", "0.25 G", "0.5 G", "0.75 G", "1 G"]),
        ([2.0, 11.0], ["2", "4", "6", "8", "10"]),
        ([0.97, 1.03], ["0.98", "1", "1.02"]),
    ):
        result = axis(values, 0, 400, from_zero=values[0] == 0)
        assert [tick_text(value, result) for value in result.ticks()] == texts


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_an_axis_holds_every_value(values: list[float]) -> None:
    result = axis(values, 0, 400)
    assert all(0 <= result.at(value) <= 400 for value in values)
    assert 1 <= len(result.ticks()) <= 8
    assert len({tick_text(value, result) for value in result.ticks()}) == len(result.ticks())


def test_groups_differ_in_shape_beside_colour() -> None:
    shapes = {charts.marker(i, 0, 0).partition(" class=")[0] for i in range(charts.MARKERS)}
    assert len(shapes) == charts.MARKERS == COLOURS
    assert "hollow" in charts.marker(COLOURS, 0, 0)


# Machado, Oliveira, Fernandes: A physiologically-based model for simulation of color vision deficiency (2009)
MACHADO = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def palettes() -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return name to colours (linear RGB) of the light, dark and printed page."""
    blocks = dict(zip(("light", "dark", "print"), re.findall(r":root \{(.*?)\n\s*\}", CSS, re.DOTALL), strict=True))
    named = {name: re.findall(r"--([\w-]+): #([0-9a-f]{6});", block) for name, block in blocks.items()}
    return {name: {key: linear(value) for key, value in pairs} for name, pairs in named.items()}


def linear(hexadecimal: str) -> tuple[float, float, float]:
    parts = [int(hexadecimal[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return red, green, blue


def contrast(a: Sequence[float], b: Sequence[float]) -> float:
    """WCAG 2.2."""
    low, high = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (a, b))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: Sequence[float], matrix: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """CIELAB of what an eye with this deficiency sees."""
    r, g, b = (min(1.0, max(0.0, sum(m * v for m, v in zip(row, rgb, strict=True)))) for row in matrix)
    xyz = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505, 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (*xyz, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_colours_stand_out_from_the_page_and_are_distinct_by_every_eye(scheme: str) -> None:
    """The first four, which most reports need, by far; all, with a distance that is seen (1 is just noticeable)."""
    result = palettes()[scheme]
    for names, least in ((("ink", "soft", "link", "good", "bad", "open"), 4.5), ([f"c{i}" for i in range(COLOURS)], 3)):
        assert min(contrast(result[name], result["page"]) for name in names) >= least
    for eye in MACHADO.values():
        seen = [lab(result[f"c{i}"], eye) for i in range(COLOURS)]
        assert min(math.dist(a, b) for a, b in itertools.combinations(seen[:4], 2)) > 30
        assert min(math.dist(a, b) for a, b in itertools.combinations(seen, 2)) > 18
