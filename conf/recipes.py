"""The recipes that vendors publish, as data: conf/recipes/FRAMEWORK-RELEASE/NAME.yaml, a file each, written by
`tprimat recipes import`. NAME is the vendor's own."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf, log2
from pathlib import Path
from typing import Any

from conf.compose import choices, read_choice
from conf.errors import ConfigError, Problem, listed
from conf.facts import hardware
from conf.freeze import frozen
from conf.vocabulary import read_yaml

RECIPES = Path(__file__).parent / "recipes"
REHEARSED = RECIPES / "rehearsed.csv"
BEFORE = ".before"  # how the folder of a release ends, behind a dot, while an import takes its place
GLOBAL_BATCH, MICRO_BATCH = "training.global_batch_size", "training.micro_batch_size"
OF_THE_WORK = (GLOBAL_BATCH, "training.seq_length")  # in a recipe's `experiment`, and not taken from it
_MOST_NEAREST = 4
# Models that are one size in these differ in what a recipe is given anyway: RoPE, the length, the initial scale.
_SIZES = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
    *("vocab_size", "moe", "mla"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A vendor's published best for a model, GPU, count and precision. hardware, gpus: those that it is
    published for; gpus null: the vendor states no number. backend: of a framework that has several. variant: null
    for the one of its case that is taken without being named. base: the vendor's function, module or preset that
    `settings` are set on. experiment: our keys that the recipe decides (layout.*, training.*, precision.*), with
    its own batch and length. settings: in the vendor's spelling, all in which its finished object differs from what
    `base` alone gives, and its value of every path that we write. more: what only the framework's own module reads.
    environment: null where none is published. published: the vendor's own figures for it, each with its source."""

    name: str
    model: str
    hardware: tuple[str, ...]
    gpus: int | None
    precision: str
    framework: str
    backend: str | None = None
    release: str
    variant: str | None
    source: str
    base: str
    experiment: Mapping[str, Any]
    settings: Mapping[str, Any]
    more: Mapping[str, Any]
    environment: Mapping[str, str] | None
    published: tuple[Mapping[str, Any], ...]
    note: str | None

    def stated(self, name: str) -> Any:
        """Return the value of the setting whose path ends with `name`; None where the recipe has none."""
        return next((value for path, value in self.settings.items() if path.rpartition(".")[2] == name), None)

    def layout(self) -> Sequence[Sequence[str]] | None:
        """Return the parts of each chunk of the pipeline, as in Megatron's pipeline_model_parallel_layout
        (core/transformer/pipeline_parallel_layer_layout.py): letters, or names; None where the recipe has no such."""
        layout = self.stated("pipeline_model_parallel_layout")
        if isinstance(layout, str):  # Et*4|(t*4|)*14tmL
            for repeated in (r"\(([^()]*)\)\*(\d+)", r"(\w)\*(\d+)"):
                layout = re.sub(repeated, lambda match: match[1] * int(match[2]), layout)
            return layout.split("|")
        return layout or None

    def in_layout(self) -> tuple[int, int] | None:
        """Return the layers, and those of multi-token prediction, that its layout of the pipeline has."""
        parts = [part for chunk in self.layout() or () for part in chunk]
        return (_of(parts, "t", "decoder"), _of(parts, "m", "mtp")) if parts else None

    def chunks(self, layers: int, count: int) -> tuple[int, ...] | None:
        """Return the layers of each of `count` chunks of the pipeline by the recipe's own layout of it; None where it
        has none, or one of another model."""
        each = tuple(_of(chunk, "t", "decoder") for chunk in self.layout() or ())
        return each if each and (len(each), sum(each)) == (count, layers) else None

    def __str__(self) -> str:
        count = "any number of" if self.gpus is None else f"{self.gpus} ×"
        where = f"{count} {' or '.join(self.hardware)} in {self.precision}"
        return f"{self.name} ({self.model} on {where}, {self.stack})"

    @property
    def stack(self) -> str:
        """Return the overrides that choose its stack."""
        backend = f" framework.backend={self.backend}" if self.backend else ""
        return f"framework={self.framework}{backend} framework.release={self.release}"


def _of(parts: Sequence[str], *names: str) -> int:
    return sum(part in names for part in parts)


