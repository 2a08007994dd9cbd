"""Run one experiment and record it: where conf, launchers, parsers and metrics meet. It always leaves a record."""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace as changed
from itertools import islice
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

import parsers
from conf import shapes
from conf.arguments import program
from conf.errors import ConfigError, InputError, Problem, listed, some
from conf.locks import beside
from conf.plain import terminal
from conf.resolve import Experiment
from conf.secret import SECRET, blotted
from conf.vocabulary import leaves, requested, vocabulary
from launchers import make_plan, power, preflight, rehearse, run_dir, runner, warm, where
from launchers.attribute_settings import FORMS, assignments, table
from launchers.bundle import digests
from launchers.frameworks import framework_of
from launchers.image import digest, image_of
from launchers.plan import NO_REHEARSAL, Host, Plan, Scope
from launchers.variables import tuned
from metrics import summary_json
from parsers import Declaration, Ending, Outcome, Record, marks
from parsers.planned import as_planned
from parsers.power import with_power
from parsers.probe import FOLDER, RankFile, read_files, with_files
from parsers.record import Departure, RunRecipe
from parsers.storage import dumps, run_file

REHEARSAL_LIMIT_S = {"train": 1800.0, "layout": 1800.0}
"""The limit of one rehearsal, in seconds. A toy takes a minute, two ranks of a large model some minutes each,
and all of them many times longer on a machine that others use, too."""
MOST_NAMED = 4  # ranks whose parameters differ from our count, and parameters of each
# What Megatron-Core before 0.15 has of a setting, and its value: what later ones say.
_OLDER = {("enable_cuda_graph", str(on)): ("cuda_graph_impl", impl) for on, impl in ((False, "none"), (True, "local"))}
_PLAIN_EVERY_S = 2.0  # between two lines of progress where there is no terminal
_OnStep = Callable[[int, float | None, float | None], None]


def run_once(e: Experiment, plan: Plan, rehearsed: Scope = NO_REHEARSAL) -> tuple[Record, Path]:
    """Run `e` (one seed) unless it is done already; return its record and its directory. InputError: it cannot be
    written, or another process is running this very run."""
    commit = where.commit()
    path = run_dir.directory(rehearsed.requested or e, commit)
    with run_dir.claimed(path):
        earlier = None
        with suppress(InputError):  # one that cannot be read does not count
            earlier = parsers.read(path)
        if earlier and earlier.id != path.name:
            hint = "move it away, or name=OTHER, or runs_dir=DIR"
            raise InputError(Problem(str(path), "is of another run", earlier.id, path.name, hint))
        if earlier and earlier.status == "completed" and not e.rerun:
            print(f"{path}: completed before; rerun=true runs it again", file=sys.stderr)
            return earlier, path
        unfinished = earlier is None or earlier.status != "completed"
        go_on = e.resume and unfinished and run_dir.has_checkpoint(path)
        if e.resume and not go_on:
            print(f"{path}: no checkpoint to resume from; begins anew", file=sys.stderr)
        run_dir.prepare(path, e, plan, go_on)
        about = _about(e, plan, path, commit)
        notes = (*rehearsed.notes, *about.notes, *_taken(plan))
        about = replace(about, shrunk=rehearsed.shrunk, not_rehearsed=rehearsed.not_rehearsed, notes=notes)
        try:
            parsers.write(about, path)
            ending, notes = _execute(e, plan, path, go_on)
        except OSError as error:
            fault = f"{error.strerror or error}: {error.filename or path}"
            return _close(about, e, plan, path, fault), path
        return _close(replace(about, notes=(*about.notes, *notes)), e, plan, path, ending), path


