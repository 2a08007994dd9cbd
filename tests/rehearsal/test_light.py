"""Test that what a rehearsal's imports leave out is there as soon as somebody asks for it, and nothing else differs."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "launchers" / "ranks" / "rehearsal"
pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: make install")


def said(code: str, **variables: str) -> str:
    """Return what a process prints that has left out what it can."""
    done = subprocess.run(
        [sys.executable, "-c", f"import tprimat_light\ntprimat_light.install()\n{code}"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(FOLDER), "TORCHDYNAMO_DISABLE": "1", **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return done.stdout.strip()


OPTIMIZER = """
import sys, torch
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.AdamW([weight], lr=0.1)
double = torch.compile(lambda x: 2 * x)
@torch.compile(dynamic=True)
def square(x): return x * x
for _ in range(2):
    (square(double(weight)).sum()).backward(); optimizer.step(); optimizer.zero_grad()
print(weight.tolist(), "torch._dynamo.utils" in sys.modules)
"""


def test_a_step_is_the_same_without_the_compiler() -> None:
    without = said(OPTIMIZER)
    real = said(OPTIMIZER.replace("import sys, torch", "import sys, torch, torch._dynamo.utils"))
    assert without.endswith("False")
    assert real == without.replace("False", "True")


def test_who_switches_the_compiler_on_gets_it() -> None:
    code = "import torch, torch._dynamo as d; print(type(d).__name__, torch.compile(abs) is abs)"
    assert said(code) == "_Compiler True"
    assert said(code.replace(", torch.compile(abs) is abs", ""), TORCHDYNAMO_DISABLE="0") == "module"


@pytest.mark.parametrize(
    "asks",
    [
        "import torch._dynamo.utils as u; f = u.dynamo_timed",
        "from torch._dynamo.utils import dynamo_timed as f",
        "import torch._dynamo as d; f = d.utils.dynamo_timed",
        "import torch; f = torch._dynamo.utils.dynamo_timed",
        "import torch._dynamo, importlib; f = importlib.import_module('torch._dynamo.utils').dynamo_timed",
        "import torch._dynamo as d; d.mark_static_address; from torch._dynamo.utils import dynamo_timed as f",
    ],
)
def test_a_name_that_is_not_here_is_the_real_one(asks: str) -> None:
    code = f"import torch._dynamo as first; first.config.suppress_errors = True\n{asks}\nimport sys, torch\n"
    code += "real = sys.modules['torch._dynamo']\nprint(f.__module__, type(real).__name__, real is torch._dynamo,"
    code += "real.config.suppress_errors, sys.modules['torch._dynamo.utils'].__spec__.loader.__class__.__name__)"
    assert said(code) == "torch._dynamo.utils module True True SourceFileLoader"


DATACLASSES = """
import dataclasses, inspect
from dataclasses import dataclass, field
@dataclass
class A:
    x: int = 1
    y: list = field(default_factory=list)
@dataclass
class B(A):
    x: str = "b"
@dataclass(frozen=True)
class C:
    x: int = 1
@dataclass(order=True)
class D:
    x: float
    y: float = 2.0
for one in (A(), B(), A(3), B(y=[1]), C(), D(0.5)):
    print(one, one == type(one)(*dataclasses.astuple(one)), inspect.signature(type(one)), one.__init__.__annotations__)
print(A(1) == B(1), D(1) < D(2), A.__init__.__qualname__, B.__init__.__qualname__)
try: C().x = 2
except dataclasses.FrozenInstanceError as error: print(error)
"""


def test_dataclasses_of_the_same_fields_are_their_own() -> None:
    plain = subprocess.run([sys.executable, "-c", DATACLASSES], capture_output=True, text=True, check=True, timeout=600)
    assert said(DATACLASSES) == plain.stdout.strip()
    assert "B(x='b', y=[])" in plain.stdout


TRANSFORMERS = """
def create_import_structure_from_path(path):
    read.append(path)
    return path
def fetch__all__(content):
    given.append(content)
read, given = [], []
"""


def test_transformers_reads_a_folder_by_one_name(tmp_path: Path) -> None:
    for part in ("transformers", "transformers/utils"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "__init__.py").touch()
    (tmp_path / "transformers" / "utils" / "import_utils.py").write_text(TRANSFORMERS)
    code = f"""import sys; sys.path.insert(0, {str(tmp_path)!r})
import transformers.utils.import_utils as u
folder = {str(tmp_path)!r}
u.create_import_structure_from_path(folder); u.create_import_structure_from_path(folder + "/transformers/__init__.py")
for text in ("x = 1", "__all__ = []", 'x\\n__all__ = [1]\\ny\\n__all__ = [\\n2\\n]\\nz'): u.fetch__all__(text)
print([path.removeprefix(folder) for path in u.read], u.given)"""
    assert said(code) == "['', '/transformers'] ['x = 1', '__all__ = []', '__all__ = [\\n2\\n]\\nz']"


CALLER = """
import inspect

def line():
    caller = inspect.stack()[1]
    return caller.frame.f_code.co_name, caller.frame.f_globals["__name__"], caller.lineno

def printed():
    return line()
"""


def test_primus_log_names_the_same_caller_without_reading_the_sources_of_the_stack(tmp_path: Path) -> None:
    package = tmp_path / "primus" / "core" / "utils"
    package.mkdir(parents=True)
    (package / "module_utils.py").write_text(CALLER)
    printed = "\nprint(log.inspect is inspect, log.printed())"
    code = f"import inspect\nfrom primus.core.utils import module_utils as log{printed}\nlog.inspect = inspect{printed}"
    quick, real = said(code, PYTHONPATH=f"{FOLDER}:{tmp_path}").splitlines()
    assert real == "True ('printed', 'primus.core.utils.module_utils', 9)"
    assert quick == real.replace("True", "False")
