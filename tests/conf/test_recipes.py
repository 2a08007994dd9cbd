"""A vendor's recipe in an experiment: which one is taken, what it decides, what stays the same on both sides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conf import load_experiment, recipes
from conf.errors import ConfigError
from conf.resolve import Experiment
from conf.vocabulary import read_yaml
from launchers.attribute_settings import assignments, differences
from launchers.frameworks import framework_of

RECIPE = """
model: llama31_8b
hardware: [b200]
gpus: {gpus}
precision: bf16
framework: megatron_bridge
release: 0.6.0
variant: {variant}
source: made/up@0 file.py:1
base: llama.llama3_8b_pretrain_config
experiment:
  layout.tensor_model_parallel_size: 1
  layout.pipeline_model_parallel_size: {pp}
  layout.virtual_pipeline_model_parallel_size: {vp}
  layout.context_parallel_size: 1
  layout.expert_model_parallel_size: 1
  layout.sequence_parallel: false
  training.micro_batch_size: 4
  training.global_batch_size: 96
  training.seq_length: 8192
  training.recompute_granularity: null
  precision.accumulate_allreduce_grads_in_fp32: false
settings:
  model.seq_length: 8192
  train.global_batch_size: 96
  train.micro_batch_size: 4
  model.tensor_model_parallel_size: 1
  model.cuda_graph_impl: local
  logger.log_interval: 10
more: {{}}
environment: {{NCCL_NVLS_ENABLE: "0"}}
published: []
note: null
"""
OF_BRIDGE = ("platform=nvidia", "framework=megatron_bridge", "framework.release=0.6.0", "hardware=b200", "model=llama")
BEST = (*OF_BRIDGE, "method=max_performance")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put one made-up recipe in the place of the shipped ones."""
    monkeypatch.setattr(recipes, "RECIPES", tmp_path)
    add(tmp_path, "theirs")
    return tmp_path


def add(folder: Path, name: str, gpus: object = 8, variant: str = "null", pp: int = 1, vp: object = "null") -> None:
    path = folder / "megatron_bridge-0.6.0" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    write(path, RECIPE.format(gpus=gpus, variant=variant, pp=pp, vp=vp))


def write(path: Path, text: str) -> None:
    """Write a file that may have been read before, and is kept then."""
    path.write_text(text, encoding="utf-8")
    read_yaml.cache_clear()
    recipes._read.cache_clear()


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_experiment(*overrides)
    return str(error.value)


def paths(e: Experiment) -> dict[str, tuple[object, object, str]]:
    table = framework_of(e.framework.name).table
    return {d.path: (d.vendor, d.here, d.why) for d in differences(e, table)}


def test_a_recipe_decides_how_and_the_experiment_what() -> None:
    e = load_experiment(*BEST, "training.seq_length=4096")
    assert e.recipe and (e.recipe.name, e.layout.name, e.layout.source) == (
        "theirs",
        "max_performance",
        "made/up@0 file.py:1",
    )
    assert (e.training.micro_batch_size, e.training.global_batch_size, e.training.seq_length) == (4, 128, 4096)
    set_here = assignments(e, framework_of("megatron_bridge").table).set
    assert set_here["model.cuda_graph_impl"] == "local", "a switch is the recipe's"
    assert (set_here["model.seq_length"], set_here["train.global_batch_size"]) == (4096, 128), "the work is ours"


def test_the_differences_are_those_that_the_experiment_forces() -> None:
    found = paths(load_experiment(*BEST, "training.seq_length=4096"))
    assert found.pop("model.seq_length") == (8192, 4096, "training.seq_length")
    assert found.pop("train.global_batch_size") == (96, 128, "training.global_batch_size")
    assert found.pop("logger.log_interval") == (10, 1, "launchers/settings/megatron_bridge.yaml")
    assert not found
    same = load_experiment(*BEST, "training.seq_length=8192", "batch=vendor")
    assert {*paths(same)} == {"logger.log_interval"}
    assert paths(load_experiment(*OF_BRIDGE)) == {}, "without a recipe there is nothing to differ from"


