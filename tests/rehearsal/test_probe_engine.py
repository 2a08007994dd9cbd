"""The probe inside the embedded engine: what it reads, that it costs next to nothing, and that it cannot hurt a run."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.rehearsal.probed import assert_read_back, launched, rank_file, requested
from tests.rehearsal.stacks import ROOT

pytestmark = pytest.mark.engine

LAYOUTS = {
    "TP2 SP": ("layout=tp2", "gpus_per_node=2"),
    "PP2 VP2 tied": (
        *("layout=pp2", "gpus_per_node=2", "layout.virtual_pipeline_model_parallel_size=2"),
        "model.untie_embeddings_and_output_weights=false",
    ),
    "CP2": ("layout.context_parallel_size=2", "gpus_per_node=2"),
    "EP2 with experts": ("model=moe_tiny", "layout.expert_model_parallel_size=2", "gpus_per_node=2"),
}


def test_what_runs_is_read_from_the_built_objects(tmp_path: Path) -> None:
    """Two pipeline stages: neither rank has the complete model, and only the first sees tokens."""
    overrides = ("layout=pp2", "gpus_per_node=2")
    record, directory = launched(tmp_path, *overrides)
    assert_read_back(record, requested(*overrides), world=2)
    last = rank_file(directory, 1)
    assert (last["chunks"][0]["layers"], last["ranks"]["pipeline"], last["first_tokens"]) == ([3, 4], 1, None)
    assert (last["reduction_dtypes"], len(last["rope_frequencies"]), last["faults"]) == (["float32"], 8, [])
    assert record.effective["padded_vocab_size"].file == "probe/rank0.json"
    assert record.dumped["num_layers"].file is None, "what the log says is kept apart"
    again = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    assert again["effective"]["num_layers"]["file"] == "probe/rank0.json"


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_one_model(tmp_path: Path, layout: str) -> None:
    record, _ = launched(tmp_path, *LAYOUTS[layout])
    assert_read_back(record, requested(*LAYOUTS[layout]), world=2)


def test_tokens_on_a_device_are_reported_by_the_loader(tmp_path: Path) -> None:
    """Where memory cannot be read; the samples of another split are passed over."""
    folder = ROOT / "launchers" / "ranks" / "rehearsal"
    env = {**os.environ, "TPRIMAT_PROBE": str(tmp_path), "PYTHONPATH": str(folder)}
    program = Path(__file__).parent / "programs" / "probe_loader.py"
    done = subprocess.run((sys.executable, program), capture_output=True, text=True, check=False, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    samples = [zlib.crc32(struct.pack("<8q", *range(8 * k, 8 * k + 8))) for k in range(8)]
    expected = [sum(samples[2 * k : 2 * k + 2]) for k in range(4)]
    assert reported["host"] == reported["device"] == reported["virtual"] == expected
    assert reported["other"][0] == "the loader handed out other samples than the model saw"


def test_its_own_time_is_reported(tmp_path: Path) -> None:
    """By its own timer, step by step, and all of it. benchmarks/probe.py shows how much that is."""
    record, directory = launched(tmp_path)
    took = [row["probe_time_s"] for row in rank_file(directory)["steps"][:-1]]
    assert all(seconds > 0 for seconds in took)
    assert record.environment["probe_time_s"] > sum(took), "loading, hooks and the last file count, too"


@pytest.mark.slow
def test_a_probe_that_fails_everywhere_changes_no_bit_of_a_run(tmp_path: Path) -> None:
    """Nor does one that works: that the norms of the gradients show, as it reports the losses itself."""
    folder = Path(__file__).parent / "programs" / "broken_probe"
    without, _ = launched(tmp_path / "without", "probe=false")
    broken, directory = launched(tmp_path / "broken", PYTHONPATH=str(folder))
    assert (directory / "broken").exists(), "the drill was on"
    assert [step.loss for step in broken.steps] == [step.loss for step in without.steps]
    assert [step.grad_norm for step in broken.steps] == [step.grad_norm for step in without.steps]
    assert broken.status == "completed"
    works, _ = launched(tmp_path / "works")
    assert [step.grad_norm for step in works.steps] == [step.grad_norm for step in without.steps]
    assert any("drill" in note for note in broken.notes), "what failed is reported"
    assert str(ROOT) not in "".join(broken.notes)
