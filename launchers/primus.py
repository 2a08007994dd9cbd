"""framework=primus: AMD's Primus (its Megatron backend), told everything in one YAML file, on one node.

The rendered train.sh (shell/primus_train.sh) is what starts it, in a run of ours as in a bundle carried elsewhere
(launchers/bundle.py), so that both do the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from conf.errors import ConfigError, Problem, closest, listed
from conf.resolve import Declared, Experiment
from launchers import attribute_settings, corpus, megatron, nvidia, nvidia_env
from launchers.attribute_settings import in_range
from launchers.plan import Host, Plan
from launchers.rank_modules import rank_module

SHELL = Path(__file__).parent.parent / "shell"
FACTS = Path(__file__).parent / "ranks" / "primus_facts.py"
ROPE_SCALING_FACTOR = 8.0  # GPTModel's default (megatron/core/models/gpt/gpt_model.py:103)
EXPERIMENT, TRAIN = "primus.yaml", "train.sh"


def render(experiment: Experiment, host: Host) -> Plan:
    """The plan of one training run.

    Raises:
        ConfigError: what Primus cannot do, or not in this release, all of it.
    """
    e, table = experiment, attribute_settings.table("primus")
    problems = _problems(e)
    if problems:
        raise ConfigError(*problems)
    python = e.framework.python or host.python
    machine, why = megatron.environment(e, host) if e.rehearse else ({}, {})
    env, reasons = environment(e)
    return Plan(
        setup=((python, str(FACTS)), *corpus.setup(e, python)),
        argv=("bash", TRAIN),
        files={EXPERIMENT: experiment_yaml(e), TRAIN: (SHELL / "primus_train.sh").read_text(encoding="utf-8")},
        env=machine | env,
        env_reasons=why | reasons,
        forward_env=e.cluster.forward_env,
        declared=(*attribute_settings.declared(e, table), *_declared(e)),
    )


def experiment_yaml(e: Experiment) -> str:
    """The experiment as Primus' YAML. A placeholder `${NAME}` is replaced by Primus from its environment."""
    import yaml

    document = {
        "work_group": "tensorprimat",
        "user_name": "tensorprimat",
        "exp_name": e.name,
        "workspace": "${PRIMUS_WORKSPACE}",
        "modules": {
            "pre_trainer": {
                "framework": "megatron",
                "config": "pre_trainer.yaml",
                "model": e.framework.recipes[e.model.name],
                "overrides": overrides(e),
            }
        },
    }
    where = f"{e.nodes} × {e.gpus_per_node} {e.hardware.name}"
    head = f"# {e.name}: {e.model.name} on {where}, for Primus {e.framework.release}.\n"
    return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def overrides(e: Experiment) -> dict[str, Any]:
    """Key of Primus → value, framework.options last."""
    table = attribute_settings.table("primus")
    values = dict(attribute_settings.assignments(e, table).set)
    if e.rehearse:  # Primus has no program of ours that could look what is there
        values |= table.without_transformer_engine
    for name, value in e.framework.options.items():
        values |= dict.fromkeys(_keys_of_option(name, e.framework.release), value)
    return values


def environment(e: Experiment) -> tuple[dict[str, str], dict[str, str]]:
    """All that train.sh and Primus read, and the reason of each."""
    tuned, reasons = nvidia_env.environment(e)
    places = {
        "PRIMUS_PATH": (e.cluster.primus_path, "the checkout (cluster.primus_path)"),
        "PRIMUS_RELEASE": (e.framework.release or "", "whose keys the YAML has (framework.release)"),
        "PRIMUS_ENTRY": (e.cluster.primus_entry, "what of it is started (cluster.primus_entry)"),
        "NNODES": (str(e.nodes), "nodes"),
        "NODE_RANK": (str(e.cluster.node_rank), "this node's number"),
        "GPUS_PER_NODE": (str(e.gpus_per_node), "ranks of a node"),
        "MASTER_ADDR": (e.cluster.master_addr, "where the ranks meet"),
        "MASTER_PORT": (str(e.cluster.master_port), "where the ranks meet"),
        "PRIMUS_CACHE_ROOT": (e.cluster.primus_cache, "compiled kernels, kept for the next run (cluster.primus_cache)"),
    }
    if e.data.path is not None:
        places["DATA_PREFIX"] = (e.data.path, "the corpus; from the run's directory")
    if e.framework.python is not None and e.bundle is None:
        places["PRIMUS_PYTHON"] = (e.framework.python, "whose environment Primus takes (framework.python)")
    if e.rehearse:
        places["PRIMUS_GPU_MODEL"] = (e.hardware.name.upper(), "the GPU that the rehearsal's rocm-smi tells Primus of")
    if e.rehearse == "layout":
        places["PRIMUS_ENTRY"] = ("main", "one process, which plays a rank")
    if e.image is not None:
        places["PRIMUS_IMAGE"] = (e.image, "the image (image), for primus-cli's containers and for the record")
    values = {name: value for name, (value, _) in places.items()}
    return {**tuned, **values}, {**reasons, **{name: reason for name, (_, reason) in places.items()}}


