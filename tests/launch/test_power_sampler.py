"""The power sampler beside a run: real processes, and a fake nvidia-smi, which is all that this machine can have."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from launchers.power import FILE, sampled
from parsers import Record, Step
from tensorprimat.run import with_own_power
from tests.drills import wait_until

ROOT = Path(__file__).parents[2]
NVIDIA_SMI = """#!/usr/bin/env bash
printf 'index, power.draw [W], memory.used [MiB]\\n0, 512.25 W, 81000 MiB\\n1, [N/A], 80000 MiB\\n'
"""


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for the samples, with an nvidia-smi in front of PATH."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(NVIDIA_SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    return tmp_path


def samplers(directory: Path) -> list[psutil.Process]:
    processes = psutil.process_iter(["cmdline", "cwd"])
    sampling = (p for p in processes if any("sample_power" in part for part in p.info["cmdline"] or ()))
    return [p for p in sampling if p.info["cwd"] == str(directory)]


def test_samples_are_on_the_clock_of_the_steps_and_end_with_the_run(gpu: Path) -> None:
    before = time.monotonic()
    with sampled(gpu, "nvidia") as notes:
        wait_until(lambda: (gpu / FILE).exists() and len((gpu / FILE).read_bytes().splitlines()) >= 4, "two samples")
    after = time.monotonic()
    rows = [json.loads(line) for line in (gpu / FILE).read_text().splitlines()]
    assert [row["device"] for row in rows[:2]] == [0, 1]
    assert {row["power_w"] for row in rows} == {512.25, None}
    assert {row["memory_used_bytes"] for row in rows} == {81000 * 2**20, 80000 * 2**20}
    assert all(before - 0.1 <= row["monotonic_s"] <= after + 0.1 for row in rows)
    assert notes == []
    assert samplers(gpu) == []


def test_a_machine_without_a_tool_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia-smi", "amd-smi", "rocm-smi"):
        tool = tmp_path / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text("#!/usr/bin/env bash\nexit 9\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with sampled(tmp_path, "amd") as notes:
        wait_until(lambda: not samplers(tmp_path), "the sampler has given up")
    assert "none of nvidia-smi, amd-smi, rocm-smi reports a GPU" in notes[0]
    assert not (tmp_path / FILE).exists()


def test_a_cpu_is_not_sampled(gpu: Path) -> None:
    with sampled(gpu, None):
        assert samplers(gpu) == []
    assert not (gpu / FILE).exists()


def test_the_sampler_outlives_no_launcher(gpu: Path) -> None:
    code = f"""
        import pathlib, sys, time
        sys.path.insert(0, {str(ROOT)!r})
        from launchers.power import sampled
        with sampled(pathlib.Path({str(gpu)!r}), "nvidia"):
            print("on", flush=True)
            time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"on\n"
        wait_until((gpu / FILE).exists, "samples")
        assert samplers(gpu)
        launcher.kill()
    wait_until(lambda: not samplers(gpu), "the sampler has ended")


def test_the_samples_become_the_records_energy_where_they_are_of_its_gpus(tmp_path: Path) -> None:
    steps = tuple(Step(step=n, line=n + 1, iteration=n + 1, end_monotonic_s=100.0 + n) for n in range(5))
    known: dict[str, Any] = {"id": "a", "name": "a", "status": "completed", "steps": steps}
    record = Record(**known, provenance="measured", requested={"world_size": 2})
    ticks = [{"monotonic_s": 99.5 + second, "tool": "x"} for second in range(6)]
    rows = [{**tick, "device": device, "power_w": 400.0 + 100 * device} for tick in ticks for device in (0, 1)]
    (tmp_path / FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (energy,) = with_own_power(record, tmp_path).power
    assert (energy.gpus, energy.mean_power_w) == (2, 900.0)
    foreign = with_own_power(replace(record, requested={"world_size": 1}), tmp_path)
    assert foreign.power == ()
    assert foreign.notes == ("power: 2 GPUs were sampled and 1 trained: not used",)
    rehearsed = replace(record, provenance="rehearsed")
    assert with_own_power(rehearsed, tmp_path) == rehearsed
    (tmp_path / FILE).write_text("no samples\n")
    assert "has no power samples in a format" in with_own_power(record, tmp_path).notes[0]
