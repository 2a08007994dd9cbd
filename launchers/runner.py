"""Execute a Plan: start it, follow its log, pass signals on, end it when it hangs, and leave no process behind. Does
not judge what happened: that is parsers.outcome, from the log and the Ending."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

import psutil

from conf import devices
from conf.secret import for_group
from launchers.guard import guarded
from launchers.leftovers import MARK, removal, remove
from launchers.output import Output
from launchers.plan import Plan
from launchers.variables import steering

GRACE_S = 8.0  # between SIGTERM and SIGKILL: torchrun forwards the first to its ranks and waits for them
START_TIMES = 3
"""Before its first step a run may print nothing for so many times longer: importing, compiling and reading print
little, and take many times longer on a machine that others use, too."""
STUCK_S = 120.0  # for a disk that takes no byte of the log
POLL_S = 0.2
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals that end a run with its record. Slurm sends SIGUSR1 before its time limit, where --signal says so."""
_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
FAMILY_S = 5.0  # walking all processes costs milliseconds, which the ranks should have


@dataclass(frozen=True, slots=True)
class Ending:
    """How the processes ended. exit_code is negative for a signal, None where nothing was started; signal_sent: what we
    passed on; wall_time_s of it all; oom_kills: processes that the kernel ended meanwhile, None if it does not say;
    over_limit: it was ended for taking longer than it might. left: why something of it may run still, None: nothing.
    lost: what of its output may be missing in the log, None: nothing. said: its last line before our signals."""

    exit_code: int | None
    signal_sent: str | None
    hung: bool
    wall_time_s: float
    oom_kills: int | None = None
    over_limit: bool = False
    left: str | None = None
    lost: str | None = None
    said: str | None = None