@dataclass(frozen=True, slots=True)
class Case:
    """The case that a recipe is looked up by. framework and release None: any, and of no framework any backend."""

    framework: str | None
    release: str | None
    model: str
    hardware: str
    gpus: int
    precision: str
    backend: str | None = None

    def fits(self, recipe: Recipe, kin: bool = False) -> bool:
        """Return whether `recipe` is published for this case. kin: or for other GPUs of its architecture."""
        return (
            (self.framework is None or (self.framework, self.backend) == (recipe.framework, recipe.backend))
            and self.release in (None, recipe.release)
            and (self.model, self.precision) == (recipe.model, recipe.precision)
            and (self.hardware in recipe.hardware or (kin and of_one_architecture(recipe, self.hardware)))
            and recipe.gpus in (None, self.gpus)
        )

    def __str__(self) -> str:
        return f"{self.model} on {self.gpus} × {self.hardware} in {self.precision}"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A row of conf/recipes/rehearsed.csv: how rehearse=layout of a recipe went, by `tprimat recipes rehearse --keep`.
    outcome: completed; same (as `same_as`, which completed: a CPU sees no difference between the two); refused: nothing
    can be started; failed; or not rehearsed. reason: of the last three. version, date: of ours, and when."""

    recipe: str
    outcome: str
    same_as: str = ""
    reason: str = ""
    version: str = ""
    date: str = ""

    def __str__(self) -> str:
        how = f"{self.outcome} as {self.same_as}" if self.outcome == SAME else self.outcome
        when = f" (TensorPrimat {self.version}, {self.date})" if self.date else ""
        return f"{how}{when}{f': {self.reason}' if self.reason else ''}"


COMPLETED, SAME, REFUSED, FAILED, NOT_REHEARSED = OUTCOMES = ("completed", "same", "refused", "failed", "not rehearsed")


def rehearsals() -> dict[str, Rehearsal]:
    """Return how the rehearsal of each recipe went, by the recipe's name."""
    known = {recipe.name: Rehearsal(recipe.name, NOT_REHEARSED, reason="not run yet") for recipe in recipes()}
    if REHEARSED.is_file():
        with REHEARSED.open(encoding="utf-8", newline="") as file:
            known |= {row["recipe"]: Rehearsal(**row) for row in csv.DictReader(file) if row["recipe"] in known}
    return known


def keep(rows: Iterable[Rehearsal]) -> None:
    """Put `rows` in place of what is known of their recipes, in one piece."""
    known = rehearsals() | {row.recipe: row for row in rows}
    part = REHEARSED.with_suffix(".part")
    with part.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(Rehearsal.__slots__)
        table.writerows([getattr(row, name) for name in Rehearsal.__slots__] for _, row in sorted(known.items()))
    os.replace(part, REHEARSED)


def recipes(folder: str = "", model: str | None = None) -> tuple[Recipe, ...]:
    """Return every recipe, or those of FRAMEWORK-RELEASE, or of `model` (in a part of the time), by folder and name.
    ConfigError: as `read_recipe`; an import was killed half way."""
    return _read(RECIPES / folder, model)


@cache
def _read(folder: Path, model: str | None) -> tuple[Recipe, ...]:
    check_complete()
    paths = sorted(path for path in folder.rglob("*.yaml") if not path.parent.name.startswith("."))
    if model is not None:
        paths = [path for path in paths if f"\nmodel: {model}\n" in path.read_text(encoding="utf-8")]
    return tuple(map(read_recipe, paths))


