"""Secrets: variables that hold one by their name, and texts that are one by their shape. One list for all that is
written or shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from operator import is_
from types import NoneType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

SECRET = re.compile(
    r"(?!^TOKENS)TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|PRIVATE|DATABASE_URL"
    r"|(?:^|_)(?:KEY|PAT|PW|PASS|DSN)(?:_|$)",
    re.IGNORECASE,
)
"""Names of variables, keys and options that hold one."""
BLOT = "[secret]"
_NO_TEXTS = frozenset((int, float, bool, NoneType))
_MANY, _CACHED = 1 << 14, 400  # texts that are remembered, each of fewer characters
_LEAST = 8  # characters of a variable's value that is no everyday word
_NAMED = (
    r"(?:pass(?:word|wd|phrase)|secret(?:_?access)?(?:_?key)?|api[_-]?key|access[_-]?key"
    r"|(?:auth|access|hf|bearer)[_-]?token)"
)
_HINTS = (
    *("password", "passwd", "passphrase", "secret"),
    *(f"{what}{between}key" for what in ("api", "access") for between in ("", "_", "-")),
    *(f"{what}{between}token" for what in ("auth", "access", "bearer") for between in ("", "_", "-")),
    *("hftoken", "hf_token", "hf-token"),
)
_IS = r"[\"']?(?:\s{0,3}[=:]\s{0,3}|\s{1,3}\.{2,80}\s{1,3})[\"']?"
_VALUE = r"(?!none\b|null\b|true\b|false\b|\[secret\])[^\s\"'\\\\,;&<>)\]}]{6,400}"
# Of each: words without which no text has it, and a group of what stays.
_SHAPES = tuple(
    (words, re.compile(pattern))
    for words, pattern in (
        (("://",), r"(://)[^\s/@:\"'\\]{0,100}:[^\s/@\"'\\]{1,200}(?=@)"),  # user:password@ of a URL
        (("earer ",), r"(earer )[\w.~+/=-]{12,2000}"),
        (("asic ",), r"(asic )(?=[A-Za-z+/]{0,100}[0-9])[A-Za-z0-9+/]{16,500}={0,2}"),
        (("AKIA", "ASIA"), r"(?<![\w-])()A[KS]IA[0-9A-Z]{16}(?!\w)"),  # AWS
        (("AIza",), r"(?<![\w-])()AIza[\w-]{35}"),  # Google
        (("hf_",), r"(?<![\w-])()hf_[A-Za-z0-9]{20,300}"),
        (("github_pat_", *(f"gh{kind}_" for kind in "pousr")), r"(?<![\w-])()(?:gh[pousr]|github_pat)_\w{22,300}"),
        (("glpat-", "nvapi-", "xox"), r"(?<![\w-])()(?:glpat-|nvapi-|xox[abeprs]-)[\w-]{16,300}"),
        (("sk-",), r"(?<![\w-])()sk-(?:[a-z]{2,8}-)?(?=[\w-]{0,40}[0-9])[\w-]{20,300}"),  # OpenAI, Anthropic
        (("eyJ",), r"(?<![\w-])()eyJ[\w-]{10,2000}\.[\w-]{10,4000}\.[\w-]{5,1000}"),  # JSON web tokens
        (("AccountKey=", "sig="), r"(AccountKey=|[?&]sig=)[\w%+/]{16,200}={0,2}"),  # Azure
        (("PRIVATE KEY-----",), r"(PRIVATE KEY-----)[^-]{1,8000}"),
        (
            _HINTS,
            rf"(?i)({_NAMED}{_IS}){_VALUE}",
        ),
        (("--",), r"(--[\w-]{0,40}(?:key|token|password|secret)[ =])(?!\$)[^\s\"'\\-][^\s\"'\\]{7,400}"),
    )
)


def for_group(path: str, flags: int) -> int:
    """Open a file that holds lines of a log, as `opener` of open(): a new one is readable by its group at most."""
    return os.open(path, flags, 0o640)


class WithoutShapes(str):
    """A long text that is made of texts without secrets, and is not looked through again."""

    __slots__ = ()


def without_shapes(text: str) -> str:
    """Return `text` with all in it that is a secret by its shape blotted out."""
    lowered = text.lower()
    for words, shape in _SHAPES:
        if any(word in (lowered if words is _HINTS else text) for word in words):
            text = shape.sub(rf"\1{BLOT}", text)
    return text


def in_texts(value: Any) -> Any:
    """Return data of any depth with `without_shapes` of each text in it, keys of mappings too, and without the values
    whose keys say that they are secret. What has none is returned itself."""
    kind = type(value)
    if kind in _NO_TEXTS:
        return value
    if kind is str:
        clean = _clean(value) if len(value) < _CACHED else without_shapes(value)
        return value if clean == value else clean  # itself, not an equal one of before
    if isinstance(value, Mapping):
        items = [(name, item, in_texts(name), under(name, item)) for name, item in value.items()]
        same = all(name is clean and item is shown for name, item, clean, shown in items)
        return value if same else {clean: shown for _, _, clean, shown in items}
    if isinstance(value, list | tuple):
        shown = [in_texts(item) for item in value]
        return value if all(map(is_, value, shown)) else kind(shown)
    if isinstance(value, Struct):
        parts = {name: getattr(value, name) for name in value.__struct_fields__}
        changed = {name: clean for name, part in parts.items() if (clean := in_texts(part)) is not part}
        return replace(value, **changed) if changed else value
    return value


def under(key: Any, value: Any) -> Any:
    """Return what a mapping has under `key` without secrets. Only a variable in capitals is one by its name alone: a
    framework has settings such as moe_token_dispatcher_type."""
    if type(value) is not str or type(key) is not str or len(value) >= _CACHED:
        return in_texts(value)
    entry = _entry(key, value)
    return value if entry == value else entry


@lru_cache(maxsize=_MANY)
def _entry(key: str, value: str) -> str:
    own = _clean(value)
    named = (key.isupper() and SECRET.search(key)) or without_shapes(f"{key}={value}") != f"{key}={own}"
    return BLOT if value and named else own


@lru_cache(maxsize=_MANY)
def _clean(text: str) -> str:
    return without_shapes(text)


def blotted(text: str) -> str:
    """Return `text` without what is a secret by its shape, or the value of a variable that is one by its name."""
    shaped = text if isinstance(text, WithoutShapes) else without_shapes(text)
    for value in _values():
        shaped = shaped.replace(value, BLOT)
    return shaped


def _values() -> list[str]:
    """Return values of this shell's secret variables, the longest first."""
    values = (value for name, value in os.environ.items() if SECRET.search(name))
    return sorted({one for one in values if len(one) >= _LEAST and not one.isalpha()}, key=len, reverse=True)
