"""Request → Experiment: the layout row or the recipe, the defaults and the derived sizes filled in, each with its
reason."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from conf.check import data_parallel_size, problems, warnings
from conf.errors import ConfigError, Problem
from conf.facts import LayoutRow, find_row, no_row
from conf.recipes import GLOBAL_BATCH, MICRO_BATCH, OF_THE_WORK, Case, Recipe, find_recipe, no_recipe
from conf.schema import BEST, IDENTICAL, Common, LayoutChoice, NodeReference, Request
from conf.shapes import ENDS, Sizes
from conf.vocabulary import follow, short_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the job is cut: TP × PP × CP × DP = world_size; sizes in ranks. source: where a table's row came from."""

    name: str
    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int | None
    context_parallel_size: int
    expert_model_parallel_size: int
    sequence_parallel: bool
    account_for_embedding_in_pipeline_split: bool
    account_for_loss_in_pipeline_split: bool
    data_parallel_shards: int
    data_parallel_replicas: int
    data_parallel_size: int
    num_micro_batches: int
    world_size: int
    source: str | None

    @property
    def gradient_accumulation_steps(self) -> int:
        """Return micro-batches a rank and step, by the name that users and the README give them."""
        return self.num_micro_batches

    def __str__(self) -> str:
        sizes = ((short, getattr(self, name) or 1) for name, short in short_names().items())
        shown = [f"{short}{size}" for short, size in sizes if size > 1 or short == "DP"]
        more = {"SP": self.sequence_parallel, "uneven": any(getattr(self, name) for name in ENDS)}
        hybrid = self.data_parallel_shards > 1 and self.data_parallel_replicas > 1
        more[f"HSDP{self.data_parallel_replicas}x{self.data_parallel_shards}"] = hybrid
        return " ".join((*shown, *(word for word, applies in more.items() if applies)))


