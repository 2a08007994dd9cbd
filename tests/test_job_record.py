"""The logs of a job's nodes and starts are one run: no step is lost, none counts twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import parsers
from launchers import power
from tensorprimat.job_record import _ending, _going_on, _join_power, _joined, _with_faults


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


def test_power_of_several_nodes_is_one_file_by_the_clock_of_the_one_with_the_steps(tmp_path: Path) -> None:
    """Each node's clock began at another time: node 0's 900 s later than node 1's, which prints the steps."""
    logs = start(tmp_path, 0, 4)
    for number, (log, since) in enumerate(zip(logs, (1_789_000_900, 1_789_000_000), strict=True)):
        rows = [
            {"monotonic_s": 1_789_001_000 + second - since, "time_unix_s": 1_789_001_000 + second, "device": gpu}
            for second in range(5)
            for gpu in (0, 1)
        ]
        cut = '{"monotonic_s": 12'  # by the end of the job
        lines = [json.dumps({**row, "power_w": 300.0 + 100 * number + row["device"]}) for row in rows]
        (log.parent / power.FILE).write_text("\n".join([*lines, cut]), encoding="utf-8")
    _join_power(logs, tmp_path / power.FILE)
    joined = [json.loads(line) for line in (tmp_path / power.FILE).read_text("utf-8").splitlines()]
    assert {one["device"]: one["power_w"] for one in joined} == {
        "node0/0": 300.0,
        "node0/1": 301.0,
        "node1/0": 400.0,
        "node1/1": 401.0,
    }
    for one in joined:
        assert one["monotonic_s"] == pytest.approx(one["time_unix_s"] - 1_789_000_000), "the clock of node 1"
    (logs[0].parent / power.FILE).unlink()
    (tmp_path / power.FILE).unlink()
    _join_power(logs, tmp_path / power.FILE)
    assert not (tmp_path / power.FILE).exists(), "half of the power is none"


SIGTERM = '[tprimat] facts {"exit_code": 143, "signal": "SIGTERM"}'
KILLED = (
    "E1127 13:20:40.1 13512 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: -9) local_rank: 0"
)
PEER = "[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:9099."
FAILED = '[tprimat] facts {"exit_code": 1}'
DIED = KILLED.replace("-9", "1")


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ([PEER, SIGTERM], [KILLED, FAILED], "local rank 0 died by SIGKILL"),
        ([PEER, DIED, FAILED], [KILLED, FAILED], "local rank 0 died by SIGKILL"),
        (['[tprimat] facts {"exit_code": 137}'], [PEER, SIGTERM], "ended by SIGKILL from outside"),
    ],
)
def test_the_node_that_ended_by_itself_says_why(first: list[str], second: list[str], says: str, tmp_path: Path) -> None:
    nodes = []
    for number, lines in enumerate((first, second)):
        log = tmp_path / f"{number}.log"
        log.write_text("\n".join(lines) + "\n", encoding="utf-8")
        nodes.append(parsers.parse(log))
    outcome = parsers.judge(_ending(nodes), _with_faults(nodes[1], nodes))
    assert says in (outcome.cause or ""), outcome
