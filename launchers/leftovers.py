"""End what a run left in a container: its processes belong to a daemon, so that no signal to the client reaches them
for sure. Standard library only: launchers/guard.py starts this file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

MARK = "TPRIMAT_RUN"
"""A variable of the processes of a run, by which those are found that a rank has left behind."""
LIMIT_S = 60.0  # a daemon that ends eight GPUs' processes takes a while
_REMOVE = {
    "docker": ("docker", "rm", "--force"),
    "podman": ("podman", "rm", "--force", "--time=0"),
}
_UNKNOWN = "no such container"  # as both say, in several cases


def removal(container: tuple[str, str] | None) -> tuple[str, ...]:
    """Return the command that does `remove` of a container; none where there is none."""
    return (sys.executable, "-ISB", __file__, *container) if container else ()


def remove(container: tuple[str, str] | None) -> str | None:
    """End and remove the container or the job step (runtime, name), where one is left; of Enroot and Apptainer nothing
    can be: their processes are our own. Return why it may run still, None where it does not."""
    runtime, name = container or ("", "")
    if runtime in _REMOVE:
        return _failure((*_REMOVE[runtime], name))
    if runtime == "pyxis":
        rows = _done(("squeue", "--me", "--steps", "--noheader", "--format=%i|%j")).stdout.splitlines()
        named = [row.partition("|") for row in rows]
        steps = [step.strip() for step, _, of in named if of.strip() == name]
        return _failure(("scancel", "--signal=KILL", *steps)) if steps else None
    return None


def _failure(argv: Sequence[str]) -> str | None:
    done = _done(argv)
    if done.returncode == 0 or _UNKNOWN in done.stderr.lower():
        return None
    why = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return f"what runs in the container may not have ended ({why[0]}); try: {' '.join(argv)}"


def _done(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Return what `argv` ended with; where it is missing or hangs, exit code 127."""
    how = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    try:
        return subprocess.run(argv, check=False, timeout=LIMIT_S, **how)  # type: ignore[call-overload,no-any-return]
    except (OSError, subprocess.SubprocessError) as error:
        return subprocess.CompletedProcess(argv, 127, "", str(error))


if __name__ == "__main__":
    sys.exit(remove((sys.argv[1], sys.argv[2])))
