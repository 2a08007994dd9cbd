"""Render Primus' TorchTitan backend (framework=primus framework.backend=torchtitan): TorchTitan's settings, as Primus
nests them, and our model, samples and schedule by TorchTitan's own hook (launchers/ranks/primus_torchtitan.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.check import wrong
from conf.errors import Problem
from conf.resolve import Experiment
from conf.vendors import vendor_of
from conf.vocabulary import program_settings, read_yaml
from launchers.attribute_settings import FOLDER
from launchers.frameworks import framework_of
from launchers.plain import Plain
from launchers.plan import Reasoned

NAME = "torchtitan"
RANKS = Path(__file__).parent / "ranks"
SETTINGS = "settings.json"
TABLE = FOLDER / "primus_torchtitan.yaml"
RELEASES = ("v26.5",)
"""The releases of Primus in which TorchTitan is 0.2.2: commit 73a0e697 below third_party."""


def titan(e: Experiment) -> tuple[Plain, Experiment]:
    """Return the stack that trains, and `e` as one of it."""
    stack = framework_of(NAME)
    assert isinstance(stack, Plain)
    return stack, replace(e, framework=replace(e.framework, name=NAME))


def overrides(e: Experiment) -> dict[str, Any]:
    """Return the sections of TorchTitan's JobConfig, and Primus' own ones."""
    stack, of_it = titan(e)
    table = read_yaml(TABLE)
    values = {**table["always"], **({} if e.recipe else table["switches"]), **stack.arguments(of_it)["arguments"]}
    sections: dict[str, Any] = {}
    for path, value in values.items():
        *outer, last = path.split(".")
        part = sections
        for name in outer:
            part = part.setdefault(name, {})
        part[last] = value
    return sections


def files(e: Experiment) -> dict[str, str]:
    """Return what the ranks read of our settings."""
    stack, of_it = titan(e)
    made = {**program_settings(of_it), "device": vendor_of(e.accelerator).torch_device, **stack.own(of_it)}
    return {SETTINGS: json.dumps(made, indent=2) + "\n"}


def environment(e: Experiment) -> Reasoned:
    """Return what the ranks need beside what every Primus does."""
    return {
        "PYTHONPATH": (str(RANKS), "where TorchTitan finds what it imports (experimental.custom_import)"),
    }


def refusals(e: Experiment) -> Iterator[Problem]:
    """Yield what this backend cannot do: what TorchTitan cannot, and what is not carried into it."""
    stack, of_it = titan(e)
    yield from stack.refusals(of_it)
    if e.framework.release not in RELEASES:
        what = "another release of Primus has another TorchTitan, whose entries are not known here"
        yield Problem("framework.release", what, str(e.framework.release), ", ".join(RELEASES))
    if e.framework.entry in ("container", "slurm"):
        what = "primus-cli does not mount the folder of what TorchTitan imports"
        yield wrong(e, "framework.entry", what, "run_pretrain, direct", "framework.entry=run_pretrain in the image")
    if e.bundle:
        what = "a bundle of Primus does not carry what TorchTitan imports"
        yield Problem("bundle", what, str(e.bundle), "null", "framework=torchtitan takes it along")
    if e.rehearse:
        what = "the stand-in is for Primus' Megatron: its TorchTitan needs a GPU"
        yield Problem("rehearse", what, str(e.rehearse), "null", "framework=torchtitan rehearses what it trains")


def preflight(checkout: Path) -> Iterator[Problem]:
    """Yield that the checkout lacks the backend or its TorchTitan."""
    needed = {
        "primus/backends/torchtitan": "a Primus of v26.5",
        "third_party/torchtitan/torchtitan": "git submodule update --init third_party/torchtitan",
    }
    for path, hint in needed.items():
        if not (checkout / path).is_dir():
            yield Problem("framework.checkout", f"{path} is missing in it", str(checkout), hint=hint)


def head(e: Experiment) -> Mapping[str, str]:
    """Return what Primus' module is of."""
    return {"framework": NAME, "config": "pre_trainer.yaml", "model": e.recipe.base if e.recipe else "llama3.1_8B.yaml"}
