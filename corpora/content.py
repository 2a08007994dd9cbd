"""Look into a corpus: lengths of its documents, documents that occur twice, ids that occur, and text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.errors import InputError, Problem
from conf.plain import plain
from corpora import manifest, tokenizers

_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_BAR = 40
"""Letters of the longest bar."""
_TOKENS_AT_ONCE = 2**24
_SHOWN_TOKENS, _SHOWN_LETTERS = 96, 240


@dataclass(frozen=True, slots=True)
class Content:
    """The findings on a corpus. quantiles: of the lengths, in tokens. bars: documents with so many tokens or
    more, and fewer than the next. repeated: documents whose tokens another one in front of them has; most: the largest
    groups of equal ones, as their number and the first of them. occurring: ids that do."""

    quantiles: dict[str, int]
    bars: tuple[tuple[int, int], ...]
    repeated: int
    most: tuple[tuple[int, int], ...]
    occurring: int


def content_of(corpus: Any) -> Content:
    """Return what is in `corpus`, which launchers/ranks/corpus_order.py opened. Every token is read once."""
    lengths, ids = corpus.lengths, corpus.ids()
    wanted = np.quantile(lengths, _QUANTILES, method="nearest")
    quantiles = {f"{q:.0%}": int(value) for q, value in zip(_QUANTILES, wanted, strict=True)}
    edges = [0, *(2**power for power in range(int(lengths.max()).bit_length() + 1))]
    counts, _ = np.histogram(lengths, edges)
    bars = [(low, int(count)) for low, count in zip(edges, counts, strict=False)]
    kept = [i for i, (_, count) in enumerate(bars) if count]
    repeated, most = _repeated(corpus)
    seen = np.zeros(0, bool)
    for at in range(0, ids.size, _TOKENS_AT_ONCE):
        chunk = np.bincount(ids[at : at + _TOKENS_AT_ONCE]) > 0
        seen = np.pad(seen, (0, max(0, chunk.size - seen.size)))
        seen[: chunk.size] |= chunk
    return Content(quantiles, tuple(bars[kept[0] : kept[-1] + 1]), repeated, most, int(np.count_nonzero(seen)))


def _repeated(corpus: Any) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return how many documents repeat one in front of them, and the largest groups. Equal: 128 bits of BLAKE2 are."""
    ids = corpus.ids()
    digests = np.empty((corpus.lengths.size, 2), np.uint64)
    for i, (at, length) in enumerate(zip(corpus.offsets.tolist(), corpus.lengths.tolist(), strict=True)):
        digest = hashlib.blake2b(ids[at : at + length], digest_size=16).digest()
        digests[i] = np.frombuffer(digest, np.uint64)
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: within a group in the order of the corpus
    ordered: NDArray[Any] = digests[order]
    first = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
    starts = np.flatnonzero(first)
    sizes = np.diff(np.append(starts, first.size))
    largest = [g for g in np.argsort(-sizes, kind="stable")[:3] if sizes[g] > 1]
    return int((sizes - 1).sum()), tuple((int(sizes[g]), int(order[starts[g]])) for g in largest)


def text(found: Content, corpus: Any, vocabulary: int | None, whose: str) -> Iterator[str]:
    """Yield the lines of `tprimat data inspect` on the content. vocabulary: a size; whose: a model, a tokenizer."""
    shown = ", ".join(f"{q} {value:,}" for q, value in found.quantiles.items())
    yield f"lengths       {shown} (tokens; share of documents that are as short)"
    widest = max(count for _, count in found.bars)
    for low, count in found.bars:
        bar = "█" * -(-_BAR * count // widest)
        yield f"  from {low:>12,}  {count:>12,}  {bar}"
    share = found.repeated / corpus.lengths.size
    yield f"repeated      {found.repeated:,} documents ({share:.2%}) are equal to one in front of them"
    for size, first in found.most:
        yield f"              {size:,} times: document {first:,}"
    of = f" of {vocabulary:,} ({found.occurring / vocabulary:.1%}) of {whose}" if vocabulary else ""
    yield f"occurring     {found.occurring:,} ids{of}"


def documents(corpus: Any, coder: tokenizers.Coder | None, count: int) -> Iterator[str]:
    """Yield the beginnings of `count` documents, spread over the corpus: their text, or without a tokenizer the ids."""
    ids, every = corpus.ids(), corpus.lengths.size
    for i in np.unique(np.linspace(0, every - 1, min(count, every), dtype=np.int64)).tolist():
        at, length = int(corpus.offsets[i]), int(corpus.lengths[i])
        begin: Sequence[int] = ids[at : at + min(length, _SHOWN_TOKENS)].tolist()
        words = coder.decode(begin) if coder else " ".join(map(str, begin))
        short = plain(words, keep="\n\t")[:_SHOWN_LETTERS]
        more = " …" if length > len(begin) or len(words) > len(short) else ""
        yield f"document {i:,}, {length:,} tokens:"
        yield from (f"    {line}" for line in f"{short}{more}".splitlines())


def coder_of(prefix: str, made: manifest.Manifest | None, typed: str | None) -> tuple[tokenizers.Coder | None, str]:
    """Return the tokenizer of a corpus, or None and why there is none. InputError: the one that was typed cannot be
    opened, or did not make the corpus."""
    if made is None and typed is None:
        return None, "no manifest names the tokenizer: tokenizer=PATH shows text"
    known = set(tokenizers.Options.__dataclass_fields__)
    wishes = {key: value for key, value in (made.tokenizer.options if made else {}).items() if key in known}
    if "special_tokens" in wishes:
        wishes["special_tokens"] = tuple(wishes["special_tokens"])
    name = typed or (made.tokenizer.name if made else "")
    try:
        identity, spec = tokenizers.open_tokenizer(name, tokenizers.Options(**wishes))
        if made and identity.sha256 != made.tokenizer.sha256:
            found, allowed = f"sha256 {identity.sha256}", made.tokenizer.sha256
            what = f"did not make the corpus {prefix}"
            raise InputError(Problem(f"tokenizer={name}", what, found, allowed, "the one of its manifest"))
        return tokenizers.build(spec), ""
    except InputError as error:
        if typed:
            raise
        first = error.problems[0]
    return None, f"no text: {first.where}: {first.what}; tokenizer=PATH names it"


def vocabulary_of(made: manifest.Manifest | None, model: str | None) -> tuple[int | None, str]:
    """Return the size of the vocabulary that is asked for, and whose it is. InputError: no such model."""
    if model is None:
        return (made.tokenizer.vocab_size, f"tokenizer {made.tokenizer.name}") if made else (None, "")
    from conf.load import load

    return load([f"model={model}", "platform=cpu"]).model.vocab_size, f"model={model}"
