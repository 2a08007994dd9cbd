"""Rehearsals of one launch side by side, each in a process of its own: imports take most of their time, on one core."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from conf import devices
from conf.errors import InputError, Problem, UserError
from conf.resolve import Experiment
from launchers import where
from launchers.rehearse import toy
from launchers.runner import ENDS

RANK_BYTES = {"train": 2_000_000_000, "layout": 7_000_000_000}
"""More than a process of NeMo, Megatron-Bridge or Primus takes: 0.9 to 1.6 GB in a toy, and up to 6.5 GB as one rank
of a large model (Llama 2 70B in Primus)."""
Row = dict[str, Any]


def at_once(requested: Sequence[Experiment]) -> int:
    """Return how many of them run at a time: of rehearsals a core for each rank, and half of the free memory for all
    ranks; anything else runs alone."""
    if not all(e.rehearse for e in requested):
        return 1
    ranks = max(toy(e).layout.world_size if e.rehearse == "train" else 1 for e in requested)
    rank_bytes = max(RANK_BYTES[str(e.rehearse)] for e in requested)
    in_memory = int(devices.available_memory_bytes() / 2 / rank_bytes)
    return max(1, min(len(requested), where.host().cpu_count // ranks, in_memory // ranks))


def rows(starts: Sequence[Callable[[], Row]], most: int, is_last: Callable[[Row], bool]) -> Iterator[Row]:
    """Yield what each of `starts` returns, in their order; `most` of them run at a time, all of them in this process
    where that is one. After a row of which `is_last` is true none is started any more. UserError: what some raised,
    when the others have ended."""
    if most > 1:
        yield from _side_by_side(starts, most, is_last)
        return
    problems: list[Problem] = []  # of a run whose directory cannot be written: the others may go on
    for start in starts:
        try:
            row = start()
        except UserError as error:
            problems += error.problems
            continue
        yield row
        if is_last(row):
            break
    if problems:
        raise InputError(*problems)


def _side_by_side(starts: Sequence[Callable[[], Row]], most: int, is_last: Callable[[Row], bool]) -> list[Row]:
    """A signal is passed on to those that run, each of which ends its run and returns its row."""
    fork = multiprocessing.get_context("fork")
    waiting, running = list(enumerate(starts)), dict[Connection, tuple[int, Any]]()
    found, errors = dict[int, Row](), list[UserError]()
    with _passed_on() as signals:
        while running or waiting:
            while waiting and len(running) < most and not signals.came:
                number, start = waiting.pop(0)
                ours, theirs = fork.Pipe(duplex=False)
                signals.start(fork.Process(target=_send, args=(theirs, start, signals)))
                theirs.close()
                running[ours] = (number, signals.processes[-1])
            for end in (end for end in wait(list(running)) if isinstance(end, Connection)):
                number, process = running.pop(end)
                answer = _received(end)
                process.join()
                if isinstance(answer, UserError):
                    errors.append(answer)
                elif answer is not None:
                    found[number] = answer
                elif not signals.came:  # its traceback is on stderr
                    errors.append(InputError(Problem("rehearse", "the process of a rehearsal ended without a record")))
            if signals.came or errors or any(map(is_last, found.values())):
                waiting.clear()
    if errors:
        raise errors[0]
    return [found[number] for number in sorted(found)]


def _received(end: Connection) -> Row | UserError | None:
    """Return the row of a rehearsal or what it raised; None of one that ended before its run began."""
    try:
        kind, answer = end.recv()
    except EOFError:
        return None
    row: Row | UserError = answer if kind is None else kind(*answer)
    return row


def _send(end: Connection, start: Callable[[], Row], signals: _Signals) -> None:
    """Be the process of one rehearsal: answer with (None, its row), or (the kind of a user error, its problems)."""
    try:
        signals.restore()
        if not signals.came:  # since this process began
            end.send((None, start()))
    except UserError as error:
        end.send((type(error), error.problems))
    except KeyboardInterrupt:  # before its run began, or after it
        return


@dataclass
class _Signals:
    """Signals that came, each with the number of processes that it was passed on to; those processes; and the handlers
    of before."""

    came: list[tuple[int, int]] = field(default_factory=list)
    processes: list[Any] = field(default_factory=list)
    before: dict[int, Any] = field(default_factory=dict)
    owner: int = field(default_factory=os.getpid)

    def pass_on(self, number: int, _: object) -> None:
        self.came.append((number, len(self.processes)))
        for process in self.processes if os.getpid() == self.owner else ():  # a new one has yet to bring back its own
            if process.is_alive():
                os.kill(process.pid, number)

    def start(self, process: Any) -> None:
        """Start a process, and pass on to it what came meanwhile: Python forgets what reaches a process that it is just
        forking, so signals wait until there are handlers (`restore`)."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
        process.start()
        self.processes.append(process)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, reached in self.came:
            if reached < len(self.processes):
                os.kill(process.pid, number)

    def restore(self) -> None:
        """Bring back the handlers of before."""
        for number, handler in self.before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.before)


@contextmanager
def _passed_on() -> Iterator[_Signals]:
    """Pass signals on to the processes of the rehearsals."""
    signals = _Signals()
    handled = (s for s in ENDS if signal.getsignal(s) is not signal.SIG_IGN)
    signals.before |= {number: signal.signal(number, signals.pass_on) for number in handled}  # nohup's stays ignored
    try:
        yield signals
    finally:
        signals.restore()
