"""A comparison as one picture: throughput, loss, learning rate, step time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from textwrap import shorten, wrap
from typing import Any

from compare.comparison import Comparison
from compare.figures import SPEED
from compare.pictures.drawing import Axis, tick_text
from compare.pictures.legend import titled
from compare.pictures.series import Curves, curves, with_curves
from compare.report.blocks import text_of
from compare.report.words import headline
from parsers.record import Run
from parsers.text import plain

# Okabe and Ito's palette (2008), told apart with every common colour blindness; markers and dashes repeat the message.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":")
_STYLE: Any = {  # keys of matplotlibrc
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "font.size": 9.5,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "text.parse_math": False,  # a dollar sign in a label is a dollar sign
}
_SHOWN_REASONS = 3
_NAMED = 12  # groups that a picture has room to name: the page has all
_LINES = 4
_CUT: Any = {"max_lines": 3, "placeholder": " …"}
_PANEL_WIDTH, _CAPTION_WIDTH = 105, 185
_TITLES = {False: (12.5, 118), True: (9.5, 160)}  # size and characters a line, of one sentence and of more
_COLUMNS = 2


def png(comparison: Comparison) -> bytes:
    """The picture, as a file in PNG: of the shape of a slide, or of half of one."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    file = BytesIO()
    drawn, measured = curves(comparison), any(group.shown for group in comparison.groups)
    rows = 1 if len(drawn) + measured <= _COLUMNS else 2
    with rc_context(_STYLE):
        figure = Figure(figsize=(12.8, 3.8 * rows), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        panels = list(figure.subplots(rows, _COLUMNS).flat)
        if measured:
            _draw_throughput(panels.pop(0), comparison)
        for place, curve in enumerate(drawn):
            axes = panels.pop(0)
            _draw_curves(axes, curve, comparison)
            if place == 0:
                _draw_legend(axes, comparison)
        for axes in panels:
            axes.set_visible(False)
        size, _ = _TITLES[len(headline(comparison)) > 1]
        figure.suptitle(title(comparison), x=0.008, ha="left", fontsize=size, fontweight="bold")
        figure.supxlabel(_caption(comparison), x=0.008, ha="left", fontsize=8.5, color="#444444")
        figure.savefig(file, format="png")
    return file.getvalue()


def _draw_throughput(axes: Any, comparison: Comparison) -> None:
    axes.set_title("Throughput, tokens/s/GPU")
    used = [(look, g) for look, g in enumerate(comparison.groups) if g.shown]
    for place, (look, group) in enumerate(used):
        colour, marker, _ = _look(look)
        values = [comparison.run_figures[run.path][SPEED].value for run in group.shown]
        known = [value for value in values if value is not None]
        spread = [place + 0.09 * (index - (len(known) - 1) / 2) for index in range(len(known))]
        axes.scatter(spread, known, color=colour, marker=marker, s=26, alpha=0.75, linewidths=0)
        pooled = comparison.group_figures[group.label][SPEED]
        if pooled.value is not None and pooled.interval is not None:
            axes.vlines(place + 0.3, *pooled.interval, color=colour, linewidth=2.2)
            axes.plot([place + 0.24, place + 0.36], [pooled.value] * 2, color=colour, linewidth=2.2)
        elif not known and len(used) <= _NAMED:
            axes.annotate("unknown", (place, 0), ha="center", va="bottom")
    axes.set_xticks(range(len(used)), [_short(titled(group)) if len(used) <= _NAMED else "" for _, group in used])
    axes.set_xlim(-0.6, len(used) - 0.4)
    axes.set_ylim(bottom=0, top=1.06 * axes.get_ylim()[1])
    axes.grid(axis="x", visible=False)
    axes.yaxis.set_major_formatter(_ticks(*axes.get_ylim()))


def _draw_curves(axes: Any, drawn: Curves, comparison: Comparison) -> None:
    axes.set_title(drawn.title, pad=16 if drawn.note else 6)
    above = {"xycoords": "axes fraction", "xytext": (0, 4), "textcoords": "offset points"}
    axes.annotate(shorten(drawn.note, _PANEL_WIDTH, placeholder=" …"), (0, 1), **above, fontsize=8.5, color="#444444")
    axes.set_xlabel(drawn.x)
    axes.set_ylabel(drawn.y)
    for series in drawn.series:
        colour, marker, dash = _look(series.place)
        known = [point or (math.nan, math.nan) for point in series.points]  # matplotlib draws no line over nan
        # Each group marks other points, so that curves that lie on each other are all seen.
        often, groups = max(1, len(known) // 6), max(1, len(comparison.groups))
        first = int(often * series.place / groups)
        style = {"color": colour, "linestyle": dash, "marker": marker, "markersize": 4, "markevery": (first, often)}
        axes.plot([x for x, _ in known], [y for _, y in known], linewidth=1.3, alpha=0.8, **style)
        foot = {"transform": axes.get_xaxis_transform(), "color": "#a40e26", "clip_on": False}
        axes.scatter([x for x, _ in series.broken], [0.02] * len(series.broken), marker="x", **foot)
    axes.locator_params(axis="x", nbins=6)
    if drawn.from_zero:
        axes.set_ylim(bottom=0, top=1.06 * axes.get_ylim()[1])
    for side, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        side.set_major_formatter(_ticks(low, high))


def _draw_legend(axes: Any, comparison: Comparison) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for place, side in with_curves(comparison):
        colour, marker, dash = _look(place)
        count = f"{len(side.usable)} run" + ("" if len(side.usable) == 1 else "s")
        style: Any = {"color": colour, "marker": marker, "linestyle": dash, "markersize": 5}
        handles.append(Line2D([], [], **style, label=f"{shorten(plain(side.label), 40, placeholder=' …')} ({count})"))
    if handles:
        axes.legend(handles=handles[:_NAMED], loc="upper right", fontsize=9)


def title(comparison: Comparison) -> str:
    """What the page says on top."""
    word = "" if comparison.ratios else f"{comparison.audit.verdict.word.capitalize()}. "
    first, *others = (plain(text_of(sentence)) for sentence in headline(comparison))
    _, width = _TITLES[bool(others)]
    return "\n".join(line for sentence in (word + first, *others) for line in wrap(sentence, width))


def _caption(comparison: Comparison) -> str:
    """Where the numbers come from; and what speaks against comparing them."""
    runs = [run for _, side in with_curves(comparison) for run in side.usable]
    provenance = ", ".join(dict.fromkeys(run.record.provenance for run in runs)) or "no runs"
    hosts, devices = _facts(runs, "host"), _facts(runs, "device_name")
    text = f"{provenance}: {len(runs)} completed runs; device: {devices}; host: {hosts}."
    lines = wrap(plain(f"{text} Dots are runs, bars 95 % intervals."), _CAPTION_WIDTH, **_CUT)
    if comparison.audit.verdict.word != "comparable":
        reasons = comparison.audit.verdict.reasons
        more = f" and {len(reasons) - _SHOWN_REASONS} more" if len(reasons) > _SHOWN_REASONS else ""
        lines += wrap(plain("; ".join(reasons[:_SHOWN_REASONS]) + more), _CAPTION_WIDTH, **_CUT)
    return "\n".join(lines)


def _facts(runs: Sequence[Run], name: str) -> str:
    return ", ".join(dict.fromkeys(str(run.record.environment.get(name) or "unknown") for run in runs))


def _look(place: int) -> tuple[str, str, str]:
    return _COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)], _DASHES[place % len(_DASHES)]


def _ticks(low: float, high: float) -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: tick_text(value, Axis(low, high, 0, 1)))


def _short(label: str) -> str:
    text = plain(label)
    return text if len(text) <= 12 else "\n".join(wrap(text, 12, max_lines=_LINES, placeholder=" …"))
