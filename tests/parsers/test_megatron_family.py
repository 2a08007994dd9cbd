"""Megatron and its forks: what their lines state, in every spelling, and what noise does not change."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from parsers.record import Stall, Validation
from tests.parsers.helpers import FIXTURES, parse_text, read, unplaced

MODERN = (FIXTURES / "megatron_modern.log").read_text()


def test_without_time_stamps_the_second_iteration_stays_as_printed() -> None:
    (run,) = parse_text(MODERN.replace(" [2026-05-01 10:00:", " ["))
    assert run.steps[1].step_time_s == 2.251


def test_a_checkpoint_without_time_stamps_takes_its_timers_time() -> None:
    lines = (
        "  successfully saved checkpoint from iteration      40 to /c [ t 1/1, p 1/1 ]\n"
        "(min, max) time across ranks (ms):\n"
        "    save-checkpoint ................................: (6239.11, 6240.02)"
    )
    assert read("megatron", lines) == [Stall(line=1, kind="checkpoint", seconds=6.24002, iteration=40)]


def test_validation_lines() -> None:
    for line, iteration, split in (
        ("validation loss at iteration 500 | lm loss value: 6.3E+00 | lm loss PPL: 5.5E+02 | ", 500, "valid"),
        (" validation loss at iteration 500 on test set | lm loss value: 6.3E+00 | ", 500, "test"),
        ("validation results at iteration 500 | lm_loss value: 6.3E+00 | lm_loss_ppl value: 5.5E+02 | ", 500, "valid"),
        ("test loss at the end of training for val data | lm loss value: 6.3E+00 | ", None, "test"),
    ):
        (point,) = (event for event in read("megatron", line) if isinstance(event, Validation))
        assert (point.iteration, point.loss, point.split) == (iteration, 6.3, split)


@pytest.mark.parametrize(("total", "unit"), [("191.98", 2**30), ("206.14", 10**9), ("255.98", 2**30), ("309.2", 10**9)])
def test_the_unit_behind_primus_gb_follows_from_the_full_memory(total: str, unit: int) -> None:
    line = (FIXTURES / "primus_l.log").read_text().splitlines()[-2].replace("191.98", total)
    (run,) = parse_text(line)
    assert run.steps[0].memory_bytes == round(34 * unit)


def test_a_memory_of_no_known_size_has_no_unit() -> None:
    (run,) = parse_text((FIXTURES / "primus_l.log").read_text().splitlines()[-2].replace("191.98", "100.00"))
    assert run.effective["world_size"].value == 8  # by the prefix rank-7/8, where no dump states it
    assert run.steps[0].memory_bytes is None


def test_torchtitan_before_its_first_step() -> None:
    assert parse_text("[rank0]:Training starts at step 1, with total steps 10 (warmup 2)")[0].framework == "torchtitan"


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_terminals_wraps_are_undone(width: int) -> None:
    line = next(li for li in MODERN.splitlines() if "iteration        3/" in li)
    complete = unplaced(line.encode())
    wrapped = "\n".join(line[at : at + width] for at in range(0, len(line), width))
    assert unplaced(wrapped.encode() + b"\n  something else\n") == complete


def test_what_another_rank_glued_into_a_number_costs_that_number_only() -> None:
    line = MODERN.splitlines()[-3]
    (complete,), (glued,) = (
        unplaced(line.encode()),
        unplaced(line.replace("lm loss: 6", "lm loss: 6[rank3]: hello").encode()),
    )
    assert glued.loss is None
    assert replace(glued, loss=complete.loss) == complete


def test_a_restart_and_a_second_run_are_reported_apart() -> None:
    lines = [line for line in MODERN.splitlines() if "elapsed time" in line]
    (run,) = parse_text("\n".join([*lines[:6], "loading", *(line.replace("loss: ", "loss: 1") for line in lines[4:])]))
    assert [step.iteration for step in run.steps] == list(range(1, 9))
    assert [(restart.steps, restart.line) for restart in run.restarts] == [(4, 8)]
    first, second = parse_text(MODERN + MODERN)
    assert [len(part.steps) for part in (first, second)] == [8, 8]
    lines_before = len(MODERN.splitlines())
    assert second.effective["hidden_size"].line == first.effective["hidden_size"].line + lines_before


def test_what_ends_a_run_stays_with_it_and_a_loaded_start_loses_nothing() -> None:
    loaded = "  successfully loaded checkpoint from /pretrained [ t 1/1, p 1/1 ] at iteration 0\n"
    first, second = parse_text(MODERN + loaded + MODERN)
    assert [len(run.steps) for run in (first, second)] == [8, 8]
    assert [[point.split for point in run.validations] for run in (first, second)] == [["valid", "test"]] * 2
    assert first.completed
    half = MODERN.replace("[after training is done]", "").replace("end of training for test data", "")
    assert [run.completed for run in parse_text(half + MODERN)] == [False, True]


def test_many_steps_are_kept_on_disk_and_are_the_same() -> None:
    line = MODERN.splitlines()[-3]
    lines = [line.replace("       8/       8", f"{i:8d}/   10000") for i in range(1, 10_001)]
    (run,) = parse_text("\n".join(lines))
    assert len(run.steps) == 10_000
    assert [step.step for step in run.steps] == list(range(10_000))
    assert run.steps[-1] == replace(run.steps[5000], step=9999, iteration=10_000, line=10_000)
    assert [step.lr_used for step in run.steps[:3]] == [None, run.steps[0].lr, run.steps[0].lr]


def test_bridge_of_2025_lists_its_config_in_sections() -> None:
    lines = """Configuration Summary (Non-Default Values vs Megatron Core)