class _Run:
    """State of one running plan, shared by the loop, the signal handlers and the reader thread. process: the command
    that is running now, of those of the plan."""

    process: subprocess.Popen[bytes]

    def __init__(self, limit_s: float | None = None) -> None:
        self.deadline = None if limit_s is None else time.monotonic() + limit_s
        self.exit_code: int | None = None
        self.family: dict[int, psutil.Process] = {}
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self.signal: str | None = None
        self.lost: str | None = None
        self.said: str | None = None
        self.hung = self.over_limit = False

    @property
    def ended(self) -> bool:
        """Return whether the run is to end, whatever its process does."""
        return self.signal is not None or self.hung or self.over_limit

    def note_family(self) -> None:
        """Remember every descendant: once torchrun is gone, it no longer leads to its ranks. What a rank has left
        behind (a daemon) is our own child by now, and has our mark in its environment."""
        for parent in (self.process.pid, *self._adopted()):
            with suppress(psutil.NoSuchProcess):
                found = psutil.Process(parent)
                self.family.update((child.pid, child) for child in found.children(recursive=True))
                if parent != self.process.pid:
                    self.family[parent] = found

    def _adopted(self) -> Iterator[int]:
        for child in psutil.Process().children():
            with suppress(psutil.Error, OSError):
                if child.pid != self.process.pid and child.environ().get(MARK) == self.mark:
                    yield child.pid

    def alive(self) -> list[psutil.Process]:
        return [p for p in self.family.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def end(self) -> None:
        """Send SIGTERM to torchrun and to every rank, SIGKILL to what is left after the grace."""
        self.note_family()
        ours = [psutil.Process(self.process.pid)] if self.process.poll() is None else []
        _signal((*ours, *self.alive()), signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while (self.process.poll() is None or self.alive()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if self.process.poll() is None:
            self.process.kill()
        _signal(self.alive(), signal.SIGKILL)
        self.note_family()  # what those have left that have ended meanwhile
        _signal(self.alive(), signal.SIGKILL)
        psutil.wait_procs(self.family.values(), timeout=POLL_S)  # those that we have adopted would stay as zombies


def execute(  # noqa: PLR0913
    plan: Plan,
    directory: Path,
    hang_after_s: float,
    on_line: Callable[[str], bool | None],
    *,
    go_on: bool = False,
    limit_s: float | None = None,
) -> Ending:
    """Run `plan` in `directory`, where its files already are; each line goes to the log first, then to `on_line`,
    which returns true for one that reports a step. go_on: the log that is there is the first part of this one. limit_s:
    of all commands together. Returns when every process has ended. SIGINT and SIGTERM end the run; no output for
    `hang_after_s` seconds too, START_TIMES as long before a step; output is any byte. OSError: the program cannot be
    started, or the log cannot be written."""
    started = time.monotonic()
    remove(plan.container)  # of a launcher that was killed in this very directory
    left: str | None = None
    with open(directory / plan.log, "ab" if go_on else "wb", buffering=0, opener=for_group) as log:
        commands, run, kills = [*plan.setup, plan.argv], _Run(limit_s), oom_kills()
        failure = None
        guard = guarded(f"{MARK}={run.mark}", removal(plan.container))
        with _signals(run), adopting(), guard:  # before anything is started: a signal in between would leave it behind
            while commands and failure is None and not run.exit_code and not run.ended:
                run.process = _started(commands.pop(0), directory, {**environment(plan, os.environ), MARK: run.mark})
                try:
                    failure = _follow(run, log, hang_after_s, on_line)
                finally:
                    left = remove(plan.container)  # its client has ended, which need not end what the daemon runs
                run.exit_code = run.process.returncode
    if failure is not None:
        raise failure
    killed = None if kills is None else (oom_kills() or kills) - kills
    took_s = time.monotonic() - started
    return Ending(run.exit_code, run.signal, run.hung, took_s, killed, run.over_limit, left, run.lost, run.said)


def _started(argv: Sequence[str], directory: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a Ctrl-C at the terminal reaches us alone, and we end the ranks in order
    )


@contextmanager
def adopting() -> Iterator[None]:
    """Be the parent of processes below us whose own parent ends (Linux), so that none of a run escapes."""
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        yield
        return
    prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def oom_kills() -> int | None:
    """Return how many processes of this cgroup the kernel has killed for want of memory; None if it does not say."""
    counts = dict(line.split() for line in devices.cgroup_memory("events").splitlines())
    return int(counts["oom_kill"]) if "oom_kill" in counts else None


def environment(plan: Plan, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the child's environment: the inherited one, without what would steer the launch past the plan, under the
    plan's; of PYTHONPATH, the plan's folder first."""
    paths = [paths for paths in (plan.env.get("PYTHONPATH"), inherited.get("PYTHONPATH")) if paths]
    left_out = {*taken(plan, inherited)}
    kept = {name: value for name, value in inherited.items() if name not in left_out}
    return {**kept, **plan.env, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}


def taken(plan: Plan, inherited: Iterable[str]) -> list[str]:
    """Return the names of the inherited variables that a run of `plan` does not get."""
    return steering(inherited, (*plan.env, *plan.forward_env))


def _follow(run: _Run, log: IO[bytes], hang_after_s: float, on_line: Callable[[str], bool | None]) -> Exception | None:
    assert run.process.stdout is not None
    output, noted = Output(run.process.stdout, log, on_line), 0.0
    try:
        while run.process.poll() is None and not run.ended and not output.failure:
            if time.monotonic() - noted > FAMILY_S:
                run.note_family()
                noted = time.monotonic()
            patience_s = hang_after_s * (1 if output.has_stepped else START_TIMES)
            run.hung = time.monotonic() - output.heard_at > patience_s
            run.over_limit = run.deadline is not None and time.monotonic() > run.deadline
            with suppress(subprocess.TimeoutExpired):
                run.process.wait(POLL_S)  # a command of `setup` takes less than that: it is not waited out
        run.said = output.last_line()
    finally:
        run.end()
        run.process.wait()
        run.lost = output.drain(GRACE_S, STUCK_S)
    return output.failure


@contextmanager
def _signals(run: _Run) -> Iterator[None]:
    def note(number: int, frame: FrameType | None) -> None:
        run.signal = signal.Signals(number).name

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = (s for s in ENDS if signal.getsignal(s) is not signal.SIG_IGN)
    before = {s: signal.signal(s, note) for s in handled}  # ignored by nohup, a signal stays ignored
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
