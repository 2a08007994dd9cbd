"""From an audit to a decision: whether a ratio may stand and on which conditions, what would make it stand, the figures
that decide, and what is compared, in a line. Pure, but for the experiment.yaml beside a record."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Literal

from msgspec import UNSET, Struct

from compare.audit import ACCEPTED, Audit, Check, Deviation, Row, benchmark_of_all, differs, follows, sentence
from compare.curve import MEASURED
from compare.figures import COST, SPEED
from compare.groups import CLOCK, LAYOUT, METHOD, Group, counted, hardware_spelled, rank_of, unshrunk
from compare.objects import speed_sentence
from conf.arguments import program
from conf.compose import choices, compose, read_choice
from conf.errors import UserError, listed, some
from conf.facts import hardware, precision_of
from conf.schema import BEST
from conf.vocabulary import meant, vocabulary
from metrics import Quantity
from metrics.peak import device_of, hardware_of
from metrics.repeats import SEED, gathered, requested_of
from metrics.rules import by_rules, gpus_of
from parsers import Record
from parsers.assemble import same
from parsers.find import MODEL, value_of
from parsers.given import typed

Standing = Literal["ratio", "conditional", "side by side"]
"""ratio: it stands. conditional: nothing breaks, and it stands on conditions. side by side: figures, and no ratio."""
DECLARED = "declared, or it would break the comparison"
DECIDING = (SPEED, "mfu_percent", "time_to_train_s", "cost_to_target", "training_days", COST, "energy_j_per_token")
"""Metrics by which a buyer, an engineer and a boss decide."""
_NAMED = 4  # groups that a title has room for
_WEIGHED = 20  # groups, of which each is compared with each other
_SAID = 3  # settings with one reason whose values are said
_STATED = 8  # settings that a command is spelled out for
_CHOSEN = ("model", "precision")  # kinds that a choice of conf/ states as one
_STARTED = "mlperf_run_start_unix_s"
UNKNOWN_MODEL = "$MODEL"
"""A model in a command that no record names: who pastes it sets the variable first."""


class Rerun(Struct, frozen=True):
    """A step of a user after which a ratio stands, of one group. because: the differences that it settles."""

    group: str
    command: str
    because: str


class Deciding(Struct, frozen=True):
    """A metric that decides, of every group that shows figures, by its label."""

    metric: str
    figures: Mapping[str, Quantity]


def standing(audit: Audit, groups: Sequence[Group]) -> Standing:
    """Return how figures of the groups may stand beside each other."""
    if audit.verdict.word == "comparable":
        return "conditional" if conditions(audit, groups) else "ratio"
    items: list[Row | Check | Deviation] = [*audit.rows, *audit.checks, *audit.deviations]
    ranks = {item.rank for item in items if item.decides}
    return "conditional" if ranks and "breaks" not in ranks and len(counted(groups)) > 1 else "side by side"


def conditions(audit: Audit, groups: Sequence[Group]) -> tuple[str, ...]:
    """Return on what the ratios stand, if there are any: what differs or is not known and does not break, what was
    declared or accepted, and the rules by which the work is the same."""
    open_ = [reason for reason in audit.verdict.reasons if audit.verdict.word != "comparable"]
    texts = [f"{reason.text} ({reason.effect})" if reason.effect else reason.text for reason in open_]
    declared = gathered(
        (row.reason, row) for row in audit.rows if row.state == "declared" and row.rank != "bookkeeping"
    )
    for reason, rows in declared.items():
        names = [row.setting for row in rows]
        said = [f"{some(names)}: {reason}"] if len(rows) > _SAID else [*map(sentence, rows)]
        breaking = all(row.rank == "breaks" for row in rows) and not reason.startswith(ACCEPTED)
        texts += [f"{DECLARED}: {text}" if breaking else text for text in said]
    texts += [f"{check.name}: {check.reason}" for check in audit.checks if check.state == "declared"]
    if switches := speed_sentence(audit.objects):
        texts.append(switches)
    recipes = _recipes(
        [side.usable[0].record for side in counted(groups)], any(text.startswith(DECLARED) for text in texts)
    )
    texts = [*texts[: len(open_)], *recipes, *texts[len(open_) :]]
    if benchmark := benchmark_of_all(sides := counted(groups)):
        rounds, changed = listed(benchmark.rounds), f"; {benchmark.changed}" if benchmark.changed else ""
        texts.append(
            f"the same work by MLPerf's rules for {benchmark.name} (closed division, rounds {rounds}{changed})"
        )
        known = [row.setting for row in audit.rows if row.state == "allowed" and _apart(row)]
        known = [name for name in known if name in vocabulary() and not benchmark.fixes(name) and name != SEED]
        free = listed([*dict.fromkeys((LAYOUT, "precision", *benchmark.free))])
        texts.append(f"each submitter chose {free}" + (f"; known to differ: {some(known)}" if known else ""))
        texts.append(some([f"{side.label} on {gpus_spelled(side.usable[0].record)}" for side in sides], between="; "))
    return tuple(texts)


def _recipes(firsts: Sequence[Record], declared: bool) -> list[str]:
    """Return that each vendor's own recipe ran, where it did. declared: and what else."""
    recipes = [record.recipe for record in firsts if record.recipe]
    if len(recipes) < len(firsts) or len({(one.framework, one.name) for one in recipes}) < 2:
        return []
    but = " but for what is declared" if declared else ""
    return [
        f"each vendor's own recipe ({some([*map(recipe_spelled, firsts)], between='; ')}); the work is the same{but}"
    ]


