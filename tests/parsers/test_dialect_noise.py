"""What launchers, terminals and editors do to a log changes no step of it, in any of these dialects."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers import FIXTURES
from msgspec.structs import replace

from parsers import parse_all
from parsers.record import Step

LOGS = {
    "nemo2": "nemo2_tiny.log",
    "nemo1": "nemo1_dllogger.log",
    "torchtitan": "torchtitan_tiny.log",
    "maxtext": "maxtext_tiny.log",
    "nanotron": "nanotron_tiny.log",
    "deepspeed": "deepspeed_tiny.log",
    "composer": "composer_tiny.log",
    "hf": "hf_trainer.log",
    "mllog": "mllog_tiny.log",
}


def ranks(data: bytes) -> bytes:
    """Four ranks under srun --label, each printing all."""
    return b"".join(b"%d: %s\n" % (rank, line) for line in data.splitlines() for rank in range(4))


def prefixed(prefix: bytes) -> Callable[[bytes], bytes]:
    return lambda data: b"".join(prefix + line + b"\n" for line in data.split(b"\n") if line)


NOISE: dict[str, Callable[[bytes], bytes]] = {
    "crlf": lambda data: data.replace(b"\n", b"\r\n"),
    "every line twice": lambda data: b"".join(line + b"\n" + line + b"\n" for line in data.split(b"\n") if line),
    "four ranks": ranks,
    "srun": prefixed(b"0: "),
    "torchrun": prefixed(b"[rank0]:"),
    "Ray": prefixed(b"(pretrain, pid=4112) "),
    "kubectl": prefixed(b"2026-11-21T10:00:00.123456789Z "),
    "quotation": prefixed(b"> "),
    "colours": prefixed(b"\x1b[36m"),
    "colours without ESC": prefixed(b"[1;32m"),
    "NULs": prefixed(b"\0\0\0"),
    "blank lines": lambda data: data.replace(b"\n", b"\n\n"),
    "other text before and after": lambda data: (
        b"# hello\nmake: nothing to be done\n" + data + b"\nSegmentation fault? no.\n"
    ),
    "a broken character": lambda data: b"\xff\xfe\n" + data,
}


def steps(data: bytes, dialect: str | None = None) -> list[Step]:
    runs = parse_all(data.split(b"\n"), dialect)
    assert len(runs) == 1
    return [replace(step, line=0) for step in runs[0].steps]


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("dialect", LOGS)
def test_noise_changes_no_step(dialect: str, noise: str) -> None:
    data = FIXTURES.joinpath(LOGS[dialect]).read_bytes()
    assert steps(NOISE[noise](data)) == steps(data)


@pytest.mark.parametrize("dialect", LOGS)
def test_the_dialect_is_found_and_can_be_forced(dialect: str) -> None:
    (run,) = parse_all(FIXTURES / LOGS[dialect])
    assert run.dialect == dialect
    (forced,) = parse_all(FIXTURES / LOGS[dialect], dialect)
    assert forced.steps == run.steps


@pytest.mark.parametrize("other", LOGS)
@pytest.mark.parametrize("dialect", LOGS)
def test_no_dialect_reads_a_step_in_anothers_log(dialect: str, other: str) -> None:
    if dialect != other and "mllog" not in (dialect, other):
        for run in parse_all(FIXTURES / LOGS[other], dialect):
            assert run.steps == ()
