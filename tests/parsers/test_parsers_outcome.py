"""Test what became of a run."""

from __future__ import annotations

import json

import pytest

from parsers import Ending, Outcome, Parsed, Reading, judge, parse
from parsers.assemble import unreported


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


def test_out_of_memory() -> None:
    for text in (
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: you tried",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "OSError: [Errno 12] Cannot allocate memory",
        "RuntimeError: HIP error: hipErrorOutOfMemory",
        "torch.AcceleratorError: CUDA error: out of memory",
        "MemoryError",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.",
    ):
        lines = (*steps(1), text, "[rank0]: RuntimeError: Connection closed by peer", *TORCHRUN)
        ended = Outcome("out_of_memory", text, ("the log ends at iteration 1 of 3",))
        assert judge(Ending(exit_code=1), read(*lines)) == ended


def test_out_of_memory_in_the_message_below_an_exception() -> None:
    raised = "[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled cuda error"
    last = ("[rank0]: Last error:", "[rank0]: Cuda failure 2 'out of memory'")
    outcome = judge(Ending(exit_code=1), read(raised, *last))
    assert (outcome.status, outcome.cause) == ("out_of_memory", f"{raised} Cuda failure 2 'out of memory'")
    late = ["[rank0]: a line"] * 4
    assert judge(Ending(exit_code=1), read(raised, *late, *last)).status == "failed"


def test_talk_of_memory_or_nan_is_not_the_cause_of_another_fault() -> None:
    for text in (
        "WARNING: Cannot allocate memory for the pinned buffer, falling back to pageable memory",
        "/a/b.py:12: UserWarning: CUDA out of memory in the autotuner",
        "OSError: [Errno 12] Cannot allocate memory, falling back to a copy",
        "  raise RuntimeError('CUDA out of memory')",
        "  description ..................................... CUDA out of memory, found NaN in local grad norm",
        "--note=found NaN in local forward loss calculation",
    ):
        for lines in ((text, "ValueError: real"), ("ValueError: real", "Traceback (most recent call last):", text)):
            outcome = judge(Ending(exit_code=1), read(*steps(1), *lines))
            assert (outcome.status, outcome.cause) == ("failed", "ValueError: real")


def test_what_the_kernel_killed() -> None:
    cut = read(*steps(1), *TORCHRUN)
    outcome = judge(Ending(exit_code=1, oom_kills=2, hung=True), cut)
    assert (outcome.status, outcome.cause) == ("out_of_memory", "the kernel's OOM killer ended 2 processes")
    assert judge(Ending(exit_code=1, oom_kills=1), cut).cause == "the kernel's OOM killer ended 1 process"
    assert judge(Ending(exit_code=1, oom_kills=0), cut).cause == "rank 1 died by SIGKILL"
    assert judge(Ending(exit_code=0, oom_kills=1), read(*steps(1, 2, 3))).status == "completed"


def test_a_refusal_of_the_engine_is_reported_in_full() -> None:
    head = "engine: settings refused, 2 problems"
    first = "settings.json: num_attention_heads: found 8; allowed: a multiple of num_query_groups = 3; try: 6"
    second = "settings.json: lr: found 0; allowed: a number > 0; try: write a plain number, without quotes"
    for prefix in ("", "[default0]:"):
        lines = (head, f"  {first}", f"  {second}", "E1121 failed", "  File 'x.py', line 1", *TORCHRUN)
        outcome = judge(Ending(exit_code=1), read(*(prefix + line for line in lines)))
        assert (outcome.status, outcome.cause) == ("failed", f"{prefix}{head} | {first} | {second}")
    many = judge(Ending(exit_code=1), read(head, *[f"  {first}"] * 50))
    assert len(many.cause or "") == 500


def test_the_first_cause_is_not_what_the_others_say_of_it() -> None:
    first = "[rank1]: ValueError: shapes (3,) and (4,) do not fit"
    aftermath = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:9"
    assert judge(Ending(exit_code=1), read(aftermath, first, *TORCHRUN)).cause == first
    assert judge(Ending(exit_code=1), read(aftermath, *TORCHRUN)).cause == "rank 1 died by SIGKILL"
    assert judge(Ending(exit_code=1), read(*TORCHRUN[:2])).cause == "local rank 1 died by SIGKILL"
    assert judge(Ending(exit_code=1), read(aftermath)).cause == aftermath


