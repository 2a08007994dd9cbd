"""framework=primus: AMD's Primus, configured by one YAML file, on one node: its Megatron backend, or with
framework.backend=torchtitan the other one (launchers/primus_torchtitan.py). The rendered
train.sh (shell/primus_train.sh) is what starts it, in a run of ours as in a bundle carried elsewhere (bundle=DIR), so
that both do the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.check import wrong
from conf.errors import Problem, closest, listed
from conf.recipes import Recipe
from conf.resolve import Declared, Experiment
from conf.schema import ALL_TRAINS
from conf.vocabulary import OFF, follow, vocabulary, written
from launchers import (
    attribute_settings,
    bundle,
    corpus,
    node_check,
    nvidia,
    primus_recipes,
    primus_torchtitan,
    rehearse,
)
from launchers.attribute_settings import in_range, option_paths, pipeline_layout
from launchers.frameworks import Framework
from launchers.plan import Host, Plan, Reasoned, Scope
from launchers.rank_modules import rank_module
from launchers.variables import START, machine, tuned

ROOT = Path(__file__).parents[2]
SHELL = ROOT / "shell"
README = attribute_settings.FOLDER / "primus_bundle.txt"
FACTS = ROOT / "launchers" / "ranks" / "primus_facts.py"
ROPE_SCALING_FACTOR = 8.0  # GPTModel's default (megatron/core/models/gpt/gpt_model.py:103)
EXPERIMENT, TRAIN = "primus.yaml", "train.sh"
ENTRIES = ("run_pretrain", "direct", "container", "slurm")
_PLAIN_ENTRIES = ENTRIES[:2]
BACKENDS = ("megatron", primus_torchtitan.NAME)

_STARTED = {"START_RANKS": (str(START), "in place of torchrun, whose store others could reach")}
"""The variable of a run of ours; a bundle's stack.sh names its own copy."""

REHEARSAL = "rehearsal"  # the folder in a bundle that run.sh puts in front of PYTHONPATH


