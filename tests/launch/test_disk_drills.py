"""Drills with a file system that is served badly: a handle that goes stale, as of NFS, and a disk that is slow. The
launcher's own calls of the C library are answered so, by a library in front of it; no other of its processes' are."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.drills import PATIENCE_S, Stub, command, wait_until

pytestmark = [
    pytest.mark.engine,  # which must be installed, and does not train here
    pytest.mark.skipif(
        shutil.which("cc") is None, reason="cc is not installed: no call of a file system can be changed"
    ),
]
DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
/* Below the first path in the file BAD_DISK all calls are ESTALE; writes to a train.log take SLOW_DISK_US. */
static int stale(const char *path) {
  static __thread int inside;
  char below[4096] = "";
  if (inside || !path) return 0;
  inside = 1;
  FILE *file = fopen(getenv("BAD_DISK"), "r");
  if (file) { if (!fgets(below, sizeof below, file)) below[0] = 0; fclose(file); }
  inside = 0;
  if (!below[0] || !strstr(path, below)) return 0;
  errno = ESTALE;
  return 1;
}
static void name_of(int fd, char *name, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, name, size - 1);
  name[length > 0 ? length : 0] = 0;
}
#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, name)
#define OPEN(name) int name(const char *path, int flags, ...) { \
  REAL(int, #name, const char *, int, ...); \
  va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
  return stale(path) ? -1 : real(path, flags, mode); }
#define CALL(name, of) int name(const char *path, of second) { \
  REAL(int, #name, const char *, of); \
  return stale(path) ? -1 : real(path, second); }
OPEN(open)
OPEN(open64)
CALL(mkdir, mode_t)
CALL(stat, struct stat *)
CALL(stat64, struct stat64 *)
int unlink(const char *path) {
  REAL(int, "unlink", const char *);
  return stale(path) ? -1 : real(path);
}
int rename(const char *from, const char *to) {
  REAL(int, "rename", const char *, const char *);
  return stale(from) || stale(to) ? -1 : real(from, to);
}
ssize_t write(int fd, const void *data, size_t size) {
  char name[4096];
  REAL(ssize_t, "write", int, const void *, size_t);
  name_of(fd, name, sizeof name);
  if (stale(name)) return -1;
  if (getenv("SLOW_DISK_US") && strstr(name, "/train.log")) usleep(atoi(getenv("SLOW_DISK_US")));
  return real(fd, data, size);
}
"""


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub(tmp_path)


@pytest.fixture
def disk(tmp_path: Path) -> dict[str, Any]:
    """Return the environment of a launcher before which the library stands."""
    (tmp_path / "disk.c").write_text(DISK, encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "disk.so", tmp_path / "disk.c", "-ldl"], check=True)
    return {"LD_PRELOAD": str(tmp_path / "disk.so"), "BAD_DISK": str(tmp_path / "bad")}


@pytest.mark.slow
@pytest.mark.drill("a traceback, the run stayed running, and the second run of the sweep never began")
def test_a_stale_file_handle_loses_no_run(stub: Stub, disk: dict[str, Any], tmp_path: Path) -> None:
    stub.program("time.sleep(0.2)")
    process = stub.start("repeat=2", "cluster.retries=0", **disk)
    directory = stub.directory()
    wait_until(lambda: '"step": 3' in (directory / "train.log").read_text(encoding="utf-8"), "step 3")
    (tmp_path / "bad").write_text(f"{directory}/", encoding="utf-8")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in err and "Stale file handle" in err + out, err + out
    assert process.returncode == 1 and out.count("completed ") == 1, err + out
    beside = json.loads(Path(f"{directory}.record", "run.json").read_text(encoding="utf-8"))
    assert beside["status"] == "failed" and "Stale file handle" in beside["cause"], beside["cause"]
    (tmp_path / "bad").unlink()
    code, shown = stub.launch("repeat=2", **disk)
    assert code == 0 and shown.count("completed before") == 1, shown


@pytest.mark.slow
@pytest.mark.drill("15 of 20 steps were lost, and a good run had failed")
def test_a_slow_disk_loses_no_step(stub: Stub, disk: dict[str, Any]) -> None:
    """A megabyte in writes of at most 64 kB that take a second each, for long after the ranks have ended."""
    stub.program('print("x" * 50_000, flush=True)')
    code, shown = stub.launch(**disk, SLOW_DISK_US="1000000")
    about = json.loads((stub.directory() / "run.json").read_text(encoding="utf-8"))
    assert (code, about["status"], about["steps_file"]["count"]) == (0, "completed", 20), shown


@pytest.mark.drill("everybody could read train.log")
def test_what_holds_lines_of_a_log_is_for_the_group_at_most(stub: Stub) -> None:
    line = "a line of the log"
    stub.program(f"if step == 5: raise RuntimeError({line!r})")
    assert stub.launch("repeat=2", "cluster.retries=0")[0] == 1
    holding = [path for path in stub.runs.rglob("*") if path.is_file() and line.encode() in path.read_bytes()]
    assert {path.name for path in holding} >= {"train.log", "run.json", "matrix.jsonl"}
    assert [str(path) for path in holding if stat.S_IMODE(path.stat().st_mode) & 0o027] == []
    assert stat.S_IMODE(stub.directory().stat().st_mode) & 0o027 == 0, "whatever else the ranks write there"
    assert command("metrics", str(stub.runs))[0] in (0, 1)
