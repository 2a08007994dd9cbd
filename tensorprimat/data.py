"""tprimat data: a corpus of text, its content, and the first batch that every stack reads of it. Needs no torch.

tprimat data tokenize INPUT… tokenizer=… -o PREFIX    text to a corpus
tprimat data verify PREFIX                    check a corpus after a copy
tprimat data inspect PREFIX                   counts, types, ids and hashes of PREFIX.bin and PREFIX.idx
tprimat data preview platform=cpu seed=7 …    the first global batch of an experiment, as `python launch.py` takes it"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.arguments import Arguments, Command, Key, experiment_keys
from conf.errors import InputError, Problem, command
from conf.load import load
from conf.resolve import Experiment
from corpora import manifest
from corpora.cli import TOKENIZE, VERIFY, tokenize, verify
from corpora.recipes import RECIPES, recipes
from launchers import corpus
from launchers.rank_modules import rank_module

_INSPECTED = """documents     {documents:,}
tokens        {tokens:,}
ids           {least_id:,} to {largest_id:,}, so vocab_size {ids:,} or more
type          {dtype}
.bin          {bin_bytes:,} bytes, sha256 {bin_sha256}
.idx          {idx_bytes:,} bytes, sha256 {idx_sha256}
fingerprint   {fingerprint} (of both sums)"""
_SHOWN = 10  # tokens of a sample


def _count(value: str) -> int:
    if not value.isdecimal():
        raise ValueError("an integer from 0 on")
    return int(value)


INSPECT = Command(
    name="data inspect",
    summary="The content of a corpus: counts, hashes, lengths, repeated documents, ids that occur, and text.",
    words="PREFIX",
    words_help="its path without .bin and .idx",
    keys=(
        Key("tokenizer", "what shows text (default: the one of PREFIX.json)", example="./tokenizer.json"),
        Key("show", "documents whose beginning is shown (0: none)", _count, 3, "10"),
        Key("model", "whose vocabulary the ids are counted of (default: the tokenizer's)", example="llama"),
    ),
)
PREVIEW = Command(
    name="data preview",
    summary="The first global batch of an experiment, which every stack will read.",
    words="KEY=VALUE…",
    words_help="as for launch",
    others="any key of conf/",
    examples=("platform=cpu training.seed=7",),
    known=experiment_keys,
)


DATA = Command(
    name="data",
    summary="A corpus, and the first batch that every stack reads of it. Needs no torch.",
    words="tokenize|inspect|verify|preview|recipes",
    switches={},
    more="\n".join(
        f"{one.name[5:]:<9}{one.words:<13}{one.summary}" for one in (TOKENIZE, INSPECT, VERIFY, PREVIEW, RECIPES)
    ),
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print a corpus or a batch. 0: printed; 2: bad input."""
    called, *rest = [*(sys.argv[1:] if argv is None else argv), ""]
    if called == "inspect":
        arguments = INSPECT.parse(rest[:-1])
        if len(arguments.words) != 1:
            raise InputError(Problem("PREFIX", "takes one corpus", f"{len(arguments.words)} given"))
        print(_inspection(arguments.words[0], arguments))
    elif called == "preview":
        arguments = PREVIEW.parse(rest[:-1])
        print(_preview(load(arguments.rest), bool(arguments.switches)))
    elif called == "tokenize":
        return tokenize(rest[:-1])
    elif called == "verify":
        return verify(rest[:-1])
    elif called == "recipes":
        return recipes(rest[:-1])
    else:
        DATA.parse([called, *rest[:-1]] if called else [])
        raise InputError(Problem("data", "no such command", called, "tokenize, inspect, verify, preview, recipes"))
    return 0


def _inspection(prefix: str, arguments: Arguments) -> str:
    from corpora import content  # and numpy, which --help does without

    made = manifest.read(prefix)
    coder, why = content.coder_of(prefix, made, arguments["tokenizer"])
    vocabulary, whose = content.vocabulary_of(made, arguments["model"])
    with _corpus_order() as order:
        opened = order.open_corpus(prefix)
        facts = order.describe(opened, complete=True)
    found = content.content_of(opened)
    sums = f"{facts['bin_sha256']} {facts['idx_sha256']}"
    facts = {"prefix": prefix, **facts, "fingerprint": hashlib.sha256(sums.encode()).hexdigest()}
    is_of_manifest = f"{made.bin_sha256} {made.idx_sha256}" == sums if made else None
    if arguments.switches:
        facts["is_of_manifest"] = is_of_manifest
        more = {"lengths": found.quantiles, "repeated_documents": found.repeated, "occurring_ids": found.occurring}
        return json.dumps({**facts, **more, "vocab_size": vocabulary}, indent=2)
    lines = [_INSPECTED.format(**facts, ids=facts["largest_id"] + 1)]
    if is_of_manifest is False:
        lines.append(f"manifest      {prefix}.json is of other files: tprimat data verify {prefix}")
    lines += content.text(found, opened, vocabulary, whose)
    if shown := arguments["show"]:
        lines += [why] if why else []
        lines += content.documents(opened, coder, shown)
    return "\n".join(lines)


def _preview(e: Experiment, as_json: bool) -> str:
    if e.data.path is None:
        what = "each stack makes its own tokens: no batch is the same on all of them"
        raise InputError(Problem("data", what, e.data.name, hint="data=synthetic, or data=/path/to/corpus"))
    with tempfile.TemporaryDirectory(prefix="tprimat-") as folder:
        path = e.data.path
        if not e.data.given:  # a made corpus
            path = str(Path(folder, "corpus"))
            for argv in corpus.setup(replace(e, data=replace(e.data, path=path)), sys.executable):
                done = subprocess.run(argv, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise InputError(Problem("data", done.stderr.strip()))
        with _corpus_order() as order:
            batch = next(order.batches(path, corpus.reading(e, order)))
            digest = order.fingerprint(batch)
    if as_json:
        return json.dumps({"data": e.data.name, "data_first_batch": digest, "tokens": batch.tolist()})
    size, ranks = e.training.micro_batch_size or 1, e.layout.data_parallel_size
    lines = [
        f"{e.name}: {len(batch)} samples of {e.training.seq_length:,} tokens, seed {e.training.seed}, {e.layout}",
        f"data_first_batch {digest}",
        "sample  micro-batch  DP rank  tokens",
    ]
    for i, sample in enumerate(batch):
        micro_batch, rank = divmod(i // size, ranks)
        shown = " ".join(map(str, sample[:_SHOWN]))
        lines.append(f"{i:>6}  {micro_batch:>11}  {rank:>7}  {shown} …")
    return "\n".join(lines)


@contextmanager
def _corpus_order() -> Iterator[Any]:
    """Lend the ranks' own module; what it refuses becomes an InputError."""
    order = rank_module("corpus_order")
    try:
        yield order
    except order.Refused as error:
        raise InputError(*(Problem(*problem) for problem in error.problems)) from error