def test_an_exception_that_primus_prints_in_colours_through_its_logger_is_the_cause() -> None:
    head = "[\x1b[32m20261128 16:15:37\x1b[0m][\x1b[36mrank-0/1\x1b[0m]\x1b[34m\x1b[1m[DEBUG]    \x1b[0m\x1b[34m\x1b[1m"
    said = "[--------------------------traceback.py:1018] : "
    raised = "TypeError: '<=' not supported between instances of 'float' and 'str'"
    lines = [
        f"{head}{said}Traceback (most recent call last):",
        "\x1b[0m",
        f'{head}{said}  File "train_runtime.py", line 498, in _log_step',
        "    func()",
        "\x1b[0m",
        f"{head}{said}{raised}",
        "\x1b[0m",
        "[NODE-0(vm)] [ERROR] primus launcher exited with code 1",
    ]
    outcome = judge(Ending(exit_code=1), read(*lines))
    assert outcome.status == "failed" and outcome.cause is not None and outcome.cause.endswith(raised), outcome.cause


def test_what_shell_slurm_lsf_and_nccl_say_of_the_end() -> None:
    shell, lsf = "/a/b.sh: line 149: 179417 Killed      torchrun train.py", "TERM_OWNER: job killed by owner."
    slurm = "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-03-14T04:10:00 DUE TO TIME LIMIT ***"
    step = "slurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 2026-03-14T04:10:00 ***"
    hangup = "/a/b.sh: line 149: 179417 Hangup      torchrun train.py"
    exited = "Subject: Job 3329260: <gpt3> in cluster <summit> Exited"
    late = "[rank2]:[E ProcessGroupNCCL.cpp:754] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(…)"
    watchdog = "[rank0]:[rank0]:[E128 13:23:00.7 ProcessGroupNCCL.cpp:1897] [PG ID 0 PG GUID 0(default_pg) Rank 0] "
    watchdog += "Process group watchdog thread terminated with exception: CUDA error: an illegal memory access"
    launcher = "Error: environment generator script not found at:"
    killed = ((said, "killed") for said in (shell, hangup, lsf, slurm))
    for said, status in (*killed, (step, "failed"), (exited, "failed")):
        outcome = judge(Ending(), read(*steps(1), said, step))
        assert (outcome.status, outcome.cause) == (status, said)
        assert judge(Ending(), read(*steps(1), "ValueError: real", said)).cause == "ValueError: real"
    assert judge(Ending(), read(*steps(1), f"evaluating 1080/12{slurm}")).cause == slurm
    stopped = read(
        *steps(1), "Traceback (most recent call last):", "KeyboardInterrupt", "RuntimeError: a worker is gone"
    )
    assert (judge(Ending(), stopped).status, judge(Ending(), stopped).cause) == ("killed", "KeyboardInterrupt")
    for said in (late, watchdog, launcher):
        assert judge(Ending(), read(*steps(1), said)).cause == said
        assert judge(Ending(), read(*steps(1), said, "ValueError: real")).cause == "ValueError: real"


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
    for stated in (
        "RuntimeError: Rank 0, node a: found NaN in local forward loss calculation",
        "AssertionError: Rank 3: found NaN in local grad norm in backward pass before data-parallel communication",
        "ERROR:megatron.core.rerun_state_machine:Unexpected result tensor(nan, device='cuda:0') on rank 0 at iteration "
        "#2 invokation #1 (message='found NaN in local forward loss calculation')!",
        "engine: loss is nan at iteration 2 of 3; try a smaller lr or a longer warm-up",
    ):
        outcome = judge(Ending(exit_code=1), read(*steps(1), stated))
        assert outcome == Outcome("diverged", stated, ("the log ends at iteration 1 of 3",))


def test_a_loss_that_recovered_is_a_note() -> None:
    outcome = judge(Ending(exit_code=0), read(*steps(1), *steps(2, loss="nan"), *steps(3)))
    assert outcome.status == "completed"
    assert "iteration 2" in outcome.notes[0]


