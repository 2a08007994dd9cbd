"""tprimat recipes list|show|import: the recipes that vendors publish, and how they are read out of a checkout."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

from conf import recipes as kept
from conf.arguments import JSON, Arguments, Command, Key
from conf.compose import choices
from conf.errors import InputError, Problem, closest, command, listed, some, writing
from conf.frameworks import facts, git, tag_of
from conf.recipe_request import request_of
from conf.recipes import Recipe, recipes
from conf.version import VERSION
from launchers import where
from launchers.frameworks import Framework, framework_of, frameworks
from tensorprimat.lists import Row, table
from tensorprimat.recipe_plans import to_type, why_not

_CASE = ("model", "hardware", "gpus", "precision", "framework")
_UNITS = {"tokens_per_s_per_gpu": "tokens/s/GPU", "tflops_per_gpu": "TFLOP/s/GPU", "step_time_s": "s a step"}
_HEAD = "# Written by `tprimat recipes import`.\n"

LIST = Command(
    name="recipes list",
    summary="The recipes that vendors publish, for method=max_performance, and the vendor's own figure for each.",
    keys=(
        *(Key(name, f"of this {name}", choices=partial(choices, name)) for name in ("model", "hardware", "precision")),
        Key("gpus", "for this number of GPUs", example="8"),
        Key("framework", "of this stack", choices=lambda: frameworks()),
        Key("release", "of this release of it", example="0.6.0"),
    ),
    examples=("model=llama31_8b hardware=b200",),
)
SHOW = Command(
    name="recipes show",
    summary="All of a recipe: for what it is published, where, and every setting in the vendor's own spelling.",
    words="NAME",
    words_help="its vendor's name, as `recipes list` has it",
)
TABLE = Command(
    name="recipes table",
    summary="A line for each model, GPU, precision and stack: recipes, and how far their plans are from the vendor's.",
    keys=LIST.keys,
    examples=("model=llama31_8b",),
    more="theirs, forced, differs: values of the vendor's own object that the plan keeps, that the experiment forces,\n"
    "and that differ otherwise (dry_run=true names each); refused: so many are refused before a run;\n"
    "rehearsed: so many completed, or are the same to a CPU as one that did; published: the vendor's own\n"
    "tokens/s/GPU, and on how many GPUs. Every recipe is planned: some seconds.",
)
IMPORT = Command(
    name="recipes import",
    summary="Read a vendor's recipes out of a checkout by the vendor's own code, and show what changed.",
    words="PATH",
    words_help="a checkout of Megatron-Bridge, NeMo or Primus",
    keys=(
        Key("python", "the interpreter that has the packages of that stack", default=sys.executable, example="python3"),
        Key("release", "where no tag of git names it", example="0.6.0"),
    ),
    switches={**JSON, "--check": "write nothing; exit code 1 where something changed"},
    examples=("/path/to/Primus", "/path/to/Megatron-Bridge python=.venv-bridge/bin/python --check"),
    more="Exit codes: 0 written to conf/recipes, 1 something changed (--check), 2 no such checkout, one with changes\n"
    "that are in no commit, a recipe is gone. All of a release is written, or nothing.",
)
REHEARSE = Command(
    name="recipes rehearse",
    summary="Play two ranks of each recipe on this CPU, with the vendor's own stack: which still build, and why not.",
    words="NAME…",
    words_help="recipes by their vendor's name; without one, all that the keys leave",
    keys=(*LIST.keys, Key("runs_dir", "where the records are: what completed there is not run again", default="runs")),
    switches={
        **JSON,
        "--classify": "start nothing: what would be run, what is refused, which are the same here",
        "--keep": "write how each went to conf/recipes/rehearsed.csv, which `recipes list` shows",
    },
    examples=("framework=nemo", "framework=megatron_bridge model=llama31_405b --classify"),
    more="Exit codes: 0 all completed, 1 not all, 2 no such recipe. NEMO_PYTHON, BRIDGE_PYTHON and PRIMUS_PATH name\n"
    "the stacks; of Bridge in a checkout PYTHONPATH has src and 3rdparty/Megatron-LM.",
)
PARTS = {one.name.split()[1]: one for one in (LIST, SHOW, IMPORT, REHEARSE, TABLE)}
COMMAND = Command(
    name="recipes",
    summary="The recipes that vendors publish, as data in conf/recipes.",
    words="|".join(PARTS),
    switches={},
    more="\n".join(f"{name} {one.words:<6}{one.summary}" for name, one in PARTS.items()),
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print recipes, or read them. 0: done; 1: something changed; 2: bad input."""
    called, *rest = [*(sys.argv[1:] if argv is None else argv), ""]
    if called not in PARTS:
        COMMAND.parse([called, *rest[:-1]] if called else [])
        raise InputError(Problem("recipes", "no such command", called, listed([*PARTS]), closest(called, PARTS)))
    arguments = PARTS[called].parse(rest[:-1])
    if called == "list":
        return _list(arguments)
    if called == "rehearse":
        return _rehearse(arguments)
    if called == "table":
        return _table(arguments)
    if len(arguments.words) != 1:
        raise InputError(
            Problem(f"recipes {called}", f"takes one {PARTS[called].words}", f"{len(arguments.words)} given")
        )
    return _show(arguments) if called == "show" else _import(arguments)


