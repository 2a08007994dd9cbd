"""Read what a tokenizer says of itself from its files, without its library: size and special tokens, which every stack
takes from it. Of Hugging Face's the folder, of sentencepiece the model, of tiktoken a vocabulary in Megatron's form:
for each NeMo, Megatron-Bridge and Primus have a tokenizer, with the same ids. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rank_program import Problem, Refused
from tokenizer_files import kind_by_name, kind_of, sha256_of

SPECIAL = ("eos_token", "bos_token", "pad_token")
TIKTOKEN_SPECIAL = 1000
"""Ids that Megatron's TikTokenizer has in front of a vocabulary, as every stack has them by default: <unk>, <s>, </s>,
<mask>, <pad>, <cls>, <sep>, <SPECIAL_7>… """
_FOLDER = "a folder that save_pretrained of transformers has written"
_ALLOWED = f"{_FOLDER}, a model of sentencepiece (.model), a vocabulary of tiktoken in Megatron's form (.json)"
_WITHOUT = "without data.tokenizer every stack reads the ids, of a tokenizer of any form"


def read(path: str, vocab_size: int) -> dict[str, Any]:
    """Return tokenizer_{sha256, vocab_size, eod, bos, pad} of the tokenizer at `path`; None: it has no such token.
    vocab_size: the model's, which is that of tiktoken, too, as of Megatron's --vocab-size.
    Raises Refused: it is none that every stack opens alike, or is damaged."""
    kind = kind_by_name(path)
    _check_form(path, kind)
    facts = {"huggingface": _of_folder, "sentencepiece": _of_sentencepiece}.get(kind)
    size, eod, bos, pad = facts(path) if facts else _of_tiktoken(path, vocab_size)
    names = ("sha256", "vocab_size", "eod", "bos", "pad")
    return dict(zip((f"tokenizer_{name}" for name in names), (sha256_of(path), size, eod, bos, pad), strict=True))


_Facts = tuple[int, int | None, int | None, int | None]
"""The number of ids, and those of the end of text, of its beginning and of padding."""


def _check_form(path: str, kind: str) -> None:
    """Raise Refused if what lies at `path` is not what its name says, with the conversion that makes it so."""
    if not Path(path).exists():
        attempt = f"of an id of Hugging Face's its download: hf download ID --local-dir FOLDER; {_WITHOUT}"
        raise Refused.of(path, "no tokenizer is here", "", _ALLOWED, attempt)
    found, is_folder = kind_of(path), Path(path).is_dir()
    if found == kind and is_folder == (kind == "huggingface"):
        return
    if is_folder:
        what, attempt = "is a folder, and named like a file", "a folder whose name ends neither in .model nor in .json"
        raise Refused.of(path, what, "a folder", _ALLOWED, attempt)
    if found == "huggingface":
        what = "names no end of text: transformers, by which NeMo, Bridge and Primus open it, takes a folder"
        attempt = f"mkdir FOLDER; cp {path} FOLDER/tokenizer.json; then FOLDER/tokenizer_config.json with "
        attempt += '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "TOKEN"}'
        raise Refused.of(path, what, "a tokenizer.json alone", _ALLOWED, f"{attempt}; {_WITHOUT}")
    if found == "tiktoken":
        what = "is opened by no stack: Megatron's TikTokenizer, which Bridge and Primus have, and NeMo's take a list of"
        what += " rank, token_bytes and token_str, with the 256 bytes first"
        attempt = "convert_slow_tokenizer.TikTokenConverter of transformers makes a tokenizer.json of it, for a folder"
        raise Refused.of(path, what, "lines of base64 and rank", _ALLOWED, f"{attempt}; {_WITHOUT}")
    what, attempt = "is a model of sentencepiece, and named like another tokenizer", f"a link to it, {path}.model"
    raise Refused.of(path, what, Path(path).name, _ALLOWED, attempt)


def _of_folder(path: str) -> _Facts:
    folder = Path(path)
    tokenizer, config = (_json(folder / name) for name in ("tokenizer.json", "tokenizer_config.json"))
    try:
        ids = _ids(tokenizer)
        eod, bos, pad = (ids.get(_text(config.get(name))) for name in SPECIAL)
        return max(ids.values(), default=-1) + 1, eod, bos, pad
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        what = "has no vocabulary as the library tokenizers writes it"
        raise Refused.of(str(folder / "tokenizer.json"), what, str(error), _FOLDER) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused.of(str(path), "cannot be read as a tokenizer's", str(error), _FOLDER) from error
    if not isinstance(values, dict):
        raise Refused.of(str(path), "is no mapping", type(values).__name__)
    return values


def _ids(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    """Return token → id: of the model, and of what was added to it. Unigram models have a list of pairs."""
    known = tokenizer.get("model", {}).get("vocab", {})
    ids = dict(known) if isinstance(known, dict) else {pair[0]: at for at, pair in enumerate(known)}
    return ids | {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or ()}


def _text(token: Any) -> Any:
    """Return a special token's text, which stands alone or in an object."""
    return token.get("content") if isinstance(token, dict) else token


# --- sentencepiece: a ModelProto of protocol buffers (sentencepiece_model.proto)

_PIECES, _TRAINER = 1, 2  # fields of the ModelProto
_CONTROL = 3  # the type of a piece without text of its own
_NAMED = {46: b"<s>", 47: b"</s>", 48: b"<pad>"}  # fields of its TrainerSpec, and what they are unless they are there


