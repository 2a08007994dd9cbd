"""Take off what containers, clusters and editors put around the lines of a log.

Docker keeps a line as a JSON object, editors and PowerShell write UTF-16, and clusters put host or time before each
line: whatever most lines of a log's first part bear is taken off all lines that do. A log that bears nothing passes as
it is."""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise

from parsers.text import STAMP, json_object

Layer = Callable[[bytes], bytes]
"""Takes one wrapping off complete lines."""

_MOST_LAYERS, _LOOKED_AT, _PART = 4, 1000, 50
_IN_SEQUENCE, _FEW, _BEGINS = 20, 3, 4
_MOST_HELD, _TRIED = 1 << 20, 1 << 18
_NARROWEST, _WIDEST = 60, 400  # columns of a terminal
_STAMP = re.compile(rf"(?m)^(?:{STAMP})".encode())
_JSON_LINE = re.compile(
    rb'\{[^\n]{0,512}?"(?:log|message)": ?".{0,65536}\}\s{0,9}$|\{ ?"[^\n]{0,4096}?"log_history": ?\[ ?\{ ?"'
)
_HOST = re.compile(rb"([A-Za-z0-9][\w.-]{0,62}(?: [A-Za-z][\w./@-]{0,59})?):(?: |$)")  # syslog: "node017 train: "
_DIGITS = re.compile(rb"\d{1,18}")
# A word without a digit, a dot or a hyphen may be any: then all lines must begin with it, and few of them go on with a
# number ("step: 10"). Two words may be any, too.
_WORD = re.compile(rb"[A-Za-z_]{1,63}$")
_NUMBER_BEHIND = re.compile(rb"[^:]{1,63}: {1,20}[-+\d.]")
_NO_HOST = re.compile(
    rb"\S{0,60}(?:error|exception|interrupt|warning|warn|info|debug|critical|fatal|note|wandb|srun|slurmstepd|bash)$",
    re.IGNORECASE,
)
_ALL, _MANY = 0.95, 10
# What only begins lines stands right behind a word or a number: another process wrote into the line, or its end came
# late. No colour stands before it.
_MIXED = re.compile(
    rb"[\[(WIE](?<=[\w.,)%}|][\[(WIE])(?<!\dm[\[(WIE])(?<!\\n[\[(WIE])"
    rb"(?:(?<=\[)(?:(?:rank|default)\d{1,6}\]:|NeMo [IWE] 20|(?:INFO|WARNING|ERROR)[\]|]|\d{4}-\d\d-\d\d[ T]\d\d:)"
    rb"|(?<=\()[A-Z]\w{1,40} pid=\d|(?<=W)ARNING: |(?<=[IWE])\d{4} \d\d:\d\d:\d\d\.\d)"
)


class Unwrapper:
    """Takes off what the first part of a log, `window`, shows it is wrapped in. Lines keep their numbers, but
    for those of a document that is one line.

    broken_at: the width at which a terminal has broken its lines, 0 for none. values_in: how many values are read of a
    text: they are put together where that loses none."""

    def __init__(self, window: bytes, values_in: Callable[[bytes], int] = lambda text: 0) -> None:
        encoding = encoding_of(window)
        self._decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
        window = window.decode(encoding, "replace").encode() if encoding else window
        self._widths = _widths(_sample(window))
        self.broken_at = max(self._widths, default=0)
        if self._widths:
            part = window[: window.rfind(b"\n", 0, _TRIED) + 1] or window[:_TRIED]
            self._widths *= values_in(_joined(part, self._widths)) >= values_in(part)
        self._layers = _layers(_joined(window, self._widths))
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the next bytes of the log itself; where lines are wrapped, up to the last line end."""
        if self._decoder is not None:
            data = self._decoder.decode(data).encode("utf-8", "replace")
        if not self._layers and not self._widths:
            return data
        data = self._rest + data
        cut = data.rfind(b"\n") + 1
        while self._widths and cut and _is_row(data[data.rfind(b"\n", 0, cut - 1) + 1 : cut - 1], self._widths):
            cut = data.rfind(b"\n", 0, cut - 1) + 1
        cut = cut or (len(data) if len(data) > _MOST_HELD else 0)
        self._rest = data[cut:]
        return self._unwrapped(data[:cut])

    def finish(self) -> bytes:
        """Return the last line, where no line end closes it."""
        rest, self._rest = self._rest, b""
        return self._unwrapped(rest)

    def _unwrapped(self, data: bytes) -> bytes:
        data = _joined(data, self._widths)
        for layer in self._layers:
            data = layer(data)
        return data


def mixed_line(window: bytes) -> int:
    """Return the number of the first line that holds the beginning of another one, 0 where none does."""
    match = _MIXED.search(window, 0, _TRIED)
    return window.count(b"\n", 0, match.start()) + 1 if match else 0


def encoding_of(head: bytes) -> str | None:
    """Return the encoding of a file that begins so, where it is UTF-16: by its mark, or by the NUL that every
    second byte of Latin letters is."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and b"\0" in head[:4096]:
        return "utf-16"
    even, odd = (head[at:4096:2] for at in (0, 1))
    for name, letters, nulls in (("utf-16-le", even, odd), ("utf-16-be", odd, even)):
        if nulls and nulls.count(0) > 0.7 * len(nulls) and letters.count(0) < 0.1 * len(letters):
            return name
    return None


