"""How each group of a comparison was made: its runs, commands, config, and the machines that it ran on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, json

from compare.decision import recipe_spelled
from compare.groups import Group, seed_of
from compare.report.blocks import Block, Cell, Code, Details, Line, Paragraph, Tag, folded, table
from conf.arguments import program
from conf.secret import SECRET
from metrics.repeats import requested_of
from parsers import Record
from parsers.given import typed

_LARGEST_BYTES = 1_000_000  # of plan.json and experiment.yaml
NOT_REPORTED: Line = (Tag("not reported", "quiet"),)
_KNOWN_BY = {"runtime": "by its runtime", "environment": "by its environment", "given": "given, not verified"}


def reproduced(group: Group) -> list[Block]:
    """Return commands, commits, images and the config of a group's runs."""
    rows: list[list[Cell]] = []
    for run in group.runs:
        r = run.record
        framework = " ".join(filter(None, (r.framework, r.framework_version)))
        commit = r.environment.get("launcher_commit")
        image = ", ".join(filter(None, (r.image, r.image_digest, _KNOWN_BY.get(r.image_source or ""))))
        facts = (r.id, seed_of(r), r.started_at, commit, image, framework, run.path)
        rows.append([(NOT_REPORTED,) if fact in (None, "") else f"{fact}" for fact in facts])
    heads = ("run", "seed", "started", "commit", "image", "framework", "directory")
    blocks: list[Block] = [*table(f"Runs of {group.label}", heads, rows)]
    first = group.runs[0].record
    command, experiment = launched(group.runs[0].path)
    if command:
        blocks.append(Code(command, f"how the first run of {group.label} was started"))
    elif first.provenance == "planned":
        blocks.append(Paragraph("Planned, and not started."))
    elif first.provenance == "imported":
        blocks.append(Paragraph("Made from a log that was imported:"))
        stated = [f"{name}={value}" for name, value in typed(first.given).items()]
        read = f"{program('parse')} {shlex.join([first.log or 'LOG', '--save', *stated])}"
        blocks.append(Code(read, f"how the first run of {group.label} was read"))
    else:
        blocks.append(Paragraph("How it was started is not known: there is no plan.json in its directory."))
    settings = {**requested_of(first), **{name: f"{value} (given)" for name, value in first.given.items()}}
    blocks += _departures(group.label, first)
    if experiment:
        blocks.append(folded(f"Config of {group.label} (experiment.yaml of its first run)", experiment))
    elif settings:
        text = "\n".join(f"{name}: {value}" for name, value in settings.items())
        blocks.append(folded(f"Settings of {group.label}, as the record has them", text))
    environments = [run.record.environment for run in group.runs]
    places: list[tuple[str, Cell]] = [
        (name, tuple(dict.fromkeys(str(environment.get(name, "unknown")) for environment in environments)))
        for name in dict.fromkeys(name for environment in environments for name in environment)
    ]
    if known := table(f"Host, GPU and versions of {group.label}", ("fact", "value"), places):
        blocks.append(Details(f"Where {group.label} ran: {len(places)} facts", known))
    return blocks


def _departures(label: str, record: Record) -> list[Block]:
    """Return where a run departs from its vendor's recipe; nothing without one."""
    if record.recipe is None:
        return []
    apart = [(one.path, f"{one.vendor}", f"{one.here}", one.why) for one in record.recipe.departures]
    made = table(f"{label} beside {record.recipe.source}", ("setting", "recipe", "here", "because"), apart)
    return [Details(f"Where {label} departs from {recipe_spelled(record)}: {len(apart)} settings", made)]


class _Plan(Struct):
    """The part of plan.json that is shown."""

    argv: Annotated[list[str], Meta(min_length=1)]
    env: dict[str, str] = {}


def launched(directory: str) -> tuple[str | None, str | None]:
    """Return how the run of a directory was started, by its plan.json as a shell takes it, and its experiment.yaml.
    None: not there, or not as we write them."""
    texts: list[str | None] = []
    for path in (Path(directory) / name for name in ("plan.json", "experiment.yaml")):
        try:
            texts.append(path.read_text(encoding="utf-8") if path.stat().st_size <= _LARGEST_BYTES else None)
        except (OSError, ValueError):  # a name or a text that is no UTF-8, too
            texts.append(None)
    text, experiment = texts
    try:
        plan = json.decode(text or "", type=_Plan)
    except (ValueError, RecursionError):
        return None, experiment
    # A secret by its name alone.
    variables = (f'{k}="${k}"' if SECRET.search(k) else f"{k}={shlex.quote(v)}" for k, v in sorted(plan.env.items()))
    return " \\\n  ".join([f"cd {shlex.quote(directory)} &&", *variables, shlex.join(plan.argv)]), experiment