def rehearse_once(e: Experiment, host: Host) -> tuple[Record, Path]:
    """Rehearse `e`, whatever was done before; where that cannot begin, leave a failed record that says why. InputError:
    as run_once."""
    try:
        small, rehearsed = rehearsal(e)
        plan = make_plan(small, host)
        if problems := preflight.problems(small):
            raise ConfigError(*problems)
    except ConfigError as error:
        commit, plan = where.commit(), Plan(argv=(), files={}, env={})
        path = run_dir.directory(e, commit)
        with run_dir.claimed(path):
            run_dir.prepare(path, e, plan)
            cause, *notes = [" ".join(str(problem).split()) for problem in dict.fromkeys(error.problems)]
            about = _about(e, plan, path, commit)
            record = replace(about, status="failed", cause=cause, notes=tuple(notes), ended_at=about.started_at)
            _keep(record, path)
        return record, path
    for note in rehearsed.notes:
        print(f"warning: {e.framework.name}: {note}", file=sys.stderr)
    several = e.rehearse == "layout" and len(rehearse.played(small)) > 1
    with warm.kept() if several else nullcontext():
        return run_once(small, plan, rehearsed)


def rehearsal(e: Experiment) -> tuple[Experiment, Scope]:
    """Return what is run in place of `e` on this machine: itself where it is no rehearsal. ConfigError: as
    rehearse.prepared."""
    if not e.rehearse:
        return e, NO_REHEARSAL
    small, rehearsed = rehearse.prepared(e)
    # Primus' torchrun meets at a fixed port, where a colleague's rehearsal on this machine may be already.
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = int(taken.getsockname()[1])
    return changed(small, cluster=changed(small.cluster, master_port=port)), rehearsed


def _execute(e: Experiment, plan: Plan, path: Path, go_on: bool) -> tuple[runner.Ending, tuple[str, ...]]:
    title = f"{e.name} {e.framework.name} {e.layout} seed {e.training.seed}"
    tokens = e.training.global_batch_size * e.training.seq_length
    with _shown(title, e.training.train_iters, tokens) as show:

        def on_line(line: str) -> bool:
            step = parsers.live(line)
            if step is not None:
                show(step.step + 1, step.loss, None if e.rehearse else step.step_time_s)
            return step is not None

        limit_s = REHEARSAL_LIMIT_S.get(e.rehearse or "")
        with power.sampled(path, e.accelerator) as notes:
            ending = runner.execute(plan, path, e.hang_after_s, on_line, go_on=go_on, limit_s=limit_s)
    return ending, (*notes, *filter(None, [ending.left, ending.lost]))


def _taken(plan: Plan) -> Iterator[str]:
    """Yield, and print, which variables of this shell a run of `plan` does not get."""
    if names := runner.taken(plan, os.environ):
        note = f"taken out of the environment, as they would steer the launch past the plan: {listed(names)}"
        print(f"warning: {note}", file=sys.stderr)
        yield note


def _about(e: Experiment, plan: Plan, path: Path, commit: str | None) -> Record:
    """Return the record of a run that has just started: if nothing else is ever written, this row remains."""
    image, notes = image_of(e)
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
    facts = where.facts()
    if e.cluster.container != "none":  # these are the host's, and not what the run sees
        facts = {name: value for name, value in facts.items() if name not in ("rocm", "container")}
    return Record(
        id=path.name,
        provenance="rehearsed" if e.rehearse else "measured",
        status="running",
        started_at=where.now(),
        notes=notes,
        **{**of_request(e, plan), **image},
        environment={**facts, "launcher_commit": commit, **({"rehearse": e.rehearse} if e.rehearse else {})},
        log="train.log",
    )


def of_request(e: Experiment, plan: Plan) -> dict[str, Any]:
    """Return the fields of a record that the request decides. image: as given; what runs may be known better."""
    return {
        "name": e.name,
        "framework": e.framework.name,
        "platform": e.platform.name,
        "vendor": e.platform.vendor,
        "hardware": e.hardware.name,
        "image": e.image,
        "image_source": "given" if e.image else None,
        "requested": requested(e),
        "declared": tuple(Declaration(d.key, d.value, d.reason) for d in (*e.declared, *plan.declared)),
        "method": e.method,
        "batch": e.batch,
        "recipe": _recipe(e),
        "variables": {n: plan.env[n] for n in tuned(e) if n in plan.env and not SECRET.search(n)},
    }


