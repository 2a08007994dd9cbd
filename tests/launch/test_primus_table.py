"""Test what every Primus plan sets, in one table, eight bundles, and equality with NVIDIA's side.

A change is accepted with: UPDATE_GOLDEN=1 make test (or UPDATE_GOLDEN=1 pytest tests/launch/test_primus_table.py)"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal

import pytest
import yaml

from conf import load_experiment
from conf.errors import ConfigError
from conf.vocabulary import program_settings
from launchers import containers, corpus, make_plan
from launchers.frameworks import primus
from launchers.plan import NO_REHEARSAL
from tests.launch import test_nvidia_table as nvidia_cases
from tests.launch.primus_cases import HARDWARE, HOST, PRECISIONS, RELEASES, canonical, overrides, planned, written
from tests.launch.test_nvidia_table import MODELS, rendered, shown_value

ACCEPT = "# accept a change with: UPDATE_GOLDEN=1 make test\n"
BUNDLES: dict[str, tuple[str, ...]] = {
    "llama_mi300x": overrides("llama", "mi300x", "bf16", "v26.5"),
    "llama_mi325x_fp8_v25.9": overrides("llama", "mi325x", "fp8", "v25.9"),
    "llama_mi355x_mxfp8_v26.6": overrides("llama", "mi355x", "mxfp8", "v26.6"),
    "qwen_mi355x_turbo_v26.2": (
        *overrides("qwen", "mi355x", "bf16", "v26.2"),
        *("framework.options.enable_primus_turbo=true", "framework.options.use_turbo_gemm=true"),
    ),
    "llama31_70b_mi300x_fp8": overrides("llama31_70b", "mi300x", "fp8", "v26.5"),
    "mixtral_8x7b_mi325x": overrides("mixtral_8x7b", "mi325x", "bf16", "v26.5"),
    "deepseek_v3_mi355x_v26.2": overrides("deepseek_v3", "mi355x", "bf16", "v26.2"),
    "llama_mi300x_container_mock": (
        *overrides("llama", "mi300x", "bf16", "v26.5"),
        *("data=mock", "image=rocm/primus:v26.5", "framework.entry=container", "layout=tp2_pp2"),
        "layout.virtual_pipeline_model_parallel_size=2",
    ),
}


COMPLETE = ("llama_mi300x", "deepseek_v3_mi355x_v26.2")  # the other bundles are kept as what differs from the first


def bundle_texts(name: str) -> dict[str, str]:
    """Return what a bundle renders, by file; the programs that it carries are left out."""
    ours, texts = primus.FRAMEWORK.table.more, primus.FRAMEWORK.bundle(*planned(*BUNDLES[name]), NO_REHEARSAL)
    return {file: text for file, text in texts.items() if file not in {*ours["programs"], primus.TRAIN}}


@pytest.mark.parametrize("name", BUNDLES)
def test_golden_bundle(name: str, golden: Callable[[str, str], None]) -> None:
    texts, first = bundle_texts(name), bundle_texts(COMPLETE[0])
    if name in COMPLETE:
        for file, text in texts.items():
            golden(f"primus/bundles/{name}/{file}", text)
        return
    assert texts.keys() == first.keys()
    lines = [f"lines that differ from {COMPLETE[0]}'s"]
    for file, text in texts.items():
        difference = difflib.unified_diff(first[file].splitlines(), text.splitlines(), lineterm="", n=0)
        lines += ["", file, *(line for line in difference if line[:3] not in ("---", "+++", "@@ "))]
    golden(f"primus/bundles/{name}.txt", "\n".join(lines) + "\n")


@pytest.mark.long
def test_the_table_of_settings(golden: Callable[[str, str], None]) -> None:
    sides = list(product(HARDWARE, RELEASES))
    out = io.StringIO()
    writer = csv.writer(out, delimiter="\t", lineterminator="\n")
    writer.writerow(["model", "precision", "setting", *(f"{gpu} {release}" for gpu, release in sides)])
    for model, precision in product(MODELS, PRECISIONS):
        plans = [planned(*overrides(model, gpu, precision, release))[1] for gpu, release in sides]
        columns = [
            {
                **{name: str(value) for name, value in canonical(plan).items()},
                **{f"${n}": v for n, v in plan.env.items() if n != "START_RANKS"},  # a path of this machine
            }
            for plan in plans
        ]
        for name in dict.fromkeys(name for column in columns for name in sorted(column)):
            writer.writerow([model, precision, name, *(column.get(name, "") for column in columns)])
    golden("primus/settings.tsv", ACCEPT + out.getvalue())


@pytest.mark.long
@pytest.mark.parametrize(("model", "release"), list(product(MODELS, RELEASES)))
def test_the_yaml_says_what_was_requested(model: str, release: str) -> None:
    for hardware, precision in product(HARDWARE, PRECISIONS):
        e, plan = planned(*overrides(model, hardware, precision, release))
        requested, given = program_settings(e), canonical(plan)
        assert {
            name: (requested[name], given.get(name, "not given"))
            for name in requested
            if requested[name] != given.get(name)
        } == {}


@pytest.mark.parametrize(
    ("model", "framework", "precision"), list(product(MODELS, ("nemo", "megatron_bridge"), PRECISIONS))
)
def test_both_platforms_are_reported_the_same_of_every_setting(model: str, framework: str, precision: str) -> None:
    """Equal but for those that a side declares; the list of all is every setting of the vocabulary."""
    _, amd = planned(*overrides(model, "mi300x", precision, "v26.5"))
    try:
        nvidia_requested = load_experiment(*nvidia_cases.overrides(model, "h100", precision, framework))
        nvidia = make_plan(nvidia_requested, HOST)
    except ConfigError:
        assert (model, framework) == ("mixtral_8x7b", "megatron_bridge")
        return
    left = {name: plain(name, text) for name, text in rendered((nvidia_requested, nvidia))}
    right = {name: plain(name, shown_value(value)) for name, value in canonical(amd).items()}
    stated = yaml.safe_load(nvidia.files["settings.yaml"])
    for value in stated["set"].values():
        if isinstance(value, dict) and "object" in value:
            left["vocab_size"] = str(value["set"]["vocab_size"] + 1)  # NeMo's adds one, for eod
    left["eval_interval"] = "None" if left["eval_iters"] == "0" else left["eval_interval"]  # an integer in any case
    if left.get("moe_first_dense_layers") == "1":
        left["moe_first_dense_layers"] = "0"  # a frequency: experts in every layer
    settings = list(program_settings(nvidia_requested))
    assert set(settings) <= set(right)
    assert set(settings) <= set(left)
    declared = {d.key for d in (*nvidia.declared, *amd.declared)}
    unequal = {name: (left[name], right[name]) for name in settings if left[name] != right[name]}
    assert set(unequal) <= declared
    assert set(unequal) <= {"max_position_embeddings"}  # NeMo's and Bridge's is the sequence length
    assert written(amd).items() >= FP8_FACTORY.items()
    if precision == "fp8":
        assert "fp8" in stated["precision"]["factory"]
        names = ("fp8", "fp8_param_gather", "first_last_layers_bf16")
        assert {n: stated["precision"]["set"][n] for n in names} == {n: written(amd)[n] for n in names}
    fused = "gradient_accumulation_fusion"
    requested = next(value for path, value in stated["set"].items() if path.endswith(fused))
    assert (fused in declared) == (requested != written(amd)[fused])


FP8_FACTORY = {"fp8_margin": 0, "fp8_amax_history_len": 1024, "fp8_amax_compute_algo": "max"}
"""The values that the fp8 factories of NeMo 2.7.3 (collections/llm/recipes/precision/mixed_precision.py:56) and Bridge
0.3.1 (training/mixed_precision.py:214) set by themselves; Megatron's own defaults are 1 and most_recent."""


