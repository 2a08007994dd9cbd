"""The record of a run that was a job of a batch system: what the logs of its nodes say, of every start."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from statistics import median
from typing import Any

from msgspec.structs import replace

import parsers
from conf.errors import writing
from conf.resolve import Experiment
from launchers import make_plan, power, where
from metrics import summary_json
from parsers import Ending, Outcome, Record
from parsers.faults import Faults
from parsers.segment import Parsed
from tensorprimat.run import of_request, with_own_power

Starts = Sequence[Sequence[Path]]
"""The logs of a run: of each start of it, one a node, in their order."""
LOG = "train.log"
_BY_SIGNAL = 128  # a shell's exit code of a program that a signal ended is above


def recorded_job(e: Experiment, path: Path, starts: Starts, reason: str | None) -> Record:
    """Return the record of a job that has ended, and write it to `path`, beside the joined log that it is read from.
    reason: why it ended early, in what the batch system says. InputError: it cannot be written."""
    nodes = [parsers.parse(log) for log in starts[-1]] if starts else []
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        (path / LOG).write_bytes(b"".join(_joined(_going_on(starts))))
        _join_power(starts[-1] if starts else (), path / power.FILE)
    parsed = parsers.parse(path / LOG)
    outcome = parsers.judge(_ending(nodes), _with_faults(parsed, nodes))
    if outcome.status != "completed" and (reason or outcome.status == "unknown"):
        causes = [*filter(None, [reason or "the job left no log", outcome.cause])]
        outcome = Outcome("hung" if outcome.status == "hung" else "failed", ": ".join(causes), outcome.notes)
    about = Record(
        id=path.name,
        provenance="measured",
        status="unknown",
        **of_request(e, make_plan(e, where.host())),
        environment={"launcher_commit": where.commit(), "num_nodes": e.nodes},
        log=LOG,
        started_at=next((str(one.facts["started_at"]) for one in nodes if "started_at" in one.facts), None),
        ended_at=where.now(),
    )
    record = with_own_power(parsers.assemble(parsed, outcome, about), path)
    hosts = {"hosts": [one.facts.get("host") for one in nodes]} if len(nodes) > 1 else {}
    known = {n: value for n, value in record.environment.items() if n != "signal" or record.status != "completed"}
    record = replace(record, environment={**known, **hosts})
    record = replace(record, summary=summary_json(record))
    with writing(path):
        parsers.write(record, path)
    return record


def _going_on(starts: Starts) -> Starts:
    """Return the starts since the one that last began anew: those after it went on from a checkpoint, or ended before
    their first step."""
    first = 0
    for at, logs in enumerate(starts):
        has_stepped = any(parsers.parse(log).steps for log in logs)
        if has_stepped and not any(b"[tprimat] resumed " in log.read_bytes() for log in logs):
            first = at
    return starts[first:]


def _joined(starts: Starts) -> Iterator[bytes]:
    """Yield the logs as one: the node that prints the steps is the last of its start, as the others state the settings
    of the run before them."""
    for logs in starts:
        steps = {log: len(parsers.parse(log).steps) for log in logs}
        for log in sorted(logs, key=lambda log: steps[log]):
            text = log.read_bytes()
            yield text if text.endswith(b"\n") else text + b"\n"


def _by_itself(nodes: Sequence[Parsed]) -> Sequence[Parsed]:
    """Return the nodes that ended badly by themselves, all of them where none did. srun ends the others by a signal,
    which their logs name; a node whose script was killed says nothing of its end."""
    own = [one for one in nodes if one.facts.get("exit_code") != 0 and "signal" not in one.facts]
    return own or nodes


def _ending(nodes: Sequence[Parsed]) -> Ending:
    """Return how the nodes ended: as the first one that ended badly by itself."""
    known = [code for one in _by_itself(nodes) if type(code := one.facts.get("exit_code")) is int]
    bad = sorted(filter(None, known), key=lambda code: code > _BY_SIGNAL)
    hung = any(one.facts.get("hung") is True for one in nodes)
    return Ending(exit_code=next(iter(bad), 0 if known else None), hung=hung)


def _with_faults(parsed: Parsed, nodes: Sequence[Parsed]) -> Parsed:
    """Return `parsed` with the faults of the node that says why the run ended; the others say that a peer is gone. Of
    two nodes whose ranks died in the same second it is the one that lost no peer."""
    faults = sorted((one.faults for one in _by_itself(nodes)), key=lambda faults: faults.aftermath is not None)
    sorts = ("root", "out_of_memory", "death", "aftermath", "interrupted")
    first = next((one for sort in sorts for one in faults if getattr(one, sort) is not None), Faults())
    return changed(parsed, faults=first)


def _join_power(logs: Sequence[Path], target: Path) -> None:
    """Write the samples of all nodes to `target`, a device by its node and number. Each node has a clock of its own, so
    the others are shifted to that of the node whose steps are printed, by what their samples say of the time of day."""
    found = {log: log.parent / power.FILE for log in logs if (log.parent / power.FILE).is_file()}
    if len(logs) == 1 and found:
        shutil.copyfile(found[logs[0]], target)
    if len(logs) < 2 or len(found) < len(logs):
        return
    samples = {log: [*_samples(file)] for log, file in found.items()}
    offsets = {log: _offset(lines) for log, lines in samples.items()}
    main = max(logs, key=lambda log: len(parsers.parse(log).steps))
    if None in offsets.values():
        return
    rows = []
    for node, log in enumerate(logs):
        shift = (offsets[log] or 0.0) - (offsets[main] or 0.0)
        for one in samples[log]:
            if one.get("monotonic_s") is not None:
                one["monotonic_s"] += shift
            rows.append({**one, "device": f"node{node}/{one.get('device')}"})
    target.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _samples(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            sample = json.loads(line)
        except ValueError:  # cut off by the end of the job
            continue
        if isinstance(sample, dict):
            yield sample


def _offset(samples: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the time of day at which a node's clock was 0, in seconds; None: its samples do not say. A clock that was
    set meanwhile moves few of them."""
    times = [
        float(one["time_unix_s"]) - float(one["monotonic_s"])
        for one in samples
        if one.get("monotonic_s") is not None and one.get("time_unix_s") is not None
    ]
    return median(times) if times else None
