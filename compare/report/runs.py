"""The runs of a report: what became of each, its own figures, and how to do it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from compare.comparison import Comparison
from compare.figures import FIGURES
from compare.groups import SEED, Group
from compare.report.blocks import Block, Cell, Code, Details, Line, Paragraph, Section, Table, Tag, Tone, cell, line
from compare.report.numbers import NOT_TOLD, Places, places, quantity_cell
from compare.report.sources import Launched
from compare.report.words import cause
from conf.errors import listed
from metrics.repeats import asked
from parsers import Record, Run
from parsers.given import typed

_LAST_LINES = 10
_MANY = 50  # runs of which compare.csv alone has every figure


def runs_section(comparison: Comparison) -> Section:
    """Runs without numbers in the open; the figures of the others folded."""
    blocks: list[Block] = []
    out = [(g.label, r.record) for g in comparison.groups for r in g.runs if r.path not in comparison.run_figures]
    if out:
        heads = tuple(map(line, ("run", "group", "status", "cause")))
        rows = tuple((cell(r.id), cell(label), _status(r), cell(cause(r))) for label, r in out)
        blocks.append(Table("Runs without numbers", heads, rows))
        blocks += [_last_lines(record) for _, record in out if record.last_lines]
    at = places(comparison)
    blocks += [_figures(comparison, group, at) for group in comparison.groups if group.shown]
    noted = [(cell(r.record.id), cell(note)) for g in comparison.groups for r in g.runs for note in r.record.notes]
    if noted:
        table = Table("Notes of the runs", (line("run"), line("note")), tuple(noted))
        blocks.append(Details(f"Notes of the runs ({len(noted)})", (table,)))
    return Section("Runs", tuple(blocks), "runs")


def _status(record: Record) -> Cell:
    """A launcher that is killed cannot write down that it is gone."""
    known = "running (or its launcher died)" if record.status == "running" else record.status
    tone: Tone = "quiet" if record.status == "completed" else "bad"
    return ((Tag(known, tone), f" {record.provenance}"),)


def _last_lines(record: Record) -> Details:
    lines = record.last_lines[-_LAST_LINES:]
    return Details(f"Last lines of {record.id}", (Code("\n".join(lines), f"last lines of the log of {record.id}"),))


def _figures(comparison: Comparison, group: Group, at: Places) -> Details:
    runs = group.shown
    shown = FIGURES if len(runs) <= _MANY else [figure for figure in FIGURES if figure.table]
    numbers = comparison.run_figures
    known = [f for f in shown if any(numbers[run.path][f.metric].value is not None for run in runs)]
    rows = tuple(
        (
            cell(run.record.id),
            *(
                quantity_cell(
                    comparison.run_figures[run.path][f.metric], f"{at.runs[run.path]}/figures/{f.metric}", True
                )
                for f in known
            ),
        )
        for run in runs
    )
    heads = (line("run"), *(line(figure.title) for figure in known))
    caption = f"{group.label}: the figures of every run"
    return Details(f"{caption} ({len(runs)})", (Table(caption, heads, rows, numbers=True),))


def reproduce_section(comparison: Comparison, launched: Mapping[str, Launched], command: str) -> Section:
    """Commands, commits, images and the config of each run."""
    blocks: list[Block] = [Code(command, "the command of this report")]
    blocks += [_group(group, launched) for group in comparison.groups]
    return Section("How to reproduce", tuple(blocks), "reproduce")


def _group(group: Group, launched: Mapping[str, Launched]) -> Section:
    first = group.runs[0]
    how = launched.get(first.path, Launched())
    blocks: list[Block] = [_runs_table(group)]
    if how.command:
        blocks.append(Code(how.command, f"how the first run of {group.label} was started"))
    elif first.record.provenance == "imported":
        blocks.append(Paragraph(line("Read from a log that was brought:")))
        blocks.append(Code(_read(first.record), f"how the first run of {group.label} was read"))
    else:
        blocks.append(Paragraph(line("How it was started is not told: there is no plan.json in its directory.")))
    if how.experiment:
        blocks.append(_config(f"Config of {group.label} (experiment.yaml of its first run)", how.experiment))
    elif settings := {**asked(first.record), **_given(first.record)}:
        text = "\n".join(f"{name}: {value}" for name, value in settings.items())
        blocks.append(_config(f"Settings of {group.label}, as the record has them", text))
    blocks += _places(group)
    return Section(group.label, tuple(blocks))


def _config(summary: str, text: str) -> Details:
    return Details(summary, (Code(text, summary),))


def _read(record: Record) -> str:
    """The command, with all that was given beside the log."""
    given = [f"{name}={value}" for name, value in typed(record.given).items()]
    return shlex.join(["python", "-m", "parsers", record.log or "LOG", "--save", *given])


def _given(record: Record) -> Mapping[str, str]:
    """What the user knew beside the log, which says nothing of it."""
    return {name: f"{value} (given)" for name, value in record.given.items()}


def _runs_table(group: Group) -> Table:
    heads = ("run", "seed", "started", "commit", "image", "framework", "directory")
    rows = tuple((cell(run.record.id), *(_fact(fact) for fact in _facts(run))) for run in group.runs)
    return Table(f"Runs of {group.label}", tuple(map(line, heads)), rows)


def _facts(run: Run) -> Sequence[object]:
    record = run.record
    seed = record.setting(SEED)
    framework = " ".join(part for part in (record.framework, record.framework_version) if part)
    return (
        record.requested.get(SEED) if seed is None else seed,
        record.started_at,
        record.environment.get("launcher_commit"),
        record.image,
        framework,
        run.path,
    )


def _fact(fact: object) -> Cell:
    return (NOT_TOLD,) if fact in (None, "") else cell(f"{fact}")


def _places(group: Group) -> Iterator[Details]:
    """The facts of host, GPU and versions."""
    names = dict.fromkeys(name for run in group.runs for name in run.record.environment)
    rows: list[tuple[Cell, Cell]] = []
    for name in names:
        found = dict.fromkeys(str(run.record.environment.get(name, "unknown")) for run in group.runs)
        values: tuple[Line, ...] = tuple(line(value) for value in found)
        rows.append((cell(name), values))
    if rows:
        table = Table(f"Host, GPU and versions of {group.label}", (line("fact"), line("value")), tuple(rows))
        yield Details(f"Where {group.label} ran: {listed([f'{len(rows)} facts'])}", (table,))
