"""Files that hold no training log: whose step lines stand in them that are not read, or what they look like."""

from __future__ import annotations

import ast
import csv
import json
import re
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress

from conf.plain import plain
from parsers.text import colourless
from parsers.unwrap import encoding_of

SOURCES = {
    *(".py", ".pyi", ".sh", ".c", ".h", ".cc", ".cpp", ".cu", ".hip", ".js", ".ts", ".html", ".css"),
    *(".toml", ".cfg", ".ini", ".yaml", ".yml", ".md", ".rst"),
}
"""Endings of files that hold no log, whatever they quote."""
_REINFORCEMENT = "reinforcement learning: a step is a rollout and several updates of a policy"
_NOT_SUPPORTED = (  # its name, why, literals of which one is in its log, how its step lines begin, what follows there
    ("verl", _REINFORCEMENT, (b"actor/", b"critic/"), rb"step:\d{1,9} - ", rb"\b(?:actor|critic)/\w"),
    ("verl", _REINFORCEMENT, (b"actor_rollout_ref",), rb"actor_rollout_ref(?:\.\w|': \{)", b""),
    ("verl's SFT trainer", "its lines are not known", (b"train/loss:",), rb"step:\d{1,9} - ", rb"\btrain/loss:"),
    (
        "slime",
        _REINFORCEMENT,
        (b"{'rollout/", b"'train/pg_loss'"),
        rb"(?:perf|rollout|step) \d{1,9}: \{'\w{1,20}/",
        b"",
    ),
    ("prime-rl", _REINFORCEMENT, (b"| Mismatch KL", b"| Reward", b" tokens/s | MFU"), rb"Step \d{1,9} \| ", b""),
)
_MOST_LINES, _MOST_COLUMNS, _MOST_CHARACTERS = 20_000, 8, 160
_PARSED, _LOOKED_AT = 1 << 20, 1 << 16
_CODE = re.compile(rb"^(?:from \w|import \w|def \w|class \w)", re.MULTILINE)
_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
_OF_A_STEP = (
    re.compile(r"\b(?:global_)?(?:step|iter|iteration|batch|update|epoch)s?\b\W{0,4}\d", re.IGNORECASE),
    re.compile(r"loss\w{0,8}\W{0,4}-?(?:\d|nan)", re.IGNORECASE),
    re.compile(r"\b(?:lr|learning[_ ]rate|grad[_ ]?norm|ppl)\W{0,4}-?\d", re.IGNORECASE),
    re.compile(r"tok(?:ens?|s)?/s|it/s|s/it|samples/s|\d ?ms\b|mfu", re.IGNORECASE),
)


def not_supported(block: bytes) -> str | None:
    """Return the sentence on a trainer whose step lines stand in this part of a log and are not read; None: none."""
    for name, why, literals, head, behind in _NOT_SUPPORTED:
        lines = block.split(b"\n") if any(literal in block for literal in literals) else ()
        if any((begin := re.search(head, line)) and re.search(behind, line[begin.end() :]) for line in lines):
            return f"is a log of {name}, which is not supported ({why})"
    return None


def looks_like(head: bytes, lines: int) -> str:
    """Return what a file without a training log looks like, by its beginning; lines: how many it has."""
    if not head.strip():
        return "an empty file"
    encoding = encoding_of(head)
    if b"\0" in head[:4096] and encoding is None:
        return "binary data"
    text = colourless(head.decode(encoding or "utf-8", "replace"))
    rows = [line for line in text.splitlines()[:_MOST_LINES] if line.strip()]
    if is_python(head):
        return "Python source"
    if all(map(_is_object, rows[:3])):
        return f"JSON of {lines} lines with the keys {_shown([*json.loads(rows[0])])}"
    if text.lstrip()[:1] in "{[" and _is_json(text):
        return "a JSON document"
    columns: list[str] = []
    with suppress(csv.Error):  # a cell that is too long, or a zero byte: no table
        columns = next(csv.reader(rows[:1]), [])
    if len(columns) > 2 and all(row.count(",") == rows[0].count(",") for row in rows[:5]):
        return f"CSV with the columns {_shown(columns)}"
    return _best(rows) or f"text of {lines} lines that say nothing of training"


def is_python(head: bytes) -> bool:
    """Return whether this is Python source, and no log that begins with its program's source."""
    if len(head) > _PARSED or _CODE.search(head[:_LOOKED_AT]) is None:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(head).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(statement, _DEFINITIONS) for statement in body)


def _best(rows: Iterable[str]) -> str:
    """Return the line that looks most like a step's, in words; empty where none does."""
    scored = ((sum(sign.search(row[:1000]) is not None for sign in _OF_A_STEP), row) for row in rows)
    score, row = max(scored, key=lambda pair: pair[0], default=(0, ""))
    shown = row.strip() if len(row.strip()) <= _MOST_CHARACTERS else row.strip()[: _MOST_CHARACTERS - 1] + "…"
    return plain(f"a log of a trainer that is not known; its likeliest step line: {shown}") if score > 1 else ""


def _shown(names: Sequence[str]) -> str:
    text = ", ".join(names[:_MOST_COLUMNS]) + (" …" if len(names) > _MOST_COLUMNS else "")
    return plain(text[:_MOST_CHARACTERS])


def _is_object(line: str) -> bool:
    return line.lstrip().startswith("{") and _is_json(line)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
