"""The CPU stand-in for torch.cuda: nothing where there is an accelerator, and only what the pinned Megatron has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]
SEEN = """
import sys, torch
import cuda_standin
owners = [entry for entry in cuda_standin.REPLACEMENTS if entry.owner.startswith("torch")]
def seen():
    return [getattr(cuda_standin._resolve(entry.owner), entry.name) for entry in owners] + [torch.compile]
"""


def test_nothing_is_replaced_where_an_accelerator_is_found(in_rank: Callable[[str], str]) -> None:
    code = """
torch.cuda.is_available = lambda: True
before = seen()
assert cuda_standin.install() is False
assert all(a is b for a, b in zip(before, seen(), strict=True))
assert not any(name.startswith("megatron") for name in sys.modules)
print("untouched")
"""
    assert in_rank(SEEN + code) == "untouched\n"


def test_every_name_is_replaced_and_exists_in_the_pinned_release(in_rank: Callable[[str], str]) -> None:
    code = """
import importlib
names = [(e, cuda_standin._resolve(e.owner)) for e in cuda_standin.REPLACEMENTS]
before = [getattr(owner, e.name) for e, owner in names]
compile_before = torch.compile
assert cuda_standin.install() is True
assert all(getattr(o, e.name) is not b for (e, o), b in zip(names, before, strict=True))
assert torch.compile is compile_before
for name in cuda_standin.DEVICE_LITERALS:
    source = open(importlib.import_module(name).__file__).read()
    assert any(text in source for text in ('device="cuda"', "device='cuda'", "pin_memory=True")), name
assert torch.zeros(1).type() == "torch.FloatTensor"
assert torch.cuda.is_available() is False
print(importlib.import_module("megatron.core").__version__ == cuda_standin.MEGATRON_VERSION)
"""
    assert in_rank(SEEN + code) == "True\n"


def test_another_release_is_refused_by_name(in_rank: Callable[[str], str]) -> None:
    code = """
cuda_standin.REPLACEMENTS += (cuda_standin.Replacement("torch.cuda", "no_such_name", lambda _: None, "a test"),)
def refused():
    try:
        cuda_standin.install()
    except cuda_standin.StandInError as error:
        print(error)
refused()
cuda_standin.MEGATRON_VERSION = "0.15.2"
refused()
"""
    missing, other = in_rank(SEEN + code).splitlines()
    assert "megatron-core 0.15.3 only: torch.cuda has no no_such_name" in missing
    assert "megatron-core 0.15.2 only: found 0.15.3" in other


def test_each_region_draws_from_its_own_seed(in_rank: Callable[[str], str]) -> None:
    code = """
assert cuda_standin.install() is True
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


def test_every_row_names_a_test_that_exists(in_rank: Callable[[str], str]) -> None:
    found = in_rank("import cuda_standin; print(*{row.test for row in cuda_standin.REPLACEMENTS}, sep='\\n')")
    for named in found.split():
        path, _, name = named.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")
