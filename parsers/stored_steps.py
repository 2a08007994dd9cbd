"""steps.jsonl read back: a thousand steps in 2 ms, and only when somebody looks at them.

Lines that the schema surely allows, as ours are, are checked while they are read. Any other file is read line by line,
which also tells where and why one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, TypeAlias, overload

import msgspec

from parsers.columns import Columns
from parsers.record import STEP_FIELDS, Step, step_from_json

_KEPT = 4
_LARGEST = 2**63 - 1  # as parsers/storage.py; reading line by line says what is wrong with it
_UNTOLD = Step(step=0, line=1, iteration=None)

Read = Callable[[Path], Sequence[Step]]


class StoredSteps(Sequence[Step]):
    """The steps in a file, which `read` reads when they are first looked at; only those of the last few files are kept.
    A file that cannot be used is told then, by an InputError."""

    def __init__(self, path: Path, read: Read) -> None:
        self._path, self._read = path, read

    def __len__(self) -> int:
        return len(self._steps())

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps())

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | Sequence[Step]:
        return self._steps()[index]

    def read(self) -> Sequence[Step]:
        """All of them, kept by nobody else."""
        return self._read(self._path)

    def _steps(self) -> Sequence[Step]:
        stat = self._path.stat()
        return _kept(self._path, self._read, (stat.st_mtime_ns, stat.st_size, stat.st_ino))


@lru_cache(maxsize=_KEPT)
def _kept(path: Path, read: Read, _: tuple[int, ...]) -> Sequence[Step]:
    return read(path)


Decoder: TypeAlias = "msgspec.json.Decoder[Any]"


def decoder(schema: Mapping[str, Any]) -> Decoder:
    """Of lines that `schema` (of one step) surely allows; it raises at any other. Only the words that our schema has
    for a step are known."""
    rules = schema["properties"]
    fields: list[Any] = [(name, _type(rules[name])) for name in schema["required"]]
    fields += [(name, _type(rules[name]), getattr(_UNTOLD, name)) for name in STEP_FIELDS if name not in dict(fields)]
    return msgspec.json.Decoder(msgspec.defstruct("Row", fields, gc=False))


def _type(rule: Mapping[str, Any]) -> Any:
    whole: Any = Annotated[int, msgspec.Meta(ge=rule.get("minimum", -_LARGEST), le=_LARGEST)]
    number = whole | float
    texts, numbers = tuple[str, ...], Mapping[str, number]  # type: ignore[valid-type]
    python = dict(integer=whole, number=number, string=str, null=None, array=texts, object=numbers)
    allowed = [rule["type"]] if isinstance(rule["type"], str) else rule["type"]
    return reduce(or_, (python[name] for name in allowed))


def at_once(text: bytes, lines: Decoder) -> Columns | None:
    """The steps in `text`; None where `lines` refuses a line, or a line is not one object."""
    try:
        rows = lines.decode_lines(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return Columns(rows) if len(rows) == text.rstrip().count(b"\n") + 1 else None


def by_line(text: str, check: Callable[[str, int], dict[str, Any]]) -> Iterator[Step]:
    """One after another. check: an object of a line and its number, or an InputError."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line:
            yield step_from_json(check(line, number))
