"""A long steps.jsonl is read block by block, to the same steps, figures and refusals as a short one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from conf.errors import InputError
from metrics import summarise
from parsers import Record, Step, storage, write
from parsers.long_steps import LongSteps
from parsers.record import LARGEST, StepsFile, columns, rows
from parsers.storage import read, read_lazily, read_steps

NAMES = tuple(field.name for field in fields(Step))
FLOATS = st.none() | st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.none() | st.integers(0, LARGEST)
STEPS = st.lists(
    st.builds(
        Step,
        step=st.just(0),
        line=st.integers(1, LARGEST),
        iteration=st.none() | st.integers(-LARGEST, LARGEST),
        lr=FLOATS,
        loss=FLOATS,
        step_time_s=FLOATS,
        memory_bytes=COUNTS,
        memory_kind=st.none() | st.sampled_from(["allocated", "reserved"]),
        nonfinite=st.just(()) | st.just(("loss",)),
        metrics=st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        flags=st.just(()) | st.just(("loss:interval_mean",)),
    ),
    min_size=1,
    max_size=12,
)


@given(STEPS, st.integers(1, 5))
def test_every_field_of_every_step_comes_back(drawn: list[Step], of_a_block: int) -> None:
    steps = [replace(step, step=number) for number, step in enumerate(drawn)]
    long = LongSteps()
    for first in range(0, len(steps), of_a_block):
        long.extend(steps[first : first + of_a_block])
    assert [*long] == steps and len(long) == len(steps)
    assert long[-1] == steps[-1] and long[0] == steps[0] and long[1:] == tuple(steps[1:])
    assert [[*column] for column in columns(long, *NAMES)] == [[*column] for column in columns(steps, *NAMES)]
    assert [*rows(long, "step", "metrics")] == [*rows(steps, "step", "metrics")]


def record(steps: int) -> Record:
    made = tuple(
        Step(
            step=number,
            line=number + 1,
            iteration=number + 1,
            loss=9 - number / 1000,
            step_time_s=0.5 + number % 7 / 100,
            memory_bytes=10**9 + number,
            memory_kind="allocated",
            global_batch_size=8,
            metrics={"max_memory_reserved_bytes": 2e9 + number},
        )
        for number in range(steps)
    )
    sizes = {"seq_length": 64, "global_batch_size": 8, "world_size": 1, "train_iters": steps}
    return Record(
        id="long",
        name="long",
        provenance="measured",
        status="completed",
        framework="megatron",
        platform="nvidia",
        hardware="h100",
        requested=sizes,
        effective={},
        steps=made,
    )


@pytest.fixture
def in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    def written(steps: int) -> Path:
        write(record(steps), tmp_path)
        monkeypatch.setattr(storage, "_BLOCK", 3000)
        storage._kept.cache_clear()
        return tmp_path

    return written


def test_the_steps_and_the_figures_are_those_of_a_short_one(in_blocks: Callable[[int], Path]) -> None:
    folder = in_blocks(9000)
    steps = read_lazily(folder).steps
    assert isinstance(steps, storage.StoredSteps) and isinstance(steps.loaded(), LongSteps)
    assert read(folder) == record(9000)
    assert summarise(read_lazily(folder)) == summarise(record(9000))


@pytest.mark.parametrize(
    ("line", "instead", "says"),
    [
        (70, b"", "not as run.json"),
        (70, b"not JSON", "steps.jsonl:71: is not JSON"),
        (70, b'{"step": 3, "line": 1, "iteration": 4}', "steps.jsonl:71: step 3 after step 69: steps ascend"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_line(
    in_blocks: Callable[[int], Path], line: int, instead: bytes, says: str
) -> None:
    folder = in_blocks(100)
    path = folder / "steps.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[line : line + 1] = [instead] if instead else []
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(InputError) as refused:
        tuple(read_steps(path, read_written(folder) if not instead else None))
    assert says in str(refused.value)


def read_written(folder: Path) -> StepsFile | None:
    return storage._record((folder / "run.json").read_bytes(), folder / "run.json").steps_file