class Primus(Framework):
    name = "primus"
    opens_tokenizers = True
    vendors = ("amd",)
    takes_options = True
    settled_there = "iterations, nodes and GPUs"
    environment_table = "amd_env"  # beside a recipe's own environment, too: AMD documents three variables of thirty
    recipe_trees = (primus_recipes.TREE,)

    def read_recipes(self, checkout: Path, python: str, release: str) -> Iterator[Recipe | Problem]:
        return primus_recipes.read(checkout.resolve(), python, release, self.table)

    def render(self, e: Experiment, host: Host) -> Plan:
        script = (SHELL / "primus_train.sh").read_text(encoding="utf-8")
        own = primus_torchtitan.files(e) if _is_titan(e) else {}
        declared = titan_declared(e) if _is_titan(e) else (*attribute_settings.declared(e, self.table), *_declared(e))
        return Plan(
            setup=((host.python, str(FACTS)), *corpus.setup(e, host.python, parts=True)),
            argv=("bash", TRAIN),
            files={EXPERIMENT: experiment_yaml(e), TRAIN: script, **own},
            forward_env=e.cluster.forward_env,
            declared=declared,
        ).with_env({**(machine(e, host) if e.rehearse else {}), **_STARTED, **environment(e)})

    def refusals(self, e: Experiment) -> Iterator[Problem]:
        """Yield what Primus cannot do in any release, and in this one."""
        what, hint = "Primus is AMD's stack, and needs a GPU", "framework=auto takes what the platform has"
        yield from self.other_vendor(e, what, hint)
        if e.framework.backend not in (None, *BACKENDS):
            yield wrong(e, "framework.backend", "no backend of Primus that is known here", listed(BACKENDS))
        elif _is_titan(e):
            yield from primus_torchtitan.refusals(e)
            return
        yield from _release_refused(e)
        yield from _options_refused(e)
        yield from _stages_refused(e)
        yield from _environment_refused(e)
        yield from attribute_settings.problems(e, self.table)

    def preflight(self, e: Experiment) -> Iterator[Problem]:
        """Read the checkout at framework.checkout."""
        import yaml

        if refused := list(self.refusals(e)):
            yield from refused
            return
        if _is_titan(e):
            yield from primus_torchtitan.preflight(Path(e.framework.checkout or ""))
            return
        release, document = e.framework.release or "", yaml.safe_load(experiment_yaml(e))
        checkout, check = Path(e.framework.checkout or ""), rank_module("primus_check")
        yield from (Problem(*p) for p in check.findings(checkout, document, release, e.image, said=release))
        if e.recipe:
            shipped = check.shipped(checkout, e.recipe.source.split()[-1]) or {}
            yield from primus_recipes.moved(e.recipe, shipped)

    def in_container(self, e: Experiment) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """Return both: Primus installs and compiles in its checkout, and keeps its kernels elsewhere; a home inside
        the container would be another one, and gone with it."""
        kernels = str(Path(e.framework.cache or "").expanduser().absolute())
        return (str(Path(e.framework.checkout or "").absolute()), kernels), {"PRIMUS_CACHE_ROOT": kernels}

    def rehearsed(self, e: Experiment) -> Experiment:
        """Return `e` with one of the two entries that start no container and no job."""
        kept = e.rehearse == "train" and e.framework.entry in _PLAIN_ENTRIES
        return e if kept else replace(e, framework=replace(e.framework, entry=_PLAIN_ENTRIES[0]))

    def bundle(self, e: Experiment, plan: Plan, scope: Scope) -> dict[str, str]:
        """Return it; pure but for our own programs, which are read."""
        more = self.table.more
        sources = {name: ROOT / path for name, path in more["programs"].items()}
        if e.rehearse:
            parts = (path for path in sorted(rehearse.FOLDER.rglob("*")) if path.is_file() and path.suffix != ".pyc")
            sources |= {f"{REHEARSAL}/{path.relative_to(rehearse.FOLDER)}": path for path in parts}
        env = {name: value for name, value in plan.env.items() if name not in ("PYTHONPATH", *_STARTED)}
        reasons = dict(plan.env_reasons)
        for name, (value, why) in bundle.patience(e).items():
            env[name], reasons[name] = value, why
        theirs = {name for name, row in more["variables"].items() if not row.get("ours")}
        reasons["PREFLIGHT"] = "look at the nodes first: note, stop, only or none (preflight)"
        theirs |= {*bundle.patience(e)}
        if node_check.wanted(e) != "none":
            env, theirs = {**env, "PREFLIGHT": node_check.wanted(e)}, {*theirs, "PREFLIGHT"}
        rendered = {**plan.files, "env.sh": bundle.env_sh(env, reasons, theirs)}
        facts = {**bundle.facts(e, plan, scope), "sha256": bundle.digests(rendered)}
        return {
            **{name: path.read_text(encoding="utf-8") for name, path in sources.items()},
            **rendered,
            "bundle.json": json.dumps(facts, indent=1, ensure_ascii=False) + "\n",
            "README.txt": readme(e, plan, scope),
        }


def experiment_yaml(e: Experiment) -> str:
    """Return the experiment as Primus' YAML. A placeholder `${NAME}` is replaced by Primus from its environment."""
    import yaml

    if _is_titan(e):
        trainer, values = dict(primus_torchtitan.head(e)), primus_torchtitan.overrides(e)
    else:
        trainer, values = {"framework": "megatron", "config": "pre_trainer.yaml", "model": preset(e)}, overrides(e)
    document = {
        "work_group": "tensorprimat",
        "user_name": "tensorprimat",
        "exp_name": e.name,
        "workspace": "${PRIMUS_WORKSPACE}",
        "modules": {"pre_trainer": {**trainer, "overrides": values}},
    }
    if e.recipe:  # not read by Primus; of a key that AMD itself writes nobody asks whether anything reads it
        document["recipe"] = e.recipe.source.split()[-1]
    where = f"{e.nodes} × {e.gpus_per_node} {e.hardware.name}"
    head = f"# {e.name}: {e.model.name} on {where}, for Primus {e.framework.release}.\n"
    return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def preset(e: Experiment) -> str:
    """Return the preset of Primus that the experiment is written on: its recipe's, the model's own, or any that there
    was in the release."""
    if e.recipe:
        return e.recipe.base
    own = e.framework.recipes.get(e.model.name)
    since = FRAMEWORK.table.more["presets_from"].get(own)
    return own if own and in_range(e.framework.release, since, None) else str(e.framework.any_model)


