"""The house rules that a machine can hold: arrows between folders, sizes, what an import may cost, shell scripts."""

from __future__ import annotations

import ast
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "conf": {"conf"},
    "launchers": {"conf", "launchers"},
    "parsers": {"conf", "parsers"},
    "metrics": {"conf", "parsers", "metrics"},
    "compare": {"conf", "parsers", "metrics", "compare"},
    "corpora": {"conf", "launchers", "corpora"},
    "measure": {"conf", "launchers", "parsers", "metrics", "compare", "estimate", "measure"},
    "estimate": {"conf", "parsers", "metrics", "estimate"},
}
OURS = {*MAY_IMPORT, "launch", "tensorprimat"}
HEAVY: tuple[str, ...] = ("torch", "jinja2", "resvg_py", "scipy", "numpy", "hydra", "megatron")
HEAVY += ("tokenizers", "transformers", "tiktoken", "sentencepiece", "pyarrow")


def sources() -> Iterator[Path]:
    yield ROOT / "launch.py"
    for folder in (*MAY_IMPORT, "tensorprimat"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Return packages, by one and by two parts of their names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {".".join(name.split(".")[:parts]) for name in names for parts in (1, 2)}


@pytest.mark.parametrize(("folder", "may"), MAY_IMPORT.items())
def test_no_arrow_returns(folder: str, may: set[str]) -> None:
    paths = (path for path in (ROOT / folder).rglob("*.py") if path.name != "__main__.py")  # which nothing imports
    assert {p.relative_to(ROOT): bad for p in paths if (bad := imported(p) & OURS - may)} == {}


def test_a_comparison_knows_nothing_of_its_report() -> None:
    judging = {path for path in (ROOT / "compare").glob("*.py") if path.name != "cli.py"}
    assert [path for path in judging if "compare.report" in imported(path)] == []


def test_programs_inside_the_ranks_import_nothing_of_ours_and_shadow_nothing() -> None:
    ranks = sorted((ROOT / "launchers" / "ranks").rglob("*.py"))
    assert ranks
    assert {p.name: bad for p in ranks if (bad := imported(p) & OURS)} == {}
    assert {p.stem for p in ranks} & {"torch", "megatron", "nemo", "primus", "numpy", "json"} == set()


def test_no_circle_of_imports() -> None:
    """Imports inside functions and those for types count."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sources()}
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    paths |= {path.stem: path for path in paths.values() if "ranks" in path.relative_to(ROOT).parts}
    imports: dict[Path, set[Path]] = {path: set() for path in paths.values()}
    for path in imports:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                names = [name if (name := f"{node.module}.{own}") in paths else f"{node.module}" for own in names]
            imports[path] |= {paths[name] for name in names if name in paths} - {path}
    TopologicalSorter(imports).prepare()  # CycleError names them


def test_functions_stay_small() -> None:
    long_functions = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (n := (node.end_lineno or 0) - node.lineno + 1) > 45:
                long_functions[f"{path.name}:{node.name}"] = n
    assert long_functions == {}


def test_a_docstring_begins_with_a_verb_or_says_what_the_thing_is() -> None:
    """By its first words: no subordinate clause, and of a class no list of fields."""
    wrong = []
    for path in [*sources(), *(p for name in ("tests", "benchmarks", "docs") for p in (ROOT / name).rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                constants = [
                    n.value for n in node.body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
                ]
                texts = [text for n in constants if isinstance(text := n.value, str)]
                fields = r"|\w+(, \w+)*:" if isinstance(node, ast.ClassDef) else ""
                wrong += [(path.name, text) for text in texts if re.match(r"(What|Of|Whether|Those)\b" + fields, text)]
    assert wrong == []


def test_importing_is_light() -> None:
    code = "import sys, launchers, parsers, metrics, compare, corpora.cli\n"
    code += "print([m for m in sys.argv[1:] if m in sys.modules])"
    command = [sys.executable, "-c", code, *HEAVY]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)  # bytecode is there from now on
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
    used_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before  # of the processor, however busy it is
    assert used_s < 3, "0.3 s on an idle machine; this bound only catches a heavy import"


def test_shell_scripts_are_strict_bash() -> None:
    for path in [*ROOT.glob("shell/*.sh"), ROOT / ".ci" / "run"]:
        text = path.read_text(encoding="utf-8")
        assert text.startswith("#!/usr/bin/env bash\n")
        assert "set -euo pipefail" in text
        subprocess.run(["bash", "-n", str(path)], check=True)


def test_the_environment_script_prints_key_value_lines() -> None:
    done = subprocess.run(["bash", str(ROOT / "shell" / "environment.sh")], check=True, capture_output=True, text=True)
    assert all("=" in line for line in done.stdout.splitlines())
    assert "kernel=" in done.stdout


OWN: tuple[str, ...] = ("conf/vendors/", "launchers/frameworks/", "parsers/dialects/")
OWN += tuple(f"launchers/ranks/{stack}_" for stack in ("bridge", "nemo", "primus", "torchtitan"))
MAY_NAME = {
    "launchers/nvidia.py": {"nvidia"},  # the base of two frameworks: whose devices they run on
    "launchers/primus_recipes.py": {"primus", "megatron"},  # a part of the module of Primus
    "launchers/primus_torchtitan.py": {"torchtitan"},  # another, which trains by that stack
    # CONTRIBUTING.md, rule 2: where ours cannot be imported
    "launchers/ranks/rehearsal/tprimat_probe.py": {"nemo", "primus"},
    "launchers/ranks/rehearsal/tprimat_objects.py": {"nemo", "primus", "megatron", "deepspeed", "torchtitan"},
    "shell/environment.sh": {"nvidia"},
    "shell/power_tools": {"nvidia", "amd"},
    **{f"shell/{name}": {"primus"} for name in ("primus_train.sh", "bundle_primus.sh")},
    "shell/run_primus.sh": {"primus", "amd"},
}


def test_only_the_module_of_a_vendor_or_a_framework_knows_its_name() -> None:
    """So none elsewhere can branch on it: what depends on it is an attribute of the object, or data in conf/."""
    modules = [*(ROOT / "conf" / "vendors").glob("[!_]*.py"), *(ROOT / "launchers" / "frameworks").glob("[!_]*.py")]
    names = {path.stem for path in modules} - {"cpu"}  # torch's device is called so, too
    assert {"nvidia", "amd", "nemo", "megatron_bridge", "primus", "megatron"} <= names
    named: dict[str, set[str]] = {}
    for path in sources():
        where = path.relative_to(ROOT).as_posix()
        if not where.startswith(OWN):
            constants = (n.value for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Constant))
            if found := {value for value in constants if isinstance(value, str) and value in names}:
                named[where] = found
    for path in (ROOT / "shell").iterdir():
        code = re.sub(r"^#.*", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        if found := names & {*re.findall(r"\w+", code)}:
            named[f"shell/{path.name}"] = found
    assert named == MAY_NAME
