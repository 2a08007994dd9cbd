"""rehearse=…: what is run in its place, what is said of it beforehand, and the plan."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from conf import devices
from conf.errors import ConfigError
from conf.load import load
from conf.parameters import per_stage
from conf.resolve import Experiment
from conf.shapes import Sizes
from launchers import make_plan, rehearse, run_dir
from launchers.plan import Host
from launchers.rehearse import FOLDER, in_layout, not_rehearsed, played, prepared
from launchers.runner import environment

HOST = Host(python="python", cpu_count=2)
PLENTY = 10**15
PIPELINED = ("nodes=8", "layout.tensor_model_parallel_size=8", "layout.pipeline_model_parallel_size=8")


def rehearsal(kind: str, framework: str, *overrides: str) -> Experiment:
    return load([f"rehearse={kind}", f"framework={framework}", *overrides])


def test_the_platform_follows_from_the_framework() -> None:
    found = {name: rehearsal("train", name).platform.name for name in ("nemo", "megatron_bridge", "primus", "megatron")}
    assert found == {"nemo": "nvidia", "megatron_bridge": "nvidia", "primus": "amd", "megatron": "nvidia"}
    assert rehearsal("train", "megatron", "platform=amd").platform.name == "amd", "unless it was chosen"
    assert load(["framework=megatron"]).platform.name == "cpu", "and only of rehearsals"


def test_a_rehearsal_is_none_of_the_runs_that_are_measured() -> None:
    real, told = load(["platform=nvidia", "framework=nemo"]), rehearsal("train", "nemo")
    assert real.accelerator == "nvidia" and told.accelerator is None
    assert (real.name, told.name) == ("llama31_8b-nvidia", "llama31_8b-rehearsal")
    ids = {run_dir.identity(replace(real, **change), None) for change in ({}, {"rehearse": "train"}, {"probe": True})}
    assert len(ids) == 3


def test_two_experiments_with_one_toy_are_two_runs() -> None:
    pair = [rehearsal("train", "nemo", f"training.global_batch_size={batch}") for batch in (128, 256)]
    (first, told), (second, of_other) = (prepared(e, 0) for e in pair)
    assert replace(first, reasons=()) == replace(second, reasons=())
    assert run_dir.run_id(told.requested, None) != run_dir.run_id(of_other.requested, None)  # type: ignore[arg-type]


def test_what_was_shrunk_is_listed_with_both_values() -> None:
    e, told = prepared(rehearsal("train", "nemo", "model=deepseek_v3", "layout=data_parallel", "repeat=3"), 0)
    assert told.shrunk["num_layers"] == {"asked": 61, "ran": 2}
    assert told.shrunk["model.moe.moe_router_num_groups"] == {"asked": 8, "ran": 2}, "without a canonical name"
    assert told.shrunk["repeat"] == {"asked": 3, "ran": 1}
    assert "lr" not in told.shrunk and "norm_epsilon" not in told.shrunk
    assert e.probe and e.rerun


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("precision=fp8", "fp8"),
        ("training.overlap_grad_reduce=true", "overlap_grad_reduce"),
        ("training.save_interval=5", "save_interval"),
        ("model=moe_tiny", "moe_grouped_gemm"),
        ("framework.options.use_turbo_attention=true", "use_turbo_attention"),
        ("framework.options.tp_comm_overlap=true", "tp_comm_overlap"),
        ("framework.options.moe_token_dispatcher_type=flex", "moe_token_dispatcher_type"),
        ("layout.context_parallel_size=2", "context parallelism"),
        ("cluster.container=docker image=rocm/primus:v26.5", "image"),
    ],
)
def test_what_a_cpu_tells_nothing_of_is_listed_where_it_is_asked_for(override: str, name: str) -> None:
    plain = ("layout=data_parallel", "training.overlap_grad_reduce=false", "gpus_per_node=4")
    without = not_rehearsed(rehearsal("train", "primus", *plain))
    told = not_rehearsed(rehearsal("train", "primus", *plain, *override.split()))
    assert name not in without and told[name]
    assert {"attention_backend", "speed", "memory"} <= without.keys()


def test_an_option_that_needs_its_kernel_is_left_out_and_told() -> None:
    given = {"tp_comm_overlap": "true", "enable_primus_turbo": "true", "log_throughput": "true"}
    options = [f"framework.options.{name}={value}" for name, value in given.items()]
    e, told = prepared(rehearsal("train", "primus", "layout=data_parallel", *options), 0)
    assert set(e.framework.options) == {"enable_primus_turbo", "log_throughput"}
    assert {"tp_comm_overlap", "enable_primus_turbo"} <= told.not_rehearsed.keys()
    assert "log_throughput" not in told.not_rehearsed


def test_interpreters_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEMO", "BRIDGE", "PRIMUS"):
        monkeypatch.setenv(f"{name}_PYTHON", f"/{name}/python")
    found = [
        rehearsal("train", name, "name=elsewhere").framework.python for name in ("nemo", "megatron_bridge", "primus")
    ]
    assert found == ["/NEMO/python", "/BRIDGE/python", "/PRIMUS/python"]
    assert rehearsal("train", "nemo", "framework.python=/mine").framework.python == "/mine"


def test_fp8_runs_as_bf16_and_says_so() -> None:
    e, told = prepared(rehearsal("train", "megatron_bridge", "layout=data_parallel", "precision=fp8"), 0)
    assert (e.precision.fp8, e.precision.params_dtype) == (None, "bfloat16")
    assert "fp8" in told.not_rehearsed and "fp8" not in told.shrunk
    assert any("fp8" in note for note in told.notes)
    own = ["own first weights" in note for note in told.notes]
    same = prepared(rehearsal("train", "nemo", "equal_init=true"), 0)[1].notes
    assert any(own) and not any("own first weights" in note for note in same)


def test_what_is_not_the_real_thing_is_said_beforehand() -> None:
    _, told = prepared(rehearsal("train", "nemo", "layout.context_parallel_size=2", "gpus_per_node=8"), 0)
    assert any("not CP's" in note for note in told.notes)
    sizes = ("nodes=8", "layout.tensor_model_parallel_size=4", "layout.pipeline_model_parallel_size=8")
    _, told = prepared(rehearsal("train", "nemo", *sizes), 0)
    assert "DP 2 is not rehearsed: four processes hold no more; rehearse=layout shows all of it" in told.notes


def test_the_plan_puts_the_folder_in_front_of_what_is_inherited() -> None:
    plan = make_plan(prepared(rehearsal("train", "nemo", "equal_init=true"), 0)[0], HOST)
    assert {n: v for n, v in plan.env.items() if n.startswith("TPRIMAT_")} == {
        "TPRIMAT_REHEARSE": "train",
        "TPRIMAT_PROBE": "probe",
        "TPRIMAT_EQUAL_INIT": "1234",
        "TPRIMAT_ARCH": "sm_90",
    }
    assert environment(plan, {"PYTHONPATH": "/mine"})["PYTHONPATH"] == f"{FOLDER}:/mine"
    assert plan.env["CUDA_VISIBLE_DEVICES"] == "", "a machine with a GPU rehearses on its CPU, too"
    measured = make_plan(load(["platform=nvidia", "framework=nemo", "probe=true"]), HOST)
    assert measured.env["TPRIMAT_PROBE"] == "probe" and "TPRIMAT_REHEARSE" not in measured.env
    assert "PYTHONPATH" not in make_plan(load(["platform=nvidia", "framework=nemo"]), HOST).env


@pytest.mark.parametrize("framework", ["nemo", "megatron_bridge", "primus"])
def test_latent_attention_is_refused_before_it_starts(framework: str) -> None:
    """Seen: core 0.15.3, 0.16.1 and Primus v26.5's die of it, and Bridge's own layers for a CPU are silently another
    model's."""
    e, _ = prepared(rehearsal("train", framework, "model=deepseek_v2_lite", "layout=data_parallel"), 0)
    with pytest.raises(ConfigError, match="latent attention"):
        make_plan(e, HOST)