def test_numerics_and_an_own_batch_are_declared() -> None:
    by_key = {d.key: (d.value, d.reason) for d in load_experiment(*BEST, "batch=vendor").declared}
    assert by_key["global_batch_size"][0] == 96
    value, reason = by_key["accumulate_allreduce_grads_in_fp32"]
    assert value is False and "numerics" in reason and "theirs" in reason
    assert "global_batch_size" not in {d.key for d in load_experiment(*BEST).declared}


@pytest.mark.parametrize(
    ("batch", "micro", "said"),
    [(128, 4, False), (16, 2, True), (24, 3, True), (8, 1, True)],
)
def test_the_micro_batch_that_comes_nearest(batch: int, micro: int, said: bool) -> None:
    e = load_experiment(*BEST, f"training.global_batch_size={batch}")
    assert e.training.micro_batch_size == micro
    assert any("the recipe's 4" in reason for reason in e.reasons) is said


def test_with_virtual_stages_the_micro_batches_divide_by_the_stages(folder: Path) -> None:
    add(folder, "theirs", pp=2, vp=2)
    e = load_experiment(*BEST, "training.global_batch_size=16")
    assert (e.training.micro_batch_size, e.layout.num_micro_batches) == (2, 2)


def test_what_the_user_typed_is_a_difference() -> None:
    e = load_experiment(*BEST, "training.micro_batch_size=2")
    assert paths(e)["train.micro_batch_size"] == (4, 2, "training.micro_batch_size")


def test_of_several_the_one_for_this_number_and_without_a_variant(folder: Path) -> None:
    add(folder, "any", gpus="null")
    add(folder, "large", variant="large scale")
    for overrides, name in (((), "theirs"), (("recipe=large",), "large"), (("nodes=2",), "any")):
        e = load_experiment(*BEST, *overrides)
        assert e.recipe and e.recipe.name == name
    add(folder, "again")
    assert "recipe=NAME" in refused(*BEST)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("hardware=h200",), "no recipe is published for this case; theirs; framework.release=0.6.0"),
        (("recipe=nobodys",), "no recipe has this name; theirs"),
        (("recipe=theirs", "nodes=2"), "theirs is published for another case"),
        (("layout=tp2",), "the layout of the vendor's recipe"),
        (("layout.tensor_model_parallel_size=2",), "the layout of the vendor's recipe"),
        (("training.global_batch_size=12",), "does not divide; this is theirs"),
        (("method=identical", "recipe=theirs"), "nobody's recipe; method=max_performance"),
        (("method=identical", "batch=vendor"), "nobody's recipe; batch=vendor"),
    ],
)
def test_what_cannot_be_is_refused_with_the_nearest(overrides: tuple[str, ...], words: str) -> None:
    message = refused(*BEST, *overrides)
    assert all(word in message for word in words.split("; ")), message


def test_the_nearest_recipe_is_one_of_this_architecture_and_runs_when_it_is_named(folder: Path) -> None:
    text = RECIPE.format(gpus=8, variant="null", pp=1, vp="null")
    for stack, hardware in (("primus", "mi300x"), ("nemo", "h100")):
        changed = text.replace("[b200]", f"[{hardware}]").replace("framework: megatron_bridge", f"framework: {stack}")
        (folder / f"{stack}-1").mkdir()
        write(folder / f"{stack}-1" / f"of_{hardware}.yaml", changed)
    request = ("platform=nvidia", "model=llama", "method=max_performance", "hardware=h200")
    message = refused(*request)
    assert message.index("recipe=of_h100") > message.index("theirs") > message.index("of_h100")
    assert "of_mi300x" not in message, "no vendor runs another's"
    assert "framework.release" not in message.partition("allowed")[0], "nobody typed it, and no other has one"
    named = load_experiment(*request, "framework=nemo", "framework.release=0.6.0", "recipe=of_h100")
    declared = {d.key: d.reason for d in named.declared}
    assert declared["recipe"] == "published for h100, run on h200 as requested (recipe=)"
    assert "theirs is published for another case" in refused(*request, "recipe=theirs")


