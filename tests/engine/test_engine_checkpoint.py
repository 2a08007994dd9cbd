"""A run that is resumed goes on as if it had never stopped, and what cannot be resumed from is refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import Run, finished
from tests.engine.layouts import BFLOAT16, CP2, DP2, DROPOUT, EP2, EXPERTS, OVERLAPPED, PP2, SHARDED, TP2_SP, VP2

pytestmark = [pytest.mark.engine, pytest.mark.slow]
STEPS, SAVED = 6, 3
KEPT = {"train_iters": STEPS, "save_interval": SAVED}
HALF = {**KEPT, "train_iters": SAVED}
SAME = {
    "PP2xVP2, bf16": {**VP2, **BFLOAT16},
    "DP2+sharded, bf16": {**DP2, **SHARDED, **BFLOAT16},
    "EP2+sharded": {**EP2, **EXPERTS, **SHARDED},
    "TP2xDP2+SP+overlapped, dropout": {**TP2_SP, **DP2, **OVERLAPPED, **DROPOUT},
}
OTHER = {"PP2xVP2 to CP2": (VP2, CP2), "DP2 to TP2+SP, sharded": ({**DP2, **SHARDED}, {**TP2_SP, **SHARDED})}
PAIRS = {**{name: (layout, layout) for name, layout in SAME.items()}, **OTHER}
"""The layouts before and after a checkpoint."""
Runs = Callable[[str], tuple[Run, Run, Run]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, settings_of: Any, corpus: Any, together: Any) -> Runs:
    """Return a function from a name in PAIRS to a run in one go, and the two parts of one that was resumed."""
    folder = tmp_path_factory.mktemp("resumed")
    done: dict[Path, Run] = {}

    def plan(name: str) -> dict[Path, dict[str, Any]]:
        before, after = PAIRS[name]
        files = {"whole/s": {**before, **KEPT}, "parts/first": {**before, **HALF}, "parts/second": {**after, **KEPT}}
        made = {folder / name / f"{file}.json": settings_of(**changes) for file, changes in files.items()}
        return {path: {**settings, "data_path": corpus(settings)} for path, settings in made.items()}

    def get(name: str) -> tuple[Run, Run, Run]:
        plans = {other: plan(other) for other in PAIRS}
        if not done.keys() & plans[name].keys():
            size = next(iter(plans[name].values()))["world_size"]
            group = [p for p in plans.values() if next(iter(p.values()))["world_size"] == size]
            done.update(together({path: settings for p in group for path, settings in p.items()}))
        complete, first, second = (done[path] for path in plans[name])
        return complete, first, second

    return get


@pytest.fixture(scope="module")
def start(settings_of: Any, corpus: Any, torchrun: Any) -> Callable[..., Run]:
    """Return a function from a directory and changed settings to the finished run there, in processes of its own."""

    def execute(directory: Path, **changes: Any) -> Run:
        settings = settings_of(**{**KEPT, **changes})
        settings["data_path"] = corpus(settings)
        (directory / "settings.json").write_text(json.dumps(settings))
        return finished(settings, torchrun(directory / "settings.json", settings["world_size"]))

    return execute


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, start: Callable[..., Run]) -> tuple[Run, Path]:
    """Return a finished run of one process, and its directory."""
    directory = tmp_path_factory.mktemp("saved")
    return start(directory), directory


@pytest.fixture
def killed(tmp_path: Path, saved: tuple[Run, Path]) -> Path:
    """Return the run's directory as after a kill in its second save: only the first checkpoint counts."""
    directory = tmp_path / "killed"
    shutil.copytree(saved[1], directory)
    folder = directory / "checkpoints"
    (folder / f"iter_{STEPS:07d}" / ".metadata").unlink()
    files = {file.name: file.stat().st_size for file in (folder / f"iter_{SAVED:07d}").iterdir()}
    (folder / "latest").write_text(json.dumps({"iteration": SAVED, "files": files}))
    return directory


def reported(run: Run) -> list[tuple[int, float, float]]:
    """Return iteration, loss and gradient norm of each step."""
    assert run.code == 0, run.err
    return [(step["iteration"], step["loss"], step["grad_norm"]) for step in run.marks("step")]


def is_near(result: list[tuple[int, float, float]], expected: list[tuple[int, float, float]]) -> bool:
    """Return whether both have the same iterations, and losses within what another order of additions makes of them."""
    return [step[0] for step in result] == [step[0] for step in expected] and all(
        abs(a[1] - b[1]) <= 1e-5 and abs(a[2] / b[2] - 1) <= 1e-5 for a, b in zip(result, expected, strict=True)
    )


@pytest.mark.parametrize("name", SAME)
def test_resuming_is_exact_in_the_same_layout(runs: Runs, name: str) -> None:
    complete, first, second = runs(name)
    assert reported(first) + reported(second) == reported(complete)
    assert second.marks("resumed")[0]["same_layout"] is True
    assert "arning" not in second.err


@pytest.mark.parametrize("name", OTHER)
def test_another_layout_goes_on(runs: Runs, name: str) -> None:
    complete, _, second = runs(name)
    assert is_near(reported(second), reported(complete)[SAVED:])
    assert second.marks("resumed")[0]["same_layout"] is False


def test_new_processes_go_on_exactly_and_forget_half_a_save(
    start: Callable[..., Run], saved: tuple[Run, Path], killed: Path
) -> None:
    (killed / "checkpoints" / "iter_0000005").mkdir()
    resumed = start(killed)
    assert reported(resumed) == reported(saved[0])[SAVED:]
    assert [mark["iteration"] for mark in resumed.marks("saved")] == [STEPS]
    assert sorted(p.name for p in (killed / "checkpoints").iterdir()) == ["iter_0000003", "iter_0000006", "latest"]


