"""The numbers of a toy that its ranks read: parts make up the complete tensor, whatever cuts it."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from parsers.probe import with_probe
from parsers.read_back import Batch, Output, Tensor
from parsers.readings import Tensors, outputs, tensors
from tests.rehearsal.stacks import ROOT, rehearsed
from tests.rehearsal.test_probe_files import BARE, left, rank_file, row

FOLDER = ROOT / "launchers" / "ranks" / "rehearsal"


@pytest.fixture(scope="module")
def here() -> Any:
    """Return the program of the ranks, loaded in this process."""
    sys.path.append(str(FOLDER))
    return importlib.import_module("tprimat_readings")


def joined(rows: Sequence[Any]) -> Tensor:
    """Return the tensor that these rows make, through JSON."""
    notes: list[str] = []
    files = [msgspec.convert(json.loads(json.dumps({"drawn": [row]})), Tensors) for row in rows]
    (tensor,) = tensors(files, "drawn", notes).values()
    assert notes == []
    return tensor


CUTS: dict[str, tuple[int | None, int, bool, list[int]]] = {
    "rows": (0, 4, False, [0]),
    "gated rows": (0, 3, True, [0]),
    "columns": (1, 2, False, [0]),
    "nothing, sharded": (None, 1, False, [0, 7, 50]),
    "gated rows, sharded": (0, 2, True, [0, 5, 31]),
    "columns, sharded": (1, 4, False, [0, 1, 13]),
}


@pytest.mark.engine
def test_main_weights_of_an_optimizer_that_is_not_distributed_have_the_shape_of_their_parameter(here: Any) -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.ones(3, 2, dtype=torch.bfloat16))
    parameter.main_param = torch.full((3, 2), 1.001)
    part = here.Part("w", parameter, here.Split(1, 0, None), False, 0, 6)
    assert torch.equal(part.last, parameter.main_param.reshape(-1)), "1.001 is 1 in bf16"
    parameter.main_param = torch.full((3, 2), 2.0)
    assert torch.equal(part.last, parameter.detach().reshape(-1)), "it was not what the model has"


@pytest.mark.engine
@pytest.mark.parametrize("name", CUTS)
def test_parts_are_the_complete_tensor_however_it_is_cut(name: str, here: Any) -> None:
    """Cut as Megatron cuts weights, by torch's own chunks; a distributed optimizer cuts each part again."""
    torch = pytest.importorskip("torch")
    whole = torch.randn(12, 8, generator=torch.Generator().manual_seed(5))
    dim, size, gated, starts = CUTS[name]
    halves = whole.chunk(2) if gated else (whole,)
    cut = [[half.chunk(size, dim or 0)[rank] for half in halves] for rank in range(size)]
    rows = []
    for rank, pieces in enumerate(cut):
        shard = torch.nn.Parameter(torch.cat(pieces))
        for start, end in pairwise([*starts, shard.numel()]):
            part = here.Part("w", shard, here.Split(size, rank, dim), gated, start, end)
            rows.append(part.row(part.weight))
    complete = here.Part("w", torch.nn.Parameter(whole), here.Split(1, 0, None), gated, 0, whole.numel())
    (tensor, expected) = joined(rows[::-1]), joined([complete.row(complete.weight)])
    assert (tensor.checksum, tensor.least, tensor.most) == (expected.checksum, expected.least, expected.most)
    numbers = torch.linalg.vector_norm(whole.double()), whole.double().mean(), whole.double().std(correction=0)
    for read in (tensor, expected):
        assert (read.norm, read.mean, read.std) == pytest.approx(tuple(map(float, numbers)), rel=1e-14)


@pytest.mark.engine
def test_a_checksum_sees_every_bit_and_every_place(here: Any) -> None:
    np = pytest.importorskip("numpy")
    values = np.arange(1, 100_001, dtype=np.float32)
    places = np.arange(values.size, dtype=np.uint64)
    first = here.checksum(values, places)
    swapped, nudged, zero = values.copy(), values.copy(), values.copy()
    swapped[[3, 70_000]] = swapped[[70_000, 3]]
    nudged[99_999] = np.nextafter(nudged[99_999], np.float32(0))
    zero[0] = 0.0
    others = {here.checksum(changed, places) for changed in (swapped, nudged, zero)}
    assert len(others | {first}) == 4
    zero[0] = -0.0
    assert here.checksum(zero, places) in others, "both zeros are one number"


@pytest.mark.engine
@pytest.mark.parametrize(("kind", "decay"), [("AdamW", "decoupled"), ("Adam", "L2"), ("Adadelta", None)])
def test_how_weights_decay_is_read_off_the_step(kind: str, decay: str | None, here: Any) -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(5)
    weight = torch.nn.Parameter(torch.randn(400, generator=generator) * 0.02)
    optimizer = getattr(torch.optim, kind)([weight], lr=7.5e-5, eps=1e-8, weight_decay=0.1)
    weight.grad = torch.randn(400, generator=generator) * 1e-3
    kept = [*here.kept_of(optimizer)]
    optimizer.step()
    assert here.decay_of(kept) == decay


def part(name: str, checksum: int, which: tuple[int, int, int] = (0, 0, 2), mean: float | None = 1.0) -> list[Any]:
    return [name, [2, 2], "float32", which, 2, mean, 0.0, 1.0, 1.0, checksum]


