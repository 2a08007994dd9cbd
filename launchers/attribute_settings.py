"""Canonical settings → attribute paths or keys of a stack's config, by its column of conf/vocabulary.yaml. Pure. What
more a stack is given stands in launchers/settings/FRAMEWORK.yaml, which not every stack has. A path is written only if
the request decides it or a table gives a constant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from conf import resolve, schema
from conf.errors import Problem, closest, some
from conf.recipes import Case, Recipe, nearest, recipes
from conf.resolve import Declared, Experiment
from conf.vocabulary import Write, follow, read_yaml, vocabulary, written
from launchers.rank_modules import rank_module

FOLDER = Path(__file__).parent / "settings"
CHECKPOINTS = "checkpoints"  # in the run's directory
KEEP_CHECKPOINTS = 2  # a second one, should the newest be damaged
_CONSTANTS = (
    *("always", "always_if_there", "switches", "switches_if_there"),
    *("without_accelerator", "without_transformer_engine"),
)
FORMS = ("enum", "dtype", "function", "constant", "object", "mapping")  # as KINDS in launchers/ranks/vendor_ranks.py
COMPUTED = "what is computed, the same on every stack"
# What a vendor's recipe decides where it says anything of it; all else of an experiment is the work itself.
_OF_RECIPES = (
    *("layout.", "precision.", "training.micro_batch_size", "training.recompute_", "training.overlap_"),
    *("training.use_distributed_optimizer", "training.attention"),
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """How one setting, or a part of the Experiment, is written. of: where the Experiment has it. switch: it is how the
    work is done, which a recipe decides."""

    name: str
    of: str
    write: Write
    switch: bool = False

    def left_to(self, recipe: Recipe | None) -> bool:
        """Return whether `recipe` decides it: how the work is done, and none of our keys that it states."""
        if recipe is None:
            return False
        return self.switch or (self.of not in recipe.experiment and self.of.startswith(_OF_RECIPES))

    def paths(self, release: str | None) -> Iterator[str]:
        """Yield where `release` has it."""
        return (target.path for target in self.write.to if in_range(release, target.since, target.before))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The settings of a stack. settings: by canonical name. parts: what more of the Experiment is written. always: path
    → value, whatever is requested, and computed: what those of the work itself begin with; switches: where no recipe
    decides them. The others are for some releases only, for a
    machine without an accelerator, and for an environment without TransformerEngine, which only the ranks see. more:
    what only this stack's module reads."""

    settings: Mapping[str, Row]
    parts: tuple[Row, ...]
    computed: tuple[str, ...]
    always: Mapping[str, Any]
    always_if_there: Mapping[str, Any]
    switches: Mapping[str, Any]
    switches_if_there: Mapping[str, Any]
    without_accelerator: Mapping[str, Any]
    without_transformer_engine: Mapping[str, Any]
    more: Mapping[str, Any]

    def requested(self, e: Experiment) -> Iterator[tuple[Row, Any]]:
        """Yield each row with what `e` requests of it."""
        return ((row, follow(e, row.of)) for row in (*self.settings.values(), *self.parts))


@dataclass(frozen=True, slots=True)
class Assignments:
    """path → plain value, in the order in which they are set. `if_there`: no fault where the class has no such name."""

    set: Mapping[str, Any]
    set_if_there: Mapping[str, Any]