def overrides(e: Experiment) -> dict[str, Any]:
    """Return key of Primus → value, framework.options last."""
    values = dict(attribute_settings.assignments(e, FRAMEWORK.table).set)
    if e.rehearse:  # Primus has no program of ours that could look what is there
        values |= FRAMEWORK.table.without_transformer_engine
        of_recipes = FRAMEWORK.table.more["recipes_without_transformer_engine"] if e.recipe else {}
        values |= {key: value for key, value in of_recipes.items() if key in values}
    for name, value in e.framework.options.items():
        values |= dict.fromkeys(option_paths(name, e.framework.release, FRAMEWORK.table), value)
    return values


def environment(e: Experiment) -> Reasoned:
    """Return all that train.sh and Primus read."""
    places = {}
    cut = _is_cut(e)
    for name, row in FRAMEWORK.table.more["variables"].items():
        value = follow(e, row["of"])
        if name == "DATA_PREFIX" and cut:
            value = corpus.part_paths(e, "training")
        if value is not None or not row.get("unless_null"):
            places[name] = ("" if value is None else str(value), row["because"])
    if cut and e.training.eval_iters:
        places["VALID_DATA_PREFIX"] = (corpus.part_paths(e, "validation"), "data.split: what is validated on")
    if e.framework.python is not None and e.bundle is None:
        places["PRIMUS_PYTHON"] = (e.framework.python, "whose environment Primus takes (framework.python)")
    if e.rehearse:
        places["PRIMUS_GPU_MODEL"] = (e.hardware.name.upper(), "the GPU that the rehearsal's rocm-smi lists")
    if e.rehearse == "layout":
        places["PRIMUS_ENTRY"] = ("main", "one process, which plays a rank")
    sharded = "CUDA_DEVICE_MAX_CONNECTIONS"  # the table's value would be replaced unseen
    if _applies(FRAMEWORK.table.more["overridden"][sharded], e):
        places[sharded] = ("8", FRAMEWORK.table.more["overridden"][sharded]["because"])
    return {**tuned(e), **places, **(primus_torchtitan.environment(e) if _is_titan(e) else {})}


def _is_titan(e: Experiment) -> bool:
    """Return whether Primus' TorchTitan trains."""
    return e.framework.backend == primus_torchtitan.NAME


def titan_declared(e: Experiment) -> tuple[Declared, ...]:
    """Return what TorchTitan has in its own way, and what is requested of it alone."""
    stack, of_it = primus_torchtitan.titan(e)
    return stack.declared(of_it)


def _release_refused(e: Experiment) -> Iterator[Problem]:
    releases: Mapping[str, Any] = FRAMEWORK.table.more["releases"]  # oldest first
    release, names = e.framework.release or "", list(releases)
    if e.framework.entry not in ENTRIES:
        yield wrong(e, "framework.entry", "no such entry of Primus", listed(ENTRIES))
    if release not in names:
        what = "a release of Primus whose keys are not known here"
        nearest = next((name for name in names if release.startswith(f"{name}.")), names[-1])
        hint = closest(release, names) or f"framework.release={nearest}: every key is then looked up in the checkout"
        yield Problem("framework.release", what, release, listed(names), hint)
        return
    yield from _model_refused(e)
    yield from _parts_refused(e)
    if e.framework.entry != "run_pretrain" and not releases[release]["from_cli"]:
        what = f"primus-cli of {release} prints no iteration line or an incomplete log"
        yield wrong(e, "framework.entry", what, "run_pretrain", "framework.entry=run_pretrain")
    if e.framework.entry in ("container", "slurm") and e.image is None:
        what = "primus-cli's own default image is of another release"
        yield wrong(e, "image", what, "the image of the release", f"image=rocm/primus:{release}")
    name, _, tag = (e.image or "").rpartition(":")  # v26.5, v26.5.1, v25.9_gfx942; one without a version passes
    if name and re.match(r"v\d", tag) and not re.fullmatch(rf"{re.escape(release)}([._-].*)?", tag):
        what = f"Primus {release} in an image of another release is what AMD warns of"
        yield wrong(e, "image", what, f"rocm/primus:{release}", "framework.release=, or the other image")
    if e.rehearse:
        yield from nvidia.without_accelerator(e)
    for where, path in {"data.path": e.data.path, "framework.checkout": e.framework.checkout}.items():
        blend = where == "data.path" and e.data.name == "blend"  # its spaces are meant
        if path is not None and any((c.isspace() and not blend) or c in "{}'\"$;&|<>()*?`\\" for c in path):
            what = "Primus splits it at spaces and hands it to a shell"
            yield Problem(where, what, repr(path), "letters, digits and ._-/ only")


