"""The sentences of a report: its result, and what to do next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from compare.audit import some
from compare.comparison import Compared, Comparison
from compare.figures import COST, FIGURES, SPEED
from compare.groups import gathered
from compare.report.blocks import Line, Number, line, ratio_lines
from compare.statistics import ENOUGH
from conf.arguments import program
from conf.errors import listed
from metrics import shown

_NO_NUMBER: Mapping[str, str] = {
    "not comparable": "No ratio is given: the groups differ in more than what is compared.",
    "cannot tell": "No ratio is given: too little is known to say whether the groups may be compared.",
    "nothing to compare": "One group of runs: there is nothing to compare it with.",
}
_TITLES = {figure.metric: figure.title for figure in FIGURES}
_SENTENCES = 3  # groups with a sentence of their own
_SPELLED = 3  # keys that a command is spelled out for


def headline(comparison: Comparison) -> tuple[Line, ...]:
    """Return a sentence for each of the first groups: how fast, how sure, at which cost; or why there is no number."""
    known = [(i, item) for i, item in enumerate(comparison.ratios) if item.metric == SPEED and item.result]
    if not known and _deciding(comparison) == ["loss"]:
        return (line("No ratio is given: the groups train to other losses, and a speed counts at equal loss."),)
    if not known:
        if (stray := _stray(comparison)) and set(stray) == set(_deciding(comparison)):
            return (line("No ratio is given: not all that was requested ran."),)
        measured = any(group.usable for group in comparison.groups)
        no_ratio = "No throughput is known on both sides." if measured else "Rehearsed: nothing was measured."
        return (line(_NO_NUMBER.get(comparison.audit.verdict.word, no_ratio)),)
    sentences = tuple(
        (*_speed(item, i, comparison.baseline), *_cost(comparison, item.group), ".") for i, item in known[:_SENTENCES]
    )
    more = len(known) - _SENTENCES
    beside = "1 more group is" if more == 1 else f"{more} more groups are"
    return (*sentences, line(f"{beside} in the table.")) if more > 0 else sentences


def _speed(item: Compared, index: int, baseline: str) -> Line:
    result = item.result
    assert result is not None
    ratio, interval = ratio_lines(result, f"/ratios/{index}")
    text = {
        "same": f"{item.group} is as fast as {baseline}",
        "undecided": f"Undecided whether {item.group} is faster than {baseline}",
    }.get(result.word, f"{item.group} is {result.word} than {baseline}")
    sure: Line = ("95 % interval ", *interval) if interval else (f"no interval: {result.reason}",)
    return (f"{text}: ", *ratio, " times its tokens/s/GPU (", *sure, ")")


def _cost(comparison: Comparison, group: str) -> Line:
    """Return nothing at example prices: of what is assumed there are no ratios."""
    for index, item in enumerate(comparison.ratios):
        if (item.group, item.metric) == (group, COST) and item.result:
            ratio, interval = ratio_lines(item.result, f"/ratios/{index}")
            sure: Line = (" (", *interval, ")") if interval else ()
            return ("; a token costs ", *ratio, " times as much", *sure, " at your prices")
    return ()


def advice(comparison: Comparison) -> tuple[Line, ...]:
    """Return what to do next; nothing where the question is answered."""
    word = comparison.audit.verdict.word
    keys = _deciding(comparison)
    if word == "not comparable":
        stray = _stray(comparison)
        unlike = [key for key in keys if key not in stray]
        sentences = [*_unlike(comparison, unlike)]
        if stray:  # neither runs that are alike nor vary= would help
            mend = "request what ran, or have the stack run what was requested"
            sentences.append(f"{some(stray)} did not run as requested: {mend}; or accept it, {_accept(stray)}")
        return tuple(map(line, sentences))
    if word == "cannot tell" and keys:
        stated = f"What is unknown can be stated of a log from elsewhere, {program('parse')} LOG --save KEY=VALUE"
        return (line(f"{stated}; or accepted: {_accept(keys)}"),)
    if word == "cannot tell":
        return (line("Complete a run of each group."),)
    if word == "nothing to compare":
        return (line("Name the runs of another group as well: of another platform, layout or image."),)
    if comparison.audit.rehearsed:
        return (line("Run it for real, without rehearse=: a rehearsal has no speed."),)
    figures = comparison.group_figures
    known = [group for group in comparison.groups if group.label in figures]
    priced = [group for group in known if figures[group.label][COST].value is not None]
    devices = dict.fromkeys(group.runs[0].record.hardware for group in priced)
    options = " ".join(f"price.usd_per_gpu_hour.{device}=…" for device in devices if device)
    example = bool(options) and comparison.terms.prices.example
    prices = (line(f"Give your own prices, of which ours are an example: {options}"),) if example else ()
    return (*_repeats(comparison), *prices)


def _accept(keys: Sequence[str]) -> str:
    return " ".join(f"accept.{key}=REASON" for key in keys) if len(keys) <= _SPELLED else "accept.KEY=REASON"


def _unlike(comparison: Comparison, keys: Sequence[str]) -> Iterator[str]:
    if not keys:
        return
    if list(keys) == ["loss"]:
        yield f"Where this difference of losses will do, accept it: {_accept(keys)}; else find out why they part"
        return
    # Nobody would compare clocks.
    settings = [row.setting for row in comparison.audit.rows if row.setting in keys and row.setting != "clock"]
    compared = ",".join((*comparison.audit.varied.keys, *settings))
    vary = f"compare it, vary={compared}; or " if 0 < len(settings) <= _SPELLED else ""
    yield f"Run the groups alike in {some(keys)}; or {vary}accept what is meant to differ, {_accept(keys)}"


def _stray(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(item.setting for item in comparison.audit.deviations if item.decides))


def _deciding(comparison: Comparison) -> list[str]:
    """Return what accept.KEY would have to name."""
    audited = comparison.audit
    differs = audited.verdict.word == "not comparable"
    names = [row.setting for row in audited.rows if row.decides and (row.state == "unexplained") == differs]
    names += [check.name for check in comparison.checks if check.decides and (check.state == "apart") == differs]
    names += _stray(comparison)
    return list(dict.fromkeys(names))


def _repeats(comparison: Comparison) -> Iterator[Line]:
    """Yield how many more runs would decide how fast a group is, where they would."""
    open_ = [
        (index, item.result)
        for index, item in enumerate(comparison.ratios)
        if item.metric == SPEED and item.result and item.result.word == "undecided"
    ]
    needed = max(((r.runs_to_decide, i) for i, r in open_ if r.runs_to_decide), default=None)
    if needed:
        count, index = needed
        number = Number(shown(count), count, f"/ratios/{index}/runs_to_decide")
        yield ("Repeat the runs with other seeds: about ", number, " a side would decide the throughput.")
    elif any(result.interval is None for _, result in open_):
        yield line(f"Repeat the runs with other seeds: from {ENOUGH} a side on there is an interval.")


def no_ratio(known: Iterable[Compared], metrics: Collection[str]) -> list[str]:
    """Return why there is none, a sentence a reason."""
    left_out = [item for item in known if item.result is None and item.metric in metrics]
    why = gathered((item.reason, _TITLES[item.metric]) for item in left_out)
    return [f"No ratio of {listed(list(dict.fromkeys(titles)))}: {reason}." for reason, titles in why.items()]
