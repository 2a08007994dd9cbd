"""Test what the ranks read of configuration objects and of the code that really runs. No vendor is needed for it: the
packages and checkouts are made here."""

from __future__ import annotations

import base64
import enum
import functools
import hashlib
import importlib.metadata
import json
import os
import py_compile
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "launchers" / "ranks" / "rehearsal"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    import tprimat_objects

    yield tprimat_objects
    del sys.modules["tprimat_objects"]


class Kind(enum.Enum):
    flash = 1


@dataclass
class Inner:
    lr: float = 0.1


@dataclass
class Config:
    hidden_size: int
    activation: Any = None
    kernel: Kind = Kind.flash
    modules: list[str] = field(default_factory=list)
    wandb_api_key: str | None = None
    inner: Inner = field(default_factory=Inner)
    tokenizer: Any = None
    limit: float = float("inf")


def test_an_object_is_read_whole_and_as_plain_values(read: Any) -> None:
    config = Config(64, functools.partial(hashlib.sha256), wandb_api_key="abc", tokenizer=object())
    config.added_later = True  # type: ignore[attr-defined]
    own = read.described({"Config": config, "Inner": config.inner})
    assert json.loads(json.dumps(own)) == own
    fields = own["Config"]["fields"]
    assert own["Config"]["kind"].endswith("test_objects.Config") and own["Inner"]["fields"] == {"lr": 0.1}
    assert "inner.lr" not in fields, "it stands by itself"
    assert fields == {
        "hidden_size": 64,
        "activation": "partial openssl_sha256",
        "kernel": "flash",
        "modules": [],
        "wandb_api_key": "<hidden>",
        "tokenizer": "<object>",
        "limit": "inf",
        "added_later": True,
    }
    defaults = own["Config"]["defaults"]
    assert (defaults["kernel"], defaults["modules"], "hidden_size" in defaults) == ("flash", [], False)
    assert read.described({"Config": config})["Config"]["fields"]["inner.lr"] == 0.1


def test_an_object_by_the_arguments_that_it_is_made_with(read: Any) -> None:
    class Model:
        def __init__(self, config: Any, rotary_percent: float = 1.0, **others: Any) -> None: ...

    config = Config(64)
    made = read.given(Model, (config,), {"rotary_percent": 0.5, "unknown": 1})
    described = read.described({"GPTModel": made, "Config": config})["GPTModel"]
    assert (described["fields"], described["defaults"]) == ({"rotary_percent": 0.5}, {"rotary_percent": 1.0})


@pytest.mark.parametrize(
    ("trainers", "interval"),
    [
        ((None, SimpleNamespace(manual_gc=True, manual_gc_interval=1)), 1),
        ((None, SimpleNamespace(manual_gc=False, manual_gc_interval=1)), None),
        ((None, SimpleNamespace(manual_gc=True, manual_gc_interval=0)), None),
        ((SimpleNamespace(callbacks=[object(), SimpleNamespace(gc_interval_train=100)]),), 100),
        ((SimpleNamespace(callbacks=[object()]), None), None),
    ],
)
def test_after_how_many_steps_garbage_is_collected_by_hand(read: Any, trainers: Any, interval: int | None) -> None:
    assert read.collection_interval(trainers) == interval


def test_variables_that_steer_numerics_and_communication(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"NVTE_FLASH_ATTN": "0", "NVIDIA_TF32_OVERRIDE": "1", "PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True"}
    others = {
        "TORCHELASTIC_RUN_ID": "1",
        "NCCL_NET_TOKEN": "s3cret",
        "TORCH_HOME": "/x",
        "NCCL_X": "http://a:b@c",
        "LANG": "C",
    }
    for name, value in {**wanted, **others}.items():
        monkeypatch.setenv(name, value)
    found = read.variables()
    assert {name: found.get(name) for name in (*wanted, *others)} == {**wanted, **dict.fromkeys(others)}
    for name, value in (("HIPBLASLT_TUNING_OVERRIDE_FILE", "/a/b.txt"), ("NCCL_TOPO_FILE", "")):
        monkeypatch.setenv(name, value)
    found = read.variables()  # that there is one decides, and not where it lies
    assert (found["HIPBLASLT_TUNING_OVERRIDE_FILE"], found["NCCL_TOPO_FILE"]) == ("<a file>", "")


