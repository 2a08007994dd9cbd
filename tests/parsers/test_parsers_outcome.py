"""What became of a run."""

from __future__ import annotations

import pytest

from parsers import Ending, Outcome, Parsed, judge, parse


def steps(*iterations: int, total: int = 3, loss: str = "1.5") -> list[str]:
    return [f" iteration {i}/ {total} | lm loss: {loss} | number of nan iterations: 0 |" for i in iterations]


def read(*lines: str) -> Parsed:
    return parse(list(lines), "megatron")


TORCHRUN_TEXT = """W1121 13:00:00 torch/distributed/elastic/api.py:908] Sending process 12 closing signal SIGTERM
E1121 13:00:00 torch/distributed/elastic/api.py:882] failed (exitcode: -9) local_rank: 1 (pid: 13) of binary: python
Traceback (most recent call last):
  File "run.py", line 1, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
engine.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_13:00:00
  host      : box
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 13)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 13
============================================================"""
TORCHRUN = TORCHRUN_TEXT.splitlines()


def test_completed_only_if_every_step_was_done() -> None:
    assert judge(Ending(exit_code=0), read(*steps(1, 2, 3))) == Outcome("completed")
    short = judge(Ending(exit_code=0), read(*steps(1, 2), "[after training is done] datetime: x"))
    assert short.status == "failed"
    assert "iteration 2 of 3" in (short.cause or "")


def test_a_log_that_stops_is_unknown() -> None:
    assert judge(Ending(), read(*steps(1, 2))) == Outcome("unknown", None, ("the log ends at iteration 2 of 3",))


def test_a_crash_after_the_last_step_is_a_note() -> None:
    outcome = judge(Ending(exit_code=1), read(*steps(1, 2, 3), "RuntimeError: teardown"))
    assert outcome.status == "completed"
    assert "RuntimeError: teardown" in outcome.notes[0]


def test_the_last_iterations_need_no_line_of_their_own() -> None:
    dump = ("---- arguments ----", "  log_interval ........ 10", "---- end of arguments ----")
    lines = (*dump, *steps(10, 20, total=25), "[after training is done] datetime: x")
    assert judge(Ending(exit_code=0), read(*lines)).status == "completed"
    assert judge(Ending(exit_code=0), read(*lines[:-1])).status == "failed"


@pytest.mark.parametrize(
    "text",
    [
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: you tried",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_out_of_memory(text: str) -> None:
    lines = (*steps(1), text, "[rank0]: RuntimeError: Connection closed by peer", *TORCHRUN)
    assert judge(Ending(exit_code=1), read(*lines)) == Outcome(
        "out_of_memory", text, ("the log ends at iteration 1 of 3",)
    )


def test_the_first_cause_is_not_what_the_others_say_of_it() -> None:
    first = "[rank1]: ValueError: shapes (3,) and (4,) do not fit"
    aftermath = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:9"
    assert judge(Ending(exit_code=1), read(aftermath, first, *TORCHRUN)).cause == first
    assert judge(Ending(exit_code=1), read(aftermath, *TORCHRUN)).cause == "rank 1 died by SIGKILL"
    assert judge(Ending(exit_code=1), read(*TORCHRUN[:2])).cause == "local rank 1 died by SIGKILL"
    assert judge(Ending(exit_code=1), read(aftermath)).cause == aftermath


def test_an_error_that_training_survived_is_no_cause() -> None:
    lines = ("ImportError: no module named apex", *steps(1, 2), "ValueError: real")
    assert judge(Ending(exit_code=1), read(*lines)).cause == "ValueError: real"


def test_a_step_line_of_another_rank_may_follow_the_cause() -> None:
    assert judge(Ending(exit_code=1), read(*steps(1), "ValueError: real", *steps(2))).cause == "ValueError: real"


def test_diverged() -> None:
    nan = judge(Ending(exit_code=3), read(*steps(1), *steps(2, loss="NAN"), "engine: loss is nan at iteration 2"))
    assert nan.status == "diverged"
    assert nan.cause == "loss is not finite at iteration 2 (line 2)"
    assert judge(Ending(exit_code=0), read(*steps(1, 2), *steps(3, loss="inf"))).status == "diverged"
    told = "RuntimeError: Rank 0, node a: found NaN in local forward loss calculation"
    assert judge(Ending(exit_code=1), read(*steps(1), told)) == Outcome(
        "diverged", told, ("the log ends at iteration 1 of 3",)
    )


def test_a_loss_that_recovered_is_a_note() -> None:
    outcome = judge(Ending(exit_code=0), read(*steps(1), *steps(2, loss="nan"), *steps(3)))
    assert outcome.status == "completed"
    assert "iteration 2" in outcome.notes[0]


def test_hung_and_killed() -> None:
    cut = read(*steps(1))
    assert judge(Ending(exit_code=-15, signal_sent="SIGTERM", hung=True), cut).status == "hung"
    asked = judge(Ending(exit_code=1, signal_sent="SIGTERM"), cut)
    assert (asked.status, asked.cause) == ("killed", "ended by SIGTERM from its launcher")
    for code in (-9, 137):
        outside = judge(Ending(exit_code=code), cut)
        assert (outside.status, outside.cause) == ("killed", "ended by SIGKILL from outside")


def test_without_any_error_line_the_exit_code_and_the_last_line_are_told() -> None:
    assert judge(Ending(exit_code=5), read("starting")).cause == "exit code 5 after no iteration; last line: starting"
    assert judge(Ending(exit_code=5), read()).cause == "exit code 5 after no iteration; the log is empty"


def test_talk_of_nan_after_the_last_step_does_not_undo_it() -> None:
    assert judge(Ending(exit_code=0), read(*steps(1, 2, 3), "found NaN in nothing that matters")).status == "completed"
