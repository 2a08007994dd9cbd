"""Tokenizers of Hugging Face, tiktoken and sentencepiece, each through its own library and as Megatron-LM's
tools/preprocess_data.py uses it (megatron/core/tokenizers/text/libraries at d98e8a64): the same ids."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from conf.errors import InputError, Problem, UserError
from corpora import manifest
from launchers.rank_modules import rank_module

if TYPE_CHECKING:  # numpy, which --help does without
    from numpy.typing import NDArray

    Encode = Callable[[Sequence[str]], tuple[NDArray[Any], NDArray[Any]]]

TIKTOKEN = "tiktoken:"
"""Begins the name of an encoding that tiktoken itself knows: tiktoken:cl100k_base."""
PATTERNS: Mapping[str, str] = {  # Megatron's
    "v1": r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "v2": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
_MEGATRON_SPECIAL = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
_MEGATRON_VOCABULARY = 2**17
EXTRA = "pip install 'tensorprimat[data]'"
ENGINES = ("tokenizers", "gigatoken")
"""Libraries that encode for a tokenizer of Hugging Face's: its own, and one that is tens of times as fast."""
_FORGOTTEN_AFTER = 2**27
"""Letters: gigatoken remembers every word that it has met, without a limit."""
_CHECKED_LETTERS = 2**14
"""Letters of the longest text that both engines encode, a hundredth of a second for Hugging Face's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Wishes that change the ids. None: as the tokenizer, or Megatron, has it."""

    engine: str = ENGINES[0]
    add_special_tokens: bool = True
    eod_token: str | None = None
    tiktoken_pattern: str | None = None
    tiktoken_num_special_tokens: int | None = None
    vocab_size: int | None = None
    special_tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """All that another process needs to build a tokenizer without its files, and without the network. content: the
    text of tokenizer.json, the bytes of a model, or the arguments of tiktoken.Encoding."""

    kind: str
    content: Any
    add_special_tokens: bool


@dataclass(frozen=True, slots=True)
class Coder:
    """A tokenizer at work. encode: the ids of texts, one text's behind another's, and how many each has; decode: the
    text of ids."""

    encode: Encode
    decode: Callable[[Sequence[int]], str]


def open_tokenizer(name: str, options: Options) -> tuple[manifest.Tokenizer, Spec]:
    """Return the identity of the tokenizer `name`, and what builds it. InputError: there is none, it cannot be reached
    from here, its library is missing, or it lacks a token or takes no such option."""
    if name.startswith(TIKTOKEN):
        return _known_encoding(name, options)
    path = Path(name)
    if not path.exists() and _may_be_an_id(name):
        return _of_folder(name, _downloaded(name), options)
    with _refusals():
        files = rank_module("tokenizer_files")
        kind = files.kind_of(name)
    if path.is_dir():
        return _of_folder(name, path, options)
    return {"huggingface": _of_json, "sentencepiece": _of_sentencepiece, "tiktoken": _of_tiktoken}[kind](name, options)


def build(spec: Spec) -> Coder:
    """Return the tokenizer of `spec`."""
    made = {"huggingface": _fast, "gigatoken": _faster, "sentencepiece": _pieces, "tiktoken": _ranks}
    return made[spec.kind](spec)