def test_the_engine_has_a_stand_in_of_its_own() -> None:
    plan = make_plan(prepared(rehearsal("train", "megatron"), 0)[0], HOST)
    assert "TPRIMAT_REHEARSE" not in plan.env and plan.env["TPRIMAT_REHEARSED"] == "train"
    assert json.loads(plan.files["settings.json"])["device"] == "cpu"
    with pytest.raises(ConfigError, match="rehearse=train"):
        make_plan(prepared(rehearsal("layout", "megatron", *PIPELINED), PLENTY)[0], HOST)


def test_a_layout_is_played_rank_after_rank_by_single_processes() -> None:
    e, told = prepared(rehearsal("layout", "nemo", *PIPELINED), PLENTY)
    plan = make_plan(e, HOST)
    assert played(e) == (0, 56), "the first tensor rank of the last stage"
    commands = [*plan.setup, plan.argv]
    assert [command[:2] for command in commands] == [("env", f"TPRIMAT_PLAY_RANK={rank}") for rank in (0, 56)]
    assert not any("torch.distributed.run" in part for command in commands for part in command)
    assert (plan.env["TPRIMAT_PLAY_WORLD"], plan.env["LOCAL_WORLD_SIZE"]) == ("64", "8")
    assert told.shrunk == {}, "width, layers and world are true"
    assert {"data", "data_path", "split", "loss"} <= told.not_rehearsed.keys()
    assert e.data.name == "mock", "at true size no corpus is made for one batch"