def _of_sentencepiece(path: str) -> _Facts:
    """Return the facts as sentencepiece has them: bos_id() and its like find the piece, which is a control one."""
    ids, names, size = dict[bytes, int](), dict(_NAMED), 0
    try:
        for field, value in _fields(Path(path).read_bytes()):
            if field == _PIECES:
                piece = dict(_fields(value))
                if piece.get(3) == _CONTROL:
                    ids[piece[1]] = size
                size += 1
            elif field == _TRAINER:
                names |= {inner: text for inner, text in _fields(value) if inner in _NAMED}
    except (OSError, IndexError, KeyError, TypeError, ValueError) as error:
        what = "cannot be read as a model of sentencepiece"
        raise Refused.of(path, what, str(error), _ALLOWED, "copy it again") from error
    bos, eod, pad = (ids.get(names[field]) for field in _NAMED)
    return size, eod, bos, pad


def _fields(message: Any) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message of protocol buffers: a number, or the bytes of what has a length.
    Raises IndexError, ValueError: it is none."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        field, form = key >> 3, key & 7
        if form == 0:
            value, at = _number(message, at)
            yield field, value
            continue
        size, at = _number(message, at) if form == 2 else ({1: 8, 5: 4}.get(form, -1), at)
        if size < 0 or at + size > len(message):
            raise ValueError(f"it ends, or breaks, at byte {at:,}")
        yield field, message[at : at + size]
        at += size


def _number(message: Any, at: int) -> tuple[int, int]:
    """Return the number of seven bits a byte at `at`, and where it ends."""
    value, shift = 0, 0
    while True:
        value |= (message[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if message[at - 1] < 128:
            return value, at


# --- tiktoken


def _of_tiktoken(path: str, vocab_size: int) -> _Facts:
    try:
        tokens = json.loads(Path(path).read_text(encoding="utf-8"))
        ranks = [token["rank"] for token in tokens]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Refused.of(path, "cannot be read as a vocabulary of tiktoken", str(error), _ALLOWED) from error
    needed = vocab_size - TIKTOKEN_SPECIAL
    if ranks != list(range(len(ranks))) or not 0 < needed <= len(ranks):
        what = f"does not have the tokens of a model of {vocab_size:,} behind {TIKTOKEN_SPECIAL:,} special ones"
        attempt = f"model.vocab_size={len(ranks) + TIKTOKEN_SPECIAL}"
        raise Refused.of(path, what, f"{len(ranks):,} tokens", f"{max(needed, 1):,} or more, by rank", attempt)
    return vocab_size, 2, 1, 4


def problems(
    path: str, vocab_size: int, sha256: str | None, corpora: Mapping[str, Mapping[str, Any]]
) -> Iterator[Problem]:
    """Yield why the tokenizer at `path` cannot be a run's. sha256: the one that is requested, if any. corpora: of each
    corpus that has a manifest what it says of its tokenizer, by the corpus' prefix."""
    facts = read(path, vocab_size)
    if (size := facts["tokenizer_vocab_size"]) > vocab_size:
        what = "has more tokens than the model"
        yield Problem(path, what, f"{size:,}", f"at most {vocab_size:,}", "the model that it is made for")
    if facts["tokenizer_eod"] is None:
        what = "has no end of text, which Megatron's datasets need as the end of a document"
        attempt = "eos_token in tokenizer_config.json, or a sentencepiece that was trained with one"
        yield Problem(path, what, "no such token in its vocabulary", hint=attempt)
    here = facts["tokenizer_sha256"]
    if sha256 not in (None, here):
        what = "is another tokenizer than the requested one"
        yield Problem(path, what, f"sha256 {here}", str(sha256), "copy it again (data.tokenizer_sha256)")
    for prefix, told in corpora.items():
        if told["sha256"] not in _own_sums(path, facts, told):
            what = "was made with another tokenizer than data.tokenizer"
            attempt = "tprimat data tokenize again, or that tokenizer"
            yield Problem(prefix, what, f"sha256 {told['sha256']}", here, attempt)
        elif kind_by_name(path) == "tiktoken" and (found := _sizes(told)) != (vocab_size, TIKTOKEN_SPECIAL):
            what = "was made with other ids of this vocabulary than stacks have by default"
            sizes = "vocab_size={}, tiktoken_num_special_tokens={}"
            attempt = f"model.vocab_size={found[0]}, or tprimat data tokenize again with these"
            yield Problem(prefix, what, sizes.format(*found), sizes.format(vocab_size, TIKTOKEN_SPECIAL), attempt)


def _own_sums(path: str, facts: Mapping[str, Any], told: Mapping[str, Any]) -> set[str]:
    """Return the sums by which a corpus' manifest may mean this tokenizer: that of its files, or of a folder that of
    its tokenizer.json alone, where the end of text is the same."""
    sums = {facts["tokenizer_sha256"]}
    if Path(path).is_dir() and told.get("eod_id") in (None, facts["tokenizer_eod"]):
        sums.add(sha256_of(Path(path) / "tokenizer.json"))
    return sums


def _sizes(told: Mapping[str, Any]) -> tuple[Any, Any]:
    return told.get("vocab_size"), (told.get("options") or {}).get("tiktoken_num_special_tokens")


def manifests(prefixes: list[str]) -> dict[str, Mapping[str, Any]]:
    """Return what the manifest (PREFIX.json) of each corpus that has one says of its tokenizer."""
    known: dict[str, Mapping[str, Any]] = {}
    for prefix in prefixes:
        if Path(f"{prefix}.json").is_file():
            made = _json(Path(f"{prefix}.json")).get("tokenizer")
            if isinstance(made, dict) and isinstance(made.get("sha256"), str):
                known[prefix] = made
    return known