def _widths(lines: Sequence[bytes]) -> tuple[int, ...]:
    """Return the length of the longest lines, where several have it and both end and go on in several ways: a terminal
    breaks a line anywhere, while lines of one form, which may be as long as one another, end alike. Where none of them
    ends in a blank those were trimmed, and a line that is shorter by one had it."""
    longest = max((_length(line) for line in lines if b"\r" not in line[:-1]), default=0)
    if not _NARROWEST <= longest <= _WIDEST:
        return ()
    rows = [(line[-1:], after[:_BEGINS]) for line, after in pairwise(lines) if _is_row(line, (longest,))]
    ends, begins = ({_DIGITS.sub(b"0", row[at]) for row in rows} for at in (0, 1))
    if min(len(ends), len(begins)) < _FEW:
        return ()
    return (longest,) if b" " in ends else (longest, longest - 1)


def _length(line: bytes) -> int:
    return len(line) if line.isascii() else len(line.decode("utf-8", "replace"))


def _is_row(line: bytes, widths: Sequence[int]) -> bool:
    """Return whether a line is as long as that, and no ruler."""
    return bool(widths) and len(line) >= widths[-1] and _length(line) in widths and len(set(line)) > _FEW


def _joined(data: bytes, widths: Sequence[int]) -> bytes:
    """Return lines without the breaks at these widths; behind a joined line are as many empty ones as it had breaks. A
    line that begins as the one before it is no rest of that."""
    if not widths:
        return data
    rows: list[list[bytes]] = [[]]
    for line in data.split(b"\n"):
        if rows[-1] and (not _is_row(rows[-1][-1], widths) or line[:_BEGINS] == rows[-1][0][:_BEGINS]):
            rows.append([])
        elif rows[-1]:
            rows[-1][-1] += b" " * (widths[0] - _length(rows[-1][-1]))
        rows[-1].append(line)
    return b"\n".join(part for of in rows for part in (b"".join(of), *[b""] * (len(of) - 1)))


def _layers(window: bytes) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    sample = b"\n".join(_sample(window))
    while len(layers) < _MOST_LAYERS and (layer := _layer(sample.split(b"\n"))) is not None:
        layers.append(layer)
        sample = layer(sample)
    return tuple(layers)


def _sample(window: bytes) -> list[bytes]:
    """Return lines of all parts of a window, neighbours together."""
    lines = window.split(b"\n")
    step = max(1, len(lines) // _LOOKED_AT) * _PART
    return [line for at in range(0, len(lines), step) for line in lines[at : at + _PART]]


def _layer(lines: Sequence[bytes]) -> Layer | None:
    """Return what takes the outermost wrapping off these lines, None where they have none."""
    lines = [line for line in lines if line.strip()]
    if _most(lines, _JSON_LINE.match):
        return _from_json
    if _most(lines, _STAMP.match):
        return lambda data: _STAMP.sub(b"", data)
    hosts = _hosts(lines)
    return (lambda data: hosts.sub(b"", data)) if hosts is not None else None


def _most(lines: Sequence[bytes], match: Callable[[bytes], object]) -> bool:
    """Return whether half of the lines match, or many that follow one another."""
    runs = [(fits, len([*group])) for fits, group in groupby(lines, lambda line: match(line) is not None)]
    matching = [length for fits, length in runs if fits]
    return bool(matching) and (2 * sum(matching) >= len(lines) or max(matching) >= _IN_SEQUENCE)


def _hosts(lines: Sequence[bytes]) -> re.Pattern[bytes] | None:
    """Return a pattern of the hosts before these lines, "node017: ", None where there are none. Nodes of one cluster
    differ in digits."""
    words = Counter(match[1] for line in lines if (match := _HOST.match(line)))
    alike: dict[bytes, list[int]] = {}
    for word, times in words.items():
        alike.setdefault(_DIGITS.sub(b"0", word), []).append(times)
    counted = [shape for shape, times in alike.items() if sum(times) >= max(_FEW, 2 * len(times))]
    hosts = [shape for shape in counted if _is_host(shape, lines)]
    if not hosts:
        return None
    pattern = re.compile(rb"(?m)^(?:" + b"|".join(map(_pattern, hosts[:_PART])) + rb"):(?: |$)")
    return pattern if _most(lines, pattern.match) else None


def _pattern(shape: bytes) -> bytes:
    return re.escape(shape).replace(b"0", rb"\d{1,18}")


def _is_host(word: bytes, lines: Sequence[bytes]) -> bool:
    if word.isdigit() or _NO_HOST.match(word):
        return False
    host, blank, _ = word.partition(b" ")
    sure = _WORD.match(host) is None
    if sure or blank:
        begins = re.compile(_pattern(word) + rb":").match
        return sure and (not blank or sum(begins(line) is not None for line in lines) >= _ALL * len(lines))
    own = [line for line in lines if line.startswith(word + b":")]
    numbers = sum(_NUMBER_BEHIND.match(line) is not None for line in own)
    return len(own) >= max(_MANY, _ALL * len(lines)) and 2 * numbers < len(own)


def _from_json(data: bytes) -> bytes:
    """Return the lines in those of Docker's json-file, {"log":"…\\n","stream":"stdout","time":"…"}, and of collectors,
    {"@timestamp":"…","message":"…"}, and a trainer_state.json of one line as the Trainer writes it, an entry a line."""
    lines = []
    for line in data.split(b"\n"):
        entry = json_object(line.decode("utf-8", "replace")) if _JSON_LINE.match(line) else None
        entry = entry or {}
        log = json.dumps(entry, indent=2) if "log_history" in entry else entry.get("log", entry.get("message"))
        lines.append(log.removesuffix("\n").encode("utf-8", "replace") if isinstance(log, str) else line)
    return b"\n".join(lines)
