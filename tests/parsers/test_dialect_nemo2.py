"""NeMo 2: a line a step, and what goes wrong with it."""

from __future__ import annotations

import re

from parsers.record import Stall, Validation
from tests.parsers.helpers import FIXTURES, parse_text, read, steps_of

LINE = (
    "Training epoch 2, iteration 7/999 | lr: 6.897e-06 | global_batch_size: 512 | global_step: 45 "
    "| reduced_train_loss: 11.02 | train_step_timing in s: 47.12 | consumed_samples: 23552"
)


def averaged(k: int, first: int, count: int, consumed: bool = True) -> str:
    """Return what a printer with a log interval of k prints: means over k steps, of all but global_step."""
    lines = []
    for last in range(first + k - 1, first + k * count, k):
        samples = 32 * sum(range(last - k + 2, last + 2)) / k
        shown = f" | consumed_samples: {samples:.0f}" if consumed and last >= k else ""
        lines.append(
            f"Training epoch 0, iteration {last}/99 | lr: 0.001 | global_batch_size: 32 | global_step: {last} "
            f"| reduced_train_loss: 6.5 | train_step_timing in s: 0.5{shown}"
        )
    return "\n".join(lines)


def test_the_order_of_the_fields_does_not_matter() -> None:
    head, *fields = LINE.split(" | ")
    (step,) = steps_of("nemo2", " | ".join([head, *reversed(fields)]))
    assert step == steps_of("nemo2", LINE)[0]
    assert (step.step, step.iteration, step.lr_used, step.consumed_samples) == (45, 7, 6.897e-06, 23552)


def test_a_terminal_may_wrap_anywhere() -> None:
    complete = steps_of("nemo2", f"{LINE}\n{LINE.replace('step: 45', 'step: 46')}")
    for at in range(len("Training epoch 2, iteration 7/999 |"), len(LINE) - len(": 23552")):
        broken = f"{LINE[:at]}\n{LINE[at:]}\n{LINE.replace('step: 45', 'step: 46')}"
        assert steps_of("nemo2", broken)[-1].step == 46
        assert steps_of("nemo2", broken)[0] == complete[0], broken


def test_a_cut_number_is_no_number() -> None:
    (step,) = steps_of("nemo2", LINE[: LINE.index(".12 |") + 1])
    assert (step.step, step.loss, step.step_time_s) == (45, 11.02, None)


def test_what_stands_behind_the_last_number_does_not_hide_it() -> None:
    for tail in ('\\n",', " (rank 0)"):
        assert steps_of("nemo2", LINE + tail)[0].consumed_samples == 23552, tail
    assert steps_of("nemo2", LINE + "[NeMo W 2026] hello")[0].consumed_samples is None  # which may have cut it


def test_means_over_an_interval_are_reported_apart() -> None:
    for k in (2, 5, 10):
        found = steps_of("nemo2", averaged(k, 0, 4))
        assert [step.interval_steps for step in found[1:]] == [k] * 3
        for step in found:
            assert "step_time_s:interval_mean" in step.flags
            assert "loss:interval_mean" in step.flags
            assert (step.lr_used, step.consumed_samples) == (None, None)


def test_a_line_that_was_left_out_makes_no_mean() -> None:
    gone = LINE.replace("iteration 7", "iteration 10").replace("step: 45", "step: 48").replace("23552", "25088")
    assert [(step.interval_steps, step.flags) for step in steps_of("nemo2", f"{LINE}\n{gone}")] == [(1, ()), (1, ())]


def test_where_a_log_begins_in_the_middle_the_interval_is_open() -> None:
    (step,) = steps_of("nemo2", LINE.replace(" | consumed_samples: 23552", ""))
    assert (step.interval_steps, step.flags) == (None, ())
    assert step.lr_used is None


def test_val_loss_at_the_start_belongs_to_no_known_step() -> None:
    events = read("nemo2", f"{LINE} | val_loss: 3.624\n{LINE.replace('step: 45', 'step: 46')} | val_loss: 3.624")
    assert [(e.step, e.loss) for e in events if isinstance(e, Validation)] == [(None, 3.624)]


def test_a_zero_memory_is_a_stand_in_not_a_measurement() -> None:
    (step,) = steps_of("nemo2", LINE.replace("| lr", "| max_memory_reserved: 0 | lr"))
    assert (step.memory_bytes, step.memory_kind) == (None, None)


def test_an_epoch_without_max_steps_is_not_the_plan() -> None:
    line = LINE.replace("7/999", "7/37")
    assert not [e for e in read("nemo2", line) if getattr(e, "name", "") == "train_iters"]


def test_save_lines() -> None:
    text = "[NeMo I] Global Checkpoint Save : Rank: 0 : Iteration: 9 : Start time: 1737412105.5s : Save duration: 9.4s"
    assert read("nemo2", text) == [Stall(line=1, kind="checkpoint", seconds=9.4, iteration=9)]


def test_our_marks_refine_its_lines_before_or_after_them() -> None:
    lines = FIXTURES.joinpath("nemo2_tiny.log").read_text().splitlines()
    for order in (1, -1):
        marked: list[str] = []
        for text in lines:
            found = re.search(r"global_step: (\d+)", text)
            mark = f'[tprimat] step {{"step": {found[1]}, "lr_used": 0.125, "end_monotonic_s": 1.5}}' if found else ""
            marked += [text, mark][::order]
        (run,) = parse_text("\n".join(marked))
        assert [step.step for step in run.steps] == [0, 1, 2, 3, 4, 5]
        assert {step.lr_used for step in run.steps} == {0.125}
        assert [step.loss for step in run.steps] == [6.939, 6.976, 6.947, None, 6.9, 6.89]


def test_two_steps_in_one_line() -> None:
    found = steps_of("nemo2", LINE + LINE.replace("step: 45", "step: 46").replace("11.02", "11.5"))
    assert [(step.step, step.loss, step.consumed_samples) for step in found] == [(45, 11.02, 23552), (46, 11.5, 23552)]
