"""tprimat measure on this CPU, for real: it is stopped, goes on, and its file is of use."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

from conf import devices
from conf.machine import read
from conf.vendors import Devices
from launchers.rank_modules import FOLDER, rank_module
from launchers.variables import START
from measure import session, trainings
from measure.cases import Case, Scope
from measure.cli import _beside, main
from measure.trainings import SEEDS, WARM_UP, done, overrides, run
from parsers import read as read_run
from tests.drills import PATIENCE_S, free_port, started_processes, wait_until

pytestmark = pytest.mark.engine  # torch


def lines(folder: Path) -> list[tuple[int, int, int]]:
    texts = [text for path in folder.glob("samples-*.jsonl") for text in path.read_text("utf-8").splitlines()]
    return [(one["round"], one["case"], one["rank"]) for one in map(json.loads, texts)]


def work_of(**case: Any) -> Any:
    """Return what the work of a case comes to, from the same random numbers each time."""
    import torch

    torch.manual_seed(0)
    work = rank_module("measured_work").work_of({"dtype": "float32", "ranks": 1, **case}, torch.device("cpu"), {})
    return work()


def test_kernels_of_attention_attend_alike_and_causal_is_not_all() -> None:
    sizes = {"kind": "sdpa", "batch": 1, "heads": 8, "seq": 64, "channels": 16}
    flash, math = (work_of(**sizes, backend=name, causal=1) for name in ("flash", "math"))
    whole = work_of(**sizes, backend="math", causal=0)
    assert flash.allclose(math, atol=1e-5)
    assert not whole.allclose(math, atol=1e-2)
    with pytest.raises(RuntimeError):  # a kernel that this device does not have: its figure is unknown
        work_of(**sizes, backend="cudnn", causal=1)


def test_one_grouped_product_is_that_of_all_experts_in_turn() -> None:
    import torch

    sizes = {"experts": 4, "m": 8, "n": 16, "k": 32}
    in_turn, at_once = torch.cat(work_of(kind="grouped", **sizes)), work_of(kind="grouped_kernel", **sizes)
    assert in_turn.shape == at_once.shape == (32, 16)
    assert at_once.allclose(in_turn, atol=1e-4)


@pytest.mark.slow
def test_what_was_stopped_goes_on_and_no_visit_is_made_twice(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "measure", "ranks=2", "-o", str(tmp_path)]
    started = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    samples = tmp_path / "samples-0.jsonl"
    wait_until(lambda: samples.is_file() and samples.stat().st_size > 1000, "samples are written", 120)
    started.send_signal(signal.SIGTERM)  # a shell ignores SIGINT for what it starts in the background
    said, _ = started.communicate(timeout=120)
    assert "written: " in said
    assert not [command for command in started_processes().values() if "measure_ranks.py" in command]
    before = lines(tmp_path)
    with samples.open("a", encoding="utf-8") as file:
        file.write('{"case": 0, "round": 4, "ra')  # as a kill leaves it
    assert main(["ranks=2", "minutes=0.2", "-o", str(tmp_path)]) == 0
    after = [one for one in read_lines(samples) if one]
    assert len(after) > len([one for one in before if one[2] == 0])
    assert len(after) == len({(one["round"], one["case"]) for one in after})
    found = read(tmp_path / "machine.yaml")
    assert found.facts["torch"]
    assert found.device
    assert found.ranks == 2


def test_a_rank_that_dies_leaves_a_file_that_says_what_is_missing(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "measure", "probe", "ranks=2", "-o", str(tmp_path)]
    started = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    samples = tmp_path / "samples-1.jsonl"
    wait_until(lambda: samples.is_file() and samples.stat().st_size > 4000, "samples are written", 120)
    ranks = [
        pid for pid, command in started_processes().items() if "measure_ranks.py" in command and "run" not in command
    ]
    os.kill(max(ranks), signal.SIGKILL)
    said, _ = started.communicate(timeout=120)
    assert started.returncode == 1
    assert "a rank died" in said
    assert "measure*.log say of what" in said
    assert " are missing: a rank died" in read(tmp_path / "machine.yaml").unknown["timings"]
    assert main(["probe", "ranks=2", "-o", str(tmp_path)]) == 0  # the same call goes on
    assert "timings" not in read(tmp_path / "machine.yaml").unknown


def sampled(folder: Path, ranks: int, cases: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Visit each case once; return what each rank wrote."""
    visits = [[0, index] for index in range(len(cases))]
    work = {"accelerator": False, "cores": 1, "cases": cases, "visits": visits, "limit_s": 300}
    (folder / "todo.json").write_text(json.dumps(work), encoding="utf-8")
    words = ["--standalone", f"--nproc-per-node={ranks}", str(FOLDER / "measure_ranks.py"), "--settings=todo.json"]
    subprocess.run([sys.executable, str(START), *words], cwd=folder, check=True, timeout=PATIENCE_S)
    texts = [(folder / f"samples-{rank}.jsonl").read_text(encoding="utf-8") for rank in range(ranks)]
    return [[*map(json.loads, text.splitlines())] for text in texts]


