"""Ranks that share the imports of their stack: each runs as it would by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from launchers import warm
from launchers.rehearse import FOLDER
from tests.drills import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is shared there")

STACK = """
import os
print("imported by", os.environ["TPRIMAT_PLAY_RANK"], flush=True)
with open("imports", "a") as file: file.write("once\\n")
FLAVOUR = os.environ.get("FLAVOUR")
"""
PROGRAM = """
import atexit, json, os, sys, time
def warm(folder): import stack
if __name__ == "__main__":
    import stack
    atexit.register(print, "the end", flush=True)
    names = ("X", "FLAVOUR", "RANK", "TPRIMAT_PLAY_RANK", "TPRIMAT_WARM")
    seen = [sys.argv, os.getcwd(), sys.path[0], stack.FLAVOUR, *map(os.environ.get, names)]
    print(json.dumps(seen), file=sys.stderr, flush=True)
    if sys.argv[1] == "killed": os.kill(os.getpid(), 9)
    if sys.argv[1] == "hangs": print("pid", os.getpid(), flush=True); time.sleep(600)
    if sys.argv[1] == "raises": raise ValueError("as it is")
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "stack.py").write_text(STACK, encoding="utf-8")
    path = tmp_path / "nemo_ranks.py"
    path.write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "run").mkdir()
    return path


def started(program: Path, word: str, rank: int = 0, **variables: str) -> subprocess.Popen[str]:
    own = {"PYTHONPATH": str(FOLDER), "TPRIMAT_PLAY_RANK": str(rank), "TPRIMAT_PLAY_WORLD": "4", **variables}
    return subprocess.Popen(
        [sys.executable, "-u", str(program), word],
        cwd=program.parent / "run",
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(*words: Any, **variables: Any) -> tuple[str, int]:
    process = started(*words, **variables)
    out, _ = process.communicate(timeout=60)
    return out, process.returncode


def imports(program: Path) -> int:
    """Return how often the stack was imported since the last call."""
    file = program.parent / "run" / "imports"
    count = len(file.read_text(encoding="utf-8").splitlines())
    file.unlink()
    return count


def test_a_rank_prints_and_ends_as_by_itself_and_the_stack_is_imported_once(program: Path) -> None:
    ranks = [("0", 0, {"X": "a"}), ("3", 0, {"X": "b"}), ("killed", 0, {}), ("0", 3, {})]
    alone = [ended(program, word, rank, **variables) for word, rank, variables in ranks]
    assert [code for _, code in alone] == [0, 3, -9, 0] and imports(program) == 4
    assert '"a"' in alone[0][0] and "the end" in alone[0][0] and "the end" not in alone[2][0]
    with warm.kept():
        shared = [ended(program, word, rank, **variables) for word, rank, variables in ranks[:3]]
        assert shared == alone[:3] and imports(program) == 1
        out, code = ended(program, "0", 3)
        assert code == 0 and out.partition("\n")[2] == alone[3][0].partition("\n")[2], "but for what imports have said"
    assert "TPRIMAT_WARM" not in os.environ and not left(program)


def test_a_rank_whose_imports_would_see_another_variable_has_its_own(program: Path) -> None:
    with warm.kept():
        flavours = [json.loads(ended(program, "0", FLAVOUR=name)[0].splitlines()[1])[3] for name in "abab"]
        assert flavours == ["a", "b", "a", "b"] and imports(program) == 2
        out, _ = ended(program, "raises", FLAVOUR="a")
        assert "ValueError: as it is" in out
        assert ended(program, "0", FLAVOUR="a", PYTHONHASHSEED="1")[1] == 0
        assert imports(program) == 1, "what Python itself reads is seen by nobody"
    assert not left(program)


def test_a_rank_that_is_ended_ends(program: Path) -> None:
    with warm.kept():
        process = started(program, "hangs")
        assert process.stdout is not None
        pid = next(int(line.split()[1]) for line in process.stdout if line.startswith("pid"))
        assert pid != process.pid
        assert ended(program, "0")[1] == 0, "another one runs meanwhile"
        process.kill()
        wait_until(lambda: not psutil.pid_exists(pid), "the rank runs, and nobody waits for it")
        process.communicate()
        process = started(program, "hangs")
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("pid"))
    assert process.wait(60) == 1, "whoever ran it is gone"
    process.communicate()
    assert not left(program)


def test_a_stack_that_cannot_be_imported_is_left_to_each_rank(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (program.parent / "stack.py").write_text("raise OSError('no library')", encoding="utf-8")
    with warm.kept():
        for _ in range(2):
            out, code = ended(program, "0")
            assert code == 1 and out.count("OSError: no library") == 1
    assert capsys.readouterr().err.count("each imports it by itself") == 1
    assert not left(program)


def left(program: Path) -> list[list[str]]:
    lines = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return [line for line in lines if str(program) in line]
