"""A comparison as one picture: throughput, loss, step time."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from textwrap import wrap
from typing import Any

from compare.comparison import Comparison
from metrics.pace import pace
from parsers.find import Run
from parsers.terminal import plain

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
_TITLE_WIDTH, _CAPTION_WIDTH = 130, 185


def png(comparison: Comparison) -> bytes:
    """The picture, as a file in PNG."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    file = BytesIO()
    with rc_context(_STYLE):
        figure = Figure(figsize=(12.5, 4.9), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        throughput, loss, times = figure.subplots(1, 3, width_ratios=(1, 1.25, 1.25))
        _draw_throughput(throughput, comparison)
        _draw_loss(loss, comparison)
        _draw_step_times(times, comparison)
        _draw_legend(loss, comparison)
        figure.suptitle(title(comparison), x=0.008, ha="left", fontsize=12.5, fontweight="bold")
        figure.supxlabel(_caption(comparison), x=0.008, ha="left", fontsize=8.5, color="#444444")
        figure.savefig(file, format="png")
    return file.getvalue()


def _draw_throughput(axes: Any, comparison: Comparison) -> None:
    metric = "tokens_per_s_per_gpu"
    axes.set_title("Throughput, tokens/s per device")
    used = [g for g in comparison.groups if g.usable]
    for place, group in enumerate(used):
        colour, marker, _ = _look(comparison, group.label)
        values = [comparison.run_figures[run.path][metric].value for run in group.usable]
        known = [value for value in values if value is not None]
        spread = [place + 0.09 * (index - (len(known) - 1) / 2) for index in range(len(known))]
        axes.scatter(spread, known, color=colour, marker=marker, s=26, alpha=0.75, linewidths=0)
        pooled = comparison.group_figures[group.label][metric]
        if pooled.value is not None and pooled.interval is not None:
            axes.vlines(place + 0.3, *pooled.interval, color=colour, linewidth=2.2)
            axes.plot([place + 0.24, place + 0.36], [pooled.value] * 2, color=colour, linewidth=2.2)
        elif not known:
            axes.annotate("unknown", (place, 0), ha="center", va="bottom")
    axes.set_xticks(range(len(used)), [_short(group.label) for group in used])
    axes.set_xlim(-0.6, len(used) - 0.4)
    axes.set_ylim(bottom=0, top=1.06 * axes.get_ylim()[1])
    axes.grid(axis="x", visible=False)
    axes.yaxis.set_major_formatter(_thousands())


def _draw_loss(axes: Any, comparison: Comparison) -> None:
    tokens = all(_tokens_a_sample(run) for run in _usable(comparison))
    axes.set_title("Loss at equal tokens" if tokens else "Loss by iteration")
    axes.set_xlabel("tokens seen" if tokens else "iteration")
    for label, run in _labelled(comparison):
        points = [(_seen(run, step, tokens), step.loss) for step in run.record.steps if step.loss is not None]
        known = [(x, y) for x, y in points if x is not None]
        _draw_line(axes, comparison, label, known)
    axes.set_ylabel("nats per token")
    axes.locator_params(axis="x", nbins=6)
    if tokens:
        axes.xaxis.set_major_formatter(_thousands())


def _draw_step_times(axes: Any, comparison: Comparison) -> None:
    axes.set_title("Step time, warm-up left out")
    axes.set_xlabel("iteration")
    for label, run in _labelled(comparison):
        counted = pace(run.record).counted
        _draw_line(axes, comparison, label, [(i.iteration, i.seconds / i.iterations) for i in counted])
    axes.set_ylabel("seconds")
    axes.set_ylim(bottom=0, top=1.06 * axes.get_ylim()[1])


def _draw_line(axes: Any, comparison: Comparison, label: str, points: Sequence[tuple[float, float]]) -> None:
    colour, marker, dash = _look(comparison, label)
    # Each group marks other points, so that curves that lie on each other are all seen.
    often, groups = max(1, len(points) // 6), max(1, len(comparison.groups))
    first = int(often * [group.label for group in comparison.groups].index(label) / groups)
    style = {"color": colour, "linestyle": dash, "marker": marker, "markersize": 4, "markevery": (first, often)}
    axes.plot([x for x, _ in points], [y for _, y in points], linewidth=1.3, alpha=0.8, **style)


def _draw_legend(axes: Any, comparison: Comparison) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for group in (g for g in comparison.groups if g.usable):
        colour, marker, dash = _look(comparison, group.label)
        count = f"{len(group.usable)} run" + ("s" if len(group.usable) > 1 else "")
        text = f"{plain(group.label)} ({count})"
        style: Any = {"color": colour, "marker": marker, "linestyle": dash, "markersize": 5}
        handles.append(Line2D([], [], **style, label=text))
    if handles:
        axes.legend(handles=handles, loc="upper right", fontsize=9)


def title(comparison: Comparison) -> str:
    """What the first ratio says, in words; and that it is not the only one."""
    ratios = [r for r in comparison.ratios if r.metric == "tokens_per_s_per_gpu" and r.result is not None]
    result = ratios[0].result if ratios else None
    if result is None:
        return plain(comparison.audit.verdict.word.capitalize())
    word = {"same": "as fast as", "undecided": "undecided against"}.get(result.word, f"{result.word} than")
    sure = "no interval: " + result.reason
    if result.interval is not None:
        sure = f"95 % interval {result.interval[0]:.3f} to {result.interval[1]:.3f}"
    text = (
        f"{ratios[0].group} is {word} {comparison.baseline}: {result.ratio:.3f} times its tokens/s per device ({sure})"
    )
    if len(ratios) > 1:
        text += f". First of {len(ratios)} groups held against {comparison.baseline}: the table has all"
    return "\n".join(wrap(plain(text), _TITLE_WIDTH))


def _caption(comparison: Comparison) -> str:
    """Where the numbers come from; and what speaks against comparing them."""
    runs = _usable(comparison)
    provenance = ", ".join(dict.fromkeys(run.record.provenance for run in runs)) or "no runs"
    hosts, devices = _facts(runs, "host"), _facts(runs, "device_name")
    text = f"{provenance}: {len(runs)} completed runs; device: {devices}; host: {hosts}."
    lines = wrap(plain(f"{text} Dots are runs, bars 95 % intervals."), _CAPTION_WIDTH)
    if comparison.audit.verdict.word != "comparable":
        reasons = comparison.audit.verdict.reasons
        more = f" and {len(reasons) - _SHOWN_REASONS} more" if len(reasons) > _SHOWN_REASONS else ""
        lines += wrap(plain("; ".join(reasons[:_SHOWN_REASONS]) + more), _CAPTION_WIDTH)
    return "\n".join(lines)


def _facts(runs: Sequence[Run], name: str) -> str:
    return ", ".join(dict.fromkeys(str(run.record.environment.get(name) or "unknown") for run in runs))


def _look(comparison: Comparison, label: str) -> tuple[str, str, str]:
    index = [group.label for group in comparison.groups].index(label)
    return _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)], _DASHES[index % len(_DASHES)]


def _usable(comparison: Comparison) -> list[Run]:
    return [run for _, run in _labelled(comparison)]


def _labelled(comparison: Comparison) -> list[tuple[str, Run]]:
    return [(group.label, run) for group in comparison.groups for run in group.usable]


def _tokens_a_sample(run: Run) -> int | None:
    length = run.record.setting("seq_length")
    known = all(step.consumed_samples is not None for step in run.record.steps)
    return length if type(length) is int and known else None


def _seen(run: Run, step: Any, tokens: bool) -> int | None:
    length = _tokens_a_sample(run)
    if not tokens:
        return int(step.step) + 1
    return None if length is None or step.consumed_samples is None else length * step.consumed_samples


def _thousands() -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:g}")


def _short(label: str) -> str:
    return plain(label).replace(" ", "\n") if len(label) > 12 else plain(label)