@cache
def table(framework: str, shared: str | None = None) -> Table:
    """Return the framework's column of the vocabulary and its launchers/settings/FRAMEWORK.yaml, where there is one, or
    that of `shared`, which several frameworks have in common.
    Raises what an entry that is not as the vocabulary's head says comes to; it is named."""
    file = FOLDER / f"{shared or framework}.yaml"
    raw: dict[str, Any] = dict(read_yaml(file)) if file.exists() else {}
    own = raw.pop("settings", {})
    settings = {}
    for name, setting in vocabulary().items():
        if setting.request and setting.dump:
            write = setting.write.get(framework) or written(f"{file.name}: {name}", own.get(name, name))
            settings[name] = Row(name=name, of=setting.request, write=write)
    parts = tuple(_part(**part) for part in raw.pop("parts", ()))
    fields = {n for m in (resolve, schema) for kind in vars(m).values() if isinstance(kind, type) for n in dir(kind)}
    rows = (*settings.values(), *parts)
    wrong = {row.write.convert for row in rows} - {None, *CONVERSIONS} | (own.keys() - settings.keys())
    if wrong := wrong | {row.of for row in rows if {*row.of.split(".")} - fields}:
        raise ValueError(f"no such setting, conversion or field of conf/schema.py: {', '.join(map(str, wrong))}")
    constants = {part: raw.pop(part, None) or {} for part in _CONSTANTS}
    computed = tuple(raw.pop("computed", ()))
    return Table(settings=settings, parts=parts, computed=computed, **constants, more=raw)


def _part(of: str, switch: bool = False, **entry: Any) -> Row:
    """Return an entry of `parts`."""
    return Row(name=of, of=of, write=written(of, entry), switch=switch)


@dataclass(frozen=True, slots=True)
class _Assigned:
    """One value for one path, why it is set, and whether a class without the attribute is no fault."""

    path: str
    value: Any
    why: str
    optional: bool = False


def _assigned(e: Experiment, settings: Table) -> Iterator[_Assigned]:
    """Yield everything that is set for `e` beside what its recipe says, in order: the last value of a path counts."""
    for row, value in settings.requested(e):
        write = row.write
        if (value is None and write.unless_null) or row.left_to(e.recipe):
            continue
        converted = CONVERSIONS[write.convert](value, e) if write.convert else value
        optional = write.if_there or _equal(converted, write.absent_is)
        yield from (_Assigned(path, converted, row.of, optional) for path in row.paths(e.framework.release))
    file = f"launchers/settings/{e.framework.name}.yaml"
    constants = [(settings.always, False), (settings.always_if_there, True)]
    if e.recipe is None:
        constants += [(settings.switches, False), (settings.switches_if_there, True)]
    if e.accelerator is None:
        constants += [(settings.without_accelerator, False)]
    for values, optional in constants:
        for path, value in values.items():
            yield _Assigned(path, value, COMPUTED if path.startswith(settings.computed) else file, optional)
    for name, value in options(e).items():
        why = f"framework.options.{name}"
        yield from (_Assigned(path, value, why) for path in option_paths(name, e.framework.release, settings))


def assignments(e: Experiment, settings: Table) -> Assignments:
    """Return everything that is set on the stack's config for `e`: its recipe's settings; the request, `parts` after
    `settings`; constants last."""
    values: dict[str, Any] = dict(e.recipe.settings) if e.recipe else {}
    optional: dict[str, Any] = {}
    for one in _assigned(e, settings):
        (optional if one.optional and one.path not in values else values)[one.path] = one.value
    return Assignments(values, {path: value for path, value in optional.items() if path not in values})


def left_to_recipe(e: Experiment, settings: Table) -> dict[str, Any]:
    """Return path → value of all that is the recipe's own word: nothing here sets it."""
    set_here = {one.path for one in _assigned(e, settings)}
    return {path: value for path, value in (e.recipe.settings if e.recipe else {}).items() if path not in set_here}


@dataclass(frozen=True, slots=True)
class Difference:
    """A path whose value is not the one of the vendor's recipe. why: the part of the experiment that decides it, or the
    file of ours that does."""

    path: str
    vendor: Any
    here: Any
    why: str


def differences(e: Experiment, settings: Table) -> tuple[Difference, ...]:
    """Return all in which what is set for `e` differs from its recipe's own values; nothing without a recipe. A path
    that the vendor's object does not have is none."""
    if e.recipe is None:
        return ()
    vendor, last = e.recipe.settings, {one.path: one for one in _assigned(e, settings)}
    return tuple(
        Difference(path, vendor[path], one.value, one.why)
        for path, one in last.items()
        if path in vendor and not _equal(vendor[path], one.value)
    )


