"""The stand-in for torch.cuda itself: every name of it is needed, nothing is touched where an accelerator is found."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.test_standin_start import FOLDER, started, write

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def rows() -> tuple[Any, ...]:
    """Return all rows of the stand-in's tables; their modules import no torch."""
    sys.path.append(str(FOLDER))
    standin = importlib.import_module("tprimat_standin")
    return (*standin.CUDA, *standin.TORCH, *standin.MEGATRON)


def test_every_name_is_needed(rows: tuple[Any, ...]) -> None:
    done = started(f"import runpy; runpy.run_path({str(PROGRAMS / 'every_name.py')!r})")
    assert done.returncode == 0, done.stderr
    reported = [line.rsplit(" ", 2) for line in done.stdout.splitlines() if line.startswith("torch.")]
    assert [name for name, *_ in reported] == [row.full_name for row in rows if row.path.startswith("torch")]
    assert {name: words for name, *words in reported if words != ["works", "fails"]} == {}


def test_every_row_has_a_reason_and_a_test_names_it(rows: tuple[Any, ...]) -> None:
    """A row of torch: every_name.py; one of a stack: the docstring of the test that fails without it."""
    assert len({row.full_name for row in rows}) == len(rows)
    text = (Path(__file__).parent / "test_standin_stacks.py").read_text(encoding="utf-8")
    unnamed = {row.full_name for row in rows if not row.path.startswith("torch") and row.name not in text}
    assert unnamed == set() and all(row.reason for row in rows)


ON_THE_CPU = """
import os, torch
cpu = torch.device("cpu")
linear = torch.nn.Linear(2, 2, device="cuda", dtype=torch.bfloat16)
ones, cpu_weight = torch.ones(2), torch.nn.Module.cuda(linear).weight
many = (
    torch.zeros(2, device="cuda:1"), torch.empty(2, device=torch.device("cuda", 0)), ones.cuda(non_blocking=True),
    ones.to("cuda"), ones.to(device="cuda:0", dtype=torch.float64), ones.new_zeros(2, device=0),
    torch.tensor([1.0], pin_memory=True), ones.pin_memory(), cpu_weight, linear.to("cuda").bias,
)
assert {tensor.device for tensor in many} | {torch.device(torch.cuda.current_device())} == {cpu}
assert (ones.type(), ones.type("torch.DoubleTensor").dtype) == ("torch.cuda.FloatTensor", torch.float64)
torch.cuda.manual_seed(3); state = torch.cuda.get_rng_state(); first = torch.rand(2); torch.cuda.set_rng_state(state)
assert torch.equal(first, torch.rand(2))
print(os.environ["TORCHDYNAMO_DISABLE"], os.environ["CUDA_DEVICE_MAX_CONNECTIONS"])
"""


def test_whatever_names_a_gpu_is_on_the_cpu() -> None:
    done = started(ON_THE_CPU, TPRIMAT_REHEARSE="train", CUDA_DEVICE_MAX_CONNECTIONS="1")
    assert (done.stdout, done.stderr) == ("1 1\n", "")


