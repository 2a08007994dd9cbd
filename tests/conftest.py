"""Shared by all tests: goldens, the end of every process that a test started, and what may be relied on around it."""

from __future__ import annotations

import difflib
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.drills import MARK, started_processes, wait_until

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden"
CLUSTER = ROOT / "tests" / "cluster"
ON_SLURM = 4  # workers: of two cores, since each waits for most of its time

settings.register_profile(  # no test fails for a slow machine
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")

os.environ[MARK] = str(os.getpid())  # inherited by whatever a test starts, in any session or group


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let the tests of `-m slurm`, which are in one folder, wait side by side where no -n says otherwise: each worker
    has a Slurm of its own."""
    option, is_worker = config.option, "PYTEST_XDIST_WORKER" in os.environ  # which would start workers, too
    if str(option.markexpr).split()[:1] != ["slurm"]:
        return
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        config.args = [str(CLUSTER)]
    if not is_worker and getattr(option, "numprocesses", 0) is None and not option.usepdb:
        option.numprocesses = ON_SLURM


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker file after file, and tests/engine as one: its trainings are shared by its files, few of them by
    the slow ones. Of tests on a Slurm, of which each worker has one, test after test: they wait for most of their
    time."""
    from xdist.scheduler import LoadFileScheduling

    shares_trainings = config.option.markexpr != "slow"

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith("tests/cluster/"):
                return nodeid
            together = shares_trainings and nodeid.startswith("tests/engine/")
            return "tests/engine" if together else super()._split_scope(nodeid)

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests come first, so that no worker begins one when the others have ended; so do drills of jobs.
    Tests that train are skipped by name where the embedded extra is not installed."""
    long = {item.path for item in items if "engine" in item.keywords or "long" in item.keywords}
    items.sort(key=lambda item: (item.path not in long, not {"slurm", "drill"} <= {*item.keywords}))
    try:
        version("megatron-core"), version("torch")
    except PackageNotFoundError as missing:
        for item in items:
            if "engine" in item.keywords:
                item.add_marker(pytest.mark.skip(reason=f"{missing.name} is not installed: make install"))


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of every later search for garbage: it stays to the end."""
    gc.collect()
    gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note of each drill what it did before, where the table is made (in another process with -n)."""
    assert CLUSTER in item.path.parents or not item.get_closest_marker("slurm"), "pytest -m slurm looks there alone"
    if drill := item.get_closest_marker("drill"):
        item.user_properties.append(("drill", drill.args[0]))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table of drills for `make drills`."""
    if not config.getoption("markexpr").removeprefix("slurm and ").startswith("drill"):
        return
    rows = [("drill", "before", "now", "s")]
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.getreports(outcome):
            before = dict(report.user_properties).get("drill")
            if before is not None and (report.when == "call" or report.outcome != "passed"):
                name = report.nodeid.rpartition("::test_")[2].replace("_", " ")
                rows.append((name, before, report.outcome, f"{report.duration:.1f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        terminalreporter.write_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


@pytest.fixture(autouse=True)
def _as_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets sys.argv, which must not outlive a test."""
    monkeypatch.setattr(sys, "argv", sys.argv)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(name, text): text must equal tests/golden/NAME. `UPDATE_GOLDEN=1 pytest FILE` accepts a change."""
    accept = f"accept the change with: UPDATE_GOLDEN=1 .venv/bin/python -m pytest {request.path.relative_to(ROOT)}"

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("UPDATE_GOLDEN") == "1":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != expected:
            lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), f"golden/{name}", "now", lineterm="")
            pytest.fail("\n".join([*lines, accept]))

    return check


@pytest.fixture(autouse=True)
def no_process_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kill what the test started and left running; a test that passed until then fails for it."""
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed == failed:
        with suppress(AssertionError):
            wait_until(lambda: not started_processes(), "every process that the test started ends by itself", 30)
    if left := started_processes():
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pytest.fail(f"left running, now killed: {left}")


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Let SIGINT have its effect in this process and in what it starts.

    A job in the background (`make test &` in a script) starts with SIGINT ignored, and its children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