def plain(name: str, text: str) -> str:
    """One form of what stacks write otherwise: 1e4 and 10000, a list of layers and a count, an enum and a name."""
    text = text.strip("()[]")
    if name == "moe_first_dense_layers" and len(text) > 8:
        return str(len(text) - len(text.lstrip("0")))
    if name == "data_path":
        return text.removesuffix(", None").strip("'[]")
    if name == "attention_backend":
        return {"AttnBackend.auto": "sdpa"}.get(text, text)
    if name == "rope_scaling_factor" and text == "1.0":
        return "None"  # a factor of one is no scaling
    return text.removesuffix(".0")


def test_every_number_loads_back_as_a_number() -> None:
    tiny = planned(*BUNDLES["llama_mi300x"], "optimizer.lr=3e-4", "optimizer.min_lr=1e-7", "optimizer.adam_eps=1e-8")[1]
    assert [written(tiny)[key] for key in ("lr", "min_lr", "adam_eps")] == [3e-4, 1e-7, 1e-8]


@pytest.mark.parametrize("runtime", ["docker", "podman", "pyxis"])
def test_golden_container(
    runtime: Literal["docker", "podman", "pyxis"],
    golden: Callable[[str, str], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    e, plan = planned(*BUNDLES["llama_mi300x"], "image=rocm/primus:v26.5")
    e = replace(e, cluster=replace(e.cluster, container=runtime, forward_env=("HF_TOKEN",)))
    wrapped = containers.wrap(replace(plan, forward_env=("HF_TOKEN",)), e, Path("/runs/it"))
    text = wrapped.command().replace(str(corpus.PROGRAM.parent), "RANKS")
    golden(f"primus/container_{runtime}.txt", ACCEPT + text.replace(" && ", "\n&& ") + "\n")
