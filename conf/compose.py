"""The Hydra edge: override strings → one plain, resolved mapping. No DictConfig leaves this file."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_origin

from conf.errors import ConfigError, Problem, closest, listed
from conf.freeze import field_types, frozen, required, unknown_key
from conf.schema import Request
from conf.secret import SECRET
from conf.vocabulary import leaves, read_yaml

CONF = Path(__file__).parent
AUTO = "auto"
_GLOBAL = re.compile(r"^#\s*@package\s+_global_\s*$", re.MULTILINE)
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
RENAMED = {
    "cluster.primus_path": "framework.checkout",
    "cluster.primus_cache": "framework.cache",
    "cluster.primus_entry": "framework.entry",
}


def choices(group: str) -> tuple[str, ...]:
    """Return the names that `group=` takes, from the files in conf/GROUP."""
    return tuple(sorted(p.stem for p in (CONF / group).glob("*.yaml")))


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """Return conf/config.yaml with `overrides` (Hydra's grammar) as plain containers, interpolations resolved. The same
    overrides give the same object again (composing takes a quarter of a second): do not change it. ConfigError: unknown
    groups, choices and keys (all of them), a bad override, a secret in an interpolation."""
    return _composed(tuple(overrides))


@cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    checked = checked_overrides(overrides)
    words = [text for text in checked if _is_word(text)]
    environment = frozenset(os.environ.items())  # of which interpolations are made
    plain, referred = _resolved(CONF, environment, tuple(text for text in checked if text not in words))
    words = [text for text in words if _is_alone(text, checked, plain, referred)]
    plain, _ = _resolved(CONF, environment, tuple(text for text in checked if text not in words))
    for text in words:
        typed = parsed_override(text)
        plain = _with_value(plain, typed.key_or_group.split("."), typed.value())
    frozen(Request, plain, "")
    return plain


def _is_word(text: str) -> bool:
    """Return whether an override sets one key to a number, a word or null, and nothing is worked out for it."""
    typed = parsed_override(text)
    value, is_choice = typed.value(), (CONF / typed.key_or_group).is_dir()
    return not (is_choice or typed.is_force_add() or isinstance(value, dict | list) or "${" in str(value))


def _is_alone(text: str, checked: Sequence[str], plain: Mapping[str, Any], referred: Container[str]) -> bool:
    """Return whether the key of an override is there and has one value, of which nothing else is made: no interpolation
    refers to it, and no other override sets what is above it."""
    key = parsed_override(text).key_or_group
    at: Any = plain
    for part in key.split("."):
        if not isinstance(at, dict) or part not in at:
            return False
        at = at[part]
    set_too = [name for other in checked if not (CONF / (name := parsed_override(other).key_or_group)).is_dir()]
    is_under = any(key.startswith(f"{name}.") for name in set_too)
    return not (isinstance(at, dict | list) or key.rpartition(".")[2] in referred or is_under)


def _with_value(mapping: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return `mapping` with `value` at `path`; what lies beside it is shared."""
    first, *rest = path
    return {**mapping, first: _with_value(mapping[first], rest, value) if rest else value}


@cache
def _resolved(
    _conf: Path, _environment: frozenset[tuple[str, str]], checked: tuple[str, ...]
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return what Hydra composes, resolved, and the last part of each key that an interpolation in it refers to. All
    points of a sweep share it: do not change it."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    chosen = tuple(text for text in checked if (CONF / text.partition("=")[0]).is_dir())
    with _undisturbed("config"):
        try:
            config = copy.deepcopy(_of_choices(CONF, chosen))
            for text in checked:
                if text not in chosen:
                    typed = parsed_override(text)
                    added = typed.is_force_add()
                    OmegaConf.update(config, typed.key_or_group, typed.value(), merge=True, force_add=added)
        except OmegaConfBaseException:
            config = _by_hydra(checked)  # which says what is wrong
        unresolved = OmegaConf.to_container(config, resolve=False)
        plain = OmegaConf.to_container(config, resolve=True)
    referred = frozenset(name.rpartition(".")[2] for name in _REFERENCE.findall(json.dumps(unresolved, default=str)))
    return plain, referred  # type: ignore[return-value]


@cache
def _of_choices(_conf: Path, chosen: tuple[str, ...]) -> Any:
    """Return what Hydra composes of choices of groups alone, interpolations left, for all points of a sweep: it
    sets values after that, in their order, and so does `_composed`. Do not change it."""
    return _by_hydra(chosen)


def _by_hydra(checked: Sequence[str]) -> Any:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        return hydra_compose("config", overrides=list(checked))


def read_choice(group: str, choice: str) -> Mapping[str, Any]:
    """Return conf/GROUP/CHOICE.yaml as it stands there, interpolations left. ConfigError: there is no such file, or it
    is refused by `file_problems`."""
    if problems := list(choice_problems(group, choice)):
        raise ConfigError(*problems)
    known: Mapping[str, Any] = read_yaml(CONF / group / f"{choice}.yaml")
    return known


def entry(group: str, choice: str) -> dict[str, Any]:
    """Return conf/GROUP/CHOICE.yaml on top of what conf/config.yaml says of GROUP, interpolations resolved.
    ConfigError: as `read_choice`, and what does not fit the schema."""
    from omegaconf import OmegaConf

    read_choice(group, choice)
    where = f"conf/{group}/{choice}.yaml"
    with _undisturbed(where):
        own = OmegaConf.load(CONF / group / f"{choice}.yaml")
        plain = OmegaConf.to_container(OmegaConf.merge(_shared(CONF).get(group) or {}, own), resolve=True)
    frozen(field_types(Request)[group], plain.get(group, plain), where)  # type: ignore[union-attr]
    return plain  # type: ignore[return-value]


@cache
def _shared(conf: Path) -> Any:
    """Return conf/config.yaml as it stands there, interpolations left."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.load(conf / "config.yaml"), resolve=False)


@contextmanager
def _undisturbed(where: str) -> Iterator[None]:
    """Restore the caller's Hydra and OmegaConf, which are global, afterwards. Meanwhile oc.env refuses secrets.
    ConfigError: what they refuse, in the file `where`."""
    import yaml
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.singleton import Singleton
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from omegaconf.resolvers import oc

    def env(key: str, *default: Any) -> Any:
        if SECRET.search(key):
            refused.append(key)
            raise ValueError(key)
        return oc.env(key, *default)

    refused: list[str] = []
    state = Singleton.get_state()
    GlobalHydra.instance().clear()
    OmegaConf.register_new_resolver("oc.env", env, replace=True)
    try:
        yield
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as e:
        if refused:
            what = f"would read the secret {refused[0]} into the config"
            hint = f"add {refused[0]} to cluster.forward_env: it is passed on by name and never read"
            raise ConfigError(Problem(getattr(e, "full_key", None) or where, what, hint=hint)) from e
        raise ConfigError(_hydra_problem(where, _first_lines(e))) from e
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
        Singleton.set_state(state)


def _hydra_problem(where: str, text: str) -> Problem:
    if match := re.search(r"Could not override '([^']+)'", text):  # the key is in the schema, so a part of it is null
        part = match[1].rpartition(".")[0]
        return Problem(match[1], f"{part} is null in what was chosen", hint=f"a choice that has {part}")
    return Problem(where, text, hint="launch --cfg job shows the config")


def checked_overrides(overrides: Sequence[str]) -> list[str]:
    """Return `overrides` with `++` put before keys of open mappings (prices, per_platform), which Hydra wants there.
    ConfigError: with every key and choice that does not exist."""
    problems: list[Problem] = []
    checked = [_checked(override, problems) for override in overrides]
    if problems:
        raise ConfigError(*problems)
    return checked


@cache
def parsed_override(text: str) -> Any:
    """Return Hydra's own object of the override that `text` is, None where it is none."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    with suppress(HydraException):
        return OverridesParser.create().parse_override(text)


def _checked(override: str, problems: list[Problem]) -> str:
    if (parsed := parsed_override(override)) is None:
        hint = "write KEY=VALUE; quote a value with commas, brackets or spaces: 'KEY=\"a,b\"'"
        problems.append(Problem(override, "is not KEY=VALUE", hint=hint))
        return override
    key = parsed.key_or_group
    if not key:
        problems.append(Problem(override, "has no key before the =", hint="write KEY=VALUE"))
        return override
    if key.startswith("hydra") or "@" in override.partition("=")[0]:
        what = "Hydra's own settings have no effect here" if key.startswith("hydra") else "packages are fixed"
        problems.append(Problem(override, what, hint="leave it out"))
        return override
    if parsed.is_delete():
        problems.append(Problem(override, "a key cannot be deleted", hint="set it to null"))
    if parsed.is_sweep_override():
        hint = "-m makes a run of each; a list is 'KEY=[A,B]', a number has no commas"
        problems.append(Problem(override, "is several values", hint=hint))
        return override
    is_choice, kind = "." not in key and (CONF / key).is_dir(), _reached(key)[0]
    as_text = kind is str or key.startswith("environment.")
    if as_text and type(parsed.value()) in (int, float, bool):
        override = f"{override.partition('=')[0]}='{override.partition('=')[2].strip()}'"  # a release such as 26.10
    problems.extend(choice_problems(key, parsed.value()) if is_choice else key_problems(key))
    is_open = not is_choice and get_origin(kind) is Mapping
    return f"{'++' if is_open else ''}{override.lstrip('+')}"


def choice_problems(group: str, value: object) -> Iterator[Problem]:
    """Yield the problem of a choice that the group does not have, or those of its file."""
    valid = choices(group)
    if value is None or isinstance(value, float | list | dict):
        yield Problem(group, "takes one name", str(value), listed(valid))
    elif str(value) in valid:
        yield from file_problems(group, str(value))
    else:
        hint = closest(str(value), valid) or f"one of these, or add conf/{group}/{value}.yaml"
        yield Problem(f"{group}={value}", "no such choice", allowed=listed(valid), hint=hint)


@cache
def file_problems(group: str, choice: str) -> tuple[Problem, ...]:
    """Return why conf/GROUP/CHOICE.yaml cannot be composed as it is meant: at most one problem."""
    where, path = f"conf/{group}/{choice}.yaml", CONF / group / f"{choice}.yaml"
    try:
        document = read_yaml(path)
    except ConfigError as error:
        return error.problems
    if not isinstance(document.get("defaults", []), list):
        return (Problem(where, "its defaults: are not a list", repr(document["defaults"])),)
    of_root = bool(_GLOBAL.search(path.read_text(encoding="utf-8")))
    nested = "defaults" in document or isinstance(document.get(group), dict)
    if not of_root and (nested or group == "model" or group not in field_types(Request)):
        what = "its first line is missing, without which its keys stand one level too deep"
        return (Problem(where, what, hint="begin the file with `# @package _global_`"),)
    part = document.get(group) or {} if of_root else document
    named = part.get("name", choice) if isinstance(part, dict) else choice
    if named != choice and "${" not in str(named):
        hint = f"`name: {choice}`, or call the file {named}.yaml"
        return (Problem(where, "`name:` differs from the name of the file", str(named), choice, hint),)
    return ()


def key_problems(key: str) -> Iterator[Problem]:
    """Yield the problem of a dotted key that the schema lacks. Under per_platform.SIDE any key is valid."""
    if key.startswith("per_platform."):
        _, side, *rest = key.split(".")
        sides = tuple(name for name in choices("platform") if name != AUTO)
        if side not in sides:
            yield Problem(key, "no such platform", allowed=listed(sides), hint=closest(side, sides))
        if rest == ["platform"]:
            yield Problem(key, "the name of the side is the platform", hint="leave it out")
        elif rest and not (len(rest) == 1 and (CONF / rest[0]).is_dir()):
            yield from key_problems(".".join(rest))
        return
    kind, known = _reached(key)
    if get_origin(kind) is Mapping or known == key:
        return
    if renamed := RENAMED.get(key):
        yield Problem(key, "was renamed", allowed=renamed, hint=f"{renamed}=…")
    else:
        wrong = key.removeprefix(known).lstrip(".").partition(".")[0]
        valid = field_types(kind) if is_dataclass(kind) else {}
        yield unknown_key(f"{known}.{wrong}" if known else wrong, valid)


def _reached(key: str) -> tuple[Any, str]:
    """Return the type that the schema has at `key`, or at as much of it as it knows, and that part."""
    kind: Any = Request
    parts = key.split(".")
    for n, part in enumerate(parts):
        if not is_dataclass(kind) or part not in field_types(kind):
            return kind, ".".join(parts[:n])
        kind = required(field_types(kind)[part])
    return kind, key


def flattened(mapping: Mapping[str, Any]) -> list[str]:
    """Return a nested mapping as override strings."""
    return [f"{path}={json.dumps(value, ensure_ascii=False)}" for path, value in leaves(mapping)]


def _first_lines(error: BaseException) -> str:
    """Return its message; Hydra wraps some errors in one that has none."""
    text = " ".join(line.strip() for line in str(error).splitlines()[:4] if line.strip())
    return text or (_first_lines(error.__cause__) if error.__cause__ else type(error).__name__)
