"""Logs of several programs in one file: a record of each, under the name of who made it, whoever comes first."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from parsers import DIALECTS
from parsers.cli import discover
from parsers.dialects import load
from tests.parsers.helpers import FIXTURES, all_runs, parse_text

# Of each framework a log that begins with its first step.
PROGRAMS = {
    "automodel_tiny": ("automodel", 3),
    "composer_tiny": ("composer", 3),
    "gpt_neox": ("gpt_neox", 8),
    "hf_trainer": ("hf", 3),
    "lightning_tiny": ("lightning", 6),
    "litgpt_tiny": ("litgpt", 4),
    "llm_c_tiny": ("llm_c", 4),
    "levanter_tiny": ("levanter", 4),
    "lingua_tiny": ("lingua", 3),
    "maxtext_tiny": ("maxtext", 8),
    "megatron_bridge": ("megatron_bridge", 8),
    "megatron_deepspeed_ezpz": ("megatron_deepspeed", 8),
    "megatron_modern": ("megatron", 8),
    "modded_nanogpt_tiny": ("modded_nanogpt", 3),
    "nanochat_tiny": ("nanochat", 4),
    "nanogpt_tiny": ("nanogpt", 4),
    "nanotron_tiny": ("nanotron", 3),
    "nemo1_dllogger": ("nemo1", 7),
    "nemo2_tiny": ("nemo2", 6),
    "olmo_core_tiny": ("olmo", 3),
    "primus_v2651": ("primus", 8),
    "torchtitan_tiny": ("torchtitan", 3),
}


def bytes_of(name: str) -> bytes:
    return (FIXTURES / f"{name}.log").read_bytes().rstrip(b"\n") + b"\n"


@pytest.mark.parametrize("first", PROGRAMS)
def test_two_programs_make_two_records_in_their_order(first: str) -> None:
    for second in {*PROGRAMS} - {first}:
        runs = all_runs(bytes_of(first) + bytes_of(second))
        assert [(run.dialect, len(run.steps)) for run in runs] == [PROGRAMS[first], PROGRAMS[second]], second


def test_a_run_twice_states_its_total_twice() -> None:
    for name in ("gpt_neox", "maxtext_tiny", "megatron_bridge", "megatron_modern", "nemo1_dllogger", "primus_v2651"):
        (alone,) = all_runs(bytes_of(name))
        assert [run.train_iters for run in all_runs(bytes_of(name) * 2)] == 2 * [alone.train_iters], name


def test_every_dialect_that_begins_a_program_is_tried() -> None:
    beside = {"deepspeed", "mllog", "primus_torchtitan"}  # in logs of others, or like another
    assert {dialect for dialect, _ in PROGRAMS.values()} ^ set(DIALECTS) == beside, "without a line in PROGRAMS"


def test_the_values_of_the_second_are_those_that_it_has_alone() -> None:
    for first, second in itertools.permutations(("torchtitan_tiny", "nemo2_tiny", "maxtext_tiny"), 2):
        (alone,), runs = all_runs(bytes_of(second)), all_runs(bytes_of(first) + bytes_of(second))
        expected = [(s.step, s.loss, s.line + bytes_of(first).count(b"\n")) for s in alone.steps]
        assert [(s.step, s.loss, s.line) for s in runs[1].steps] == expected
    line = "{{'loss': {0}.5, 'learning_rate': 1.5e-05, 'epoch': 0.{0}, 'global_step/max_steps': '{0}/9'}}\n"
    swift = "".join(["** Running training **\n", *["no loss\n"] * 20, *map(line.format, range(1, 9))]).encode()
    assert [run.train_iters for run in all_runs(swift * 2)] == [9, 9]


def test_a_dialect_that_stands_inside_another_is_no_program_of_its_own() -> None:
    steps = "".join(
        f"{{'loss': {5 - i / 10}, 'learning_rate': 1e-05, 'epoch': 0.{i}, 'global_step/max_steps': '{i}/9'}}\n"
        f"[timer.py] epoch=0/micro_step={i}/global_step={i}, RunningAvgSamplesPerSec=2.5, CurrSamplesPerSec=2.5\n"
        for i in range(1, 10)
    )
    first = "[timer.py] epoch=0/micro_step=0/global_step=1, RunningAvgSamplesPerSec=2.5, CurrSamplesPerSec=2.5\n"
    (run,) = parse_text(first + steps)
    assert (run.dialect, len(run.steps), run.steps[0].loss) == ("hf", 9, 4.9)
    line = "{{'loss': {0}.5,{1}'learning_rate': 1.5e-05, 'epoch': 0.1}}\n"  # of two ranks, one of them broken
    assert [len(run.steps) for run in parse_text("".join(line.format(i, at) for i in range(9) for at in " \n"))] == [9]


def test_a_line_of_nemo_is_no_iteration_line_of_megatron() -> None:
    assert load("megatron").read_step(1, "Training epoch 0, iteration 1/7 | lr: 0.0005 | loss: 6.976") is None


def test_copies_and_logs_without_steps_are_reported_before_other_files(tmp_path: Path) -> None:
    for n in range(30):
        (tmp_path / f"a{n}.py").write_text("print('iteration')\n")
    (tmp_path / "rank0.log").write_bytes(bytes_of("maxtext_tiny"))
    (tmp_path / "rank1.log").write_bytes(bytes_of("maxtext_tiny"))
    found, passed = discover([tmp_path])
    assert (len(found), len(passed)) == (1, 31) and passed[0].why.startswith("the same steps as ")
