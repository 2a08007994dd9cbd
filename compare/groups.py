"""The two sides of a comparison: groups of runs that repeat each other, each with a short name that says what sets it
apart, and the question: in which settings they may differ without an explanation. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from compare.statistics import OF_INTEREST
from conf.errors import InputError, Problem, closest, listed
from conf.facts import LayoutRow
from conf.schema import BEST
from conf.vocabulary import Rank, meant, short_names, vocabulary
from metrics.peak import device_of, hardware_of
from metrics.repeats import SEED, SUBMITTED, distinct_names, experiment_key, gathered, options_of, requested_of
from parsers import Record, Run
from parsers.assemble import same

LAYOUT = "layout"
"""A kind of settings, and the name under which a layout was requested (identical, max_performance …)."""
TOKENS = "data_first_batch"  # fingerprint of the first global batch, as it was read: one a seed
PARAMETERS = ("parameters", "parameters_decayed", "parameters_undecayed")  # of the model as it was built
DIGEST = "image_digest"
BENCHMARK = "mlperf_submission_benchmark"
METHOD, RECIPE = "method", "recipe"
OURS = "launcher_commit"
"""Which version of ours made a record."""
ENVIRONMENT = "environment"
"""All variables that were set for a run's speed, of which environment.NAME is one."""
CODE = "code"
"""The packages of a stack as they ran, of which code.NAME is one."""
# Facts that a request, a probe, a runtime or one stack alone reports: no settings of ours.
RARE = (METHOD, RECIPE, *PARAMETERS, "mock_data", DIGEST, BENCHMARK, "mlperf_submission_division")
CLOCK = "clock"
DEVICE = "device_name"  # as the driver spells it: two sorts of one GPU, or two processors
_MACHINE = ("platform", "hardware", DEVICE, "framework", "framework_version", "image", CLOCK)
# Facts of the record beside the settings of the vocabulary; not knowing them decides nothing.
FACTS = (*_MACHINE, TOKENS, *RARE)
# What else decides: facts and checks of the curves. What is not here is of the work itself, and breaks.
_RANKS: Mapping[str, Rank] = dict.fromkeys(
    (*_MACHINE, DIGEST, LAYOUT, RECIPE, ENVIRONMENT, CODE, "rehearsal"), "shifts"
)
_SIDES = ("platform", "hardware", "framework")
_IMPLIED: Mapping[str, tuple[str, ...]] = {
    "platform": ("hardware", "framework", "framework_version", "image", RECIPE),
    "hardware": (DEVICE, ENVIRONMENT),
    "framework": ("framework_version", "image", RECIPE, ENVIRONMENT),
    METHOD: (RECIPE,),
    LAYOUT: (ENVIRONMENT,),  # by which variables are chosen
    "precision": (ENVIRONMENT,),
    "image": (DIGEST,),
}
_HOW = ("training", "optimizer")  # kinds of which some settings are how the work is done
_OF_REQUEST = ("platform", "hardware", "framework", "image", "method")
_READABLE = 60  # characters of a label


Among = Literal["figures", "rehearsed", "planned"]
"""The runs that are compared among themselves: those that carry figures, else rehearsals, else plans."""
_COUNT: Mapping[Among, Collection[str]] = {
    "figures": ("measured", "imported"),
    "rehearsed": ("rehearsed",),
    "planned": ("planned",),
}


class Group(Struct, frozen=True, dict=True):
    """Repeats of one experiment: all requested alike but the seed; a plan is a group of its own. among: of what it
    counts. older: rehearsals in whose place one of `runs` stands."""

    label: str
    runs: tuple[Run, ...]
    among: Among = "figures"
    older: tuple[Run, ...] = ()

    @cached_property
    def usable(self) -> tuple[Run, ...]:
        """Return the runs that count: a rehearsal has no speed, and counts among rehearsals; a plan, of which nothing
        ran, among plans; an estimate never does."""
        counting = (r for r in self.runs if r.record.provenance in _COUNT[self.among])
        return tuple(r for r in counting if r.record.status == "completed" or self.among == "planned")

    @property
    def shown(self) -> tuple[Run, ...]:
        """Return the runs whose figures are shown: those that carry numbers; of an estimate its own, beside them."""
        return self.usable or tuple(run for run in self.runs if has_figures(run.record))


