"""tprimat data recipes: public corpora, how each is fetched and tokenized, and what is published of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conf.arguments import Command
from conf.compose import CONF
from conf.errors import InputError, Problem, closest, listed
from conf.vocabulary import read_yaml

RECIPES = Command(
    name="data recipes",
    summary="Public corpora: how each is fetched and tokenized, and what is published of it. Nothing is downloaded.",
    words="[NAME]",
    words_help="one of them (default: a list)",
    examples=("", "c4"),
)
_TABLE = CONF / "tables" / "corpora.yaml"
_UNKNOWN = "unknown"


def recipes(argv: Sequence[str]) -> int:
    """Print the recipes, or one. 0: printed; 2: no such recipe."""
    arguments = RECIPES.parse(argv)
    known: dict[str, Mapping[str, Any]] = read_yaml(_TABLE)
    if len(arguments.words) > 1:
        raise InputError(Problem("data recipes", "takes one name", " ".join(arguments.words)))
    chosen = arguments.words[0] if arguments.words else None
    if chosen is not None and chosen not in known:
        raise InputError(Problem(chosen, "no such corpus", allowed=listed([*known]), hint=closest(chosen, known)))
    if arguments.switches:
        print(json.dumps(known if chosen is None else known[chosen], indent=2))
    elif chosen is None:
        print("\n".join(_list(known)))
    else:
        print("\n".join(_steps(chosen, known[chosen])))
    return 0


def _list(known: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield f"{'corpus':<16}{'documents':>16}{'tokens':>22}{'to download':>24}  licence"
    for name, one in known.items():
        counts = (_number(one["documents"]), _number(one["tokens"]), _number(one["download_bytes"], " bytes"))
        yield f"{name:<16}{counts[0]:>16}{counts[1]:>22}" + f"{counts[2]:>24}  {one['licence']}"


def _steps(name: str, one: Mapping[str, Any]) -> Iterator[str]:
    of = f" ({one['tokens_of']})" if one["tokens_of"] else ""
    yield f"documents     {_number(one['documents'])}"
    yield f"tokens        {_number(one['tokens'])}{of}"
    yield f"to download   {_number(one['download_bytes'], ' bytes')}, sha256 {one['sha256'] or _UNKNOWN}"
    yield f"about         {one['about']}; licence {one['licence']}"
    yield f"source        {one['source']}"
    yield ""
    yield from (f"  {command}" for command in one["get"])
    words = " ".join([one["inputs"], *one["arguments"], "tokenizer=TOKENIZER"])
    yield f"  tprimat data tokenize {words} -o corpora/{name}"
    yield f"  tprimat data inspect corpora/{name}"


def _number(value: int | None, unit: str = "") -> str:
    return _UNKNOWN if value is None else f"{value:,}{unit}"