def options(e: Experiment) -> dict[str, Any]:
    """Return framework.options: attribute path → value; one such as {enum: AttnBackend.flash} is a value."""

    def flat(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        for name, value in mapping.items():
            is_part = isinstance(value, Mapping) and not {*value} & {*FORMS} and value
            yield from flat(value, f"{prefix}{name}.") if is_part else [(f"{prefix}{name}", value)]

    return dict(flat(e.framework.options))


def option_paths(name: str, release: str | None, settings: Table) -> list[str]:
    """Return where `release` has the option; nothing if it is known not to have it."""
    targets = written(name, settings.more.get("options", {}).get(name, name)).to
    return [target.path for target in targets if in_range(release, target.since, target.before)]


def options_declared(e: Experiment) -> tuple[Declared, ...]:
    """Return the user's options, each of which may be a difference between the sides."""
    return tuple(Declared(name, value, "framework.options") for name, value in options(e).items())


def options_refused(e: Experiment, settings: Table) -> Iterator[Problem]:
    """Yield options that contradict what is forced: that a setting of ours decides, or that is the same in every run.
    How the work is done (`switches`) is the user's to change; the ranks refuse a name that the stack does not have."""
    rows = (row for row, _ in settings.requested(e) if not row.switch and row.write.runs != "kernel")
    decided = {path: row.of for row in rows for path in row.paths(None)}
    decided |= {path: key for key, paths in settings.more["options_decided"].items() for path in paths}
    constant = {**settings.always, **settings.always_if_there}
    for name, value in options(e).items():
        where = f"framework.options.{name}"
        if not all(part.isidentifier() for part in name.split(".")):
            yield Problem(where, "is no attribute path", name, "names with dots between them")
        elif name in decided:
            hint = f"set {decided[name]} instead"
            yield Problem(where, "is written from a setting that all stacks share", _typed(value), hint=hint)
        elif name in constant and not _equal(value, constant[name]):
            what = f"is the same in every run: it belongs to the work (launchers/settings/{e.framework.name}.yaml)"
            yield Problem(where, what, _typed(value), str(constant[name]), "leave it out")
        elif parts := [path for path in (*decided, *constant) if path.startswith(f"{name}.")]:
            what = f"is an object of which {len(parts)} parts are forced"
            yield Problem(where, what, _typed(value), hint=f"a part of it: {where}.NAME=, none of {some(parts)}")


def options_unknown(e: Experiment, settings: Table) -> Iterator[tuple[str, str]]:
    """Yield each option that neither a table of ours nor a recipe of this release has, with the nearest that one has:
    whether the stack has it only the ranks can tell."""
    if not (named := options(e)):
        return
    known = {path for row in (*settings.settings.values(), *settings.parts) for path in row.paths(e.framework.release)}
    for constants in (settings.always, settings.always_if_there, settings.switches, settings.switches_if_there):
        known |= {*constants}
    for recipe in recipes(f"{e.framework.name}-{e.framework.release}"):
        known |= {*recipe.settings}
    for name in named:
        if not {*option_paths(name, e.framework.release, settings)} <= known:
            yield name, closest(name, known)


def problems(e: Experiment, settings: Table) -> Iterator[Problem]:
    """Yield requests that the stack has no setting for and that nothing may stand in for."""
    if e.resume and e.training.save_interval:
        what = f"{e.framework.name} would go on from its own checkpoints, which was not shown to be the same run"
        yield Problem("resume", what, "true", "false", "resume=false begins anew; framework=megatron goes on")
    if e.training.keep_checkpoints is not None and all(row.write.convert != "kept" for row in settings.parts):
        what = f"{e.framework.name} keeps no checkpoints here"
        yield Problem("training.keep_checkpoints", what, str(e.training.keep_checkpoints), "null", "leave it out")
    for row, value in settings.requested(e):
        if value is None and row.write.unless_null:
            continue
        needed = row.write.refused_without(e)
        if row.write.cannot and needed is not msgspec.UNSET and not _equal(value, needed):
            hint = f"{row.of}={_typed(needed)}" + ", which is another model; or another framework" * row.of.startswith(
                "model."
            )
            yield Problem(row.of, row.write.cannot, _typed(value), _typed(needed), hint)


def layout_refused(e: Experiment) -> Iterator[Problem]:
    """Yield a recipe's layout of the pipeline that Megatron refuses with this model, and the nearest recipe that it
    takes (core/transformer/pipeline_parallel_layer_layout.py, validate_layer_layout)."""
    wanted = e.model.num_layers, e.model.mtp_num_layers or 0
    if e.recipe is None or e.recipe.in_layout() in (None, wanted):
        return
    case = Case(None, None, e.model.name, e.hardware.name, e.layout.world_size, e.precision.name)
    other = nearest(case, lambda r: r.in_layout() in (None, wanted))
    hints = [f"the nearest that can is {other}"] if other else []
    (layers, extra) = e.recipe.in_layout() or wanted
    if layers == e.model.num_layers and not extra:
        hints.append("model.mtp_num_layers=null, which is another model")
    what = "the recipe's pipeline_model_parallel_layout has other layers than the model, which Megatron refuses"
    found, allowed = (f"{n} layers and {m} of multi-token prediction" for n, m in ((layers, extra), wanted))
    yield Problem("recipe", what, found, allowed, "; or ".join(hints))


def _typed(value: Any) -> str:
    """Return a value as a user types it; nothing for one of several parts."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "" if is_dataclass(value) else str(value)


def declared(e: Experiment, settings: Table) -> tuple[Declared, ...]:
    """Return what runs otherwise than requested, with the reason."""
    chosen, fixed = list(_numerics(e, settings)), []
    for row, value in settings.requested(e):
        if row.write.runs == "kernel":
            instead, reason = _kernel(value, e)
            chosen += [] if instead == value else [Declared(row.name, instead, reason)]
        instead = follow(e, row.write.becomes) if row.write.becomes else row.write.becomes_value
        if row.write.cannot and instead is not msgspec.UNSET and not _equal(value, instead):
            fixed.append(Declared(row.name, instead, row.write.cannot))
    return (*chosen, *fixed)


def _numerics(e: Experiment, settings: Table) -> Iterator[Declared]:
    """Yield what the recipe does to the numbers themselves, by the table's `numerics`."""
    if e.recipe is None:
        return
    printed = {name: setting.print.get(e.framework.name) for name, setting in vocabulary().items()}
    names = {key: name for name, key in printed.items() if isinstance(key, str)}
    for path, usual in settings.more.get("numerics", {}).items():
        if (value := e.recipe.settings.get(path, usual)) != usual:
            plainly = next(iter(value.values())) if isinstance(value, dict) else value
            last = path.rpartition(".")[2]
            name = names.get(path, last if last in printed else path)
            yield Declared(name, plainly, f"changes numerics, by the vendor's recipe {e.recipe.name}")


def in_range(release: str | None, first: str | None, end: str | None) -> bool:
    """Return whether `release` is at least `first` and before `end`; of no release, everything holds."""
    at, low, high = (_numbers(text) if text else None for text in (release, first, end))
    return at is None or ((low is None or at >= low) and (high is None or at < high))


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.lstrip("v").split(".") if part.isdigit())


