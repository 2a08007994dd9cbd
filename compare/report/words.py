"""The sentences of a report: its result, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compare.audit import some
from compare.comparison import Compared, Comparison
from compare.figures import COST, SPEED
from compare.report.blocks import Line, Number, ratio_lines
from compare.statistics import ENOUGH
from conf.arguments import program
from metrics import shown

_NO_NUMBER: Mapping[str, str] = {
    "not comparable": "No ratio is given: the groups differ in more than what is compared.",
    "cannot tell": "No ratio is given: too little is known to say whether the groups may be compared.",
    "nothing to compare": "One group of runs: there is nothing to compare it with.",
}
_SENTENCES = 3  # groups with a sentence of their own
_SPELLED = 3  # keys that a command is spelled out for


def headline(comparison: Comparison) -> tuple[Line, ...]:
    """Return a sentence for each of the first groups: how fast, how sure, at which cost; or why there is no number."""
    known = _ratios(comparison, SPEED)
    if not known:
        return (_no_number(comparison),)
    # At example prices there is no cost: of what is assumed there are no ratios.
    costs = {item.group: (pointer, item) for pointer, item in _ratios(comparison, COST)}
    sentences: list[Line] = []
    for pointer, item in known[:_SENTENCES]:
        text = {
            "same": f"{item.group} is as fast as {item.baseline}",
            "undecided": f"Undecided whether {item.group} is faster than {item.baseline}",
        }.get(item.word, f"{item.group} is {item.word} than {item.baseline}")
        ratio, interval = ratio_lines(item.ratio, item.interval, pointer)
        sure: Line = ("95 % interval ", *interval) if interval else (f"no interval: {item.reason}",)
        cost: Line = ()
        if item.group in costs:
            pointer, cheap = costs[item.group]
            times, between = ratio_lines(cheap.ratio, cheap.interval, pointer)
            cost = (
                "; a token costs ",
                *times,
                " times as much",
                *(between and (" (", *between, ")")),
                " at your prices",
            )
        sentences.append((f"{text}: ", *ratio, " times its tokens/s/GPU (", *sure, ")", *cost, "."))
    if (more := len(known) - _SENTENCES) > 0:
        sentences.append(f"{'1 more group is' if more == 1 else f'{more} more groups are'} in the table.")
    return tuple(sentences)


def _ratios(comparison: Comparison, metric: str) -> list[tuple[str, Compared]]:
    """Return the known ratios of a metric, each with its place in compare.json."""
    places = ((f"/ratios/{place}", item) for place, item in enumerate(comparison.ratios) if item.metric == metric)
    return [(pointer, item) for pointer, item in places if item.ratio is not None]


def _no_number(comparison: Comparison) -> str:
    deciding, stray = _deciding(comparison), _stray(comparison)
    if deciding == ["loss"]:
        return "No ratio is given: the groups train to other losses, and a speed counts at equal loss."
    if stray and {*stray} == {*deciding}:
        return "No ratio is given: not all that was requested ran."
    measured = any(group.usable for group in comparison.groups)
    no_ratio = "No throughput is known on both sides." if measured else "Rehearsed: nothing was measured."
    return _NO_NUMBER.get(comparison.audit.verdict.word, no_ratio)


def advice(comparison: Comparison) -> Iterator[Line]:
    """Yield what to do next; nothing where the question is answered."""
    word, keys, stray = comparison.audit.verdict.word, _deciding(comparison), _stray(comparison)
    if word == "not comparable":
        yield from _unlike(comparison, [key for key in keys if key not in stray])
        if stray:  # neither runs that are alike nor vary= would help
            mend = "request what ran, or have the stack run what was requested"
            yield f"{some(stray)} did not run as requested: {mend}; or accept it, {_accept(stray)}"
    elif word == "cannot tell" and keys:
        stated = f"What is unknown can be stated of a log from elsewhere, {program('parse')} LOG --save KEY=VALUE"
        yield f"{stated}; or accepted: {_accept(keys)}"
    elif word == "cannot tell":
        yield "Complete a run of each group."
    elif word == "nothing to compare":
        yield "Name the runs of another group as well: of another platform, layout or image."
    elif comparison.audit.rehearsed:
        yield "Run it for real, without rehearse=: a rehearsal has no speed."
    else:
        yield from _repeats(comparison)
        figures = comparison.group_figures
        priced = [g for g in comparison.groups if g.label in figures and figures[g.label][COST].value is not None]
        devices = dict.fromkeys(group.runs[0].record.hardware for group in priced)
        options = " ".join(f"price.usd_per_gpu_hour.{device}=…" for device in devices if device)
        if options and comparison.terms.prices.example:
            yield f"Give your own prices, of which ours are an example: {options}"


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
    names += [check.name for check in comparison.audit.checks if check.decides and (check.state == "apart") == differs]
    names += _stray(comparison)
    return list(dict.fromkeys(names))


def _repeats(comparison: Comparison) -> Iterator[Line]:
    """Yield how many more runs would decide how fast a group is, where they would."""
    undecided = [(pointer, item) for pointer, item in _ratios(comparison, SPEED) if item.word == "undecided"]
    needed = [(item.runs_to_decide, pointer) for pointer, item in undecided if item.runs_to_decide]
    if needed:
        count, pointer = sorted(needed, key=lambda one: one[0])[-1]
        number = Number(shown(count), count, f"{pointer}/runs_to_decide")
        yield ("Repeat the runs with other seeds: about ", number, " a side would decide the throughput.")
    elif any(item.interval is None for _, item in undecided):
        yield f"Repeat the runs with other seeds: from {ENOUGH} a side on there is an interval."
