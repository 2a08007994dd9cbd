"""Start ranks that follow one another, each alone in its run, out of a process that has imported their stack already.

A rank of rehearse=layout, or a toy of one rank, imports for five to twenty seconds, and runs for three. While
TPRIMAT_WARM names a socket (launchers/warm.py), its Python hands its command, environment and output over as soon as it
starts (sitecustomize.py), waits, and ends as the rank does; where nobody takes it, it goes on by itself. This module,
as a program, imports the stack of the first such rank once, and forks a child for each.

What a variable has decided at import cannot be decided again. So each variable that is read meanwhile is reported, and
a rank comes here only if it has the same values of them. What the imports print, every rank prints first."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    _Running = dict[int, tuple[int, socket.socket]]
    """A child by its file (pidfd_open): its number, and who waits for it."""

VARIABLE = "TPRIMAT_WARM"
MOST_BYTES = 1 << 17
"""The most of a message: a command with its environment."""
STARTED = b"started"
PROGRAMS = ("nemo_ranks.py", "bridge_ranks.py", "primus/cli/main.py")
"""Programs whose stack can be imported before them; ours have a function `warm` for it."""
_PRIMUS_PATH = ("third_party/Megatron-LM", "")
_PRIMUS = ("primus.backends.megatron.megatron_adapter", "megatron.training.arguments")
"""The modules that Primus imports before it patches Megatron's, in its order."""
OF_THE_RUN = ("TPRIMAT_PLAY_RANK", "TPRIMAT_PLAY_WORLD", "TPRIMAT_PROBE", "HF_HOME")
"""Read at import, and again by each rank; HF_HOME is Primus' own folder: a rank that is played fetches nothing."""
UNSEEN = ("PYTHON", "LD_", "OMP_", "MKL_", "TPRIMAT_REHEARSE", "TPRIMAT_EQUAL_INIT")
"""How variables begin that Python, libraries and this folder read without anyone seeing it."""


def hand_over() -> None:
    """Let a process that has imported this one's stack run its program, and end as that ends; return where this one
    must do it."""
    path, words = os.environ.pop(VARIABLE), sys.orig_argv  # popped: what the program starts is no rank of ours
    place = next((n for n, word in enumerate(words) if word.endswith(PROGRAMS)), None)
    if place is None or not all(word.startswith("-") and word != "-m" for word in words[1:place]):
        return
    python, program = [sys.executable, *words[1:place]], words[place:]
    unseen = {name: v for name, v in os.environ.items() if name.startswith(UNSEEN) and name not in OF_THE_RUN}
    request = {"python": python, "argv": program, "env": dict(os.environ), "unseen": unseen}
    request["folder"] = os.getcwd()  # noqa: PTH109 - as the child takes it
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        try:
            end.connect(path)
            socket.send_fds(end, [json.dumps(request).encode()], [0, 1, 2])
            if end.recv(MOST_BYTES) != STARTED:
                return
        except OSError:
            return
        code = int(end.recv(MOST_BYTES) or 1)  # without an answer the other process has died, and the rank with it
    if code < 0:
        with suppress(OSError):  # nobody can handle SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def main(control: socket.socket, program: str, folder: str) -> None:
    """Import the stack of `program`, report the variables that were read, and run it in a child for each request.
    folder: ours, where files may be left."""
    import gc

    _die_with_parent()
    before, read = dict(os.environ), set[str]()
    sys.path[0] = os.path.dirname(os.path.realpath(program))  # noqa: PTH120 - as Python has it
    get = _watch(read)
    _import_stack(program, folder)
    os._Environ.__getitem__ = get  # type: ignore[method-assign]
    changed = {name: v for name, v in os.environ.items() if before.get(name) != v and name not in OF_THE_RUN}
    gc.collect()
    gc.freeze()  # the children share these pages
    sys.stdout.flush()
    sys.stderr.flush()
    control.send(json.dumps(sorted({*read, *changed} - {*OF_THE_RUN})).encode())
    request, files = _child(control)
    _become(request, files, changed)
    _run(os.path.abspath(sys.argv[0]))  # noqa: PTH100 - as Python has it


def _watch(read: set[str]) -> Any:
    """Note in `read` each variable that is read by its name from now on; return what reads one otherwise."""
    get = os._Environ.__getitem__

    def noted(self: Any, name: Any) -> Any:
        if isinstance(name, str) and sys._getframe(1).f_code.co_name != "__iter__":  # which looks for other names
            read.add(name)
        return get(self, name)

    os._Environ.__getitem__ = noted  # type: ignore[method-assign]
    return get


def _import_stack(program: str, folder: str) -> None:
    from importlib import import_module

    if program.endswith("primus/cli/main.py"):
        path = list(sys.path)
        sys.path[:0] = [os.path.abspath(tree) for tree in _PRIMUS_PATH]  # noqa: PTH100
        for module in _PRIMUS:
            import_module(module)
        sys.path[:] = path  # Primus puts its own there
    else:
        import_module(os.path.basename(program).removesuffix(".py")).warm(folder)  # noqa: PTH119


def _child(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork a child for each request, answer when it ends, and end it where nobody waits for it any more. Return in the
    children alone: the request, and its standard files."""
    from multiprocessing.connection import wait

    running: _Running = {}
    while True:
        ready = wait([control, *running, *(end for _, end in running.values())])
        for file, (pid, end) in list(running.items()):
            if file in ready or end in ready:
                _kill(pid)  # with all that it has started
            if file in ready:
                del running[file]
                _answer(file, pid, end)
        if control not in ready:
            continue
        message, files, *_ = socket.recv_fds(control, MOST_BYTES, 4)
        if not message:
            _end(running)
        end = socket.socket(fileno=files.pop())
        if (pid := os.fork()) == 0:
            os.setpgid(0, 0)
            for other in (control, end, *(waiting for _, waiting in running.values())):
                other.close()
            return json.loads(message), files
        with suppress(OSError):
            end.send(STARTED)
            os.setpgid(pid, pid)  # whoever is first
        for file in files:
            os.close(file)
        running[os.pidfd_open(pid)] = pid, end


def _end(running: _Running) -> None:
    for pid, _ in running.values():
        _kill(pid)
    os._exit(0)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _answer(file: int, pid: int, end: socket.socket) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(file)
    with end, suppress(OSError):
        end.send(str(code).encode())


def _become(request: dict[str, Any], files: list[int], changed: dict[str, str]) -> None:
    """Be the process that made the request; changed: the variables that importing has set."""
    _die_with_parent()
    said = os.open("/dev/fd/1", os.O_RDONLY)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    while text := os.read(said, MOST_BYTES):
        os.write(1, text)
    os.close(said)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update({**request["env"], **changed})
    sys.argv[:] = request["argv"]
    sys.orig_argv[:] = [*request["python"], *request["argv"]]
    if "tprimat_probe" in sys.modules:
        sys.modules["tprimat_probe"].begin()


def _run(program: str) -> None:
    """Run a program as Python does. Not by runpy: Primus calls inspect.stack() for each line that it logs, which looks
    through all modules for a frame that is of none."""
    from types import ModuleType

    with open(program, "rb") as file:  # noqa: PTH123
        code = compile(file.read(), program, "exec")
    main_module = ModuleType("__main__")
    vars(main_module).update(__file__=program, __builtins__=__builtins__)
    sys.modules["tprimat_warm"], sys.modules["__main__"] = sys.modules["__main__"], main_module
    exec(code, vars(main_module))  # noqa: S102 - the program that the process would run by itself


def _die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG of linux/prctl.h


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:])
