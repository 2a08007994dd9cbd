"""rehearse=…: what is run in its place, what is said of it beforehand, and the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from msgspec import structs

from conf.load import load
from conf.resolve import Experiment
from conf.shapes import Place, Shape, Sizes, on_rank
from launchers import make_plan, run_dir
from launchers.attribute_settings import options
from launchers.plan import Host
from launchers.rehearse import FOLDER, in_layout, not_rehearsed, played, prepared
from launchers.runner import environment
from parsers import Reading, Record
from parsers.probe import Chunk, Parameter, RankFile
from tensorprimat import run

HOST = Host(python="python", cpu_count=2)
PIPELINED = ("nodes=8", "layout.tensor_model_parallel_size=8", "layout.pipeline_model_parallel_size=8")


def rehearsal(kind: str, framework: str, *overrides: str) -> Experiment:
    return load([f"rehearse={kind}", f"framework={framework}", *overrides])


def test_the_platform_follows_from_the_framework() -> None:
    found = {name: rehearsal("train", name).platform.name for name in ("nemo", "megatron_bridge", "primus", "megatron")}
    assert found == {"nemo": "nvidia", "megatron_bridge": "nvidia", "primus": "amd", "megatron": "nvidia"}
    assert rehearsal("train", "megatron", "platform=amd").platform.name == "amd", "unless it was chosen"
    assert load(["framework=megatron"]).platform.name == "cpu", "and only of rehearsals"


def test_a_rehearsal_is_none_of_the_runs_that_are_measured() -> None:
    real, scope = load(["platform=nvidia", "framework=nemo"]), rehearsal("train", "nemo")
    assert real.accelerator == "nvidia" and scope.accelerator is None
    assert (real.name, scope.name) == ("llama31_8b-nvidia", "llama31_8b-rehearsal")
    ids = {run_dir.identity(replace(real, **change), None) for change in ({}, {"rehearse": "train"}, {"probe": True})}
    assert len(ids) == 3


def test_two_experiments_with_one_toy_are_two_runs() -> None:
    pair = [rehearsal("train", "nemo", f"training.global_batch_size={batch}") for batch in (128, 256)]
    (first, scope), (second, of_other) = (prepared(e) for e in pair)
    assert replace(first, reasons=()) == replace(second, reasons=())
    assert run_dir.run_id(scope.requested, None) != run_dir.run_id(of_other.requested, None)  # type: ignore[arg-type]


def test_what_was_shrunk_is_listed_with_both_values() -> None:
    e, scope = prepared(rehearsal("train", "nemo", "model=deepseek_v3", "layout=data_parallel", "repeat=3"))
    assert scope.shrunk["num_layers"] == {"asked": 61, "ran": 4}
    assert scope.shrunk["model.moe.moe_router_num_groups"] == {"asked": 8, "ran": 2}, "without a canonical name"
    assert scope.shrunk["repeat"] == {"asked": 3, "ran": 1}
    assert "lr" not in scope.shrunk and "norm_epsilon" not in scope.shrunk
    assert e.probe and e.rerun


def test_what_a_cpu_shows_nothing_of_is_listed_where_it_is_requested() -> None:
    for override, name in (
        ("precision=fp8", "fp8"),
        ("training.overlap_grad_reduce=true", "overlap_grad_reduce"),
        ("training.save_interval=5", "save_interval"),
        ("model=moe_tiny", "moe_grouped_gemm"),
        ("framework.options.use_turbo_attention=true", "use_turbo_attention"),
        ("framework.options.tp_comm_overlap=true", "tp_comm_overlap"),
        ("framework.options.moe_token_dispatcher_type=flex", "moe_token_dispatcher_type"),
        ("layout.context_parallel_size=2", "context parallelism"),
        ("cluster.container=docker image=rocm/primus:v26.5", "image"),
    ):
        plain = ("layout=data_parallel", "training.overlap_grad_reduce=false", "gpus_per_node=4")
        without = not_rehearsed(rehearsal("train", "primus", *plain))
        scope = not_rehearsed(rehearsal("train", "primus", *plain, *override.split()))
        assert name not in without and scope[name]
        assert {"attention_backend", "speed", "memory"} <= without.keys()


def test_an_option_that_needs_its_kernel_is_left_out_and_reported() -> None:
    given = {"tp_comm_overlap": "true", "enable_primus_turbo": "true", "log_throughput": "true"}
    options = [f"framework.options.{name}={value}" for name, value in given.items()]
    e, scope = prepared(rehearsal("train", "primus", "layout=data_parallel", *options))
    assert set(e.framework.options) == {"enable_primus_turbo", "log_throughput"}
    assert {"tp_comm_overlap", "enable_primus_turbo"} <= scope.not_rehearsed.keys()
    assert "log_throughput" not in scope.not_rehearsed


@pytest.mark.parametrize(
    ("framework", "before"), [("nemo", "model.config."), ("megatron_bridge", "model."), ("primus", "")]
)
def test_what_is_valid_on_a_gpu_alone_is_known_before_anything_starts(framework: str, before: str) -> None:
    """And what a toy of four layers has, runs."""
    cases = {"fp32_residual_connection": True, "no_rope_freq": 3, "moe_token_dispatcher_type": "alltoall"}
    cases["apply_layernorm_1p" if framework == "primus" else "layernorm_zero_centered_gamma"] = True
    given = [f"framework.options.{before}{name}={value}" for name, value in cases.items()]
    e, scope = prepared(rehearsal("train", framework, "layout=data_parallel", *given))
    left_out = {f"{before}{name}" for name in cases if name != "moe_token_dispatcher_type"}
    assert left_out <= scope.not_rehearsed.keys() and f"{before}moe_token_dispatcher_type" not in scope.not_rehearsed
    assert [*options(e)] == [f"{before}moe_token_dispatcher_type"]
    assert all(
        any(note.startswith(f"{name} is not rehearsed, and left out") for note in scope.notes) for name in left_out
    )
    every_fourth = rehearsal("train", framework, "layout=data_parallel", f"framework.options.{before}no_rope_freq=4")
    assert options(prepared(every_fourth)[0]) == {f"{before}no_rope_freq": 4}


def test_interpreters_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEMO", "BRIDGE", "PRIMUS"):
        monkeypatch.setenv(f"{name}_PYTHON", f"/{name}/python")
    found = [
        rehearsal("train", name, "name=elsewhere").framework.python for name in ("nemo", "megatron_bridge", "primus")
    ]
    assert found == ["/NEMO/python", "/BRIDGE/python", "/PRIMUS/python"]
    assert rehearsal("train", "nemo", "framework.python=/mine").framework.python == "/mine"


def test_fp8_runs_as_bf16_and_says_so() -> None:
    e, scope = prepared(rehearsal("train", "megatron_bridge", "layout=data_parallel", "precision=fp8"))
    assert (e.precision.fp8, e.precision.params_dtype) == (None, "bfloat16")
    assert "fp8" in scope.not_rehearsed and "fp8" not in scope.shrunk
    assert any("fp8" in note for note in scope.notes)
    own = ["own first weights" in note for note in scope.notes]
    assert not any(own), "it begins with equal weights unless told otherwise"
    without = prepared(rehearsal("train", "nemo", "equal_init=false"))[1].notes
    assert any("own first weights" in note for note in without)
    assert not prepared(rehearsal("layout", "nemo", *PIPELINED))[0].equal_init


def test_what_is_not_the_real_thing_is_said_beforehand() -> None:
    _, scope = prepared(rehearsal("train", "nemo", "layout.context_parallel_size=2", "gpus_per_node=8"))
    assert any("not CP's" in note for note in scope.notes)
    sizes = ("nodes=8", "layout.tensor_model_parallel_size=4", "layout.pipeline_model_parallel_size=8")
    _, scope = prepared(rehearsal("train", "nemo", *sizes))
    assert "DP 2 is not rehearsed: four processes hold no more; rehearse=layout shows all of it" in scope.notes


def test_the_plan_puts_the_folder_in_front_of_what_is_inherited() -> None:
    plan = make_plan(prepared(rehearsal("train", "nemo"))[0], HOST)
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


def test_the_engine_has_a_stand_in_of_its_own() -> None:
    plan = make_plan(prepared(rehearsal("train", "megatron"))[0], HOST)
    assert "TPRIMAT_REHEARSE" not in plan.env and plan.env["TPRIMAT_REHEARSED"] == "train"
    assert json.loads(plan.files["settings.json"])["device"] == "cpu"


def test_a_layout_is_played_rank_after_rank_by_single_processes() -> None:
    e, scope = prepared(rehearsal("layout", "nemo", *PIPELINED))
    plan = make_plan(e, HOST)
    assert played(e) == (0, 56), "the first tensor rank of the last stage"
    commands = [*plan.setup, plan.argv]
    assert [command[:2] for command in commands] == [("env", f"TPRIMAT_PLAY_RANK={rank}") for rank in (0, 56)]
    assert not any("start_ranks.py" in part for command in commands for part in command)
    assert (plan.env["TPRIMAT_PLAY_WORLD"], plan.env["LOCAL_WORLD_SIZE"]) == ("64", "8")
    assert scope.shrunk == {}, "width, layers and world are true"
    assert {"data", "data_path", "split", "loss"} <= scope.not_rehearsed.keys()
    assert e.data.name == "mock", "at true size no corpus is made for one batch"


def test_one_stage_is_played_by_one_rank() -> None:
    e = in_layout(rehearsal("layout", "nemo"))
    assert played(e) == (0,) and make_plan(e, HOST).setup == ()


QKV = "decoder.layers.1.self_attention.linear_qkv.weight"
DONE = Record(id="a", name="a", provenance="rehearsed", status="completed")


def toy_of(*overrides: str) -> Experiment:
    return prepared(load(["rehearse=train", "framework=nemo", "layout=data_parallel", "gpus_per_node=1", *overrides]))[
        0
    ]


def file_of(shapes: Mapping[str, Shape] | None, rank: int = 0, **places: int) -> RankFile:
    """Return the file of a rank, with its parameters."""
    parameters = None if shapes is None else tuple(Parameter(name, at, 0, None) for name, at in shapes.items())
    where = {"world": 1, "pipeline": 0, "expert": 0, **places}
    return RankFile(rank=rank, ranks=where, chunks=(Chunk(parameters),))


def counted(e: Experiment, *files: RankFile, **effective: str) -> Record:
    read = {name: Reading(value, 1) for name, value in effective.items()}
    return run.against_count(structs.replace(DONE, effective=read), e, files)


def test_a_rank_with_our_shapes_has_passed() -> None:
    e = toy_of()
    assert counted(e, file_of(on_rank(e.model, Sizes(), Place()))) == DONE
    assert counted(e, file_of(None)).cause == counted(e).cause == "rank 0 reported no parameters"


def test_each_parameter_that_is_not_ours_is_named() -> None:
    e = toy_of()
    ours = on_rank(e.model, Sizes(), Place())
    rows, columns = ours[QKV]
    wrong = {**ours, QKV: (rows + 32, columns), "decoder.layers.1.bogus": (3,)}
    del wrong["decoder.final_layernorm.weight"]
    record = counted(e, file_of(wrong))
    assert record.status == "failed" and record.cause is not None
    assert f"{QKV}: ({rows + 32}, {columns}), expected ({rows}, {columns})" in record.cause
    assert "decoder.layers.1.bogus: (3,), not known to our own count" in record.cause
    assert f"decoder.final_layernorm.weight: absent, expected ({columns},)" in record.cause
    swapped = counted(e, file_of({**ours, QKV: (columns, rows)}))
    assert swapped.status == "failed", "the same number of elements in another shape"


def test_one_that_is_no_rehearsals_is_a_note() -> None:
    e = replace(toy_of(), rehearse=None)
    record = run.against_count(DONE, e, [file_of({"w": (1,)})])
    assert record.status == "completed" and "expected" in record.notes[0] and "; and " in record.notes[0]


def test_each_rank_is_held_at_its_own_place() -> None:
    e = toy_of("model=qwen3_30b_a3b", "gpus_per_node=8", "layout.expert_model_parallel_size=8")
    sizes = Sizes(ep=2)
    assert e.layout.expert_model_parallel_size == 2
    files = [file_of(on_rank(e.model, sizes, Place(0, rank)), rank, expert=rank) for rank in range(2)]
    assert counted(e, *files) == DONE
    assert counted(e, files[0], structs.replace(files[1], ranks=files[0].ranks)).status == "failed"
    assert "does not report its place" in str(counted(e, structs.replace(files[0], ranks={}), files[1]).cause)


@pytest.mark.parametrize("impl", ["local", "transformer_engine"])
def test_names_and_cuts_are_those_of_the_modules_in_use(impl: str) -> None:
    e = toy_of("model=qwen3_30b_a3b")
    ours = on_rank(e.model, Sizes(), Place(), fused=True)
    if impl == "transformer_engine":
        norm = "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight"
        ours[norm] = ours.pop("decoder.layers.0.input_layernorm.weight")
    assert counted(e, file_of(ours), transformer_impl=impl).status == "completed"
