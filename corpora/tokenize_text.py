"""Make a corpus of text: read it, have it tokenized, write it down, and say how far it is."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from conf.errors import InputError, Problem, some, writing
from conf.plain import terminal
from corpora import inputs, manifest, tokenizers
from corpora.blocks import LIST, Encoded, Rules
from corpora.inputs import Block, End, File, Position
from corpora.manifest import Input, Manifest
from corpora.partial import (
    DROPPED,
    TOKENS,
    Partial,
    State,
    Written,
    alone,
    check_settings,
    is_sealed,
    publish,
    write_index,
)
from corpora.pool import Piece, Pool
from launchers.rank_modules import rank_module

_TERMINAL_S, _LINES_S = 0.5, 30.0  # between two words of progress


_HINTS = {
    LIST: "join the sentences of each document first: jq -c '.text |= join(\" \")'",
    "broken JSON": "one object a line: jq -c . FILE; format=text, if it is plain text",
    "invalid UTF-8": "iconv -f ENCODING -t UTF-8, if it is text of another encoding; other files, if it is none",
    "empty": "other files",
    "": "other files",
}
"""By the reason that most documents were dropped for, the attempt that is proposed where none is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A corpus to be made. by_line: a document of a text file is a line, else the file."""

    files: tuple[File, ...]
    prefix: Path
    tokenizer: manifest.Tokenizer
    spec: tokenizers.Spec
    rules: Rules
    by_line: bool
    processes: int

    @property
    def options(self) -> dict[str, Any]:
        """Return what decides the bytes of the corpus beside its input and its tokenizer."""
        return {
            "field": self.rules.field,
            "append_eod": self.rules.eod is not None,
            "keep_empty": self.rules.keep_empty,
            "text": "line" if self.by_line else "file",
            "longest_bytes": inputs.LONGEST_BYTES,
        }

    @property
    def settings(self) -> dict[str, Any]:
        """Return all that must be the same for an unfinished corpus to be gone on with."""
        return {
            "generator": manifest.GENERATOR,
            "tokenizer": msgspec.to_builtins(self.tokenizer),
            "options": self.options,
            "inputs": [[file.path, file.form, file.size, file.mtime_ns] for file in self.files],
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """A corpus that is there. new: documents of this call and its seconds; None: nothing was left to do."""

    made: Manifest
    tokens: int | None = None
    seconds: float = 0.0


def make(job: Job) -> Outcome:
    """Make the corpus of `job`, or the rest of it, or find it made. InputError: it cannot be; what is done stays, and
    the same call goes on."""
    corpus = Written(job.prefix)
    on = "what was tokenized stays, and the same command goes on"
    with writing(job.prefix, f"-o /a/folder/of/yours; {on}", f"make room, or -o /another/disk; {on}"):
        job.prefix.parent.mkdir(parents=True, exist_ok=True)
        with alone(job.prefix):
            if not is_sealed(corpus) and (there := corpus.there()):
                return Outcome(_same(job, there))
            began, before = time.monotonic(), 0
            if is_sealed(corpus):
                check_settings(corpus.partial, job.settings)
            else:
                before = _make(job, corpus)
            made = msgspec.json.decode((corpus.partial / "manifest.json").read_bytes(), type=Manifest)
            publish(corpus)
    return Outcome(made, made.tokens - before, time.monotonic() - began)


def _same(job: Job, there: list[Path]) -> Manifest:
    """Return the manifest of the corpus that is there already. InputError: it is another one."""
    made = manifest.read(job.prefix)
    names = some([path.name for path in there])
    if made and (made.tokenizer, made.options) == (job.tokenizer, job.options):
        sums = [(one.path, one.bytes) for one in made.inputs]
        order = rank_module("corpus_order")
        if sums == [(file.path, file.size) for file in job.files] and all(
            order.sha256(Path(one.path)) == one.sha256 for one in made.inputs
        ):
            return made
    what = "is another corpus, and not overwritten"
    raise InputError(Problem(str(job.prefix), what, names, hint="remove it, or -o /another/prefix"))


def _make(job: Job, corpus: Written) -> int:
    """Make all of a corpus but its final name. Return the tokens that an earlier call made."""
    with Partial(corpus.partial, job.settings) as partial:
        before, progress = partial.state.tokens, _Progress(job, partial.state)
        if partial.state.input < len(job.files):
            with progress.stopped(), Pool(job.spec, job.rules, job.processes) as pool:
                for piece, encoded in pool.encoded(_pieces(job, partial.state)):
                    partial.add(*_next(partial.state, piece, encoded))
                    progress.show(partial.state)
        progress.end()
        partial.save()
        partial.seal(_finish(job, partial))
    return before


def _pieces(job: Job, state: State) -> Iterator[Piece]:
    start = Position(state.offset, state.line, state.packed)
    for file in job.files[state.input :]:
        yield from inputs.read(file, job.rules.field, job.by_line, start)
        start = Position()


def _next(state: State, piece: Piece, encoded: Encoded | None) -> tuple[State, bytes, bytes, bytes]:
    """Return the state behind a piece, and what it adds to the files."""
    if isinstance(piece, End):
        finished = Input(
            path=piece.file.path,
            bytes=piece.file.size,
            sha256=piece.sha256,
            documents=state.of_input,
            dropped=state.dropped,
        )
        start = {"offset": 0, "line": 1, "packed": 0, "of_input": 0, "dropped": {}}
        return msgspec.structs.replace(state, input=state.input + 1, finished=finished, **start), b"", b"", b""
    assert encoded is not None
    ids = [one for one in (state.least, state.largest, *(encoded.ids or ())) if one is not None]
    counts = Counter(state.dropped)
    counts.update(reason for _, reason, _ in encoded.dropped)
    lines = (_dropped(piece, *one) for one in encoded.dropped)
    after = State(
        input=state.input,
        offset=piece.after.offset,
        line=piece.after.line,
        packed=piece.after.packed,
        documents=state.documents + encoded.documents,
        tokens=state.tokens + encoded.count,
        least=min(ids, default=None),
        largest=max(ids, default=None),
        of_input=state.of_input + encoded.documents,
        dropped=dict(counts),
    )
    return after, encoded.tokens, encoded.lengths, b"".join(lines)


def _dropped(block: Block, line: int, reason: str, detail: str) -> bytes:
    told = {"file": block.path, "line": line, "why": reason, "detail": detail}
    return json.dumps(told, ensure_ascii=True).encode() + b"\n"


def _finish(job: Job, partial: Partial) -> Manifest:
    """Write the index and return the manifest. InputError: no document is left."""
    state, folder = partial.state, partial.folder
    counts: Counter[str] = Counter()
    for one in partial.finished:
        counts.update(one.dropped)
    if not state.tokens:
        why = some([f"{count:,} {reason}" for reason, count in counts.items()]) or "no document at all"
        most = max(counts, key=lambda reason: counts[reason], default="")
        told = f"; each in {folder / DROPPED}" if counts else ""
        hint = _HINTS.get(most, "field=NAME, if the text is in another field")
        raise InputError(Problem(str(job.prefix), "no document is left to make a corpus of", f"{why}{told}", hint=hint))
    documents, digest = write_index(folder, job.rules.dtype)
    assert state.least is not None and state.largest is not None
    return Manifest(
        generator=manifest.GENERATOR,
        documents=documents,
        tokens=state.tokens,
        dtype=job.rules.dtype,
        least_id=state.least,
        largest_id=state.largest,
        bin_bytes=(folder / TOKENS).stat().st_size,
        idx_bytes=(folder / "index").stat().st_size,
        bin_sha256=rank_module("corpus_order").sha256(folder / TOKENS),
        idx_sha256=digest,
        tokenizer=job.tokenizer,
        options=job.options,
        inputs=tuple(partial.finished),
        dropped=dict(sorted(counts.items())),
    )


class _Progress:
    """Words on how far it is: bytes of the inputs, tokens a second of this call, time left."""

    def __init__(self, job: Job, state: State) -> None:
        self.sizes = [file.size for file in job.files]
        self.total, self.first = sum(self.sizes), state
        self.began = self.shown = time.monotonic()
        self.live, self.spoken = sys.stderr.isatty(), False
        if state.tokens or state.input:
            print(f"goes on behind {state.documents:,} documents, {state.tokens:,} tokens", file=sys.stderr)

    def show(self, state: State) -> None:
        """Say it, when it is time to."""
        now = time.monotonic()
        if now - self.shown < (_TERMINAL_S if self.live else _LINES_S):
            return
        self.shown, self.spoken = now, True
        done, before, seconds = self._bytes(state), self._bytes(self.first), now - self.began
        rate = (state.tokens - self.first.tokens) / seconds
        left = (self.total - done) * seconds / (done - before) if done > before else float("nan")
        text = f"{done / 1e6:,.0f} of {self.total / 1e6:,.0f} MB, {done / max(1, self.total):.0%}, "
        text += f"{rate / 1e6:.2f} million tokens/s, {_clock(left)} left"
        print(
            f"\r{text}\x1b[K" if self.live else text,
            end="" if self.live else "\n",
            file=terminal(sys.stderr),
            flush=True,
        )

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Say what becomes of the corpus, should the user stop it."""
        try:
            yield
        except KeyboardInterrupt:
            self.end()
            print("stopped: what was tokenized stays, and the same command goes on, seconds back", file=sys.stderr)
            raise

    def end(self) -> None:
        """Leave the line."""
        if self.live and self.spoken:
            print(file=sys.stderr)

    def _bytes(self, state: State) -> int:
        return sum(self.sizes[: state.input]) + state.packed


def _clock(seconds: float) -> str:
    if seconds != seconds:
        return "unknown time"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"
