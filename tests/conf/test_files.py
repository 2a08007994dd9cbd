"""Files that a user adds to conf/: what is wrong with one is said in one problem that names it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conf import compose, load, load_experiment, vendors
from conf.compose import CONF, file_problems
from conf.errors import ConfigError
from launchers import frameworks
from metrics import terms
from tensorprimat.cli import main

MARK = "# @package _global_\n"


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """add(path, text): a file of a copy of conf/, which is the one that is read from now on."""
    shutil.copytree(CONF, tmp_path / "conf", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for module in (compose, terms):
        monkeypatch.setattr(module, "CONF", tmp_path / "conf")
    file_problems.cache_clear()

    def write(path: str, text: str) -> None:
        (tmp_path / "conf" / path).write_text(text, encoding="utf-8")

    return write


def test_files_of_ours_are_fine() -> None:
    paths = [path for path in CONF.glob("*/*.yaml") if path.parent.name not in ("tables", "carbon")]
    assert paths
    assert [problem for path in paths for problem in file_problems(path.parent.name, path.stem)] == []


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_experiment("platform=cpu", *overrides)
    (problem,) = error.value.problems
    return str(problem)


def test_what_is_wrong_with_a_file_is_one_problem(add: Callable[[str, str], None]) -> None:
    tiny = (CONF / "model" / "llama_tiny.yaml").read_text(encoding="utf-8")
    mine = tiny.replace("name: llama_tiny", "name: mine")
    cpu = (CONF / "hardware" / "cpu.yaml").read_text(encoding="utf-8")
    platform = (CONF / "platform" / "cpu.yaml").read_text(encoding="utf-8")
    add("model/mine.yaml", mine)
    assert load_experiment("platform=cpu", "model=mine").model.name == "mine"
    add("model/deep.yaml", mine.replace(MARK, ""))
    add("model/flat.yaml", "name: flat\n")
    add("platform/deep.yaml", platform.replace(MARK, ""))
    add("experiment/deep.yaml", "nodes: 1\n")
    for group, name in (("model", "deep"), ("model", "flat"), ("platform", "deep"), ("experiment", "deep")):
        message = refused(f"{group}={name}")
        assert message.startswith(f"conf/{group}/{name}.yaml: its first line is missing"), message
        assert "`# @package _global_`" in message
    add("model/other.yaml", tiny)
    add("hardware/mine.yaml", cpu)
    for group, name in (("model", "other"), ("hardware", "mine")):
        assert refused(f"{group}={name}").startswith(
            f"conf/{group}/{name}.yaml: `name:` differs from the name of the file"
        )
    add("model/broken.yaml", MARK + "model: {name: [\n")
    assert refused("model=broken").startswith("conf/model/broken.yaml: is not valid YAML")
    for name in ("deep", "other", "broken"):
        with pytest.raises(ConfigError, match=f"conf/model/{name}.yaml"):
            load.model_named(name)
    add("model/short.yaml", MARK + "model:\n  name: short\n")
    with pytest.raises(ConfigError, match=r"conf/model/short\.yaml\.num_layers: missing"):
        load.model_named("short")


@pytest.mark.parametrize(
    ("path", "text", "line", "says"),
    [
        ("hardware/g1.yaml", "", "gpus", "hardware g1.vendor: missing"),
        ("hardware/g1.yaml", "", "launch platform=amd hardware=h100", "hardware g1.vendor: missing"),
        ("hardware/g1.yaml", "\x00", "gpus", "conf/hardware/g1.yaml: is not valid YAML"),
        ("hardware/g1.yaml", "- 1", "gpus", "conf/hardware/g1.yaml: is not a mapping"),
        ("hardware/g1.yaml", "name: g2", "gpus", "`name:` differs from the name of the file"),
        ("hardware/g1.yaml", "name: g1\ndevice_names: 3\npeak_dense_tflops: 3", "gpus", "device_names: wrong type"),
        ("framework/f1.yaml", "", "frameworks", "conf/framework/f1.yaml.name: missing"),
        ("framework/f1.yaml", "name: f1\naliases: 3", "frameworks", "conf/framework/f1.yaml.aliases: wrong type"),
        ("framework/f1.yaml", "name: f1\nname: f1", "launch framework=f1 platform=cpu", "duplicate key"),
        ("platform/pp.yaml", "", "launch platform=pp", "platform.vendor: missing"),
        ("platform/pp.yaml", "# @package _global_\nplatform: pp", "launch platform=pp", "platform: wrong type"),
        ("hardware/g1.yaml", "a: [", "metrics check hardware=g1 model=llama tflops_per_gpu=1", "g1.yaml: is not valid"),
        ("platform/pp.yaml", "", "frameworks", "conf/platform/pp.yaml.vendor: missing"),
        ("platform/pp.yaml", "# @package _global_\ndefaults: 3", "launch platform=pp", "its defaults: are not a list"),
        ("platform/pp.yaml", "# @package _global_\ndefaults: [[]]", "launch platform=pp", "config: "),
        ("carbon/countries.yaml", "a: [", "metrics energy carbon=FRA", "conf/carbon/countries.yaml: is not valid YAML"),
        ("carbon/countries.yaml", "a: 1", "metrics energy carbon=FRA", "conf/carbon/countries.yaml.source: missing"),
    ],
)
def test_a_file_that_is_none_is_named_by_every_command(
    path: str, text: str, line: str, says: str, add: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    add(path, text)
    assert main(line.split()) == 2
    assert says in capsys.readouterr().err


def test_a_vendor_without_its_object_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendors, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(vendors, "__path__", [str(tmp_path)])
    named = "from conf.vendors import Vendor\nVENDOR = Vendor()"
    wrong = {"": "has no VENDOR", named: "`name` differs", "\nimport nope": "nope", "def (": "SyntaxError"}
    for n, (text, says) in enumerate(wrong.items()):
        (tmp_path / f"v{n}.py").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"conf/vendors/v{n}\.py(?s:.)*{says}"):
            vendors.vendors.__wrapped__()
        (tmp_path / f"v{n}.py").unlink()


def test_half_a_framework_names_the_other_half(
    add: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yaml = "name: brook\nown_models: true\n"
    assert "conf/framework/brook.yaml" in refused("framework=brook")
    add("framework/brook.yaml", yaml)
    assert refused("framework=brook").startswith("framework.install: missing")
    with pytest.raises(ConfigError, match=r"launchers/frameworks/brook\.py: cannot be imported"):
        frameworks.framework_of("brook")
    (tmp_path / "brook.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(frameworks, "__path__", [*frameworks.__path__, str(tmp_path)])
    with pytest.raises(ConfigError, match=r"launchers/frameworks/brook\.py: has no FRAMEWORK"):
        frameworks.framework_of("brook")
