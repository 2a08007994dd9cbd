"""tprimat data tokenize and verify: text to a corpus, and a corpus checked after a copy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from conf.arguments import OUTPUT, Arguments, Command, Key, names, positive_integer, switch
from conf.errors import InputError, Problem, some
from conf.threads import cores_here
from corpora import inputs, manifest, tokenizers
from corpora.blocks import Rules
from corpora.manifest import DROPPED, Manifest
from launchers.rank_modules import rank_module

if TYPE_CHECKING:  # numpy, which --help does without
    from corpora.tokenize_text import Job, Outcome

_OPTIONS = tuple(tokenizers.Options.__dataclass_fields__)
TOKENIZE = Command(
    name="data tokenize",
    summary="Text to PREFIX.bin, .idx and .json, as Megatron's preprocess_data.py writes them. A killed one goes on.",
    words="INPUT…",
    words_help="files or folders: .jsonl, .json, .ndjson, .txt, .md, .rst, also .gz or .zst; .parquet",
    keys=(
        Key("tokenizer", "tokenizer.json, a folder or an id of Hugging Face, tiktoken:NAME or a vocabulary of "
            "tiktoken, a model of sentencepiece", example="./tokenizer.json"),
        Key("field", "which field or column has the text", default="text", example="content"),
        Key("format", "of all inputs, whatever their names end with", default="auto", example="jsonl",
            choices=lambda: ("auto", *inputs.FORMATS)),
        Key("text", "what one document is in a text file: the file, or each line", default="file", example="line",
            choices=lambda: ("file", "line")),
        Key("append_eod", "end each document with the tokenizer's end token", switch, True, "false"),
        Key("eod_token", "that token, where the tokenizer names none or another", example="'<|endoftext|>'"),
        Key("add_special_tokens", "those that a tokenizer of Hugging Face adds by itself", switch, True, "false"),
        Key("keep_empty", "keep documents without tokens, as Megatron's script does", switch, False, "true"),
        Key("engine", "what encodes for a tokenizer of Hugging Face: gigatoken (pip install it) gives the same ids tens"
            " of times as fast, and is checked as it goes", default="tokenizers", example="gigatoken",
            choices=lambda: tokenizers.ENGINES),
        Key("processes", "that tokenize at once (default: all cores)", positive_integer, None, "8"),
        Key("tiktoken_pattern", "v1, v2 (Megatron's, default of its form) or a regular expression", example="v2"),
        Key("tiktoken_num_special_tokens", "of Megatron's form of tiktoken (default: 1000)", positive_integer, None,
            "1000"),
        Key("vocab_size", "of Megatron's form of tiktoken, special tokens included (default: 131072)",
            positive_integer, None, "131072"),
        Key("special_tokens", "of lines of base64 and rank: behind the others, in this order", names, (),
            "'<|endoftext|>'"),
    ),
    switches={"--json": "print the manifest"},
    output="path of the corpus, without .bin and .idx",
    output_word="PREFIX",
    examples=("texts/ tokenizer=gpt2/ -o corpora/wiki", "a.jsonl.gz b.parquet tokenizer=tokenizer.json -o c "
              "eod_token='</s>'"),
)  # fmt: skip
VERIFY = Command(
    name="data verify",
    summary="Check a tokenized corpus against its manifest, PREFIX.json, as after a copy.",
    words="PREFIX",
    words_help="its path without .bin and .idx",
)


def tokenize(argv: Sequence[str]) -> int:
    """Make a corpus and print what it has. 0: it is there."""
    arguments = TOKENIZE.parse(argv)
    job, others = _job(arguments)
    from corpora.tokenize_text import make  # numpy, which --help and refusals do without

    outcome = make(job)
    text = manifest.encode(outcome.made).decode().rstrip()
    print(text if arguments.switches else "\n".join(_report(job.prefix, outcome, others)))
    return 0


def _job(arguments: Arguments) -> tuple[Job, list[str]]:
    missing = []
    if not arguments.words:
        missing.append(Problem("INPUT", "which text?", hint="files or folders"))
    if not arguments["tokenizer"]:
        missing.append(Problem("tokenizer", "which one?", hint="tokenizer=PATH, or an id of Hugging Face"))
    if arguments.output is None:
        missing.append(Problem(OUTPUT, "where does the corpus go?", hint=f"{OUTPUT} PREFIX"))
    elif arguments.output.name.endswith((".bin", ".idx")):
        missing.append(Problem(OUTPUT, "a corpus is named without .bin and .idx", str(arguments.output)))
    if missing or arguments.output is None:
        raise InputError(*missing)
    files, others = inputs.find(arguments.words, arguments["format"])
    options = tokenizers.Options(**{name: arguments[name] for name in _OPTIONS})
    identity, spec = tokenizers.open_tokenizer(arguments["tokenizer"], options)
    eod = identity.eod_id if arguments["append_eod"] else None
    if arguments["append_eod"] and eod is None:
        what, hint = "the tokenizer names no token that ends a document", "eod_token=TOKEN, or append_eod=false"
        raise InputError(Problem(f"tokenizer={identity.name}", what, hint=hint))
    dtype = "uint16" if identity.vocab_size < 65500 else "int32"  # Megatron's DType.optimal_dtype
    cores = cores_here()
    from corpora.tokenize_text import Job

    job = Job(
        files=tuple(files),
        prefix=Path(os.path.abspath(arguments.output)),  # noqa: PTH100  a link stays
        tokenizer=identity,
        spec=spec,
        rules=Rules(arguments["field"], eod, arguments["keep_empty"], dtype),
        by_line=arguments["text"] == "line",
        processes=arguments["processes"] or cores,
    )
    return job, others


def _report(prefix: Path, outcome: Outcome, others: Sequence[str]) -> Iterator[str]:
    made = outcome.made
    yield f"{prefix}.bin, .idx and .json"
    yield f"documents     {made.documents:,} of {len(made.inputs):,} files"
    yield f"tokens        {made.tokens:,}, {made.dtype}, {made.bin_bytes:,} bytes"
    one = made.tokenizer
    yield f"tokenizer     {one.name}, sha256 {one.sha256[:16]}…, vocab_size {one.vocab_size:,}"
    if outcome.tokens is None:
        yield "time          none: it was there already, of the same input, tokenizer and options"
    else:
        rate = f", {outcome.tokens / outcome.seconds / 1e6:.2f} million tokens/s" if outcome.seconds else ""
        yield f"time          {outcome.seconds:,.1f} s{rate}"
    for reason, count in made.dropped.items():
        yield f"dropped       {count:,} {reason}"
    if made.dropped:
        yield f"              each in {prefix}{DROPPED}"
    if others:
        yield f"left out      {len(others):,} other files: {some(others, 3)}"


def verify(argv: Sequence[str]) -> int:
    """Print that a corpus is the one of its manifest. 0: it is; 2: it is not, or there is none."""
    arguments = VERIFY.parse(argv)
    if len(arguments.words) != 1:
        raise InputError(Problem("PREFIX", "takes one corpus", f"{len(arguments.words)} given"))
    prefix = arguments.words[0]
    made = manifest.read(prefix)
    if made is None:
        hint = "tprimat data tokenize writes one; tprimat data inspect reads a corpus without"
        raise InputError(Problem(f"{prefix}.json", "no manifest of a tokenized corpus is here", hint=hint))
    if problems := [*_differences(prefix, made)]:
        raise InputError(*problems)
    facts = {"prefix": prefix, "documents": made.documents, "tokens": made.tokens, "bin_sha256": made.bin_sha256}
    text = f"{prefix}: .bin and .idx are those of the manifest: {made.documents:,} documents, {made.tokens:,} tokens"
    print(json.dumps(facts | {"ok": True}) if arguments.switches else text)
    return 0


def _differences(prefix: str, made: Manifest) -> Iterator[Problem]:
    order = rank_module("corpus_order")
    for suffix, size, digest in ((".bin", made.bin_bytes, made.bin_sha256), (".idx", made.idx_bytes, made.idx_sha256)):
        path = Path(f"{prefix}{suffix}")
        try:
            there = path.stat().st_size
            found = order.sha256(path) if there == size else ""
        except OSError as error:
            yield Problem(str(path), "cannot be read", error.strerror or str(error), hint="copy it again")
            continue
        if there != size:
            yield Problem(str(path), "has another size than the manifest says", f"{there:,} bytes", f"{size:,} bytes")
        elif found != digest:
            yield Problem(str(path), "is not the file of the manifest", f"sha256 {found}", digest, "copy it again")