def _recipe(e: Experiment) -> RunRecipe | None:
    """Return the recipe that `e` follows, with all in which it departs from it."""
    if e.recipe is None:
        return None
    apart = framework_of(e.framework.name).differences(e)
    departures = tuple(Departure(one.path, one.vendor, one.here, one.why) for one in apart)
    return RunRecipe(e.recipe.name, e.recipe.framework, e.recipe.release, e.recipe.source, departures)


def planned_record(e: Experiment, plan: Plan, rehearsed: Scope) -> Record:
    """Return the record of what would run: of the request alone, without a word about the machine that plans it."""
    record = Record(
        id=e.name,
        provenance="planned",
        status="unknown",
        framework_version=e.framework.release,
        **of_request(e, plan),
        not_rehearsed=rehearsed.not_rehearsed,
        given={"model": e.model.name},
        environment={"num_nodes": e.nodes},
    )
    return as_planned(record, _not_requested(e))


def _not_requested(e: Experiment) -> dict[str, Any]:
    """Return the settings that nobody requests, and that a recipe or our own tables decide, as the plan writes them:
    the attribute of each is called like the setting. One that is written twice, and otherwise, is not known."""
    known: dict[str, list[Any]] = {}
    for path, value in leaves(assignments(e, table(e.framework.name)).set):
        parts = path.split(".")
        form = parts.pop() if parts[-1] in FORMS else ""
        name, value = _OLDER.get((parts[-1], str(value)), (parts[-1], value))
        row = vocabulary().get(name)
        if row is not None and row.dump and not row.request and row.accepts(value):
            known.setdefault(row.name, []).append(value.rpartition(".")[2] if form else value)
    return {name: values[0] for name, values in known.items() if all(value == values[0] for value in values)}


def _close(about: Record, e: Experiment, plan: Plan, path: Path, ended: runner.Ending | str) -> Record:
    """Read the log, judge, summarise, write. ended: how, or an error of the system, which ended the run or its log."""
    try:
        if isinstance(ended, runner.Ending) and not (path / plan.log).exists():
            ended = f"its directory was removed while it ran, and its log with it: {path}"
        record = _judged(about, e, plan, path, ended)
    except (OSError, InputError) as error:
        cause = f"its directory cannot be read any more: {' '.join(str(error).split())}"
        record = replace(about, status="failed", cause=cause, ended_at=where.now())
    _keep(record, path)
    return record


def _judged(about: Record, e: Experiment, plan: Plan, path: Path, ended: runner.Ending | str) -> Record:
    """Return the record of a run that has ended: what its log and its probe's files say."""
    log, fault = path / plan.log, ended if isinstance(ended, str) else None
    ending = None if isinstance(ended, str) else ended
    parsed = parsers.parse(log if log.exists() else ())
    seen = Ending(**{name: getattr(ending, name) for name in Ending.__slots__}) if ending else Ending()
    outcome = parsers.judge(seen, parsed) if fault is None else Outcome("failed", fault)
    if e.rehearse and fault is None:
        outcome = rehearsal_outcome(e, outcome, seen, log)
    if about.image_source == "runtime" and about.image_digest is None:  # the runtime has pulled it meanwhile
        about = replace(about, image_digest=digest(e))
    known = replace(
        about,
        provenance="rehearsed" if parsed.facts.get("stand_in") else about.provenance,
        ended_at=where.now(),
        exit_code=seen.exit_code,
        wall_time_s=ending.wall_time_s if ending else None,
    )
    record = with_own_power(_without_secrets(parsers.assemble(parsed, outcome, known)), path)
    if e.probe:
        files, wrong = read_files(path / FOLDER)
        if (path / FOLDER).is_dir():
            record = with_files(record, files, wrong, rehearse.played(e) if e.rehearse == "layout" else None)
        record = with_edited(against_count(record, e, files), plan)
    return replace(record, summary=summary_json(record))


