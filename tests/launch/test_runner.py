"""Fault drills with real processes: whatever happens, the run ends, the log is kept and nobody is left behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from launchers import runner
from launchers.plan import Plan
from tests.drills import PATIENCE_S, wait_until

# Stands for torchrun: two ranks in sessions of their own, as torchrun starts them; it waits for both.
PARENT = """
import subprocess, sys, pathlib
ranks = [subprocess.Popen([sys.executable, "rank.py", *sys.argv[1:]], start_new_session=True) for _ in range(2)]
pathlib.Path("pids").write_text(" ".join(str(r.pid) for r in ranks))
print("started", flush=True)
sys.exit(max(r.wait() for r in ranks))
"""
RANK = """
import os, signal, sys, time
if "deaf" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
for i in range(6000 if "stay" in sys.argv else 3):
    if "silent" not in sys.argv: print("line", i, flush=True)
    open(f"ready-{os.getpid()}", "w").close()
    time.sleep(0.1)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "GRACE_S", 1.5)
    monkeypatch.setattr(runner, "FAMILY_S", 0.2)


def run(directory: Path, *words: str, hang_after_s: float = 60.0, lines: list[str] | None = None) -> runner.Ending:
    (directory / "parent.py").write_text(PARENT, encoding="utf-8")
    (directory / "rank.py").write_text(RANK, encoding="utf-8")
    plan = Plan(argv=(sys.executable, "-u", "parent.py", *words), files={}, env={"OF_THE_PLAN": "1"})
    return runner.execute(plan, directory, hang_after_s, (lines if lines is not None else []).append)


def ranks(directory: Path) -> list[int]:
    pids = directory / "pids"
    return [int(pid) for pid in pids.read_text(encoding="utf-8").split()] if pids.exists() else []


def assert_nobody_left(directory: Path) -> None:
    wait_until(lambda: not any(_alive(pid) for pid in ranks(directory)), "every rank has ended")


def _alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def when_running(directory: Path, act: Callable[[], object]) -> None:
    """Act from a thread as soon as both ranks are at work."""

    def wait_and_act() -> None:
        wait_until(lambda: len([*directory.glob("ready-*")]) == 2, "both ranks are at work")
        act()

    threading.Thread(target=wait_and_act, daemon=True).start()


def test_a_run_that_ends_by_itself(tmp_path: Path) -> None:
    lines: list[str] = []
    ending = run(tmp_path, lines=lines)
    assert (ending.exit_code, ending.signal_sent, ending.hung) == (0, None, False)
    assert len(lines) == 7
    assert (tmp_path / "train.log").read_text(encoding="utf-8") == "".join(lines)
    assert 0.3 <= ending.wall_time_s < PATIENCE_S


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGINT, ()), (signal.SIGTERM, ()), (signal.SIGTERM, ("deaf",))], ids=str
)
def test_a_signal_ends_every_rank_and_kills_one_that_ignores_it(
    tmp_path: Path, number: signal.Signals, words: tuple[str, ...]
) -> None:
    when_running(tmp_path, lambda: os.kill(os.getpid(), number))
    ending = run(tmp_path, "stay", *words)
    assert ending.signal_sent == number.name
    assert ending.wall_time_s < PATIENCE_S, "and not the ten minutes that the ranks would take"
    assert_nobody_left(tmp_path)


def test_under_nohup_a_hangup_ends_nothing(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGHUP)).start()
        assert run(tmp_path).exit_code == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_silence_is_a_hang(tmp_path: Path) -> None:
    ending = run(tmp_path, "stay", "silent", hang_after_s=1.0)
    assert ending.hung
    assert ending.wall_time_s < PATIENCE_S, "and not the ten minutes that the ranks would take"
    assert_nobody_left(tmp_path)


