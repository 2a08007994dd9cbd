"""The plan that people read: one screen, the memory of the GPU in question, and the files only with --files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conf import recipes
from tensorprimat.launch import main
from tensorprimat.recipes import write

CASES = {
    "nvidia": ("platform=nvidia", "hardware=b200"),
    "amd": ("platform=amd", "hardware=mi355x", "framework.checkout=/nowhere"),
    "cpu": ("platform=cpu",),
}


THEIRS = recipes.Recipe(
    name="theirs_8gpu",
    model="llama31_8b",
    hardware=("b200",),
    gpus=8,
    precision="bf16",
    framework="megatron_bridge",
    release="0.6.0",
    variant=None,
    source="made/up@0 llama.py:32",
    base="llama.llama3_8b_pretrain_config",
    experiment={"training.micro_batch_size": 2, "training.global_batch_size": 96, "training.seq_length": 8192},
    settings={
        "train.global_batch_size": 96,
        "train.micro_batch_size": 3,
        "model.cuda_graph_impl": "local",
        "model.seq_length": 8192,
        "logger.log_interval": 10,
    },
    more={},
    environment={"NCCL_NVLS_ENABLE": "0"},
    published=({"tokens_per_s_per_gpu": 23456.0, "source": "made/up@0 README.md:7"},),
    note=None,
)


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Put one recipe in the place of the shipped ones; return what runs it."""
    monkeypatch.setattr(recipes, "RECIPES", tmp_path)
    recipes._read.cache_clear()
    write(THEIRS, tmp_path / "megatron_bridge-0.6.0")
    return (*CASES["nvidia"], "method=max_performance")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments, "dry_run=true"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("overrides", CASES.values(), ids=CASES)
def test_a_plan_fits_on_a_screen(overrides: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, *overrides)
    assert len(text.splitlines()) <= 40
    assert "\n--- " not in text


def test_the_memory_is_of_the_gpu_in_question(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, *CASES["nvidia"])
    (memory,) = (line for line in text.splitlines() if line.startswith("memory  "))
    assert memory.endswith("one b200 has 191.5 GB")


def test_files_and_reasons_are_shown_where_they_are_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    short, complete = (shown(capsys, *CASES["amd"], *more) for more in ((), ("--files",)))
    assert "RCCL_WARP_SPEED_AUTO=0" in short and "training can go NaN" not in short
    assert "training can go NaN" in complete and "; export " in complete and "\n--- primus.yaml\n" in complete
    (everything,) = json.loads(shown(capsys, *CASES["amd"], "--json"))
    assert {"primus.yaml", "train.sh"} <= everything["plan"]["files"].keys()
    assert "training can go NaN" in everything["plan"]["env_reasons"]["RCCL_WARP_SPEED_AUTO"]


def test_the_method_comes_first_then_the_recipe_and_what_differs_from_it(
    theirs: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, *theirs, "environment.NCCL_DEBUG=INFO")
    method, recipe, *lines = text.splitlines()
    assert method.startswith("method        max_performance: ") and len(lines) < 48
    assert recipe == "recipe        theirs_8gpu, Megatron-Bridge 0.6.0 [made/up@0 llama.py:32]"
    assert "published     23,456 tokens/s/GPU [made/up@0 README.md:7], the vendor's own" in lines
    assert "forced        the same work on both sides, 1: train.global_batch_size 128 (theirs 96)" in lines
    assert any(line.startswith("differs") and "train.micro_batch_size 2 (theirs 3)" in line for line in lines)
    assert any(line.startswith("differs") and "logger.log_interval 1 (theirs 10)" in line for line in lines)
    assert (
        "environment   yours: NCCL_DEBUG=INFO" in lines and "environment   of the recipe: NCCL_NVLS_ENABLE=0" in lines
    )
    assert "cuda_graph_impl" not in text, "it is the vendor's own"
    (everything,) = json.loads(shown(capsys, *theirs, "--json"))
    assert {d["path"]: (d["vendor"], d["here"]) for d in everything["differences"]} == {
        "train.global_batch_size": (96, 128),
        "train.micro_batch_size": (3, 2),
        "logger.log_interval": (10, 1),
    }


@pytest.mark.parametrize("side", ["nvidia", "amd"])
def test_each_vendors_shipped_recipe_is_planned(side: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, *CASES[side], "model=llama", "method=max_performance")
    assert text.splitlines()[1].startswith("recipe        ") and "\nforced        the same work" in text
    assert len(text.splitlines()) <= 50


def test_a_layout_for_all_gpus_does_not_speak_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, *CASES["nvidia"])
    assert text.startswith("method        identical: ") and "of 80" not in text
    assert "layout identical: one for all GPUs" in text
