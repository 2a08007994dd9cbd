"""Every refusal of tests/refusals.yaml: exit code 2, a message that says what and what would work, and nothing done."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from tensorprimat.launch import main

GROUPS = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text(encoding="utf-8"))
ROWS = [(group, row) for group in GROUPS for row in group["rows"]]


@pytest.mark.parametrize(("group", "row"), ROWS, ids=[f"{group['group']}: {row['give']}" for group, row in ROWS])
def test_it_is_refused(
    group: dict[str, str], row: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [f"runs_dir={tmp_path}", *([] if group.get("started") else ["dry_run=true"]), *shlex.split(group["with"])]
    assert main([*common, *shlex.split(row["give"])]) == 2
    message = capsys.readouterr().err
    assert [part for part in row["says"] if part not in message] == []
    assert "Traceback" not in message
    assert list(tmp_path.iterdir()) == []