def _equal(a: Any, b: Any) -> bool:
    """Compare without Python's True == 1."""
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


CONVERSIONS: Mapping[str, Callable[[Any, Experiment], Any]] = {
    "none_if_null": lambda value, _: "none" if value is None else value,
    "instances": lambda replicas, e: replicas if e.training.use_distributed_optimizer else 1,
    "opposite": lambda value, _: not value,
    "is_set": lambda value, _: value is not None,
    "is_null": lambda value, _: value is None,
    "one_if_null": lambda value, _: 1.0 if value is None else value,
    "silu": lambda swiglu, _: {"function": "silu"} if swiglu else None,
    "zero_if_null": lambda value, _: 0.0 if value is None else value,
    "activation": lambda swiglu, _: {"function": "silu" if swiglu else "quick_gelu"},
    "of_latent": lambda value, e: value if e.model.mla else None,
    "of_others": lambda value, e: None if e.model.mla else value,
    "window": lambda size, _: None if size is None else [size - 1, 0],
    "checkpoints": lambda interval, _: None if interval is None else CHECKPOINTS,
    "kept": lambda _, e: e.training.keep_checkpoints or KEEP_CHECKPOINTS,
    "blend": lambda path, e: None if path is None else _blend(e),
    "or_train_iters": lambda interval, e: interval or e.training.train_iters,
    "plain_rope": lambda model, _: model.mla is None and model.yarn is None,
    "position_embedding": lambda model, _: "yarn" if model.yarn and not model.mla else "rope",
    "layer_frequency": lambda first, e: [int(n >= first) for n in range(e.model.num_layers)] if first else 1,
    "rope_type": lambda yarn, _: "rope" if yarn is None else "yarn",
    "mock_samples": lambda name, e: e.training.train_iters * e.training.global_batch_size if name == "mock" else None,
    "nemo_tokenizer": lambda tokens, e: _nemo_tokenizer(tokens, e.data.tokenizer),
    "tokenizer_type": lambda path, _: _files().MEGATRON_TYPES[_files().kind_by_name(path)] if path else "NullTokenizer",
    "virtual_stages": lambda stages, e: None if pipeline_layout(e) else stages,
    "less_one": lambda value, e: value if e.data.tokenizer else value - 1,
    "integer": lambda value, _: int(value) if value == int(value) else value,
    "padding_unit": lambda rows, e: rows // e.layout.tensor_model_parallel_size,
    "layer_frequency_text": lambda first, e: f"([0]*{first}+[1]*{e.model.num_layers - first})" if first else 1,
    "is_bf16": lambda name, _: name == "bfloat16",
    "is_mock": lambda name, _: name == "mock",
    "data_prefix": lambda path, _: None if path is None else "${DATA_PREFIX}",
    "validation_prefix": lambda batches, _: "${VALID_DATA_PREFIX}" if batches else None,
    "attention_backend_name": lambda name, _: "auto" if name == "sdpa" else name,
    "attention_backend": lambda name, _: {"enum": f"AttnBackend.{'auto' if name == 'sdpa' else 'unfused'}"},
}


