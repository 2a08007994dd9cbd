"""Memory in a plan: whether it fits this GPU, what is the nearest change that does, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from conf import load_experiment
from conf.facts import layout_rows
from estimate.headroom import headroom, memory_problems, memory_text, nearest_that_fits, what_fits
from estimate.jobs import GB

TIGHT = ("platform=nvidia", "hardware=h100", "model=llama31_8b", "gpus_per_node=8", "layout=data_parallel")


def test_every_layout_of_ours_fits_the_smallest_gpu_it_is_for() -> None:
    lengths = {"qwen25_7b": 4096}
    for row in layout_rows():
        words = (f"model={row.model}", f"nodes={row.gpus // 8}", "gpus_per_node=8")
        length = f"training.seq_length={lengths.get(row.model, 8192)}"
        batch = f"training.global_batch_size={row.gpus * 8}"
        e = load_experiment("platform=nvidia", "hardware=h100", *words, length, batch)
        assert headroom(e).word == "fits", (str(row), memory_text(e))


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("training.micro_batch_size=4",),
        ("gpus_per_node=4",),
        (
            *("model=llama31_70b", "hardware=h200", "nodes=8", "training.micro_batch_size=4"),
            *("layout.tensor_model_parallel_size=4", "layout.pipeline_model_parallel_size=4"),
            "layout.virtual_pipeline_model_parallel_size=2",
        ),
    ],
)
def test_the_nearest_change_is_one_that_the_launcher_takes_and_that_fits(more: tuple[str, ...]) -> None:
    words = (*TIGHT, *more, "training.global_batch_size=64")
    assert headroom(load_experiment(*words)).word == "does not fit"
    (hint,) = what_fits(load_experiment(*words))
    changes, _, needed = hint.partition(": ")
    changed = headroom(load_experiment(*words, *changes.split()))
    assert changed.word == "fits"
    assert float(re.findall(r"[\d.]+", needed)[0]) == pytest.approx(changed.on_device / GB, abs=0.06)


def test_nothing_is_to_be_changed_of_what_fits() -> None:
    assert what_fits(load_experiment("platform=nvidia", "hardware=b200", "model=llama31_8b")) == []


def test_the_text_is_of_the_gpu_in_question() -> None:
    words = {name: memory_text(load_experiment(*TIGHT, f"hardware={name}")) for name in ("h100", "b200")}
    assert words["h100"].startswith("does not fit: ") and words["h100"].endswith("one h100 has 85.0 GB")
    assert words["b200"].startswith("fits: ")


def test_only_what_is_certain_is_refused() -> None:
    def problems(*more: str) -> list[Any]:
        return memory_problems(load_experiment(*TIGHT, *more), 10**12)

    assert problems() == [], "its states fit, its activations are a prediction"
    (problem,) = problems("model=llama31_70b")
    assert "llama31_70b needs 529.2 GB for its model states alone; one h100 has 85.0 GB" in problem.what
    assert nearest_that_fits(load_experiment(*TIGHT, "model=llama31_70b")) is None and "more GPUs" in problem.hint
    (problem,) = problems("model=llama31_70b", "nodes=4")
    assert problem.hint.startswith("layout.tensor_model_parallel_size=")


def test_on_a_cpu_the_host_is_the_limit() -> None:
    needed = headroom(load_experiment("platform=cpu"))
    assert needed.word is None and needed.on_device == needed.allocated
    assert memory_problems(load_experiment("platform=cpu"), 10**9) == []
    (problem,) = memory_problems(load_experiment("platform=cpu", "model=llama31_8b"), 24 * 10**9)
    assert "this host has 24.0 GB" in problem.what and "llama_tiny" in problem.allowed
