"""Help tests with real processes: patience, and which processes a test has started."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

PATIENCE_S = 300.0  # for what takes seconds on an idle machine: no test fails for one that is ten times slower
LEAST_PORT = 10_000
MARK = "TENSORPRIMAT_TESTS"  # variable of the environment, inherited in any session or process group


def wait_until(condition: Callable[[], object], reason: str, limit_s: float = PATIENCE_S) -> None:
    """Return as soon as `condition()` is true.

    Raises:
        AssertionError: it is still false after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s:.0f} s: {reason}"
        time.sleep(0.05)


def free_port() -> int:
    """Return a port on which nothing listens, below those that the system gives to connections by itself."""
    low, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    while True:
        port = random.SystemRandom().randrange(LEAST_PORT, low)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def started_processes() -> dict[int, str]:
    """Return the command line of every live process that a test of this process has started, by process id."""
    mark = f"{MARK}={os.getpid()}".encode()
    alive = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or is another user's
            if mark in (directory / "environ").read_bytes().split(b"\0"):
                alive[int(directory.name)] = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return alive


ROOT = Path(__file__).parent.parent
MARKS = """
import json, os, sys, time
settings = json.load(open("settings.json"))
settings.pop("device")
print("[tprimat] effective", json.dumps(settings), flush=True)
for step in range(settings["train_iters"]):
    before(step)
    values = {"step": step, "loss": 7 - step / 100, "lr_used": 1e-4, "end_monotonic_s": 50 + 0.1 * step}
    print("[tprimat] step", json.dumps(values), flush=True)
"""


class Stub:
    """launch.py with a program in place of torchrun and its ranks, so that a run takes as long as the launcher does.

    framework.python is a script that passes on to this Python, but for the start of the ranks: that is `program`."""

    def __init__(self, folder: Path) -> None:
        self.runs, self._folder = folder / "runs", folder
        self._python = folder / "python"
        starts = f'if [[ "${{2:-}}" == */start_ranks.py ]]; then exec {sys.executable} -u {folder}/program.py "$@"; fi'
        self._python.write_text(f'#!/bin/bash\n{starts}\nexec {sys.executable} "$@"\n', encoding="utf-8")
        self._python.chmod(0o755)
        self.program()

    def program(self, before: str = "", after: str = "") -> None:
        """Let the ranks be a program of marks: `before(step)` has these lines, and others follow the last step."""
        body = "".join(f"    {line}\n" for line in before.splitlines())
        code = f"def before(step):\n    pass\n{body}{MARKS}{after}\n"
        (self._folder / "program.py").write_text(code, encoding="utf-8")

    def start(self, *arguments: str, iterations: int = 20, **env: str) -> subprocess.Popen[str]:
        """Start a launch; its name is t, unless the arguments say otherwise."""
        fixed = ("platform=cpu", "framework=megatron", f"framework.python={self._python}", f"runs_dir={self.runs}")
        sizes = (f"training.train_iters={iterations}", "optimizer.lr_warmup_iters=2")
        # a shell lets what it starts in the background ignore it, and the launcher leaves that so
        heard = ("env", "--default-signal=QUIT")
        argv = [*heard, sys.executable, str(ROOT / "launch.py"), *fixed, *sizes, "name=t", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(argv, text=True, env={**os.environ, **env}, **pipes)  # type: ignore[call-overload, no-any-return]

    def launch(self, *arguments: str, iterations: int = 20, **env: str) -> tuple[int, str]:
        """Run a launch to its end; return its exit code, and what it printed, stderr first."""
        process = self.start(*arguments, iterations=iterations, **env)
        out, err = process.communicate(timeout=2 * PATIENCE_S)
        return process.returncode, err + out

    def directory(self, name: str = "t") -> Path:
        """Return the directory of the first run of this name, once it has a log."""
        wait_until(lambda: [*self.runs.glob(f"{name}/*/train.log")], "a log")
        return min(self.runs.glob(f"{name}/*/train.log")).parent


def command(*words: str) -> tuple[int, str]:
    """Run `python -m WORDS` to its end; return its exit code, and what it printed, stderr first."""
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, cwd=ROOT, check=False)
    return done.returncode, done.stderr + done.stdout


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static long offset(void) {
  FILE *file = fopen(getenv("CLOCK_OFFSET"), "r");
  long seconds = 0;
  if (file) { if (fscanf(file, "%ld", &seconds) != 1) seconds = 0; fclose(file); }
  return seconds;
}
int clock_gettime(clockid_t id, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(id, now);
  if (id == CLOCK_REALTIME) now->tv_sec += offset();
  return result;
}
time_t time(time_t *where) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (where) *where = now.tv_sec;
  return now.tv_sec;
}
"""
"""The library of C with a clock that is apart by the seconds in the file CLOCK_OFFSET."""
WITHOUT_CC = pytest.mark.skipif(
    shutil.which("cc") is None, reason="cc is not installed: the C library cannot be changed"
)


def library(folder: Path, source: str) -> str:
    """Return the path of a library, to be loaded before that of C, compiled from its source."""
    (folder / "before.c").write_text(source, encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "before.so", folder / "before.c", "-ldl"], check=True)
    return str(folder / "before.so")