def checked(e: Experiment) -> Iterator[Problem]:
    """What keeps `e` from running as it is meant in the checkout at cluster.primus_path, which is read."""
    import yaml

    refused = _problems(e)
    if refused:
        yield from refused
        return
    checkout, release = Path(e.cluster.primus_path), e.framework.release or ""
    findings = rank_module("primus_check").findings
    for problem in findings(checkout, yaml.safe_load(experiment_yaml(e)), release, e.image, said=release):
        yield Problem(*problem)


def releases() -> Mapping[str, Mapping[str, Any]]:
    """What is known of each release, oldest first."""
    known: Mapping[str, Mapping[str, Any]] = _raw()["releases"]
    return known


def _problems(e: Experiment) -> list[Problem]:
    """All that Primus cannot do, whatever the checkout."""
    table = attribute_settings.table("primus")
    return [*_refusals(e), *_options_refused(e), *attribute_settings.problems(e, table)]


def _refusals(e: Experiment) -> Iterator[Problem]:
    release, names = e.framework.release or "", list(releases())
    if e.platform.vendor != "amd":
        what, hint = "Primus is AMD's stack, and needs a GPU", "framework=auto takes what the platform has"
        yield Problem("framework", what, f"platform={e.platform.name}", "platform=amd", hint)
    if release not in releases():
        what = "a release of Primus whose keys are not known here"
        nearest = next((name for name in names if release.startswith(f"{name}.")), names[-1])
        hint = closest(release, names) or f"framework.release={nearest}: every key is then looked up in the checkout"
        yield Problem("framework.release", what, release, listed(names), hint)
        return
    yield from _preset_refused(e, release)
    if e.cluster.primus_entry != "run_pretrain" and not releases()[release]["from_cli"]:
        what = f"primus-cli of {release} prints no iteration line or an incomplete log"
        hint = "cluster.primus_entry=run_pretrain"
        yield Problem("cluster.primus_entry", what, e.cluster.primus_entry, "run_pretrain", hint)
    if e.cluster.primus_entry in ("container", "slurm") and e.image is None:
        what, hint = "primus-cli's own default image is of another release", f"image=rocm/primus:{release}"
        yield Problem("image", what, "null", "the image of the release", hint)
    if e.image is not None and ":" in e.image and not _same_release(e.image, release):
        what = f"Primus {release} in an image of another release is what AMD warns of"
        yield Problem("image", what, e.image, f"rocm/primus:{release}", "framework.release=, or the other image")
    yield from _precision_refused(e)
    if e.rehearse:
        yield from nvidia.without_accelerator(e)
    for where, path in {"data.path": e.data.path, "cluster.primus_path": e.cluster.primus_path}.items():
        if path is not None and any(c.isspace() or c in "{}'\"$;&|<>()*?`\\" for c in path):
            what = "Primus splits it at spaces and hands it to a shell"
            yield Problem(where, what, repr(path), "letters, digits and ._-/ only")


