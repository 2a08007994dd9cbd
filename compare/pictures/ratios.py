"""The small drawing beside a ratio: it and its interval against 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from compare.pictures.drawing import Axis, line
from compare.pictures.markup import Child, h
from compare.statistics import Ratio, of_no_interest

_BAR, _BAR_HEIGHT = 170.0, 20.0
_FACTORS = (10.0, 5.0, 2.0, 1.25, 1.1, 1.05, 1.02)
_FINEST = 1.01
_EDGE = 16  # half of a tick's text


def ratio_axis(results: Sequence[Ratio]) -> Axis:
    """One for all bars of a table, of logarithms: half is as far from 1, in the middle, as double."""
    ends = [abs(math.log(value)) for result in results for value in (result.ratio, *(result.interval or ()))]
    most = 1.1 * max([*ends, math.log(_FINEST)])
    return Axis(-most, most, _EDGE, _BAR - _EDGE)


def ratio_bar(result: Ratio, x: Axis, of_interest: float) -> Element:
    """A ratio with its interval against 1 and the band of no interest around it. The row has the numbers."""
    middle = _BAR_HEIGHT / 2
    low, high = (min(max(x.at(math.log(end)), x.start), x.end) for end in of_no_interest(of_interest))
    parts: list[Child] = [h("rect", x=low, y=0, width=high - low, height=_BAR_HEIGHT, class_="band")]
    parts.append(line(x.at(0), 0, x.at(0), _BAR_HEIGHT, "one"))
    if result.interval is not None:
        ends = [x.at(math.log(end)) for end in result.interval]
        parts.append(line(ends[0], middle, ends[1], middle, "whisker"))
        parts += [line(end, middle - 4, end, middle + 4, "whisker") for end in ends]
    parts.append(h("circle", cx=x.at(math.log(result.ratio)), cy=middle, r=3.4, class_="ratio"))
    return _small(parts, _BAR_HEIGHT)


def ratio_scale(x: Axis) -> Element:
    """The ticks above the bars: 1, and the widest round factor that fits."""
    factor = next((f for f in _FACTORS if math.log(f) < x.high), _FINEST)
    ticks = [(f"{value:.3g}", x.at(math.log(value))) for value in (1 / factor, 1.0, factor)]
    return _small([h("text", text, x=at, y=11, class_="tick middle") for text, at in ticks], 16)


def _small(parts: Sequence[Child], height: float) -> Element:
    return h("svg", parts, viewBox=f"0 0 {_BAR:g} {height:g}", width=_BAR, height=height, aria_hidden="true")
