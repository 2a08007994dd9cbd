"""CONTRIBUTING's "Add something", tried: the model of docs/guide/add.md, and a made-up vendor, GPU, framework,
dialect, setting and metric.

Each is added to a copy of the tree by exactly the files and lines that it names, and run from end to end by the
commands that a user types."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.launch.test_models_add import QWEN

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "tests" / "parsers" / "fixtures"
PRODUCT = ("conf", "launchers", "parsers", "metrics", "compare", "estimate", "measure", "shell", "tensorprimat")
FACTS = "tests/conf/test_facts.py"
CHECKS = ("tests/conf/test_parameters.py", "tests/conf/test_shapes.py", "tests/metrics/test_flops.py", FACTS)
MODEL = "conf/model/qwen25_1p5b.yaml"
SHORT: tuple[str, ...] = (
    "model=llama_tiny",
    "precision=fp32",
    "training.train_iters=6",
    "training.global_batch_size=4",
)
SHORT = (*SHORT, "training.seq_length=64", "optimizer.lr_warmup_iters=2", "layout=data_parallel")

VENDOR = '''\
"""Acme: acme-smi."""

from __future__ import annotations

from conf.vendors import Devices, Vendor, output


class Acme(Vendor):
    """See conf.vendors.Vendor."""

    name = "acme"
    order = 3
    tool = "acme-smi"
    visibility = ("ACME_VISIBLE_DEVICES",)
    device_prefixes = ("acme",)

    def devices(self) -> Devices | None:
        """Read one name a line."""
        names = tuple(output(self.tool, "list").splitlines())
        return Devices(self.name, names, 16 * 2**30, "1.0") if names else None


VENDOR = Acme()
'''
PLATFORM = """\
# @package _global_
defaults:
  - override /framework: auto
  - override /hardware: acme_one
  - override /model: llama_tiny

platform:
  name: acme
  vendor: acme
  frameworks: [megatron]
"""
POWER_TOOL = "acme-smi | 1048576 | unit | watts | used | - | - | - | acme-smi power\n"
ACME_SMI = """\
#!/bin/sh
case $1 in
list) echo 'Acme One' ;;
power) printf 'unit,watts,used\\n0,250.5,1024\\n' ;;
esac
"""
FRAMEWORK = '''\
"""framework=made_stack: a made-up stack, started by launchers/ranks/made_stack_ranks.py."""

from __future__ import annotations

import json
from pathlib import Path

from conf.resolve import Experiment
from conf.vocabulary import program_settings
from launchers.frameworks import Framework
from launchers.plan import Host, Plan

PROGRAM = Path(__file__).parents[1] / "ranks" / "made_stack_ranks.py"


class MadeStack(Framework):
    """See launchers.frameworks.Framework."""

    name = "made_stack"
    takes_options = True

    def render(self, e: Experiment, host: Host) -> Plan:
        """See Framework."""
        settings = {**program_settings(e), "options": dict(e.framework.options)}
        return Plan(argv=(host.python, str(PROGRAM)), files={"made_stack.json": json.dumps(settings)}, env={})


FRAMEWORK = MadeStack()
'''
FRAMEWORK_YAML = """\
name: made_stack
install: it is in the standard library
own_models: true
"""
PROGRAM = '''\
"""Print what a training of six steps would, in marks of ours."""

import json

settings = json.load(open("made_stack.json"))
speed = settings.pop("options").get("speed", 1)
print("[tprimat] effective", json.dumps(settings), flush=True)
for step in range(settings["train_iters"]):
    values = {"step": step, "loss": 7 - step / 10, "lr_used": 1e-4, "end_monotonic_s": 50 + 0.1 * step / speed}
    print("[tprimat] step", json.dumps(values), flush=True)
'''
STACK = {
    "conf/framework/made_stack.yaml": FRAMEWORK_YAML,
    "launchers/frameworks/made_stack.py": FRAMEWORK,
    "launchers/ranks/made_stack_ranks.py": PROGRAM,
}
SETTING = """\
look_ahead:
  {kind: optimizer, unit: steps, type: int, at_least: 1, request: optimizer.look_ahead,
   write: {nemo: optim.config.look_ahead}}
"""
METRIC = """\
def _steps_per_minute(basis: Basis) -> Quantity:
    mean = basis.times.mean
    return Quantity.of(60 / mean if mean else None, "steps/min", basis.times.clock)