def test_what_is_not_complete_or_not_agreed_on_is_absent_and_said(tmp_path: Path) -> None:
    first = [part("whole", 2**52 - 1), part("whole", 5, (1, 0, 2)), part("apart", 1), part("half", 1)]
    first += [part("nan", 7, mean=None), part("nan", 1, (1, 0, 2))]
    second = [*first[:2], part("apart", 2), part("half", 1)]
    steps = {"grad_norm": 2.0, "gradient_squares": [16.0, 4.0]}
    files = [
        rank_file(rank, first_gradients=read, steps=[{**row(0.1), **steps}], places={"world": 2, "data": rank})
        for rank, read in enumerate((first, second))
    ]
    files[1]["steps"].append({**row(0.1), "grad_norm": 2.0})
    files[0]["steps"].append({**row(0.1), "grad_norm": 3.0})
    record = with_probe(BARE, left(tmp_path, *files))
    assert record.read_back is not None
    assert record.read_back.first_gradients == {
        "whole": Tensor(shape=(2, 2), dtype="float32", checksum=4, norm=2.0, mean=1.0, std=0.0, least=1.0, most=1.0),
        "nan": Tensor(shape=(2, 2), dtype="float32", checksum=8),
    }
    assert [note for note in record.notes if "probe" in note] == [
        "probe: ranks disagree on the gradient norm of 1 steps, from step 1 on",
        "probe: ranks disagree on the first gradients of apart",
        "probe: the first gradients were not read in full of half",
    ]
    assert [(step.grad_norm, step.metrics.get("clip_coefficient")) for step in record.steps] == [
        (2.0, 0.5),
        (None, None),
        (None, None),
    ]


def test_the_outputs_of_all_ranks_add_up_pass_by_pass() -> None:
    def file(*rows: list[Any]) -> Tensors:
        return msgspec.convert(json.loads(json.dumps({"first_outputs": rows})), Tensors)

    first = file(["mlp", [2], "float32", 9.0, 5, [5, 6], [5]], ["norm", [2], "float32", 1.0, 2, [2], []])
    second = file(
        ["mlp", [2], "float32", 16.0, 2**52 - 1, [2**52 - 1, 1], [3]], ["norm", [2], "float32", 0.0, 0, [], []]
    )
    found = outputs([first, second])
    assert found["mlp"] == Output(shape=(2,), dtype="float32", checksum=4, norm=5.0, passes=(4, 7), recomputed=(8,))
    assert found["norm"].passes == (), "a rank made another number of passes"


def test_batches_add_up_over_replicas_and_weight_decay_is_that_of_the_group_which_decays(tmp_path: Path) -> None:
    given = {"samples": 4, "tokens": 2**52 - 1, "position_ids": 3, "attention_mask": None}
    targets = {"samples": 4, "labels": 6, "loss_mask": 8, "masked": 2}
    step = {**row(0.1), "groups": [[0.1, 0.0], [0.1, 0.25]], "given": given, "targets": targets}
    stepped = {"kind": "torch.optim.adamw.AdamW", "arguments": {"eps": 1e-8}, "state": {"exp_avg": "float32"}}
    sizes = {"data_parallel_size": 2, "context_parallel_size": 1, "global_batch_size": 8}
    files = [
        rank_file(rank, steps=[step], settings=sizes, places={"world": 2, "data": rank}, optimizer=stepped)
        for rank in range(2)
    ]
    record = with_probe(BARE, left(tmp_path, *files))
    assert record.read_back is not None and record.read_back.optimizer is not None
    expected = Batch(step=0, tokens=2**52 - 2, labels=12, loss_mask=16, position_ids=6, masked=4)
    assert record.read_back.batches == (expected,)
    assert record.read_back.optimizer.weight_decays == (0.25,)
    assert record.steps[0].metrics["weight_decay"] == 0.25
    (tmp_path / "probe" / "rank1.json").unlink()
    alone = with_probe(BARE, tmp_path / "probe").read_back
    assert alone is not None and alone.batches == (), "half of a batch is no batch"


# The engine alone, of which test_four_stacks.py finds the same bits in NeMo's, Bridge's and Primus' ranks.

LAYOUTS: dict[str, tuple[str, ...]] = {
    "TP2 DP2": ("layout=tp2", "gpus_per_node=4"),
    "PP2": ("layout=pp2", "gpus_per_node=2"),
    "EP2": ("model=moe_tiny", "gpus_per_node=2", "layout.expert_model_parallel_size=2"),
}


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_reads_one_model_whose_gradients_differ_by_rounding(layout: str, tmp_path: Path) -> None:
    """In fp32. Weights and inputs are equal to the last bit; a clip is what it should be."""
    words = LAYOUTS[layout]
    model = [word for word in words if word.startswith("model=")]
    record, _ = rehearsed(tmp_path / "layout", "megatron", "precision=fp32", *words)
    reference, _ = rehearsed(tmp_path / "one", "megatron", "precision=fp32", *model)
    own, one = record.read_back, reference.read_back
    assert own is not None and one is not None
    assert [note for note in record.notes if "probe: ranks" in note or "not read" in note] == []
    assert checksums(own.first_weights) == checksums(one.first_weights)
    assert [replace(b, order=None) for b in own.batches] == [replace(b, order=None) for b in one.batches]
    assert {batch.masked for batch in own.batches} == {0}
    for kind, rounding in (("first_gradients", 1e-5), ("last_weights", 1e-3)):
        expected = {name: tensor.norm for name, tensor in getattr(one, kind).items()}
        assert {n: t.norm for n, t in getattr(own, kind).items()} == pytest.approx(expected, rel=rounding)
    squares = sum(tensor.norm**2 for tensor in own.first_gradients.values() if tensor.norm is not None)
    assert record.steps[0].grad_norm == pytest.approx(squares**0.5, rel=1e-5)
    for step in record.steps:
        assert step.grad_norm is not None
        clip = min(1.0, record.setting("clip_grad") / step.grad_norm)
        assert step.metrics["clip_coefficient"] == pytest.approx(clip, rel=1e-5)


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, int | None]:
    return {name: tensor.checksum for name, tensor in tensors.items()}