def _apart(row: Row) -> bool:
    known = [label for label, values in row.values.items() if values is not None]
    return any(differs(row, known[0], label) for label in known[1:])


def gpus_spelled(record: Record) -> str:
    """Return on how many GPUs a run was, and whether their number is assumed."""
    gpus, assumed = gpus_of(record), " (assumed)" if by_rules(record).gpus else ""
    return f"{gpus or 'an unknown number of'} GPU{'' if gpus == 1 else 's'}{assumed}"


def reruns(audit: Audit, groups: Sequence[Group], baseline: str) -> tuple[Rerun, ...]:
    """Return the shortest list of what to run again, or to state of a log, until the ratios stand: all but the group
    that most others are like, of several the baseline, are made like that one."""
    sides = counted(groups)
    counting = {side.label for side in sides}
    if audit.verdict.word in ("comparable", "nothing to compare") or len(sides) < 2:
        missing = [group for group in groups if group.label not in counting and len(sides) < 2]
        return tuple(_missing(group) for group in missing)
    rows = [row for row in audit.rows if row.decides and row.setting != CLOCK]

    def unlike(side: Group, other: Group) -> list[Row]:
        return [row for row in rows if differs(row, side.label, other.label)]

    def effort(model: Group) -> tuple[int, int, bool]:
        others = [side for side in sides if side is not model and unlike(side, model)]
        return len(others), sum(row.values[model.label] is None for row in rows), model.label != baseline

    model = min(sides[:_WEIGHED], key=effort)
    parted = any(check.decides and check.state == "apart" for check in audit.checks)
    parted = parted and not any(unlike(side, model) for side in sides)  # which may be why the curves part
    clocks = next((row.values for row in audit.rows if row.setting == CLOCK and row.decides), {})
    steps: list[Rerun] = []
    for side in sides[:_WEIGHED]:
        shared = ["one experiment on all sides"] if parted else []
        shared += ["one clock"] if side.label in clocks and clocks[side.label] != (MEASURED,) else []
        steps += _step(audit, side, model, unlike(side, model), shared)
    return tuple(steps)


def _missing(group: Group) -> Rerun:
    """Return what makes a group count: of a log from elsewhere that does not tell, whoever knows how it ended."""
    record = group.runs[0].record
    if record.provenance == "imported" and {run.record.status for run in group.runs} == {"unknown"}:
        return Rerun(group.label, _stating(record, "status=completed"), "its end stated, where you know it")
    return Rerun(group.label, _launch(group, {}), "a run that counts")


def _stating(record: Record, *stated: str) -> str:
    """Return the command that states more of a log, beside all that was given already."""
    given = (f"{name}={value}" for name, value in typed(record.given).items())
    words = [shlex.quote(word) for word in (record.log or "LOG", "--save", *given)]
    return " ".join([program("parse"), *words, *stated])


def _step(audit: Audit, side: Group, model: Group, unlike: Sequence[Row], shared: Sequence[str]) -> Iterator[Rerun]:
    """Yield what makes one group like the model. shared: what every such group needs."""
    ids, record = {run.record.id for run in side.usable}, side.runs[0].record
    stray = [*dict.fromkeys(item.setting for item in audit.deviations if item.decides and item.run in ids)]
    silent = [row.setting for row in audit.rows if row.decides and row.values[side.label] is None]
    wanted = {row.setting: row.values[model.label] for row in unlike}
    if METHOD in wanted:  # by which all that only shifts follows
        layout = {row.setting: row.values[model.label] for row in audit.rows if row.setting == LAYOUT}
        wanted = {name: known for name, known in wanted.items() if rank_of(name) == "breaks"} | layout
    causes = [name for name in wanted if not (follows(name, wanted) or name == LAYOUT)]
    why = [f"{some(causes)} as {model.label} has {'it' if len(causes) == 1 else 'them'}"] if causes else []
    why += [*shared, *([f"{some(stray)} requested as it ran, or run as requested"] if stray else [])]
    named = some(silent) if len(silent) <= _SAID else f"{len(silent)} unknown settings"
    if why:
        why += [f"{named} read back"] if silent else []
        yield Rerun(side.label, _launch(side, wanted), "; ".join(why))
    elif silent and record.requested:
        yield Rerun(side.label, f"{_launch(side, {})} probe=true", f"{named} read back")
    elif silent:
        kinds = [(name, vocabulary()[name].kind) for name in silent if name in vocabulary()]
        stated = dict.fromkeys(f"{kind if kind in _CHOSEN else name}=…" for name, kind in kinds)
        yield Rerun(side.label, _stating(record, *[*stated][:_STATED]), f"{named} stated, where you know it")