def test_one_stage_is_played_by_one_rank() -> None:
    e = in_layout(rehearsal("layout", "nemo"), PLENTY)
    assert played(e) == (0,) and make_plan(e, HOST).setup == ()


def test_layers_are_cut_to_the_memory_and_nothing_else() -> None:
    e = rehearsal("layout", "nemo", "model=llama31_405b", *PIPELINED[:2], "layout.pipeline_model_parallel_size=2")
    small, told = prepared(e, 16 * 10**9)
    assert 0 < small.model.num_layers < 126 and small.model.num_layers % 2 == 0
    assert (
        rehearse.rank_bytes(small)
        <= 16 * 10**9
        < rehearse.rank_bytes(rehearse._with_layers(e, small.model.num_layers + 2))
    )
    assert told.shrunk["num_layers"] == {"asked": 126, "ran": small.model.num_layers}
    assert (small.model.hidden_size, small.layout) == (16384, e.layout)
    assert any("more do not fit" in note for note in told.notes)


def test_a_rank_that_does_not_fit_is_refused_with_what_it_needs() -> None:
    e = rehearsal("layout", "nemo", "model=llama31_405b", "layout.tensor_model_parallel_size=8")
    with pytest.raises(ConfigError) as refused:
        prepared(e, 8 * 10**9)
    (problem,) = refused.value.problems
    assert "it may take 8.0 GB of what is free here" in problem.what and "more TP" in problem.hint


def test_parameters_of_interleaved_stages_are_those_of_all_of_them() -> None:
    """DeepSeek-V2-Lite's first layer has no experts: with VP the first stage has it and layers from the middle."""
    model = load(["platform=nvidia", "framework=nemo", "model=deepseek_v2_lite", "layout=data_parallel"]).model
    model = replace(model, num_layers=24)
    plain, dealt = per_stage(model, Sizes(1, 2)), per_stage(model, Sizes(1, 2, 1, 3))
    assert sum(s.total for s in plain) == sum(s.total for s in dealt) == per_stage(model, Sizes())[0].total
    layers = [dealt[0].experts, dealt[1].experts]
    assert layers[1] > layers[0], "one dense layer on the first stage"


def test_free_memory_is_some_of_what_there_is() -> None:
    assert 0 < devices.available_memory_bytes() <= devices.host_memory_bytes()
