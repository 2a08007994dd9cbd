"""Text as a terminal or a launcher left it, bare: colours, prefixes, JSON in a line; and cells of a spreadsheet."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import msgspec

from conf.plain import plain

# With the ESC byte, or where a copy lost it: "[32m". Without it only codes of colours count; "[model]" is text.
_CODE = r"(?:[0-47]|2[1-9]|[34]\d|9[0-7]|10[0-7])(?:;\d{1,3}){0,4}"
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[ -/]{0,4}[@-~]|\x1b[@-Z\\-_]|\[" + _CODE + "m")

# A spreadsheet takes a text that begins so as a formula (owasp.org/www-community/attacks/CSV_Injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

# What containers, clusters and loggers of lines put before each; no framework begins a line so. Bounded, as all below.
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_DAY = r"\d{4}-\d\d-\d\d"
_ZONE = r"(?:Z|[+-]\d\d:?\d\d)"
_PROGRAM = r"[\w.-]{1,63} [\w./@-]{1,60}\[\d{1,10}\]: "  # host train[4112]:
STAMP = (
    rf"{_DAY}T{_CLOCK}{_ZONE} (?:std(?:out|err) [FP](?: |$)|{_PROGRAM})?"  # docker logs -t, kubectl; CRI; journald
    rf"|(?:[A-Z][a-z]{{2}} )?{_DAY} {_CLOCK} [A-Z]{{3,4}} {_PROGRAM}"  # journalctl -o short-full
    rf"|[A-Z][a-z]{{2}} [ \d]\d {_CLOCK} (?:{_PROGRAM})?"  # ts of moreutils; syslog, journald
    r"|[A-Za-z][\w.-]{0,60}[-_]\d{1,4} {2,40}\| "  # docker compose: train-1  |
    rf"|<\d{{1,3}}>1 {_DAY}T{_CLOCK}{_ZONE} [\w.-]{{1,63}} \S{{1,60}} \S{{1,20}} \S{{1,60}} - "  # RFC 5424
)

# One prefix at the start of a line; each is cheap.
_PREFIXES = re.compile(
    rf"\s{{0,200}}(?:{STAMP}|"
    r"> ?"  # Markdown quotation
    r"|\d{1,6}: ?(?=\D|$)"  # srun --label, Slurm
    r"|\[?default\d{1,4}\]?:"  # torchrun --tee
    r"|[\w./-]{1,80}/\d{1,5} (?=\[)"  # NeMo-Run: "ining-demo/0 [default0]:"
    r"|\[-{0,60}[\w.]{1,80}\.py:\d{1,6}\] : ?"  # Primus: [------traceback.py:1018] :
    r"|\[[^\]\[]{1,120}\](?:<std(?:out|err)>)?:? ?"  # [rank0], [2026-11-20 10:00:00], [1,0]<stdout>:
    r"|\([^()]{0,80}pid=\d{1,10}[^()]{0,80}\) ?"  # Ray
    r"|\d{4}-\d\d-\d\dT?[ T]?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)? ?"  # kubectl logs --timestamps
    r")"
)
_MOST_PREFIXES = 6
_LONG, _THIRD = re.compile("[0-9]{19}"), re.compile("[0-9]{6}")  # in any 19 in a row are 6 of every third character
_DECODER = msgspec.json.Decoder()


def colourless(text: str) -> str:
    """Return `text` without terminal colours (also those that lost their ESC byte) and NULs."""
    if "\0" in text:
        text = text.replace("\0", "")
    return _ANSI.sub("", text) if "\x1b" in text or ("m" in text and "[" in text) else text


def body(text: str) -> str:
    """Return `text` without what launchers put before it: rank, time, pod, task, quotation marks. It stays indented."""
    for _ in range(_MOST_PREFIXES):
        match = _PREFIXES.match(text)
        if match is None or not match[0].strip():
            break
        text = text[match.end() :]
    return text


def cell(value: Any) -> Any:
    """Return a value of a CSV file that no spreadsheet takes for a formula, and no terminal for a command."""
    text = plain(value) if isinstance(value, str) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(_FORMULA) else text


def json_object(text: str, constant: Callable[[str], Any] = str) -> dict[str, Any] | None:
    """Return the JSON object that `text` begins with, writable; None where it begins with none. constant: what NaN and
    Infinity become, by default their words."""
    try:  # quick, and what it reads is writable but for long integers
        long = _THIRD.search(text[::3]) and _LONG.search(text)
        if not long and isinstance(entry := _DECODER.decode(text), dict):
            return entry
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        value, _ = json.JSONDecoder(parse_constant=constant).raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return None
    return writable(value) if isinstance(value, dict) else None


def writable(value: Any) -> Any:
    """Return `value` without what UTF-8 JSON has no form for: lone surrogates, keys that are no text, numbers beyond
    a float, integers beyond 64 bits."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {writable(str(key)): writable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [writable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return None if isinstance(value, int) and abs(value) >= 2**63 else value
