"""The runs of a report: what became of each, its own figures, how it was started, and how to do it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare.comparison import Comparison
from compare.figures import FIGURES
from compare.groups import SEED, Group
from compare.report.blocks import (
    NOT_REPORTED,
    Block,
    Cell,
    Code,
    Details,
    Measured,
    Paragraph,
    Section,
    Table,
    Tag,
    Tone,
    cell,
    line,
    table,
)
from compare.report.figures import group_pointers
from compare.report.words import cause
from conf.arguments import program
from conf.compose import SECRET
from metrics.repeats import requested_of
from parsers import Record, Run
from parsers.given import typed

_LAST_LINES = 10
_LARGEST_BYTES = 1_000_000  # of plan.json and experiment.yaml
_MANY = 50  # runs of which compare.csv alone has every figure


def runs_section(comparison: Comparison) -> Section:
    """Return runs without numbers in the open; the figures of the others folded."""
    blocks: list[Block] = [*runs_without_numbers(comparison)]
    blocks += [
        _folded(f"Last lines of {run.record.id}", "\n".join(run.record.last_lines[-_LAST_LINES:]))
        for group in comparison.groups
        for run in group.runs
        if run.path not in comparison.run_figures and run.record.last_lines
    ]
    blocks += [_figures(comparison, group) for group in comparison.groups if group.shown]
    noted = [(cell(r.record.id), cell(note)) for g in comparison.groups for r in g.runs for note in r.record.notes]
    if noted:
        notes = table("Notes of the runs", ("run", "note"), noted)
        blocks.append(Details(f"Notes of the runs ({len(noted)})", (notes,)))
    return Section("Runs", tuple(blocks), "runs")


def runs_without_numbers(comparison: Comparison) -> Iterator[Table]:
    """Yield the table of the runs that have no figures, with the reason of each."""
    out = [(g.label, r.record) for g in comparison.groups for r in g.runs if r.path not in comparison.run_figures]
    if out:
        rows = [(cell(r.id), cell(label), _status(r), cell(cause(r))) for label, r in out]
        yield table("Runs without numbers", ("run", "group", "status", "cause"), rows)


def _status(record: Record) -> Cell:
    """Return what became of a run. A launcher that is killed cannot write down that it is gone."""
    known = "running (or its launcher died)" if record.status == "running" else record.status
    tone: Tone = "quiet" if record.status == "completed" else "bad"
    return ((Tag(known, tone), f" {record.provenance}"),)


def _figures(comparison: Comparison, group: Group) -> Details:
    runs, numbers = group.shown, comparison.run_figures
    wanted = FIGURES if len(runs) <= _MANY else [figure for figure in FIGURES if figure.table]
    known = [f for f in wanted if any(numbers[run.path][f.metric].value is not None for run in runs)]
    at = {run.path: f"{group_pointers(comparison)[group.label]}/runs/{i}" for i, run in enumerate(group.runs)}
    rows = [
        (
            cell(run.record.id),
            *(Measured(numbers[run.path][f.metric], f"{at[run.path]}/figures/{f.metric}") for f in known),
        )
        for run in runs
    ]
    caption = f"{group.label}: the figures of every run"
    figures = table(caption, ("run", *(figure.title for figure in known)), rows, numbers=True)
    return Details(f"{caption} ({len(runs)})", (figures,))


def reproduce_section(comparison: Comparison, launched: Mapping[str, Launched], command: str) -> Section:
    """Return commands, commits, images and the config of each run."""
    blocks: list[Block] = [Code(command, "the command of this report")]
    blocks += [_group(group, launched) for group in comparison.groups]
    return Section("How to reproduce", tuple(blocks), "reproduce")


def _group(group: Group, launched: Mapping[str, Launched]) -> Section:
    first = group.runs[0]
    how = launched.get(first.path, Launched())
    heads = ("run", "seed", "started", "commit", "image", "framework", "directory")
    rows = [[cell(f"{f}") if f not in (None, "") else (NOT_REPORTED,) for f in _facts(run)] for run in group.runs]
    blocks: list[Block] = [table(f"Runs of {group.label}", heads, rows)]
    if how.command:
        blocks.append(Code(how.command, f"how the first run of {group.label} was started"))
    elif first.record.provenance == "imported":
        blocks.append(Paragraph(line("Read from a log that was brought:")))
        stated = [f"{name}={value}" for name, value in typed(first.record.given).items()]
        read = f"{program('parse')} {shlex.join([first.record.log or 'LOG', '--save', *stated])}"
        blocks.append(Code(read, f"how the first run of {group.label} was read"))
    else:
        blocks.append(Paragraph(line("How it was started is not known: there is no plan.json in its directory.")))
    if how.experiment:
        blocks.append(_folded(f"Config of {group.label} (experiment.yaml of its first run)", how.experiment))
    elif settings := {
        **requested_of(first.record),
        **{name: f"{value} (given)" for name, value in first.record.given.items()},
    }:
        text = "\n".join(f"{name}: {value}" for name, value in settings.items())
        blocks.append(_folded(f"Settings of {group.label}, as the record has them", text))
    blocks += _places(group)
    return Section(group.label, tuple(blocks))


def _folded(summary: str, text: str) -> Details:
    return Details(summary, (Code(text, summary),))


def _facts(run: Run) -> Sequence[object]:
    record = run.record
    seed = record.setting(SEED)
    framework = " ".join(part for part in (record.framework, record.framework_version) if part)
    return (
        record.id,
        record.requested.get(SEED) if seed is None else seed,
        record.started_at,
        record.environment.get("launcher_commit"),
        record.image,
        framework,
        run.path,
    )


def _places(group: Group) -> Iterator[Details]:
    """Yield the facts of host, GPU and versions."""
    rows: list[tuple[Cell, Cell]] = []
    for name in dict.fromkeys(name for run in group.runs for name in run.record.environment):
        values = dict.fromkeys(str(run.record.environment.get(name, "unknown")) for run in group.runs)
        rows.append((cell(name), tuple(map(line, values))))
    if rows:
        facts = table(f"Host, GPU and versions of {group.label}", ("fact", "value"), rows)
        yield Details(f"Where {group.label} ran: {len(rows)} facts", (facts,))


@dataclass(frozen=True, slots=True)
class Launched:
    """command: as a shell takes it, in the run's directory. experiment: the config as YAML. None: not there."""

    command: str | None = None
    experiment: str | None = None


def launched(directory: str) -> Launched:
    """Return what plan.json and experiment.yaml of a run directory say, where they are as we write them."""
    plan, experiment = (_text(Path(directory) / name) for name in ("plan.json", "experiment.yaml"))
    return Launched(None if plan is None else _command(directory, plan), experiment)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path.stat().st_size <= _LARGEST_BYTES else None
    except (OSError, ValueError):  # a name or a text that is no UTF-8, too
        return None


def _command(directory: str, plan: str) -> str | None:
    try:
        entry: Any = json.loads(plan)
    except (ValueError, RecursionError):
        return None
    argv, env = (entry.get(name) for name in ("argv", "env")) if isinstance(entry, dict) else (None, None)
    if not isinstance(argv, list) or not argv or not all(isinstance(part, str) for part in argv):
        return None
    variables = _assignments(env) if isinstance(env, dict) else ()
    return " \\\n  ".join([f"cd {shlex.quote(directory)} &&", *variables, shlex.join(argv)])


def _assignments(env: Mapping[str, Any]) -> list[str]:
    """Return the environment as a shell sets it; a secret by its name alone."""
    return [f'{k}="${k}"' if SECRET.search(k) else f"{k}={shlex.quote(str(v))}" for k, v in sorted(env.items())]
