"""Every model of conf/model at two layers and its true width: built as our count says, or refused by what it lacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conf import load_experiment
from conf.errors import ConfigError
from conf.shapes import Sizes, per_rank
from launchers import make_plan
from launchers.frameworks.megatron import settings
from launchers.plan import Host

pytestmark = pytest.mark.engine
HOST = Host(python="python", cpu_count=2)
MODELS = sorted(path.stem for path in (Path(__file__).parents[2] / "conf" / "model").glob("*.yaml"))
MISSING = {
    "deepseek_v2_lite": ("multi-head latent attention", "YaRN", "routing probabilities before the choice"),
    "deepseek_v3": ("multi-head latent attention", "multi-token prediction", "sigmoid routing", "a routing bias"),
    "gpt_oss_20b": ("YaRN", "clamped quick-GELU experts", "attention sinks", "sliding window attention"),
    "gpt_oss_120b": ("YaRN", "clamped quick-GELU experts", "attention sinks", "sliding window attention"),
}
BUILD = """
import json, os, sys, torch
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
import engine_standin
engine_standin.install()
import engine_model, engine_train
from engine_settings import Settings
engine_model.set_weights = lambda model, seed: None  # 16,384 x 53,248 random numbers a matrix, for shapes alone
all_settings = {all_settings}
engine_train._set_up_groups(Settings(**next(iter(all_settings.values()))))
for name, values in all_settings.items():
    s = Settings(**values)
    with torch.device("meta"):
        model = engine_model._chunk(s, engine_model._transformer_config(s), None)
    print(name, sum(parameter.numel() for parameter in model.parameters()))
"""


def test_models_that_lack_nothing_are_built_as_counted(in_rank: Callable[[str], str]) -> None:
    built = [name for name in MODELS if name not in MISSING]
    shallow = {name: load_experiment("platform=cpu", f"model={name}", "model.num_layers=2") for name in built}
    wanted = {name: per_rank(e.model, Sizes()).total for name, e in shallow.items()}
    text = json.dumps({name: settings(e) for name, e in shallow.items()})
    said = in_rank(BUILD.replace("{all_settings}", f"json.loads({text!r})"))
    assert dict(line.split() for line in said.splitlines()) == {name: str(n) for name, n in wanted.items()}


def test_the_others_say_what_is_missing() -> None:
    for name, parts in MISSING.items():
        with pytest.raises(ConfigError) as refused:
            make_plan(load_experiment("platform=cpu", f"model={name}", "model.num_layers=4"), HOST)
        assert all(part in str(refused.value) for part in parts), name
