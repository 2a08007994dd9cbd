"""What we say of NeMo, compared with NeMo: shapes of models, learning rates."""

from __future__ import annotations

import math
from typing import Any

import pytest
from nemo_runs import reported

from conf import load_experiment
from launchers import attribute_settings

pytestmark = pytest.mark.nvidia

STAND_INS = ("llama_tiny", "moe_tiny")  # no recipe of their own
EXPLAINED = {
    ("deepseek_v2_lite", "kv_channels"): "16 is the number of heads; latent attention does not use it",
    ("deepseek_v2_lite", "init_method_std"): "0.006 is the paper's; config.json says 0.02",
    ("deepseek_v3", "init_method_std"): "0.006 is the paper's; config.json says 0.02",
    ("mixtral_8x7b", "moe_aux_loss_coeff"): "config.json says 0.02",
    ("mixtral_8x22b", "moe_aux_loss_coeff"): "config.json says 0.001",
}


def test_the_shapes_of_our_models_are_those_of_the_recipes(nemo_python: str) -> None:
    """A second source for every number: others wrote NeMo's recipes. What a recipe leaves open is not compared."""
    table = attribute_settings.table("nemo")
    recipes = {name: r for name, r in _recipes().items() if name not in STAND_INS}
    shapes = reported(nemo_python, "nemo_shapes.py", "SHAPES", *recipes.values())
    unlike = {}
    for model, recipe in recipes.items():
        sizes = ("layout=data_parallel", "gpus_per_node=1", "training.global_batch_size=1")
        assigned = attribute_settings.assignments(_experiment(model, *sizes), table)
        ours = {**assigned.set, **assigned.set_if_there}
        for field, theirs in shapes[recipe].items():
            path = f"model.config.{field}"
            if path in ours and theirs is not None and not _equal(ours[path], theirs):
                unlike[model, field] = (ours[path], theirs)
    assert set(unlike) == set(EXPLAINED), unlike


def _equal(ours: object, theirs: object) -> bool:
    return ours == theirs or (theirs == 1 and isinstance(ours, list) and set(ours) == {1})


def _recipes() -> dict[str, str]:
    return dict(_experiment("llama_tiny").framework.recipes)


def _experiment(model: str, *overrides: str):  # type: ignore[no-untyped-def]
    return load_experiment("framework=nemo", "platform=nvidia", f"model={model}", *overrides)


LR, MIN_LR, STEPS, WARMUPS = 3e-4, 3e-5, 100, (0, 1, 5, 10, 50)


@pytest.fixture(scope="module")
def rates(nemo_python: str) -> dict[str, dict[str, list[float]]]:
    """By warm-up steps and stack."""
    return reported(nemo_python, "nemo_schedule.py", "RATES", *map(str, (LR, MIN_LR, STEPS, *WARMUPS)))


@pytest.mark.parametrize("warmup", WARMUPS)
def test_nemo_and_megatron_use_the_same_rate_at_every_step(rates: dict[str, Any], warmup: int) -> None:
    lr, min_lr, steps = LR, MIN_LR, STEPS
    for s in range(steps):
        ours = lr * (s + 1) / (warmup + 1)
        if s >= warmup:
            ours = min_lr + (lr - min_lr) / 2 * (1 + math.cos(math.pi * (s - warmup) / (steps - warmup)))
        assert math.isclose(rates[str(warmup)]["nemo"][s], ours, rel_tol=2e-15)
        assert math.isclose(rates[str(warmup)]["megatron"][s], ours, rel_tol=2e-15)
