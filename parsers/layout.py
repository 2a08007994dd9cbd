"""The step line before as a pattern: a line that differs from it in nothing but digits is read at once.

The text between two values must be the same, so the table finds the same values in it; here their numbers are read
together, as JSON. No value is longer than 30 characters: the patterns of all dialects take as many."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from parsers.values import FIELDS, INTEGERS, POWERS, UNITS, Convert, Place, commas

_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,17}|(?=[eE]))?(?:[eE][-+]\d\d)?", re.ASCII)
_DIGITS = re.compile(r"([eE]\\[-+])?([0-9]+)")  # in an escaped text
_DECIMALS = re.compile(r"\.[0-9]{1,17}$")
_COLOUR = re.compile(r"\[[\d;]+m")  # with other digits it may be one
_LONGEST, _MORE = 30, 2
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3}){1,4}")
_DECODER = msgspec.json.Decoder()


class Layout:
    """Reads lines that are printed as `text` is, a step line with its values at `places`. ValueError: none can be."""

    def __init__(self, text: str, places: Sequence[Place]) -> None:
        names = [name for name, *_ in places if name]
        if not names or len(set(names)) < len(names) or _COLOUR.search(text):
            raise ValueError(text)
        pattern, at, groups = "", 0, 0
        entries: list[tuple[bool, int, str]] = []
        self._converts: list[tuple[bool, str, Callable[[Any], Any]]] = []
        for name, convert, start, end in sorted(places, key=lambda place: place[2:]):
            if start < at:
                raise ValueError(text)
            pattern, printed, at = pattern + _between(text[at:start], first=not at), text[start:end], end
            if not name:
                pattern += _loose(printed)
                continue
            group, form, then = _group(printed, convert)
            pattern, is_metric = pattern + group, name not in FIELDS
            entries.append((is_metric, groups, f'"{name.strip()}":{form}'))
            groups += form.count("%s")
            if then is not None:
                self._converts.append((is_metric, name, then))
        entries.sort()  # Step's fields, then its metrics
        fields, metrics = (",".join(entry[2] for entry in entries if entry[0] == kind) for kind in (False, True))
        self._groups = tuple(first + 1 + n for _, first, form in entries for n in range(form.count("%s")))
        self._template = f'{{{fields}{"," * bool(fields)}"metrics":{{{metrics}}}}}'
        decimals = _DECIMALS.search(text)
        self._point = len(decimals[0]) if decimals and at == len(text) else 0  # from the end: a cut number has fewer
        self.ends_in_integer = at == len(text) and text[-1].isdigit() and not self._point
        self._match = re.compile(pattern + re.escape(text[at:]), re.ASCII).fullmatch

    def values(self, text: str) -> dict[str, Any] | None:
        """Return what `step_fields` returns of a line that is printed so; None for any other."""
        match = self._match(text)
        if match is None or (self._point and text[-self._point] != "."):
            return None
        try:
            values: dict[str, Any] = _DECODER.decode(self._template % match.group(*self._groups))
        except msgspec.DecodeError:  # leading zeros
            return None
        values["nonfinite"] = ()
        for is_metric, name, then in self._converts:
            into = values["metrics"] if is_metric else values
            into[name] = value = then(into[name])
            if value is None:
                return None
        return values


def _between(text: str, first: bool) -> str:
    """Return a pattern of what stands before a value: blanks fill up to its width. first: time stamps stand there."""
    bare = text.rstrip(" ")
    blanks, literal = len(text) - len(bare), re.escape(bare)
    if first:
        literal = re.sub("[0-9]+", lambda digits: rf"\d{{{len(digits[0])}}}", literal)
    return literal + (f" {{1,{blanks}}}" if blanks > 1 else " " * blanks)


def _group(printed: str, convert: Convert) -> tuple[str, str, Callable[[Any], Any] | None]:
    """Return a pattern of values that are printed so, how they are written as JSON, and what makes the value of that.
    ValueError: it is no number."""
    if convert(printed) is None or '"' in printed or "\\" in printed:
        raise ValueError(printed)
    if convert is commas and _THOUSANDS.fullmatch(printed):
        parts = printed.count(",")
        return r"(\d{1,3})" + r",(\d{3})" * parts, "%s" * parts + "%s.0", None
    number = _NUMBER.match(printed)
    behind = printed if number is None else printed[number.end() :]
    power = POWERS.get(convert, {}).get(behind)
    if number is None or power is None or (number[1] is not None and convert in INTEGERS):
        return f"({_loose(printed)})", '"%s"', convert
    zeros = "0{0,11}" if convert in INTEGERS and re.match("0[0-9]", printed) else ""  # JSON has none before a number
    form = "%s" if number[1] is not None or convert in INTEGERS else "%s.0"
    return f"{zeros}({_loose(number[0])}){re.escape(behind)}", f"{form}e{power}" if power else form, UNITS.get(convert)


def _loose(printed: str) -> str:
    """Return a pattern of a text with other digits, hardly more; an exponent stays the same."""
    more = _MORE if len(printed) + _MORE * len(re.findall("[0-9]+", printed)) <= _LONGEST else 0
    return _DIGITS.sub(lambda run: run[0] if run[1] else rf"\d{{1,{len(run[2]) + more}}}", re.escape(printed))
