"""Power and memory of a machine's GPUs while a run lasts: shell/sample_power.sh beside it, into its directory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "shell" / "sample_power.sh"
FILE = "power.jsonl"
INTERVAL_S = 1.0
_GRACE_S = 12.0  # the sampler waits up to 10 s for a vendor's tool that hangs


@contextmanager
def sampled(directory: Path, vendor: str | None) -> Iterator[list[str]]:
    """Sample into `directory` inside the with block; the list holds afterwards why there is nothing, if so. vendor:
    None (a CPU) samples nothing. The sampler ends with the block, and by itself when this process dies."""
    notes: list[str] = []
    if vendor is None:
        yield notes
        return
    command = ["bash", str(SCRIPT), FILE, str(INTERVAL_S), str(os.getpid())]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    try:
        # a session of its own: a Ctrl-C at the terminal is for the run, which ends first
        sampler = subprocess.Popen(command, cwd=directory, start_new_session=True, **quiet)  # type: ignore[call-overload]
    except OSError as error:
        notes.append(f"power was not sampled: bash: {error.strerror}")
        yield notes
        return
    try:
        yield notes
    finally:
        notes.extend(_end(sampler))


def _end(sampler: subprocess.Popen[bytes]) -> Iterator[str]:
    early = sampler.poll()
    sampler.terminate()
    try:
        _, said = sampler.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        sampler.kill()
        _, said = sampler.communicate()
    if early is not None:
        why = said.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"its sampler ended with code {early}"]
        yield f"power was not sampled to the end: {why[0]}"