FUSED = """
import torch, tprimat_standin
FusedAdam = tprimat_standin.fused_adam(None)
given = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.1}
torch.manual_seed(3)
weight, gradients = torch.randn(64), torch.randn(5, 64)

def stepped(kind, **more):
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = kind([parameter], **given, **more)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()

def documented(adam_w_mode, bias_correction):
    value, first, second = weight.double(), 0.0, 0.0
    for step, gradient in enumerate(gradients.double(), start=1):
        gradient = gradient if adam_w_mode else gradient + 0.1 * value
        first, second = 0.9 * first + 0.1 * gradient, 0.95 * second + 0.05 * gradient**2
        unbiased = (1 - 0.9**step, 1 - 0.95**step) if bias_correction else (1.0, 1.0)
        update = first / unbiased[0] / ((second / unbiased[1]).sqrt() + 1e-6)
        value = value - 1e-2 * (update + 0.1 * value if adam_w_mode else update)
    return value

for mode in ({"adam_w_mode": w, "bias_correction": b} for w in (True, False) for b in (True, False)):
    torch.testing.assert_close(stepped(FusedAdam, **mode).double(), documented(**mode), rtol=1e-6, atol=1e-6)
assert torch.equal(stepped(FusedAdam), stepped(torch.optim.AdamW))
assert torch.equal(stepped(FusedAdam, adam_w_mode=False, exp_avg_dtype=torch.float32), stepped(torch.optim.Adam))
assert len({stepped(FusedAdam, adam_w_mode=w, bias_correction=b).sum().item() for w in (0, 1) for b in (0, 1)}) == 4
try:
    stepped(FusedAdam, exp_avg_dtype=torch.bfloat16)
except NotImplementedError as error:
    print(error)
"""


def test_the_fused_adam_computes_what_it_is_documented_to_from_its_arguments() -> None:
    done = started(FUSED)
    said = "FusedAdam with {'exp_avg_dtype': torch.bfloat16} is not rehearsed: only its kernel steps so\n"
    assert (done.stdout, done.stderr) == (said, "")


WITH_AN_ACCELERATOR = """
import torch
torch.cuda.is_available = lambda: True
import tprimat_standin as standin
def now():
    return [getattr(standin.owner_of(row), row.name, None) for row in (*standin.CUDA, *standin.TORCH)]
before = now()
print(standin.install(), standin.is_active(), all(a is b for a, b in zip(before, now(), strict=True)))
import os, importlib.util
print("TORCHDYNAMO_DISABLE" in os.environ, torch.zeros(1).type(), importlib.util.find_spec("flash_attn") is not None)
"""


def test_nothing_is_touched_where_an_accelerator_is_found(tmp_path: Path) -> None:
    write(tmp_path / "flash_attn" / "__init__.py", "")
    done = started(WITH_AN_ACCELERATOR, tmp_path)
    said, *rest = done.stdout.splitlines()
    assert said == "[tprimat] rehearsal this machine has an accelerator: nothing is replaced"
    assert rest == ["None False True", "False torch.FloatTensor True"]


def test_a_rank_is_not_played_where_an_accelerator_is_found(tmp_path: Path) -> None:
    write(tmp_path / "torch" / "__init__.py", "from torch import cuda")
    write(tmp_path / "torch" / "cuda.py", "def is_available(): return True")
    refused(f"sys.path.insert(0, {str(tmp_path)!r})", "an accelerator is visible here: hide it")


def test_a_torch_without_the_fake_process_group_plays_no_rank() -> None:
    moved = "sys.modules['torch.testing._internal.distributed.fake_pg'] = None"
    refused(moved, "has no fake process group where it was")


def refused(before: str, said: str) -> None:
    requested = {"TPRIMAT_REHEARSE": "layout", "TPRIMAT_PLAY_RANK": "0", "TPRIMAT_PLAY_WORLD": "2"}
    done = started(f"import sys; {before}; import torch; print('went on')", **requested)
    assert (done.returncode, "went on" in done.stdout) == (2, False)
    assert said in done.stderr and "Traceback" not in done.stderr


UPGRADED = """
import sys, types
import tprimat_standin as standin
from tprimat_standin import Replacement, answer
gone = Replacement("torch.cuda.no_such_name", answer(None), "Megatron asks for it")
core = ("vendor.core.moved", "vendor.core.kept:Gone", "vendor.core.kept")
standin.CUDA += (gone,)
standin.MEGATRON = tuple(Replacement(f"{owner}.norm", answer(None), "it asserts a GPU") for owner in core)
import torch, vendor.core.kept
torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=RANK, world_size=RANK + 1)
print(vendor.core.kept.norm())
"""