def _launch(group: Group, wanted: Mapping[str, tuple[Any, ...] | None]) -> str:
    """Return the command that runs a group again, as far as its records say how it was run, with some settings as
    wanted: what the configuration has anyhow is left out."""
    run, count = group.runs[0], len(group.usable) or len(group.runs)
    record = run.record
    own = unshrunk(record, requested_of(record))
    chosen = {MODEL: value_of(run, MODEL), "platform": record.platform, "hardware": hardware_of(record)}
    chosen |= {"framework": record.framework, LAYOUT: own.get(LAYOUT), "data": own.get("data")}
    chosen |= {name: known[0] for name, known in wanted.items() if known and name in chosen}
    methods = wanted.get(METHOD) or (record.method,)
    if best := methods[0] == BEST:  # whose recipe decides how the work is done
        chosen[LAYOUT] = None
        wanted = {name: known for name, known in wanted.items() if rank_of(name) == "breaks"}
    chosen = {name: value if value in choices(name) else None for name, value in chosen.items()}
    values = {**own, **{name: known[0] for name, known in wanted.items() if known and len(known) == 1}}
    corpora = _corpora(chosen["data"], values.pop("data_path", None))
    chosen["data"] = None if corpora else chosen["data"]
    values.pop("data", None)
    words = [f"{MODEL}={chosen[MODEL] or UNKNOWN_MODEL}", *(f"{k}={v}" for k, v in chosen.items() if v and k != MODEL)]
    words += corpora
    kinds = ("model", "training", "optimizer", "precision", "data", *(() if best or chosen[LAYOUT] else (LAYOUT,)))
    if best or METHOD in wanted:
        by_recipe = {declared.key for declared in record.declared}
        values = {n: value for n, value in values.items() if rank_of(n) == "breaks" and n not in by_recipe}
        words += _method_words(record) if best else ()
    words += _overrides(
        values, wanted, kinds, [f"{k}={v}" for k, v in chosen.items() if v and k in (MODEL, "platform")]
    )
    gpus, device = gpus_of(record), hardware(chosen["hardware"])
    each = device.gpus_per_node if device and device.vendor else None
    if gpus and gpus != each:
        words.append(f"nodes={gpus // each}" if each and gpus % each == 0 else f"gpus_per_node={gpus}")
    words += [f"repeat={count}"] if count > 1 else []
    ends = {"rehearsed": "rehearse=train", "planned": "dry_run=true --json"}
    return " ".join(filter(None, [program("launch"), *words, ends.get(record.provenance)]))


def _corpora(data: Any, path: Any) -> list[str]:
    """Return the word for the user's own corpora, by the path that a record has; none for those made for a run."""
    members = path.split() if isinstance(path, str) else []
    if data == "prefix" and members:
        return [shlex.quote(f"data={path}")]
    if data == "blend" and members:  # as in Megatron's --data-path: each one's weight, and its path
        pairs = zip(members[1::2], members[::2], strict=False)
        return [shlex.quote(f"data.blend={{{', '.join(f'{prefix}: {weight}' for prefix, weight in pairs)}}}")]
    return []


def _method_words(record: Record) -> Iterator[str]:
    """Yield what runs a vendor's recipe: the one of the record, where it has one."""
    yield f"{METHOD}={BEST}"
    if record.recipe:
        yield from (f"framework.release={record.recipe.release}", f"recipe={shlex.quote(record.recipe.name)}")
    yield from ["batch=vendor"] if record.batch == "vendor" else []


def _overrides(
    values: Mapping[str, Any], wanted: Iterable[str], kinds: Collection[str], chosen: Sequence[str]
) -> Iterator[str]:
    """Yield KEY=VALUE of what is wanted, and of other settings of these kinds, where the configuration that is `chosen`
    has another value: of few choices, since composing takes a while and is kept."""
    try:
        config = compose(chosen)
    except UserError:  # of a record from elsewhere, what does not go together here
        return
    for name, row in vocabulary().items():
        if name in values and row.request and (name in wanted or row.kind in kinds):
            part, _, key = row.request.partition(".")
            set_ = (config.get(part) or {}).get(key, UNSET)  # a derived setting, or a size within a part, has no key
            if set_ is not UNSET and not same(meant(name, set_, values), meant(name, values[name], values)):
                text = json.dumps(values[name])
                yield f"{row.request}={shlex.quote(text if ',' in text else text.strip(chr(34)))}"


