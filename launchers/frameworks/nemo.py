"""framework=nemo: NVIDIA NeMo 2.x (launchers/ranks/nemo_ranks.py), and NVIDIA's performance scripts for it as recipes:
the rows of a checkout's tables, built by the scripts of the installed package (launchers/ranks/nemo_recipes.py)."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.check import wrong
from conf.compose import CONF
from conf.errors import Problem
from conf.recipes import Recipe
from conf.resolve import Experiment
from conf.vendors import vendor_of
from conf.vocabulary import read_yaml
from launchers.attribute_settings import Difference, Table
from launchers.nvidia import RANKS, RecipeStack
from launchers.rank_modules import rank_module

TABLES = "scripts/performance/recommended_model_configs"
TREE = f"{TABLES}/model_configs_h100.csv"
PRECISIONS = {None: "bf16", "ds": "fp8", "cs": "fp8_current", "mxfp8": "mxfp8"}
DECIDED = (
    *("layout.tensor_model_parallel_size", "layout.pipeline_model_parallel_size", "layout.context_parallel_size"),
    *("layout.virtual_pipeline_model_parallel_size", "layout.expert_model_parallel_size", "layout.sequence_parallel"),
    *("training.micro_batch_size", "training.global_batch_size", "training.seq_length"),
    *("training.recompute_granularity", "training.recompute_method", "training.recompute_num_layers"),
    *("training.use_distributed_optimizer", "precision.accumulate_allreduce_grads_in_fp32"),
)
_TIMEOUT_S = 1800


class Nemo(RecipeStack):
    name = "nemo"
    opens_tokenizers = True
    program = RANKS / "nemo_ranks.py"
    checkouts = "NEMO_PATH"
    lists_on_one_line = True  # one entry a layer is no reading matter
    recipe_trees = (TREE,)

    def read_recipes(self, checkout: Path, python: str, release: str) -> Iterator[Recipe | Problem]:
        """Yield NVIDIA's performance scripts' rows as recipes."""
        return _read(checkout, python, release, self.table)

    def stands_in(self, recipe: Recipe, lines: Sequence[str]) -> bool:
        """Return whether the first of `lines` is the row of the tables that `recipe` was read from."""
        row = next(csv.reader(lines), [])
        return [value for value in row if value] == [*recipe.more["table"].values()]

    def differences(self, e: Experiment) -> tuple[Difference, ...]:
        """Return what differs by paths, and the classes that no path names: the model's, and the data's."""
        if e.recipe is None:
            return ()
        classes = [
            Difference(path, vendor, here, "model.name") for path, (vendor, here) in e.recipe.more["classes"].items()
        ]
        if e.data.name != "mock":
            classes.append(Difference("data", "MockDataModule", "PreTrainingDataModule", "data.name"))
        return (*classes, *super().differences(e))

    def precision(self, e: Experiment) -> dict[str, Any]:
        """Return the factory's name, and what is set on the plugin of method=identical: paths of a recipe reach it."""
        made = super().precision(e)
        fields = {name: value for name, value in made["set"].items() if name != "grad_reduce_in_fp32"}  # by path
        return {**made, "set": {} if e.recipe else fields}

    def settings(self, e: Experiment) -> dict[str, Any]:
        # the name in NeMo's flops_callback.py, for the TFLOP/s that it prints: qwen3's counts widths as configured;
        # llama3's and mixtral's have a vocabulary of their own, deepseekv3's wants a low rank of the queries
        mla = e.model.mla
        flops = "qwen3" if mla is None else None if mla.q_lora_rank is None else "deepseekv3"
        return {
            "recipe": e.framework.recipes[e.model.name],
            "device": vendor_of(e.accelerator).torch_device,
            "nodes": e.nodes,
            "gpus_per_node": e.gpus_per_node,
            "seed": e.training.seed,
            "data": {"name": e.data.name, "path": e.data.path, "split": e.data.split, "vocab_size": e.model.vocab_size},
            "precision": self.precision(e),
            "flops_formula": flops,
            **({"release": e.recipe.release} if e.recipe else {}),
        }

    def refusals(self, e: Experiment) -> Iterator[Problem]:
        yield from super().refusals(e)
        if e.accelerator is None and e.training.save_interval and e.layout.world_size > 1:
            what = "with several ranks over gloo NeMo's checkpoint callback was seen to hang (Lightning's broadcast)"
            hint = "gpus_per_node=1, or framework=megatron_bridge"
            yield wrong(e, "training.save_interval", what, "null", hint)


