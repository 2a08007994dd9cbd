"""Test that a stack's imports begin before the plan is known, and serve the rank that it starts, and no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf import load_experiment
from launchers import early, make_plan, warm
from launchers.plan import Host
from launchers.rehearse import FOLDER, prepared
from tests.drills import wait_until

ROOT = Path(__file__).parents[2]
TOY = ("rehearse=train", "model=llama", "layout=data_parallel", "gpus_per_node=1", "training.train_iters=20")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is shared there")

PROGRAM = """
import json, os, sys
def warm(folder):
    print("imported early", flush=True)
    os.environ.get("FLAVOUR")
if __name__ == "__main__":
    print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("X"), os.getppid()]), flush=True)
"""


TABLE = json.loads(early.TABLE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("stack", sorted(TABLE))
def test_what_is_guessed_is_what_the_plan_says(stack: str) -> None:
    small, _ = prepared(load_experiment(*TOY, f"framework={stack}", "framework.python=/opt/python"))
    plan = make_plan(small, Host(python="/opt/python", cpu_count=len(os.sched_getaffinity(0)), ci=False))
    guess = early.guessed(TABLE[stack]["variables"])
    assert {name: plan.env.get(name) for name in guess} == guess
    assert plan.argv[:3] == ("/opt/python", "-u", str(early.RANKS / TABLE[stack]["program"]))


def test_the_variables_that_nobody_sees_read_are_those_of_the_process() -> None:
    text = (FOLDER / "tprimat_warm.py").read_text(encoding="utf-8")
    assert f"UNSEEN = ({', '.join(map(json.dumps, early.UNSEEN))})" in text


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "nemo_ranks.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.setattr(early, "RANKS", tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield tmp_path / "nemo_ranks.py"
    assert not early.BEGUN


WORDS = ("rehearse=train", "framework=nemo", f"framework.python={sys.executable}")


def rank(program: Path, word: str, **variables: str) -> list[str]:
    """Return the lines of a rank as a plan starts it."""
    own = {**early.guessed(TABLE["nemo"]["variables"]), "PYTHONPATH": str(FOLDER), **variables}
    done = subprocess.run(
        [sys.executable, "-u", str(program), word],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_rank_runs_in_the_process_that_has_imported(program: Path) -> None:
    early.begin(WORDS)
    process = early.BEGUN[0].process
    with warm.kept(several=False):
        printed, said = rank(program, "a", X="x")
        assert printed == "imported early"
        assert json.loads(said) == [["a"], str(Path.cwd()), "x", process.pid]
    assert process.returncode is not None


@pytest.mark.parametrize(
    "other", [{"FLAVOUR": "b"}, {"WORLD_SIZE": "1", "HF_HUB_OFFLINE": "0"}, {"PYTHONHASHSEED": "1"}], ids=str
)
def test_a_rank_that_would_import_otherwise_imports_by_itself(program: Path, other: dict[str, str]) -> None:
    early.begin(WORDS)
    process = early.BEGUN[0].process
    with warm.kept(several=False):
        (said,) = rank(program, "a", **other)
        assert json.loads(said)[3] != process.pid
    assert process.returncode is not None


@pytest.mark.parametrize(
    "words",
    [
        (*WORDS, "dry_run=true"),
        (*WORDS, "bundle=there"),
        ("-m", *WORDS),
        ("--cfg", "job", *WORDS),
        WORDS[:2],
        WORDS[1:],
        ("rehearse=layout", *WORDS[1:]),
        (WORDS[0], "framework=nemo,primus", WORDS[2]),
        (*WORDS[:2], "framework.python=/nowhere/python"),
    ],
    ids=" ".join,
)
def test_nothing_begins_for_another_launch(program: Path, words: tuple[str, ...]) -> None:
    early.begin(words)
    assert not early.BEGUN


@pytest.mark.parametrize("program_name", [["launch.py"], ["-m", "tensorprimat", "launch"]], ids=" ".join)
def test_a_launch_that_is_refused_leaves_no_process(tmp_path: Path, program_name: list[str]) -> None:
    variables = {**os.environ, "TMPDIR": str(tmp_path)}
    words = [sys.executable, *program_name, *WORDS, "model=no_such_model"]
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2 and "no_such_model" in done.stderr
    wait_until(lambda: not list(tmp_path.glob("tprimat-*")), "what was begun early is left")
