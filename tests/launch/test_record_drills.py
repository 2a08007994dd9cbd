"""Drills from the command line, with real processes: whatever breaks, no number is wrong and no work is lost."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.drills import PATIENCE_S, Stub, command, wait_until

drill = pytest.mark.drill
pytestmark = pytest.mark.engine  # which must be installed, and does not train here


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub(tmp_path)


def record(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "run.json").read_text(encoding="utf-8")))


@drill("comparable, exit 0, one of six runs cut to half")
def test_a_record_that_was_cut_is_not_read(stub: Stub) -> None:
    for arguments in (("name=a",), ("name=b", "layout=tp2", "gpus_per_node=2")):
        assert stub.launch(*arguments, "repeat=2")[0] == 0
    named = (str(stub.runs / "a"), str(stub.runs / "b"))
    assert command("compare", *named)[0] == 0
    steps = stub.directory("b") / "steps.jsonl"
    lines = steps.read_text(encoding="utf-8").splitlines(keepends=True)
    steps.write_text("".join(lines[:10]), encoding="utf-8")
    code, shown = command("compare", *named)
    assert (code, "10 lines" in shown, "20 steps, 0 to 19" in shown) == (2, True, True), shown
    steps.write_text("".join([*lines[:-1], lines[-1].replace("6.81", "6.71")]), encoding="utf-8")
    assert command("compare", *named)[0] == 2, "as many bytes, and others"
    code, shown = command("compare", *named, "--skip")
    assert code != 2 and f"skipped: {steps}" in shown and "tokens/s/GPU" in shown, shown
    assert command("compare", *named, "--skip", "-o", str(stub.runs / "out"))[0] == code
    about = json.loads((stub.runs / "out" / "compare.json").read_text(encoding="utf-8"))
    (skipped,) = about["skipped"]
    assert skipped["record"] == str(steps) and "not as run.json" in skipped["reason"]
    assert f"1 of its records cannot be used and is left out: {steps}" in about["conditions"]
    steps.unlink()
    assert "it is missing" in command("metrics", *named)[1]


@drill("read as any other, without a word")
def test_a_record_without_a_hash_is_read_and_said_to_be_unverified(stub: Stub) -> None:
    assert stub.launch()[0] == 0
    path = stub.directory() / "run.json"
    path.write_text(json.dumps({**record(path.parent), "steps_file": None}), encoding="utf-8")
    code, shown = command("metrics", str(stub.runs))
    assert code == 0 and "steps cannot be verified" in shown and "tokens_per_s " in shown, shown


@drill("one unreadable record hid the other 199, and no switch left it out")
def test_one_broken_record_among_many_is_named_and_left_out(stub: Stub) -> None:
    assert stub.launch()[0] == 0
    first = stub.directory()
    for number in range(1, 200):
        other = first.parent / f"copy{number}"
        shutil.copytree(first, other)
        text = json.dumps({**record(first), "id": other.name})
        (other / "run.json").write_text(text if number != 77 else text[:500], encoding="utf-8")
    code, shown = command("metrics", str(stub.runs))
    assert code == 2 and "copy77/run.json" in shown and "--skip" in shown and "copy78" not in shown
    code, shown = command("metrics", str(stub.runs), "--skip")
    assert code == 0 and "skipped: " in shown and "copy77/run.json" in shown and "copy78" in shown


@drill("running for ever: no steps, no figures")
def test_the_run_of_a_launcher_that_was_killed_is_read_from_its_log(stub: Stub) -> None:
    stub.program("time.sleep(0.1)")
    process = stub.start(iterations=600)
    log = stub.directory() / "train.log"
    wait_until(lambda: '"step": 5' in log.read_text(encoding="utf-8"), "step 5")
    assert command("metrics", str(stub.runs))[1].count("(t, measured, running)") == 1
    process.kill()
    process.communicate()
    code, shown = command("metrics", str(stub.runs))
    assert code == 0 and "(t, measured, killed)" in shown and "no launcher is at work on it" in shown, shown
    assert "step_time_mean_s               0.1000 s" in shown, shown


@drill("as now; what the library wrote could not be read again")
def test_numbers_beyond_64_bits_in_a_log_do_not_spoil_its_record(stub: Stub) -> None:
    odd = (
        '{"loss": 7 - step / 100, "consumed_samples": -5, "memory_bytes": 10**30, "huge": 10**400, "iteration": 10**22}'
    )
    stub.program(f'if step: print("[tprimat] step", json.dumps({{"step": step - 1, **{odd}}}))')
    assert stub.launch()[0] == 0
    code, shown = command("metrics", str(stub.runs))
    assert code == 0, shown
    assert "at most 2147483648" in stub.launch(iterations=99999999999999999999)[1]


@drill("failed after iteration 6 of 20")
def test_a_line_of_100_mb_costs_no_step(stub: Stub) -> None:
    stub.program('if step == 6: sys.stdout.write("x" * 100_000_000 + "\\n")')
    code, shown = stub.launch()
    assert code == 0, shown[-2000:]
    assert record(stub.directory())["steps_file"]["count"] == 20
    assert (stub.directory() / "train.log").stat().st_size > 100_000_000


@drill("hung after iteration 3 of 20, in the middle of a download")
def test_a_progress_bar_is_output(stub: Stub) -> None:
    """It prints carriage returns and no end of a line, for longer than a run may be silent."""
    bar = 'sys.stdout.write(f"\\rdownloading {i}%"); sys.stdout.flush(); time.sleep(0.5)'
    stub.program(f"if step == 3:\n    for i in range(30): {bar}")
    code, shown = stub.launch("hang_after_s=7")
    assert code == 0, shown


@drill("last line: SIGTERM received")
def test_the_cause_of_a_hang_quotes_what_came_before_our_signals(stub: Stub) -> None:
    says = 'lambda *_: (print("SIGTERM received", flush=True), sys.exit(1))'
    stub.program(
        f"import signal\nif step == 2: signal.signal(signal.SIGTERM, {says}); print('in all-reduce'); time.sleep(600)"
    )
    code, shown = stub.launch("hang_after_s=4")
    assert code == 1 and "no progress after iteration 2 of 20; last line: in all-reduce" in shown, shown
    assert record(stub.directory())["last_lines"][-1] == "SIGTERM received"


@drill("running for ever, exit by the signal")
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGQUIT])
def test_a_signal_that_can_be_handled_leaves_a_record(stub: Stub, number: signal.Signals) -> None:
    stub.program("time.sleep(0.1)")
    process = stub.start("repeat=2", iterations=600)
    log = stub.directory() / "train.log"
    wait_until(lambda: '"step": 5' in log.read_text(encoding="utf-8"), "step 5")
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    known = record(log.parent)
    assert (known["status"], known["cause"]) == ("killed", f"ended by {number.name} from its launcher")
    assert known["steps_file"]["count"] >= 5


@drill("it ran on, for ever")
def test_a_daemon_of_a_rank_ends_with_the_run(stub: Stub, tmp_path: Path) -> None:
    """Forked twice, in a session of its own, and with its output elsewhere, as daemons do."""
    daemon = "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0)"
    daemon += f"; print(os.getpid(), file=open('{tmp_path}/pid', 'w')); time.sleep(600)"
    starts = f"subprocess.Popen([sys.executable, '-c', {daemon!r}], stdout=subprocess.DEVNULL).wait()"
    stub.program(f"import subprocess\nif step == 0: {starts}\ntime.sleep(0.1)")
    code, shown = stub.launch()
    assert code == 0, shown
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text(encoding="utf-8")))


@drill("they trained on, for hours, and nothing was said")
def test_ranks_that_print_nothing_end_with_a_launcher_that_is_killed(stub: Stub, tmp_path: Path) -> None:
    """They ignore SIGTERM, too, and have a child of their own in another session."""
    deaf = "import signal, subprocess; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(900)'], start_new_session=True)"
    stub.program(f"if step == 0: {deaf}; {child}\nif step == 2: open('{tmp_path}/silent', 'w'); time.sleep(900)")
    process = stub.start()
    wait_until((tmp_path / "silent").exists, "the ranks are silent")
    ranks = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(ranks, timeout=PATIENCE_S)
    assert alive == [] and len(ranks) >= 3  # with the guard itself
    code, shown = command("metrics", str(stub.runs))
    assert code == 0 and "(t, measured, killed)" in shown, shown


@drill("torchrun waited for a second node, restarted ranks, or wrote its log elsewhere")
def test_variables_that_steer_torchrun_are_taken_away_and_named(stub: Stub, tmp_path: Path) -> None:
    stub.program(f"if step == 0: open('{tmp_path}/seen', 'w').write(repr(sorted(os.environ)))")
    odd: dict[str, Any] = {
        "PET_NNODES": "2",
        "PET_MAX_RESTARTS": "3",
        "PET_LOG_DIR": "/tmp/x",
        "PYTHON_EXEC": "/bin/false",
    }
    odd |= {"TORCHELASTIC_RUN_ID": "outer", "TPRIMAT_PROBE": "x", "RANK": "7", "LOGLEVEL": "nonsense"}
    odd |= {"PYTHONSAFEPATH": "1", "ACCELERATE_MIXED_PRECISION": "fp8"}
    code, shown = stub.launch(**odd)
    assert code == 0, shown
    seen = (tmp_path / "seen").read_text(encoding="utf-8")
    assert [name for name in odd if f"'{name}'" in seen] == []
    (note,) = [note for note in record(stub.directory())["notes"] if note.startswith("taken out of the environment")]
    assert [name for name in odd if name not in note] == [] and note in shown
    assert "taken away" in stub.launch("dry_run=true", PET_NNODES="2")[1]


def mount(*words: str) -> None:
    if subprocess.run(["mount", *words], capture_output=True, check=False).returncode != 0:
        pytest.skip("no rights to mount")


@pytest.mark.slow
@drill("a traceback, the run stayed running, and the second run of the sweep never began")
def test_a_directory_that_becomes_read_only_loses_no_run(stub: Stub) -> None:
    stub.program("time.sleep(0.2)")
    process = stub.start("repeat=2")
    directory = stub.directory()
    wait_until(lambda: '"step": 3' in (directory / "train.log").read_text(encoding="utf-8"), "step 3")
    mount("--bind", str(directory), str(directory))
    try:
        mount("-o", "remount,bind,ro", str(directory))
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out.count("completed ")) == (0, 2), err + out
        beside = Path(f"{directory}.record")
        assert "Read-only file system" in err and str(beside) in err and "Traceback" not in err
        assert (record(beside)["status"], record(beside)["steps_file"]["count"]) == ("completed", 20)
        assert command("metrics", str(stub.runs))[1].count("(t, measured, completed)") == 2
        assert "completed before" in stub.launch("repeat=2")[1]
    finally:
        process.kill()
        subprocess.run(["umount", str(directory)], check=False)
    assert stub.launch("rerun=true")[0] == 0
    assert [*directory.glob("attempts/1/record/run.json")] and not beside.exists()


@pytest.mark.slow
@drill("exit code 0 after no iteration; and the next launch refused our own record")
def test_a_directory_that_is_removed_is_named_and_the_run_begins_anew(stub: Stub) -> None:
    stub.program("time.sleep(0.2)")
    process = stub.start("repeat=2", "cluster.retries=0")
    directory = stub.directory()
    wait_until(lambda: '"step": 3' in (directory / "train.log").read_text(encoding="utf-8"), "step 3")
    shutil.rmtree(directory)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1 and "was removed while it ran" in out and out.count("completed ") == 1, err + out
    code, shown = stub.launch("repeat=2")
    assert code == 0 and shown.count("completed before") == 1, shown


@drill("the run was written where the link led")
def test_a_run_directory_that_is_a_link_is_refused(stub: Stub, tmp_path: Path) -> None:
    assert stub.launch()[0] == 0
    directory = stub.directory()
    shutil.rmtree(directory)
    (tmp_path / "mine").mkdir()
    directory.symlink_to(tmp_path / "mine")
    code, shown = stub.launch()
    assert code == 2 and "is a link" in shown and str(tmp_path / "mine") in shown, shown
    assert not [*(tmp_path / "mine").iterdir()]