@pytest.mark.parametrize(
    ("variable", "steers"),
    [
        *((name, True) for name in ("ONEDNN_DEFAULT_FPMATH_MODE", "ATEN_CPU_CAPABILITY", "MKL_CBWR", "KMP_BLOCKTIME")),
        *((name, True) for name in ("HIP_FORCE_DEV_KERNARG", "FP32_MASTER_WEIGHTS", "PRIMUS_DETERMINISTIC")),
        *((name, True) for name in ("CUDA_MODULE_LOADING", "USE_ROCM_AITER_ROPE_BACKEND", "PYTHONOPTIMIZE")),
        *((name, False) for name in ("PRIMUS_TEAM", "PRIMUS_PATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")),
        *((name, False) for name in ("CUDA_HOME", "USER", "PRIMUS_RELEASE", "MEGATRON_LOGGING_LEVEL")),
    ],
)
def test_a_variable_that_a_stack_or_a_library_reads(
    read: Any, monkeypatch: pytest.MonkeyPatch, variable: str, steers: bool
) -> None:
    monkeypatch.setenv(variable, "1")
    assert (variable in read.variables()) is steers


def test_a_switch_that_is_changed_after_the_first_step_has_both_values(read: Any) -> None:
    first, now = (read.Named(read.Switches, {"garbage_collection": on, "mkldnn": True}, {}) for on in (True, False))
    assert read.changed_since(first, now) == {"garbage_collection": [True, False]}
    assert read.changed_since(first, first) == {}


def test_a_validation_is_counted_in_global_batches_as_everybody_does(read: Any) -> None:
    sampler = SimpleNamespace(data_sampler=SimpleNamespace(num_microbatches=4))
    nemo = SimpleNamespace(val_check_interval=4, limit_val_batches=8, datamodule=sampler)
    bridge = SimpleNamespace(eval_interval=4, eval_iters=2)
    assert read.evaluation((None, nemo)) == read.evaluation((None, bridge)) == (4, 2)


def test_switches_of_torch_are_read_whatever_names_they_were_set_by() -> None:
    program = f"""import sys; sys.path.insert(0, {str(FOLDER)!r})
import torch, tprimat_objects
torch.backends.cuda.matmul.allow_tf32 = True
if hasattr(torch.backends, "fp32_precision"):
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    torch.backends.cuda.matmul.fp32_precision = "ieee"
torch.autograd.set_detect_anomaly(True, check_nan=False)
values = tprimat_objects.switches(None, None, ()).values
assert values["anomaly_detection"] is True and values["garbage_collection"] is True, values
assert values["mkldnn_fp32_precision"] == "bf16" or not hasattr(torch.backends, "fp32_precision"), values
"""
    subprocess.run((sys.executable, "-c", program), check=True, timeout=120)


@pytest.mark.parametrize(
    ("trainer", "plans"),
    [
        (SimpleNamespace(use_pytorch_profiler=True), True),
        (SimpleNamespace(profile=True), True),
        (SimpleNamespace(use_pytorch_profiler=False, profile=None), False),
        (SimpleNamespace(callbacks=[type("NsysCallback", (), {})()]), True),
        (SimpleNamespace(callbacks=[object()]), False),
    ],
)
def test_whether_a_stack_is_to_profile_a_step(read: Any, trainer: Any, plans: bool) -> None:
    assert read.profiles((None, trainer)) is plans


PROGRAM = """
import json, os, sys
sys.path.append(os.environ["OURS"])
import nemo, megatron.core.utils
import tprimat_objects
print(json.dumps(tprimat_objects.process({})))
"""
HISTORY = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")


def install(site: Path, distribution: str, version: str, files: dict[str, str]) -> None:
    """Install a distribution as pip does, as far as anybody looks."""
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    record = []
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        record.append(f"{name},sha256={digest},{len(text)}")
    (info / "RECORD").write_text("\n".join(record))


def commit(folder: Path) -> None:
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "all")):
        subprocess.run(("git", *HISTORY, "-C", str(folder), *words), check=True, capture_output=True)


