"""Processes that tokenize: blocks in, tokens out, in the order of the blocks whatever their number."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from conf.errors import InputError, Problem
from corpora import blocks, tokenizers
from corpora.blocks import Encoded, Rules
from corpora.inputs import Block, End

AHEAD = 8
"""Blocks for each process that may be under way or done out of order: that bounds the memory."""
Piece = Block | End


_PROGRAM = """import sys, importlib
pipe, module, *sys.path = sys.argv[1:]
importlib.import_module(module).serve(int(pipe))"""


def serve(handle: int) -> None:
    """Encode every block that comes, until the other end is closed, as it is when its process is killed."""
    pipe = Connection(handle)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        spec, rules = pipe.recv()
        coder = tokenizers.build(spec)
        while True:
            block = pipe.recv()
            try:
                pipe.send(blocks.encode(block, coder, rules))
                if block.is_large:
                    _give_back_memory()
            except Exception as error:  # of a library: over there it is told with its place
                pipe.send(f"{type(error).__name__}: {error}")
                raise SystemExit(1) from error


def _give_back_memory() -> None:
    """Let the C library return what is free to the system, which glibc keeps: gigabytes behind a long document."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class Pool:
    """Processes that encode blocks, as long as it is open. multiprocessing would fork, so that each holds the pipes of
    the others and outlives a killed parent, or leave a process of its own behind."""

    def __init__(self, spec: tokenizers.Spec, rules: Rules, processes: int) -> None:
        self._processes: dict[Connection, subprocess.Popen[bytes]] = {}
        for _ in range(processes):
            ours, theirs = socket.socketpair()
            argv = [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), __name__, *sys.path]
            # a terminal's Ctrl-C goes to all, and ours end with their parent: they inherit that it is held back
            held_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            env = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}  # there is a process for every core
            process = subprocess.Popen(argv, env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            signal.pthread_sigmask(signal.SIG_SETMASK, held_before)
            theirs.close()
            pipe = Connection(ours.detach())
            self._processes[pipe] = process
        for pipe in self._processes:
            self._send(pipe, (spec, rules))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, process in self._processes.items():
            pipe.close()
            process.terminate()
        for process in self._processes.values():
            process.wait()

    def encoded(self, pieces: Iterable[Piece]) -> Iterator[tuple[Piece, Encoded | None]]:
        """Yield each piece with its tokens, in order; the end of an input has none. InputError: a process died, or its
        library failed."""
        source, most = iter(pieces), AHEAD * len(self._processes)
        idle, busy, large = deque(self._processes), dict[Connection, int](), set[Connection]()
        order, todo, done = deque[tuple[int, Piece]](), deque[tuple[int, Block]](), dict[int, Encoded | None]()
        number, more = 0, True
        while True:
            while idle and todo and not (large and todo[0][1].is_large):
                at, block = todo.popleft()
                pipe = idle.popleft()
                large |= {pipe} if block.is_large else set()
                self._send(pipe, block)
                busy[pipe] = at
            while order and order[0][0] in done:
                at, piece = order.popleft()
                yield piece, done.pop(at)
            is_full = bool(todo) and (todo[-1][1].is_large or (not idle and len(todo) >= len(self._processes)))
            if more and len(order) < most and not is_full:
                new = next(source, None)
                more = new is not None
                if new is not None:
                    order.append((number, new))
                    if isinstance(new, Block):
                        todo.append((number, new))
                    else:
                        done[number] = None
                    number += 1
                ready: Sequence[Any] = wait([*busy], 0) if busy else ()
            elif busy:
                ready = wait([*busy])
            elif not order and not more:
                return
            else:
                ready = ()
            for pipe in ready:
                done[busy.pop(pipe)] = self._received(pipe, order)
                idle.append(pipe)
                large.discard(pipe)

    def _send(self, pipe: Connection, message: object) -> None:
        try:
            pipe.send(message)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._died(pipe) from error

    def _received(self, pipe: Connection, order: Sequence[tuple[int, Piece]]) -> Encoded:
        try:
            made = pipe.recv()
        except (EOFError, ConnectionResetError) as error:
            raise self._died(pipe) from error
        if not isinstance(made, Encoded):
            first = next((piece for _, piece in order if isinstance(piece, Block)), None)
            where = f"{first.path}:{first.line}" if first else "tokenizer"
            raise InputError(Problem(where, "the tokenizer failed at or behind this line", str(made)[:500]))
        return made

    def _died(self, pipe: Connection) -> InputError:
        process = self._processes[pipe]
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        code = process.returncode
        why = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        hint = "if memory ran out, fewer processes= or shorter documents (a library needs up to 270 times the size of"
        hint += " one); what was tokenized stays, and the same command goes on"
        return InputError(Problem("processes", "one of them died", why, hint=hint))
