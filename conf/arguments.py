"""Command lines: words, KEY=VALUE as in launch.py, and a few switches. One grammar for every command. A number is
written as people write it: `1T`, `15e12`, `2%`, `3.10 USD/gpu-hour`. All that is wrong is reported at once."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, get_args, get_origin

from conf.compose import CONF, choices
from conf.errors import Answer, InputError, Problem, UserError, closest, listed
from conf.freeze import MOST, field_types, number, required
from conf.schema import Request
from conf.secret import SECRET
from conf.version import VERSION
from conf.vocabulary import read_yaml

OUTPUT = "-o"
JSON: Mapping[str, str] = {"--json": "print JSON"}
_STANDARD: Mapping[str, str] = {"--help": "print this", "--version": "print the version"}
_WIDTH, _COLUMN = 118, 40  # of a help, and of its left column
_FORMS = ("--json", "--csv", "--markdown")
_PAIR = re.compile(r"[A-Za-z_][\w.]{0,120}=")


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a command. name: `tokens`, or `accept.*`, where the user names each entry behind the dot. read: returns
    the value of a text; raises InputError or, with the reason, ValueError. choices: what completion offers (of a
    `KEY.*` in place of the star), and where the key has no `read` of its own, the allowed values."""

    name: str
    help: str
    read: Callable[[str], Any] = str
    default: Any = None
    example: str = ""
    choices: Callable[[], Collection[str]] | None = None

    @property
    def shown(self) -> str:
        """Return an example as it is typed."""
        return self.example if self.name.endswith(".*") else f"{self.name}={self.example}"


