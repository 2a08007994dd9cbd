"""Compare what we say of NeMo with NeMo: shapes of models, learning rates."""

from __future__ import annotations

import pytest

from conf import load_experiment
from launchers import attribute_settings
from tests.nvidia.nemo_runs import reported
from tests.rehearsal.stacks import canonical_rate

pytestmark = pytest.mark.nvidia

NEMO = ("framework=nemo", "platform=nvidia", "model=llama_tiny")
STAND_INS = ("llama_tiny", "moe_tiny", "llama2_13b", "llama2_70b", "qwen25_3b")  # no recipe of their own
EXPLAINED = {
    ("deepseek_v2_lite", "kv_channels"): "16 is the number of heads; latent attention does not use it",
    ("deepseek_v2_lite", "init_method_std"): "0.006 is the paper's; config.json says 0.02",
    ("deepseek_v3", "init_method_std"): "0.006 is the paper's; config.json says 0.02",
    ("llama3_8b", "init_method_std"): "config.json says 0.02",
    ("llama3_70b", "init_method_std"): "config.json says 0.02",
    ("mistral_7b", "rotary_base"): "of version 0.1; that of 0.3 is 1000000",
    ("qwen25_0p5b", "share_embeddings_and_output_weights"): "config.json says tie_word_embeddings",
    ("mixtral_8x7b", "moe_aux_loss_coeff"): "config.json says 0.02",
    ("mixtral_8x22b", "moe_aux_loss_coeff"): "config.json says 0.001",
}


def test_the_shapes_of_our_models_are_those_of_the_recipes(nemo_python: str) -> None:
    """A second source for every number: others wrote NeMo's recipes. What a recipe leaves open is not compared."""
    table = attribute_settings.table("nemo")
    recipes = {name: r for name, r in load_experiment(*NEMO).framework.recipes.items() if name not in STAND_INS}
    shapes = reported(nemo_python, "nemo_shapes.py", "SHAPES", *recipes.values())
    unlike = {}
    for model, recipe in recipes.items():
        sizes = (f"model={model}", "layout=data_parallel", "gpus_per_node=1", "training.global_batch_size=1")
        assigned = attribute_settings.assignments(load_experiment(*NEMO[:2], *sizes), table)
        ours = {**assigned.set, **assigned.set_if_there}
        for field, theirs in shapes[recipe].items():
            path = f"model.config.{field}"
            if path in ours and theirs is not None and not _equal(ours[path], theirs):
                unlike[model, field] = (ours[path], theirs)
    assert set(unlike) == set(EXPLAINED), unlike


def _equal(ours: object, theirs: object) -> bool:
    return ours == theirs or (theirs == 1 and isinstance(ours, list) and set(ours) == {1})


LR, MIN_LR, STEPS, WARMUPS = 3e-4, 3e-5, 100, (0, 1, 5, 10, 50)


def test_nemos_scheduler_gives_the_canonical_rate_at_every_step(nemo_python: str) -> None:
    """Megatron-Core's, which all others use: tests/engine/test_engine_log.py."""
    rates = reported(nemo_python, "nemo_schedule.py", "RATES", *map(str, (LR, MIN_LR, STEPS, *WARMUPS)))
    for warmup in WARMUPS:
        requested = {"lr": LR, "min_lr": MIN_LR, "lr_warmup_iters": warmup, "lr_decay_iters": STEPS}
        expected = [canonical_rate(requested, step) for step in range(STEPS)]
        assert rates[str(warmup)] == pytest.approx(expected, rel=1e-14)
