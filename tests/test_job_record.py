"""The logs of a job's nodes and starts are one run: no step is lost, none counts twice."""

from __future__ import annotations

import json
from pathlib import Path

from tensorprimat.job_record import _going_on, _joined


def start(folder: Path, first: int, last: int, resumed: int = 0) -> list[Path]:
    """Write the logs of two nodes of a start that took these steps; node 0 says where it went on."""
    marks = [f'[tprimat] resumed {{"iteration": {resumed}}}'] if resumed else ["[tprimat] effective {}"]
    values = [{"step": step, "loss": 5.0 - step, "end_monotonic_s": step * 0.5} for step in range(first, last)]
    nodes = [marks, [f"[tprimat] step {json.dumps(one)}" for one in values]]
    logs = [folder / f"node{number}" / "train.log" for number in range(2)]
    for log, lines in zip(logs, nodes, strict=True):
        log.parent.mkdir(parents=True)
        log.write_text("\n".join([*lines, '[tprimat] facts {"exit_code": 1}']), encoding="utf-8")
    return logs


def test_starts_that_went_on_are_one_run(tmp_path: Path) -> None:
    import parsers

    starts = [
        start(tmp_path / "0", 0, 3),  # another attempt began anew after it
        start(tmp_path / "1", 0, 5),
        start(tmp_path / "2", 0, 0),  # died before its first step
        start(tmp_path / "3", 4, 8, resumed=4),
    ]
    assert _going_on(starts) == starts[1:]
    joined = b"".join(_joined(_going_on(starts))).splitlines(keepends=True)
    (run,) = parsers.parse_all(joined)
    assert [step.step for step in run.steps] == [*range(8)]
    assert [restart.steps for restart in run.restarts] == [4]
