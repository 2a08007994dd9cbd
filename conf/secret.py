"""Secrets: variables that hold one by their name, and texts that are one by their shape. One list for all that is
written or shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
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
_NO_SECRET = r"(?!(?i:none|null|true|false)\b|\[secret\]|\$\{?[A-Z_]|<[^>\s]{0,80}>)"
_QUOTE = r"(?P<quote>\\{0,2}[\"'])?"
_IN_QUOTES = r"(?:(?!(?P=quote))[^\n]){%s,400}"
# A mark ends a word only where something else begins behind it: `, next=`, `;`, `)` at the end.
_BARE = r"(?:[^\s\"',;&)\]}>\\]|[,;&)\]}>\\](?!\s|$|[\"',;)\]}]|n\b|[\w.-]{1,40}[\"']?[=:])){%s,400}"
# Behind a colon prose may go on: a value is in quotation marks, has a digit, or is the last word.
_COLON = r":\s{0,3}(?=\\{0,2}[\"']|\S{0,100}\d|[^\s,;]{1,400}(?:[,;]|[ \t]*(?:\n|$)))"
_IS = rf"\\{{0,2}}[\"']?(?:\s{{0,3}}(?:=\s{{0,3}}|{_COLON})|\s{{1,3}}\.{{2,80}}\s{{1,3}})"
_NEXT = rf"(?:[ =]|\\{{0,2}}[\"'], ?){_QUOTE}"  # word of a command, also of one that is written as a list
_WORDS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "_authtoken",
    "privatekey",
    "private_key",
    "private-key",
    "hftoken",
    "hf_token",
    "hf-token",
)
_PAIRS = {"key": ("api", "access"), "token": ("auth", "access", "refresh", "session", "security", "bearer")}
_HINTS = (*_WORDS, *(f"{a}{between}{b}" for b, firsts in _PAIRS.items() for a in firsts for between in ("", "_", "-")))
_NAMED = (
    r"(?:pass(?:word|wd|phrase)|secret(?:_?access)?(?:_?key)?|_authtoken|(?:private|api|access)[_-]?key"
    r"|(?:auth|access|refresh|session|security|hf|bearer)[_-]?token)"
)
_VARIABLE = (  # by a word of SECRET; but KEY=VALUE stands in our own messages
    r"(?<![A-Za-z0-9_])(?<!\$\{)(?=[A-Z0-9_]{0,60}(?:TOKEN(?!IZ|S(?![A-Z]))|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY|PRIVATE"
    r"|DATABASE_URL|(?<![A-Z0-9])(?:PW|PASS)(?![A-Z0-9])|_(?:KEY|PAT|DSN)(?![A-Z0-9])|(?:KEY|PAT|DSN)_))[A-Z][A-Z0-9_]{1,60}"
)


def _value(least: int) -> str:
    """Return the pattern of a value of at least so many characters, behind an opening quotation mark or without."""
    return f"{_NO_SECRET}(?(quote){_IN_QUOTES % least}|{_BARE % least})"


_BEGINS = (  # of tokens that say whose they are, and what follows
    *((name, r"[A-Za-z0-9]{20,300}") for name in ("hf_", "npm_", "gsk_", "r8_", "rpa_")),
    *((name, r"\w{22,300}") for name in ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glsa_", "shpat_")),
    *((name, r"[\w-]{16,300}") for name in ("glpat-", "nvapi-", "dckr_pat_", "GOCSPX-", "ATATT3", "pypi-AgE", "ya29.")),
    *((f"xox{kind}-", r"[\w-]{16,300}") for kind in "abeprs"),
    *((f"{kind}_{of}_", r"[A-Za-z0-9]{16,300}") for kind in ("sk", "rk") for of in ("live", "test")),
    *((name, r"[\w+/=%-]{16,4000}") for name in ("FwoGZXIvYXdz", "IQoJb3JpZ2lu", "AQoDYXdz", "xapp-", "hvs.", "hvb.")),
    ("AIza", r"[\w-]{35}"),
    ("AKIA", r"[0-9A-Z]{16}(?!\w)"),
    ("ASIA", r"[0-9A-Z]{16}(?!\w)"),
    ("dapi", r"[0-9a-f]{32}(?!\w)"),
    ("SG.", r"[\w-]{16,100}\.[\w-]{16,100}"),
    ("sk-", r"(?:[a-z]{2,8}-)?(?:(?=[\w-]{0,40}[0-9])[\w-]{20,300}|\w{40,300})"),  # OpenAI, Anthropic
    ("eyJ", r"[\w-]{10,2000}(?:\.[\w-]{0,4000}){2,4}"),  # JSON web tokens
)
# Of each: words without which no text has it, in small letters, and a group of what stays.
_SHAPES = tuple(
    (words, re.compile(pattern))
    for words, pattern in (
        *(((name.lower(),), rf"(?<![\w-])(){re.escape(name)}{rest}") for name, rest in _BEGINS),
        # user:password@ of a URL, a password with / in it, and a long user alone; no port, tag or digest of an image
        (("://",), r"(://)[^\s/@:\"'\\]{0,100}:[^\s/?#\"'\\]{1,200}(?=@(?!sha\d{3}:))"),
        (
            ("://",),
            r"(://)[^\s/@:\"'\\]{1,100}:(?!\d{1,5}/)[^\s@\"'\\]{1,200}(?=@(?!sha\d{3}:)[\w.-]{1,200}(?::\d{1,5})?(?:[/?\s\"']|$))",
        ),
        (("://",), r"(://)(?=[\w~.-]{0,300}\d)[\w~.-]{20,300}(?=@)"),
        (("hooks.slack.com/",), r"(hooks\.slack\.com/\w{1,20}/)[\w/]{20,200}"),
        (("/api/webhooks/",), r"(/api/webhooks/\d{1,30}/)[\w-]{20,200}"),
        (("bearer ",), r"(?i)(bearer )(?=[\w.~+/=-]{0,400}\d|[\w.~+/=-]{20})[\w.~+/=-]{12,4000}"),
        (("basic ",), r"(?i)(basic )(?=[A-Za-z+/]{0,100}[0-9])[A-Za-z0-9+/]{16,500}={0,2}"),
        (
            ("authorization",),
            rf"(?i)(authorization\\{{0,2}}[\"']?\s{{0,3}}[:=]\s{{0,3}}{_QUOTE}(?:(?:token|digest|apikey) )?)"
            rf"(?!bearer |basic |token |digest |apikey )"
            rf"(?=[^\s\"']{{0,400}}\d){_value(6)}",
        ),
        (("cookie",), r"(?i)(cookie[\"']?: {0,3}[\"']?)(?=[\w.-]{1,100}=)[^\"'\n]{6,4000}"),
        (("accountkey=", "sig="), r"(AccountKey=|[?&]sig=)[\w%+/]{16,200}={0,2}"),  # Azure
        (
            ("key=", "token=", "signature=", "password=", "pwd=", "secret=", "auth="),
            rf"(?i)([?&][\w.-]{{0,40}}(?:key|token|signature|password|pwd|secret|auth)=){_NO_SECRET}[^\s&\"'#]{{6,4000}}",
        ),
        (("private key",), r"(PRIVATE KEY(?: BLOCK)?-----)[^-]{1,8000}"),
        (('"auth"', "'auth'"), r"([\"']auth[\"']: ?[\"'])[A-Za-z0-9+/]{8,2000}={0,2}"),  # Docker's config.json
        (("pwd=",), rf"(?i)((?<!\w)pwd=){_NO_SECRET}(?![/~.]|[a-z]:)[^\s;\"']{{1,200}}"),
        (("password",), r"(?i)(login\s{1,3}\S{1,100}\s{1,3}password\s{1,3})(?!\[secret\])\S{1,200}"),  # .netrc
        ((" -u ", "user"), r"((?:\s-u |--(?:proxy-)?user[ =])[\"']?)[^\s:/\"']{1,64}:(?!\d{1,9}(?!\w))[^\s\"']{1,200}"),
        (("mysql", "mariadb", "sshpass"), r"((?:mysql\w{0,20}|mariadb|sshpass) (?:[^\n]{0,200} )?-p)\S{1,200}"),
        (_HINTS, rf"(?i)({_NAMED}{_IS}{_QUOTE}){_value(4)}"),
        (
            ("token",),
            rf"(?i)((?<![\w-])token{_IS}{_QUOTE})(?![\d.e+-]{{1,40}}(?!\w))(?=[\w.~+/-]{{0,400}}\d)(?=[\w.~+/-]{{0,400}}[a-z]){_value(12)}",
        ),
        (
            ("--",),
            rf"(?i)((?<![\w-])--?[\w-]{{0,40}}(?:password|passwd|passphrase|secret|credentials){_NEXT})(?!-){_value(1)}",
        ),
        (("--",), rf"(?i)((?<![\w-])--[\w-]{{0,40}}(?:key|token){_NEXT})(?!-){_value(8)}"),
        (
            ("token", "secret", "pass", "credential", "key", "private", "database_url", "pat", "pw", "dsn"),
            rf"((?:{_VARIABLE}(?: {{0,2}}= {{0,2}}|\\{{0,2}}[\"'] ?: ?(?=\\{{0,2}}[\"']))"
            rf"|(?=[A-Z0-9]{{1,60}}_){_VARIABLE}{_COLON}){_QUOTE}){_value(1)}",
        ),
        # A line of a key in PEM, whose first line was cut off or stands by itself: no hash has letters of both sizes.
        (
            ("",),
            r"(?<![\w+/=.-])()(?=[a-z0-9+/]{0,40}[A-Z])(?=[A-Z0-9+/]{0,40}[a-z])(?=[A-Za-z+/]{0,60}\d)[A-Za-z0-9+]"
            r"[A-Za-z0-9+/]{63,75}(?![\w+/=.-])",
        ),
    )
)


def for_group(path: str, flags: int) -> int:
    """Open a file that holds lines of a log, as `opener` of open(): a new one is readable by its group at most."""
    return os.open(path, flags, 0o640)


class WithoutShapes(str):
    """A long text that is made of texts without secrets, and is not looked through again."""

    __slots__ = ()


_ANY_WORD = re.compile("|".join(re.escape(word) for words, _ in _SHAPES for word in words if word))
_LEAST_SHAPED = 64  # characters of the one shape that no word announces


def without_shapes(text: str) -> str:
    """Return `text` with all in it that is a secret by its shape blotted out."""
    small = text.lower()
    if len(text) < _LEAST_SHAPED and not _ANY_WORD.search(small):
        return text
    has = small.__contains__
    for words, shape in _SHAPES:
        if any(map(has, words)):
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
        held = [(name, item) for name, item in value.items() if type(item) not in _NO_TEXTS]
        changed = {name: shown for name, item in held if (shown := under(name, item)) is not item}
        if _are_clean(tuple(value)):
            return {**value, **changed} if changed else value
        return {in_texts(name): changed.get(name, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        shown = [in_texts(item) for item in _without_keys(value)]
        return value if all(map(is_, value, shown)) else kind(shown)
    if isinstance(value, Struct):
        parts = [(name, getattr(value, name)) for name in value.__struct_fields__]
        held = [(name, part) for name, part in parts if part and type(part) not in _NO_TEXTS]
        changed = {name: clean for name, part in held if (clean := in_texts(part)) is not part}
        return replace(value, **changed) if changed else value
    return value


def _without_keys(lines: Sequence[Any]) -> Sequence[Any]:
    """Return lines of a text without those of a private key, which stand between its first and its last."""
    if not any(type(line) is str and "PRIVATE KEY" in line for line in lines):
        return lines
    kept, inside = list[Any](), False
    for line in lines:
        ends = type(line) is not str or "-----END" in line
        kept.append(BLOT if inside and not ends and line else line)
        inside = not ends and (inside or ("-----BEGIN" in line and "PRIVATE KEY" in line))
    return kept


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


@lru_cache(maxsize=_CACHED)
def _are_clean(names: tuple[Any, ...]) -> bool:
    """Return whether no key of a mapping is a secret: ten thousand records have their settings under the same keys."""
    return all(in_texts(name) is name for name in names)


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
