"""Write the lock files: every package of the embedded engine and of developers, with the hashes of its files on PyPI,
for every Python and system that pyproject.toml allows. `make lock` runs it with uv, which resolves.

    lock.txt         the program and its engine, but for torch
    lock-dev.txt     those, and what developers need
    lock-torch.txt   PyTorch as PyPI has it, and what only that brings (Triton, CUDA's libraries)

Torch has a file of its own, since which build fits a machine is the user's choice: one for a CPU or for ROCm comes from
another index than PyPI, with the same version and other hashes."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
OF_TORCH = re.compile(r"(torch|triton|cuda-[\w-]+|nvidia-[\w-]+)==")
HEAD = "# Made by `make lock` (requirements/renew.py): not edited by hand.\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        engine, dev = Path(temporary, "engine.txt"), Path(temporary, "dev.txt")
        resolve(engine, "--extra", "embedded")
        resolve(dev, "--extra", "embedded", "--extra", "dev", "--constraint", str(engine))
        of_engine, of_dev = [[*entries(path.read_text(encoding="utf-8"))] for path in (engine, dev)]
    split = {"lock.txt": (of_engine, False), "lock-dev.txt": (of_dev, False), "lock-torch.txt": (of_engine, True)}
    for name, (known, of_torch) in split.items():
        kept = [entry for entry in known if bool(OF_TORCH.match(entry)) == of_torch]
        (HERE / name).write_text(HEAD + "".join(kept), encoding="utf-8")


def resolve(output: Path, *more: str) -> None:
    """Write the newest versions that fit, with hashes, whatever was locked before."""
    how = ("--universal", "--python-version=3.10", "--generate-hashes", "--upgrade")
    shown = ("--no-header", "--no-emit-index-url", "--no-config", "--quiet")
    uv = (sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", *how, *shown)
    subprocess.run([*uv, *more, f"--output-file={output}"], cwd=HERE.parent, check=True)


def entries(text: str) -> Iterator[str]:
    """Yield each requirement with its hashes and what needs it, which is no file of this machine."""
    ours = re.sub(r"^    #   -c .*\n", "", text, flags=re.MULTILINE)
    yield from re.findall(r"^\S.*\n(?:[ ].*\n)*", ours, re.MULTILINE)


if __name__ == "__main__":
    main()
