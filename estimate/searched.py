"""layout=searched: the fastest layout that is predicted to fit, and layout=searched:2 the second, as the sizes that one
would type for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from conf.errors import ConfigError, Problem, listed
from conf.load import _values
from estimate.fitted import Parameters
from estimate.layouts import command
from estimate.search import BEST, requests_of, search
from metrics.bill import Prices, Terms

_SEARCHED = re.compile(r"searched(?::(\d{1,3}))?")


def with_searched(
    overrides: Sequence[str], parameters: Parameters | None = None
) -> Iterator[tuple[tuple[str, ...], str | None]]:
    """Yield `overrides` for each searched layout among its values of `layout`, with its sizes in their place and where
    they are from; what is not searched as it was typed, with None. parameters: of the search; None: the shipped ones.
    ConfigError: a place that nobody has, a recipe, several GPUs at once, or no layout fits."""
    values = next((text.partition("=")[2] for text in overrides if text.startswith("layout=")), "").split(",")
    rest = tuple(text for text in overrides if not text.startswith("layout="))
    if wrong := [value for value in values if value.startswith("searched") and not _SEARCHED.fullmatch(value)]:
        allowed = f"searched, searched:1 to searched:{BEST}"
        raise ConfigError(*(Problem(f"layout={value}", "is no place of a search", allowed=allowed) for value in wrong))
    wanted = [match for value in values if (match := _SEARCHED.fullmatch(value))]
    if not wanted:
        yield tuple(overrides), None
        return
    if left := [value for value in values if not _SEARCHED.fullmatch(value)]:
        yield (*rest, f"layout={','.join(left)}"), None
    yield from _sizes(rest, [int(match[1] or 1) for match in wanted], parameters)


def _sizes(
    typed: Sequence[str], places: Sequence[int], parameters: Parameters | None
) -> Iterator[tuple[tuple[str, ...], str]]:
    if several := [text for text in typed if len(_values(text)) > 1]:
        what = "searches the layout of one experiment, and these are several"
        raise ConfigError(Problem("layout=searched", what, listed(several), hint="a command each"))
    (request,) = requests_of(typed)
    found = search([request], Terms(tokens=1e12, prices=Prices("USD")), parameters=parameters)
    if beyond := [place for place in places if not 1 <= place <= len(found.best)]:
        what = f"the search has the best {len(found.best)}" if len(found.best) < BEST else f"the best {BEST} are kept"
        raise ConfigError(Problem("layout=searched", what, f"searched:{beyond[0]}", f"1 to {len(found.best)}"))
    count = sum(int(space.within.sum()) for space in found.spaces)
    for place in places:
        own = command(found.best[place - 1].estimate.experiment)
        replaced = {text.partition("=")[0] for text in own}
        kept = [text for text in typed if text.partition("=")[0] not in replaced]
        behind = found.best[place - 1].behind
        why = f"number {place} in predicted speed of {count:,} layouts that fit{f' ({behind})' if behind else ''}"
        yield (*kept, *own), f"layout searched: {why} (estimate search)"
