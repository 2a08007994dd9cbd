"""A block of text to tokens: what one process does with one piece of an input, and what it leaves out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from corpora.inputs import LONGEST_BYTES, Block
from corpora.tokenizers import Coder

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXTS_AT_ONCE = 64
LIST = "a list in place of text"
"""Megatron's script makes a sequence of each entry, and its GPT datasets shuffle sequences: text would be torn up."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How documents become tokens. field: of a JSON object. eod: the id that ends a document, None: nothing does.
    keep_empty: a document without text stays, without tokens, as in Megatron's own tool. type: of the ids."""

    field: str
    eod: int | None
    keep_empty: bool
    dtype: str


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of a block, of the type in the corpus; lengths: int32, 0 of a document that is kept empty. dropped:
    line, reason and detail each. ids: the least and the largest."""

    tokens: bytes
    lengths: bytes
    documents: int
    count: int
    ids: tuple[int, int] | None
    dropped: tuple[tuple[int, str, str], ...]


Text = tuple[int, str]


class _Unusable(Exception):
    """A record that gives no document. reason: one of few, to be counted; detail: of this one."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason, self.detail = reason, detail


def encode(block: Block, coder: Coder, rules: Rules) -> Encoded:
    """Return the tokens of the documents of `block`, in their order."""
    import numpy as np

    dropped: list[tuple[int, str, str]] = []
    tokens: list[NDArray[Any]] = []
    lengths: list[NDArray[Any]] = []

    def drop(line: int, reason: str, detail: str = "") -> None:
        dropped.append((line, reason, detail))

    def add(texts: list[Text]) -> None:
        ids, sizes = coder.encode([text for _, text in texts])
        full = sizes > 0
        if rules.eod is not None:
            ids, sizes = np.insert(ids, np.cumsum(sizes)[full], rules.eod), sizes + full
        if not rules.keep_empty:
            for i in np.flatnonzero(~full).tolist():
                drop(texts[i][0], "empty")
            sizes = sizes[full]
        tokens.append(ids)
        lengths.append(sizes)

    held: list[Text] = []
    for line, record in _records(block):
        try:
            held.append((line, _text(record, block.form, rules.field)))
        except _Unusable as error:
            drop(line, error.reason, error.detail)
        if len(held) == TEXTS_AT_ONCE:
            add(held)
            held = []
    if held:
        add(held)
    ids, sizes = (np.concatenate([np.empty(0, np.int32), *parts]) for parts in (tokens, lengths))
    limits = (int(ids.min()), int(ids.max())) if ids.size else None
    dropped.sort()
    made, counted = ids.astype(rules.dtype).tobytes(), sizes.astype("<i4").tobytes()
    return Encoded(made, counted, sizes.size, ids.size, limits, tuple(dropped))


def _records(block: Block) -> Iterator[tuple[int, Any]]:
    """Return the records of a block with their lines."""
    if block.form in ("jsonl", "lines"):
        lines = block.content.split(b"\n")
        records = [line.removesuffix(b"\r") for line in (lines if lines[-1] else lines[:-1])]
    else:
        records = block.content if block.form == "rows" else [block.content]
    return enumerate(records, block.line)


def _text(record: Any, form: str, field: str) -> str:
    """Return the text of a record. Raises _Unusable."""
    if form == "dropped":
        raise _Unusable(record, f"more than {LONGEST_BYTES:,} bytes")
    if record is None:
        raise _Unusable("no text", "null")
    if len(record) > LONGEST_BYTES:
        raise _Unusable("too long", f"{len(record):,} bytes")
    try:
        whole = record.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Unusable("invalid UTF-8", f"byte {error.start}: {record[error.start : error.start + 4]!r}") from error
    return _of_json(whole, field) if form == "jsonl" else str(whole)


def _of_json(line: str, field: str) -> str:
    """Return the field of an object. msgspec reads most of them several times as fast; what it refuses, json judges, as
    it does in Megatron's own tool. Raises _Unusable."""
    try:
        return _decoder(field)(line)
    except (msgspec.MsgspecError, RecursionError):
        pass
    if not line.strip():
        raise _Unusable("empty", "a blank line")
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _Unusable("broken JSON", str(error)) from error
    if not isinstance(value, dict):
        raise _Unusable("no object", f"a {type(value).__name__}")
    if field not in value:
        raise _Unusable("no such field", f"{field}; it has {', '.join(map(str, [*value][:8]))}")
    text = value[field]
    if isinstance(text, list):
        raise _Unusable(LIST, f"{field} has {len(text):,} entries")
    if not isinstance(text, str):
        raise _Unusable("no text", f"{field} is a {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _Unusable("invalid UTF-8", f"half of a surrogate pair, {text[error.start]!r}") from error
    return text


@cache
def _decoder(field: str) -> Callable[[str], str]:
    decoder = msgspec.json.Decoder(msgspec.defstruct("Line", [("text", str)], rename={"text": field}))
    return lambda line: str(decoder.decode(line).text)  # type: ignore[attr-defined]
