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


@pytest.mark.parametrize("stack", sorted(stack for stack, row in TABLE.items() if "checkout" not in row))
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


PRIMUS = """
import json, os, sys
if __name__ == "__main__":
    print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["TPRIMAT_PROBE"], os.getppid()]), flush=True)
"""


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "by its variables"])
def test_primus_is_imported_in_its_checkout_as_its_own_script_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: bool
) -> None:
    for file in (
        "primus/backends/megatron/megatron_adapter.py",
        "third_party/Megatron-LM/megatron/training/arguments.py",
    ):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(f"print('{file}', flush=True)", encoding="utf-8")
    (tmp_path / "primus" / "cli").mkdir()
    (tmp_path / "primus" / "cli" / "main.py").write_text(PRIMUS, encoding="utf-8")
    python = Path(sys.executable)
    if typed:
        named: tuple[str, ...] = ("framework=primus", f"framework.checkout={tmp_path}", f"framework.python={python}")
    else:
        monkeypatch.setenv("PRIMUS_PATH", str(tmp_path))
        monkeypatch.setenv("PRIMUS_PYTHON", str(python))
        named = ("platform=amd",)
    early.begin(("rehearse=train", *named))
    process = early.BEGUN[0].process
    # what shell/primus_train.sh, Primus' run_pretrain.sh and rehearsal/bin/torchrun set
    packages = next(python.parents[1].glob("lib/python3*/site-packages"))
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, packages, FOLDER))), "TPRIMAT_PROBE": "/of/the/run"}
    env = {**os.environ, **early.guessed(TABLE["primus"]["variables"]), **paths}
    words = [str(python.with_name("python3")), "-u", "primus/cli/main.py", "train"]
    with warm.kept(several=False):
        asking = {**env, warm.VARIABLE: os.environ[warm.VARIABLE]}
        done = subprocess.run(words, cwd=tmp_path, env=asking, capture_output=True, text=True, timeout=600, check=True)
    *printed, said = done.stdout.splitlines()
    assert [line.split("/")[0] for line in printed] == ["primus", "third_party"]
    assert json.loads(said) == [["train"], str(tmp_path), "/of/the/run", process.pid]


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
        (WORDS[0], "framework=primus", WORDS[2]),
        (WORDS[0], WORDS[2]),
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