def test_hung_and_killed() -> None:
    cut = read(*steps(1))
    assert judge(Ending(exit_code=-15, signal_sent="SIGTERM", hung=True), cut).status == "hung"
    requested = judge(Ending(exit_code=1, signal_sent="SIGTERM"), cut)
    assert (requested.status, requested.cause) == ("killed", "ended by SIGTERM from its launcher")
    for code in (-9, 137):
        outside = judge(Ending(exit_code=code), cut)
        assert (outside.status, outside.cause) == ("killed", "ended by SIGKILL from outside")


def test_without_any_error_line_the_exit_code_and_the_last_line_are_reported() -> None:
    assert judge(Ending(exit_code=5), read("starting")).cause == "exit code 5 after no iteration; last line: starting"
    assert judge(Ending(exit_code=5), read()).cause == "exit code 5 after no iteration; the log is empty"
    assert "no step was read: print [tprimat] step" in str(judge(Ending(exit_code=0), read("hello")).cause)
    endless = judge(Ending(exit_code=0), parse(['[tprimat] step {"step": 0, "loss": 6}']))
    assert 'print [tprimat] effective {"train_iters": …}' in str(endless.cause)


def test_talk_of_nan_after_the_last_step_does_not_undo_it() -> None:
    assert judge(Ending(exit_code=0), read(*steps(1, 2, 3), "found NaN in nothing that matters")).status == "completed"


def test_a_setting_that_the_program_does_not_tell_is_named() -> None:
    stated = {"seq_length": Reading(4096, 3)}
    requested = {"seq_length": 4096, "rotary_base": 500000.0, "num_experts": None, "layout": "tp2"}
    assert list(unreported(requested, stated)) == ["requested, and not reported by the log: rotary_base"]
    assert list(unreported(requested, {})) == [], "a log without settings says nothing about them"
    (note,) = unreported(requested, {**stated, "rotary_bse": Reading(5e5, 4)})
    assert note.endswith("rotary_base; rotary_bse is no setting, did you mean rotary_base?")


# A log of two parts: the second goes on from a checkpoint of the first.
def marked(iteration: int, end_s: float, loss: float) -> list[str]:
    line = f" iteration {iteration:8d}/{6:8d} | elapsed time per iteration (ms): 500.0 | lm loss: {loss:.6E} |"
    values = {"iteration": iteration, "loss": loss, "end_monotonic_s": end_s}
    return [line, f"[tprimat] step {json.dumps(values)}"]


FIRST = [line for i in range(1, 6) for line in marked(i, 100.0 + 0.5 * i, 10.0 - i)]
SECOND = [line for i in range(4, 7) for line in marked(i, 7.0 + 0.5 * i, 20.0 - i)]
FAULT = "RuntimeError: something broke"
RESUMED = '[tprimat] resumed {"iteration": 3, "path": "checkpoints/iter_0000003", "same_layout": true}'


def test_the_steps_are_each_there_once_and_the_later_ones_count() -> None:
    parsed = parse([*FIRST, FAULT, RESUMED, *SECOND])
    assert [(s.iteration, s.loss) for s in parsed.steps] == [(1, 9), (2, 8), (3, 7), (4, 16), (5, 15), (6, 14)]
    assert judge(Ending(exit_code=0), parsed).status == "completed"
    assert "resumed after iteration 3 (line 12)" in parsed.notes
    ends = [s.end_monotonic_s for s in parsed.steps]
    assert ends == pytest.approx([100.5, 101.0, 101.5, 102.0, 102.5, 103.0]), "between the parts is no training"


def test_a_fault_of_the_first_part_is_not_the_cause_of_the_second_ones_end() -> None:
    parsed = parse([*FIRST, FAULT, RESUMED, *SECOND[:2], "OSError: another one"])
    outcome = judge(Ending(exit_code=1), parsed)
    assert outcome.status == "failed"
    assert outcome.cause == "OSError: another one"


@pytest.mark.parametrize("mark", ["{}", '{"iteration": "3"}', '{"iteration": true}', "[3]", "{"])
def test_marks_that_tell_no_number_change_nothing(mark: str) -> None:
    assert parse([*FIRST, f"[tprimat] resumed {mark}"]).steps == parse(FIRST).steps
