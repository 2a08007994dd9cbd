"""The bats files of this folder, where bats is: on PATH, or where make test has npm put it (.venv/node_modules)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NPM = ROOT / ".venv" / "node_modules" / "bats" / "bin" / "bats"
BATS = os.environ.get("BATS") or shutil.which("bats") or (str(NPM) if NPM.is_file() else None)


@pytest.mark.long
@pytest.mark.skipif(BATS is None, reason="bats is not installed: make npm, or apt install bats")
@pytest.mark.parametrize("file", sorted(HERE.glob("*.bats")), ids=lambda path: path.stem)
def test_bats(file: Path) -> None:
    done = subprocess.run([str(BATS), str(file)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
