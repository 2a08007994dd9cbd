"""AMD's shipped experiments of Primus (examples/megatron/configs/GPU/NAME-pretrain.yaml of a checkout) as recipes."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from conf.compose import choices, read_choice
from conf.errors import Problem
from conf.recipes import Recipe
from launchers.attribute_settings import Table
from launchers.rank_modules import rank_module

TREE = "primus/cli/main.py"
CONFIGS = Path("examples", "megatron", "configs")
GUIDE = Path("docs", "02-user-guide", "training-recipes.md")
PROGRAM = Path(__file__).parent / "ranks" / "primus_recipes.py"
_TIMEOUT_S = 600


class Tree(NamedTuple):
    """A checkout of a release, and the variables that its guide exports for each GPU, by the name of its folder."""

    path: Path
    commit: str
    release: str
    variables: Mapping[str, Mapping[str, str]]


def read(checkout: Path, python: str, release: str, table: Table) -> Iterator[Recipe | Problem]:
    """Yield every shipped pre-training experiment as a recipe, or why it cannot be one."""
    files = sorted((checkout / CONFIGS).glob("MI*/*-pretrain.yaml"))
    argv = [python, "-B", str(PROGRAM), str(checkout), *map(str, files)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if len(lines) < len(files):
        what = f"{python} could not run Primus' loader: it needs PyYAML"
        yield Problem("recipes", what, " ".join(done.stderr.split()[-30:]), hint="python=PYTHON")
        return
    commit = rank_module("primus_check").git(checkout, "rev-parse", "HEAD") or release
    tree = Tree(checkout, commit[:8], release, documented(checkout))
    yield from (_recipe(line, tree, table) for line in lines)


def _recipe(line: Mapping[str, Any], tree: Tree, table: Table) -> Recipe | Problem:
    """Return the recipe of one line of the program, or why it is none."""
    file = Path(line["file"]).relative_to(tree.path.resolve())
    if "failed" in line:
        return Problem(str(file), "Primus' own loader refuses it", line["failed"])
    values, folder = line["resolved"], file.parent.name
    model, precision = model_of(line["preset"], values), precision_of(values)
    hardware = table.more["published_for"].get(folder)
    if model is None:
        return Problem(str(file), "conf/model has no model of this preset", line["preset"])
    if precision is None:
        found = ", ".join(f"{key} {values.get(key)}" for key in ("fp8", "fp8_recipe", "fp4"))
        return Problem(str(file), "conf/precision has no such precision", found)
    if hardware is None:
        return Problem(str(file), "conf/hardware has no such GPU", folder)
    name = f"{folder}-{file.stem.removesuffix('-pretrain')}"
    variant = re.fullmatch(r".*-(?:BF16|FP8|MXFP\d)-(.+)", name)
    return Recipe(
        name=name,
        model=model,
        hardware=tuple(hardware),
        gpus=None,
        precision=precision,
        framework="primus",
        release=tree.release,
        variant=variant[1] if variant else None,
        source=f"AMD-AGI/Primus@{tree.commit} {file}",
        base=line["preset"],
        experiment=_experiment(values),
        settings=_settings(line, model, tree.release, table),
        more=_states(values),
        environment=_environment(tree.variables.get(folder), values, table),
        published=tuple(table.more["published"].get(name, ())),
        note=_note(values),
    )


def _environment(
    documented: Mapping[str, str] | None, values: Mapping[str, Any], table: Table
) -> Mapping[str, str] | None:
    """Return what AMD's guide exports for the GPU, without what its launcher warns of where there are experts."""
    if documented is None or not values.get("num_experts"):
        return documented
    return {name: value for name, value in documented.items() if name not in table.more["not_of_experts"]}


def model_of(preset: str, values: Mapping[str, Any]) -> str | None:
    """Return the model of conf/model that Primus has `preset` for: the toys that are built on one have other sizes."""
    presets: Mapping[str, str] = read_choice("framework", "primus")["recipes"]
    for name in (model for model, known in presets.items() if known == preset):
        sizes = read_choice("model", name)["model"]
        if all(sizes[key] == values.get(key) for key in ("num_layers", "hidden_size")):
            return name
    return None


def precision_of(values: Mapping[str, Any]) -> str | None:
    """Return the precision of conf/precision that Primus' arguments mean; null where none is as they say."""
    fp8 = values.get("fp8")
    meant = ("bfloat16" if values.get("bf16") else "float32", fp8, values.get("fp8_recipe") if fp8 else None)
    keys = ("params_dtype", "fp8", "fp8_recipe")
    known = {name: read_choice("precision", name) for name in choices("precision")}
    names = (name for name, one in known.items() if meant == tuple(one[key] for key in keys))
    return None if values.get("fp4") else next(names, None)


