"""A real Slurm on this machine for the tests of a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.drills import MARK

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def site() -> Iterator[Mapping[str, str]]:
    """A Slurm of two nodes, tn1 and tn2, with accounting where slurmdbd is: the environment for its commands."""
    if missing := [name for name in ("slurmctld", "slurmd", "munged") if not shutil.which(name)]:
        pytest.skip(f"{missing[0]} is not installed: apt-get install slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("starting a Slurm takes root")
    folder = Path(tempfile.mkdtemp(prefix="tprimat-slurm-"))  # pytest's own is closed to the user of the database
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}  # its daemons outlive a test
    up = subprocess.run(
        ["bash", str(HERE / "slurm_up.sh"), str(folder)], env=unmarked, capture_output=True, text=True, check=False
    )
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        yield {**os.environ, "SLURM_CONF": str(folder / "etc" / "slurm.conf")}
    finally:
        subprocess.run(["bash", str(HERE / "slurm_down.sh"), str(folder)], env=unmarked, check=True)
        shutil.rmtree(folder, ignore_errors=True)
