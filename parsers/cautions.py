"""Cautions: what whoever counts on a stored record must know, and it does not say itself. Nobody can verify its steps,
or its launcher died before it could record how the run ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from conf.arguments import program
from conf.locks import is_held
from parsers.assemble import assemble
from parsers.outcome import Ending, Outcome, judge
from parsers.reader import Parser
from parsers.record import Record, Run
from parsers.scan import read_blocks
from parsers.storage import StoredSteps

UNVERIFIED = (
    f"its steps cannot be verified: the record is older than the hash of them ({program('parse')} LOG -o DIR writes it)"
)
DEAD = "recorded as running, while no launcher is at work on it: its steps, and how it ended, are read from its log"
_NO_WORD = "its launcher ended without recording how"


def settled(record: Record, directory: Path) -> Record:
    """Return the record in `directory` with a note of what it does not say itself; that of a launcher that died, as its
    log has it. A rehearsal's log does not say whether all was played. InputError: the log cannot be read."""
    steps = record.steps
    if record.status != "running":
        old = isinstance(steps, StoredSteps) and steps.written is None and record.provenance != "planned"
        return replace(record, notes=(*record.notes, UNVERIFIED)) if old else record
    if is_held(directory):
        return record
    log = directory / Path(record.log or "train.log").name
    if record.provenance == "rehearsed" or log.is_symlink() or not log.is_file():  # a link may lead to any file
        return replace(record, status="killed", cause=_NO_WORD)
    parser = Parser(None)
    for block in read_blocks(log):
        parser.feed_bytes(block)
    parsed = parser.finish()[-1]
    outcome = judge(Ending(), parsed)
    if outcome.status == "unknown":
        outcome = Outcome("killed", f"{_NO_WORD}, after iteration {parsed.reached}", outcome.notes)
    return assemble(parsed, outcome, replace(record, notes=(*record.notes, DEAD)))


def cautions(runs: Iterable[Run]) -> Iterator[str]:
    """Yield each caution in a line, with the first run that it is about, and how many there are."""
    runs = list(runs)
    for caution in (DEAD, UNVERIFIED):
        about = [run for run in runs if caution in run.record.notes]
        if about:
            more = f" and {len(about) - 1:,} more" if len(about) > 1 else ""
            yield f"{about[0].path}{more}: {caution}"
