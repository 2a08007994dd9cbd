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
from conf.shapes import ENDS
from estimate.layouts import Layouts, command, layouts_of

SIZES = ("tp", "pp", "vp", "cp", "ep", "sp", "first", "last")
TINY = ("layout=identical", "platform=nvidia", "framework=megatron", "gpus_per_node=8")


def request_of(*overrides: str) -> Request:
    common, side, _ = settle(overrides)
    return _request(compose([*common, *side]))


def found(layouts: Layouts) -> set[tuple[int, ...]]:
    columns = (*(getattr(layouts, name) for name in SIZES[:6]), layouts.micro_batch_size, layouts.first, layouts.last)
    return {tuple(map(int, row)) for row in zip(*columns, strict=True)}


@pytest.mark.parametrize(
    ("model", "layers"), [("llama_tiny", 4), ("llama_tiny", 6), ("llama_tiny", 5), ("moe_tiny", 4)]
)
def test_every_small_layout_that_the_check_takes_is_among_them_and_no_other(model: str, layers: int) -> None:
    request = request_of(f"model={model}", f"model.num_layers={layers}", *TINY, "training.global_batch_size=24")
    layouts = layouts_of(replace(request, training=replace(request.training, recompute_granularity="none")))
    base = layouts.request_of(0)
    base = replace(base, optimizer=replace(base.optimizer, lr_decay_iters=base.training.train_iters))
    base = replace(base, training=replace(base.training, recompute_granularity=None))
    small = ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3), (1, 2, 3), (1, 2, 4), (0, 1), (1, 2, 3), (0, 1), (0, 1))
    names = ("tensor_model", "pipeline_model", "virtual_pipeline_model", "context", "expert_model")
    valid = set()
    for sizes in product(*small):
        chunks, (first, last) = sizes[1] * sizes[2], sizes[-2:]
        if first > last or ((first or last) and base.model.num_layers % chunks == 0):
            continue  # the embedding alone, or with nothing gained: only where they are typed
        of_layout: dict[str, Any] = {f"{name}_parallel_size": size for name, size in zip(names, sizes, strict=False)}
        of_layout |= {name: bool(end) for name, end in zip(ENDS, (first, last), strict=True)}
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


@pytest.mark.parametrize("on", [True, False])
def test_sequence_parallel_that_was_typed_alone_stays(on: bool) -> None:
    typed = f"layout.sequence_parallel={str(on).lower()}"
    layouts = layouts_of(request_of("model=llama31_8b", "platform=nvidia", "hardware=h100", "gpus_per_node=4", typed))
    assert {int(n) for n in layouts.sp} == {int(on)}


def test_embedding_and_loss_that_were_typed_as_layers_stay() -> None:
    first, last = (f"layout.{name}=true" for name in ENDS)
    request = ("model=llama31_8b", "platform=nvidia", "nodes=8", "layout.pipeline_model_parallel_size=11")
    layouts = layouts_of(request_of(*request, first, "nodes=11"))
    assert {(int(a), int(b)) for a, b in zip(layouts.first, layouts.last, strict=True)} == {(1, 0)}
    assert layouts.request_of(0).layout.account_for_embedding_in_pipeline_split is True
    with pytest.raises(ConfigError, match="no layout of llama31_8b"):
        layouts_of(request_of(*request, first, last, "nodes=11"))


def test_without_a_valid_layout_it_says_what_was_searched() -> None:
    request = request_of("model=llama_tiny", *TINY, "training.global_batch_size=7", "gpus_per_node=9")
    with pytest.raises(ConfigError, match="no layout of llama_tiny on 9 GPUs is valid"):
        layouts_of(request)
