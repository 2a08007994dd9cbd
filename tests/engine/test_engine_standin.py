"""The CPU stand-in for torch.cuda: nothing where there is an accelerator, and only what the pinned Megatron has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.engine
SEEN = """
import importlib, sys, torch
import engine_standin, tprimat_standin
def seen():
    of_torch = [row for row in engine_standin.rows() if row.path.startswith("torch")]
    return [getattr(tprimat_standin.owner_of(row), row.name) for row in of_torch]
"""


def test_nothing_is_replaced_where_there_is_an_accelerator(in_rank: Callable[[str], str]) -> None:
    code = """
torch.cuda.is_available = lambda: True
before = seen()
assert engine_standin.install() is False
assert all(a is b for a, b in zip(before, seen(), strict=True))
assert not any(name.startswith("megatron") for name in sys.modules)
print("untouched")
"""
    assert in_rank(SEEN + code) == "untouched\n"


def test_every_name_is_replaced_and_exists_in_the_pinned_release(in_rank: Callable[[str], str]) -> None:
    code = """
before = seen()
assert engine_standin.install() is True
import engine_train
engine_standin.check()
assert all(a is not b for a, b in zip(before, seen(), strict=True))
now = [getattr(tprimat_standin.owner_of(row), row.name) for row in engine_standin.rows()]
assert not [function for function in now if (function.__module__ or "").startswith("megatron")]
for name in engine_standin.DEVICE_LITERALS:
    module = importlib.import_module(name)
    source = open(module.__file__).read()
    assert any(text in source for text in ('device="cuda"', "device='cuda'", "pin_memory=True")), name
    assert module.torch is not torch
assert torch.zeros(1).type() == "torch.FloatTensor"
assert torch.cuda.is_available() is False
torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))]).zero_grad()
assert not {"torch._dynamo.utils", "torch._inductor.compile_fx"} & {*sys.modules}
print(importlib.import_module("megatron.core").__version__ == engine_standin.MEGATRON_VERSION)
"""
    assert in_rank(SEEN + code) == "True\n"


def test_another_release_is_refused_by_name(in_rank: Callable[[str], str]) -> None:
    code = """
def refused(step):
    try:
        step()
    except engine_standin.EngineError as error:
        print(error)
engine_standin.OWN += (engine_standin.Replacement("torch.cuda.no_such_name", lambda _: None, "a test"),)
engine_standin.install()
refused(engine_standin.check)
engine_standin.MEGATRON_VERSION = "0.15.2"
refused(engine_standin.install)
"""
    missing, other = in_rank(SEEN + code).splitlines()
    assert "megatron-core 0.15.3 only: torch.cuda.no_such_name is not in torch" in missing
    assert "megatron-core 0.15.2 only: this is 0.15.3" in other


def test_each_region_draws_from_its_own_seed(in_rank: Callable[[str], str]) -> None:
    code = """
assert engine_standin.install() is True
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
tracker = CudaRNGStatesTracker()
torch.manual_seed(1)
tracker.add("one", 1)
tracker.add("two", 2)
outside = torch.rand(3)
drawn = []
for region in ("one", "two", "one"):
    with tracker.fork(region):
        drawn.append(torch.rand(3))
torch.manual_seed(1)
first, second = torch.rand(3), torch.rand(3)
assert torch.equal(outside, first), "adding a region moves nothing"
assert torch.equal(drawn[0], first) and torch.equal(drawn[2], second), "a region goes on where it was left"
torch.manual_seed(2)
print(torch.equal(drawn[1], torch.rand(3)))
"""
    assert in_rank(SEEN + code) == "True\n"
