"""Keep processes that have imported a vendor's stack, for rehearsals of one rank that follow one another: each then
costs only what is its own. launchers/ranks/rehearsal/tprimat_warm.py is what they run, and says how."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from launchers import early
from launchers.early import Early
from launchers.leftovers import MARK

VARIABLE, MOST_BYTES = "TPRIMAT_WARM", 1 << 17  # as rehearsal/tprimat_warm.py has them
MOST = 3
"""Processes at a time, each of about 1 GB: beyond that the one that was used longest ago ends."""
END_S = 10.0
_Request = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Warm:
    """A process that has imported the stack of `first`, the request that it was started for. control: where it takes
    requests; names: the variables that its imports have read."""

    first: _Request
    process: subprocess.Popen[bytes]
    control: socket.socket
    names: tuple[str, ...]

    def suits(self, request: _Request) -> bool:
        """Return whether the imports of `request` would be the same."""
        return _of(request) == _of(self.first) and all(
            request["env"].get(name) == self.first["env"].get(name) for name in self.names
        )

    def end(self) -> None:
        self.control.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _of(request: _Request) -> tuple[Any, ...]:
    return request["python"], request["argv"][0], request["unseen"]


class _Pool:
    """Take the ranks that ask at `listener`, and pass each to a process that suits it, started where there is none. One
    whose stack cannot be imported is left alone: it goes on by itself, and shows why."""

    def __init__(self, listener: socket.socket, folder: Path, begun: list[Early], several: bool) -> None:
        self.listener, self.folder, self.begun, self.several = listener, folder, begun, several
        self.warm: list[_Warm] = []
        self.failed: list[tuple[Any, ...]] = []

    def run(self) -> None:
        try:
            while True:
                asking, _ = self.listener.accept()
                with asking:
                    self._serve(asking)
        except OSError:  # when it is shut down
            return
        finally:
            self.listener.close()  # so that nobody waits for an answer
            for one in self.warm:
                one.end()

    def _serve(self, asking: socket.socket) -> None:
        message, files, *_ = socket.recv_fds(asking, MOST_BYTES, 3)
        try:
            if message:
                one = self._suited(json.loads(message))
                if one:
                    with suppress(OSError):  # it has died: the rank goes on by itself
                        socket.send_fds(one.control, [message], [*files, asking.fileno()])
        finally:
            for file in files:
                os.close(file)

    def _suited(self, request: _Request) -> _Warm | None:
        self.warm = [one for one in self.warm if one.process.poll() is None]
        self.warm += self._begun(request)
        one = next((one for one in self.warm if one.suits(request)), None)
        if one is None and self.several and _of(request) not in self.failed:
            if len(self.warm) >= MOST:
                self.warm.pop(0).end()
            one = self._started(request)
        if one is not None:
            self.warm = [*(other for other in self.warm if other is not one), one]
        return one

    def _begun(self, request: _Request) -> Iterator[_Warm]:
        """Yield the process that has been importing since the launch began, if that may be what `request` needs."""
        while self.begun:
            one = self.begun.pop()
            guess = all(request["env"].get(name) == value for name, value in one.guessed.items())
            if guess and _of(request) == _of(one.request) and (names := one.control.recv(MOST_BYTES)):
                yield _Warm(one.request, one.process, one.control, tuple(json.loads(names)))
            else:
                one.end()

    def _started(self, request: _Request) -> _Warm | None:
        env = {name: value for name, value in request["env"].items() if name != MARK}  # of no run
        process, control = early.started({**request, "env": env}, str(self.folder))
        names = control.recv(MOST_BYTES)
        one = _Warm(request, process, control, tuple(json.loads(names or "[]")))
        if names:
            return one
        one.end()
        self.failed.append(_of(request))
        what = f"{request['argv'][0]}: its stack cannot be imported once for all ranks; each imports it by itself"
        print(f"warning: {what}", file=sys.stderr, flush=True)
        return None


@contextmanager
def kept(several: bool = True) -> Iterator[None]:
    """Let rehearsals that are started meanwhile share their imports: ranks of rehearse=layout, and toys of one rank.
    several: there will be more than one; for a single one only what was begun early is worth it. All processes have
    ended when it returns. Without Linux nothing is shared; inside another `kept` that one serves."""
    begun_early = [*early.taken()]
    if sys.platform != "linux" or VARIABLE in os.environ or not (several or begun_early):
        for one in begun_early:
            one.end()
        yield
        return
    with (
        TemporaryDirectory(prefix="tprimat-warm-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        path = str(Path(folder) / "socket")
        listener.bind(path)
        listener.listen()
        pool = threading.Thread(target=_Pool(listener, Path(folder), [*begun_early], several).run, daemon=True)
        pool.start()
        os.environ[VARIABLE] = path
        try:
            yield
        finally:
            del os.environ[VARIABLE]
            for one in begun_early:  # its ranks have ended, or it is still importing for one that was ended
                one.process.kill()
            listener.shutdown(socket.SHUT_RDWR)
            pool.join()
            for one in begun_early:
                one.end()