def _list(arguments: Arguments) -> int:
    outcomes = kept.rehearsals()
    rows = [_row(r, outcomes[r.name].outcome) for r in _chosen(arguments)]
    if arguments.switches:
        print(json.dumps(rows, indent=1))
        return 0
    print(table(rows, ("release", "source", "refused")))
    for row in rows:
        if row["refused"]:
            print(f"{row['name']} is refused: {row['refused']}")
    return 0


def _chosen(arguments: Arguments) -> list[Recipe]:
    """Return the recipes that the keys and words of a command leave. InputError: none."""
    known = (key.name for key in LIST.keys)
    wanted = {key: arguments[key] for key in known if arguments[key] is not None}
    fitting = [r for r in recipes() if all(_fits(r, *one) for one in wanted.items())]
    named = [r for r in fitting if not arguments.words or r.name in arguments.words]
    if not named:
        requested = listed([*arguments.words, *(f"{key}={value}" for key, value in wanted.items())])
        raise InputError(Problem("recipes", "no recipe is so", requested, hint="recipes list has all"))
    return sorted(named, key=lambda r: (r.model, r.hardware, r.gpus or 0, r.precision, r.framework))


def _table(arguments: Arguments) -> int:
    from tensorprimat.recipe_table import grouped, planned

    outcomes = kept.rehearsals()
    wanted = [(recipe, planned(recipe, outcomes[recipe.name])) for recipe in _chosen(arguments)]
    if arguments.switches:
        print(json.dumps([asdict(plan) for _, plan in wanted], indent=1))
    else:
        print(table(grouped(wanted)))
    return 0


def _rehearse(arguments: Arguments) -> int:
    from tensorprimat.rehearse_recipes import rehearsed

    today = where.now()[:10]
    version = "+".join([VERSION, *filter(None, [(where.commit() or "")[:9]])])
    wanted = [(recipe, " ".join(request_of(recipe))) for recipe in _chosen(arguments)]
    rows = []
    for row in rehearsed(wanted, Path(arguments["runs_dir"]), start="--classify" not in arguments.switches):
        rows.append(asdict(row))
        if "--keep" in arguments.switches and not row.is_ended:
            kept.keep([row.kept(version, today)])
        print(f"{len(rows)} of {len(wanted)}: {row.recipe}: {row.state}", file=sys.stderr, flush=True)
    print(json.dumps(rows, indent=1) if arguments.switches & {*JSON} else table(rows, ("run",)))
    return int(any(row["state"] != kept.COMPLETED for row in rows))


