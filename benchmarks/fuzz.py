"""How much hostile input the readers of logs and records bear.

    python benchmarks/fuzz.py --logs 20000 --records 5000 --seed 1

A log is a real one of tests/parsers/fixtures with lines cut, doubled, swapped, spliced with another dialect's, with
strange numbers and raw bytes; a record is a written one whose run.json or steps.jsonl is damaged. Whatever it is, a log
is read without an exception, and its record is written and read again as it was written; a damaged record is read, or
refused by an error for users; what was read can be summarised and written. Ends with a traceback at the first damage
that is not borne, and its number."""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from conf.errors import UserError
from metrics import summarise
from parsers import Ending, Record, assemble, judge, parse_all
from parsers.storage import RUN_FILE, STEPS_FILE, read, run_file, write

ROOT = Path(__file__).parents[1]
LOGS = [path.read_bytes() for path in sorted((ROOT / "tests" / "parsers" / "fixtures").glob("*.log"))]
LINES = sorted({line for log in LOGS for line in log.split(b"\n") if line})
NUMBERS = re.compile(rb"(?<=[ =:,])-?[\d.]+")
STRANGE = (
    b"-5",
    b"1e308",
    b"1e999",
    b"nan",
    b"9" * 25,
    b"-1e9",
    b"1.5",
    b"007",
    b"true",
    b"null",
    b'"x"',
    b"{}",
    b"[]",
)
BYTES = (
    b"\r",
    b"\0",
    b"\x1b[31m",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    "\u202e".encode(),
    b"9" * 400,
    b"|",
    b"{",
    b'"',
    b"\n",
)
_Damage = Callable[[random.Random, bytes], bytes]


def _number(chance: random.Random, text: bytes) -> bytes:
    found = [match.span() for match in NUMBERS.finditer(text)]
    start, end = chance.choice(found) if found else (0, 0)
    return text[:start] + chance.choice(STRANGE) + text[end:]


def _bytes(chance: random.Random, text: bytes) -> bytes:
    at = chance.randrange(len(text) + 1)
    put = chance.choice(BYTES) if chance.random() < 0.5 else chance.randbytes(chance.randrange(1, 12))
    return text[:at] + put + text[at + chance.choice((0, 0, 1, 40)) :]


def _cut(chance: random.Random, text: bytes) -> bytes:
    return text[: chance.randrange(len(text) + 1)]


def _lines(chance: random.Random, text: bytes) -> bytes:
    """Double, drop or swap lines."""
    lines = text.split(b"\n")
    a, b = sorted(chance.randrange(len(lines) + 1) for _ in range(2))
    return b"\n".join(chance.choice((lines[:b] + lines[a:], lines[:a] + lines[b:], lines[a:] + lines[:a])))


def _spliced(chance: random.Random, text: bytes) -> bytes:
    """Put lines of other dialects between."""
    lines = text.split(b"\n")
    for _ in range(chance.randrange(1, 6)):
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(LINES))
    return b"\n".join(lines)


def _key(chance: random.Random, text: bytes) -> bytes:
    """Rename, or leave out, what is between two quotation marks."""
    words = [match.span() for match in re.finditer(rb'"[^"\n]*"', text)]
    start, end = chance.choice(words) if words else (0, 0)
    return text[:start] + chance.choice((b'""', b'"schema_version"', b'"step"', b'"\\ud800"', b"7")) + text[end:]


DAMAGES: tuple[_Damage, ...] = (_number, _number, _bytes, _cut, _lines, _spliced)


def damaged(chance: random.Random, text: bytes, ways: tuple[_Damage, ...]) -> bytes:
    """Return `text` with one to four damages."""
    for _ in range(chance.randrange(1, 5)):
        text = chance.choice(ways)(chance, text)
    return text


def fuzz_log(chance: random.Random, folder: Path) -> str:
    """Read a damaged log, write its record, and read this again; return what became of it."""
    for run in parse_all([damaged(chance, chance.choice(LOGS), DAMAGES)]):
        known = Record(id="a", name="a", provenance="imported", status="unknown")
        record = assemble(run, judge(Ending(), run), known)
        summarise(record)
        write(record, folder)
        once = read(folder)
        write(once, folder)
        assert read(folder) == once, "a record that is written again is another one"
        assert len(once.steps) <= len(record.steps)
    return "with steps" if once.steps else "without steps"


def fuzz_record(chance: random.Random, folder: Path, written: Mapping[str, bytes]) -> str:
    """Damage one file of a record; return whether it was refused."""
    name = chance.choice((RUN_FILE, STEPS_FILE))
    for file, content in written.items():
        (folder / file).write_bytes(content)
    (folder / name).write_bytes(damaged(chance, written[name], (*DAMAGES, _key, _key)))
    if name == STEPS_FILE and chance.random() < 0.8:  # else refused by its hash alone: as of a record without one
        about = json.loads(written[RUN_FILE])
        (folder / RUN_FILE).write_text(json.dumps({**about, "steps_file": None}), encoding="utf-8")
    try:
        record = read(folder)
    except UserError:
        return "refused"
    summarise(record)
    write(record, folder)
    assert run_file(read(folder)).id == record.id or not record.id
    return "read"


def main() -> int:
    """Fuzz both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=1000)
    parser.add_argument("--records", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        good = next(run for run in parse_all([LOGS[3]]))
        write(
            assemble(good, judge(Ending(), good), Record(id="a", name="a", provenance="imported", status="unknown")),
            folder,
        )
        written = {name: (folder / name).read_bytes() for name in (RUN_FILE, STEPS_FILE)}
        for what, count in (("logs", options.logs), ("records", options.records)):
            began, became = time.process_time(), Counter[str]()
            for number in range(count):
                chance = random.Random(f"{options.seed} {what} {number}")
                try:
                    ended = fuzz_log(chance, folder) if what == "logs" else fuzz_record(chance, folder, written)
                except Exception as error:
                    print(f"{what} {number} of seed {options.seed}: {type(error).__name__}: {error}")
                    raise
                became[ended] += 1
            ends = ", ".join(f"{many:,} {word}" for word, many in sorted(became.items()))
            print(f"{count:,} {what}: {ends}; {time.process_time() - began:.1f} s of CPU", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
