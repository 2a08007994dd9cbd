"""Can this plan run here and now? Everything that can be known without starting it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache

from conf import devices
from conf.check import wrong
from conf.errors import ConfigError, Problem
from conf.frameworks import is_module, plain_release, versions
from conf.load import hardware_named
from conf.resolve import Experiment
from conf.vendors import vendor_of
from launchers import corpus, kubernetes, slurm, variables
from launchers.frameworks import framework_of
from launchers.rank_modules import rank_module


def problems(e: Experiment) -> list[Problem]:
    """Return what keeps `e` from running on this machine; empty if nothing does."""
    if e.cluster.job is not None:  # its nodes are not here
        return [*slurm.problems(e), *([] if e.bundle else _data(e))]
    if e.cluster.kubernetes is not None:
        return [*kubernetes.problems(e), *kubernetes.not_started(e)]
    framework, found = framework_of(e.framework.name), [*_platform(e)]
    if e.nodes > 1 and not e.rehearse:
        what = "launch.py runs one node so far, and would record that one only"
        hint = "dry_run=true shows the command; start it on each node with NODE_RANK and MASTER_ADDR set"
        found.append(wrong(e, "nodes", what, "1", hint))
    if e.cluster.container == "none":  # what an image holds, nobody can see from here
        found += [*_packages(e), *_tokenizer_library(e)]
    if framework.takes_environment:
        found += variables.conflicts(e, os.environ)
    return [*found, *_data(e), *framework.preflight(e)]


def _platform(e: Experiment) -> Iterator[Problem]:
    vendor = e.accelerator
    if vendor is None:
        return
    here = devices.find()
    if here.vendor != vendor:
        what = f"no {vendor} GPU is here ({vendor_of(vendor).tool} finds none)"
        yield Problem("platform", what, vendor, hint="dry_run=true plans for it all the same; platform=cpu runs here")
        return
    name = hardware_named(here.names[0], vendor)
    if e.hardware.name != name:
        hint = "leave hardware= out, or dry_run=true to plan for it"
        yield Problem("hardware", f"this machine has {here.names[0]}", e.hardware.name, name, hint)
    if e.gpus_per_node > here.count:
        yield wrong(e, "gpus_per_node", "more GPUs than there are", f"1 to {here.count}")


def _data(e: Experiment) -> Iterator[Problem]:
    if not e.data.given or e.data.path is None:
        return
    order = rank_module("corpus_order")  # numpy, which an experiment without such a corpus does without
    try:
        for member in order.members(e.data.path):
            opened = order.open_corpus(member.prefix)
            order.check_ids(opened, e.model.vocab_size, *order.id_range(opened))
        order.check_reading(e.data.path, corpus.reading(e, order))
        if e.data.tokenizer:
            told, own = rank_module("tokenizer_facts"), [member.prefix for member in order.members(e.data.path)]
            refused = told.problems(e.data.tokenizer, e.model.vocab_size, e.data.tokenizer_sha256, told.manifests(own))
            yield from (Problem(*problem) for problem in refused)
    except order.Refused as error:
        yield from (Problem(*problem) for problem in error.problems)


@cache
def _versions(distributions: tuple[str, ...], python: str | None) -> Mapping[str, str | None]:
    """Return conf.frameworks.versions, for all runs of a matrix at once."""
    return versions(distributions, python)


def _packages(e: Experiment) -> Iterator[Problem]:
    python = e.framework.python
    try:
        installed = _versions(tuple(e.framework.distributions), python)
    except ConfigError as error:
        yield from error.problems
        return
    yield from _release(e, installed.get(e.framework.distributions[-1]) if installed else None)
    missing = [name for name, version in installed.items() if version is None]
    if missing := [name for name in missing if not is_module(name, python)]:
        what = f"{' and '.join(missing)} missing in {python or sys.executable}"
        yield Problem("framework", what, hint=e.framework.install)


def _tokenizer_library(e: Experiment) -> Iterator[Problem]:
    """Yield the problem of a stack that lacks the library of data.tokenizer: it would end for want of a name."""
    if not e.data.tokenizer or not framework_of(e.framework.name).opens_tokenizers:
        return
    files, python = rank_module("tokenizer_files"), e.framework.python or sys.executable
    library = files.LIBRARIES[files.kind_by_name(e.data.tokenizer)]
    if not is_module(library, python):
        what = f"{library} is missing in {python}, and {e.framework.label} opens the tokenizer by it"
        yield Problem("data.tokenizer", what, e.data.tokenizer, hint=f"{python} -m pip install {library}")


def rehearsal_problems(e: Experiment) -> Iterator[Problem]:
    """Yield what keeps a rehearsal from running on this machine."""
    yield from other_release(e)
    yield from _tokenizer_library(e)


def other_release(e: Experiment) -> Iterator[Problem]:
    """Yield the problem of a recipe of another release than the installed one; nothing where none is installed."""
    with suppress(ConfigError):
        installed = _versions(tuple(e.framework.distributions), e.framework.python) if e.recipe else {}
        yield from _release(e, installed.get(e.framework.distributions[-1]) if installed else None)


def _release(e: Experiment, installed: str | None) -> Iterator[Problem]:
    """Yield the problem of a recipe of another release than the installed one."""
    if e.recipe and installed and plain_release(e.framework.distributions, installed) != e.recipe.release:
        what = f"recipe {e.recipe.name} is of another release than the installed {e.framework.label}"
        hint = "framework.python= of that release; without framework.release= a recipe of the installed one is taken"
        yield wrong(e, "framework.release", what, installed, hint)