def _read(checkout: Path, python: str, release: str, table: Table) -> Iterator[Recipe | Problem]:
    """Yield every row of the tables as a recipe of `release`, which `python` has, or why it cannot be one."""
    modules = read_yaml(CONF / "framework" / "nemo.yaml")["recipes"]
    models = table.more["scripts"]
    wanted = {script: modules[model] for script, model in models.items()}
    argv = [python, "-B", str(RANKS / "nemo_recipes.py"), str(checkout), json.dumps(wanted)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or not lines:
        what = f"{python} could not build NeMo's recipes"
        yield Problem("recipes", what, " ".join(done.stderr.split()[-30:]), hint="python=PYTHON, with nemo_toolkit")
        return
    if (installed := lines[0]["nemo"]) != release:
        yield Problem("recipes", f"{python} has another release", installed, release, "python=PYTHON, of that release")
        return
    tree = f"NVIDIA-NeMo/NeMo@{rank_module('primus_check').git(checkout, 'rev-parse', 'HEAD')[:8]}"
    stated = lines[0]["tables"]
    note = None if stated == release else f"the tables are those of {stated}: the package of {release} comes without"
    for line in lines[1:]:
        row = f"{TABLES}/model_configs_{line['gpu']}.csv:{line['row']}"
        if "left_out" in line:
            precision = line["fp8_recipe"] or line["compute_dtype"]
            yield Problem(row, line["left_out"], f"{line['script']} in {precision}")
            continue
        model, script = models[line["script"]], f"scripts/performance/llm/pretrain_{line['script']}.py"
        made = _recipe(line, model, modules[model], table)
        yield replace(made, release=release, source=f"{tree} {row} {script}", note=_noted(note, line["network"]))


def _noted(note: str | None, network: str | None) -> str | None:
    """Return the note with what no variable and no path says of a launch."""
    return "; ".join(filter(None, (note, network and f"its launcher asks Slurm for network={network}"))) or None


def _recipe(line: Mapping[str, Any], model: str, base: str, table: Table) -> Recipe:
    """Return a line of ranks/nemo_recipes.py as a recipe, all but where it is from."""
    return Recipe(
        name=line["name"],
        model=model,
        hardware=(line["gpu"],),
        gpus=line["gpus"],
        precision=PRECISIONS[line["fp8_recipe"]],
        framework="nemo",
        release="",
        variant=None,
        source="",
        base=base,
        experiment=_experiment(line, table),
        settings=_settings(line, table),
        more={
            "classes": _other_classes(line["vendor"], line["base"]),
            "table": line["table"],
            **_states(line["vendor"]),
        },
        environment=line["environment"],
        published=(),
        note=None,
    )


def _experiment(line: Mapping[str, Any], table: Table) -> dict[str, Any]:
    vendor = line["vendor"]
    rows = {row.of: next(row.paths(None)) for row in table.settings.values() if row.of in DECIDED}
    overlap = {f"training.{name}": value for name, value in line["overlap"].items()}
    return {of: vendor[rows[of]] for of in DECIDED} | overlap


def _settings(line: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """Return path → the vendor's value: of all in which its object differs from the base, or says what the base leaves
    open, and of all that we write on it."""
    vendor, base = line["vendor"], line["base"]
    other = {path for path, value in vendor.items() if base.get(path) != value} | {*line["stated"]}
    settings = {
        path: vendor[path]
        for path in other
        if not (_is_object(vendor[path]) and _is_object(base.get(path)))  # of two classes: see _other_classes
    }
    for row in (*table.settings.values(), *table.parts):
        for path in () if row.switch else row.paths(None):
            if path in vendor:
                settings[path] = vendor[path]
    constants = {*table.always, *table.switches} - {*table.more["left_to_base"]}
    return dict(sorted((settings | {path: vendor[path] for path in constants if path in vendor}).items()))


def _states(vendor: Mapping[str, Any]) -> dict[str, str]:
    """Return why the model states of a rank are not by the rule of DP, TP and PP, where they are not."""
    tp = vendor["trainer.strategy.tensor_model_parallel_size"]
    etp = vendor["trainer.strategy.expert_tensor_parallel_size"]
    if vendor["trainer.strategy.fsdp"]:
        return {"model_states": "the recipe's FSDP shards parameters and gradients, too"}
    if etp not in (None, tp):
        return {"model_states": f"the recipe splits its experts over {etp}, all else over TP {tp}"}
    return {}


def _is_object(value: Any) -> bool:
    """Return whether a value of nemo_paths.leaves is the class of an object whose parts have paths of their own."""
    return isinstance(value, dict) and value.keys() == {"object"}


def _other_classes(vendor: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the paths of objects whose class the vendor's recipe has another of: [the vendor's, ours]."""
    pairs = {path: (value, base[path]) for path, value in vendor.items() if _is_object(value) and path in base}
    return {path: [a["object"], b["object"]] for path, (a, b) in pairs.items() if _is_object(b) and a != b}


FRAMEWORK = Nemo()
