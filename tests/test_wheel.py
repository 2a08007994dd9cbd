"""The built wheel in an empty environment: it carries conf/ and shell/, plans, and does not bring torch."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory), str(ROOT)]
    subprocess.run(argv, check=True, capture_output=True, timeout=300)
    (path,) = directory.glob("*.whl")
    return path


def test_it_carries_the_config_and_the_shell(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    needed = {"conf/config.yaml", "conf/tables/layouts.csv", "conf/vocabulary.yaml", "conf/model/llama31_8b.yaml"}
    needed |= {"shell/environment.sh", "launchers/ranks/engine.py", "parsers/run.schema.json"}
    needed |= {"compare/report/report.css", "compare/report/templates/report.html", "compare/compare.schema.json"}
    needed |= {"compare/report/fonts/DejaVuSans.ttf"}
    assert needed <= names
    assert not [name for name in names if name.startswith(("tests/", ".ci"))]


def test_it_plans_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "v")], check=True, timeout=120)
    python, tprimat = tmp_path / "v/bin/python", tmp_path / "v/bin/tprimat"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", str(wheel)], check=True, capture_output=True, timeout=400
    )
    arguments = ["launch", "model=llama", "platform=amd", "dry_run=true"]
    done = subprocess.run([tprimat, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "8,030,261,248 parameters" in done.stdout
    torch = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, timeout=60, check=False)
    assert "No module named 'torch'" in torch.stderr
    refused = subprocess.run([tprimat, "launch"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "[embedded]" in refused.stderr