@dataclass(frozen=True, slots=True)
class Declared:
    """A setting that one platform was given on purpose."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(Common):
    """The complete request, frozen and valid. recipe: what method=max_performance runs. reasons: why a derived value is
    what it is; warnings: what to mind. node_reference: what preflight= holds each node against."""

    name: str
    recipe: Recipe | None
    layout: Layout
    gpus_per_node: int
    declared: tuple[Declared, ...]
    reasons: tuple[str, ...]
    warnings: tuple[Problem, ...]
    node_reference: NodeReference | None

    @property
    def accelerator(self) -> str | None:
        """Return whose GPUs it runs on; None on a CPU, as every rehearsal is."""
        return None if self.rehearse else self.platform.vendor

    def sizes(self) -> Sizes:
        """Return the sizes of the layout, with what a recipe says of experts and stages."""
        sizes = Sizes.of(self.layout)
        if self.recipe is None:
            return sizes
        chunks = self.recipe.chunks(self.model.num_layers, sizes.pp * sizes.vp)
        return sizes._replace(etp=self.recipe.stated("expert_tensor_parallel_size"), chunks=chunks)


def resolve(request: Request, reasons: tuple[str, ...]) -> Experiment:
    """Return the experiment that `request` means; what one side declares is not known here. ConfigError: no row for the
    requested layout, or everything that is wrong with layout, batch and schedule."""
    if wrong := list(_misplaced(request)):
        raise ConfigError(*wrong)
    if request.method == BEST:
        return _with_recipe(request, reasons)
    choice = _explicit(request.layout)
    case = request.model.name, request.world_size
    row = find_row(choice.table, *case) if choice.table else None
    r = _filled_in(replace(request, layout=choice), row)
    missing = [no_row(choice.table, *case)] if choice.table and row is None else []
    if wrong := [*missing, *problems(r, layout=not missing)]:
        of_layout = any(problem.where.startswith("layout") for problem in wrong)
        row_says = [Problem("layout", f"the row says: {row.note} [{row.source}]")] if row and of_layout else []
        raise ConfigError(*wrong, *row_says)
    return _made(r, row.source if row else None, (*reasons, *_reasons(request, r, row)))


def _with_recipe(request: Request, reasons: tuple[str, ...]) -> Experiment:
    """Return the experiment by the vendor's recipe for it. ConfigError: there is none, or it cannot be used so."""
    stack = request.framework.name, request.framework.release
    case = replace(
        Case(*stack, request.model.name, request.hardware.name, request.world_size, request.precision.name),
        backend=request.framework.backend,
    )
    recipe = find_recipe(case, request.recipe)
    if recipe is None:
        raise ConfigError(no_recipe(case, request.recipe), *problems(_filled_in(request, None), layout=False))
    r = _filled_in(_with_values(request, _layout_of(recipe)), None)
    own_batch, own_micro = recipe.experiment[GLOBAL_BATCH], recipe.experiment[MICRO_BATCH]
    if request.batch == "vendor":
        r = replace(r, training=replace(r.training, global_batch_size=own_batch))
    if request.training.micro_batch_size is None:
        r = replace(r, training=replace(r.training, micro_batch_size=_micro_batch(r)))
    if wrong := problems(r):
        micro = request.training.micro_batch_size or own_micro
        own = replace(r, training=replace(r.training, global_batch_size=own_batch, micro_batch_size=micro))
        hint = f"batch=vendor: it is published with a batch of {own_batch}" if not problems(own) else ""
        raise ConfigError(*wrong, Problem("recipe", f"this is {recipe} [{recipe.source}]", hint=hint))
    why: list[str] = []
    if (micro := r.training.micro_batch_size) != own_micro:
        largest = f"the largest that divides a batch of {r.training.global_batch_size} here"
        because = "as requested" if request.training.micro_batch_size else largest
        why.append(f"micro-batch {micro}, the recipe's {own_micro}: {because}")
    if (batch := r.training.global_batch_size) != own_batch:
        why.append(f"global batch {batch}, the recipe's {own_batch}: the same on both sides, or batch=vendor")
    e = _made(r, recipe.source, (*reasons, *_reasons(request, r, None), *why))
    return replace(e, recipe=recipe, declared=(*_by_recipe(request, r, recipe), *e.declared))


def _layout_of(recipe: Recipe) -> Mapping[str, Any]:
    """Return what a recipe decides (GROUP.NAME → value), with whether its stages count embedding and loss as layers."""
    return {**recipe.experiment, **{f"layout.{name}": bool(recipe.stated(name)) for name in ENDS}}


def _with_values(request: Request, values: Mapping[str, Any]) -> Request:
    """Return `request` with a recipe's `values` (GROUP.NAME → value), all but the work; of layout and training what the
    user typed stays: what is not null. ConfigError: a key that a recipe cannot decide."""
    for key, value in values.items():
        group, _, name = key.partition(".")
        if group not in ("layout", "training", "precision") or name not in getattr(request, group).__slots__:
            what, allowed = "a recipe decides no such key", "layout.*, training.*, precision.*"
            raise ConfigError(Problem("conf/recipes", what, key, allowed))
        if key not in OF_THE_WORK and (group == "precision" or follow(request, key) is None):
            request = replace(request, **{group: replace(getattr(request, group), **{name: value})})
    return replace(request, layout=replace(request.layout, name=BEST, table=None))


def _micro_batch(r: Request) -> int:
    """Return the largest micro-batch, at most the recipe's, that the global batch divides by over the ranks and, of
    virtual stages, over the stages; the recipe's where none does: the rules then say why not."""
    sizes = Sizes.of(r.layout)
    own, dp = r.training.micro_batch_size or 1, data_parallel_size(r, sizes)
    unit = dp * (sizes.pp if sizes.vp > 1 else 1)
    return next((n for n in range(own, 0, -1) if unit and r.training.global_batch_size % (n * unit) == 0), own)


