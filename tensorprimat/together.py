"""Rehearsals of one launch side by side, each in a process of its own: imports take most of their time, on one core."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
            while waiting and len(running) < most:
                number, start = waiting.pop(0)
                ours, theirs = fork.Pipe(duplex=False)
                process = fork.Process(target=_send, args=(theirs, start))
                process.start()
                theirs.close()
                running[ours] = (number, process)
            for end in (end for end in wait(list(running)) if isinstance(end, Connection)):
                number, process = running.pop(end)
                kind, answer = _received(end)
                process.join()
                if kind is None:
                    found[number] = answer
                else:
                    errors.append(kind(*answer))
            if signals or errors or any(map(is_last, found.values())):
                waiting.clear()
    if errors:
        raise errors[0]
    return [found[number] for number in sorted(found)]


def _received(end: Connection) -> tuple[Any, Any]:
    try:
        answer: tuple[Any, Any] = end.recv()
    except EOFError:  # its traceback is on stderr; or a signal came before its run began
        return InputError, (Problem("rehearse", "the process of a rehearsal ended without a record"),)
    return answer


def _send(end: Connection, start: Callable[[], Row]) -> None:
    """Be the process of one rehearsal: answer with (None, its row), or (the kind of a user error, its problems)."""
    try:
        end.send((None, start()))
    except UserError as error:
        end.send((type(error), error.problems))
    except KeyboardInterrupt:  # before its run began, or after it
        return


@contextmanager
def _passed_on() -> Iterator[list[int]]:
    """Pass signals on to the processes of the rehearsals; the list has those that came."""
    came: list[int] = []

    def pass_on(number: int, _: object) -> None:
        came.append(number)
        for process in multiprocessing.active_children():
            if process.pid is not None:
                os.kill(process.pid, number)

    handled = (s for s in ENDS if signal.getsignal(s) is not signal.SIG_IGN)
    before = {number: signal.signal(number, pass_on) for number in handled}  # ignored by nohup, a signal stays ignored
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