def with_edited(record: Record, plan: Plan) -> Record:
    """Return `record` with the rendered files that were no longer as `plan` has them when the ranks began."""
    process = record.read_back.process if record.read_back else None
    planned = digests(plan.files)
    ran = process.files if process else {}
    edited = sorted(name for name, digest in ran.items() if planned.get(name, digest) != digest)
    return replace(record, environment={**record.environment, "edited_files": edited}) if edited else record


def with_own_power(record: Record, path: Path) -> Record:
    """Return `record` with the energy in power.jsonl of its directory. Where more GPUs were sampled than trained it is
    unknown which are ours: a note then, and no energy."""
    samples, gpus = path / power.FILE, record.requested.get("world_size")
    if not samples.exists() or record.provenance != "measured":
        return record
    try:
        measured = with_power(record, samples)
    except InputError as error:
        return replace(record, notes=(*record.notes, f"power: {error}"))
    sampled = {one.gpus for one in measured.power}
    if sampled - {gpus}:
        note = f"power: {listed(sorted(map(str, sampled)))} GPUs were sampled and {gpus} trained: not used"
        return replace(record, notes=(*record.notes, note))
    return measured


def _keep(record: Record, path: Path) -> None:
    """Write the record; on a full disk without its steps, which can be read from the log; where the directory cannot be
    written any more, beside it; where that cannot be either, print it."""
    run_dir.release_reserve(path)
    try:
        parsers.write(record, path)
        return
    except OSError as error:
        why = error.strerror or str(error)
    note = f"the steps could not be written ({why}): {program('parse')} {record.log} reads them"
    with suppress(OSError):
        parsers.write(replace(record, steps=(), notes=(*record.notes, note)), path)
        return
    place = beside(path)
    with suppress(OSError):
        parsers.write(replace(record, notes=(*record.notes, f"recorded beside its directory: {why}")), place)
        print(f"warning: {path}: {why}: the record is in {place}", file=sys.stderr)
        return
    print(f"{path}: the record could not be written: {why}; this is it:", file=sys.stderr)
    print(dumps(run_file(record)), file=sys.stderr)


def _without_secrets(record: Record) -> Record:
    """Return the record without secrets in the texts that come from its log."""
    notes, lines = tuple(map(blotted, record.notes)), tuple(map(blotted, record.last_lines))
    return replace(record, cause=record.cause and blotted(record.cause), notes=notes, last_lines=lines)


def rehearsal_outcome(e: Experiment, judged: Outcome, ending: Ending, log: Path) -> Outcome:
    """Return the outcome of a rehearsal: failed where it did not end by itself; playing ranks has no steps, and is
    completed when each rank came to its first one."""
    if judged.status == "completed" and ending.exit_code != 0:
        return Outcome("failed", judged.notes[0] if judged.notes else f"exit code {ending.exit_code}", judged.notes)
    if e.rehearse != "layout":
        return judged
    with log.open(encoding="utf-8", errors="replace") as lines:  # each rank marks its first step
        ranks = ((marks.read("rehearsed", line) or {}).get("rank") for line in lines)
        wanted, seen = set(rehearse.played(e)), {rank for rank in ranks if type(rank) is int}
    if ending.exit_code == 0 and wanted <= seen:
        return Outcome("completed")
    if judged.status == "failed" and judged.cause and ending.exit_code == 0:
        rank = min(wanted - seen)
        return Outcome("failed", f"rank {rank} of {e.layout.world_size} did not come to a first step: {judged.cause}")
    return judged