IMPORTED = """
import sys
sys.path[:0] = sys.argv[1:]
import torch
import measure_ranks
assert measure_ranks._of_megatron()["engine"] > 1e7
print("torch._dynamo" in sys.modules)
"""


def test_megatron_takes_what_it_takes_in_the_engine_without_torch_s_compiler(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", IMPORTED, str(FOLDER)]
    done = subprocess.run(argv, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.endswith("False\n")


HELD = """
import gc, sys
sys.path[:0] = sys.argv[1:]
import torch
from measure.standard import standard
from measure_ranks import released
from measured_work import work_of

gc.disable()
one = standard(False)
case = {"kind": "model", "dtype": "float32", "model": one.sizes, "batch": 1, "seq": 64, "backward": 1}
work_of(case, torch.device("cpu"), {})()
released()
print(sum(tensor.numel() for tensor in gc.get_objects() if torch.is_tensor(tensor)))
"""


def test_the_first_model_is_let_go(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HELD, str(Path(__file__).parents[2]), str(FOLDER)]
    assert subprocess.run(argv, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True).stdout == "0\n"


def test_groups_side_by_side_need_no_case_of_as_many_ranks(tmp_path: Path) -> None:
    """Be a probe of eight: it has groups of four, and nothing else of four ranks."""
    case = {"kind": "all_reduce", "dtype": "float32", "ranks": 4, "group": 2, "least_s": 1e-3, "bytes": 1 << 12}
    assert all(line["seconds"] > 0 for (line,) in sampled(tmp_path, 4, [case]))


def test_ranks_of_several_nodes_exchange_one_of_each(tmp_path: Path) -> None:
    """Be two nodes of two ranks: the first of each are a group, and the second ones."""
    case = {"kind": "all_reduce", "dtype": "float32", "ranks": 4, "group": 2, "stride": 2, "least_s": 1e-3}
    assert all(line["seconds"] > 0 for (line,) in sampled(tmp_path, 4, [{**case, "bytes": 1 << 12}]))


def test_a_rank_that_cannot_do_a_piece_of_work_lets_none_wait_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "save-1.tmp").mkdir()  # where the second rank is to write
    case = {"dtype": "float32", "ranks": 2, "least_s": 1e-3, "bytes": 1 << 12}
    found = sampled(tmp_path, 2, [{**case, "kind": kind} for kind in ("save", "load", "all_reduce")])
    assert [[line["seconds"] is None for line in own] for own in found] == [[True, False, False]] * 2
    assert found[0][0]["error"] == "another rank could not do it"
    assert "save-1.tmp" in found[1][0]["error"]
    assert [path.name for path in tmp_path.glob("*.tmp")] == ["save-1.tmp"]


def test_a_disk_without_room_is_named_and_the_rest_is_measured(tmp_path: Path) -> None:
    case = {"kind": "save", "dtype": "float32", "ranks": 1, "least_s": 1e-3, "bytes": 1 << 62}
    (found,) = sampled(tmp_path, 1, [case, {**case, "kind": "load"}, {**case, "bytes": 1 << 12}])
    assert [line["seconds"] is None for line in found] == [True, True, False]
    assert all("bytes free, 4611686018427387904 are needed" in line["error"] for line in found[:2])


@pytest.mark.slow
def test_one_that_is_stopped_in_a_training_leaves_what_it_has_and_nobody_behind(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "measure", "ranks=1", "minutes=0.7", "-o", str(tmp_path)]
    started = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: [*tmp_path.glob("trainings/00/*/train.log")] or started.poll() is not None, "a training", 240)
    if started.poll() is not None:
        pytest.skip("here no training begins within its share of so short a time")
    started.send_signal(signal.SIGTERM)
    said, _ = started.communicate(timeout=120)
    assert "written: " in said
    assert started.returncode == 1
    unknown = read(tmp_path / "machine.yaml").unknown
    assert unknown["trainings"] == "0 of 4 completed: SIGTERM ended it: the same call again goes on"
    assert "factors" in unknown
    assert not [command for command in started_processes().values() if "engine.py" in command]