def _is_cut(e: Experiment) -> bool:
    """Return whether corpus.py cuts the corpora by data.split: Primus takes a path a part, or tokenises its own."""
    return e.data.split != ALL_TRAINS and e.data.name != "mock"


def _parts_refused(e: Experiment) -> Iterator[Problem]:
    if _is_cut(e) and e.framework.entry not in _PLAIN_ENTRIES:
        what = "the parts of data.split are links, which lead out of what primus-cli mounts"
        yield wrong(e, "framework.entry", what, listed(_PLAIN_ENTRIES), "framework.entry=run_pretrain")


def _model_refused(e: Experiment) -> Iterator[Problem]:
    yield from FRAMEWORK.recipe_missing(e)
    model = e.model
    if model.yarn and not model.mla:
        yield Problem("model", "Primus takes YaRN for latent attention alone", model.name, hint="another model")
    if model.yarn and (model.yarn.beta_fast, model.yarn.beta_slow) != (32.0, 1.0):
        betas = f"{model.yarn.beta_fast}, {model.yarn.beta_slow}"
        yield Problem("model.yarn", "Primus has no keys for beta_fast and beta_slow", betas, "32.0, 1.0")


def _options_refused(e: Experiment) -> Iterator[Problem]:
    release, ours = e.framework.release, FRAMEWORK.table
    known = {key: row.of for row in (*ours.settings.values(), *ours.parts) for key in row.paths(None)}
    older = {target.path: name for name, entry in ours.more["options"].items() for target in written(name, entry).to}
    for name in attribute_settings.options(e):
        where = f"framework.options.{name}"
        if "-" in name or "." in name or not name.isidentifier():
            hint = name.replace("-", "_").replace(".", "_")
            yield Problem(where, "Primus ignores keys with dashes and dots without a word", name, hint=hint)
        elif name in known or name in ("norm_epsilon", "virtual_pipeline_model_parallel_size"):
            hint = f"set {known.get(name, 'the setting')} instead"
            yield Problem(where, "is written from a setting that all stacks share", name, hint=hint)
        elif older.get(name, name) != name:
            hint = f"framework.options.{older[name]}=…"
            yield Problem(where, "is spelled as in the newest release here", name, older[name], hint)
        elif not option_paths(name, release, ours):
            yield Problem(where, f"Primus {release} does not have it, and would ignore it or die of it", name)


def _environment_refused(e: Experiment) -> Iterator[Problem]:
    """Yield the variables of `environment` that the plan writes from a setting, or that Primus sets by itself."""
    ours, theirs = FRAMEWORK.table.more["variables"], FRAMEWORK.table.more["overridden"]
    for name, value in e.environment.items():
        where = f"environment.{name}"
        if name in ours:
            yield Problem(where, "is written from a setting", str(value), hint=f"{ours[name]['of']}=…")
        row = theirs.get(name)
        if row and _applies(row, e):
            yield Problem(where, f"Primus sets it, whatever is there: {row['because']}", str(value), "not set")