def _preset_refused(e: Experiment, release: str) -> Iterator[Problem]:
    presets = e.framework.recipes
    known = {model for model, preset in presets.items() if in_range(release, _raw()["presets_from"].get(preset), None)}
    if e.model.name not in known:
        preset = presets.get(e.model.name)
        since = f": {preset} came with {_raw()['presets_from'][preset]}" if preset else ""
        what = f"Primus {release} has no preset for {e.model.name}{since}"
        yield Problem("model", what, e.model.name, listed(sorted(known)), "a newer release, another model")
    if e.model.yarn and not e.model.mla:
        yield Problem("model", "Primus takes YaRN for latent attention alone", e.model.name, hint="another model")
    if e.model.yarn and (e.model.yarn.beta_fast, e.model.yarn.beta_slow) != (32.0, 1.0):
        found = f"{e.model.yarn.beta_fast}, {e.model.yarn.beta_slow}"
        yield Problem("model.yarn", "Primus has no keys for beta_fast and beta_slow", found, "32.0, 1.0")


def _precision_refused(e: Experiment) -> Iterator[Problem]:
    if e.precision.fp8_recipe == "mxfp8" and e.hardware.architecture != "gfx950":
        what = f"{e.hardware.name} ({e.hardware.architecture or 'unknown'}) has no units for MXFP8"
        yield Problem("precision", what, e.precision.name, "mi350x, mi355x (gfx950)", "precision=fp8, precision=bf16")


def _options_refused(e: Experiment) -> Iterator[Problem]:
    release, ours = e.framework.release, attribute_settings.table("primus")
    written = {key: row.of for row in (*ours.settings.values(), *ours.parts) for key in row.paths(None)}
    older = {entry["path"]: name for name, entries in _raw()["options"].items() for entry in _listed(entries)}
    for name in e.framework.options:
        where = f"framework.options.{name}"
        if "-" in name or "." in name or not name.isidentifier():
            hint = name.replace("-", "_").replace(".", "_")
            yield Problem(where, "Primus ignores keys with dashes and dots without a word", name, hint=hint)
        elif name in written or name in ("norm_epsilon", "virtual_pipeline_model_parallel_size"):
            hint = f"set {written.get(name, 'the setting')} instead"
            yield Problem(where, "is written from a setting that all stacks share", name, hint=hint)
        elif older.get(name, name) != name:
            hint = f"framework.options.{older[name]}=…"
            yield Problem(where, "is spelled as in the newest release here", name, older[name], hint)
        elif not _keys_of_option(name, release):
            yield Problem(where, f"Primus {release} does not have it, and would ignore it or die of it", name)


def _keys_of_option(name: str, release: str | None) -> list[str]:
    """What `release` calls an option; none if it is known not to have it."""
    if name not in _raw()["options"]:
        return [name]
    entries = _listed(_raw()["options"][name])
    return [entry["path"] for entry in entries if in_range(release, entry.get("from"), entry.get("before"))]


def _declared(e: Experiment) -> Iterator[Declared]:
    """What runs otherwise than on NVIDIA or than all stacks were asked for."""
    if e.model.rope_scaling_factor not in (None, ROPE_SCALING_FACTOR):
        why = "Primus builds every model with this factor: Megatron's --rope-scaling-factor does not reach it"
        yield Declared("rope_scaling_factor", ROPE_SCALING_FACTOR, why)
    fused = "gradient_accumulation_fusion"
    if fused not in e.framework.options:
        yield Declared(
            fused, False, f"needs Apex's kernel, which not every ROCm image has; framework.options.{fused}=true"
        )
    for name, value in e.framework.options.items():
        yield Declared(name, value, "framework.options")


def _same_release(image: str, release: str) -> bool:
    """Whether the tag is that of `release`: v26.5, v26.5.1, v25.9_gfx942; any tag without a version passes."""
    tag = image.rpartition(":")[2]
    if not tag.startswith("v") or not tag[1:2].isdigit():
        return True
    return tag == release or tag.startswith((f"{release}.", f"{release}_", f"{release}-"))


def _listed(entries: Any) -> list[dict[str, str]]:
    return entries if isinstance(entries, list) else [entries]


@cache
def _raw() -> Mapping[str, Any]:
    """The parts of the table that only Primus has."""
    import yaml

    table: Mapping[str, Any] = yaml.safe_load((attribute_settings.FOLDER / "primus.yaml").read_text(encoding="utf-8"))
    return table