def _misplaced(r: Request) -> Iterator[Problem]:
    """Yield what contradicts the method."""
    if r.method == IDENTICAL:
        if r.recipe is not None:
            what = "method=identical runs nobody's recipe"
            yield Problem("recipe", what, r.recipe, "null", "method=max_performance")
        if r.batch != "identical":
            what = "method=identical runs nobody's recipe, whose batch could be kept"
            yield Problem("batch", what, r.batch, "identical", "method=max_performance batch=vendor")
        return
    sizes = any(getattr(r.layout, name) is not None for name in r.layout.__slots__ if name not in ("name", "table"))
    if sizes or r.layout.table is None:
        what = "method=max_performance runs the layout of the vendor's recipe, whole"
        yield Problem(
            "layout",
            what,
            r.layout.name,
            "no layout=, no sizes",
            "method=identical, where you, the model or the platform has a layout of its own",
        )


def _by_recipe(request: Request, r: Request, recipe: Recipe) -> Iterator[Declared]:
    """Yield what `recipe` changes of the work itself (what is computed, and the batch where each keeps its own), and
    that it is another GPU's."""
    if request.hardware.name not in recipe.hardware:
        theirs = f"published for {' and '.join(recipe.hardware)}, run on {request.hardware.name} as requested (recipe=)"
        yield Declared("recipe", recipe.name, theirs)
    if r.training.global_batch_size != request.training.global_batch_size:
        yield Declared("global_batch_size", r.training.global_batch_size, f"batch=vendor: {recipe.name}")
    name = "accumulate_allreduce_grads_in_fp32"
    if (value := getattr(r.precision, name)) != getattr(request.precision, name):
        yield Declared(name, value, f"changes numerics, by the vendor's recipe {recipe.name}")


def _made(r: Request, source: str | None, reasons: tuple[str, ...]) -> Experiment:
    """Return the experiment of a request that is filled in and without problems."""
    sizes = {name: getattr(r.layout, name) for name in r.layout.__slots__ if name != "table"}
    dp = data_parallel_size(r, Sizes.of(r.layout))
    micro_batches = r.training.global_batch_size // ((r.training.micro_batch_size or 1) * dp)
    sizes |= {"data_parallel_size": dp, "num_micro_batches": micro_batches, "world_size": r.world_size}
    layout = Layout(**sizes, source=source)
    kept = {field.name: getattr(r, field.name) for field in fields(Common)}
    if r.equal_init is None:  # losses of toys with weights of their own show little
        kept["equal_init"] = r.rehearse == "train"
    return Experiment(
        **kept,
        name=r.name or f"{r.model.name}-{'rehearsal' if r.rehearse else r.platform.name}",
        recipe=None,
        layout=layout,
        gpus_per_node=r.ranks_per_node,
        declared=tuple(Declared(f"environment.{name}", str(v), "as requested") for name, v in r.environment.items()),
        reasons=reasons,
        warnings=tuple(warnings(r, Sizes.of(layout))),
        node_reference=None,
    )


def _filled_in(r: Request, row: LayoutRow | None) -> Request:
    """Return `r` with what was None in layout, training, optimizer and data; what the user set stays."""
    none = {f"{name}_parallel_size": 1 for name in _DIRECTIONS} | dict.fromkeys(ENDS, False)
    layout = _filled(r.layout, row, none)
    if layout.sequence_parallel is None:
        layout = replace(layout, sequence_parallel=layout.tensor_model_parallel_size > 1)
    training = _filled(r.training, row, _TRAINING_DEFAULTS)
    layout = _data_parallel(layout, data_parallel_size(r, Sizes.of(layout)), bool(training.use_distributed_optimizer))
    if training.recompute_granularity == "none":
        training = replace(training, recompute_granularity=None, recompute_method=None, recompute_num_layers=None)
    optimizer, data = r.optimizer, r.data
    if optimizer.lr_decay_iters is None:
        optimizer = replace(optimizer, lr_decay_iters=training.train_iters)
    if data.name == "prefix" and data.path:  # from the root: a run happens in a directory of its own
        data = replace(data, path=os.path.abspath(data.path))  # noqa: PTH100
    if data.tokenizer:
        data = replace(data, tokenizer=os.path.abspath(data.tokenizer))  # noqa: PTH100
    if data.name == "blend":
        paths = {name: os.path.abspath(data.corpora.get(name, name)) for name in data.blend}  # noqa: PTH100
        data = replace(data, path=" ".join(f"{weight!r} {paths[name]}" for name, weight in data.blend.items()))
    framework = r.framework
    if framework.python and "/" in framework.python and r.cluster.container == "none":
        framework = replace(framework, python=os.path.abspath(os.path.expanduser(framework.python)))  # noqa: PTH100, PTH111
    return replace(r, layout=layout, training=training, optimizer=optimizer, data=data, framework=framework)