def test_what_a_refusal_names_is_what_helps() -> None:
    """The release that nobody typed stands in it only where another release has the recipe."""
    other = refused("platform=nvidia", "model=llama", "method=max_performance", "hardware=b200", "framework=nemo")
    found, _, allowed = other.partition("allowed")
    assert "framework=nemo" in found and "framework.release" not in found
    assert "try: framework=megatron_bridge framework.release=0.6.0 has one" in allowed
    older = refused(*BEST, "framework.release=0.3.1")
    assert "framework=megatron_bridge framework.release=0.3.1" in older.partition("allowed")[0]
    assert "try: framework=megatron_bridge framework.release=0.6.0 has one" in older
    load_experiment(*BEST, "framework=megatron_bridge", "framework.release=0.6.0")


def test_a_model_of_the_same_sizes_is_named_and_all_else_that_is_wrong(folder: Path) -> None:
    message = refused(
        "platform=nvidia", "model=llama3_8b", "method=max_performance", "hardware=b200", "optimizer.lr=-1"
    )
    assert "model=llama31_8b is of the same sizes" in message and "optimizer.lr: must be above 0" in message


def test_a_batch_that_keeps_a_recipe_from_running_says_that_its_own_would_run() -> None:
    assert "batch=vendor: it is published with a batch of 96" in refused(*BEST, "training.global_batch_size=12")
    assert "batch=vendor" not in refused(*BEST, "training.micro_batch_size=5"), "of which 96 is no multiple either"


def test_the_environment_is_the_users_then_the_recipes() -> None:
    from launchers import make_plan
    from launchers.plan import Host

    plan = make_plan(load_experiment(*BEST, "environment.NCCL_DEBUG=INFO"), Host(python="python", cpu_count=8))
    assert (plan.env["NCCL_DEBUG"], plan.env["NCCL_NVLS_ENABLE"]) == ("INFO", "0")
    assert "theirs" in plan.env_reasons["NCCL_NVLS_ENABLE"]
    plan = make_plan(load_experiment(*BEST, "environment.NCCL_NVLS_ENABLE=1"), Host(python="python", cpu_count=8))
    assert plan.env["NCCL_NVLS_ENABLE"] == "1"


def test_a_file_that_does_not_fit_is_named(folder: Path) -> None:
    path = folder / "megatron_bridge-0.6.0" / "theirs.yaml"
    write(path, path.read_text().replace("gpus: 8", "gpus: eight"))
    assert "megatron_bridge-0.6.0/theirs.yaml.gpus" in refused(*BEST)
    write(path, path.read_text().replace("gpus: eight", "gpus: 8").replace("layout.seq", "model.seq"))
    assert "a recipe decides no such key" in refused(*BEST)


@pytest.mark.parametrize(
    ("settings", "layers", "count", "chunks"),
    [
        ({"a.pipeline_model_parallel_layout": "Et*2|(t*3|)*2tmL"}, 9, 4, (2, 3, 3, 1)),
        ({"pipeline_model_parallel_layout": "Et*5|t*6|t*5,L"}, 16, 3, (5, 6, 5)),
        ({"pipeline_model_parallel_layout": [["embedding", "decoder"], ["decoder", "mtp", "loss"]]}, 2, 2, (1, 1)),
        ({"a.pipeline_model_parallel_layout": "Et*2|(t*3|)*2tmL"}, 4, 4, None),
        ({}, 8, 4, None),
    ],
)
def test_the_layers_of_each_stage_as_a_recipe_deals_them_out(
    settings: dict[str, object], layers: int, count: int, chunks: tuple[int, ...] | None
) -> None:
    (recipe,) = recipes.recipes()
    assert replace(recipe, settings=settings).chunks(layers, count) == chunks
