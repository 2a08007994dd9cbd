"""Draw what a machine was measured to do: machine.html, by the drawing system of the reports. Roofline, the map of
products over their sizes, curves of links, the matrix of pairs, power."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import floor, log10

import numpy as np
from markupsafe import Markup

from compare.report.blocks import Block, Charts, Report, Section, bullets, table
from compare.report.charts import WIDTH, Axis, Chart, element, look, marker, polyline, sample
from compare.report.files import html
from conf.machine import Figure, Machine
from measure.cases import COLLECTIVES, DTYPES, flops_of, group_of, moved_bytes
from measure.rates import Numbers, Samples
from metrics.quantity import shown

_LEFT, _RIGHT, _TOP, _BOTTOM, _HEIGHT = 66.0, 498.0, 26.0, 236.0, 280.0
_CELL = 34.0
_WORK = ("gemm", "attention", "copy", "triad", "rms_norm", "swiglu", "rope", "softmax")


def page(machine: Machine, samples: Samples) -> str:
    """Return machine.html."""
    charts = [chart for chart in (*_rooflines(machine, samples), *_links(samples), *_power(machine)) if chart]
    maps = [*_maps(samples), *_pairs(machine)]
    rows = [(one.name, _of(one), *_value(one), one.formula) for one in machine.figures]
    heads = ("figure", "of", "value", "95 % interval", "formula")
    errors = [
        (row.of, str(row.runs), f"{row.median:.1%}", f"{row.percentile_90:.1%}", f"{row.target:.0%}, {row.wanted_by}")
        for row in machine.validation
    ]
    blocks: dict[str, list[Block]] = {
        "Curves": [Charts(charts)] if charts else [],
        "Maps": [Charts(maps)] if maps else [],
        "Figures": [*table("Every figure", heads, rows)],
        "Predicted by the others": [
            *table("Errors", ("of", "number", "median error", "90th percentile", "wanted"), errors)
        ],
        "Unknown": [*bullets(unknown(machine))],
    }
    sections = tuple(Section(name, found, name.split()[0].lower()) for name, found in blocks.items() if found)
    word, tone = ("sound", "good") if not machine.warnings else ("look at this", "open")
    title = f"Machine: {machine.device}, {machine.ranks} ranks, {machine.date[:10]}"
    warnings = tuple(machine.warnings) or ("Nothing looks wrong with it.",)
    return html(Report(title, word, tone, warnings, sections))  # type: ignore[arg-type]


def unknown(machine: Machine) -> Iterator[str]:
    """Yield a line for each reason, with all that is unknown for it."""
    names = defaultdict[str, list[str]](list)
    for name, why in machine.unknown.items():
        names[why].append(name)
    yield from (f"{', '.join(of)}: {why}" for why, of in names.items())


def _of(one: Figure) -> str:
    return " ".join(f"{name}={value}" for name, value in one.of.items())


def _value(one: Figure) -> tuple[str, str]:
    ends = f"{shown(one.interval[0])} to {shown(one.interval[1])}" if one.interval else ""
    return f"{shown(one.value)} {one.unit}", ends


class _Powers(Axis, frozen=True):
    """An axis in powers of ten: its values are logarithms."""

    def ticks(self) -> list[float]:
        least, most = floor(self.low), floor(self.high)
        step = max(1, (most - least) // 5)
        return [float(power) for power in range(least, most + 1, step) if power >= self.low]


def _axes(points: Sequence[tuple[float, float]], labels: tuple[str, str]) -> tuple[_Powers, _Powers, list[Markup]]:
    """Return both axes in powers of ten and their drawing. points: values, not logarithms."""
    xs, ys = (np.log10([point[i] for point in points]) for i in (0, 1))
    x = _Powers(float(xs.min()) - 0.1, float(xs.max()) + 0.1, _LEFT, _RIGHT)
    y = _Powers(float(ys.min()) - 0.1, float(ys.max()) + 0.2, _BOTTOM, _TOP)
    parts = [_line(x.start, y.start, x.end, y.start, "axis")]
    for value in y.ticks():
        parts.append(_line(x.start, y.at(value), x.end, y.at(value), "rule"))
        parts.append(element("text", _power_text(value), x=x.start - 6, y=y.at(value) + 4, class_="tick end"))
    for value in x.ticks():
        parts.append(_line(x.at(value), y.start, x.at(value), y.start + 4, "axis"))
        parts.append(element("text", _power_text(value), x=x.at(value), y=y.start + 17, class_="tick middle"))
    parts.append(element("text", labels[0], x=x.end, y=y.start + 33, class_="label end"))
    parts.append(element("text", labels[1], x=2, y=y.end - 9, class_="label"))
    return x, y, [element("g", *parts, aria_hidden="true")]


def _power_text(power: float) -> str:
    """Return 10 to a power as people read it: 100, 1 k, 10 M."""
    group, letters = divmod(int(power), 3), ("n", "µ", "m", "", "k", "M", "G", "T", "P")
    index = group[0] + 3
    return f"{10 ** group[1]} {letters[index]}".strip() if 0 <= index < len(letters) else f"1e{int(power)}"


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=round(x1, 1), y1=round(y1, 1), x2=round(x2, 1), y2=round(y2, 1), class_=class_)


def _rooflines(machine: Machine, samples: Samples) -> Iterator[Chart]:
    """Yield for each precision the work of one device over what it computes for a byte, below its limits."""
    for dtype, (precision, _) in DTYPES.items():
        spots = []
        for case, seconds in zip(samples.cases, _medians(samples), strict=True):
            known = case["kind"] in _WORK and case["dtype"] == dtype and case["ranks"] == 1
            if known and not case.get("backward") and np.isfinite(seconds):
                flops = flops_of(case) or moved_bytes(case) / 4  # of memory-bound work about one a number
                spots.append((flops / moved_bytes(case), flops / seconds, str(case["kind"])))
        best, rate = (machine.value(name, ranks=1, precision=precision) for name in ("gemm_best", "triad_rate"))
        if not spots or not best or not rate:
            continue
        knee, least = best / rate, min(spot[0] for spot in spots)
        corners = [(least, least * rate), (knee, best), (max(2 * knee, *(spot[0] for spot in spots)), best)]
        x, y, parts = _axes([*((at, up) for at, up, _ in spots), *corners], ("FLOP a byte", "FLOP/s"))
        path = polyline([(x.at(log10(at)), y.at(log10(up))) for at, up in corners])
        parts.append(element("path", d=path, class_="even", fill="none"))
        for at, up, kind in spots:
            parts.append(marker(_WORK.index(kind), x.at(log10(at)), y.at(log10(up)), kind))
        caption = (
            f"Below the dashed line: {shown(best)} FLOP/s and {shown(rate)} bytes/s, knee at {knee:.3g} FLOP a byte."
        )
        yield Chart(f"Roofline, {precision}", caption, f"{len(spots)} pieces of work below the roofline", parts)


def _medians(samples: Samples) -> Numbers:
    seen = ~np.isnan(samples.seconds).all(axis=1)
    medians = np.full(len(samples.cases), np.nan)
    medians[seen] = np.nanmedian(samples.seconds[seen], axis=1)
    return medians


def _maps(samples: Samples) -> Iterator[Chart]:
    """Yield for each precision the rate of one device over rows, columns and depth, as shares of its best."""
    medians = _medians(samples)
    for dtype, (precision, _) in DTYPES.items():
        rates = {
            (case["m"], case["n"], case["k"]): flops_of(case) / seconds
            for case, seconds in zip(samples.cases, medians, strict=True)
            if case["kind"] == "gemm" and case["dtype"] == dtype and case["ranks"] == 1 and np.isfinite(seconds)
            if "layer" not in case  # of a model, and of no grid
        }
        if rates:
            yield _map(precision, rates)


def _map(precision: str, rates: dict[tuple[int, int, int], float]) -> Chart:
    rows, columns, depths = (sorted({sizes[i] for sizes in rates}) for i in range(3))
    best, parts, block = max(rates.values()), [], len(columns) * _CELL + 22
    for d, depth in enumerate(depths):
        left = 46 + d * block
        parts.append(element("text", f"K {depth}", x=left, y=16, class_="label strong"))
        for c, column in enumerate(columns):
            parts.append(element("text", f"{column}", x=left + (c + 0.5) * _CELL, y=32, class_="tick middle"))
        for r, row in enumerate(rows):
            top = 38 + r * _CELL
            if not d:
                parts.append(element("text", f"{row}", x=40, y=top + _CELL / 2 + 4, class_="tick end"))
            for c, column in enumerate(columns):
                rate = rates.get((row, column, depth))
                if rate is not None:
                    title = f"{row} × {column} × {depth}: {shown(rate)} FLOP/s"
                    parts += _cell(left + c * _CELL, top, rate / best, f"{100 * rate / best:.0f}", title)
    height = 38 + len(rows) * _CELL + 30
    parts.append(element("text", "rows M down, columns N across", x=46, y=height - 8, class_="label"))
    caption = f"Percent of {shown(best)} FLOP/s, the best of them."
    return _fitted(
        f"Products, {precision}",
        caption,
        f"{len(rates)} sizes of product, in {precision}",
        parts,
        height,
        46 + len(depths) * block,
    )


def _cell(x: float, y: float, share: float, text: str, title: str) -> list[Markup]:
    """Draw a cell that is the darker the larger its share of the best."""
    size = _CELL - 2
    opacity, label = round(0.08 + 0.42 * min(share, 1), 2), element("title", title)
    place = {"x": x, "y": y, "width": size, "height": size}
    shade = element("rect", label, **place, class_="g0", fill="currentColor", fill_opacity=opacity)
    return [shade, element("text", text, x=x + size / 2, y=y + size / 2 + 4, class_="label middle")]


def _fitted(title: str, caption: str, what: str, parts: list[Markup], height: float, across: float) -> Chart:  # noqa: PLR0913
    """Return a chart of parts that are `across` wide, made smaller where that is more than a chart is."""
    scale = min(1.0, WIDTH / across)
    return Chart(title, caption, what, [element("g", *parts, transform=f"scale({scale:.3f})")], height * scale)


def _links(samples: Samples) -> Iterator[Chart]:
    """Yield for each number of ranks, and size of their groups, the rate of collectives over size."""
    medians = _medians(samples)
    for ranks, group in sorted(
        {(case["ranks"], group_of(case)) for case in samples.cases if case["kind"] in COLLECTIVES}
    ):
        curves = {}
        for kind in COLLECTIVES:
            own = [
                (float(case["bytes"]), case["bytes"] / seconds)
                for case, seconds in zip(samples.cases, medians, strict=True)
                if case["kind"] == kind and (case["ranks"], group_of(case)) == (ranks, group) and np.isfinite(seconds)
            ]
            if own:
                curves[kind] = sorted(own)
        if curves:
            groups = "" if group == ranks else f" in groups of {group}"
            yield _curves(f"Links, {ranks} ranks{groups}", ("bytes", "bytes/s"), curves)


def _curves(title: str, labels: tuple[str, str], curves: dict[str, list[tuple[float, float]]]) -> Chart:
    x, y, parts = _axes([point for curve in curves.values() for point in curve], labels)
    for place, (name, curve) in enumerate(curves.items()):
        drawn = [(x.at(log10(at)), y.at(log10(up))) for at, up in curve]
        parts.append(element("path", element("title", name), d=polyline(drawn), class_=f"curve {look(place)}"))
        parts += [marker(place, *at, name) for at in drawn]
        parts.append(element("g", sample(place), transform=f"translate({_LEFT + 8} {_TOP + 4 + 16 * place})"))
        parts.append(element("text", name.replace("_", "-"), x=_LEFT + 50, y=_TOP + 15 + 16 * place, class_="tick"))
    return Chart(title, "Bytes of the tensor over the time of a call.", f"{title}: {', '.join(curves)}", parts)


def _pairs(machine: Machine) -> Iterator[Chart]:
    """Yield the matrix of pairs: the rate between each two ranks as a share of the best."""
    rates = {
        (int(one.of["first"]), int(one.of["second"])): one.value for one in machine.figures if one.name == "send_rate"
    }
    if not rates:
        return
    best, parts = max(rates.values()), []
    for rank in range(machine.ranks):
        at = 46 + rank * _CELL
        parts.append(element("text", f"{rank}", x=at + _CELL / 2, y=20, class_="tick middle"))
        parts.append(element("text", f"{rank}", x=38, y=at - 14 + _CELL / 2, class_="tick end"))
    for (first, second), rate in rates.items():
        title = f"{first} and {second}: {shown(rate)} bytes/s"
        for row, column in ((first, second), (second, first)):
            parts += _cell(46 + column * _CELL, 26 + row * _CELL, rate / best, f"{100 * rate / best:.0f}", title)
    size = 46 + machine.ranks * _CELL
    caption = f"Percent of {shown(best)} bytes/s, the best pair's, one way."
    yield _fitted("Pairs of ranks", caption, f"the rate of {len(rates)} pairs", parts, size, size)


def _power(machine: Machine) -> Iterator[Chart]:
    """Yield power over the share of the time at work, and the other phases as points at all of it."""
    known = {str(one.of["phase"]): one.value for one in machine.figures if one.name == "power"}
    curve = [(0.0, known["idle"])] if "idle" in known else []
    curve += [
        (float(name.split()[1].rstrip("%")), watts) for name, watts in known.items() if name.startswith("products")
    ]
    if len(curve) < 2:
        return
    x = Axis(0.0, 105.0, _LEFT, _RIGHT)
    y = Axis(0.0, 1.1 * max(known.values()), _BOTTOM, _TOP)
    parts = [_line(x.start, y.start, x.end, y.start, "axis")]
    for axis_, at in ((y, "tick end"), (x, "tick middle")):
        for value in axis_.ticks():
            across, down = (x.start - 6, y.at(value) + 4) if axis_ is y else (x.at(value), y.start + 17)
            parts.append(element("text", shown(value), x=across, y=down, class_=at))
    drawn = [(x.at(at), y.at(watts)) for at, watts in sorted(curve)]
    parts.append(element("path", d=polyline(drawn), class_=f"curve {look(0)}"))
    parts += [marker(0, *at) for at in drawn]
    for place, name in enumerate(("memory-bound", "training"), start=1):
        if name in known:
            parts.append(marker(place, x.at(100), y.at(known[name]), name, 5))
            parts.append(element("text", name, x=x.at(98), y=y.at(known[name]) + 4, class_="tick end"))
    parts.append(element("text", "% of the time at work", x=x.end, y=y.start + 33, class_="label end"))
    parts.append(element("text", "W", x=2, y=y.end - 9, class_="label"))
    yield Chart(
        "Power", "Products at a share of the time; memory-bound and training beside them.", "power", parts, _HEIGHT
    )