def has_figures(record: Record) -> bool:
    """Return whether a run completed, and not on the wrong machine, as a rehearsal does."""
    return record.status == "completed" and record.provenance != "rehearsed"


def seed_of(record: Record) -> Any:
    """Return the seed that ran, else the one requested; None where neither is known."""
    ran = record.setting(SEED)
    return record.requested.get(SEED) if ran is None else ran


def counted(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return what is audited: the groups that carry numbers; where none does, the rehearsed ones among themselves, else
    the planned ones."""
    for among in _COUNT:
        if sides := tuple(one for one in (replace(group_, among=among) for group_ in groups) if one.usable):
            return sides
    return ()


def group(runs: Sequence[Run]) -> tuple[Group, ...]:
    """Return the groups, in the order of their first runs. Of rehearsals of one request the newest stands, whatever
    came of it."""
    newest = _newest(runs)
    standing = [run for run, stands in zip(runs, newest, strict=True) if stands is run]
    members = gathered((_key(run, place), run) for place, run in enumerate(standing))
    labels = _labels([same[0].record for same in members.values()])
    older = gathered((id(stands), run) for run, stands in zip(runs, newest, strict=True) if stands is not run)
    return tuple(
        Group(label, tuple(same), older=tuple(old for run in same for old in older.get(id(run), ())))
        for label, same in zip(labels, members.values(), strict=True)
    )


def _newest(runs: Sequence[Run]) -> list[Run]:
    """Return the run that stands in place of each: of a rehearsal the last one of its request, else itself. Those that
    can replace each other are looked up, newest first, so that a sweep of thousands takes no longer for each."""
    rehearsed = sorted((run for run in runs if run.record.provenance == "rehearsed"), key=_started, reverse=True)
    instead: dict[int, Run] = {}
    for alike in gathered((_facts(run.record), run) for run in rehearsed).values():
        asked = [_asked(run.record) for run in alike]
        shared = sorted(set.intersection(*({*one} for one in asked)))
        parts = gathered(
            (repr([float(v) if type(v) is int else v for v in map(one.get, shared)]), pair)
            for one, pair in zip(asked, zip(alike, asked, strict=True), strict=True)
        )
        for part in parts.values():
            for run, own in part:
                replacing = (other for other, its in part if other is run or _replaces(other, its, run, own))
                instead[id(run)] = next(replacing)
    return [instead.get(id(run), run) for run in runs]


def _started(run: Run) -> tuple[str, bool]:
    """Return when a run began; of two that began at once, the one that did not complete is the later."""
    return run.record.started_at or "", run.record.status != "completed"


def _facts(record: Record) -> str:
    """Return what two attempts at one request have in common for certain."""
    named = (getattr(record, name) for name in _OF_REQUEST)
    recipe = record.recipe and record.recipe.name
    return repr((*named, seed_of(record), recipe, sorted(options_of(record).items())))


def _asked(record: Record) -> Mapping[str, Any]:
    """Return the settings of the run that a rehearsal stands for, and not of the toy, which one that could not begin
    never had."""
    settings = unshrunk(record, record.requested)
    return {name: value for name, value in settings.items() if name not in record.not_rehearsed}


def unshrunk(record: Record, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return `settings` of a record with what a rehearsal made smaller as the experiment requested it."""
    return {**settings, **{name: one["asked"] for name, one in record.shrunk.items()}}


def _replaces(newer: Run, its: Mapping[str, Any], older: Run, own: Mapping[str, Any]) -> bool:
    """Return whether a rehearsal was started after another one, of the same request. its, own: what each asked for."""
    if _started(newer) <= _started(older):
        return False
    known = [(r.framework_version, r.environment.get("rehearse")) for r in (newer.record, older.record)]
    names = its.keys() & own.keys()
    return (
        all(None in pair or pair[0] == pair[1] for pair in zip(*known, strict=True))
        and bool(names)
        and all(same(its[name], own[name]) for name in names)
    )


def _key(run: Run, place: int) -> tuple[str, ...]:
    planned = run.record.provenance == "planned"  # of which there are no repeats
    return (*experiment_key(run.record), *([f"plan {place}"] if planned else []))


def _labels(firsts: Sequence[Record]) -> list[str]:
    """Return a label for each: the columns that vary, clearest first, until every group has a name of its own."""
    if len(firsts) == 1:
        return [_place(firsts[0]) or firsts[0].name]
    distinct = distinct_names(len(firsts), _columns(firsts))
    none = [record.name if record.provenance == "planned" else "other" for record in firsts]  # of plans that are alike
    names = [name or instead for name, instead in zip(distinct, none, strict=True)]
    # Logs from elsewhere, of which little is known, differ in too much to be called after it.
    names = [record.name for record in firsts] if max(map(len, names)) > _READABLE else names
    counts = [names[:i].count(name) + 1 for i, name in enumerate(names)]
    return [name if count == 1 else f"{name} ({count})" for name, count in zip(names, counts, strict=True)]


def _columns(firsts: Sequence[Record]) -> Iterator[list[str]]:
    """Yield what may set groups apart, the clearest first, as every group has it."""
    requests = [requested_of(record) for record in firsts]

    def facts(name: str) -> list[str]:
        return [str(getattr(record, name) or f"{name} unknown") for record in firsts]

    yield [_place(record) for record in firsts]
    yield facts("framework")
    yield [record.method or "" for record in firsts]
    organisation, system = ([str(record.environment.get(name, "")) for record in firsts] for name in SUBMITTED)
    yield from [organisation, system] if max(map(len, system)) < _READABLE // 2 else [organisation]
    varying = [name for name in short_names() if len({repr(requested.get(name)) for requested in requests}) > 1]
    sizes = [[(short_names()[name], requested.get(name)) for name in varying] for requested in requests]
    large = [" ".join(f"{short}{n}" for short, n in one if type(n) is int and n > 1) for one in sizes]
    smallest = " ".join(f"{short_names()[name]}1" for name in varying)
    yield [size or smallest for size in large]
    others = [row for name, row in vocabulary().items() if name not in (*short_names(), SEED)]
    for row in sorted(others, key=lambda row: bool(row.follows)):  # a consequence names a group where nothing else does
        name = row.name
        yield [f"{name}={requested[name]}" if name in requested else f"{name} unknown" for requested in requests]
    options = [options_of(record) for record in firsts]
    for key in dict.fromkeys(key for declared in options for key in declared):
        yield [f"{key}={declared[key]}" if key in declared else "" for declared in options]
    yield system
    yield facts("image")
    yield facts("provenance")


def _place(record: Record) -> str:
    device, named = device_of(record), hardware_spelled(record)
    platform = (
        record.platform if device is None or device.spelled == device.name else None
    )  # which that name begins with
    return " ".join(dict.fromkeys(filter(None, (platform, named))))


def hardware_spelled(record: Record) -> str | None:
    """Return the hardware as people spell it; None where nobody says."""
    device = device_of(record)
    return device.spelled if device else hardware_of(record)


class Question(Struct, frozen=True, kw_only=True):
    """A request. vary: what is compared, by names of settings, kinds and facts; None: what the groups suggest.
    baseline: the label of the group that ratios are against; None: the first. accept: setting or check to the reason
    why its difference is accepted. difference: the smallest that matters, as a share."""

    vary: tuple[str, ...] | None = None
    baseline: str | None = None
    accept: Mapping[str, str] = {}
    difference: float = OF_INTEREST


class Varied(Struct, frozen=True):
    """The varied keys. keys: as named, or chosen from what the groups are; settings: those and all that follows;
    reason: why these."""

    keys: tuple[str, ...]
    settings: frozenset[str]
    reason: str


def rank_of(name: str) -> Rank:
    """Return the rank of a setting, a fact or a check."""
    row = vocabulary().get(name)
    return _RANKS.get(name.partition(".")[0], "breaks") if row is None else row.rank


def fact(record: Record, name: str) -> Any:
    """Return a fact of the record beside its settings."""
    if name == "hardware":
        return hardware_of(record)
    if name == RECIPE:
        return record.recipe and f"{record.recipe.name} of {record.recipe.framework} {record.recipe.release}"
    if name.startswith(f"{ENVIRONMENT}."):
        known = variables_of(record)
        return None if known is None else known.get(name.partition(".")[2], "not set")
    return getattr(record, name) if name in Record.__struct_fields__ else record.environment.get(name)


def variables_of(record: Record) -> Mapping[str, str] | None:
    """Return the variables of the environment that were set for a run's speed, and those that its ranks had; None where
    neither is known."""
    process = record.read_back.process if record.read_back else None
    if record.variables is None and process is None:
        return None
    return {**(record.variables or {}), **(process.variables if process else {})}


def choose(groups: Sequence[Group], named: Sequence[str] | None = None) -> Varied:
    """Return what the groups are compared in: `named`, else platforms where they differ in these, else layouts.
    InputError.

    Comparing platforms excuses another layout only where each was given its best one: else it is a second
    difference."""
    runs = [run for group in groups for run in group.usable]
    apart = [name for name in _SIDES if len({fact(run.record, name) for run in runs}) > 1]
    keys: tuple[str, ...] = (LAYOUT,)
    reason = f"no difference in {listed(_SIDES)} is reported"
    if named is not None:
        keys, reason = tuple(named), "vary="
    elif apart:
        keys, reason = ("platform",), f"the groups differ in {listed(apart)}"
    elif alone := _alone([run.record for run in runs]):
        keys, reason = alone, f"the groups differ in {listed(alone)}, and neither in {listed(_SIDES)} nor in layout"
    settings = expand(keys)
    if {run.record.method for run in runs} == {BEST} and "platform" in settings:
        reason += f"; each runs its vendor's own recipe ({METHOD}={BEST})"
        return Varied(keys, settings | expand((METHOD,)) - {METHOD}, reason)
    layouts = [run.record.requested.get(LAYOUT) for run in runs]
    if "platform" in settings and LAYOUT not in settings and layouts and layouts.count(BEST) == len(layouts):
        settings |= expand((LAYOUT, *(name for name in LayoutRow.__slots__ if name in vocabulary())))
        reason += f"; each with its own best layout: layout={BEST}"
    return Varied(keys, settings, reason)


def _alone(records: Sequence[Record]) -> tuple[str, ...]:
    """Return image and release, or precision, where the groups differ in these and no layout does; else nothing."""

    def differ(values: Sequence[Any]) -> bool:
        return None not in values and len({repr(value) for value in values}) > 1

    apart = [name for name in ("image", DIGEST, "framework_version") if differ([fact(r, name) for r in records])]
    bumped = tuple(dict.fromkeys("image" if name == DIGEST else name for name in apart))
    known = [{name: meant(name, r.setting(name), {}) for name in (*r.effective, *r.given)} for r in records]
    shared = set.intersection(*map(set, known)) if known else set()
    settings = [name for name in shared & vocabulary().keys() if len({repr(one[name]) for one in known}) > 1]
    kinds = {vocabulary()[name].kind for name in settings}
    if "layout" in kinds or bool(bumped) == ("precision" in kinds):
        return ()
    return bumped or ("precision",)


def _kinds() -> Mapping[str, Collection[str]]:
    return gathered((setting.kind, setting.name) for setting in vocabulary().values())


def comparable() -> tuple[str, ...]:
    """Return what runs may be compared by: facts, kinds of settings, and settings."""
    return (*FACTS, ENVIRONMENT, *_kinds(), *vocabulary())


def expand(keys: Iterable[str]) -> frozenset[str]:
    """Return all settings and facts that `keys` name, by themselves, by their kind, or as a consequence. InputError."""
    kinds = _kinds()
    following = gathered((cause, setting.name) for setting in vocabulary().values() for cause in setting.follows)
    known = comparable()
    left = list(keys)
    # A recipe decides how the work is done, and nothing of what it is.
    shifting = (name for name, row in vocabulary().items() if row.rank == "shifts" and row.kind in _HOW)
    how = (LAYOUT, "kernels", ENVIRONMENT, *shifting)
    left += how if {METHOD, RECIPE} & {*left} else ()
    unknown = [name for name in left if name not in known]
    if unknown:
        allowed = listed([*FACTS, ENVIRONMENT, *kinds]) + ", or a setting of conf/vocabulary.yaml"
        hint = closest(unknown[0], sorted(known)) or "vary=layout"
        raise InputError(Problem("vary", "no such setting", listed(unknown), allowed, hint))
    settings: set[str] = set()
    while left:
        name = left.pop()
        if name not in settings:
            settings.add(name)
            shows_in = vocabulary()[name].shows_in if name in vocabulary() else ()
            left += [*_IMPLIED.get(name, ()), *kinds.get(name, ()), *following.get(name, ()), *shows_in]
            left += PARAMETERS if name in kinds["model"] else ()
    return frozenset(settings)