MEGATRON = {"megatron/core/__init__.py": "", "megatron/core/utils.py": "ONE = 1\n"}
NEMO = {"nemo/__init__.py": "__version__ = '2'\n"}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder of installed packages: NeMo and Megatron-Core."""
    site = tmp_path / "site-packages"
    install(site, "megatron-core", "0.15.3", MEGATRON)
    install(site, "nemo-toolkit", "2.7.3", NEMO)
    return site


def ran(site: Path, *front: Path, python_path: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return what a process reads of itself. site: behind the standard library; front: on PYTHONPATH."""
    program = f"import sys\nsys.path.append({str(site)!r})\n{PROGRAM}"
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, front)),
        "OURS": str(FOLDER),
        "TPRIMAT_REHEARSED": "train",
        # or a file that is changed within a second to another of its size has the former's code
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = (sys.executable, "-S", "-P", "-c", program)
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60, env=env)
    found: dict[str, Any] = json.loads(done.stdout)
    return {name: found[name] for name in ("commits", "changed", "ahead")}


CLEAN = {"commits": {"nemo-toolkit": "2.7.3", "megatron-core": "0.15.3"}, "changed": [], "ahead": []}


def test_a_clean_stack_is_what_it_is_named(site: Path) -> None:
    assert ran(site) == CLEAN


def test_a_changed_file_of_an_installed_package_is_named(site: Path) -> None:
    (site / "megatron/core/utils.py").write_text("ONE = 2\n")
    (site / "megatron/core/unused.py").write_text("not imported\n")
    assert ran(site) == {**CLEAN, "changed": ["megatron-core: megatron/core/utils.py"]}


def test_code_without_its_source_is_named(site: Path) -> None:
    source = site / "megatron/core/utils.py"
    py_compile.compile(str(source), cfile=str(source.with_suffix(".pyc")), doraise=True)
    assert ran(site) == CLEAN, "Python takes the source, where there is one"
    source.unlink()
    assert ran(site) == {**CLEAN, "changed": ["megatron-core: megatron/core/utils.pyc, which is not of the package"]}


def poison(source: Path) -> Path:
    """Put other code into the .pyc of a module, and leave nothing at its source that shows it; return the .pyc."""
    text, time = source.read_text(), source.stat().st_mtime_ns
    source.write_text(text.replace("1", "3"))
    os.utime(source, ns=(time, time))
    cached = py_compile.compile(str(source), doraise=True)
    assert cached is not None
    source.write_text(text)
    os.utime(source, ns=(time, time))
    return Path(cached)


def test_a_pyc_of_other_code_is_named(site: Path, tmp_path: Path) -> None:
    said = "megatron/core/utils.py, of which __pycache__ has other code"
    py_compile.compile(str(site / "megatron/core/utils.py"), doraise=True)
    assert ran(site) == CLEAN, "that of its own code is no fault"
    cached = poison(site / "megatron/core/utils.py")
    assert ran(site) == {**CLEAN, "changed": [f"megatron-core: {said}"]}
    cached.unlink()
    assert ran(site) == CLEAN
    checkout = tmp_path / "Megatron-LM"
    shutil.copytree(site / "megatron", checkout / "megatron")
    (checkout / ".gitignore").write_text("__pycache__\n")
    commit(checkout)
    shutil.rmtree(site / "megatron")
    shutil.rmtree(site / "megatron_core-0.15.3.dist-info")
    assert ran(site, checkout)["changed"] == []
    poison(checkout / "megatron/core/utils.py")
    found = ran(site, checkout)
    assert found["changed"] == [f"Megatron-LM: {said}"] and found["commits"]["Megatron-LM"].endswith("-dirty")


