"""The layouts of a search, against the launcher's own check of each."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from conf.check import problems
from conf.compose import compose
from conf.errors import ConfigError
from conf.load import _request, load, settle
from conf.schema import Request
from estimate.layouts import Layouts, command, layouts_of

SIZES = ("tp", "pp", "vp", "cp", "ep", "sp")
TINY = ("layout=identical", "platform=nvidia", "framework=megatron", "gpus_per_node=8")


def request_of(*overrides: str) -> Request:
    common, side, _ = settle(overrides)
    return _request(compose([*common, *side]))


def found(layouts: Layouts) -> set[tuple[int, ...]]:
    columns = (*(getattr(layouts, name) for name in SIZES), layouts.micro_batch_size)
    return {tuple(map(int, row)) for row in zip(*columns, strict=True)}


@pytest.mark.parametrize("model", ["llama_tiny", "moe_tiny"])
def test_every_small_layout_that_the_check_takes_is_among_them_and_no_other(model: str) -> None:
    request = request_of(f"model={model}", *TINY, "training.global_batch_size=24")
    layouts = layouts_of(replace(request, training=replace(request.training, recompute_granularity="none")))
    base = layouts.request_of(0)
    base = replace(base, optimizer=replace(base.optimizer, lr_decay_iters=base.training.train_iters))
    base = replace(base, training=replace(base.training, recompute_granularity=None))
    small = ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3), (1, 2, 3), (1, 2, 4), (0, 1), (1, 2, 3))
    names = ("tensor_model", "pipeline_model", "virtual_pipeline_model", "context", "expert_model")
    valid = set()
    for sizes in product(*small):
        of_layout: dict[str, Any] = {f"{name}_parallel_size": size for name, size in zip(names, sizes, strict=False)}
        layout = replace(base.layout, sequence_parallel=bool(sizes[5]), **of_layout)
        training = replace(base.training, micro_batch_size=sizes[6])
        if not problems(replace(base, layout=layout, training=training)):
            valid.add(sizes)
    known = {sizes for sizes in found(layouts) if all(n in axis for n, axis in zip(sizes, small, strict=True))}
    assert known == valid
    assert len(valid) > 20


@pytest.mark.parametrize(
    "overrides",
    [
        ("model=llama31_70b", "platform=amd", "nodes=8"),
        ("model=deepseek_v3", "platform=nvidia", "nodes=128", "training.global_batch_size=2048"),
        ("model=gpt_oss_20b", "platform=nvidia", "nodes=2"),
    ],
)
def test_the_launcher_takes_every_layout(overrides: tuple[str, ...]) -> None:
    layouts = layouts_of(request_of(*overrides))
    every = max(1, len(layouts) // 300)
    for index in range(0, len(layouts), every):
        e = layouts.experiment_of(index)  # ConfigError: the check refuses it
        assert e.layout.data_parallel_size == layouts.dp[index]
    assert len(layouts) > 100


def test_the_command_of_a_layout_is_that_layout() -> None:
    overrides = ("model=mixtral_8x7b", "platform=nvidia", "nodes=4", "framework=megatron")
    layouts = layouts_of(request_of(*overrides))
    index = int((layouts.ep * layouts.pp * layouts.vp * layouts.tp).argmax())
    e = layouts.experiment_of(index)
    again = load((*overrides, *command(e)))
    assert replace(again.layout, source=None) == e.layout
    assert again.training == e.training


def test_sizes_that_were_typed_stay() -> None:
    sizes = ("layout.tensor_model_parallel_size=4", "layout.context_parallel_size=2", "training.micro_batch_size=2")
    layouts = layouts_of(request_of("model=llama31_70b", "platform=nvidia", "nodes=8", *sizes))
    assert {int(n) for n in layouts.tp} == {4}
    assert {int(n) for n in layouts.cp} == {2}
    assert {int(n) for n in layouts.micro_batch_size} == {2}


def test_without_a_valid_layout_it_says_what_was_searched() -> None:
    request = request_of("model=llama_tiny", *TINY, "training.global_batch_size=7", "gpus_per_node=9")
    with pytest.raises(ConfigError, match="no layout of llama_tiny on 9 GPUs is valid"):
        layouts_of(request)