def _fits(recipe: Recipe, key: str, value: str) -> bool:
    known = getattr(recipe, key)
    if key == "gpus" and known is None:  # for any number
        return True
    return value in known if key == "hardware" else str(known) == value


def _row(r: Recipe, rehearsed: str) -> Row:
    case = {name: getattr(r, name) for name in _CASE}
    about = {"name": r.name, "variant": r.variant, "published": next(map(_figure, r.published), None)}
    about["rehearsed"] = rehearsed
    more = {"release": r.release, "source": r.source, "refused": why_not(r)}
    return {**case, "hardware": [*r.hardware], "framework": f"{r.framework} {r.release}", **about, **more}


def _figure(published: Mapping[str, Any]) -> str:
    return ", ".join(f"{published[key]:,.7g} {unit}" for key, unit in _UNITS.items() if key in published)


def figures(recipe: Recipe) -> Iterator[str]:
    """Yield the vendor's own figures for `recipe`, each with its source."""
    return (f"{_figure(one)} [{one['source']}]" for one in recipe.published)


def _show(arguments: Arguments) -> int:
    (name,) = arguments.words
    named = [r for r in recipes() if r.name == name]
    if not named:
        near = closest(name, {r.name for r in recipes()})
        raise InputError(Problem(name, "no recipe has this name", hint=near or "recipes list has all"))
    if arguments.switches:
        print(json.dumps([asdict(r) for r in named], indent=1))
    else:
        print("\n\n".join(map(_text, named)))
    return 0


