"""NVIDIA's performance recipes of Megatron-Bridge as recipes of ours: megatron.bridge.perf_recipes of a checkout or,
before 0.6.0, its scripts/performance, each built by its own code (launchers/ranks/bridge_recipes.py), and the figures
of docs/performance-summary.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.compose import choices
from conf.errors import Problem, listed
from conf.frameworks import facts
from conf.load import model_named
from conf.recipes import Recipe
from conf.schema import Model
from conf.vendors import output
from conf.vocabulary import vocabulary
from launchers.frameworks import Framework
from launchers.rank_modules import FOLDER

TREES = ("src/megatron/bridge/perf_recipes/environment.py", "scripts/performance/run_script.py")
"""Where the recipes are: in the package or, before 0.6.0, in scripts that none has."""
REPOSITORY = "NVIDIA-NeMo/Megatron-Bridge"
PRECISIONS = {"bf16": "bf16", "fp8cs": "fp8_current", "fp8mx": "mxfp8"}
"""The word in a recipe's name → conf/precision."""
DECIDED = ("layout.", "training.recompute_", "training.overlap_", "precision.accumulate_")
_ALSO = (
    *("training.micro_batch_size", "training.global_batch_size", "training.seq_length"),
    "training.use_distributed_optimizer",
)
Hub = Callable[[str, Model], Mapping[str, Any]]
"""The name of a function of Bridge's, our model → the hub's answer about it: {id, revisions, config}."""
_FIGURES = "docs/performance-summary.md"
_TIMEOUT_S = 1800