def _blend(e: Experiment) -> list[Any]:
    """Return the paths and weights of the data, as Megatron's builder takes them; no weights of one corpus."""
    words = (e.data.path or "").split() if e.data.name == "blend" else []
    return [words[1::2], [float(weight) for weight in words[::2]]] if words else [[e.data.path], None]


def _files() -> Any:
    return rank_module("tokenizer_files")


def _nemo_tokenizer(tokens: int, path: str | None) -> dict[str, Any]:
    """Return the class of NeMo's that opens the tokenizer at `path`, or a NullTokenizer, which adds one for eod."""
    if path is None:
        return {"object": "NullTokenizer", "set": {"vocab_size": tokens - 1}}
    made: dict[str, tuple[str, dict[str, Any]]] = {
        "huggingface": ("AutoTokenizer", {"pretrained_model_name": path}),
        "sentencepiece": ("SentencePieceTokenizer", {"model_path": path}),
        "tiktoken": ("TiktokenTokenizer", {"vocab_file": path, "vocab_size": tokens}),
    }
    name, arguments = made[_files().kind_by_name(path)]
    return {"object": name, "set": arguments}


def pipeline_layout(e: Experiment) -> str | None:
    """Return the layers of each stage as Megatron's --pipeline-model-parallel-layout has them, where a recipe says it:
    Megatron then refuses a number of virtual stages beside it."""
    return e.recipe.settings.get("pipeline_model_parallel_layout") if e.recipe else None


def _kernel(name: Any, e: Experiment) -> tuple[str, str]:
    """Return attention_backend as Megatron-Core's own stacks have it; without a GPU there is no TransformerEngine."""
    if e.accelerator is None:
        return "unfused", "without TransformerEngine the stack has Megatron's own attention only"
    reason = "TransformerEngine chooses its attention kernel itself, and none is torch's"
    return "auto" if name == "sdpa" else "unfused", reason
