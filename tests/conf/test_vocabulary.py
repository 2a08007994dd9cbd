"""The one table of settings: every row is checked when it is read, and no column states one key twice."""

from __future__ import annotations

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