def read(stack: Framework, checkout: Path, python: str, release: str, hub: Hub) -> Iterator[Recipe | Problem]:
    """Yield every pre-training recipe of `checkout` for `stack`, built by `python`, or why it cannot be one."""
    in_package, scripts = (checkout / tree for tree in TREES)
    request = {**_request(stack, release, hub), "scripts": None if in_package.is_file() else str(scripts.parent)}
    roots = [checkout / "src", checkout / "3rdparty" / "Megatron-LM"]
    path = os.pathsep.join([*map(str, roots), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    argv = [python, "-B", str(FOLDER / "bridge_recipes.py")]
    options = {"env": os.environ | {"PYTHONPATH": path}, "timeout": _TIMEOUT_S, "check": False}
    done = subprocess.run(argv, input=json.dumps(request), capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        what, said = f"{python} could not build Bridge's recipes", " ".join(done.stderr.split()[-40:])
        yield Problem("recipes", what, said, hint="python=PYTHON, with what Bridge requires and its Megatron-Core")
        return
    tree = f"{REPOSITORY}@{output('git', '-C', str(checkout), 'rev-parse', 'HEAD').strip()[:8] or 'unknown'}"
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    figures = list(_figures(checkout))
    for row in rows:
        made = _recipe(row, release, tree, stack)
        yield replace(made, published=_published(made, figures, tree)) if isinstance(made, Recipe) else made


def models(stack: Framework) -> Iterator[tuple[str, str, Model, str | None]]:
    """Yield what a recipe's name begins with, the base of it, our model with the facts that the vendor's config.json
    has, and what to know of it."""
    others: Mapping[str, Mapping[str, Any]] = stack.table.more["perf_recipes"]
    for name, base in facts(stack.name)["recipes"].items():
        if f"{name}_pretrain_config" == base.partition(".")[2] and (model := model_named(name)):
            yield name, base, model, None
    for name, other in others.items():
        if model := model_named(other["model"]):
            yield name, other["base"], replace(model, **other["but"]), other["note"]


def _request(stack: Framework, release: str, hub: Hub) -> dict[str, Any]:
    """Return what ranks/bridge_recipes.py reads on stdin."""
    table = stack.table
    rows = (*table.settings.values(), *table.parts)
    constants = (table.always, table.always_if_there, table.switches, table.switches_if_there)
    paths = {path for row in rows for path in row.paths(release)} | {path for part in constants for path in part}
    known = list(models(stack))
    return {
        "hub": [hub(base.partition(".")[2], model) for _, base, model, _ in known],
        "bases": {name: base for name, base, _, _ in known},
        "paths": sorted(paths),
    }


def _recipe(row: Mapping[str, Any], release: str, tree: str, stack: Framework) -> Recipe | Problem:
    """Return a line of ranks/bridge_recipes.py as a recipe, all but the published figures; or why it is none."""
    notes = {name: (model.name, note) for name, _, model, note in models(stack)}
    source = f"{tree} {row['where']}"
    where = f"{row['name']} ({row['where']})"
    if "problem" in row:
        return Problem(where, row["problem"])
    if row["hardware"] not in choices("hardware"):
        return Problem(where, "conf/hardware has no such GPU", row["hardware"])
    if row["precision"] not in PRECISIONS:
        return Problem(where, "conf/precision has no such precision", row["precision"], listed([*PRECISIONS]))
    model, note = notes[row["model"]]
    ignored = [f"sets {text} on a class that has no such field" for text in row["unread"]]
    return Recipe(
        name=row["name"],
        model=model,
        hardware=(row["hardware"],),
        gpus=row["gpus"],
        precision=PRECISIONS[row["precision"]],
        framework=stack.name,
        release=release,
        variant=row["variant"],
        source=source,
        base=row["base"],
        experiment=_experiment(row["configured"]),
        settings=row["settings"],
        more={"precision": row["factory"], **_states(row["settings"])},
        environment=row["environment"],
        published=(),
        note="; ".join(filter(None, (note, row["note"], *ignored))) or None,
    )


def _states(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return why the model states of a rank are not by the rule of DP, TP and PP, where they are not."""
    tp, etp = settings["model.tensor_model_parallel_size"], settings["model.expert_tensor_parallel_size"]
    if settings["ddp.use_megatron_fsdp"]:
        return {"model_states": "the recipe's FSDP shards parameters and gradients, too"}
    if settings["model.num_moe_experts"] and etp not in (None, tp):
        return {"model_states": f"the recipe splits its experts over {etp}, all else over TP {tp}"}
    if settings["optimizer.exp_avg_dtype"] != {"dtype": "float32"}:
        return {"model_states": "the recipe's optimizer keeps its moments in less than fp32"}
    return {}


def _experiment(configured: Mapping[str, Any]) -> dict[str, Any]:
    """Return our keys that a recipe decides, as Bridge's own rules have them."""
    requests = {
        setting.request: name for name, setting in vocabulary().items() if setting.request and name in configured
    }
    derived = ("layout.data_parallel_size", "layout.num_micro_batches", "layout.world_size")
    decided = [of for of in requests if (of.startswith(DECIDED) or of in _ALSO) and of not in derived]
    return {of: configured[requests[of]] for of in decided}


_COLUMNS = {
    "#-GPUs": "gpus", "GBS": "training.global_batch_size", "MBS": "training.micro_batch_size",
    "Sequence Length": "training.seq_length", "TP": "layout.tensor_model_parallel_size",
    "PP": "layout.pipeline_model_parallel_size", "CP": "layout.context_parallel_size",
    "VP": "layout.virtual_pipeline_model_parallel_size", "EP": "layout.expert_model_parallel_size",
}  # fmt: skip
_PRECISION_WORDS = {"BF16": "bf16", "FP8": "fp8_current", "FP8-CS": "fp8_current", "MXFP8": "mxfp8"}


def _figures(checkout: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (line, its row by column) of the first container's tables of pre-training: of a model each, with a row for
    a system, or of a system, with a row for a model."""
    try:
        lines = (checkout / _FIGURES).read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    containers, heading, columns = 0, dict[str, str](), list[str]()
    for number, line in enumerate(lines, 1):
        containers += bool(re.match(r"## .*Container", line))
        if containers > 1 or re.match(r"### (?!Pre-Training)", line) or line.startswith("## Archive"):
            return
        if of := re.match(r"#### (Model|System):(.*)", line):
            heading, columns = {of[1]: of[2]}, []
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and columns and "---" not in line:
            yield f"{_FIGURES}:{number}", {**heading, **dict(zip(columns, cells, strict=False))}
        columns = columns or (cells if line.startswith("|") else [])


def _published(recipe: Recipe, figures: list[tuple[str, dict[str, str]]], tree: str) -> tuple[dict[str, Any], ...]:
    """Return the figures that are published for just what `recipe` runs."""
    stated = {"gpus": recipe.gpus, **recipe.experiment}
    made = []
    for line, row in figures:
        same = re.sub(r"\W|_", "", row["Model"]).lower() == recipe.name.partition("_pretrain_")[0].replace("_", "")
        same &= row["System"].strip().lower().removeprefix("dgx-") in recipe.hardware
        same &= _PRECISION_WORDS.get(row["Precision"]) == recipe.precision and recipe.variant is None
        same &= bool(_number(row.get("FSDP", "0"))) == recipe.settings["ddp.use_megatron_fsdp"]
        if same and all((_number(row[column]) or 1) == (stated[of] or 1) for column, of in _COLUMNS.items()):
            speed, rate = _number(row["Tokens / sec / GPU"]), _number(row["Model TFLOP / sec / GPU"])
            made.append({"tokens_per_s_per_gpu": speed, "tflops_per_gpu": rate, "source": f"{tree} {line}"})
    return tuple(made)


def _number(cell: str) -> float | None:
    return int(cell) if cell.isdigit() else None