def against_count(record: Record, e: Experiment, files: Iterable[RankFile]) -> Record:
    """Compare the parameters that the probe has read with our own count (conf/shapes.py), by name and shape.

    A difference fails a rehearsal, as does a rank that reports none; any other run gets a note."""
    local = record.setting("transformer_impl") == "local"
    wrong = list(islice(_miscounted(files, e, local), MOST_NAMED))
    if not wrong or record.status != "completed" or not e.rehearse:
        return replace(record, notes=(*record.notes, *wrong))
    return replace(record, status="failed", cause=wrong[0], notes=(*record.notes, *wrong[1:]))


def _miscounted(files: Iterable[RankFile], e: Experiment, local: bool) -> Iterator[str]:
    """Yield a sentence for each rank whose parameters differ, or are missing."""
    sizes = e.sizes()
    by_rank = {file.rank: file for file in files if file.parameters is not None}
    wanted = rehearse.played(e) if e.rehearse == "layout" else range(e.layout.world_size if e.rehearse else 0)
    yield from (f"rank {rank} reported no parameters" for rank in wanted if rank not in by_rank)
    for rank, file in by_rank.items():
        if not {"pipeline", "expert"} <= file.places.keys():
            yield f"rank {rank} does not report its place in the layout: its parameters are compared with nothing"
            continue
        built = {shapes.usual_name(p.name): p.shape for p in file.parameters or ()}
        fused = any(name.endswith(".experts.weight1") for name in built)
        place = shapes.Place(file.places["pipeline"], file.places["expert"])
        ours = shapes.on_rank(e.model, sizes, place, local=local, fused=fused)
        if uncut := framework_of(e.framework.name).uncut(e):
            whole = shapes.on_rank(e.model, sizes._replace(tp=1), place, local=local, fused=fused)
            ours = {name: whole[name] if name in uncut else shape for name, shape in ours.items()}
        wrong = []
        for name in dict.fromkeys([*ours, *built]):
            if built.get(name) != ours.get(name):
                expected = f"expected {ours[name]}" if name in ours else "not known to our own count"
                wrong.append(f"{name}: {built.get(name, 'absent')}, {expected}")
        if wrong:
            counts = [sum(map(math.prod, named.values())) for named in (built, ours)]
            which = some(wrong, MOST_NAMED, "; ")
            yield f"rank {rank} has {counts[0]:,} parameters, and {counts[1]:,} by our own count: {which}"


@contextmanager
def _shown(title: str, iterations: int, tokens_per_step: int) -> Iterator[_OnStep]:
    """Show a run; call what is given at the end of each step with its iteration, from 1, its loss and its seconds."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[state]}"))
    bar = Progress(
        *columns,
        console=Console(file=terminal(sys.stderr)),
        disable=not sys.stderr.isatty() or parent_process() is not None,
    )
    task = bar.add_task(title, total=iterations, state="starting")
    first_step_at: float | None = None
    printed = time.monotonic()

    def plain(text: str) -> None:
        if bar.disable:
            print(f"{title}: {text}", file=sys.stderr, flush=True)

    def step(iteration: int, loss: float | None, step_time_s: float | None) -> None:
        nonlocal first_step_at, printed
        now = time.monotonic()
        parts = [f"step {iteration}/{iterations}"]
        parts += [] if loss is None else [f"loss {loss:.4f}"]
        parts += [f"{tokens_per_step / step_time_s:,.0f} tokens/s"] if step_time_s else []
        if first_step_at is None:
            first_step_at = now  # the first step carries the start-up: no rate from it
        elif iteration > 1:
            pace = (now - first_step_at) / (iteration - 1)
            parts.append(f"ETA {(iterations - iteration) * pace:.0f} s")
        bar.update(task, completed=iteration, state=", ".join(parts))
        if now - printed > _PLAIN_EVERY_S or iteration in (1, iterations):
            plain(", ".join(parts))
            printed = now

    plain("starting")
    with bar:
        yield step