def test_a_pyc_that_was_installed_or_just_written_is_not_compiled_again(
    read: Any, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand of them would take a second at the end of each rehearsal."""
    source, module = site / "megatron/core/utils.py", ModuleType("planted")
    cached = poison(source)
    vars(module)["__cached__"] = str(cached)
    monkeypatch.setitem(sys.modules, "planted", module)
    written, seen = read._times(cached)
    times = ((0.0, 0.0), (written, seen), (written + 1, seen + 1), (written - 1, seen + 1))
    for until, answers in ((seen + 1, [True, False, False, True]), (seen, [False, False, False, False])):
        monkeypatch.setattr(read, "_SINCE", until)
        said = "a copy of the environment is younger than all in it, and only the time of the file itself says more"
        assert [read.is_other_code("planted", source, since) for since in times] == answers, said


def test_a_library_is_named_where_it_hides_a_module(read: Any, site: Path) -> None:
    installed = read._Installed(next(iter(importlib.metadata.distributions(name="megatron-core", path=[str(site)]))))
    compiled, hiding = (site / f"megatron/core/{name}.cpython-311-x86_64-linux-gnu.so" for name in ("helpers", "utils"))
    assert installed.why_changed(compiled) == "", "a stack compiles it where it is missing"
    assert installed.why_changed(hiding) == f"megatron/core/{hiding.name}, which is not of the package"


def test_what_runs_whenever_python_starts_is_named_with_its_package(read: Any, tmp_path: Path) -> None:
    own = {"plain.pth": "/a/folder\nimportant\n", "of_a_package.pth": "import of_a_package\n"}
    install(tmp_path, "of-a-package", "1", own)
    setuptools = (
        "enabled = os.environ.get(var, 'local') == 'local'; enabled and __import__('_distutils_hack').add_shim(); "
    )
    (tmp_path / "distutils-precedence.pth").write_text(f"import os; var = 'SETUPTOOLS_USE_DISTUTILS'; {setuptools}\n")
    (tmp_path / "_virtualenv.pth").write_text("import _virtualenv")
    editable = "import __editable___x_1_finder; __editable___x_1_finder.install()"
    (tmp_path / "__editable__.x-1.pth").write_text(editable)
    assert [*read.started([tmp_path])] == [f"{tmp_path / 'of_a_package.pth'} of of_a_package-1"]
    (tmp_path / "__editable__.x-1.pth").write_text(editable.replace("1_finder.install", "2_finder.install"))
    assert str(tmp_path / "__editable__.x-1.pth") in [*read.started([tmp_path])]
    (tmp_path / "__editable__.x-1.pth").unlink()
    wrong = {"a.pth": "/a/folder\nimport fix\n", "of_a_package.pth": "import fix\n", "usercustomize.py": "fix()\n"}
    for name, text in wrong.items():
        (tmp_path / name).write_text(text)
    with (tmp_path / "distutils-precedence.pth").open("a") as file:
        file.write("import fix\n")
    assert [Path(file).name for file in read.started([tmp_path])] == sorted((*wrong, "distutils-precedence.pth"))
    assert [*read.started([tmp_path / "none"])] == []


def test_a_patched_copy_in_front_of_the_packages_is_named(site: Path, tmp_path: Path) -> None:
    patched = tmp_path / "patched"
    for name, text in MEGATRON.items():
        (patched / name).parent.mkdir(parents=True, exist_ok=True)
        (patched / name).write_text(text.replace("1", "3"))
    found = ran(site, patched)
    assert found["commits"] == {"nemo-toolkit": "2.7.3"}
    assert found["ahead"] == [f"{patched}: megatron.core, megatron.core.utils"]
    commit(patched)
    assert ran(site, patched)["ahead"] == found["ahead"], "a history of its own names no release of the stack"


def test_a_checkout_that_stands_in_front_of_nothing_is_named_by_its_commit(site: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "Megatron-LM"
    for name, text in MEGATRON.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)
    commit(checkout)
    info = site / "megatron_core-0.15.3.dist-info"
    (info / "direct_url.json").write_text(json.dumps({"url": checkout.as_uri(), "dir_info": {"editable": True}}))
    (info / "RECORD").write_text("__editable___megatron_core_finder.py,sha256=x,1")
    editable = ran(site, checkout)
    assert ({*editable["commits"]}, editable["ahead"]) == ({"nemo-toolkit", "Megatron-LM"}, [])
    shutil.rmtree(info)
    shutil.rmtree(site / "megatron")
    assert ran(site, checkout) == editable
    (checkout / "megatron/core/utils.py").write_text("ONE = 5\n")
    assert ran(site, checkout)["changed"] == ["Megatron-LM: megatron/core/utils.py"]


def test_whatever_else_came_from_in_front_is_named(site: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "nemo_patch.py").write_text("")
    install(site, "loader", "1", {})
    (site / "nemo" / "__init__.py").write_text("import nemo_patch\n")
    found = ran(site, tmp_path / "mine")
    assert found["ahead"] == [f"{tmp_path / 'mine'}: nemo_patch"]


def test_code_in_an_archive_in_front_and_behind_one_is_named(site: Path, tmp_path: Path) -> None:
    (tmp_path / "behind").mkdir()
    (tmp_path / "behind" / "nemo_behind.py").write_text("")
    archive = tmp_path / "front.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("nemo_patch.py", "")
    (site / "nemo" / "__init__.py").write_text("import nemo_patch, nemo_behind\n")
    found = ran(site, archive, tmp_path / "behind")
    assert found["ahead"] == [f"{tmp_path / 'behind'}: nemo_behind", f"{archive}: nemo_patch"]


def test_a_dependency_that_no_package_has_installed_is_named(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPRIMAT_REHEARSE", "train")
    install(site, "einops", "0.8.1", {"einops/__init__.py": ""})
    shutil.rmtree(site / "nemo_toolkit-2.7.3.dist-info")
    install(site, "nemo-toolkit", "2.7.3", {"nemo/__init__.py": "import einops\n"})
    assert ran(site)["commits"]["einops"] == "0.8.1"
    (site / "einops" / "__init__.py").write_text("TWO = 2\n")
    assert ran(site)["changed"] == ["einops: einops/__init__.py"]
    shutil.rmtree(site / "einops-0.8.1.dist-info")
    assert ran(site)["ahead"] == [f"{site}: einops"], "no package has it"


def test_a_checkout_is_named_by_its_commit_and_a_dirty_one_is_said(site: Path, tmp_path: Path) -> None:
    checkout, own = tmp_path / "NeMo", tmp_path / "own"
    for folder, files in ((checkout, NEMO), (own, MEGATRON)):
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        commit(folder)
    lm = checkout / "3rdparty" / "Megatron-LM"
    add = ("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(own), str(lm.relative_to(checkout)))
    subprocess.run(("git", "-C", str(checkout), *add), check=True, capture_output=True)
    commit(checkout)
    front = (checkout, lm)
    clean = ran(site, *front)
    assert {*clean["commits"]} == {"NeMo", "NeMo/3rdparty/Megatron-LM"}
    assert (clean["changed"], clean["ahead"]) == ([], [])
    assert not any("dirty" in name for name in clean["commits"].values())
    (lm / "megatron/core/utils.py").write_text("ONE = 2\n")
    dirty = ran(site, *front)
    lm_name = "NeMo/3rdparty/Megatron-LM"
    assert dirty["commits"] == {"NeMo": clean["commits"]["NeMo"], lm_name: f"{clean['commits'][lm_name]}-dirty"}
    assert dirty["changed"] == [f"{lm_name}: megatron/core/utils.py"]
    for flag in ("skip-worktree", "assume-unchanged"):  # git is told not to look
        subprocess.run(("git", "-C", str(lm), "update-index", f"--{flag}", "megatron/core/utils.py"), check=True)
        assert ran(site, *front) == dirty
        subprocess.run(("git", "-C", str(lm), "update-index", f"--no-{flag}", "megatron/core/utils.py"), check=True)
    (lm / "megatron/core/utils.py").write_text("ONE = 1\n")
    (checkout / "README").write_text("not imported, and of no commit")
    assert ran(site, *front) == clean
    (checkout / "nemo" / "__init__.py").write_text("import nemo.extra\n")
    (checkout / "nemo" / "extra.py").write_text("")
    found = ["NeMo: nemo/__init__.py", "NeMo: nemo/extra.py, which is not committed"]
    assert ran(site, *front)["changed"] == found
    (checkout / ".git" / "info" / "exclude").write_text("extra.py\n")
    assert ran(site, *front)["changed"] == found, "that git ignores it makes it of no commit"


def test_rendered_files_are_hashed_as_they_are_when_the_rank_starts(read: Any, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"files": {"settings.yaml": "a: 1\n", "gone.sh": ""}}))
    (tmp_path / "settings.yaml").write_text("a: 2\n")
    assert read.rendered(tmp_path) == {"settings.yaml": hashlib.sha256(b"a: 2\n").hexdigest()}
    assert read.rendered(tmp_path / "none") == {}


@pytest.mark.skipif(sys.platform != "linux", reason="another linker")
def test_a_library_that_the_linker_takes_from_elsewhere_is_named(tmp_path: Path) -> None:
    import ctypes

    ctypes.CDLL("libm.so.6")
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").split()
    library = next(path for path in mapped if Path(path).name.startswith("libm.so"))
    shutil.copy(library, tmp_path / "libm.so.6")
    code = "import tprimat_objects as read; print(*read.linked_from_outside())"
    for folders, expected in ((f"/nowhere:{tmp_path}", "libm.so.6"), ("/nowhere", ""), (None, "")):
        env = {"PYTHONPATH": str(FOLDER), **({"LD_LIBRARY_PATH": folders} if folders else {})}
        done = subprocess.run((sys.executable, "-c", code), env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected
