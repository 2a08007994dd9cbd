"""The worked example of parsers/README.md, tried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parsers import DIALECTS, dialects, parse_all

README = (Path(__file__).parents[2] / "parsers" / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_of_a_new_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny_dialect.py").write_text(block("python"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(dialects.DIALECTS, "tiny", "tiny_dialect")  # type: ignore[arg-type]
    (run,) = parse_all(["noise", *block("text").splitlines(), "0: [tiny] upd 2: loss=5.00 (405 ms)"])
    assert (run.dialect, run.train_iters) == ("tiny", 40)
    assert [(s.iteration, s.loss, s.step_time_s) for s in run.steps] == [(1, 5.25, 0.812), (2, 5.0, 0.405)]
    assert run.effective["global_batch_size"].value == 64


def test_every_dialect_has_its_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", README.split("## Dialects")[1], re.MULTILINE)
    assert sorted(rows) == sorted(DIALECTS)
