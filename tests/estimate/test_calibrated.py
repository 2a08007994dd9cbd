"""Calibration on runs that are simulated: of a machine whose rates are known, with the noise that repeats have. And on
one of this CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from conf.errors import ConfigError
from estimate.calibrate import FEW_RUNS, REPEATS, calibrate
from estimate.cli import main
from estimate.fitted import FEW, Parameters, Value, read, shipped, write
from estimate.host import shipped_for
from estimate.jobs import Jobs
from estimate.of_record import without_release
from estimate.predict import predict
from estimate.step_time import step_time
from tests.drills import ROOT
from tests.estimate.test_step_time import job

GEMM = "gemm_efficiency.h100.bf16"
STACK = np.array("own-1.0")


def machine(faster: float) -> Parameters:
    """Return the parameters of a machine whose matrix products are `faster` by this factor."""
    known = shipped()
    value = msgspec.structs.replace(known.values[GEMM], value=known.values[GEMM].value * faster)
    return msgspec.structs.replace(known, values={**known.values, GEMM: value})


def runs() -> Jobs:
    """Return six runs of one model: matrix products, and what is sent between ranks, have other shares in each."""
    tp = np.array([1.0, 2.0, 4.0, 8.0, 8.0, 2.0])
    pp = np.array([8.0, 4.0, 2.0, 1.0, 4.0, 1.0])
    sizes = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "data_parallel_size": 128 / (tp * pp),
    }
    return replace(job(), stack=STACK, expert_tensor_parallel_size=tp, **sizes)


def unseen() -> Jobs:
    """Return a run of the same machine with another batch and length."""
    sizes: dict[str, Any] = {"tensor_model_parallel_size": 4.0, "pipeline_model_parallel_size": 4.0}
    sizes |= {"data_parallel_size": 8.0, "expert_tensor_parallel_size": 4.0}
    return job(stack="own-1.0", seq_length=8192.0, global_batch_size=512.0, **sizes)


def widths(known: Parameters) -> float:
    said = predict(unseen(), known)
    return float(np.log(said.high_95_s[0] / said.low_95_s[0]))


@pytest.mark.parametrize("share", [0.85, 1.15])
@pytest.mark.parametrize("columns", [{"fsdp": 1.0}, {"expert_model_parallel_size": 32.0}])
def test_a_run_that_waits_for_the_network_teaches_as_much_as_any(columns: dict[str, Any], share: float) -> None:
    """Its exchange takes most of it, which is as fast in slow software, but not on a slow machine."""
    model = "llama31_8b" if "fsdp" in columns else "qwen3_30b_a3b"
    one = job(model, stack="own-1.0", nic_bandwidth=12.5e9, overlapped_experts=0.0, **columns)
    parts = step_time(one, shipped())
    assert parts.data_parallel + parts.expert_parallel > 0.4 * parts.total
    before = predict(one).step_time_s
    learned = calibrate(shipped(), one, share * before).parameters
    assert predict(one, learned).step_time_s / before == pytest.approx([share], rel=0.05)


@pytest.mark.parametrize("faster", [0.85, 1.15])
def test_more_runs_find_what_the_machine_is_and_say_it_with_less_doubt(faster: float) -> None:
    true, jobs = machine(faster), runs()
    noise = np.exp(np.random.default_rng(11).normal(0, REPEATS / 3, jobs.count))
    times = step_time(jobs, true).total * noise
    expected = step_time(unseen(), true).total[0]
    before = abs(predict(unseen(), shipped()).step_time_s[0] / expected - 1)
    learned = {}
    for count in (1, 3, 6):
        found = calibrate(shipped(), jobs.take(slice(0, count)), times[:count])
        assert found.used.all(), found.warnings
        learned[count] = found.parameters
    wrong = {n: abs(predict(unseen(), known).step_time_s[0] / expected - 1) for n, known in learned.items()}
    assert wrong[1] < before and wrong[3] < 0.05 and wrong[6] < 0.05, (before, wrong)
    doubt = {n: known.values[GEMM].sd for n, known in learned.items()}
    assert (doubt[6] or 9) <= (doubt[3] or 9) < (doubt[1] or 9), doubt
    assert widths(learned[1]) < widths(shipped()), "the stack is measured now"
    assert widths(learned[6]) <= widths(learned[1]) * (1 + 1e-9)


def test_what_a_model_has_with_a_stack_is_learned_apart_from_what_all_have() -> None:
    """One of two models is 8 % slower: it is predicted slower than the other, a third in between."""
    first, second = job(stack=STACK), job("llama31_8b", stack=STACK)
    both = Jobs(**{f.name: np.array([getattr(one, f.name) for one in (first, second)]) for f in fields(Jobs)})
    times = step_time(both, shipped()).total * np.array([1.0, 1.08])
    known = calibrate(shipped(), both, times).parameters
    near = np.log(predict(both, known).step_time_s / step_time(both, shipped()).total)
    assert near[1] - near[0] > 0.02
    third = job("mixtral_8x7b", stack=STACK, num_experts=0.0, moe_ffn_hidden_size=0.0)
    between = np.log(predict(third, known).step_time_s / step_time(third, shipped()).total)
    assert near[0] < between[0] < near[1]


def test_what_own_runs_alone_are_of_is_said_to_be_that() -> None:
    """Its line said that nobody had measured it in that precision."""
    learned = calibrate(shipped(), runs().take(slice(0, 3)), step_time(runs(), machine(1.1)).total[:3]).parameters
    known, new = (" ".join(predict(runs(), each).notes[0]) for each in (learned, shipped()))
    assert "only your own runs are of this case" in known and "own runs" not in new


@pytest.mark.parametrize(("stacks", "named"), [(["primus", "nemo-25.04"], ["primus"]), (["megatron", "", "own"], [])])
def test_runs_whose_release_is_unknown_are_named(stacks: list[str], named: list[str]) -> None:
    """An estimate is of a release, and took next to nothing from them in silence."""
    assert without_release(stacks) == named


def test_an_interval_after_few_own_runs_is_wider_and_only_once() -> None:
    jobs, true = runs().take([*range(FEW_RUNS), 0]), machine(1.05)
    times = step_time(jobs, true).total
    by = shipped().wider[FEW].by[1]
    assert by > 1
    like = {name: one.half_95 for name, one in shipped().errors["like"].items()}
    few, more = (calibrate(shipped(), jobs.take(slice(0, n)), times[:n]).parameters for n in (FEW_RUNS, FEW_RUNS + 1))
    again = calibrate(few, jobs.take(slice(0, 2)), times[:2]).parameters
    for known, factor in ((few, by), (again, by), (more, 1.0)):
        found = {name: one.half_95 for name, one in known.errors["like"].items()}
        assert found == pytest.approx({name: factor * half for name, half in like.items()})


@pytest.mark.parametrize(("slow", "count"), [(0, 2), (1, 2), (0, 3), (1, 3), (2, 3), (4, 6), (5, 6)])
def test_one_throttled_run_is_named_and_no_other(slow: int, count: int) -> None:
    """Wherever it stands in the list: judged one after the other, good runs before it looked too fast beside it."""
    jobs = runs().take(slice(0, count))
    times = step_time(jobs, machine(1.1)).total.copy()
    times[slow] *= 1.8
    found = calibrate(shipped(), jobs, times)
    assert np.flatnonzero(~found.used).tolist() == [slow], found.warnings
    (text,) = found.warnings
    assert text.startswith(f"run {slow + 1} was not learned from") and "slower, as by throttling" in text


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_run_that_is_slower_than_its_twin_is_named_on_a_cpu_too(slow: int) -> None:
    """The model alone says too little of a CPU to contradict a run that takes half as long again."""
    cpu = {"hardware": "cpu", "stack": "megatron", "precision": "fp32"}
    jobs = job(**cpu, micro_batch_size=np.array([1.0, 1.0, 1.0, 4.0]))
    times = 0.5 * predict(jobs, shipped()).step_time_s
    once = float(times[0])
    assert calibrate(shipped(), jobs, times).used.all()
    times[slow] *= 1.5
    found = calibrate(shipped(), jobs, times)
    assert np.flatnonzero(~found.used).tolist() == [slow]
    assert f"where a run of the same configuration took {once:.4g}: slower, as by throttling" in found.warnings[0]
    pair = calibrate(shipped(), jobs.take(slice(0, 2)), np.array([once, 1.5 * once]))
    assert pair.used.tolist() == [True, False]
    times[slow] = 1.1 * once
    assert calibrate(shipped(), jobs, times).used.all()


def test_parameters_of_a_version_with_fewer_kinds_are_refused(tmp_path: Path) -> None:
    kinds = {name: kind for name, kind in shipped().kinds.items() if name != "exposed_tensor_overlapped"}
    write(tmp_path / "own.yaml", msgspec.structs.replace(shipped(), kinds=kinds))
    with pytest.raises(ConfigError, match=r"lacks kinds of parameters[^\n]*\n.*exposed_tensor_overlapped"):
        read(tmp_path / "own.yaml")


@pytest.mark.parametrize("value", [-0.5, 0.0, float("nan"), float("inf")])
def test_parameters_that_no_measurement_gives_are_refused(value: float, tmp_path: Path) -> None:
    name, own = next(iter(shipped().values.items()))
    write(tmp_path / "own.yaml", msgspec.structs.replace(shipped(), values={name: Value(value, own.sd)}))
    with pytest.raises(ConfigError, match=f"no measurement gives\n.*{name}"):
        read(tmp_path / "own.yaml")


def test_of_what_a_cpu_has_none_there_may_be_none(tmp_path: Path) -> None:
    write(tmp_path / "own.yaml", shipped_for(["cpu"]))
    assert read(tmp_path / "own.yaml").of("graphs_unknown") == 0


@pytest.mark.parametrize("command", [[], ["search"], ["plan"]])
@pytest.mark.parametrize("file", ["cpu", "h100"])
def test_what_runs_on_cpus_say_is_nothing_of_gpus(
    file: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one for the other made a step 1.5 times as long, and nothing said so."""
    own, other = tmp_path / "own.yaml", {"cpu": "h100", "h100": "cpu"}[file]
    write(own, shipped_for([file]))
    assert main([*command, "model=llama_tiny", f"hardware={other}", f"calibrated={own}"]) == 2
    kind = "CPUs" if file == "cpu" else "GPUs"
    assert f"{own}: is learned from runs on {kind}\n    found: {other}\n" in capsys.readouterr().err


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a training on this CPU."""
    folder = tmp_path_factory.mktemp("trained")
    words = ("model=llama_tiny", "platform=cpu", "training.train_iters=6", f"runs_dir={folder}")
    done = subprocess.run(
        [sys.executable, str(ROOT / "launch.py"), *words], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.engine
@pytest.mark.parametrize("command", [(), ("search",), ("plan",)])
def test_a_run_on_this_cpu_is_learned_from_and_its_file_is_used(
    command: tuple[str, ...], trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    assert main(["calibrate", str(trained), "-o", str(file), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["learned_from"]
    assert main([*command, "model=llama_tiny", "hardware=cpu", f"calibrated={file}", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    if not command:
        low, high = said["figures"]["step_time_mean_s"]["interval"]
        assert low < run["step_time_s"] < high
