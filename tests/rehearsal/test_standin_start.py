"""How a rehearsal gets into a process: a sitecustomize that waits, hides, hollows and hands over. No torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "launchers" / "ranks" / "rehearsal"


def started(code: str, *path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Return a Python that was started as a vendor's is, with `path` behind the rehearsal's folder."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TPRIMAT_")}
    env |= {"PYTHONPATH": os.pathsep.join(map(str, (FOLDER, *path))), **variables}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, env=env
    )


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_nothing_is_set_up_until_it_is_requested_and_torch_is_imported() -> None:
    done = started("import sys; print(sorted(m for m in sys.modules if m.startswith('tprimat')), sys.meta_path[0])")
    assert done.stdout.startswith("[] ") and "tprimat" not in done.stdout
    waits = "import sys; print('torch' in sys.modules, 'tprimat_standin' in sys.modules)"
    done = started(waits, TPRIMAT_REHEARSE="train")
    assert (done.stdout, done.stderr) == ("False True\n", "")


def test_garbage_is_looked_for_again_when_training_begins_unless_the_stack_chose_otherwise() -> None:
    code = """
import gc, sys, types, tprimat_standin
put_off = gc.get_threshold()[0]
CHOSEN
distributed = types.SimpleNamespace(get_rank=lambda: 1, get_world_size=lambda: 2)
sys.modules["torch"] = types.SimpleNamespace(distributed=distributed, __version__="0")
tprimat_standin._announced(lambda: None)()
print(put_off > 10**6, gc.isenabled(), gc.get_threshold()[0], gc.get_freeze_count() > 0)
"""
    usual = started("import gc; print(gc.get_threshold()[0])").stdout.strip()
    for chosen, then in (("", f"True True {usual} True"), ("gc.set_threshold(5)", "True True 5 False")):
        done = started(code.replace("CHOSEN", chosen), TPRIMAT_REHEARSE="train")
        assert (done.stdout.splitlines()[-1], done.stderr) == (then, "")


@pytest.mark.parametrize("requested", [{}, {"TPRIMAT_REHEARSE": "train"}])
def test_the_sitecustomize_of_someone_else_still_runs(tmp_path: Path, requested: dict[str, str]) -> None:
    write(tmp_path / "sitecustomize.py", "import sys; sys.told = __file__")
    done = started(
        "import sys, sitecustomize; print(sys.told == sitecustomize.__file__, sys.told)", tmp_path, **requested
    )
    assert done.stdout.split() == ["True", str(tmp_path / "sitecustomize.py")]


def test_copies_and_others_that_hand_over_meet_once(tmp_path: Path) -> None:
    copy = shutil.copytree(FOLDER, tmp_path / "copy")
    hands_back = "import runpy, sys; sys.told = [*vars(sys).get('told', []), 'theirs']; runpy.run_path(OURS)"
    write(tmp_path / "theirs" / "sitecustomize.py", hands_back.replace("OURS", repr(str(FOLDER / "sitecustomize.py"))))
    write(tmp_path / "last" / "sitecustomize.py", "import sys; sys.told.append('last')")
    code = "import sys, tprimat_standin as t; print(sys.told, t.__file__)"
    done = started(code, copy, tmp_path / "theirs", tmp_path / "last", TPRIMAT_REHEARSE="train")
    assert (done.stdout, done.stderr) == (f"['theirs', 'last'] {FOLDER / 'tprimat_standin.py'}\n", "")


@pytest.mark.parametrize(
    ("rank", "world"),
    [("64", "64"), ("-1", "64"), ("x", "64"), ("0", "0"), ("0", "")],
    ids=lambda value: value or "none",
)
def test_a_rank_that_is_none_is_refused(rank: str, world: str) -> None:
    requested = {"TPRIMAT_REHEARSE": "layout", "TPRIMAT_PLAY_RANK": rank, "TPRIMAT_PLAY_WORLD": world}
    done = started("print('went on')", **requested)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"integers, rank below world: {rank}, {world}" in done.stderr


def test_a_played_rank_has_the_variables_that_torchrun_would_set() -> None:
    code = "import os; print(*(os.environ[name] for name in 'RANK WORLD_SIZE LOCAL_RANK NODE_RANK NNODES'.split()))"
    requested = {"TPRIMAT_REHEARSE": "layout", "TPRIMAT_PLAY_RANK": "61", "TPRIMAT_PLAY_WORLD": "64"}
    assert started(code, **requested).stdout == "61 64 5 7 8\n"
    assert started(code, **requested, LOCAL_WORLD_SIZE="4").stdout == "61 64 1 15 16\n"


HOOKS = """
import sys
from tprimat_after_import import FAULTS, after
seen = []
after("json.decoder")(lambda module: seen.append("at once")) if "json.decoder" in sys.modules else None
@after("vendor.part")
def first(module): seen.append(module.NAME)
@after("vendor.part")
def broken(module): raise AttributeError("a name that is gone")
@after("vendor.part")
def last(module): module.NAME = "replaced"
@after("vendor.never")
def never(module): seen.append("never")
assert seen == []
import vendor.part
from vendor import user
after("vendor.part")(lambda module: seen.append("later"))
import importlib.resources, inspect
print(seen, user.NAME, FAULTS)
print(type(vendor.part.__spec__.loader).__name__, inspect.getsource(vendor.part).strip())
"""


def test_hooks_run_once_after_the_import_and_a_broken_one_stops_nobody(tmp_path: Path) -> None:
    write(tmp_path / "vendor" / "__init__.py", "")
    write(tmp_path / "vendor" / "part.py", "NAME = 'original'\n")
    write(tmp_path / "vendor" / "user.py", "from vendor.part import NAME\n")
    done = started(HOOKS, tmp_path)
    seen, loader = done.stdout.splitlines()
    fault = "('vendor.part', 'broken', 'AttributeError: a name that is gone')"
    assert seen == f"['original', 'later'] replaced [{fault}]"
    assert loader == "SourceFileLoader NAME = 'original'"
    assert done.stderr == "[tprimat] hook broken of vendor.part failed: AttributeError: a name that is gone\n"


LOADS_CUDA = "raise OSError('libcuda.so.1: cannot open shared object file')"
PACKAGES = """
import importlib.util, sys
import tprimat_standin
tprimat_standin.is_active = lambda: ACTIVE
tprimat_standin.hide_packages()
def tell(name):
    try:
        module = __import__(name, fromlist=["told"])
        print(name, getattr(module, "told", "-"))
    except Exception as error:
        print(name, type(error).__name__)
