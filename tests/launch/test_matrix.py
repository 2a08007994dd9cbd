"""A matrix of runs survives its runner: none is lost, none runs twice, and `tprimat matrix` says and continues it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from launchers.matrix import folded
from tensorprimat.journal import Journal, of_one_node
from tests.drills import PATIENCE_S, Stub, command, wait_until

TWO = ("-m", "training.seed=1,2")


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub(tmp_path)


def matrix(stub: Stub, *words: str) -> tuple[int, str]:
    return command("tensorprimat", "matrix", *words, str(stub.runs / "t"))


def states(stub: Stub) -> dict[int, dict[str, Any]]:
    """Return the rows of `matrix status` by seed."""
    shown = matrix(stub, "status", "--json")[1]
    return {int(row["id"].partition("seed")[2].partition("-")[0]): row for row in json.loads(shown)}


def starts(stub: Stub) -> list[str]:
    """Return the seed of each start of the ranks, in order: the program itself notes them."""
    noted = stub.runs.parent / "starts"
    return noted.read_text(encoding="utf-8").split() if noted.exists() else []


def noting(stub: Stub, before: str = "") -> None:
    """Let the ranks note their start, and do `before` in each step."""
    noted = f'print(settings["seed"], file=open({str(stub.runs.parent / "starts")!r}, "a"))'
    stub.program(f"if step == 0: {noted}\n{before}")


def waiting(stub: Stub) -> Path:
    """Let the ranks note their start and wait for as long as the file exists that is returned."""
    hold = stub.runs.parent / "hold"
    hold.touch()
    noting(stub, f"while os.path.exists({str(hold)!r}): time.sleep(0.05)")
    return hold


def test_a_matrix_runs_each_run_once(stub: Stub) -> None:
    noting(stub)
    code, shown = stub.launch(*TWO)
    assert (code, shown.count("completed ")) == (0, 2), shown
    assert stub.launch("-m", "training.seed=1,2,3")[0] == 0
    assert starts(stub) == ["1", "2", "3"]
    assert {row["state"] for row in states(stub).values()} == {"completed"}
    assert matrix(stub, "resume")[0] == 0 and starts(stub) == ["1", "2", "3"]


def test_a_failed_run_is_tried_again_up_to_a_bound_and_its_causes_are_kept(stub: Stub) -> None:
    noting(stub, 'if settings["seed"] == 1 and step == 3: sys.exit("no such luck")')
    code, shown = stub.launch(*TWO)
    assert code == 1 and starts(stub) == ["1", "1", "2"], shown
    failed = states(stub)[1]
    assert (failed["state"], failed["attempt"], len(failed["causes"])) == ("failed", 2, 2)
    assert "no such luck" in failed["causes"][0]
    assert [*stub.runs.glob("t/*seed1-*/attempts/1/run.json")], "the first attempt has its record still"
    assert matrix(stub, "resume")[0] == 1 and len(starts(stub)) == 3, "its bound holds"
    assert matrix(stub, "resume", "--failed")[0] == 1 and len(starts(stub)) == 5
    noting(stub)
    assert stub.launch(*TWO, "cluster.retries=0")[0] == 0 and len(starts(stub)) == 6


@pytest.mark.drill("the next launch began where it could, and nobody could say what was to run")
def test_a_killed_runner_goes_on_without_losing_or_doubling_a_run(stub: Stub) -> None:
    noting(stub)
    assert stub.launch("-m", "training.seed=1")[0] == 0
    hold = waiting(stub)
    process = stub.start("-m", "training.seed=1,2,3,4")
    wait_until(lambda: starts(stub) == ["1", "2"], "the second run")
    process.kill()
    process.communicate()
    hold.unlink()
    found = {seed: row["state"] for seed, row in states(stub).items()}
    assert found == {1: "completed", 2: "stopped", 3: "planned", 4: "planned"}
    code, shown = matrix(stub, "resume")
    assert code == 0, shown
    assert starts(stub) == ["1", "2", "2", "3", "4"]
    assert {row["state"]: row["failures"] for row in states(stub).values()} == {"completed": 0}


@pytest.mark.drill("both ran every run that the other one was not at work on")
def test_a_second_runner_is_refused(stub: Stub) -> None:
    hold = waiting(stub)
    process = stub.start(*TWO)
    wait_until(lambda: starts(stub), "the first run")
    code, shown = stub.launch(*TWO)
    assert code == 2 and f"process {process.pid} on" in shown, shown
    assert f"process {process.pid} on" in matrix(stub, "status")[1]
    code, shown = matrix(stub, "cancel")
    assert code == 0 and "ends its present run" in shown, shown
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, err + out
    hold.unlink()
    assert {row["state"] for row in states(stub).values()} == {"cancelled"} and starts(stub) == ["1"]
    assert matrix(stub, "resume")[0] == 0 and starts(stub) == ["1", "1", "2"]


def test_a_budget_runs_several_at_a_time(stub: Stub) -> None:
    """Each of the first two waits for the other."""
    here = stub.runs.parent
    stub.program(
        f"if step == 0: open(f'{here}/{{settings[\"seed\"]}}', 'w')\n"
        f"while settings['seed'] < 3 and not all(os.path.exists(f'{here}/{{n}}') for n in (1, 2)): time.sleep(0.05)"
    )
    code, shown = stub.launch("-m", "training.seed=1,2,3", "cluster.budget=2", "gpus_per_node=1")
    assert (code, shown.count("completed ")) == (0, 3), shown
    code, shown = stub.launch(*TWO, "cluster.budget=1", "gpus_per_node=2", "layout=tp2")
    assert code == 2 and "one run takes 2" in shown, shown


@pytest.mark.drill("as now")
def test_a_signal_stops_the_matrix_and_resume_finishes_it(stub: Stub) -> None:
    hold = waiting(stub)
    process = stub.start(*TWO)
    wait_until(lambda: starts(stub), "the first run")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 1
    process.communicate()
    hold.unlink()
    assert {seed: row["state"] for seed, row in states(stub).items()} == {1: "cancelled", 2: "planned"}
    assert matrix(stub, "resume")[0] == 0 and starts(stub) == ["1", "1", "2"]


@pytest.mark.drill("no journal")
def test_a_journal_that_was_cut_off_loses_its_last_line_alone(stub: Stub) -> None:
    noting(stub)
    assert stub.launch(*TWO)[0] == 0
    journal = stub.runs / "t" / "matrix.jsonl"
    text = journal.read_text(encoding="utf-8")
    journal.write_text(text[:-20], encoding="utf-8")
    assert "1 lines of matrix.jsonl are cut off" in matrix(stub, "status")[1]
    code, shown = matrix(stub, "resume")
    assert code == 0 and "completed before" in shown and starts(stub) == ["1", "2"], shown


def test_times_of_a_journal_decide_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append({"event": "planned", "run": "a", "experiment": {}, "at": "2099-01-01"})
    journal.append({"event": "intends", "runs": ["a"], "at": "1970-01-01"})
    journal.state("a", 1, "failed", "why")
    journal.state("a", 0, "completed")
    (run,) = journal.read().runs.values()
    assert (run.state, run.attempt, run.cause) == ("failed", 1, "why")
    assert folded(["", "[]", '{"event": "state", "run": "nobody", "attempt": 1, "state": "x"}']).unread == 3


def test_a_mount_whose_locks_others_do_not_see_is_named(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 2 0:3 / {tmp_path} rw - nfs server:/x rw,vers=3,nolock\n", encoding="utf-8")
    assert of_one_node(tmp_path / "runs", mounts) == "nolock"
    mounts.write_text(f"1 2 0:3 / {tmp_path} rw - nfs server:/x rw,vers=4\n", encoding="utf-8")
    assert of_one_node(tmp_path / "runs", mounts) is None


def test_what_is_no_matrix_is_refused(tmp_path: Path) -> None:
    assert "has no matrix.jsonl" in command("tensorprimat", "matrix", "status", str(tmp_path))[1]
    assert "did you mean status" in command("tensorprimat", "matrix", "statu")[1]
    (tmp_path / "matrix.jsonl").write_text(
        '{"event": "planned", "run": "a", "experiment": {"modle": 1}}\n', encoding="utf-8"
    )
    code, shown = command("tensorprimat", "matrix", "resume", str(tmp_path))
    assert code == 2 and "matrix.jsonl.modle: no such key" in shown, shown
