"""data=: its short form for a corpus of the user's own (data=/x/y), and which name, path and split fit together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from conf.errors import Problem
from conf.schema import Data

SPLITS = {"synthetic": "100,0,0", "prefix": "100,0,0", "mock": "1,1,1"}


def spelled_out(overrides: Iterable[str]) -> list[str]:
    """Return `overrides` with `data=/x/y` as what it stands for: `data=prefix` and `data.path=/x/y`."""
    pairs = ((text, text.lstrip("+").partition("=")) for text in overrides)
    return [part for text, (key, _, value) in pairs for part in _parts(text, key, value)]


def _parts(text: str, key: str, value: str) -> tuple[str, ...]:
    return ("data=prefix", f"data.path={value}") if key == "data" and "/" in value else (text,)


def data_problems(data: Data) -> Iterator[Problem]:
    """Yield what in `data` contradicts itself."""
    if data.name == "mock" and data.path is not None:
        yield Problem("data.path", "data=mock reads no files", data.path, "null")
    if data.name != "mock" and not data.path:
        hint = "data=/path/to/corpus, without .bin and .idx"
        yield Problem("data.path", f"data={data.name} needs a path", "null", hint=hint)
    if data.path and data.path.endswith((".bin", ".idx")):
        what = "a corpus is named by the path that its two files share"
        yield Problem("data.path", what, data.path, "a path without .bin and .idx", data.path[:-4])
    if data.split != SPLITS[data.name]:
        why = (
            "Megatron's mock data knows no other"
            if data.name == "mock"
            else "another split is another order of samples"
        )
        yield Problem("data.split", why, data.split, SPLITS[data.name])


def settled(data: Data) -> Data:
    """Return `data` with the path of the user's corpus from the root: a run happens in a directory of its own."""
    return replace(data, path=os.path.abspath(data.path)) if data.name == "prefix" and data.path else data  # noqa: PTH100
