"""Read what a tokenizer of Hugging Face's says of itself from its folder, without its library: size and special tokens,
which every stack takes from it. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rank_program import Problem, Refused
from tokenizer_files import sha256_of

SPECIAL = ("eos_token", "bos_token", "pad_token")


def read(path: str) -> dict[str, Any]:
    """Return tokenizer_{sha256, vocab_size, eod, bos, pad} of the folder at `path`; None: it has no such token.
    Raises Refused: it has no tokenizer.json and tokenizer_config.json, or one is damaged."""
    folder = Path(path)
    if not folder.is_dir():
        what = "is no folder of a tokenizer of Hugging Face's, the one form that every stack here opens alike"
        allowed = "a folder that save_pretrained of transformers has written"
        attempt = "the folder of a tokenizer.json, of an id its download (hf download ID --local-dir FOLDER); without"
        attempt += " data.tokenizer every stack reads the ids, of a tokenizer of any form"
        raise Refused.of(path, what, "a file" if folder.exists() else "nothing is here", allowed, attempt)
    tokenizer, config = (_json(folder / name) for name in ("tokenizer.json", "tokenizer_config.json"))
    ids = _ids(tokenizer)
    special = {name: ids.get(_text(config.get(name))) for name in SPECIAL}
    return {
        "tokenizer_sha256": sha256_of(folder),
        "tokenizer_vocab_size": max(ids.values(), default=-1) + 1,
        "tokenizer_eod": special["eos_token"],
        "tokenizer_bos": special["bos_token"],
        "tokenizer_pad": special["pad_token"],
    }


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        allowed = "a folder that save_pretrained of transformers has written"
        raise Refused.of(str(path), "cannot be read as a tokenizer's", str(error), allowed) from error
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


def problems(path: str, vocab_size: int, sha256: str | None, corpora: Mapping[str, str]) -> Iterator[Problem]:
    """Yield why the tokenizer at `path` cannot be a run's. sha256: the one that is requested, if any. corpora: the
    sha256 in the manifest of each corpus that has one, by its prefix."""
    facts = read(path)
    if (size := facts["tokenizer_vocab_size"]) > vocab_size:
        what = "has more tokens than the model"
        yield Problem(path, what, f"{size:,}", f"at most {vocab_size:,}", "the model that it is made for")
    if facts["tokenizer_eod"] is None:
        what = "has no end of text, which Megatron's datasets need as the end of a document"
        yield Problem(path, what, "no eos_token in its vocabulary", hint="eos_token in tokenizer_config.json")
    here = facts["tokenizer_sha256"]
    if sha256 not in (None, here):
        what = "is another tokenizer than the requested one"
        yield Problem(path, what, f"sha256 {here}", str(sha256), "copy its folder again (data.tokenizer_sha256)")
    for prefix, made_with in corpora.items():
        if made_with != here:
            what = "was made with another tokenizer than data.tokenizer"
            yield Problem(prefix, what, f"sha256 {made_with}", here, "tprimat data tokenize again, or that tokenizer")


def manifests(prefixes: list[str]) -> dict[str, str]:
    """Return the tokenizer's sha256 in the manifest (PREFIX.json) of each corpus that has one."""
    known = {}
    for prefix in prefixes:
        if Path(f"{prefix}.json").is_file():
            made = _json(Path(f"{prefix}.json")).get("tokenizer")
            if isinstance(made, dict) and isinstance(made.get("sha256"), str):
                known[prefix] = made["sha256"]
    return known