def _text(r: Recipe) -> str:
    plain = {"recipe": r, "source": r.source, "set on": r.base, "variant": r.variant, "note": r.note}
    plain |= {"rehearsed": kept.rehearsals()[r.name]}
    lines = [f"{label:<14}{text}" for label, text in plain.items() if text is not None]
    lines += [f"{'published':<14}{figure}" for figure in figures(r)]
    parts = {"experiment": r.experiment, "settings": r.settings, "more": r.more, "environment": r.environment}
    for part, values in parts.items():
        lines += [f"{part}:" if values else f"{part}: {'none' if values is not None else 'none published'}"]
        lines += [f"  {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in (values or {}).items()]
    lines += [f"{label:<14}{text}" for label, text in to_type(r)]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Changes:
    """How the recipes of a checkout differ from those that are kept. compared: the folder in conf/recipes; changed:
    recipe → key → [before, now]; gone: recipe → where it was read."""

    compared: str | None
    new: tuple[str, ...]
    changed: Mapping[str, Mapping[str, list[Any]]]
    gone: Mapping[str, str]


def _import(arguments: Arguments) -> int:
    checkout = Path(arguments.words[0]).expanduser().absolute()
    framework = _stack(checkout)
    release = _release(framework, checkout, arguments["release"])
    if uncommitted := list(_uncommitted(checkout)):
        raise InputError(*uncommitted)
    kept.check_complete()
    try:
        read = list(framework.read_recipes(checkout, arguments["python"], release))
    except (OSError, SubprocessError) as error:
        what = f"could not be run to read {framework.name}'s recipes: {error}"
        raise InputError(Problem("python", what, str(arguments["python"]), hint="python=PYTHON")) from error
    known = [one for one in read if isinstance(one, Recipe)]
    now = {one.name: one for one in known}
    unusable = [one for one in read if isinstance(one, Problem)]
    if len(now) < len(known):
        double = sorted({one.name for one in known if now[one.name] is not one})
        raise InputError(Problem(str(checkout), "recipes of one name", listed(double)))
    if not now:
        raise InputError(*(unusable or [Problem(str(checkout), "no recipe is where this release should have them")]))
    folder = f"{framework.name}-{release}"
    found = changes(folder, now)
    lost = [] if found.compared != folder else [_lost(folder, *one) for one in found.gone.items()]
    lost += _without_source(checkout, known)
    if not lost and "--check" not in arguments.switches:
        keep(known, kept.RECIPES / folder)
    _print(found, folder, unusable, len(now), "--json" in arguments.switches)
    if lost:
        raise InputError(*lost)
    differs = bool(found.new or found.changed or found.gone)
    return int(differs and "--check" in arguments.switches)


def _stack(checkout: Path) -> Framework:
    """Return the framework whose source tree is at `checkout`. InputError: it is none's."""
    known = {name: framework_of(name) for name in frameworks()}
    trees = {tree: one for one in known.values() for tree in one.recipe_trees}
    for tree, framework in trees.items():
        if (checkout / tree).is_file():
            return framework
    what = "is no checkout of a stack whose recipes can be read" if checkout.is_dir() else "no such folder"
    allowed = listed([f"{facts(one.name).get('label', one.name)}: {tree}" for tree, one in trees.items()])
    raise InputError(Problem(str(checkout), what, "", allowed, "git clone, and the path of the clone"))


def _release(framework: Framework, checkout: Path, given: str | None) -> str:
    """Return the release of `checkout` by git's tag, as framework.release is written, else as `given`. InputError:
    nobody says it, it is no release, or the tag is another one's."""
    usual, tag = str(facts(framework.name)["release"]), tag_of(str(checkout))
    numbers = re.findall(r"\d+", tag)[: usual.count(".") + 1]
    tagged = "v" * usual.startswith("v") + ".".join(numbers) if numbers else None
    if given is None and tagged is None:
        what = "no tag of git says which release this is"
        raise InputError(Problem(str(checkout), what, hint=f"release={usual}, or the release that it is"))
    if given is not None and not re.fullmatch(r"v?\d+(\.\d+)+", given):
        raise InputError(Problem("release", "is no release", given, f"numbers with dots, such as {usual}"))
    if given is not None and tagged not in (None, given):
        what = f"git says that {checkout} is {tag}"
        raise InputError(Problem("release", what, given, str(tagged), "leave it out, or check the other tag out"))
    return str(given or tagged)


def changes(folder: str, now: Mapping[str, Recipe]) -> Changes:
    """Return how the recipes `now` differ from those in `folder`; of a new release, from those of the newest one before
    it of its framework."""

    def numbers(folder: str) -> list[int]:
        return [*map(int, re.findall(r"\d+", folder))]

    stack = folder.partition("-")[0]
    upto = [path.name for path in kept.RECIPES.glob(f"{stack}-*") if numbers(path.name) <= numbers(folder)]
    compared = max(upto, key=numbers, default=None)
    before = {r.name: r for r in (recipes(compared) if compared else ())}
    unlike = {name: _unlike(before[name], now[name], compared == folder) for name in now if name in before}
    return Changes(
        compared,
        tuple(name for name in now if name not in before),
        {name: keys for name, keys in unlike.items() if keys},
        {name: r.source for name, r in before.items() if name not in now},
    )


def _unlike(before: Recipe, now: Recipe, same_release: bool) -> dict[str, list[Any]]:
    """Return key → [before, now] of what differs. What every release changes is left out between two."""
    left_out = set() if same_release else {"release", "source"}
    one, other = (_flat({k: v for k, v in asdict(r).items() if k not in left_out}) for r in (before, now))
    absent = "(absent)"
    keys = [key for key in {**one, **other} if one.get(key, absent) != other.get(key, absent)]
    return {key: [one.get(key, absent), other.get(key, absent)] for key in keys}


def _flat(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return `mapping` with the keys of its mappings behind a dot, lists for tuples."""
    flat: dict[str, Any] = {}
    for key, value in json.loads(json.dumps(mapping)).items():
        inner = value if isinstance(value, dict) else None
        flat |= {key: value} if inner is None else {f"{key}.{name}": one for name, one in inner.items()}
    return flat


def keep(known: Collection[Recipe], folder: Path) -> None:
    """Make `folder` the files of `known`, all or nothing: where this is killed, what was there stays, or is refused by
    conf.recipes between two renames."""
    new, before = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}{kept.BEFORE}")
    with writing(folder):
        shutil.rmtree(new, ignore_errors=True)  # of an import that was killed
        try:
            for recipe in known:
                write(recipe, new)
            if folder.exists():
                shutil.rmtree(before, ignore_errors=True)
                folder.rename(before)
            new.rename(folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(before, ignore_errors=True)


def write(recipe: Recipe, folder: Path) -> None:
    """Write the file of `recipe`."""
    import yaml

    left_out = {"name"} if recipe.backend else {"name", "backend"}
    values = json.loads(json.dumps({key: value for key, value in asdict(recipe).items() if key not in left_out}))
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{recipe.name}.yaml").write_text(_HEAD + text, encoding="utf-8")


def _uncommitted(checkout: Path) -> Iterator[Problem]:
    """Yield why a commit is no source for what `checkout` has."""
    if not git(str(checkout), "rev-parse", "HEAD"):
        yield Problem(str(checkout), "is in no git, so that no commit can be cited", hint="git clone, and its path")
    elif changed := git(str(checkout), "diff", "HEAD", "--name-only", "--ignore-submodules=untracked").splitlines():
        what = "has changes that are in no commit, which the recipes would cite"
        yield Problem(str(checkout), what, some(changed), hint=f"git -C {checkout} stash, or another clone")


def _without_source(checkout: Path, known: Collection[Recipe]) -> Iterator[Problem]:
    """Yield the recipes whose cited line is not in the commit of `checkout`: their files are of no release."""
    committed = {*git(str(checkout), "ls-tree", "-r", "--name-only", "HEAD").splitlines()}
    for recipe in known:
        name, _, line = recipe.source.split()[1].partition(":")
        if name not in committed:
            what = f"is read from {name}, which is in no commit of this checkout"
            yield Problem(recipe.name, what, hint="remove the file, or commit it")
        elif line and len((checkout / name).read_text(encoding="utf-8").splitlines()) < int(line):
            yield Problem(recipe.name, f"is read from line {line} of {name}, which has fewer")


def _lost(folder: str, name: str, source: str) -> Problem:
    what = f"was read from {source}, and is not in this checkout"
    return Problem(f"conf/recipes/{folder}/{name}.yaml", what, hint="delete the file if its vendor has dropped it")


def _print(found: Changes, folder: str, unusable: Sequence[Problem], count: int, as_json: bool) -> None:
    """Print what changed to stdout; what cannot be a recipe here to stderr, by reason."""
    by_reason: dict[str, list[str]] = {}
    for problem in unusable:
        by_reason.setdefault(": ".join(filter(None, (problem.what, problem.found))), []).append(problem.where)
    for reason, places in by_reason.items():
        print(f"left out, {len(places)}: {reason}: {some(places)}", file=sys.stderr)
    if as_json:
        print(json.dumps({"folder": folder, "recipes": count, "left_out": by_reason, **asdict(found)}, indent=1))
        return
    lines = [f"{'new':<9} {name}" for name in found.new]
    for name, keys in found.changed.items():
        lines += [f"{'changed':<9} {name}"]
        lines += [f"{'':9}   {key}: {json.dumps(before)} → {json.dumps(now)}" for key, (before, now) in keys.items()]
    lines += [f"{'gone':<9} {name} ({source})" for name, source in found.gone.items()]
    against = f"compared with {found.compared}" if found.compared else "the first of this stack"
    sums = f"{len(found.new)} new, {len(found.changed)} changed, {len(found.gone)} gone, {len(unusable)} left out"
    print("\n".join([*lines, f"conf/recipes/{folder}: {count} recipes, {against}: {sums}"]))