@pytest.mark.parametrize("stepped", [False, True])
def test_a_start_may_be_silent_for_longer_than_a_step(
    tmp_path: Path, stepped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "START_TIMES", 100)
    silence = f"print('line', flush=True); import time; time.sleep({600 if stepped else 3})"
    plan = Plan(argv=(sys.executable, "-c", silence), files={}, env={})
    ending = runner.execute(plan, tmp_path, 1.0, lambda line: stepped)
    assert ending.hung is stepped and ending.exit_code == (-signal.SIGTERM if stepped else 0)


def test_a_parent_that_is_killed_leaves_no_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Noting(runner._Run):
        def note_family(self) -> None:
            super().note_family()
            if ranks(tmp_path) and self.family.keys() >= set(ranks(tmp_path)):
                self.process.kill()

    monkeypatch.setattr(runner, "_Run", Noting)
    ending = run(tmp_path, "stay")
    assert ending.exit_code == -signal.SIGKILL
    assert ending.wall_time_s < PATIENCE_S
    assert_nobody_left(tmp_path)


def test_a_full_disk_ends_the_run_and_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train.log").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path, "stay")
    assert_nobody_left(tmp_path)


def test_a_fault_of_our_own_in_a_line_is_not_lost(tmp_path: Path) -> None:
    class Broken(list[str]):
        def append(self, line: str) -> None:
            if "started" in line:  # a rank's first line may come before
                raise ZeroDivisionError(line)

    with pytest.raises(ZeroDivisionError):
        run(tmp_path, "stay", lines=Broken())
    assert_nobody_left(tmp_path)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    plan = Plan(argv=("/no/such/program",), files={}, env={})
    with pytest.raises(FileNotFoundError):
        runner.execute(plan, tmp_path, 60.0, print)


def test_bytes_that_are_no_text_are_kept_as_they_are(tmp_path: Path) -> None:
    code = r"import sys; sys.stdout.buffer.write(b'\xff\xfe\x00 bytes\n')"
    lines: list[str] = []
    runner.execute(Plan(argv=(sys.executable, "-c", code), files={}, env={}), tmp_path, 60.0, lines.append)
    assert (tmp_path / "train.log").read_bytes() == b"\xff\xfe\x00 bytes\n"
    assert len(lines) == 1


def setup_run(directory: Path, *setup: str, hang_after_s: float = 60.0) -> tuple[runner.Ending, str]:
    """Return what a plan with these programs as setup comes to, and its log."""
    commands = tuple((sys.executable, "-c", code) for code in setup)
    plan = Plan(setup=commands, argv=(sys.executable, "-c", "print('main')"), files={}, env={"OF_THE_PLAN": "1"})
    ending = runner.execute(plan, directory, hang_after_s, lambda line: None)
    return ending, (directory / "train.log").read_text(encoding="utf-8")


def test_setup_comes_first_in_the_same_place_log_and_environment(tmp_path: Path) -> None:
    code = "import os; print(os.environ['OF_THE_PLAN']); open('made', 'w')"
    ending, log = setup_run(tmp_path, code, "import os; print(os.path.exists('made'))")
    assert (ending.exit_code, log) == (0, "1\nTrue\nmain\n")


def test_setup_that_fails_is_the_end(tmp_path: Path) -> None:
    ending, log = setup_run(tmp_path, "import sys; print('refused'); sys.exit(2)", "print('second')")
    assert (ending.exit_code, log) == (2, "refused\n")


def test_setup_that_hangs_or_is_ended_by_a_signal_is_the_end(tmp_path: Path) -> None:
    ending, log = setup_run(tmp_path, "import time; time.sleep(600)", hang_after_s=0.5)
    assert (ending.hung, log) == (True, "")
    made = tmp_path / "made"

    def end() -> None:
        wait_until(made.exists, "begun")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end).start()
    ending, log = setup_run(tmp_path, "import time; open('made', 'w').close(); time.sleep(600)")
    assert (ending.signal_sent, log) == ("SIGTERM", "")
