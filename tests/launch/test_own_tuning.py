"""framework.options and environment. of a user: written last, declared, and another run than without them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from conf import load_experiment
from conf.errors import ConfigError
from launchers import containers, make_plan, run_dir
from launchers.attribute_settings import options_unknown
from launchers.frameworks import framework_of
from launchers.plan import Host

HOST = Host(python="python", cpu_count=8)
REQUEST = ("platform=nvidia", "model=llama")
OPTIONS = {"megatron_bridge": ("model.cuda_graph_impl", "none"), "nemo": ("model.config.cuda_graph_impl", "none")}


@pytest.mark.parametrize(("framework", "path", "usual"), [(name, *one) for name, one in OPTIONS.items()])
def test_an_option_is_an_attribute_path_that_is_written_last_and_declared(
    framework: str, path: str, usual: str
) -> None:
    e = load_experiment(*REQUEST, f"framework={framework}")
    tuned = load_experiment(*REQUEST, f"framework={framework}", f"framework.options.{path}=local")
    before, after = (yaml.safe_load(make_plan(one, HOST).files["settings.yaml"])["set"] for one in (e, tuned))
    assert (before[path], after[path]) == (usual, "local")
    assert {**before, path: "local"} == after, "and nothing else"
    declared = {d.key: (d.value, d.reason) for d in make_plan(tuned, HOST).declared}
    assert declared[path] == ("local", "framework.options")
    assert run_dir.identity(e, None) != run_dir.identity(tuned, None)


BEST = (*REQUEST, "method=max_performance", "hardware=h100")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("framework.options.mixed_precision.fp8=hybrid",), "set precision instead"),
        (("framework.options.mixed_precision=bf16",), "is an object of which 12 parts are forced"),
        (("framework=nemo", "framework.options.trainer.plugins=null"), "parts are forced"),
        (("framework.options.ddp.grad_reduce_in_fp32=true",), "set precision.accumulate_allreduce_grads_in_fp32"),
        (("training.overlap_grad_reduce=false",), "the recipe's comm_overlap sets it at the start"),
        (("framework=nemo", "training.overlap_param_gather=false"), "MegatronCommOverlapCallback sets it at the start"),
        (("framework=nemo", "framework.options.optim.config.bf16=false"), "set precision instead"),
    ],
)
def test_what_something_else_decides_is_refused_before_the_ranks_do(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        make_plan(load_experiment(*BEST, *words), HOST)


def test_an_option_that_nothing_here_knows_is_named_with_the_nearest() -> None:
    words = [f"framework.options.model.{name}" for name in ("moe_router_fusion=true", "recompute_granularty=full")]
    e = load_experiment(*BEST, *words)
    (unknown,) = options_unknown(e, framework_of(e.framework.name).table)
    assert unknown == ("model.recompute_granularty", "did you mean model.recompute_granularity?")


def test_a_value_may_be_an_enum_of_the_stack() -> None:
    option = "framework.options.model.attention_backend={enum: AttnBackend.flash}"
    plan = make_plan(load_experiment(*REQUEST, "framework=megatron_bridge", option), HOST)
    set_here = yaml.safe_load(plan.files["settings.yaml"])["set"]
    assert set_here["model.attention_backend"] == {"enum": "AttnBackend.flash"}


def test_a_variable_of_ones_own_is_in_the_plan_the_command_and_the_container(tmp_path: Path) -> None:
    words = (*REQUEST, "framework=megatron_bridge")
    typed = ("environment.NCCL_DEBUG=INFO", "environment.NCCL_NVLS_ENABLE=1", "environment.A=1.0", "environment.B=true")
    image = ("image=nvcr.io/nvidia/nemo:26.02", "cluster.container=docker")
    e, usual = load_experiment(*words, *typed, *image), load_experiment(*words, *image)
    plan = containers.wrap(make_plan(e, HOST), e, tmp_path, None)
    assert {name: plan.env[name] for name in ("NCCL_DEBUG", "A", "B")} == {
        "NCCL_DEBUG": "INFO",
        "A": "1.0",
        "B": "true",
    }
    assert (plan.env["NCCL_NVLS_ENABLE"], make_plan(usual, HOST).env["NCCL_NVLS_ENABLE"]) == ("1", "0")
    assert "--env=NCCL_DEBUG" in plan.argv and plan.env_reasons["NCCL_DEBUG"] == "as requested"
    assert {d.key for d in e.declared} == {
        f"environment.{name}" for name in ("NCCL_DEBUG", "NCCL_NVLS_ENABLE", "A", "B")
    }
    assert run_dir.identity(e, None) != run_dir.identity(usual, None)
