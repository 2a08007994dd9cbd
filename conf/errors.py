"""Mistakes of a user: one Problem each, all of them at once, shown without a traceback."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from textwrap import shorten
from typing import Any, TextIO, TypeVar, cast

from conf.plain import harmless, terminal
from conf.secret import blotted

Main = Callable[[Sequence[str] | None], int]
_Object = TypeVar("_Object")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. where: config key, or file:line. what: the broken rule, with its numbers. found /
    allowed: the value and the valid ones, empty where `what` says it all. hint: one thing to try."""

    where: str
    what: str
    found: str = ""
    allowed: str = ""
    hint: str = ""

    def __str__(self) -> str:
        details = {"found": self.found, "allowed": self.allowed, "try": self.hint}
        lines = (f"    {label}: {text}" for label, text in details.items() if text)
        return "\n".join([f"{self.where}: {self.what}", *lines])


class UserError(Exception):
    """Bad input. `problems` is all of it; the command line prints them and exits with `exit_code`."""

    exit_code = 2

    def __init__(self, *problems: Problem) -> None:
        self.problems: tuple[Problem, ...] = problems
        super().__init__("\n".join(str(p) for p in problems))


class Answer(Exception):
    """The answer to --help or --version: printed, and nothing else is done."""


class ConfigError(UserError, ValueError):
    """The requested experiment is not valid, or cannot run here."""


class InputError(UserError, ValueError):
    """A file or directory that was given cannot be used."""


@contextmanager
def blamed(where: str, what: str, hint: str = "") -> Iterator[None]:
    """Turn any error inside into a ConfigError of `where`, a file that somebody adds to, with the error's own words."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        from traceback import extract_tb

        lines = [at.lineno for at in extract_tb(error.__traceback__) if at.filename.endswith(where)]
        where = f"{where}:{lines[-1]}" if lines else where
        raise ConfigError(Problem(where, what, f"{type(error).__name__}: {error}", hint=hint)) from error


@contextmanager
def made_by(command: str, path: object) -> Iterator[None]:
    """Turn any error inside into the ConfigError that the file `path` of a user is not what our `command` wrote."""
    try:
        yield
    except Exception as error:
        first = error.problems[0] if isinstance(error, UserError) else None
        found = shorten(f"{first.what}: {first.found}" if first else str(error), 150, placeholder=" …")
        what = f"is not what `{command}` writes, or a part of it"
        raise ConfigError(Problem(str(path), what, found, f"a whole file of `{command}`", "write it again")) from error


@contextmanager
def writing(path: object, hint: str = "", full: str = "") -> Iterator[None]:
    """Turn an OSError inside into the InputError that `path` cannot be written. full: the hint of a disk that is."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        hint = full or hint if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else hint
        raise InputError(Problem(str(path), "cannot be written", why, hint=hint)) from error


def object_of(package: str, name: str, attribute: str, kind: type[_Object]) -> _Object:
    """Return `attribute` of a module that anybody may add. ConfigError: its file, and why it has no such `kind`."""
    where = "/".join([*package.split(".")[-2:], f"{name}.py"])
    with blamed(where, "cannot be imported", "CONTRIBUTING.md, Add something"):
        made = getattr(import_module(f"{package}.{name}"), attribute, None)
    if not isinstance(made, kind):
        raise ConfigError(Problem(where, f"has no {attribute}", hint=f"{attribute} = …, a {kind.__name__}"))
    if (called := getattr(made, "name", name)) != name:
        raise ConfigError(Problem(where, "`name` differs from the name of the file", str(called), name))
    return made


def closest(name: str, choices: Iterable[str]) -> str:
    """Return a `try:` text naming the nearest of `choices`, or an empty string."""
    known = list(choices)
    match = get_close_matches(name, known, n=1) or [one for one in known if len(name) > 2 and one.startswith(name)]
    return f"did you mean {match[0]}?" if match else ""


def listed(choices: Sequence[object]) -> str:
    """Return `choices` as one readable line."""
    return ", ".join(str(c) for c in choices)


def some(texts: Sequence[str], most: int = 6, between: str = ", ") -> str:
    """Return the first `most` texts, and how many more there are; all of them where it is one more."""
    if (more := len(texts) - most) <= 1:
        return between.join(texts)
    return f"{between.join(texts[:most])}{between.rstrip(', ')} and {more:,} more"


def command(main: Main) -> Main:
    """Return `main(argv)` so that it prints user errors without a traceback and returns their exit code. A reader that
    goes away (`| head -1`) is no error, and changes no exit code: a gate whose table nobody reads to its end still
    fails. A full disk behind stdout is one. Ctrl-C ends with 130, as in a shell. Nothing that it prints steers the
    terminal, and secrets are blotted out."""

    @wraps(main)
    def guarded(argv: Sequence[str] | None = None) -> int:
        with redirect_stderr(cast(TextIO, _Harmless(sys.stderr))):
            try:
                return printed(argv)
            except UserError as error:
                print(error, file=sys.stderr)
                return error.exit_code
            except KeyboardInterrupt:
                return 128 + signal.SIGINT

    def printed(argv: Sequence[str] | None) -> int:
        with redirect_stdout(cast(TextIO, _Stdout(sys.stdout))):
            try:
                code = main(argv)
            except Answer as answer:
                print(answer)
                code = 0
            sys.stdout.flush()
        return code

    return guarded


class _Harmless:
    """A stream whose text cannot steer a terminal and holds no secret."""

    def __init__(self, stream: TextIO) -> None:
        self.behind = terminal(stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    def write(self, text: str) -> int:
        self.behind.write(harmless(blotted(text)))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))


class _Stdout(_Harmless):
    """One that goes on into nothing once it cannot be written to."""

    def write(self, text: str) -> int:
        with self._goes_on():
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._goes_on():
            self.behind.flush()

    @contextmanager
    def _goes_on(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # Python flushes once more at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.behind.fileno())
            if not isinstance(error, BrokenPipeError):
                raise InputError(Problem("standard output", "cannot be written", str(error))) from error