def _experiment(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return our keys that the arguments decide. Primus switches sequence parallelism off where TP is 1
    (primus/backends/megatron/patches/args), and its key of that name for virtual stages does nothing."""
    tp, pp = values["tensor_model_parallel_size"], values["pipeline_model_parallel_size"]
    stages = values.get("num_virtual_stages_per_pipeline_rank")
    if layers := values.get("num_layers_per_virtual_pipeline_stage"):
        stages = values["num_layers"] // pp // layers
    if parts := values.get("pipeline_model_parallel_layout"):  # E for embedding, t a layer, m of MTP, L the loss
        stages = len(parts.split("|")) // pp
    layout = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": stages,
        "context_parallel_size": values["context_parallel_size"],
        "expert_model_parallel_size": values["expert_model_parallel_size"],
        "sequence_parallel": bool(values["sequence_parallel"]) and tp > 1,
    }
    names = [
        *("micro_batch_size", "global_batch_size", "seq_length"),
        *("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather"),
    ]
    recompute = {f"recompute_{part}": values[f"recompute_{part}"] for part in ("granularity", "method", "num_layers")}
    if recompute["recompute_num_layers"] == 0:  # of no layer
        recompute = dict.fromkeys(recompute)
    if values.get("recompute_layer_ids"):  # layers by number: Primus' own way, which no setting of ours says
        recompute = {}
    # as Megatron's validate_args has it (M:megatron/training/arguments.py:953-956)
    kept_in_fp32 = values["accumulate_allreduce_grads_in_fp32"] or values["main_grads_dtype"] == "fp32"
    in_fp32 = kept_in_fp32 and not values["grad_reduce_in_bf16"]
    return {
        **{f"layout.{name}": value for name, value in layout.items()},
        **{f"training.{name}": value for name, value in {**{n: values[n] for n in names}, **recompute}.items()},
        "precision.accumulate_allreduce_grads_in_fp32": in_fp32,
    }


def _settings(line: Mapping[str, Any], model: str, release: str, table: Table) -> dict[str, Any]:
    """Return the vendor's value of every key that differs from its preset's own, or that we write for `model`. What no
    preset has is Megatron's own."""
    values, base = line["resolved"], line["base"]
    changed = {key for key, value in values.items() if key not in base or base[key] != value}
    parts = read_choice("model", model)["model"]
    ours = {key for keys in (table.always, table.switches) for key in keys}
    for row in (*table.settings.values(), *table.parts):
        part = row.of.split(".")[1] if row.of.startswith("model.") else None
        if not (row.write.unless_null and part in parts and parts[part] is None):
            ours.update(row.paths(release))
    megatrons = table.more["megatrons_own"]
    return {key: values.get(key, megatrons.get(key)) for key in sorted(changed | (ours & {*values, *megatrons}))}


def _states(values: Mapping[str, Any]) -> dict[str, str]:
    """Return why the model states of a rank are not by the rule of DP, TP and PP, where they are not."""
    if values.get("use_torch_fsdp2"):
        return {"model_states": "the recipe's FSDP2 shards parameters, gradients and optimizer over all ranks"}
    if values.get("use_precision_aware_optimizer") and values.get("exp_avg_dtype") != "fp32":
        return {"model_states": "the recipe's optimizer keeps its moments in less than fp32"}
    return {}


def _note(values: Mapping[str, Any]) -> str | None:
    """Return the numbers of GPUs that the layout can run on, where not any will do."""
    tp, pp, ep = (values[f"{kind}_model_parallel_size"] for kind in ("tensor", "pipeline", "expert"))
    of_experts = (values.get("expert_tensor_parallel_size") or tp) * ep * pp if values.get("num_experts") else 1
    unit = math.lcm(tp * pp * values["context_parallel_size"], of_experts)
    return None if unit == 1 else f"runs on multiples of {unit} GPUs: TP {tp}, PP {pp}, EP {ep}"


def documented(checkout: Path) -> dict[str, dict[str, str]]:
    """Return the variables that AMD's guide of this release exports for each GPU, by the name of its folder."""
    text = rank_module("rank_program").read_text(checkout / GUIDE)
    block = re.search(r"^### GPU-architecture environment variables\n.*?```bash\n(.*?)```", text, re.M | re.S)
    if block is None:
        return {}
    exports = dict(re.findall(r"^export (\w+)=(\S+)$", block[1], re.M))
    gpus = re.findall(r"\bMI\d+X\b", block[1].splitlines()[0])
    return {gpu: dict(exports) for gpu in gpus}


def moved(recipe: Recipe, shipped: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what a checkout ships otherwise than `recipe` says; placeholders for the environment are left out."""
    for key, value in shipped.items():
        known = recipe.settings.get(key, value)
        if known != value and "${" not in str(value):
            what = f"the checkout ships another {key} in {recipe.source.split()[-1]}"
            yield Problem("recipe", what, str(value), str(known), "tprimat recipes import CHECKOUT")