"""


class Tree:
    """A copy of the product, and what is run in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in (*PRODUCT, "tests/conf", "tests/metrics"):
            shutil.copytree(ROOT / name, root / name)  # with what Python has compiled of it
        for path in (*ROOT.glob("*.py"), ROOT / "pyproject.toml", *ROOT.glob("tests/*.py")):
            shutil.copy(path, root / path.relative_to(ROOT))
        (root / "bin").mkdir()
        self.env = {**os.environ, "PATH": f"{root / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": "", "COLUMNS": "160"}
        self.env["PYTHONDONTWRITEBYTECODE"] = ""  # each command would compile all of it again

    def add(self, files: Mapping[str, str]) -> None:
        """New files only: none that is there may be written over."""
        for name, text in files.items():
            assert not (self.root / name).exists(), name
            (self.root / name).write_text(text, encoding="utf-8")

    def insert(self, name: str, before: str, text: str) -> None:
        """Put `text` before the only place where `before` stands."""
        path = self.root / name
        old = path.read_text(encoding="utf-8")
        assert old.count(before) == 1, before
        path.write_text(old.replace(before, text + before), encoding="utf-8")

    def tool(self, name: str, text: str) -> None:
        """A program on PATH."""
        (self.root / "bin" / name).write_text(text, encoding="utf-8")
        (self.root / "bin" / name).chmod(0o755)

    def run(self, *argv: str, codes: tuple[int, ...] = (0,)) -> str:
        """Return what `python ARGV…` prints; its exit code is one of `codes`."""
        command = [sys.executable, *argv]
        done = subprocess.run(
            command, cwd=self.root, env=self.env, capture_output=True, text=True, timeout=540, check=False
        )
        assert done.returncode in codes, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def record(self, printed: str) -> dict[str, Any]:
        """Return the record of the one run that launch.py --json printed."""
        (row,) = json.loads(printed)
        assert row["status"] == "completed", row
        record: dict[str, Any] = json.loads((self.root / row["run"] / "run.json").read_text(encoding="utf-8"))
        return record


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_model(tree: Tree) -> None:
    """The worked example of the guide works as written."""
    text = (ROOT / "docs" / "guide" / "add.md").read_text(encoding="utf-8")
    (added,) = re.findall(r"^tprimat (models add .*)$", text, re.MULTILINE)
    (tree.root / MODEL).unlink(missing_ok=True)  # who follows the guide has it already
    (tree.root / "Qwen2.5-1.5B").mkdir()
    (tree.root / "Qwen2.5-1.5B" / "config.json").write_text(json.dumps(QWEN), encoding="utf-8")
    tree.run("-m", "tensorprimat", *added.split())
    assert (tree.root / MODEL).is_file()
    published = '    "qwen25_1p5b": (1_543_714_304, "the guide"),\n'
    tree.insert("tests/conf/test_parameters.py", '    "qwen25_72b": (', published)
    tree.run("-m", "pytest", *CHECKS)
    (command,) = re.findall(r"^python (launch.py model=qwen25_1p5b .*)$", text, re.MULTILINE)
    assert "1,543,714,304 parameters" in tree.run(*command.split())


def gpu(name: str, vendor: str, device_name: str) -> str:
    """Return a file of conf/hardware."""
    facts = yaml.safe_load((ROOT / "conf" / "hardware" / "h100.yaml").read_text(encoding="utf-8"))
    facts |= {"name": name, "vendor": vendor, "device_names": [device_name], "source": "made up for a test"}
    return str(yaml.safe_dump(facts))


def test_a_vendor(tree: Tree) -> None:
    tree.add({"conf/vendors/acme.py": VENDOR, "conf/platform/acme.yaml": PLATFORM})
    tree.add({"conf/hardware/acme_one.yaml": gpu("acme_one", "acme", "Acme One")})
    with (tree.root / "shell" / "power_tools").open("a", encoding="utf-8") as tools:
        tools.write(POWER_TOOL)
    tree.tool("acme-smi", ACME_SMI)
    shown = tree.run("launch.py", "dry_run=true")
    assert "platform acme: 1 × Acme One found" in shown
    assert "hardware acme_one: Acme One is here" in shown
    record = tree.record(tree.run("launch.py", "--json", *SHORT))
    assert (record["platform"], record["vendor"], record["hardware"]) == ("acme", "acme", "acme_one")
    assert record["summary"]["mfu_percent"]["value"] > 0
    (power,) = record["power"]
    assert (power["gpus"], power["mean_power_w"]) == (1, pytest.approx(250.5))
    other = tree.record(tree.run("launch.py", "--json", "platform=cpu", *SHORT))
    assert (other["platform"], other["vendor"]) == ("cpu", None)
    compared = tree.run("-m", "compare", "runs", "vary=platform", codes=(0, 3))
    assert "acme" in compared
    assert "cpu" in compared