def test_one_process_becomes_four(start: Callable[..., Run], saved: tuple[Run, Path], killed: Path) -> None:
    assert is_near(reported(start(killed, **TP2_SP, **PP2)), reported(saved[0])[SAVED:])


def test_a_run_killed_at_any_time_goes_on(
    tmp_path: Path, start: Callable[..., Run], settings_of: Any, corpus: Any, torchrun: Any
) -> None:
    often = {"save_interval": 1, "train_iters": 20}
    settings = settings_of(**often)
    (tmp_path / "settings.json").write_text(json.dumps({**settings, "data_path": corpus(settings)}))
    command = torchrun(tmp_path / "settings.json", 1)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout
        assert any(line.startswith('[tprimat] saved {"iteration": 3') for line in process.stdout)
        process.send_signal(signal.SIGKILL)  # its ranks die with it, in a step or in a save
    latest = json.loads((tmp_path / "checkpoints" / "latest").read_text())["iteration"]
    assert latest >= 3
    resumed = start(tmp_path, **often)
    assert [iteration for iteration, _, _ in reported(resumed)] == list(range(latest + 1, 21))


@pytest.mark.drill("60 saves kept 60 directories")
def test_a_long_run_keeps_the_last_checkpoints(tmp_path: Path, start: Callable[..., Run]) -> None:
    for kept, left in ((1, [6]), (3, [4, 5, 6])):
        (tmp_path / str(kept)).mkdir()
        assert len(start(tmp_path / str(kept), save_interval=1, keep_checkpoints=kept).marks("saved")) == STEPS
        folder = tmp_path / str(kept) / "checkpoints"
        assert sorted(p.name for p in folder.iterdir()) == [*(f"iter_{n:07d}" for n in left), "latest"]


class Code:
    """Calls os.mkdir(path) when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.drill("called by pickle, in .metadata and in the shards")
@pytest.mark.parametrize("name", [".metadata", "common.pt", "__0_0.distcp"])
def test_nothing_that_a_checkpoint_names_is_called(start: Callable[..., Run], killed: Path, name: str) -> None:
    import torch

    called, path = killed / "called", killed / "checkpoints" / f"iter_{SAVED:07d}"
    saved = io.BytesIO()
    torch.save(Code(called), saved)
    if name == ".metadata":
        (path / name).write_bytes(pickle.dumps(Code(called)))
    elif name == "common.pt":
        (path / name).write_bytes(saved.getvalue())
    else:  # in place of the object that is no tensor
        metadata = pickle.loads((path / ".metadata").read_bytes())
        place = next(info for index, info in metadata.storage_data.items() if index.fqn.startswith("generators"))
        place.offset, place.length = (path / name).stat().st_size, len(saved.getvalue())
        (path / ".metadata").write_bytes(pickle.dumps(metadata))
        with (path / name).open("ab") as file:
            file.write(saved.getvalue())
    files = {file.name: file.stat().st_size for file in path.iterdir()}
    (path.parent / "latest").write_text(json.dumps({"iteration": SAVED, "files": files}))
    run = start(killed)
    assert run.code != 0 and not called.exists()
    assert name != ".metadata" or "names posix.mkdir" in run.err, run.err


@pytest.mark.drill("a traceback")
@pytest.mark.parametrize(
    ("marker", "says"),
    [
        ("[]", "cannot be read"),
        ('{"iteration": -1, "files": {"a": 1}}', "names no checkpoint of ours"),
        ('{"iteration": 1e999, "files": {"a": 1}}', "cannot be read"),
        ('{"iteration": 1, "files": ["a"]}', "cannot be read"),
        ('{"iteration": 1, "files": {"../../secret": 1}}', "names no checkpoint of ours"),
        ("common.pt", "has no settings of ours"),
    ],
)
def test_a_foreign_checkpoint_is_refused_by_name(
    start: Callable[..., Run], killed: Path, marker: str, says: str
) -> None:
    import torch

    folder = killed / "checkpoints"
    if marker == "common.pt":
        torch.save({"settings": [1]}, folder / f"iter_{SAVED:07d}" / marker)
        files = {file.name: file.stat().st_size for file in (folder / f"iter_{SAVED:07d}").iterdir()}
        marker = json.dumps({"iteration": SAVED, "files": files})
    (folder / "latest").write_text(marker, encoding="utf-8")
    run = start(killed)
    assert run.code != 0 and "engine: " in run.err and says in run.err, run.err


def test_another_run_and_a_damaged_file_are_refused(start: Callable[..., Run], killed: Path) -> None:
    folder = killed / "checkpoints"
    shutil.rmtree(folder / f"iter_{STEPS:07d}")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    other = start(killed, hidden_size=96, lr=0.1)
    assert "(exitcode: 2)" in other.err
    assert "is of another run; try: another directory" in other.err
    assert "hidden_size: found: 64; requested: 96" in other.err
    assert "lr: found: 0.003; requested: 0.1" in other.err
    (folder / f"iter_{SAVED:07d}" / "__0_0.distcp").write_bytes(b"cut short")
    damaged = start(killed)
    assert "(exitcode: 2)" in damaged.err
    assert "__0_0.distcp has 9 bytes, and had" in damaged.err
    assert before.keys() == set(folder.rglob("*"))
