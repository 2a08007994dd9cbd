"""framework=nemo: what is rendered, declared and refused; the table of attribute paths."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from conf import load_experiment
from conf.errors import ConfigError
from conf.vocabulary import Target, Write, program_settings
from launchers import attribute_settings, make_plan
from launchers.plan import Host, Plan

ROOT = Path(__file__).parent.parent.parent
HOST = Host(python="python", cpu_count=64)
ALL = ("nemo", "megatron_bridge", "primus")


def plan(*overrides: str) -> Plan:
    return make_plan(load_experiment("framework=nemo", *overrides), HOST)


SETTINGS = {
    "nemo_cpu_llama_tiny": ("platform=cpu", "layout=tp2", "gpus_per_node=2"),
    "nemo_llama31_8b_fp8": ("platform=nvidia", "model=llama31_8b", "precision=fp8", "layout=tp2"),
    "nemo_deepseek_v3": ("platform=nvidia", "model=deepseek_v3", "layout.expert_model_parallel_size=8"),
    "nemo_mixtral_mock": ("platform=nvidia", "model=mixtral_8x7b", "layout=tp2", "data=mock"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_golden_settings(name: str, golden: Callable[[str, str], None]) -> None:
    made = plan(*SETTINGS[name])
    declared = "".join(f"# declared: {d.key} = {d.value} ({d.reason})\n" for d in made.declared)
    golden(f"nvidia/{name}.yaml", made.files["settings.yaml"] + declared)


@pytest.mark.parametrize("framework", ALL)
def test_every_setting_that_a_program_gets_is_in_the_table(framework: str) -> None:
    table = attribute_settings.table(framework)
    assert set(table.settings) == set(program_settings(load_experiment("platform=cpu")))
    rows = (*table.settings.values(), *table.parts)
    assert all(row.write.to or row.write.program or row.write.derived or row.write.cannot for row in rows)


def test_a_path_is_given_one_value_only() -> None:
    table = attribute_settings.table("nemo")
    paths = [path for row in (*table.settings.values(), *table.parts) for path in row.paths(None)]
    assert len(paths) == len(set(paths))
    assert not set(paths) & set(table.always), "a constant would win over the request"


def test_checkpoints_are_written_where_they_are_requested() -> None:
    stated = yaml.safe_load(plan("platform=cpu", "training.save_interval=5").files["settings.yaml"])["set"]
    assert stated["trainer.enable_checkpointing"] is True
    assert stated["log.ckpt.every_n_train_steps"] == 5
    assert stated["resume"] is None, "nothing is gone on with all the same"


def test_the_interpreter_is_the_one_that_the_framework_names() -> None:
    made = plan("platform=cpu", "framework.python=/opt/nemo/bin/python")
    assert made.argv[0] == made.check[0] == made.setup[0][0] == "/opt/nemo/bin/python"
    assert made.check[-1] == "--check"


def test_releases_choose_among_paths() -> None:
    targets = (Target(path="always"), Target(path="old", before="0.6"), Target(path="new", since="0.6"))
    row = attribute_settings.Row(name="x", of="x", write=Write(to=targets))
    assert list(row.paths("0.3.1")) == ["always", "old"]
    assert list(row.paths("0.6.0")) == ["always", "new"]


@pytest.mark.parametrize("warmup", [0, 1, 5, 10, 50])
def test_the_schedules_are_one(warmup: int) -> None:
    """Rate that step s of 100 uses: NeMo 2.7.3 (core/optim/lr_scheduler.py:361-363, 478-487), Megatron with our
    lr_warmup_init (megatron/core/optimizer_param_scheduler.py: get_lr), and the schedule that an experiment means.

    make test-nvidia compares the first two with the classes themselves."""
    lr, low, steps = 3e-4, 3e-5, 100
    optimizer = load_experiment(
        *("platform=cpu", "training.train_iters=100", f"optimizer.lr={lr}", f"optimizer.min_lr={low}"),
        f"optimizer.lr_warmup_iters={warmup}",
    ).optimizer

    def cosine(s: int) -> float:
        return low + (lr - low) / 2 * (1 + math.cos(math.pi * (s - warmup) / (steps - warmup)))

    def nemo(s: int) -> float:
        return lr * ((s + 1) / (warmup + 1)) if s < warmup else cosine(s)

    def megatron(s: int) -> float:
        start = optimizer.lr_warmup_init
        return start + (lr - start) * s / warmup if warmup and s <= warmup else cosine(s)

    def ours(s: int) -> float:
        return lr * (s + 1) / (warmup + 1) if s < warmup else cosine(s)

    for s in range(steps):
        assert math.isclose(nemo(s), ours(s), rel_tol=2e-15)
        assert math.isclose(megatron(s), ours(s), rel_tol=2e-15)


def test_a_layout_of_the_pipeline_without_the_models_layers_is_refused_with_the_nearest_recipe_that_has_them() -> None:
    best = ("model=deepseek_v3", "hardware=b200", "nodes=32", "method=max_performance", "batch=vendor")
    with pytest.raises(ConfigError) as error:
        plan("framework=nemo", "platform=nvidia", *best)
    (problem,) = error.value.problems
    assert (problem.where, problem.found, problem.allowed) == (
        "recipe",
        "61 layers and 0 of multi-token prediction",
        "61 layers and 1 of multi-token prediction",
    )
    assert "deepseek_v3_pretrain_256gpu_b200_bf16_config" in problem.hint
    plan("framework=megatron_bridge", "framework.release=0.6.0", "platform=nvidia", *best)
    plan("framework=nemo", "platform=nvidia", *best, "model.mtp_num_layers=null")