def test_a_small_training_runs_as_a_user_would_and_is_read_back(tmp_path: Path) -> None:
    (words,) = runs = overrides(1, full=False)[:1]
    run(tmp_path, runs, float("inf"), print)
    (found,) = done(tmp_path, runs)
    assert found.training.run == words
    assert found.training.steps == 16
    assert 0 < found.training.step_time_s < 60
    assert found.columns["global_batch_size"] == 6
    records = [*(tmp_path / "trainings").glob("*/*/run.json")]
    assert len(records) == len(SEEDS)
    usual = [median(step.step_time_s or 0.0 for step in read_run(one.parent).steps[WARM_UP:]) for one in records]
    assert found.training.step_time_s == pytest.approx(min(usual))  # other programs only slow a machine down
    run(tmp_path, runs, float("inf"), print)  # done before: launch leaves it
    assert [*(tmp_path / "trainings").glob("*/*/run.json")] == records


def read_lines(path: Path) -> list[dict[str, int]]:
    found = []
    for text in path.read_text("utf-8").splitlines():
        try:
            found.append(json.loads(text))
        except ValueError:
            found.append({})
    return found


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["slow"], "how far?"),
        (["ranks=100000"], "more than there are"),
        (["ranks=0"], "an integer from 1"),
        (["minutes=0"], "0.1 to 1440"),
        (["node_rank=first"], "an integer from 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(devices.find().vendor is not None, reason="a GPU is here")
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 9", "nvidia-smi is here and lists no GPU, so the CPU is measured: call nvidia-smi"),
        (
            "echo NVIDIA H100, 81559, 570.86",
            "can use none of 1 × NVIDIA H100, so the CPU is measured: nvidia-smi lists them",
        ),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_said(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool, folder = tmp_path / "nvidia-smi", tmp_path / "machine"
    tool.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    devices.find.cache_clear()
    try:
        assert main(["probe", "ranks=1", "minutes=0.1", "-o", str(folder)]) == 0
    finally:
        devices.find.cache_clear()
    out, err = capsys.readouterr()
    assert err.startswith("warning: ") and said in err
    assert f"warning: {err.removeprefix('warning: ').strip()}" in out
    found = read(folder / "machine.yaml")
    assert said in found.warnings[0]
    assert not found.accelerator and "NVIDIA" not in found.device


def test_a_folder_of_another_measurement_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "settings.json").write_text(json.dumps({"scope": {"ranks": 8}, "cases": []}), encoding="utf-8")
    assert main(["ranks=2", "-o", str(tmp_path)]) == 2
    assert "holds another measurement" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"host": "elsewhere"}, ("of another host", "host elsewhere", f"host {platform.node()}")),
        ({"device": "AMD EPYC 9654"}, ("of another device", "device AMD EPYC 9654", f"device {devices.processor()}")),
        ({"torch": None, "driver": "570.86"}, ("of another driver and torch", "driver 570.86, torch unknown")),
    ],
)
def test_a_folder_of_another_machine_is_refused_and_both_are_named(
    changed: dict[str, str | None], said: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _begun(tmp_path)
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changed}), encoding="utf-8")
    assert main(["probe", "ranks=1", "-o", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert all(text in err for text in said)


def _begun(folder: Path) -> tuple[Scope, Devices, list[Case]]:
    """Begin a probe of one rank in a folder; return its scope, devices and cases."""
    here, _ = session.usable(devices.find())
    scope = session.scope_of(here, 1, "probe")
    return scope, here, session._planned(scope, here, folder)


@pytest.mark.parametrize("text", ["[]", "{}", "[1, 2]", "{", '"cases"'])
def test_settings_that_are_none_are_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "settings.json").write_text(text, encoding="utf-8")
    assert main(["probe", "ranks=1", "-o", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "settings.json: cannot be read" in err and "remove the folder" in err


def test_the_date_is_that_of_the_last_sample_however_often_it_is_called(tmp_path: Path) -> None:
    scope, here, known = _begun(tmp_path)
    (tmp_path / "samples-0.jsonl").touch()
    os.utime(tmp_path / "samples-0.jsonl", (0, 86400))
    assert session.machine_of(scope, here, known, tmp_path).date == "1970-01-02T00:00:00+00:00"


def test_what_is_unknown_says_why(tmp_path: Path) -> None:
    scope, here, known = _begun(tmp_path)
    alone = session._judged(session.machine_of(scope, here, known, tmp_path), scope, known, tmp_path, [])
    for name in ("communication_tp", "communication_pp", "fabric_factor", "all_reduce_rate"):
        assert alone.unknown[name] == "there is one device"
    assert alone.unknown["vendor_factor"].startswith("baseline= names")
    two = replace(alone, ranks=2)
    beside, other = _beside(two, alone).unknown, _beside(two, replace(alone, device="H100", accelerator=True)).unknown
    assert "shares no rate of a collective" in beside["fabric_factor"]
    assert beside["vendor_factor"] == "no base_throughput was measured: here, the baseline"
    assert beside["power_cap"] == "no limit of power is known: here, the baseline"
    assert "is a GPU, and here is a CPU" in other["vendor_factor"]
    assert "is another device than" in other["power_cap"]


def test_a_training_that_fails_is_named_and_none_begins_without_its_time(tmp_path: Path) -> None:
    said = list[str]()
    ended, failed = run(tmp_path, [("model=none",), ("model=none",)], time.monotonic() + 0.5, said.append)
    assert ended is None
    assert len(said) == 1  # a launch takes longer than what was left
    assert failed == "training 1 failed with exit code 2, trainings-00-1234.log says of what"


def test_a_training_that_fails_is_in_the_file_s_reasons_and_measure_did_not_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = session.usable(devices.find())
    monkeypatch.setattr(session, "_run", lambda *_: None)  # no kernels
    monkeypatch.setattr(session, "_trainings", lambda scope: ([("model=none",)], ""))
    machine, code = session.measured(session.scope_of(here, 1, "quick"), here, tmp_path, 1, 0.5)
    assert code == 1
    assert machine.unknown["trainings"].startswith("0 of 1 completed: training 1 failed with exit code 2, ")


def test_a_training_whose_rank_is_killed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainings, "STEPS", 2000)  # it has not ended before it is killed
    logs = (tmp_path / "trainings").glob
    killed = list[int]()

    def kill() -> None:
        wait_until(
            lambda: any("[tprimat] step" in one.read_text("utf-8") for one in logs("*/*/train.log")), "steps", 120
        )
        ranks = [pid for pid, command in started_processes().items() if "engine.py" in command]
        killed.append(max(ranks))
        os.kill(max(ranks), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    ended, failed = run(tmp_path, overrides(1, full=False)[:1], time.monotonic() + 1.0, print)
    killer.join()
    assert killed and ended is None
    assert failed.startswith("training 1 failed with exit code 1, ")


@pytest.mark.slow
def test_two_nodes_measure_together_and_their_network_is_told_from_their_own_links(tmp_path: Path) -> None:
    port = free_port()
    argv = [sys.executable, "-m", "measure", "probe", "ranks=2", "nodes=2", "master_addr=127.0.0.1"]
    argv += [f"master_port={port}", "-o", str(tmp_path)]
    started = [subprocess.Popen([*argv, f"node_rank={number}"], stdout=subprocess.PIPE, text=True) for number in (1, 0)]
    other, first = (process.communicate(timeout=300)[0] for process in started)
    assert [process.returncode for process in started] == [0, 0], (other, first)
    assert other == "node 1: measured; the first node writes machine.yaml\n"
    machine = read(tmp_path / "machine.yaml")
    assert (machine.nodes, machine.ranks, len(machine.facts["hosts"])) == (2, 4, 2)
    assert [dict(one.of) for one in machine.pairs(across=False)] == [
        {"first": 0, "second": 1},
        {"first": 2, "second": 3},
    ]
    assert [dict(one.of) for one in machine.pairs(across=True)] == [
        {"first": 0, "second": 2},
        {"first": 1, "second": 3},
    ]
    assert machine.value("gemm_probed", ranks=4, precision="fp32")
    assert json.loads((tmp_path / "todo.json").read_text("utf-8"))["pause_s"] > 0


@pytest.mark.slow
def test_a_node_that_is_slower_is_named(tmp_path: Path) -> None:
    """Measure on two nodes with real processes, of which one multiplies by the instructions of a processor of 2003."""
    import torch

    if not torch.backends.mkl.is_available():
        pytest.skip("torch multiplies by another library than MKL here")
    argv = [sys.executable, "-m", "measure", "probe", "ranks=1", "nodes=2", "master_addr=127.0.0.1", "minutes=10"]
    argv += [f"master_port={free_port()}", "-o", str(tmp_path)]
    slow = os.environ | {"MKL_CBWR": "COMPATIBLE"}  # SSE2, for the same results on every processor: a fifth as fast
    nodes = ((1, slow), (0, os.environ))
    started = [
        subprocess.Popen([*argv, f"node_rank={number}"], env=env, stdout=subprocess.PIPE, text=True)
        for number, env in nodes
    ]
    other, first = (process.communicate(timeout=PATIENCE_S)[0] for process in started)
    assert [process.returncode for process in started] == [0, 0], (other, first)
    (named,) = [one for one in read(tmp_path / "machine.yaml").warnings if one.startswith("node")]
    assert named.startswith("node 1 (")


@pytest.mark.parametrize(
    ("words", "where"), [(("nodes=2",), "master_addr"), (("nodes=2", "master_addr=a", "node_rank=2"), "node_rank")]
)
def test_nodes_that_cannot_meet_are_refused(words: tuple[str, ...], where: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["probe", *words, "-o", str(tmp_path)]) == 2
    assert f"{where}: " in capsys.readouterr().err
