"""The one table of settings: every row is checked when it is read, and no column states one key twice."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from pathlib import Path

import pytest

from conf import vocabulary as table
from conf.errors import ConfigError
from conf.vocabulary import printed, vocabulary

RANKS = Path(__file__).parents[2] / "launchers" / "ranks"


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("lr: {kind: optimizer, unit: '-', abov: 0}", r"lr: .*\n.*Object contains unknown field `abov`"),
        ("lr: {kind: optimizer}", r"lr: .*\n.*Object missing required field `unit`"),
        ("lr: {kind: optimizer, unit: '-', print: {nemo: 3}}", r"lr: .*\n.*\$\.print"),
        ("lr: optimizer", r"lr: "),
        ("lr: {kind: optimizer, unit: '-', type: int, follows: [nothere], write: {zzz: y}}", r"lr: .*\n.*nothere, zzz"),
    ],
)
def test_a_wrong_row_is_named(row: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vocabulary.yaml").write_text(row, encoding="utf-8")
    monkeypatch.setattr(table, "TABLE", tmp_path / "vocabulary.yaml")
    with pytest.raises(ConfigError, match=what):
        vocabulary.__wrapped__()


def test_one_printed_key_is_one_setting() -> None:
    columns = {framework for setting in vocabulary().values() for framework in setting.print}
    assert {"nemo", "torchtitan", "maxtext", "mllog"} <= columns
    for framework in columns:
        keys = [key for setting in vocabulary().values() for key in setting.keys(framework)]
        assert sorted(printed(framework)) == sorted(keys)
    assert printed("torchtitan")["optimizer.eps"].name == "adam_eps"
    assert printed("unheard_of") == {}


def test_the_ranks_read_built_objects_by_the_same_rows() -> None:
    """UPDATE_GOLDEN=1 writes the table."""
    rows = [row for row in vocabulary().values() if row.built]
    built = {row.name: [row.built] if isinstance(row.built, str) else row.built for row in rows}
    requested = {row.name: row.kind for row in vocabulary().values() if row.request and row.dump}
    table = {"requested": requested, "built": built, "only_if": {row.name: row.only_if for row in rows if row.only_if}}
    path = RANKS / "rehearsal" / "tprimat_built.json"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == table
    sys.path.append(str(path.parent))
    readers = importlib.import_module("tprimat_settings").READERS
    assert {match[1] for places in built.values() for at in places if (match := re.match(r"(\w+)\(", at))} == {*readers}


def test_a_setting_stands_in_five_places_at_most() -> None:
    """Its type and its value in conf/, its row here and that for the ranks, and the programs that build with it, which
    are one place. What others run with it (conf/tables, conf/recipes, the script of a page) and the forms of their logs
    are no place of ours."""
    root = Path(__file__).parents[2]
    folders = (
        "conf",
        "launchers",
        "parsers",
        "metrics",
        "compare",
        "estimate",
        "measure",
        "tensorprimat",
        "shell",
        "docs",
    )
    suffixes = (".py", ".yaml", ".json", ".md", ".sh")
    files = [path for folder in folders for path in (root / folder).rglob("*.*") if path.suffix in suffixes]
    texts = {
        path: path.read_text("utf-8")
        for path in (*files, *root.glob("*.md"))
        if not {"model", "tables", "recipes", "dialects", "mine.md"} & {*path.relative_to(root).parts}
    }
    for name in ("adam_eps", "adam_beta1", "clip_grad", "hidden_dropout", "lr_warmup_init"):
        places = {path for path, text in texts.items() if re.search(rf"\b{name}\b", text)}
        assert {"vocabulary.yaml", "tprimat_built.json"} <= {path.name for path in places}
        places = {path.parent if path.parent.name == "ranks" else path for path in places}
        assert len(places) <= 5, (name, places)
