"""By how much rehearsals may part because the codes of their models round otherwise (conf/tables/model_codes.yaml).
Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from conf.frameworks import facts
from conf.vocabulary import read_yaml
from parsers import Record

TABLE = Path(__file__).parent.parent / "conf" / "tables" / "model_codes.yaml"
What = Literal["loss", "grad_norm", "gradient", "weight", "bias"]
WEIGHTS: tuple[What, What] = ("weight", "bias")


class Pair(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table, whose head says what each member is."""

    between: tuple[str, str]
    reason: str
    bits: bool = False
    within: Mapping[str, Mapping[What, float]] = {}

    @property
    def names(self) -> str:
        return " and ".join(self.between)


class Pairs(Struct, frozen=True, forbid_unknown_fields=True):
    """The table."""

    pairs: tuple[Pair, ...]


@cache
def pairs() -> tuple[Pair, ...]:
    """Return the table. Raises what msgspec says of an entry that is not as its head says."""
    return msgspec.convert(dict(read_yaml(TABLE)), Pairs).pairs


def code_of(record: Record) -> str | None:
    """Return the code of a record's model, which a stack with several says itself; None: nobody knows it."""
    code = record.environment.get("model_code") or facts(record.framework).get("model_code")
    return str(code) if code else None


def pair_of(first: Record, second: Record) -> Pair | None:
    """Return by what two runs round otherwise; None where the same stack made both, or every bit of them is equal. Of
    two codes that stand nowhere it has no figures."""
    codes = (code_of(first), code_of(second))
    if (first.framework, codes[0]) == (second.framework, codes[1]):
        return None
    row = next((one for one in pairs() if sorted(one.between) == sorted(map(str, codes))), None)
    if row is None:
        named = str(codes[0] or first.framework), str(codes[1] or second.framework)
        return Pair(named, "nobody has measured how these two round")
    return None if row.bits else row


def precision_of(first: Record, second: Record) -> str:
    """Return in which precision of the table two runs are compared."""
    if any(record.setting("enable_autocast") is True for record in (first, second)):
        return "autocast"
    return str(first.setting("params_dtype"))


def share(first: Record, second: Record, what: What, loss: float | None) -> float:
    """Return by which share `what` of two runs may differ for the sake of their codes; inf where that was not measured.
    loss: at that step, of which the tolerance is a share."""
    pair = pair_of(first, second)
    if pair is None:
        return 0.0
    known = pair.within.get(precision_of(first, second), {})
    figure = known.get(what, known.get("weight") if what == "bias" else None)
    if figure is None:
        return math.inf
    if what != "loss":
        return figure
    return figure / abs(loss) if loss else math.inf
