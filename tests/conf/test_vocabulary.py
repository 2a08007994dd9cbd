"""The one table of settings: every row is checked when it is read, and no column states one key twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conf import vocabulary as table
from conf.vocabulary import printed, vocabulary


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("lr: {kind: optimizer, unit: '-', abov: 0}", r"lr: Object contains unknown field `abov`"),
        ("lr: {kind: optimizer}", r"lr: Object missing required field `unit`"),
        ("lr: {kind: optimizer, unit: '-', print: {nemo: 3}}", r"lr: .*\$\.print"),
        ("lr: optimizer", r"lr: "),
    ],
)
def test_a_wrong_row_is_named(row: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vocabulary.yaml").write_text(row, encoding="utf-8")
    monkeypatch.setattr(table, "TABLE", tmp_path / "vocabulary.yaml")
    with pytest.raises(ValueError, match=what):
        vocabulary.__wrapped__()


def test_one_printed_key_is_one_setting() -> None:
    columns = {framework for setting in vocabulary().values() for framework in setting.print}
    assert {"nemo", "torchtitan", "maxtext", "mllog"} <= columns
    for framework in columns:
        keys = [key for setting in vocabulary().values() for key in setting.keys(framework)]
        assert sorted(printed(framework)) == sorted(keys)
    assert printed("torchtitan")["optimizer.eps"].name == "adam_eps"
    assert printed("unheard_of") == {}


@pytest.mark.parametrize("name", ["adam_eps", "adam_beta1", "clip_grad", "hidden_dropout", "qk_layernorm"])
def test_a_setting_stands_in_five_places_at_most(name: str) -> None:
    """Its type in conf/, its value in a file of conf/, its row here, where the engine builds with it, and where built
    objects are read. An example of `accept.NAME=` is none."""
    root = Path(__file__).parents[2]
    folders = ("conf", "launchers", "parsers", "metrics", "compare", "estimate", "tensorprimat")
    files = {path for folder in folders for suffix in ("py", "yaml") for path in (root / folder).rglob(f"*.{suffix}")}
    values = {path for path in files if path.parent == root / "conf" / "model"}
    word = re.compile(rf"(?<!accept\.)\b{name}\b")
    places = {path.name for path in files - values if word.search(path.read_text(encoding="utf-8"))}
    assert {"vocabulary.yaml", "tprimat_settings.py"} <= places
    assert len(places) <= 5, places