@dataclass(frozen=True, slots=True)
class Arguments:
    """A parsed command line. words: neither KEY=VALUE nor a switch. others: KEY=VALUE that are no keys of the command.
    rest: both, in the order typed. values: of every key, its default where it was not typed; that of a `KEY.*` is a
    mapping of what was typed in place of the star."""

    words: tuple[str, ...]
    others: tuple[str, ...]
    rest: tuple[str, ...]
    values: Mapping[str, Any]
    typed: frozenset[str]
    switches: frozenset[str]
    output: Path | None

    def __getitem__(self, key: str) -> Any:
        return self.values[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command and its arguments. words: their name in the help, empty where it takes none. others: which KEY=VALUE it
    takes beside `keys`, empty: none; known: returns those that completion offers. old: flags of earlier versions, and
    what replaces them. more: the end of the help. output_word: DIR, which is made, or FILE, of a folder that is."""

    name: str
    summary: str
    words: str = ""
    words_help: str = ""
    keys: tuple[Key, ...] = ()
    others: str = ""
    switches: Mapping[str, str] = field(default_factory=lambda: JSON)
    output: str = ""
    output_word: str = "DIR"
    examples: tuple[str, ...] = ()
    more: str = ""
    old: Mapping[str, str] = field(default_factory=dict)
    known: Callable[[], Iterable[Key]] = tuple

    def parse(self, argv: Sequence[str] | None = None) -> Arguments:
        """Read `argv` (sys.argv without the program by default). InputError: all that is wrong with it. Answer: the
        text of --help or --version."""
        arguments = list(sys.argv[1:] if argv is None else argv)
        if {"-h", "--help"} & {*arguments}:
            raise Answer(self.help())
        if "--version" in arguments:
            raise Answer(f"tensorprimat {VERSION}")
        return _Parser(self).parse(arguments)

    @property
    def names(self) -> list[str]:
        """Return the names of its keys."""
        return [key.name.removesuffix(".*") for key in self.keys]

    def help(self) -> str:
        """Return the help, under the name that was typed."""
        pairs = "[KEY=VALUE]…" if (self.keys or self.others) and "=" not in self.words else ""
        usage = [program(self.name), self.words, pairs, "[switches]"]
        rows = [(self.words, self.words_help)] if self.words_help else []
        rows += [("KEY=VALUE", self.others)] if self.others and "=" not in self.words else []
        rows += [(key.shown, key.help) for key in self.keys]
        rows += [(f"{OUTPUT} {self.output_word}", self.output)] if self.output else []
        rows += [*self.switches.items(), *_STANDARD.items()]
        lines = [f"usage: {' '.join(filter(None, usage))}", "", self.summary, "", *(_row(*row) for row in rows)]
        lines += ["", "examples:"] if self.examples else []
        lines += [f"  {program(self.name)} {text}" for text in self.examples]
        return "\n".join([*lines, *(["", self.more] if self.more else [])])


def _row(name: str, text: str) -> str:
    head, indent = f"  {name} ", " " * _COLUMN
    if len(head) > _COLUMN:
        return f"{head.rstrip()}\n{fill(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)}"
    return fill(text, _WIDTH, initial_indent=head.ljust(_COLUMN), subsequent_indent=indent) or head.rstrip()


def program(name: str) -> str:
    """Return the words that start the command `name` here: `tprimat …` where that was typed, else `python -m …`."""
    typed = _TYPED.match(sys.argv[0])
    if typed or __name__.startswith("tensorprimat."):  # installed: hatch_build.py
        return f"{typed[1] if typed else 'tprimat'} {name}"
    first, _, rest = name.partition(" ")
    return " ".join(filter(None, (_IN_A_CHECKOUT.get(first) or f"python -m {first}", rest)))


_TYPED = re.compile(r"(tprimat|python -m tensorprimat) ")
_OTHERS = ("matrix", "check", "data", "models", "gpus", "prices", "frameworks", "recipes", "demo", "completion")
_IN_A_CHECKOUT = {
    "parse": "python -m parsers",
    "launch": "python launch.py",
    **{name: f"python -m tensorprimat {name}" for name in _OTHERS},
}


class _Parser:
    """Parse one command line, and collect all problems with it."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.problems: list[Problem] = []
        self.keys = {key.name: key for key in command.keys}
        self.allowed = listed([*self.keys, *([command.others] if command.others else [])])

    def parse(self, arguments: Sequence[str]) -> Arguments:
        texts, switches, output = self._without_switches(arguments)
        values: dict[str, Any] = {k.name: {} if k.name.endswith(".*") else k.default for k in self.command.keys}
        typed, rest = set[str](), list[str]()
        for text in texts:
            name, _, value = text.partition("=")
            key, entry = self._key(name) if is_pair(text) else (None, "")
            if key is None:
                rest.append(text)
            elif name in typed:
                self.problems.append(Problem(name, "is given twice", hint="once; several values with commas"))
            elif (known := self._value(key, name, value)) is not None:
                typed.add(name)
                (values[key.name] if entry else values)[entry or key.name] = known
        others = tuple(text for text in rest if is_pair(text))
        words = tuple(text for text in rest if text not in others)
        self.problems += map(self._unknown, self._misspelled(others) if self.command.others else others)
        if not self.command.words:
            what = "is not KEY=VALUE" if self.allowed else f"{self.command.name} takes no words"
            self.problems += [Problem(text, what, allowed=self.allowed) for text in words]
        if self.problems:
            raise InputError(*self.problems)
        return Arguments(words, others, tuple(rest), values, frozenset(typed), frozenset(switches), output)

    def _misspelled(self, others: Iterable[str]) -> Iterator[str]:
        """Yield those that nobody knows and that are near to a key of the command."""
        near = [text for text in others if "." not in (name := text.partition("=")[0]) and closest(name, self.keys)]
        known = {key.name.partition(".")[0] for key in self.command.known()} if near else set()
        yield from (text for text in near if text.partition("=")[0] not in known)

    def _without_switches(self, arguments: Sequence[str]) -> tuple[list[str], set[str], Path | None]:
        texts, switches, output = [], set(), None
        left = iter(arguments)
        for text in left:
            if self.command.output and text.startswith(OUTPUT):
                target, word = text.removeprefix(OUTPUT) or next(left, ""), self.command.output_word
                output = Path(target)
                if not target:
                    what = "needs a directory" if word == "DIR" else f"needs a {word.lower()}"
                    self.problems.append(Problem(OUTPUT, what, hint=f"{OUTPUT} out"))
                elif word == "FILE" and not output.parent.is_dir():
                    hint = f"mkdir -p {output.parent}, or another file"
                    self.problems.append(Problem(OUTPUT, "is a file in a folder that is not there", target, hint=hint))
            elif text in self.command.switches:
                switches.add(text)
            elif text.startswith("-") and text != "-":
                self.problems.append(self._unknown_switch(text, arguments))
            else:
                texts.append(text)
        if len(forms := [name for name in _FORMS if name in switches]) > 1:
            self.problems.append(Problem(listed(forms), "exclude each other"))
        return texts, switches, output

    def _key(self, name: str) -> tuple[Key | None, str]:
        """Return the key that `name` is one of, and for a `KEY.*` what is typed in place of the star."""
        if name in self.keys and not name.endswith("*"):
            return self.keys[name], ""
        dots = [at for at, letter in enumerate(name) if letter == "."]
        stars = ((self.keys.get(f"{name[:at]}.*"), name[at + 1 :]) for at in reversed(dots))
        return next((pair for pair in stars if pair[0] and all(pair[1].split("."))), (None, ""))

    def _value(self, key: Key, name: str, text: str) -> Any:
        try:
            if key.choices and key.read is str and not key.name.endswith("*") and text not in key.choices():
                near = closest(text, key.choices())
                raise InputError(Problem(name, "no such value", text, listed([*key.choices()]), near))
            return key.read(text)
        except UserError as error:
            self.problems += error.problems
        except ValueError as error:
            self.problems.append(Problem(name, "cannot be used", text, str(error), key.shown))
        return None

    def _unknown(self, text: str) -> Problem:
        name, _, value = text.partition("=")
        value = "[secret]" if SECRET.search(name) else value
        return Problem(name, "no such key", value, self.allowed, closest(name, self.keys))

    def _unknown_switch(self, text: str, arguments: Sequence[str]) -> Problem:
        flag, _, value = text.partition("=")
        value = value or next(iter(arguments[arguments.index(text) + 1 :]), "")
        name = flag.strip("-").replace("-", "_")
        known = [*self.command.switches, *_STANDARD, *([OUTPUT] if self.command.output else [])]
        new = self.command.old.get(flag) or (f"{name}={value or self.keys[name].example}" if name in self.keys else "")
        what = "is written as KEY=VALUE now" if new else "no such switch"
        return Problem(flag, what, allowed="" if new else listed(known), hint=new or closest(flag, known))


def is_pair(word: str) -> bool:
    """Return whether `word` is KEY=VALUE, and no path that is there."""
    looks_so = bool(_PAIR.match(word))
    with suppress(OSError):  # too long for a path, as many values are
        return looks_so and not Path(word).exists()
    return looks_so


def between(low: float, high: float, allowed: str, *units: str, exclusive: bool = False) -> Callable[[str], float]:
    """Return a reader of numbers from `low` to `high`, or strictly between them. allowed: the same in words."""

    def read(text: str) -> float:
        try:
            value = number(text, units)
        except ValueError as error:
            raise ValueError(f"{error}; {allowed}") from None
        if not low <= value <= high or (exclusive and value in (low, high)):
            raise ValueError(allowed)
        return value

    return read


share = between(0, 1, "above 0, below 100 %", exclusive=True)


def positive(*units: str) -> Callable[[str], float]:
    """Return a reader of numbers above 0."""
    return between(0, math.inf, "above 0", *units, exclusive=True)


def positive_integer(text: str, most: int = MOST) -> int:
    """Read an integer from 1 to `most`. Raises ValueError."""
    value = number(text)
    if not 1 <= value <= most or value != int(value):
        raise ValueError(f"an integer from 1 to {most}")
    return int(value)


def switch(text: str) -> bool:
    """Read true or false. Raises ValueError."""
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def names(text: str) -> tuple[str, ...]:
    """Read names with commas between them."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def reason(text: str) -> str:
    """Read a text that is not empty. Raises ValueError."""
    if not text.strip():
        raise ValueError("a reason in words")
    return text.strip()


def offered(*names: str) -> tuple[Key, ...]:
    """Return keys of these names for completion; those that are groups of conf/ have their choices."""
    return tuple(Key(name, "", choices=partial(choices, name)) for name in names)


def experiment_keys(kind: Any = Request, prefix: str = "") -> Iterator[Key]:
    """Yield every key of an experiment: the groups of conf/ and, in each and beside them, the keys of the schema."""
    if not prefix:
        defaults = read_yaml(CONF / "config.yaml")["defaults"]
        yield from offered(*(group for chosen in defaults if isinstance(chosen, dict) for group in chosen))
    for name, hint in field_types(kind).items():
        inner = required(hint)
        values = ("true", "false") if inner is bool else get_args(inner) if get_origin(inner) is Literal else ()
        if is_dataclass(inner):
            yield from experiment_keys(inner, f"{prefix}{name}.")
        else:
            star = ".*" if get_origin(inner) is Mapping else ""
            yield Key(f"{prefix}{name}{star}", "", choices=partial(tuple, values))