def _data_parallel(layout: LayoutChoice, ranks: int, sharded: bool) -> LayoutChoice:
    """Return a layout with both of shards and replicas, whose product is DP: as stated, else one group of all ranks
    where something is sharded, and otherwise as many replicas. What was stated and does not divide stays as it is."""
    shards, replicas = layout.data_parallel_shards, layout.data_parallel_replicas
    if shards is None:
        shards = max(1, ranks // (replicas or 1)) if sharded else 1
    if replicas is None:
        replicas = max(1, ranks // (shards or 1))
    return replace(layout, data_parallel_shards=shards, data_parallel_replicas=replicas)


_TRAINING_DEFAULTS: Mapping[str, Any] = {
    "micro_batch_size": 1,
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
}
_DIRECTIONS = ("tensor_model", "pipeline_model", "context", "expert_model")


def _explicit(choice: LayoutChoice) -> LayoutChoice:
    """Let sizes that the user typed beat a table: half a vendor's row is nobody's recipe."""
    sizes = (f for f in choice.__slots__ if f.endswith("_size"))
    if choice.table and any(getattr(choice, f) is not None for f in sizes):
        return replace(choice, name="explicit", table=None)
    return choice


def _filled(group: Any, row: LayoutRow | None, defaults: Mapping[str, Any]) -> Any:
    """Return `group` with its None fields from the row, then from the defaults. What the user set stays."""
    names = [f for f in group.__slots__ if getattr(group, f) is None]
    values = {f: getattr(row, f, None) for f in names}
    return replace(group, **{f: defaults.get(f) if v is None else v for f, v in values.items()})


def _reasons(stated: Request, r: Request, row: LayoutRow | None) -> Iterator[str]:
    training, sizes = r.training, Sizes.of(r.layout)
    one, many = ("GPU", "GPUs") if r.hardware.vendor else ("process", "processes")
    dp, world = data_parallel_size(r, sizes), r.world_size
    equation = f"{world} {one if world == 1 else many} / TP {sizes.tp} / PP {sizes.pp}"
    equation += f" / CP {sizes.cp}" if sizes.cp > 1 else ""
    yield f"DP = {dp}: {equation}"
    micro, batch = training.micro_batch_size or 1, training.global_batch_size
    yield f"gradient accumulation = {batch // (micro * dp)}: global batch {batch} / (micro-batch {micro} × DP {dp})"
    if r.gpus_per_node is None:
        yield f"gpus_per_node = {r.ranks_per_node}: a standard node of {r.hardware.name}"
    if row is not None:
        kept = (f for f in row.__slots__ if hasattr(training, f) and getattr(row, f) is not None)
        changed = ", ".join(f for f in kept if getattr(row, f) != getattr(training, f))
        note = "one for all GPUs, chosen to fit the smallest of them"
        times = world // row.gpus
        note += f"; that for {row.gpus}, with {times} times its data parallel ranks" if times > 1 else ""
        note += f", but changed: {changed}" if changed else ""
        yield f"layout {row.table}: {note} [{row.source}]"
    elif stated.method == IDENTICAL and stated.layout.sequence_parallel is None and sizes.tp > 1:
        yield "sequence parallel on: TP > 1, and nothing said otherwise"