def deciding(groups: Sequence[Group], figures: Mapping[str, Mapping[str, Quantity]]) -> tuple[Deciding, ...]:
    """Return the figures that decide, of every metric that a group knows: the time to train as it was measured, else
    as it is worked out."""
    labels = [group.label for group in groups if group.label in figures]
    known = {name for name in DECIDING for label in labels if figures[label][name].value is not None}
    known -= {"training_days"} if "time_to_train_s" in known else set()
    every = (Deciding(name, {label: figures[label][name] for label in labels}) for name in DECIDING if name in known)
    return tuple(every)


def title(groups: Sequence[Group]) -> str:
    """Return what is compared: first what all groups share, then what each has of its own."""
    named = [[*about(group)] for group in groups[:_NAMED]]
    alike = [len({*column}) == 1 for column in zip(*named, strict=True)]
    shared = [text for text, same_ in zip(named[0], alike, strict=True) if text and same_]
    shared = [f"{text} each" if text.endswith((" run", " runs")) and len(named) > 1 else text for text in shared]
    own = [[text for text, same_ in zip(side, alike, strict=True) if text and not same_] for side in named]
    distinct = len({tuple(side[:-2]) for side in named}) == len(named)
    names = [] if distinct else [group.label for group in groups[:_NAMED]]
    sides = [", ".join([*names[place : place + 1], *texts]) for place, texts in enumerate(own)]
    more = [f"{len(groups) - _NAMED:,} more"] if len(groups) > _NAMED else []
    return ": ".join(filter(None, (", ".join(shared), " against ".join(filter(None, [*sides, *more])))))


def about(group: Group) -> Iterator[str]:
    """Yield model, GPUs, nodes, precision, software, recipe, image, number of runs and dates; empty where unknown."""
    runs = group.usable or group.runs
    first = by_rules(runs[0].record)
    record = first.record
    settings = {name: record.setting(name) for name in (*record.given, *record.effective)}
    model, benchmark = value_of(runs[0], MODEL), first.benchmark
    yield str(model or (f"{benchmark.name} of MLPerf" if benchmark else ""))
    yield _machine(runs[0].record)
    nodes = record.environment.get("num_nodes")
    yield f"{nodes} node{'s' if nodes != 1 else ''}" if type(nodes) is int else ""
    yield precision_of(settings) or ""
    yield " ".join(filter(None, (record.framework, record.framework_version)))
    yield recipe_spelled(record, by_name=False)
    yield f"{record.image} (given)" if record.image and record.image_source == "given" else record.image or ""
    one = "" if record.provenance == "planned" else "one run"
    yield f"{len(runs):,} runs" if len(runs) > 1 else one
    days = sorted({day for run in runs if (day := _day(run.record))})
    yield days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else ""


def recipe_spelled(record: Record, by_name: bool = True) -> str:
    """Return whose recipe a run follows, and by_name which; empty of a run without one."""
    recipe = record.recipe
    if recipe is None:
        return ""
    entry = read_choice("framework", recipe.framework) if recipe.framework in choices("framework") else {}
    label = entry.get("label") or recipe.framework
    vendor = record.vendor.upper() if record.vendor else "the vendor"
    return f"{vendor}'s recipe{f' {recipe.name}' if by_name else ''} of {label} {recipe.release}"


def _machine(record: Record) -> str:
    """Return how many GPUs of which kind a run had; what was not stated, measured or ran is said to be so."""
    gpus, device, named = gpus_of(record), device_of(record), hardware_spelled(record) or ""
    if record.provenance not in ("measured", "imported"):
        many = f"{gpus} × " if gpus and record.provenance == "planned" else ""  # a rehearsal's are of its toy
        return f"{record.provenance} for {many}{named}" if named else record.provenance
    if device and not device.vendor:
        return f"{gpus} process{'es' if gpus > 1 else ''} on a CPU" if gpus else "a CPU"
    if gpus and by_rules(record).gpus:
        return f"{named} ({gpus} assumed)"
    if record.requested and not record.environment.get("device_name"):
        named = f"{named} (requested)" if named else ""
    return f"{gpus} × {named}" if gpus and named else gpus_spelled(record) if gpus else named


def _day(record: Record) -> str:
    started = record.environment.get(_STARTED)
    if record.started_at is None and isinstance(started, float | int) and 0 < started < 4e9:
        return datetime.fromtimestamp(started, timezone.utc).date().isoformat()
    return (record.started_at or "")[:10]
