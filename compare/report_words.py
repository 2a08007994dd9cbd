"""The words of a report that are also over the picture: what a comparison comes to, and what its groups are called."""

from __future__ import annotations

from collections.abc import Mapping

from compare.comparison import Compared, Comparison
from compare.groups import Group
from compare.report_blocks import Line
from compare.report_numbers import ratio_lines
from compare.statistics import Ratio

HEADLINE = "tokens_per_s_per_gpu"
_VERBS: Mapping[str, str] = {"same": "as fast as", "undecided": "undecided against"}
_NO_NUMBER: Mapping[str, str] = {
    "not comparable": "What differs beside what is compared decides: no ratio is given.",
    "cannot tell": "What is not known decides: no ratio is given.",
    "nothing to compare": "One group of runs: there is nothing to hold it against.",
}


def headline(comparison: Comparison) -> Line:
    """What the first ratio of throughput says; that it is not the only one; or why there is none."""
    found = [(i, item) for i, item in enumerate(comparison.ratios) if item.metric == HEADLINE and item.result]
    if not found:
        measured = any(group.usable for group in comparison.groups)
        no_ratio = "No throughput is known on both sides." if measured else "Rehearsed: nothing was measured."
        return (_NO_NUMBER.get(comparison.audit.verdict.word, no_ratio),)
    index, first = found[0]
    return (*_sentence(first, index, comparison.baseline), *_more(len(found), comparison.baseline))


def _sentence(item: Compared, index: int, baseline: str) -> Line:
    result = item.result
    assert result is not None
    ratio, interval = ratio_lines(result, f"/ratios/{index}")
    verb = _VERBS.get(result.word, f"{result.word} than")
    return (
        f"{item.group} is {verb} {baseline}: ",
        *ratio,
        " times its tokens/s per device (",
        *_sure(result, interval),
        ")",
    )


def _sure(result: Ratio, interval: Line) -> Line:
    return ("95 % interval ", *interval) if interval else (f"no interval: {result.reason}",)


def _more(count: int, baseline: str) -> Line:
    return () if count == 1 else (f". First of {count} groups held against {baseline}: the table has all",)


def titled(group: Group) -> str:
    """Its label, and whether its figures were measured at all."""
    provenance = group.runs[0].record.provenance
    return group.label if provenance in ("measured", "imported") else f"{group.label} ({provenance})"


def legend(comparison: Comparison) -> tuple[tuple[int, str], ...]:
    """The groups whose figures are drawn, each with the place that gives it colour, dash and shape."""
    return tuple((place, titled(group)) for place, group in enumerate(comparison.groups) if group.shown)