def test_a_name_that_an_upgrade_removed_is_said_and_stops_nobody(tmp_path: Path) -> None:
    write(tmp_path / "vendor" / "__init__.py", "__version__ = '0.17.0'")
    write(tmp_path / "vendor" / "core" / "__init__.py", "")
    write(tmp_path / "vendor" / "core" / "kept.py", "def norm(): raise AssertionError")
    done = started(UPGRADED.replace("RANK", "0"), tmp_path, TPRIMAT_REHEARSE="train")
    said, *degraded, last = done.stdout.splitlines()
    assert said.startswith('[tprimat] rehearsal {"mode": "train", "rank": 0, "world": 1, "stand_in": "torch.cuda", ')
    assert last == "None"
    torch = said.rpartition('"torch": "')[2].rstrip('"}')
    assert degraded == [
        f"[tprimat] rehearsal degraded: torch.cuda.no_such_name is not in torch {torch}; "
        "it was replaced because: Megatron asks for it",
        "[tprimat] rehearsal degraded: vendor.core.kept.Gone.norm is not in vendor 0.17.0; "
        "it was replaced because: it asserts a GPU",
        "[tprimat] rehearsal degraded: vendor.core.moved is not in vendor 0.17.0; "
        "norm was replaced because: it asserts a GPU",
    ]


PLAYED = """
import atexit, torch
atexit.register(lambda: print("left in order"))
torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", 5))
assert (torch.distributed.get_rank(), torch.distributed.get_world_size()) == (61, 64)
group = torch.distributed.new_group([56, 61], backend="nccl")
assert torch.distributed.get_world_size(group) == 2
told = [None]
torch.distributed.broadcast_object_list(told, src=0)
torch.distributed.all_reduce(torch.ones(2, device="cuda"), group=group)
torch.distributed.barrier(device_ids=[5])
from megatron.core.pipeline_parallel import schedules
try:
    schedules.run()
except BaseException:
    print("caught")
finally:
    print("went on")
"""


def test_a_played_rank_ends_with_a_mark_before_the_first_forward_pass(tmp_path: Path) -> None:
    folder = tmp_path / "megatron" / "core"
    write(folder / "__init__.py", "__version__ = '0.17.0'")
    write(folder / "pipeline_parallel" / "__init__.py", "")
    body = "deallocate_output_tensor = None\n"
    body += "def forward_step(): raise AssertionError\ndef run():\n    print('its own rules')\n    forward_step()\n"
    write(folder / "pipeline_parallel" / "schedules.py", body)
    requested = {"TPRIMAT_REHEARSE": "layout", "TPRIMAT_PLAY_RANK": "61", "TPRIMAT_PLAY_WORLD": "64"}
    done = started(PLAYED, tmp_path, **requested)
    assert done.returncode == 0, done.stderr
    said, *rest = done.stdout.splitlines()
    assert '"mode": "layout", "rank": 61, "world": 64' in said
    late, *rest = rest
    assert late.startswith(
        "[tprimat] rehearsal degraded: megatron.core.pipeline_parallel.schedules.custom_backward is not"
    )
    assert "in megatron.core 0.17.0; it was replaced because: asserts that" in late
    assert rest == ["its own rules", '[tprimat] rehearsed {"rank": 61, "world": 64}', "left in order"]


LARGE = """
import resource, torch
large = torch.zeros(1 << 34, device="cuda")
parts = [large.new_zeros(1 << 34), large.new_empty((1 << 17, 1 << 17)), torch.empty_like(large), large.clone()]
parts[0].narrow(0, 0, 1 << 33).copy_(parts[3].chunk(2)[0])
assert all(part.numel() == 1 << 34 and part[-1].sum() == 0 for part in parts)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 < 1 << 32)
"""


def test_what_a_played_rank_holds_takes_no_memory() -> None:
    done = started(LARGE, TPRIMAT_PLAY_RANK="0", TPRIMAT_PLAY_WORLD="2", CUDA_VISIBLE_DEVICES="")
    assert done.stdout == "True\n", done.stderr
