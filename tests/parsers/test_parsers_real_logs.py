"""Real logs with hand-checked expectations, where the folder that holds them exists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parsers import Parsed, Step, parse

LOGS = Path("/work/shared/logs/megatron")
EXPECTED = sorted(LOGS.glob("*.expected.json"))
CANONICAL = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "dp": "data_parallel_size",
    "num_gpus": "world_size",
    "mbs": "micro_batch_size",
    "gbs": "global_batch_size",
    "precision": "params_dtype",
}
# Said in the lines, kept nowhere in a Step: the total is a fact of the run, num_zeros a curiosity.
NOT_IN_A_STEP = ("total_iterations", "num_zeros")

pytestmark = pytest.mark.skipif(not EXPECTED, reason=f"{LOGS} is not here")


@pytest.fixture(params=EXPECTED, ids=lambda path: path.name.removesuffix(".expected.json"))
def case(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Parsed]:
    expected = request.param
    return json.loads(expected.read_text()), parse(expected.with_name(expected.name.replace(".expected.json", ".log")))


def test_steps(case: tuple[dict[str, Any], Parsed]) -> None:
    expected, parsed = case
    assert parsed.dialect == "megatron"
    assert len(parsed.steps) == expected["steps"]
    _assert_step(expected["first"], parsed.steps[0])
    _assert_step(expected["last"], parsed.steps[-1])
    assert parsed.train_iters == expected["first"]["total_iterations"]
    assert parsed.steps[0].step == expected["first"]["iteration"] - 1


def test_settings(case: tuple[dict[str, Any], Parsed]) -> None:
    expected, parsed = case
    for short, value in expected["fields"].items():
        name = CANONICAL.get(short, short)
        known = parsed.effective.get(name) or parsed.arguments[name]
        assert known.value == (value.removeprefix("torch.") if isinstance(value, str) else value), short


def test_the_line_numbers_point_at_the_evidence(case: tuple[dict[str, Any], Parsed], request: Any) -> None:
    expected, parsed = case
    log = request.node.callspec.params["case"]
    lines = log.with_name(log.name.replace(".expected.json", ".log")).read_text(errors="replace").split("\n")
    assert expected["first_evidence"] in lines[parsed.steps[0].line - 1]
    for short, evidence in expected["fields_evidence"].items():
        name = CANONICAL.get(short, short)
        if name in parsed.effective and short != "precision":
            assert evidence in lines[parsed.effective[name].line - 1]


def test_what_a_real_log_says_of_its_end() -> None:
    from parsers import Ending, judge

    killed = judge(Ending(), parse(LOGS / "pier_resume_60010.log"))
    assert killed.status == "killed"
    assert "got signal: 15" in (killed.cause or "")
    cut = judge(Ending(), parse(LOGS / "gh200_elena2256087.log"))
    assert (cut.status, cut.cause) == ("unknown", None)
    assert cut.notes == ("the log ends at iteration 252 of 500",)


def _assert_step(expected: dict[str, Any], step: Step) -> None:
    for name, value in expected.items():
        if name not in NOT_IN_A_STEP:
            assert getattr(step, name) == pytest.approx(value, rel=1e-12), name
    silent = {"loss", "grad_norm", "tflops_per_gpu", "skipped", "nan", "memory_bytes"} - set(expected)
    assert all(getattr(step, name) is None for name in silent)
