"""Compare what the probe has read of a rank's parameters with our own count: by name and shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from msgspec import structs

from conf.load import load
from conf.resolve import Experiment
from conf.shapes import Place, Shape, Sizes, on_rank
from launchers.rehearse import prepared
from parsers import Reading, Record
from parsers.probe import Chunk, Parameter, RankFile
from tensorprimat import run

QKV = "decoder.layers.1.self_attention.linear_qkv.weight"
DONE = Record(id="a", name="a", provenance="rehearsed", status="completed")


def toy_of(*overrides: str) -> Experiment:
    return prepared(
        load(["rehearse=train", "framework=nemo", "layout=data_parallel", "gpus_per_node=1", *overrides]), 0
    )[0]


def told(shapes: Mapping[str, Shape] | None, rank: int = 0, **places: int) -> RankFile:
    """Return what a rank's file says of its parameters."""
    parameters = None if shapes is None else tuple(Parameter(name, at, 0, None) for name, at in shapes.items())
    where = {"world": 1, "pipeline": 0, "expert": 0, **places}
    return RankFile(rank=rank, ranks=where, chunks=(Chunk(parameters),))


def held(e: Experiment, *files: RankFile, **effective: str) -> Record:
    read = {name: Reading(value, 1) for name, value in effective.items()}
    return run.against_count(structs.replace(DONE, effective=read), e, files)


def test_a_rank_with_our_shapes_has_passed() -> None:
    e = toy_of()
    assert held(e, told(on_rank(e.model, Sizes(), Place()))) == DONE
    assert held(e, told(None)).cause == held(e).cause == "rank 0 reported no parameters"


def test_each_parameter_that_is_not_ours_is_named() -> None:
    e = toy_of()
    ours = on_rank(e.model, Sizes(), Place())
    rows, columns = ours[QKV]
    wrong = {**ours, QKV: (rows + 32, columns), "decoder.layers.1.bogus": (3,)}
    del wrong["decoder.final_layernorm.weight"]
    record = held(e, told(wrong))
    assert record.status == "failed" and record.cause is not None
    assert f"{QKV}: ({rows + 32}, {columns}), expected ({rows}, {columns})" in record.cause
    assert "decoder.layers.1.bogus: (3,), not known to our own count" in record.cause
    assert f"decoder.final_layernorm.weight: absent, expected ({columns},)" in record.cause
    swapped = held(e, told({**ours, QKV: (columns, rows)}))
    assert swapped.status == "failed", "the same number of elements in another shape"


def test_one_that_is_no_rehearsals_is_a_note() -> None:
    e = replace(toy_of(), rehearse=None)
    record = run.against_count(DONE, e, [told({"w": (1,)})])
    assert record.status == "completed" and "expected" in record.notes[0] and "; and " in record.notes[0]


def test_each_rank_is_held_at_its_own_place() -> None:
    e = toy_of("model=qwen3_30b_a3b", "gpus_per_node=8", "layout.expert_model_parallel_size=8")
    sizes = Sizes(ep=2)
    assert e.layout.expert_model_parallel_size == 2
    files = [told(on_rank(e.model, sizes, Place(0, rank)), rank, expert=rank) for rank in range(2)]
    assert held(e, *files) == DONE
    assert held(e, files[0], structs.replace(files[1], ranks=files[0].ranks)).status == "failed"
    assert "does not report its place" in str(held(e, structs.replace(files[0], ranks={}), files[1]).cause)


@pytest.mark.parametrize("impl", ["local", "transformer_engine"])
def test_names_and_cuts_are_those_of_the_modules_in_use(impl: str) -> None:
    e = toy_of("model=qwen3_30b_a3b")
    ours = on_rank(e.model, Sizes(), Place(), fused=True)
    if impl == "transformer_engine":
        norm = "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight"
        ours[norm] = ours.pop("decoder.layers.0.input_layernorm.weight")
    assert held(e, told(ours), transformer_impl=impl).status == "completed"