def _joined(texts: Iterable[list[int]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return what Coder.encode does, of the ids of each text."""
    from array import array

    import numpy as np

    tokens, lengths = array("i"), array("i")
    for ids in texts:
        tokens.fromlist(ids)  # half the time of extend
        lengths.append(len(ids))
    return np.array(tokens, np.int32), np.array(lengths, np.int32)


def library(name: str) -> Any:
    """Import a library of the extra. InputError: it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        what = f"{name} is not installed here" if isinstance(error, ModuleNotFoundError) else f"{name}: {error}"
        raise InputError(Problem("tokenizer", what, hint=EXTRA)) from error


@contextmanager
def _refusals() -> Iterator[None]:
    refused = rank_module("rank_program").Refused
    try:
        yield
    except refused as error:
        raise InputError(*(Problem(*problem) for problem in error.problems)) from error


@contextmanager
def _opening(name: str, hint: str = "") -> Iterator[None]:
    """Turn whatever a library raises for a bad tokenizer into an InputError with the first line of its own words."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # every library has its own
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise InputError(Problem(f"tokenizer={name}", "cannot be opened", why[:300], hint=hint)) from error


def _identity(
    name: str, kind: str, sha256: str, vocabulary: tuple[int, Sequence[int | None]], options: Mapping[str, Any]
) -> manifest.Tokenizer:
    """Return the identity. vocabulary: its size, and the ids of eod, bos and pad."""
    package, (size, (eod, bos, pad)) = "tokenizers" if kind == "huggingface" else kind, vocabulary
    made = f"{package} {version(package)}"
    return manifest.Tokenizer(
        name=name,
        kind=kind,
        sha256=sha256,
        vocab_size=size,
        eod_id=eod,
        bos_id=bos,
        pad_id=pad,
        options=options,
        library=made,
    )


def _sha256(path: str | Path) -> str:
    with _refusals():
        return str(rank_module("tokenizer_files").sha256_of(path))


def _refuse_options(name: str, options: Options, kind: str, allowed: Iterable[str]) -> None:
    """Refuse what this kind of tokenizer takes no notice of."""
    default = Options()
    given = [key for key in Options.__dataclass_fields__ if getattr(options, key) != getattr(default, key)]
    if wrong := [key for key in given if key not in (*allowed, "eod_token")]:
        what = f"a tokenizer of {kind} has no such option"
        raise InputError(*(Problem(key, what, str(getattr(options, key)), hint="leave it out") for key in wrong))


def _end(name: str, token: str | None, find: Callable[[str], int | None], own: int | None) -> int | None:
    """Return the id of the token that ends a document: the user's, or the tokenizer's. InputError: no such token."""
    if token is None:
        return own
    found = find(token)
    if found is None:
        raise InputError(Problem("eod_token", f"tokenizer={name} has no such token", token))
    return found


# --- Hugging Face


def _may_be_an_id(name: str) -> bool:
    return name.count("/") <= 1 and not name.startswith((".", "/", "~")) and Path(name).suffix != ".json"


def _downloaded(name: str) -> Path:
    """Return the folder of a tokenizer of the hub: in its cache, or downloaded to it. InputError: out of reach."""
    hub = library("huggingface_hub")
    files = rank_module("tokenizer_files").FILES
    hint = "a folder or a tokenizer.json on this machine; a gated one needs HF_TOKEN"
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=[*files]))
    except Exception as error:  # of the hub, of HTTP, of names
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        what = "is no file or folder here, and cannot be had from the hub"
        raise InputError(Problem(f"tokenizer={name}", what, why[:300], hint=hint)) from error


def _of_json(name: str, options: Options) -> tuple[manifest.Tokenizer, Spec]:
    _refuse_options(name, options, "Hugging Face", ["add_special_tokens", "engine"])
    package = library("tokenizers")
    with _opening(name):
        made = package.Tokenizer.from_file(name)
    eod = _end(name, options.eod_token, made.token_to_id, None)
    return _huggingface(name, Path(name), made, (eod, None, None), options)


def _of_folder(name: str, folder: Path, options: Options) -> tuple[manifest.Tokenizer, Spec]:
    """Return the tokenizer of a folder as transformers builds it and Megatron completes it: sep stands in for a missing
    eos and cls for a missing bos, and the other way round."""
    _refuse_options(name, options, "Hugging Face", ["add_special_tokens", "engine"])
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    with _opening(name, "a folder with tokenizer.json and tokenizer_config.json"), _without_torch():
        transformers = library("transformers")
        made = transformers.AutoTokenizer.from_pretrained(str(folder), use_fast=True, trust_remote_code=False)
    if not getattr(made, "is_fast", False):
        what = "has no fast form, which is needed here"
        hint = "its model of sentencepiece or vocabulary of tiktoken, as a file"
        raise InputError(Problem(f"tokenizer={name}", what, type(made).__name__, "tokenizer.json", hint))
    tokens: dict[str, Any] = {}
    for one, other in (("sep_token", "eos_token"), ("bos_token", "cls_token")):
        for this, that in ((one, other), (other, one)):
            if getattr(made, this) is None and getattr(made, that):
                tokens[this] = getattr(made, that)
    made.add_special_tokens(tokens)
    eod = _end(name, options.eod_token, made.backend_tokenizer.token_to_id, made.eos_token_id)
    ids = (eod, made.bos_token_id, made.pad_token_id)
    return _huggingface(name, folder, made.backend_tokenizer, ids, options)


@contextmanager
def _without_torch() -> Iterator[None]:
    """Let torch seem missing: transformers imports it where it is installed, for seconds, and has no switch for that.
    A tokenizer is the same without."""
    known = "torch" in sys.modules
    if not known:
        sys.modules["torch"] = None  # type: ignore[assignment]  # what Python looks at first: there is no such module
    try:
        yield
    finally:
        if not known:
            sys.modules.pop("torch", None)


def _huggingface(
    name: str, path: Path, made: Any, ids: tuple[int | None, int | None, int | None], options: Options
) -> tuple[manifest.Tokenizer, Spec]:
    made.no_truncation()  # a tokenizer.json may have one, of 512 tokens: transformers takes both away, too
    made.no_padding()
    size, own = made.get_vocab_size(), {"add_special_tokens": options.add_special_tokens}
    identity = _identity(name, "huggingface", _sha256(path), (size, ids), own)
    if options.engine == ENGINES[0]:
        return identity, Spec("huggingface", made.to_str(), options.add_special_tokens)
    hint = f"engine={ENGINES[0]}"
    if options.add_special_tokens and made.num_special_tokens_to_add(False):
        what = f"tokenizer={name} adds special tokens to each text, which this engine does not"
        raise InputError(Problem("engine", what, options.engine, hint=f"{hint}, or add_special_tokens=false"))
    spec = Spec(options.engine, made.to_str(), add_special_tokens=False)
    with _opening(name, hint):
        build(spec)
    library_ = f"{options.engine} {version(options.engine)}, checked by {identity.library}"
    return msgspec.structs.replace(identity, library=library_), spec


def _fast(spec: Spec) -> Coder:
    made = library("tokenizers").Tokenizer.from_str(spec.content)
    many = getattr(made, "encode_batch_fast", made.encode_batch)  # without offsets: a tenth faster

    def encode(texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[Any]]:
        return _joined(one.ids for one in many(texts, add_special_tokens=spec.add_special_tokens))

    return Coder(encode, lambda ids: str(made.decode([*ids], skip_special_tokens=False)))


def _faster(spec: Spec) -> Coder:
    """Return gigatoken, with all of the first texts and one of each later call encoded by Hugging Face's library, too:
    other ids are an error, never a corpus."""
    package, awkward, slow = library("gigatoken"), library("awkward"), _fast(spec)
    fast, letters, calls = package.Tokenizer.from_json(spec.content), 0, 0

    def encode(texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[Any]]:
        nonlocal fast, letters, calls
        letters += sum(map(len, texts))
        if letters > _FORGOTTEN_AFTER:
            fast, letters = package.Tokenizer.from_json(spec.content), 0
        made = fast.encode_batch([*texts], parallel=False)
        lengths = awkward.to_numpy(awkward.num(made)).astype("i4")
        ids = awkward.to_numpy(awkward.flatten(made)).astype("i4")
        short = [i for i, text in enumerate(texts) if len(text) <= _CHECKED_LETTERS]
        for i in short if not calls else short[calls % len(short) :][:1] if short else ():
            end = int(lengths[: i + 1].sum())
            if ids[end - lengths[i] : end].tolist() != slow.encode([texts[i]])[0].tolist():
                raise RuntimeError(
                    f"gigatoken gives other ids than tokenizers for {texts[i][:80]!r}: engine=tokenizers"
                )
        calls += 1
        return ids, lengths

    return Coder(encode, slow.decode)


# --- sentencepiece


def _of_sentencepiece(name: str, options: Options) -> tuple[manifest.Tokenizer, Spec]:
    _refuse_options(name, options, "sentencepiece", [])
    package, content = library("sentencepiece"), Path(name).read_bytes()
    with _opening(name):
        made = package.SentencePieceProcessor(model_proto=content)
    eod, bos, pad = (None if number < 0 else number for number in (made.eos_id(), made.bos_id(), made.pad_id()))

    def find(token: str) -> int | None:
        number = int(made.piece_to_id(token))
        return number if made.id_to_piece(number) == token else None

    ids = (_end(name, options.eod_token, find, eod), bos, pad)
    identity = _identity(name, "sentencepiece", _sha256(name), (made.get_piece_size(), ids), {})
    return identity, Spec("sentencepiece", content, True)


def _pieces(spec: Spec) -> Coder:
    made = library("sentencepiece").SentencePieceProcessor(model_proto=spec.content)

    def encode(texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[Any]]:
        return _joined(map(made.encode_as_ids, texts))

    return Coder(encode, lambda ids: str(made.decode_ids([*ids])))


# --- tiktoken


def _known_encoding(name: str, options: Options) -> tuple[manifest.Tokenizer, Spec]:
    """Return an encoding by the name that tiktoken has for it, which downloads it once."""
    _refuse_options(name, options, "tiktoken that is named", [])
    package = library("tiktoken")
    hint = "a vocabulary on this machine, or TIKTOKEN_CACHE_DIR with the file in it"
    with _opening(name, hint):
        made = package.get_encoding(name.removeprefix(TIKTOKEN))
    ranks = made._mergeable_ranks
    lines = (
        b"%b %d\n" % (base64.b64encode(token), rank) for token, rank in sorted(ranks.items(), key=lambda it: it[1])
    )
    digest = hashlib.sha256(b"".join(lines)).hexdigest()  # that of the published .tiktoken
    arguments = (made._pat_str, ranks, made._special_tokens)
    return _encoding(name, digest, arguments, options, (made.n_vocab, {}))


def _of_tiktoken(name: str, options: Options) -> tuple[manifest.Tokenizer, Spec]:
    raw = Path(name).read_bytes()
    with _opening(name):
        make = _megatron_vocabulary if raw.lstrip().startswith(b"[") else _published_vocabulary
        arguments, *sizes = make(name, raw, options)
    return _encoding(name, _sha256(name), arguments, options, sizes)


def _megatron_vocabulary(name: str, raw: bytes, options: Options) -> tuple[Any, int, dict[str, Any]]:
    """Return the arguments of Encoding for a vocabulary in Megatron's form: a list of {rank, token_bytes, token_str},
    cut to `vocab_size`, behind special tokens that get the first ids."""
    _refuse_options(name, options, "tiktoken", ["tiktoken_pattern", "tiktoken_num_special_tokens", "vocab_size"])
    special, size = options.tiktoken_num_special_tokens or 1000, options.vocab_size or _MEGATRON_VOCABULARY
    tokens = [base64.b64decode(entry["token_bytes"]) for entry in json.loads(raw)[: size - special]]
    if special < len(_MEGATRON_SPECIAL) or len(tokens) != size - special:
        have = f"{len(tokens):,} tokens, {special:,} special tokens, vocab_size {size:,}"
        hint = f"vocab_size={len(tokens) + special} tiktoken_num_special_tokens={special}"
        what = "does not have as many tokens as vocab_size and tiktoken_num_special_tokens say"
        raise InputError(Problem(f"tokenizer={name}", what, have, hint=hint))
    names = [*_MEGATRON_SPECIAL, *(f"<SPECIAL_{i}>" for i in range(len(_MEGATRON_SPECIAL), special))]
    pattern = options.tiktoken_pattern or "v2"
    arguments = (
        PATTERNS.get(pattern, pattern),
        {token: special + rank for rank, token in enumerate(tokens)},
        {token: i for i, token in enumerate(names)},
    )
    used = {"tiktoken_pattern": pattern, "tiktoken_num_special_tokens": special, "vocab_size": size}
    return arguments, size, used


def _published_vocabulary(name: str, raw: bytes, options: Options) -> tuple[Any, int, dict[str, Any]]:
    """Return the arguments of Encoding for lines of base64 and rank, with the special tokens behind them."""
    _refuse_options(name, options, "tiktoken", ["tiktoken_pattern", "special_tokens"])
    if options.tiktoken_pattern is None:
        what = "a vocabulary in this form does not say how text is split"
        raise InputError(Problem("tiktoken_pattern", what, "", "v1, v2 (Megatron's) or a regular expression"))
    pairs = (line.split() for line in raw.splitlines() if line.strip())
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    first = max(ranks.values()) + 1
    special = {token: first + i for i, token in enumerate(options.special_tokens)}
    used = {"tiktoken_pattern": options.tiktoken_pattern, "special_tokens": [*options.special_tokens]}
    pattern = PATTERNS.get(options.tiktoken_pattern, options.tiktoken_pattern)
    return (pattern, ranks, special), first + len(special), used


def _encoding(name: str, sha256: str, arguments: Any, options: Options, sizes: Any) -> tuple[manifest.Tokenizer, Spec]:
    """Return a tokenizer of tiktoken. sizes: of its vocabulary, and the options that were used."""

    def known(*names: str) -> int | None:
        return next((arguments[2][token] for token in names if token in arguments[2]), None)

    own = known("</s>", "<|endoftext|>", "<|end_of_text|>")
    eod = _end(name, options.eod_token, arguments[2].get, own)
    spec, (size, used) = Spec("tiktoken", arguments, True), sizes
    with _opening(name):
        build(spec)
    ids = (eod, known("<s>", "<|begin_of_text|>"), known("<pad>"))
    return _identity(name, "tiktoken", sha256, (size, ids), used), spec


def _ranks(spec: Spec) -> Coder:
    pattern, ranks, special = spec.content
    made = library("tiktoken").Encoding("corpus", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)

    def encode(texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[Any]]:
        return _joined(made.encode(text, allowed_special="all") for text in texts)

    return Coder(encode, lambda ids: str(made.decode([*ids])))