def test_a_gpu(tree: Tree) -> None:
    tree.add({"conf/hardware/made_one.yaml": gpu("made_one", "nvidia", "NVIDIA Made One")})
    tree.run("-m", "pytest", FACTS)
    tree.tool("nvidia-smi", "#!/bin/sh\nprintf 'NVIDIA Made One, 81559, 570.1\\n'\n")
    shown = tree.run("launch.py", "model=llama_tiny", "layout=data_parallel", "dry_run=true")
    assert "hardware made_one: NVIDIA Made One is here" in shown
    log = str(FIXTURES / "megatron_modern.log")
    tree.run("-m", "parsers", log, "--save", "hardware=made_one", "precision=bf16", "status=completed")
    (saved,) = (tree.root / "runs" / "imported").glob("*/run.json")
    assert json.loads(saved.read_text(encoding="utf-8"))["hardware"] == "made_one"
    assert "made_one" in tree.run("-m", "metrics", str(saved.parent), "--json", codes=(0, 3))


def test_a_framework(tree: Tree) -> None:
    tree.add(STACK)
    stack = ("platform=cpu", "framework=made_stack", *SHORT)
    on_gpu = tree.run(
        "launch.py", *stack, "platform=nvidia", "hardware=h100", "gpus_per_node=1", "dry_run=true", "--files"
    )
    assert re.search(r"CUDA_DEVICE_MAX_CONNECTIONS=8 .*made_stack_ranks.py", on_gpu)
    assert "CONTRIBUTING.md, Rehearsed" in tree.run("-m", "tensorprimat", "check", *stack, codes=(2,))
    slow = tree.record(tree.run("launch.py", "--json", *stack))
    assert (slow["framework"], slow["status"]) == ("made_stack", "completed")
    assert slow["environment"]["launcher_commit"] is not None
    assert slow["effective"]["train_iters"]["value"] == 6
    assert slow["summary"]["step_time_mean_s"]["value"] == pytest.approx(0.1)
    cut = (*stack, "layout=tp2", "gpus_per_node=2", "framework.options.speed=2")
    fast = tree.record(tree.run("launch.py", "--json", *cut))
    assert fast["summary"]["step_time_mean_s"]["value"] == pytest.approx(0.05)
    compared = tree.run("-m", "compare", "runs", codes=(0, 3))
    assert all(text in compared for text in ("TP2", "0.5"))


def test_a_dialect(tree: Tree) -> None:
    readme = (ROOT / "parsers" / "README.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"```(python|text)\n(.*?)```", readme, re.DOTALL))
    tree.add({"parsers/dialects/tiny.py": blocks["python"], "tiny.log": blocks["text"]})
    tree.insert("parsers/dialects/__init__.py", '    "mllog",\n', '    "tiny",\n')
    text = tree.run("-m", "parsers", "tiny.log", "--json")
    assert '"tiny"' in text
    assert "5.25" in text
    tree.run("-m", "parsers", "tiny.log", "--save", "hardware=h100", "precision=bf16")
    assert "step_time_mean_s" in tree.run("-m", "metrics", "runs/imported", "--json", codes=(0, 3))


def test_a_setting(tree: Tree) -> None:
    tree.add(STACK)
    tree.insert("conf/vocabulary.yaml", "adam_eps:\n", SETTING)
    tree.insert("conf/schema.py", "    adam_eps: float\n", "    look_ahead: int | None\n")
    tree.insert("conf/optimizer/adam.yaml", "adam_eps:", "look_ahead: null\n")
    for value in (2, 3):
        stack = ("platform=cpu", "framework=made_stack", *SHORT, f"optimizer.look_ahead={value}")
        record = tree.record(tree.run("launch.py", "--json", *stack))
        assert record["effective"]["look_ahead"]["value"] == value
    assert "look_ahead" in tree.run("-m", "compare", "runs", codes=(3,))
    nemo = ("model=llama", "platform=nvidia", "framework=nemo", "optimizer.look_ahead=2", "dry_run=true")
    assert "optim.config.look_ahead" in tree.run("launch.py", *nemo, "--json")


def test_a_metric(tree: Tree) -> None:
    tree.insert("metrics/summary.py", "METRICS: Mapping[str, Metric] = {\n", METRIC)
    entry = '    "steps_per_minute": _steps_per_minute,\n'
    tree.insert("metrics/summary.py", '    "tokens_per_s": _tokens_per_s,\n', entry)
    line = '{"metric": "steps_per_minute", "title": "steps a minute", "part": "speed", "table": true}\n'
    tree.insert("compare/figures.jsonl", '{"metric": "step_time_median_s"', line)
    for name in ("megatron_modern", "engine"):
        log = str(FIXTURES / f"{name}.log")
        tree.run("-m", "parsers", log, "--save", "status=completed")
    saved = [str(path.parent) for path in sorted((tree.root / "runs" / "imported").glob("*/run.json"))]
    assert len(saved) == 2
    figures = tree.run("-m", "metrics", saved[0], "--json", codes=(0, 3))
    assert '"steps_per_minute"' in figures
    compared = tree.run("-m", "compare", *saved, "vary=framework", codes=(0, 3))
    assert "steps a minute" in compared
