"""No input makes a reader raise, hang or disagree with itself: mutated lines, spliced dialects, raw bytes, any cuts."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from parsers import DIALECTS, Ending, Record, Step, assemble, driver, judge, parse_all
from parsers.dialects import load
from parsers.reader import Parser
from parsers.record import RunFile
from parsers.storage import dumps, run_file

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.log"))
OTHERS = (
    b'[tprimat] facts {"host": "a\\ud800"}',
    *(b"Traceback (most recent call last):", b"torch.OutOfMemoryError: CUDA out of memory."),
    *(b"Root Cause (first observed failure):", b"  rank      : 1 (local_rank: 1)", b"  exitcode  : -9 (pid: 7)"),
)
LINES = sorted({*OTHERS, *(line for path in FIXTURES for line in path.read_bytes().split(b"\n") if line)})


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Return a line of some dialect, as it is, with another number, cut, doubled, with bytes put in, or spliced."""
    line = draw(st.sampled_from(LINES))
    strange = st.sampled_from([b"-5", b"1e308", b"1e150", b"9" * 20, b"-1e9"])
    numbers = [match.span() for match in re.finditer(rb"(?<=[ =:])[\d.]+", line)]
    if len(numbers) > 0 and draw(st.booleans()):
        start, end = draw(st.sampled_from(numbers))
        return line[:start] + draw(strange) + line[end:]
    at = draw(st.integers(0, len(line)))
    other = draw(st.sampled_from(LINES))
    odd = st.sampled_from([b"\r", b"\0", b"\x1b[31m", b"nan", b"9" * 400, b"|"])
    middle = draw(st.one_of(st.binary(max_size=12), odd))
    rest = draw(st.sampled_from([line[at:], b"", other, other[len(other) // 2 :]]))
    return line[:at] + middle + rest


def marks() -> st.SearchStrategy[bytes]:
    """Return lines of our own kind, with values of any type under the names that the parser knows."""
    names = ["train_iters", "completed", "iteration", "step", "loss", "cautions", *RunFile.__struct_fields__]
    plain: tuple[st.SearchStrategy[Any], ...] = (
        *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
        *(st.just([1]), st.just({})),
    )
    kinds = st.sampled_from(["facts", "step", "resumed", "effective", "configured", "requested"])
    return st.builds(
        lambda kind, mark: f"[tprimat] {kind} {json.dumps(mark)}".encode(),
        kinds,
        st.dictionaries(st.sampled_from(names), st.one_of(*plain), max_size=4),
    )


def texts() -> st.SearchStrategy[bytes]:
    lines = st.lists(st.one_of(mutated(), marks(), st.binary(max_size=60)), max_size=25)
    return lines.map(b"\n".join)


def check(data: bytes) -> None:
    for run in parse_all(data.split(b"\n")):
        record = assemble(run, judge(Ending(), run), Record(id="a", name="a", provenance="imported", status="unknown"))
        assert msgspec.convert(json.loads(dumps(run_file(record))), RunFile) == run_file(record)
        assert msgspec.json.decode(dumps(run.steps), type=tuple[Step, ...]) == run.steps
        numbers = [step.step for step in run.steps]
        assert numbers == sorted(set(numbers))


@given(texts())
def test_no_text_makes_it_raise_and_its_record_can_be_written(data: bytes) -> None:
    check(data)


def test_numbers_that_cannot_be() -> None:
    for name, printed, strange in (
        ("nanotron_tiny", b" 1.05M | grad_norm", b" -5 | grad_norm"),
        ("hf_trainer", b"'epoch': 0.16}", b"'epoch': 1e199}"),
        ("hf_trainer", b"'eval_runtime': 7", b"'eval_runtime': -7"),
        ("nemo1_dllogger", b"global_step=0.000", b"global_step=-5.00"),
    ):
        data = (FIXTURES[0].parent / f"{name}.log").read_bytes()
        assert printed in data
        check(data.replace(printed, strange))


@given(texts(), st.sampled_from(sorted(DIALECTS)))
def test_no_forced_dialect_raises_nor_does_it_of_a_line_alone(data: bytes, dialect: str) -> None:
    assert parse_all(data.split(b"\n"), dialect)
    for number, line in enumerate(data.split(b"\n"), start=1):
        load(dialect).read_step(number, line.decode("utf-8", "replace"))


@given(st.sampled_from(FIXTURES), st.lists(st.integers(1, 3000), min_size=1, max_size=20))
def test_where_the_bytes_are_cut_changes_nothing(path: Path, sizes: list[int]) -> None:
    data, complete = path.read_bytes(), parse_all(path)
    parser, at, index = Parser(), 0, 0
    while at < len(data):
        size = sizes[index % len(sizes)]
        parser.feed_bytes(data[at : at + size])
        at, index = at + size, index + 1
    assert parser.finish() == complete


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_a_log_that_is_read_while_it_grows_ends_as_the_complete_one(path: Path) -> None:
    parser, known = Parser(), 0
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines):
        parser.feed_bytes(line)
        if number % 2 == 0 or number == len(lines) - 1:
            known = max(known, len(parser.result().steps))
    assert parser.finish() == parse_all(path)
    assert known > 0 or path.stem == "megatron_bridge_rank0"  # waits for a line with a number


@pytest.mark.long
@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_megabytes_in_one_line_take_no_longer_than_in_many(dialect: str) -> None:
    """The line is cut, and no pattern is worse than linear in what is left of it."""
    marks = load(dialect).marks
    piece = b" ".join((*marks, b"a.b_c: 1.5/2 | x=3 (", b"[" * 40, b"9" * 40)) * 20
    line = piece * (3_000_000 // len(piece) + 1)
    for data in (line, line.replace(b" ", b"\r"), b"a" * 3_000_000, b" " * 3_000_000):
        began = time.process_time()
        parse_all([data + b"\n"], dialect)
        assert time.process_time() - began < 10


LAYOUTS = yaml.safe_load((Path(__file__).parents[2] / "benchmarks" / "step_lines.yaml").read_text())
STRANGE = [*"\t\r-|{K%,٣", "", "  ", "-5", "\x1b[31m", "[31m", "nan", "1e999", "9" * 20, "007", "1_0", "+1"]
STRANGE += ["1e-05", "2e+03", "GB", "^M", "iteration 8/ 90", "iteration 8/ 90 | "]


@st.composite
def altered(draw: st.DrawFn, line: str) -> str:
    """Return a line like this one: other digits, strange words, cut, or twice."""
    for _ in range(draw(st.integers(0, 4))):
        runs = [match.span() for match in re.finditer("[0-9]+", line)] or [(0, 0)]
        at, end = draw(st.one_of(st.sampled_from(runs), st.integers(0, len(line)).map(lambda at: (at, at + at % 3))))
        strange = st.sampled_from(STRANGE)
        line = line[:at] + draw(st.one_of(st.text("0123456789", max_size=20), strange)) + line[end:]
    cut = draw(st.integers(0, len(line)))
    return draw(st.sampled_from((line, line, line, line[:cut], line + line, line[:cut] + "\n" + line[cut:])))


@given(st.data())
@pytest.mark.parametrize("dialect", [pytest.param(name, marks=pytest.mark.long) for name in sorted(LAYOUTS)])
def test_the_layout_of_the_line_before_gives_what_the_plain_way_gives(dialect: str, data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(FIXTURES)).read_text().split("\n")
    own = LAYOUTS[dialect]["line"].format(i=7, n=90, s=64, z=6, m=89, loss=2.5)
    line = data.draw(st.sampled_from([own, *(line for line in lines if load(dialect).values(line))]))
    log = [*lines[-40:], line, *(data.draw(altered(line)) for _ in range(4)), line]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_LAYOUT_COSTS", 0)
        quick = parse_all("\n".join(log).split("\n"), dialect)
        patch.setattr(driver.Driver, "quick", lambda *_: None)
        assert quick == parse_all("\n".join(log).split("\n"), dialect)
