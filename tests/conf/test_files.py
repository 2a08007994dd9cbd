"""Files that a user adds to conf/: what is wrong with one is said in one problem that names it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conf import compose, load, load_experiment
from conf.compose import CONF, file_problems
from conf.errors import ConfigError
from launchers import frameworks

MARK = "# @package _global_\n"


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """add(path, text): a file of a copy of conf/, which is the one that is read from now on."""
    shutil.copytree(CONF, tmp_path / "conf", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for module in (compose, load):
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
        assert refused(f"{group}={name}").startswith(f"conf/{group}/{name}.yaml: its name: is another than the file's")
    add("model/broken.yaml", MARK + "model: {name: [\n")
    assert refused("model=broken").startswith("conf/model/broken.yaml: is no YAML")
    for name in ("deep", "other", "broken"):
        with pytest.raises(ConfigError, match=f"conf/model/{name}.yaml"):
            load.model_named(name)
    add("model/short.yaml", MARK + "model:\n  name: short\n")
    with pytest.raises(ConfigError, match=r"conf/model/short\.yaml\.num_layers: missing"):
        load.model_named("short")


def test_half_a_framework_names_the_other_half(
    add: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yaml = "name: brook\nown_models: true\n"
    assert "conf/framework/brook.yaml" in refused("framework=brook")
    add("framework/brook.yaml", yaml)
    assert refused("framework=brook").startswith("framework.install: missing")
    with pytest.raises(ConfigError, match=r"launchers/frameworks/brook\.py: is missing"):
        frameworks.framework_of("brook")
    (tmp_path / "brook.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(frameworks, "__path__", [*frameworks.__path__, str(tmp_path)])
    monkeypatch.setattr(frameworks, "frameworks", lambda: ("brook",))
    with pytest.raises(ConfigError, match=r"launchers/frameworks/brook\.py: has no FRAMEWORK"):
        frameworks.framework_of("brook")
