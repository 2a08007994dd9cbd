"""A gate as a report: the outcome, the figures that it judges, what changed between the sides, and the curves."""

from __future__ import annotations

from msgspec.structs import replace

from compare import regression
from compare.figures import TITLES
from compare.report import charts
from compare.report.blocks import Block, Charts, Details, Paragraph, Report, Section, bullets, table
from compare.report.page import REASONS, TONES, board, named
from conf.errors import listed
from metrics import shown

_HEADS = ("figure", "reference", "noise %", "new", "noise %", "difference %", "95 % interval", "word", "limit")
_DRAWN = 3  # experiments whose curves are drawn
_HOW_JUDGED = (
    "A figure is a regression where its 95 % interval lies beyond the limit, and none where the interval does not "
    "reach it. Everything else is open: more runs are needed, at least three a side."
)


def regression_report(gate: regression.Regression) -> Report:
    """Return the outcome, what changed between the sides, and the figures of every experiment."""
    limits = listed([f"{metric} {100 * limit:g} %" for metric, limit in gate.limits.items()])
    title = f"{gate.candidate} against {gate.baseline} (limit: {limits})"
    judged: list[Block] = [Paragraph(_HOW_JUDGED)]
    for case in gate.cases:
        judged += table(case.experiment or "Figures", _HEADS, [*map(_cells, case.lines)], numbers=True)
    changed: list[Block] = []
    nothing = "nothing that all runs report" if gate.unreported else "nothing"
    for caption, facts in (("Changed", gate.changes), ("Not known whether it changed", gate.unreported)):
        cells = [(one.fact, listed(one.reference), listed(one.new)) for one in facts]
        cells = cells or ([(nothing, "", "")] if facts is gate.changes else [])
        changed += table(caption, ("fact", gate.baseline, gate.candidate), cells)
    if gate.unchanged:
        same = listed([f"{one.fact} {listed(one.new)}" for one in gate.unchanged])
        changed.append(Paragraph(f"Unchanged: {same}."))
    sections = Section("All figures", judged, "figures"), Section("What changed", changed, "changed")
    rest = bullets(gate.reasons[REASONS:])
    top = (Details(f"{len(gate.reasons) - REASONS} more reasons", rest),) if rest else ()
    return Report(title, gate.outcome, TONES[gate.outcome], gate.reasons[:REASONS], sections, board=top)


def page_of(gate: regression.Regression) -> Report:
    """Return the report as a page has room for it: with the figures that decide, and the curves."""
    content, drawn = regression_report(gate), [case.comparison for case in gate.cases[:_DRAWN]]
    judged, changed = content.sections
    curves = [Charts(charts.all_charts(one), charts.legend(one)) for one in drawn]
    shown_ = Section("Curves", [one for one in curves if one.charts], "curves")
    sections = (changed, *([shown_] if shown_.blocks else []), judged)
    return replace(
        content, sections=sections, board=(*content.board, *(block for one in drawn for block in board(one)))
    )


def _cells(figure: regression.Line) -> tuple[str, ...]:
    unit = next((q.readable().unit for q in (figure.reference, figure.new) if q.value is not None), "")
    ends = "" if (e := figure.interval_percent) is None else f"{e[0]:+.2f} to {e[1]:+.2f}"
    difference = "unknown" if figure.difference_percent is None else f"{figure.difference_percent:+.2f}"
    noise = (figure.reference_noise_percent, figure.new_noise_percent)
    before, after = ("" if percent is None else f"{percent:.2f}" for percent in noise)
    old, new = (shown(q.readable().value) if q.value is not None else q.missing for q in (figure.reference, figure.new))
    title, word = named(TITLES[figure.metric], unit), figure.word.upper()
    return title, old, before, new, after, difference, ends, word, figure.state or ""
