"""bundle=DIR: a run as a folder that needs nothing of ours where it is started, by `bash run.sh`."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conf.errors import ConfigError, InputError, Problem, listed, writing
from conf.resolve import Experiment
from conf.vocabulary import requested
from launchers.frameworks import framework_of, frameworks
from launchers.plan import Plan, Scope


def facts(e: Experiment, plan: Plan, scope: Scope) -> dict[str, Any]:
    """Return bundle.json: the request, and what of it may follow another number of GPUs."""
    where = {"platform": e.platform.name, "vendor": e.platform.vendor, "hardware": e.hardware.name}
    known = {"name": e.name, "framework_release": e.framework.release, "image": e.image, **where}
    facts: dict[str, Any] = {name: value for name, value in known.items() if value is not None}
    if e.rehearse:
        facts |= {"not_rehearsed": scope.not_rehearsed, "shrunk": scope.shrunk, "cautions": scope.notes}
    facts["declared"] = [asdict(d) for d in (*e.declared, *plan.declared)]
    nodes = {"nodes": e.nodes, "gpus_per_node": e.gpus_per_node, "layout_from_table": e.layout.source is not None}
    return {"requested": requested(e), **nodes, "data_prefix": e.data.path, "facts": facts}


def digests(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each file, in hexadecimal digits: where it runs, an edited one is named."""
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(texts.items())}


def env_sh(env: Mapping[str, str], reasons: Mapping[str, str], overridable: Container[str]) -> str:
    """Return exports of every variable, each with its reason; overridable ones keep what the user has set."""
    lines = ["# Sourced by run.sh. A variable with a condition keeps the value that you give it; the others are fixed."]
    for name, value in sorted(env.items()):
        line = f"{name}={shlex.quote(value)}"
        line = f"[[ -n ${{{name}:-}} ]] || {line}; export {name}" if name in overridable else f"export {line}"
        lines.append(f"{line} # {reasons.get(name, '')}".rstrip(" #"))
    return "\n".join(lines) + "\n"


def leave(requested: Sequence[tuple[Experiment, Plan, Scope]]) -> None:
    """Write the bundle of each experiment, and say where. ConfigError: a framework that needs our programs where it
    runs, or one folder for several runs. InputError: a folder that cannot be used."""
    problems = [problem for e, *_ in requested for problem in _problems(e)]
    if len({e.bundle for e, *_ in requested}) < len(requested):
        problems.append(Problem("bundle", "one folder takes one experiment", hint="one call a bundle"))
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    for e, plan, scope in requested:
        write(Path(e.bundle or ""), framework_of(e.framework.name).bundle(e, plan, scope))
        for note in scope.notes:
            print(f"warning: {note}", file=sys.stderr)
        print(f"{e.bundle}: copy it to where it is to run, then bash run.sh (README.txt says more)")


def _problems(e: Experiment) -> Iterator[Problem]:
    if not framework_of(e.framework.name).bundles:
        what = f"{e.framework.name} is started by programs of ours, which a bundle leaves behind"
        able = [name for name in frameworks() if framework_of(name).bundles]
        hint = " or ".join(f"framework={name}" for name in able)
        yield Problem("bundle", what, e.framework.name, listed(able), hint)
    if e.rehearse == "layout":
        what = "a bundle starts the stack once, and a layout is rehearsed rank by rank"
        yield Problem("rehearse", what, "layout", "train", "rehearse=train, or without bundle=")
    if e.repeat > 1:
        yield Problem("repeat", "a bundle is one run", str(e.repeat), "1", "start it several times, or a bundle a seed")


def write(directory: Path, texts: Mapping[str, str]) -> None:
    """Write the bundle. InputError: something else is in the folder, or it cannot be written."""
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        ours = {*(name.partition("/")[0] for name in texts), "runs", "data"}  # those of earlier runs may stay
        foreign = sorted(path.name for path in directory.iterdir() if path.name not in ours)
        if foreign:
            hint = "bundle=ANOTHER/FOLDER, or empty it"
            raise InputError(
                Problem(str(directory), "has files that belong to no bundle", ", ".join(foreign[:5]), hint=hint)
            )
        for name, text in texts.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            path.chmod(0o755 if text.startswith("#!") else 0o644)