def _applies(row: Mapping[str, Any], e: Experiment) -> bool:
    """Return whether a variable is set by Primus itself in this run."""
    entry, key = e.framework.entry, row.get("beside")
    by_launcher = entry in row.get("entries", ENTRIES) and in_range(
        e.framework.release, row.get("from"), row.get("before")
    )
    return by_launcher and (key is None or overrides(e).get(key) in row["one_of"])


def _stages_refused(e: Experiment) -> Iterator[Problem]:
    """Yield what Megatron refuses of a recipe's pipeline stages, as AMD ships them and with this model."""
    layers, stages = e.model.num_layers, e.layout.pipeline_model_parallel_size
    stages *= e.layout.virtual_pipeline_model_parallel_size or 1
    if pipeline_layout(e):
        yield from attribute_settings.layout_refused(e)
    elif e.recipe and layers % stages:
        first, last = (f"decoder_{end}_pipeline_num_layers" for end in ("first", "last"))
        if not {first, last} & {*e.framework.options} and not (e.recipe.settings[first] or e.recipe.settings[last]):
            what = f"PP {stages} does not divide {layers} layers, and the recipe says nothing of the stages"
            ends = (layers - (stages - 2) * -(-layers // stages)) // 2
            hint = f"framework.options.{first}={ends} framework.options.{last}={ends}"
            yield Problem("recipe", f"{what}: Megatron refuses it as it is shipped", e.recipe.name, hint=hint)


def _declared(e: Experiment) -> Iterator[Declared]:
    """Yield what runs otherwise than on NVIDIA, or than requested of all stacks."""
    if e.model.rope_scaling_factor not in (None, ROPE_SCALING_FACTOR):
        why = "Primus builds every model with this factor: Megatron's --rope-scaling-factor does not reach it"
        yield Declared("rope_scaling_factor", ROPE_SCALING_FACTOR, why)
    fused = "gradient_accumulation_fusion"
    if e.recipe:
        yield from _numerics(e, e.recipe)
    elif fused not in e.framework.options:
        why = f"needs Apex's kernel, which not every ROCm image has; framework.options.{fused}=true"
        yield Declared(fused, False, why)
    for name, value in e.framework.options.items():
        yield Declared(name, value, "framework.options")


def _numerics(e: Experiment, recipe: Recipe) -> Iterator[Declared]:
    """Yield what a recipe computes less exactly, or more, than method=identical does."""
    table, why = FRAMEWORK.table, f"changes numerics, by the vendor's recipe {recipe.name}"
    for key in table.more["lowered"]:
        if key.startswith("moe_") and e.model.moe is None:
            continue
        if key in recipe.settings and recipe.settings[key] != table.switches[key]:
            yield Declared(key, recipe.settings[key], why)
    left = [row for row in table.settings.values() if row.left_to(recipe) and not (row.write.runs or row.write.convert)]
    stated = {row.name: [path for path in row.paths(recipe.release) if path in recipe.settings] for row in left}
    effective = {name: recipe.settings[paths[0]] for name, paths in stated.items() if paths}
    for row in left:
        value = effective.get(row.name, follow(e, row.of))
        in_use = effective.get(vocabulary()[row.name].only_if or "", True) not in OFF
        if in_use and value != follow(e, row.of):
            yield Declared(row.name, value, f"left to the vendor's recipe {recipe.name}")


def readme(e: Experiment, plan: Plan, scope: Scope) -> str:
    """Return README.txt: what this is, how it is started, what may be changed, and how a record comes of it."""
    image = e.image or f"rocm/primus:{e.framework.release}"
    passed = ", ".join(plan.forward_env) or "none"
    inside = f"Start it inside {image}, with a checkout of the same release"
    start = "\n".join([*scope.notes, FRAMEWORK.table.more["rehearsed"]]) if e.rehearse else inside
    where = f"{e.nodes} x {e.gpus_per_node} {e.hardware.name}"
    title = f"{e.name}: {e.model.name} on {where}, Primus {e.framework.release}, {e.layout}"
    text = README.read_text(encoding="utf-8")
    return text.format(title=title, start=start, image=image, release=e.framework.release, passed=passed)


FRAMEWORK = Primus()
