"""A comparison as one picture of the shape of a slide: the page's charts, drawn by resvg.

fonts/: DejaVu 2.37, cut to Latin, Greek, Cyrillic and signs by pyftsubset, for machines without any font. Other scripts
come from the machine's own fonts; a character that none has is a box.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from textwrap import shorten, wrap

from compare.comparison import Comparison
from compare.report.blocks import text_of
from compare.report.charts import Chart, curve_charts, throughput_chart, with_curves
from compare.report.drawing import HEIGHT, WIDTH, chart_height, element, sample, svg
from compare.report.files import HERE
from compare.report.words import headline
from parsers import Run
from parsers.text import plain

_ZOOM = 1.6
_SPACE = 16.0
_PANEL = HEIGHT + 44.0  # with its title and caption
_SHOWN_REASONS = 3
_NAMED = 12  # groups that a picture has room to name: the page has all
_TITLES = {False: (16.0, 108), True: (12.5, 145)}  # size and characters a line, of one sentence and of more
_CAPTION = 175  # characters a line
_LABEL = 48


def png(comparison: Comparison) -> bytes:
    """Return throughput, loss, learning rate and step time as a file in PNG."""
    import resvg_py

    measured = any(group.shown for group in comparison.groups)
    strip = (throughput_chart(comparison),) if measured else ()
    width, y, parts = 2 * WIDTH + 3 * _SPACE, _SPACE, list[str]()
    sentences = title(comparison).splitlines()
    size, _ = _TITLES[len(headline(comparison)) > 1]
    for text in sentences:
        y += 1.3 * size
        parts.append(element("text", text, x=_SPACE, y=y, font_size=size, class_="strong"))
    legend, y = _legend(comparison, y + _SPACE)
    parts += legend
    charts: tuple[Chart, ...] = (*strip, *curve_charts(comparison))
    for row in (charts[i : i + 2] for i in range(0, len(charts), 2)):
        for column, chart in enumerate(row):
            parts += _panel(chart, _SPACE + column * (WIDTH + _SPACE), y)
        y += max(_PANEL, *(chart_height(chart) + 44 for chart in row)) + _SPACE
    for text in _caption(comparison):
        parts.append(element("text", text, x=_SPACE, y=y, class_="tick"))
        y += 16
    drawing = element(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width:g} {y:g}", width=width, height=y
    )
    fonts = [str(path) for path in sorted((HERE / "fonts").glob("*.ttf"))]
    return resvg_py.svg_to_bytes(drawing, style_sheet=style(), background="#ffffff", zoom=_ZOOM, font_files=fonts)


def style() -> str:
    """Return the page's rules for drawings, with its light colours in place of their names, which resvg lacks."""
    page, rules = ((HERE / name).read_text(encoding="utf-8") for name in ("report.css", "drawing.css"))
    light = dict(re.findall(r"--([\w-]+): (#\w+);", page.partition("@media")[0]))
    rules = re.sub(r"var\(--([\w-]+)\)", lambda match: light[match[1]], rules)
    return rules.replace("inherit", '"DejaVu Sans"')


def _panel(chart: Chart, x: float, y: float) -> Iterator[str]:
    yield element("text", chart.title, x=x, y=y + 16, font_size=15, class_="strong")
    yield element("text", shorten(plain(chart.caption), 84, placeholder=" …"), x=x, y=y + 34, class_="tick")
    yield svg(chart, x=x, y=y + 40, width=WIDTH, height=chart_height(chart))


def _legend(comparison: Comparison, y: float) -> tuple[list[str], float]:
    """Return the groups with their lines and shapes, three a row, and where the next part begins."""
    groups, parts = with_curves(comparison)[:_NAMED], list[str]()
    for index, (place, side) in enumerate(groups):
        row, column = divmod(index, 3)
        x, here = _SPACE + column * (2 * WIDTH + _SPACE) / 3, y + 20 * row
        count = f"{len(side.usable)} run" + ("" if len(side.usable) == 1 else "s")
        label = f"{shorten(plain(side.label), _LABEL - 12, placeholder=' …')} ({count})"
        parts += [element("g", sample(place), transform=f"translate({x:g} {here:g})")]
        parts += [element("text", label, x=x + 44, y=here + 12, class_="label")]
    return parts, y + 20 * ((len(groups) + 2) // 3) + (_SPACE if groups else 0)


def title(comparison: Comparison) -> str:
    """Return the headline of the page, wrapped."""
    word = "" if comparison.ratios else f"{comparison.audit.verdict.word.capitalize()}. "
    first, *others = (plain(text_of(sentence)) for sentence in headline(comparison))
    _, width = _TITLES[bool(others)]
    return "\n".join(line for sentence in (word + first, *others) for line in wrap(sentence, width))


def _caption(comparison: Comparison) -> Sequence[str]:
    """Return lines on where the numbers come from, and on what speaks against comparing them."""
    runs = [run for _, side in with_curves(comparison) for run in side.usable]
    provenance = ", ".join(dict.fromkeys(run.record.provenance for run in runs)) or "no runs"
    hosts, devices = _facts(runs, "host"), _facts(runs, "device_name")
    texts = [f"{provenance}: {len(runs)} completed runs; device: {devices}; host: {hosts}."]
    if comparison.audit.verdict.word != "comparable":
        reasons = comparison.audit.verdict.reasons
        more = f" and {len(reasons) - _SHOWN_REASONS} more" if len(reasons) > _SHOWN_REASONS else ""
        texts.append("; ".join(reasons[:_SHOWN_REASONS]) + more)
    return [line for text in texts for line in wrap(plain(text), _CAPTION, max_lines=3, placeholder=" …")]


def _facts(runs: Sequence[Run], name: str) -> str:
    return ", ".join(dict.fromkeys(str(run.record.environment.get(name) or "unknown") for run in runs))