for name in sys.argv[1:] or NAMES:
    tell(name)
print(importlib.util.find_spec("transformer_engine"), importlib.util.find_spec("qwen_vl_utils"))
"""
NAMES = ("megatron.core.layers", "megatron.bridge.recipe", "megatron.core.layers", "other", "primus.flash", "modelopt")


@pytest.fixture
def gpu_box(tmp_path: Path) -> Path:
    """Return packages as on a machine that has them installed and no GPU; energon and qwen_vl_utils are missing."""
    for name in ("transformer_engine", "flash_attn"):
        write(tmp_path / name / "__init__.py", LOADS_CUDA)
    write(tmp_path / "modelopt" / "__init__.py", "told = 'the real one'")
    asks = "try:\n    import transformer_engine\n    told = 'has TE'\nexcept ImportError:\n    told = 'has none'\n"
    write(tmp_path / "megatron" / "core" / "__init__.py", "")
    write(tmp_path / "megatron" / "core" / "layers.py", asks)
    write(tmp_path / "other.py", asks + "import importlib.util\ntold += str(importlib.util.find_spec('qwen_vl_utils'))")
    needs = "from transformer_engine.pytorch.module.linear import Linear\nimport megatron.energon as energon\n"
    uses = "from qwen_vl_utils import process_vision_info\n@energon.stateless(restore=True)\ndef f(): return 3\n"
    uses += "told = (Linear(2).training, f())"
    write(tmp_path / "megatron" / "bridge" / "recipe.py", needs + uses)
    write(tmp_path / "primus" / "flash.py", "import importlib\nimportlib.import_module('flash_attn')")
    return tmp_path


def test_packages_of_a_gpu_machine_are_hidden_or_hollow(gpu_box: Path) -> None:
    torch = "class Module:\n    def __init__(self, *_): self.training = True\n"
    write(gpu_box / "torch" / "__init__.py", "from torch import nn")
    write(gpu_box / "torch" / "nn.py", torch)
    done = started(PACKAGES.replace("ACTIVE", "True").replace("NAMES", repr(NAMES)), gpu_box)
    assert done.stdout.splitlines() == [
        "megatron.core.layers has none",
        "megatron.bridge.recipe (True, 3)",
        "megatron.core.layers has none",
        "other has noneNone",
        "primus.flash _Hidden",
        "modelopt the real one",
        "None None",
    ], done.stderr


def test_nothing_is_hidden_or_hollow_where_an_accelerator_is(gpu_box: Path) -> None:
    names = ("primus.flash", "megatron.bridge.recipe")
    done = started(PACKAGES.replace("ACTIVE", "False").replace("NAMES", repr(names)), gpu_box)
    result, missing, specs = done.stdout.splitlines()
    assert (result, missing) == ("primus.flash OSError", "megatron.bridge.recipe OSError")
    assert specs.startswith("ModuleSpec(name='transformer_engine'")
