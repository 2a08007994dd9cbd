"""NeMo started by tests: through launch.py, or a program of this folder in its own interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = Path(__file__).parent / "programs"


def reported(python: str, program: str, word: str, *arguments: str) -> Any:
    """Return the JSON that a program of this folder prints after `word`."""
    argv = (python, str(PROGRAMS / program), *arguments)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300, env=offline())
    lines = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith(f"{word} ")]
    assert lines, done.stderr[-2000:]
    return json.loads(lines[0])


def launch(python: str, runs: Path, *overrides: str, framework: str = "nemo") -> tuple[int, str, str]:
    """launch.py with a stack of NVIDIA's: exit code, stdout and stderr."""
    fixed = ("platform=cpu", f"framework={framework}", f"framework.python={python}", f"runs_dir={runs}", "name=t")
    argv = (sys.executable, str(ROOT / "launch.py"), *fixed, *overrides)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600, env=offline())
    return done.returncode, done.stdout, done.stderr


def offline(**more: str) -> dict[str, str]:
    """This environment, with nothing fetched from anywhere."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", **more}
