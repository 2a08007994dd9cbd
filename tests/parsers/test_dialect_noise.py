"""Read a log of each dialect: all that is read of it, and that what launchers, terminals and editors do changes no
step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import asdict

from parsers import DIALECTS, Parsed, dialects, parse_all
from parsers.dialects import load
from parsers.text import body, cell, colourless
from tests.parsers.helpers import FIXTURES, unplaced

LOGS = {
    "nemo2_tiny": "nemo2",
    "nemo1_dllogger": "nemo1",
    "torchtitan_tiny": "torchtitan",
    "maxtext_tiny": "maxtext",
    "nanotron_tiny": "nanotron",
    "deepspeed_tiny": "deepspeed",
    "composer_tiny": "composer",
    "hf_trainer": "hf",
    "automodel_tiny": "automodel",
    "lingua_tiny": "lingua",
    "olmo_core_tiny": "olmo",
    "levanter_tiny": "levanter",
    "mllog_tiny": "mllog",
    "nanochat_tiny": "nanochat",
    "nanogpt_tiny": "nanogpt",
    "modded_nanogpt_tiny": "modded_nanogpt",
    "llm_c_tiny": "llm_c",
    "litgpt_tiny": "litgpt",
    "lightning_tiny": "lightning",
    "megatron_modern": "megatron",
    "megatron_2021": "megatron",
    "primus_l": "primus",
    "primus_c1": "primus",
    "primus_c2": "primus",
    "primus_v2651": "primus",
    "primus_c3": "primus",
    "megatron_bridge": "megatron_bridge",
    "megatron_bridge_rank0": "megatron_bridge",
    "megatron_deepspeed_ezpz": "megatron_deepspeed",
    "megatron_deepspeed_seconds": "megatron_deepspeed",
    "gpt_neox": "gpt_neox",
}
ALONE = {name for name in DIALECTS if load(name).family != "megatron" and not load(name).companion}
STRANGERS = {log: dialect for log, dialect in LOGS.items() if dialect in ALONE}
"""Logs of dialects of which none reads a line of another."""


def prefixed(prefix: bytes) -> Callable[[bytes], bytes]:
    return lambda data: b"".join(prefix + line + b"\n" for line in data.split(b"\n") if line)


NOISE: dict[str, Callable[[bytes], bytes]] = {
    "crlf": lambda data: data.replace(b"\n", b"\r\n"),
    "srun": prefixed(b"0: "),
    "torchrun": prefixed(b"[rank0]:"),
    "NeMo-Run": prefixed(b"[default0]:"),
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
RANKS: dict[str, Callable[[bytes], bytes]] = {
    "every line twice": lambda data: b"".join(line + b"\n" + line + b"\n" for line in data.split(b"\n") if line),
    "four ranks": lambda data: b"".join(
        b"%d: %s\n" % (rank, line) for line in data.splitlines() if line for rank in range(4)
    ),
}
FAMILY: dict[str, Callable[[bytes], bytes]] = {
    "colours between words": lambda data: data.replace(b" | ", b" \x1b[36m|\x1b[0m "),
    "colours without ESC between words": lambda data: data.replace(b" | ", b" [36m|[0m "),
    "a progress bar before each": prefixed(b"10%|#  | 1/10\r20%|## | 2/10\r"),
}
"""Noise that only Megatron's dialects take, too."""


@pytest.mark.parametrize("name", LOGS)
def test_noise_changes_no_step(name: str) -> None:
    data = (FIXTURES / f"{name}.log").read_bytes()
    expected = unplaced(data)
    noises = NOISE | (FAMILY if load(LOGS[name]).family == "megatron" else {})
    noises |= RANKS if name != "megatron_bridge_rank0" else {}  # its steps have no numbers
    for noise, change in noises.items():
        assert unplaced(change(data)) == expected, noise


def shown(run: Parsed) -> Iterator[str]:
    yield f"{run.dialect} of {run.framework}: {run.train_iters} iterations, completed: {run.completed}"
    yield from (f"{name} = {at.value!r} (line {at.line})" for name, at in run.effective.items())
    yield from (f"fact {name}: {value!r}" for name, value in run.facts.items())
    yield from (f"note: {note}" for note in run.notes)
    for entry in (*run.steps, *run.validations, *run.stalls, *run.restarts):
        values = {name: value for name, value in asdict(entry).items() if value not in (None, (), {})}
        yield f"{type(entry).__name__} {json.dumps(values)}"


@pytest.mark.parametrize("name", LOGS)
def test_all_that_is_read_of_a_log(name: str, golden: Callable[[str, str], None]) -> None:
    runs = parse_all(FIXTURES / f"{name}.log")
    golden(f"parsers/{name}.txt", "".join(f"{line}\n" for run in runs for line in shown(run)))


@pytest.mark.parametrize("name", LOGS)
def test_the_dialect_is_found_and_can_be_forced(name: str) -> None:
    (run,) = parse_all(FIXTURES / f"{name}.log")
    assert run.dialect == LOGS[name]
    (forced,) = parse_all(FIXTURES / f"{name}.log", LOGS[name])
    assert forced.steps == run.steps


def test_every_dialect_has_a_log() -> None:
    modules = {path.stem for path in Path(dialects.__file__).parent.glob("[!_]*.py")}
    assert modules ^ set(DIALECTS) == set(), "in parsers/dialects/, or in the list of its __init__.py, alone"
    assert {*LOGS.values(), "primus_torchtitan"} ^ modules == set(), "without a line in LOGS"


@pytest.mark.parametrize("name", STRANGERS)
def test_no_dialect_reads_a_step_in_anothers_log(name: str) -> None:
    for dialect in STRANGERS.values():
        if dialect != STRANGERS[name]:
            for run in parse_all(FIXTURES / f"{name}.log", dialect):
                assert run.steps == (), dialect


def test_colours_go_and_text_stays() -> None:
    for text, plain in (
        ("\x1b[32mINFO\x1b[0m", "INFO"),
        ("[32mINFO[0m", "INFO"),
        ("[1;31mstep[0m", "step"),
        ("\x1b[Ka\x1b[1A", "a"),
        ("a\0b", "ab"),
        ("[model] [m] [7] [1] [99m] [rank0]", "[model] [m] [7] [1] [99m] [rank0]"),
    ):
        assert colourless(text) == plain


PREFIXES = ("0: ", "12: [default0]:", "[rank3]: ", "> 2: ", "(pretrain, pid=4112) ", "[2026-11-21 10:00:00] ")
MORE = ("(RayTrainWorker pid=12, ip=10.0.0.1) ", "2026-11-21T10:00:00.123456789Z ", "ining-demo/0 [default0]:")


def test_prefixes_go_and_what_is_none_stays() -> None:
    assert {body(f"{prefix}key: 1") for prefix in (*PREFIXES, *MORE)} == {"key: 1"}
    for text in ("key: 1", "  - 1", "    name: x", "", "loss: 1.5"):
        assert body(text) == text


def test_a_cell_is_no_formula_and_a_number_stays_one() -> None:
    values = ("=cmd|' /C calc'!A0", "+1", "@x", "\tx", "a=b", "\x1b[31m", -1.5, None)
    assert [*map(cell, values)] == ["'=cmd|' /C calc'!A0", "'+1", "'@x", "\ufffdx", "a=b", "\ufffd[31m", -1.5, None]