[optimizer] Non-default values (vs Mcore OptimizerConfig):
  lr: 0.001  (Mcore default: None)
[model] Non-default values (vs Mcore TransformerConfig):
  hidden_size: 128  (Mcore default: 0)
  normalization: 'RMSNorm'  (Mcore default: 'LayerNorm')
  params_dtype: torch.bfloat16  (Mcore default: torch.float32)

[train]:
  global_batch_size: 4
[rng]:
  seed: 1234"""
    log = (FIXTURES / "megatron_bridge.log").read_text().splitlines()
    steps_of = [line for line in log if "Step Time" in line or "|" in line]
    (run,) = parse_text("\n".join([lines, *steps_of]))
    settings = {name: reading.value for name, reading in run.effective.items()}
    assert settings == {
        "lr": 0.001,
        "hidden_size": 128,
        "normalization": "RMSNorm",
        "params_dtype": "bfloat16",
        "global_batch_size": 4,
        "seed": 1234,
    }


def test_our_mark_before_bridges_late_dump_begins_no_second_run() -> None:
    lines = (FIXTURES / "megatron_bridge.log").read_text().split("\n")
    first = next(number for number, line in enumerate(lines) if " iteration        1/" in line)
    mark = '[tprimat] step {"step": 0, "lr_used": 7.5e-05, "loss": 9.8940039, "end_monotonic_s": 12.5}'
    runs = parse_text("\n".join([*lines[:first], mark, *lines[first:]]))
    (run,) = runs
    assert run.effective.keys() == parse_text("\n".join(lines))[0].effective.keys()
    assert (run.steps[0].loss, run.steps[0].end_monotonic_s) == (9.8940039, 12.5)


def test_an_iteration_line_behind_or_before_bridges_step_time_in_one_line_is_read() -> None:
    text = (FIXTURES / "megatron_bridge.log").read_text()
    pair = r"(Step Time : \S+ GPU utilization: \S+GPU)\n( \[[^\n]* iteration        [1357]/[^\n]*\n)"
    glued = re.sub(pair, r"\1\2\n", text)
    assert glued.count("/GPU [") == 4
    (run,), (complete,) = parse_text(glued), parse_text(text)
    assert [replace(step, line=0) for step in run.steps] == [replace(step, line=0) for step in complete.steps]
    (run,) = parse_text(re.sub(pair, lambda match: f"{match[2].rstrip()}{match[1]}\n\n", text))
    for field in ("iteration", "loss", "lr", "step_time_s", "skipped"):
        assert [getattr(step, field) for step in run.steps] == [getattr(step, field) for step in complete.steps]
