"""The README's worked example of adding a model works as written."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent


def test_adding_a_model_as_the_readme_says(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    for name in ("conf", "launchers", "parsers", "metrics", "compare", "estimate", "shell", "tensorprimat"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "launch.py", tmp_path)
    model = yaml.safe_load((tmp_path / "conf/model/qwen25_7b.yaml").read_text(encoding="utf-8"))
    model["model"] |= yaml.safe_load(block)
    header = "# @package _global_\n"
    (tmp_path / "conf/model/qwen25_1p5b.yaml").write_text(header + yaml.safe_dump(model), encoding="utf-8")
    (command,) = re.findall(r"^python (launch.py model=qwen25_1p5b .*)$", text, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, *command.split()], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1,543,714,304 parameters" in done.stdout
