"""The wheel in an environment of its own, beside a user's modules of our names: one public name, and it works."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOG = ROOT / "tests/parsers/fixtures"
pytestmark = pytest.mark.wheel

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory), str(ROOT)]
    subprocess.run(argv, check=True, capture_output=True, timeout=300)
    (path,) = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin of an environment that has the wheel and what it needs."""
    home = tmp_path_factory.mktemp("v")
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=120)
    install = [str(home / "bin/python"), "-m", "pip", "install", "--quiet", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=500)
    return home / "bin"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a user's folder with a conf/ that cannot be imported, modules of our names, and ImageMagick's compare."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/__init__.py").write_text("raise RuntimeError('conf of the user')\n")
    for name in ("metrics", "launch", "parsers", "launchers", "estimate", "measure", "corpora", "compare"):
        (tmp_path / f"{name}.py").write_text("OWNER = 'user'\n")
    (tmp_path / "compare").write_text("#!/bin/sh\necho ImageMagick\n")
    (tmp_path / "compare").chmod(0o755)
    return tmp_path


def run(argv: list[str | Path], cwd: Path) -> Done:
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_it_installs_one_name_with_all_that_it_needs(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"tensorprimat"}
    folders = [
        ROOT / name
        for name in ("conf", "launchers", "parsers", "metrics", "compare", "estimate", "measure", "corpora", "shell")
    ]
    files = {path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    files -= {*(ROOT / "shell").glob("run_primus*")}  # they start launch.py
    inside = {name.removeprefix("tensorprimat/_app/") for name in names if "/_app/" in name} - {"__init__.py"}
    assert inside == {str(path.relative_to(ROOT)) for path in files}
    assert "tensorprimat/py.typed" in names
    scripts = next(name for name in names if name.endswith("entry_points.txt"))
    text = zipfile.ZipFile(wheel).read(scripts).decode()
    assert text.split() == ["[console_scripts]", "tprimat", "=", "tensorprimat.entry:tprimat"]


def test_ours_works_beside_theirs(scripts: Path, hostile: Path) -> None:
    for start in ([scripts / "tprimat"], [scripts / "python", "-m", "tensorprimat"]):
        for platform in ("nvidia", "amd"):
            done = run([*start, "launch", "model=llama", f"platform={platform}", "dry_run=true"], hostile)
            assert done.returncode == 0, done.stderr
            assert "8,030,261,248 parameters" in done.stdout
    tprimat = scripts / "tprimat"
    shown = run([tprimat, "launch", "--cfg", "job", "platform=amd"], hostile)
    assert shown.returncode == 0 and "name: mi300x" in shown.stdout, shown.stderr
    version = {run([tprimat, *words, "--version"], hostile).stdout for words in ([], ["compare"], ["metrics", "cost"])}
    assert version == {"tensorprimat 0.1.0\n"}
    assert run([tprimat, "compare", "--help"], hostile).stdout.startswith("usage: tprimat compare RUN")
    (script,) = scripts.parent.glob("lib/python*/site-packages/tensorprimat/_app/shell/env_to_shell.sh")
    exported = run(["env", f"PYTHON={scripts / 'python'}", "bash", script, "model=llama", "platform=nvidia"], hostile)
    assert "export TPRIMAT_SEQ_LENGTH=8192\n" in exported.stdout, exported.stderr
    refused = run([tprimat, "launch", "platform=cpu"], hostile)
    assert (refused.returncode, "[embedded]" in refused.stderr) == (2, True), "torch is not brought along"
    demo = run([tprimat, "demo"], hostile)
    assert (demo.returncode, demo.stderr) == (0, "")
    assert len([*hostile.glob("tprimat-demo/*/compare.html")]) == 3
    listed = run([tprimat, "models", "--json"], hostile)
    assert "llama31_8b" in [row["model"] for row in json.loads(listed.stdout)]


def test_a_log_becomes_a_record_becomes_figures_and_a_verdict(scripts: Path, hostile: Path) -> None:
    log = next(LOG.glob("*.log"))
    tprimat = scripts / "tprimat"
    for place in ("a", "b"):
        done = run([tprimat, "parse", log, "-o", f"runs/{place}", f"name={place}", "--json"], hostile)
        assert done.returncode == 0, done.stderr
    assert json.loads(run([tprimat, "metrics", "runs/a", "--json"], hostile).stdout)[0]["metrics"]
    done = run([tprimat, "compare", "runs/a", "-o", "out"], hostile)
    assert done.returncode in (0, 3), done.stderr
    assert (hostile / "out/compare.html").exists()
    assert run([tprimat, "metrics", "check", "ratio=2", "of=2,1"], hostile).returncode == 0


def test_every_module_of_ours_is_imported_and_theirs_stay_theirs(scripts: Path, hostile: Path) -> None:
    program = """
import pkgutil, sys
sys.path.insert(0, "")
from importlib import import_module
import launch, metrics, parsers, compare as theirs, tensorprimat
names = [m.name for m in pkgutil.walk_packages(tensorprimat.__path__, "tensorprimat.")]
for name in names:
    if ".ranks" not in name and not name.endswith("__main__"):
        import_module(name)
from tensorprimat import UserError, compare, load_experiment, models, problems, read_runs, summary
assert load_experiment("model=llama", "platform=nvidia").model.num_layers == 32
try:
    read_runs("nowhere")
except UserError as error:
    assert "no run there" in str(error)
assert callable(compare)
import estimate, launchers
assert {module.OWNER for module in (launch, metrics, parsers, theirs, estimate, launchers)} == {"user"}
try:
    import conf
except RuntimeError as error:
    assert str(error) == "conf of the user"
else:
    raise SystemExit("ours was imported for theirs")
assert "llama" in models() and problems("model=llama", "platform=nvidia", "nodes=x")
assert "8,030,261,248 parameters" in summary(load_experiment("model=llama", "platform=nvidia"))
print(len(names))
"""
    done = run([scripts / "python", "-c", program], hostile)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def test_a_bill_of_materials_is_beside_the_metadata(wheel: Path) -> None:
    """As PEP 770 has it: CycloneDX, and the same packages as in the lock files."""
    with zipfile.ZipFile(wheel) as archive:
        bill = json.loads(archive.read("tensorprimat-0.1.0.dist-info/sboms/tensorprimat.cdx.json"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    locks = "".join((ROOT / "requirements" / name).read_text() for name in ("lock.txt", "lock-torch.txt"))
    locked = re.findall(r"^([\w.-]+)==(\S+)", locks, re.MULTILINE)
    assert sorted((one["name"], one["version"]) for one in bill["components"]) == sorted(locked)
    scopes = {one["name"]: one["scope"] for one in bill["components"]}
    assert (scopes["msgspec"], scopes["markupsafe"], scopes["torch"], scopes["sympy"]) == (
        "required",
        "required",
        "optional",
        "optional",
    )
    refs = {one["bom-ref"] for one in (bill["metadata"]["component"], *bill["components"])}
    assert {row["ref"] for row in bill["dependencies"]} == refs
    needed = {row["ref"].partition("@")[0]: row["dependsOn"] for row in bill["dependencies"]}
    assert any("/markupsafe@" in ref for ref in needed["pkg:pypi/jinja2"])
