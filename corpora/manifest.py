"""The manifest of a tokenized corpus, PREFIX.json beside PREFIX.bin and PREFIX.idx: what it was made of, how, and
its hashes. The same input, tokenizer and options give the same manifest, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from conf.errors import InputError, Problem

GENERATOR = "tensorprimat tokenize 1"
"""Counts up when the same arguments give other bytes."""
SUFFIXES = (".bin", ".idx", ".json")
DROPPED = ".dropped.jsonl"
"""Beside them, where documents were dropped: a line each, with file, line and reason."""


class Tokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a tokenizer. name: as typed: a path, or an id of a hub. kind, sha256: those of
    launchers/ranks/tokenizer_files.py. vocab_size: as Megatron counts it. eod_id: what ends a document; with bos_id
    and pad_id None where it has none. options: those that change its ids. library: and its version, which are no part
    of the identity."""

    name: str
    kind: str
    sha256: str
    vocab_size: int
    eod_id: int | None
    bos_id: int | None
    pad_id: int | None
    options: Mapping[str, Any]
    library: str


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """A file of text. path: as typed, or found in a folder that was. dropped: documents by reason."""

    path: str
    bytes: int
    sha256: str
    documents: int
    dropped: Mapping[str, int]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a corpus. The first ten fields after the generator are those that `describe` of
    launchers/ranks/corpus_order.py reads from the files."""

    generator: str
    documents: int
    tokens: int
    dtype: str
    least_id: int
    largest_id: int
    bin_bytes: int
    idx_bytes: int
    bin_sha256: str
    idx_sha256: str
    tokenizer: Tokenizer
    options: Mapping[str, Any]
    inputs: tuple[Input, ...]
    dropped: Mapping[str, int]


def read(prefix: str | Path) -> Manifest | None:
    """Return the manifest of the corpus at `prefix`; None: it has none, or one of another origin (a synthetic corpus).
    InputError: it is damaged."""
    path = Path(f"{prefix}.json")
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(Problem(str(path), "cannot be read", error.strerror or str(error))) from error
    try:
        origin = msgspec.json.decode(raw)
        if not isinstance(origin, dict) or origin.get("generator") != GENERATOR:
            return None
        return msgspec.json.decode(raw, type=Manifest)
    except msgspec.MsgspecError as error:
        hint = "copy it again, or tprimat data tokenize again"
        raise InputError(Problem(str(path), "is not a manifest", str(error), hint=hint)) from error


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of PREFIX.json."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