def check_complete() -> None:
    """Raise ConfigError where an import was killed between the two renames by which a folder is replaced."""
    for before in RECIPES.glob(f".*{BEFORE}"):
        there = before.with_name(before.name[1:].removesuffix(BEFORE))
        if not there.exists():
            what = "is not there: an import was killed while it took its place"
            raise ConfigError(Problem(f"conf/recipes/{there.name}", what, hint=f"mv {before} {there}"))


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a file. ConfigError: all that is wrong with it."""
    recipe: Recipe = frozen(
        Recipe, {"name": path.stem, "backend": None, **read_yaml(path)}, f"{path.parent.name}/{path.name}"
    )
    return recipe


def of_one_architecture(recipe: Recipe, name: str) -> bool:
    """Return whether the hardware `name` has the architecture of the GPUs that `recipe` is published for."""
    architectures = {device.architecture for one in (name, *recipe.hardware) if (device := hardware(one))}
    return len(architectures) == 1 and None not in architectures


def fitting(case: Case, name: str | None = None) -> list[Recipe]:
    """Return the recipes of `case`: those called `name`, for other GPUs of its architecture, too; else those without a
    variant."""
    known = recipes(model=case.model)
    if name:
        return [r for r in known if r.name == name and case.fits(r, kin=True)]
    return [r for r in known if r.variant is None and case.fits(r)]


def find_recipe(case: Case, name: str | None = None) -> Recipe | None:
    """Return the recipe of `case`: the one called `name`, else the only one without a variant; one for this number of
    GPUs beats one that states none. ConfigError: there are several."""
    known = fitting(case, name)
    best = [r for r in known if r.gpus is not None] or known
    if len(best) > 1:
        names = listed([r.name for r in best])
        raise ConfigError(Problem("recipe", f"the vendor has several for {case}", "null", names, "recipe=NAME"))
    return best[0] if best else None


def no_recipe(case: Case, name: str | None = None) -> Problem:
    """Return the problem of a case that no recipe is published for; it names the nearest ones. The stack is part of it
    where another one, or another release, has a recipe."""
    nearest = _nearest(case)
    what = "no recipe is published for this case"
    if name:
        named = [r for r in recipes() if r.name == name]
        what = f"{name} is published for another case" if named else "no recipe has this name"
        nearest = named or nearest
    anywhere = replace(case, framework=None, release=None)
    other_release = replace(case, release=None)
    of_model = recipes(model=case.model)
    found = f"{case}, framework={case.framework}" if any(map(anywhere.fits, of_model)) else str(case)
    found += f" framework.release={case.release}" if any(map(other_release.fits, of_model)) else ""
    hint = "one of these, or method=identical; `tprimat recipes list` has all"
    if nearest and not name:
        hint = f"{_how_to_take(nearest[0], case)}{hint}"
    return Problem("recipe" if name else "method", what, found, listed([*map(str, nearest[:_MOST_NEAREST])]), hint)


def nearest(case: Case, usable: Callable[[Recipe], bool]) -> Recipe | None:
    """Return the nearest recipe of the case's model, for any stack, that is `usable`; None without one."""
    anywhere = replace(case, framework=None, release=None)
    return next((r for r in _nearest(anywhere) if r.model == case.model and usable(r)), None)


def _nearest(case: Case) -> list[Recipe]:
    """Return the recipes of this model and vendor, else of a model of its sizes, else of this hardware, the nearest
    first."""

    def of_vendor(r: Recipe) -> bool:
        devices = hardware(r.hardware[0]), hardware(case.hardware)
        return len({device.vendor for device in devices if device}) == 1

    def distance(r: Recipe) -> tuple[Any, ...]:
        factor = abs(log2(r.gpus / case.gpus)) if r.gpus and case.gpus > 0 else 0.0 if case.gpus > 0 else inf
        other_stack = case.framework not in (None, r.framework), case.release not in (None, r.release)
        other_gpu = case.hardware not in r.hardware, not of_one_architecture(r, case.hardware)
        other_precision = r.precision != case.precision, r.precision
        return (*other_gpu, *other_stack, factor, *other_precision, r.name)

    theirs = [r for r in recipes() if of_vendor(r)]
    known = [r for r in theirs if r.model == case.model]
    if not known and (sizes := _sizes(case.model)):
        known = [r for r in theirs if _sizes(r.model) == sizes]
    return sorted(known or [r for r in theirs if case.hardware in r.hardware], key=distance)


def _how_to_take(r: Recipe, case: Case) -> str:
    """Return what to type for a recipe that must be named, in words that others follow; empty for any other."""
    anywhere = replace(case, framework=None, release=None)
    stack = "" if case.fits(r, kin=True) else f" {r.stack}"
    if anywhere.fits(r):
        return f"{stack.strip()} has one; else "
    if anywhere.fits(r, kin=True):
        published = " and ".join(r.hardware)
        return f"recipe={r.name}{stack} runs it on {case.hardware}, which is published for {published}; else "
    if r.model != case.model and _sizes(r.model) == _sizes(case.model):
        return f"model={r.model} is of the same sizes, and another model; else "
    return ""


@cache
def _sizes(model: str) -> tuple[Any, ...] | None:
    """Return the sizes that `model` has, None where there is no such file."""
    known = read_choice("model", model).get("model") if model in choices("model") else None
    return known and tuple(repr(known.get(key)) for key in _SIZES)
