"""`tprimat estimate KEY=VALUE…`: memory, step time, speed, cost, energy and CO2 of an experiment before anyone runs it;
`rows`: the same for a table of runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.arguments import JSON, OUTPUT, Arguments, Command, Key, between, experiment_keys, positive, program
from conf.devices import processor
from conf.errors import ConfigError, InputError, Main, Problem, command, listed, writing
from conf.load import load
from conf.plain import plain
from conf.resolve import Experiment
from conf.schema import Request
from estimate.headroom import what_fits
from metrics.bill import Bill, Terms, bill
from metrics.quantity import Quantity, shown
from metrics.terms import KEYS, left_at_nothing, terms_of
from parsers.find import FILTERS, SKIP, WHERE, filter_keys, find_and_warn
from parsers.storage import dumps, keep_runs, write

if TYPE_CHECKING:  # numpy takes a quarter of a second, which completion and --help do not wait for
    from estimate.figures import Estimate
    from estimate.search import Search

_CALIBRATED = Key("calibrated", "parameters that `estimate calibrate` wrote (default: ours)", Path, None, "mine.yaml")
_MACHINE = Key("machine", "what `measure` found on the machine, in place of data sheets", Path, None, "machine.yaml")
_MONEY = (
    *("gpu_hours", "days", "price", "electricity", "total", "cost_per_trillion_tokens", "energy_mwh"),
    *("carbon_t", "carbon_embodied_t", "carbon_total_t"),
)
ESTIMATE = Command(
    name="estimate",
    summary="Predict memory, step time, speed, cost, energy and CO2 of an experiment that nobody has run yet.",
    words="KEY=VALUE…",
    words_help="any key of conf/, as of launch: model=llama31_70b hardware=mi300x nodes=8",
    keys=(*KEYS, _CALIBRATED, _MACHINE),
    others="any key of conf/, as of launch",
    known=experiment_keys,
    switches={
        "--explain": "the parts of a step as bars, the roofline of each module, and what moves the step time",
        "--json": "every figure with unit, source, and the intervals of 95 and 80 %",
    },
    output="here: write it as a record, which compare shows beside measured runs, and as a page",
    examples=(
        "model=llama31_70b hardware=mi300x nodes=8",
        "model=llama31_8b hardware=b200 precision=fp8 --explain",
        "model=llama31_70b hardware=h100 nodes=8 tokens=15T price=oracle carbon=FRA -o estimates/h100",
    ),
)
ROWS = Command(
    name="estimate rows",
    summary="Predict every row of a table of runs (docs/guide/estimate.md has its columns).",
    words="FILE.csv",
    output="here: the file to write, the table with its predictions",
    output_word="FILE",
    switches={"--json": "how many rows were predicted, as JSON"},
    examples=("sweep.csv -o predicted.csv",),
)

LONG_CONTEXT = Command(
    name="estimate long_context",
    summary="TP × PP against CP at a long sequence, in training and forward alone: speed, memory, bytes sent.",
    words="KEY=VALUE…",
    words_help="any key of conf/, as of launch (default: experiment=long_context)",
    others="any key of conf/, as of launch",
    known=experiment_keys,
    examples=("", "experiment=long_context training.seq_length=131072"),
)
_SEARCHED = (
    Key(
        "objective",
        "what is best: throughput, cost, energy or time (default: throughput)",
        str,
        "throughput",
        "cost",
        lambda: ("throughput", "cost", "energy", "time"),
    ),
    Key("headroom", "share of a GPU's memory that stays free (default: 0)", between(0, 0.95, "0 to 95 %"), 0.0, "10%"),
    Key("most_cost", "of the training, in the prices' currency", positive(), None, "2e6"),
    Key("most_power_w", "of all GPUs at their TDP, with host_share and pue as given", positive("W"), None, "1e6"),
    Key("most_days", "of the training", positive("days"), None, "30"),
)
SEARCH = replace(
    ESTIMATE,
    name="estimate search",
    summary="Predict every valid layout of a model, GPUs and batch; the ten best, and why the next ones lose.",
    keys=(*KEYS, _CALIBRATED, *_SEARCHED),
    switches=JSON,
    output="here: the page to write, with a picture of the layouts that no other beats",
    output_word="FILE",
    examples=(
        "model=llama31_70b hardware=mi300x nodes=8",
        "model=llama31_70b hardware=b200,mi355x nodes=8 objective=cost -o layouts.html",
    ),
)
PLAN = replace(
    SEARCH,
    name="estimate plan",
    output="",
    summary="A whole training on the best layout of each candidate: days, cost, energy, CO2, failures, scaling.",
    examples=("model=llama31_70b hardware=h100,mi300x nodes=64 tokens=15T carbon=FRA",),
)
CALIBRATE = Command(
    name="estimate calibrate",
    summary="Learn from own runs: one corrects the speed of its stack on this machine and of its model; three refine\
 matrix products, too, and six the communication that computing does not hide. A run that contradicts the model is\
 named, and not learned from.",
    words="RUN…",
    words_help=WHERE,
    keys=(_CALIBRATED,),
    others=FILTERS,
    known=filter_keys,
    switches={"--json": "each run with its step time and whether it was learned from, and the warnings, as JSON"}
    | SKIP,
    output="here: the file of parameters to write, which calibrated=FILE reads",
    output_word="FILE",
    examples=("runs/ -o mine.yaml",),
)
FIT = Command(
    name="estimate fit",
    summary="Fit all parameters, and the errors of runs that a fit did not have, to a table of measured runs.",
    words="[FILE.csv]",
    words_help="with step_time_used_s or step_time_s; default: conf/tables/measured.csv",
    switches={"--json": "the table and how many of its runs were used, as JSON"},
    output="here: the file of parameters to write",
    output_word="FILE",
    examples=("-o fitted.yaml",),
)


@command
def rows(argv: Sequence[str] | None = None) -> int:
    """Predict a table. 0: written; 2: no such table."""
    from estimate.tables import predict_table

    arguments = ROWS.parse(argv)
    if len(arguments.words) != 1 or arguments.output is None:
        what = "needs one table, and where to write it"
        raise InputError(Problem("estimate rows", what, hint=f"{program('estimate')} rows sweep.csv {OUTPUT} out.csv"))
    source, target = Path(arguments.words[0]), arguments.output
    if target.exists() and source.exists() and target.samefile(source):
        raise InputError(Problem(OUTPUT, "is the table itself", str(target), hint="another file"))
    counts = predict_table(source, target)
    if arguments.switches:
        print(dumps(counts._asdict(), indent=1))
    else:
        print(f"{counts.predicted:,} rows predicted, {counts.refused:,} not (their note says why): {target}")
    return 0


@command
def search(argv: Sequence[str] | None = None) -> int:
    """Print the best layouts. 0: printed; 2: bad input, or no layout within the limits."""
    arguments = SEARCH.parse(argv)
    from estimate import search_text

    _check_words(arguments)
    _check_suffix(arguments.output, ".html", "a page")
    terms, left = terms_of(arguments, ()), left_at_nothing(arguments)
    found = _searched(arguments, terms)
    left += _unpriced(arguments, terms, (one.estimate.experiment for one in found.of_each))
    left += [*search_text.excluded(found), *search_text.few_stages(found), *search_text.nearly_full(found.best[0])]
    words = arguments.others
    lines = [*search_text.lines(found, terms, words), *map(_note, left)]
    if arguments.output is not None:
        from estimate.page import write_search

        write_search(arguments.output, found, terms, lines)
    _print(arguments, lambda: search_text.to_json(found, terms, words) | {"notes": left}, lambda: lines)
    return 0


@command
def long_context(argv: Sequence[str] | None = None) -> int:
    """Print what splitting a long sequence takes against splitting the model. 0: printed; 2: bad input."""
    arguments = LONG_CONTEXT.parse(argv)
    from estimate import long_context as schemes
    from estimate.search import requests_of

    _check_words(arguments)
    if layouts := [text for text in arguments.others if text.startswith("layout")]:
        what = "names a layout, and long_context compares two of its own"
        raise InputError(*(Problem(text, what, hint="leave it out") for text in layouts))
    named = any(text.startswith(("experiment=", "model=")) for text in arguments.others)
    requests = requests_of([*([] if named else ["experiment=long_context"]), *arguments.others])
    if len(requests) > 1:
        raise InputError(Problem("long_context", "compares two schemes on one machine", hint="a command each"))
    e = schemes.compared(requests[0])
    _print(arguments, lambda: schemes.to_json(e), lambda: schemes.lines(e))
    return 0


@command
def plan(argv: Sequence[str] | None = None) -> int:
    """Print what a training takes on the best layout of each candidate. 0: printed; 2: bad input."""
    arguments = PLAN.parse(argv)
    from estimate import search_text, training_plan

    _check_words(arguments)
    terms, left = terms_of(arguments, ()), left_at_nothing(arguments)
    found = _searched(arguments, terms, training_plan.goodput_of(terms))
    made = training_plan.plans(found, terms)
    left += [*search_text.excluded(found), *search_text.few_stages(found)]
    left += _unpriced(arguments, terms, (one.estimate.experiment for one in made))
    lines = (*training_plan.lines(made, terms), *map(_note, left))
    _print(arguments, lambda: training_plan.to_json(made, terms) | {"notes": left}, lambda: lines)
    return 0


def _print(arguments: Arguments, as_json: Callable[[], Any], lines: Callable[[], Iterable[str]]) -> None:
    """Print the one that is wanted: plain data as JSON, or lines."""
    if "--json" in arguments.switches:
        print(dumps(as_json(), indent=1))
    else:
        print(plain("\n".join(lines()), keep="\n"))


def _unpriced(arguments: Arguments, terms: Terms, experiments: Iterable[Experiment]) -> list[str]:
    """Return of which GPUs the user's prices say nothing."""
    known, stated = terms.prices.per_gpu_hour, any(arguments[name] for name in ("price", "price.*", "capex.*"))
    others = sorted({e.hardware.name for e in experiments} - {*known}) if stated else []
    return [
        f"price: given for {listed(sorted(known))}; none for {name}, so that its cost is unknown" for name in others
    ]


def _searched(arguments: Arguments, terms: Terms, goodput: Callable[[Request], float] | None = None) -> Search:
    """Return what a search finds of the overrides, within the limits, for the objective and by the parameters typed.
    goodput: of a request; None: that of `terms`."""
    from estimate.search import Limits, requests_of
    from estimate.search import search as searched

    names = {"headroom": "headroom", "most_cost": "cost", "most_power_w": "power_w", "most_days": "days"}
    limits = Limits(**{name: arguments[key] for key, name in names.items()}, goodput=goodput)
    requests = requests_of(arguments.others)
    known = _parameters(arguments["calibrated"], {r.hardware.name for r in requests})
    return searched(requests, terms, limits, arguments["objective"], known)


@command
def calibrate(argv: Sequence[str] | None = None) -> int:
    """Write parameters that own runs have refined. 0: written; 1: a run contradicts the model; 2: bad input."""
    arguments = CALIBRATE.parse(argv)
    if arguments.output is None:
        hint = f"{program('estimate')} calibrate runs/ {OUTPUT} mine.yaml"
        raise InputError(Problem("estimate calibrate", "needs a file to write to", hint=hint))
    _check_suffix(arguments.output, ".yaml", "a file of parameters")
    import numpy as np

    from estimate.calibrate import calibrate as calibrated
    from estimate.fitted import write as written
    from estimate.host import shipped_for
    from estimate.of_record import measured, without_release

    known = measured(find_and_warn(arguments.rest, arguments.switches, other_keys=CALIBRATE.names))
    hardware = {*np.unique(known.jobs.hardware).tolist()}
    start = _parameters(arguments["calibrated"], hardware) or shipped_for(hardware)
    learned = calibrated(start, known.jobs, np.array(known.step_time_s), known.names)
    file = arguments.output if learned.used.any() else None
    if file:
        with writing(file):
            written(file, learned.parameters)
    runs = [*zip(known.names, known.step_time_s, map(bool, learned.used), strict=True)]
    notes = [*map(_of_no_release, without_release(np.broadcast_to(known.jobs.stack, len(runs))[learned.used].tolist()))]
    if "--json" in arguments.switches:
        learning = [{"run": name, "step_time_s": seconds, "learned_from": used} for name, seconds, used in runs]
        about = {"runs": learning, "warnings": [*learned.warnings], "notes": notes, "file": file and str(file)}
        print(dumps(about, indent=1))
    else:
        for name, seconds, used in runs:
            print(f"{name}: {shown(seconds)} s a step, {'learned from' if used else 'not learned from'}")
        for text in learned.warnings:
            print(f"warning: {text}")
        for text in notes:
            print(f"note: {text}")
        print(f"{file}: calibrated={file} uses it" if file else f"nothing was learned, {arguments.output} not written")
    return 1 if learned.warnings else 0


def _check_words(arguments: Arguments) -> None:
    """Raise InputError of words, which only the commands behind `estimate` are."""
    if arguments.words:
        raise InputError(*(Problem(word, "is not KEY=VALUE", allowed=", ".join(COMMANDS)) for word in arguments.words))


def _check_suffix(path: Path | None, suffix: str, kind: str) -> None:
    """Raise InputError of a file that is named as another kind of file: it would replace what is there."""
    if path is not None and path.suffix not in (suffix, suffix.replace("yaml", "yml")):
        what, allowed = f"is not named as {kind}", f"a name that ends in {suffix}"
        raise InputError(Problem(str(path), what, allowed=allowed, hint=f"{OUTPUT} {path.with_suffix(suffix)}"))


def _of_no_release(framework: str) -> str:
    what = f"these runs do not say which release of {framework} they had, and hardly change estimates that name one"
    return f"{what}: {program('parse')} LOG framework_version=RELEASE -o DIR states it"


@command
def fit(argv: Sequence[str] | None = None) -> int:
    """Write parameters fitted to a table of measured runs. 0: written; 2: bad input."""
    arguments = FIT.parse(argv)
    if arguments.output is None or len(arguments.words) > 1:
        what = "needs a file to write to, and at most one table"
        raise InputError(
            Problem("estimate fit", what, hint=f"{program('estimate')} fit measured.csv {OUTPUT} mine.yaml")
        )
    _check_suffix(arguments.output, ".yaml", "a file of parameters")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: products this small only wait for threads
    from estimate.fitted import shipped
    from estimate.fitted import write as written
    from estimate.held_out import fit_with_errors
    from estimate.measured import SHIPPED, read_runs

    path = Path(arguments.words[0]) if arguments.words else SHIPPED
    runs = read_runs(path)
    fitted = fit_with_errors(runs, shipped(), f"{runs.jobs.count} runs of {path.name}")
    same = [name for name, errors in shipped().errors.items() if fitted.errors[name] == errors]
    few = "too few runs to measure errors at these distances, of which the shipped ones are used: "
    notes = [f"{few}{listed(same)}"] if same and path.resolve() != SHIPPED.resolve() else []
    with writing(arguments.output):
        written(arguments.output, fitted)
    if arguments.switches:
        about = {"table": str(path), "runs": runs.jobs.count, "notes": notes, "file": str(arguments.output)}
        print(dumps(about, indent=1))
    else:
        used = f"calibrated={arguments.output} uses it"
        print(f"{arguments.output}: fitted to {runs.jobs.count:,} runs of {path.name}; {used}")
        for text in notes:
            print(f"note: {text}")
    return 0


COMMANDS: Mapping[str, tuple[Main, Command, str]] = {
    "search": (search, SEARCH, "the best layouts, and why the next ones lose"),
    "long_context": (long_context, LONG_CONTEXT, "TP × PP against CP: speed, time of a token, memory, bytes sent"),
    "plan": (plan, PLAN, "a whole training: days, cost, energy, CO2, failures, scaling"),
    "rows": (rows, ROWS, "every row of a table of runs"),
    "calibrate": (calibrate, CALIBRATE, "learn from own runs"),
    "fit": (fit, FIT, "fit all parameters to a table of measured runs"),
}


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Return 0: printed; 2: bad input."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]][0](words[1:])
    more = ["more, each with --help:", *(f"  {name:<14}{about}" for name, (*_, about) in COMMANDS.items())]
    arguments = replace(ESTIMATE, more="\n".join(more)).parse(words)
    _check_words(arguments)
    from estimate.figures import estimate

    terms, notes = terms_of(arguments, ()), list[str]()
    machine, known = _machine(arguments["machine"], notes), _read(arguments["calibrated"])
    e = _experiment(arguments.others, notes, known)
    result = estimate(e, _fitting(arguments["calibrated"], known, {e.hardware.name}), machine)
    notes += [*left_at_nothing(arguments), *_unpriced(arguments, terms, [result.experiment])]
    if arguments.output is not None:
        keep_runs([(record := result.record(), arguments.output)])
        with writing(arguments.output):
            write(record, arguments.output)
        from estimate.page import write_estimate

        write_estimate(arguments.output / "estimate.html", result, _lines(result, terms, notes, True))
    about = (result, terms, notes, "--explain" in arguments.switches)
    _print(arguments, lambda: _object(*about), lambda: _lines(*about))
    return 0


def _parameters(path: Path | None, hardware: Collection[str]) -> Any:
    return _fitting(path, _read(path), hardware)


def _read(path: Path | None) -> Any:
    from estimate.fitted import read

    return None if path is None else read(path)


def _fitting(path: Path | None, known: Any, hardware: Collection[str]) -> Any:
    """Return the parameters of a file. ConfigError: it is of CPUs, and this is none, or the other way round."""
    from estimate.host import of_host

    if known and (others := [name for name in hardware if (name == "cpu") != of_host(known)]):
        kind = "CPUs" if of_host(known) else "GPUs"
        raise ConfigError(Problem(str(path), f"is learned from runs on {kind}", listed(others), kind, "leave it out"))
    return known


def _machine(path: Path | None, notes: list[str]) -> Any:
    """Return the machine of a file, with a note where it is of another CPU than this one: an estimate may be for it."""
    from conf.machine import read

    known = None if path is None else read(path)
    if known and not known.accelerator and known.device != (here := processor()):
        notes.append(f"machine: figures, and this estimate, are of {known.device} ({known.host}); here is {here}")
    return known


def _experiment(overrides: Sequence[str], notes: list[str], known: Any) -> Experiment:
    """Return the experiment, on the platform of its hardware where none is typed. known: parameters of a search of its
    layout. ConfigError: it is not valid."""
    from estimate.layouts import refused_by_framework
    from estimate.search import with_platform
    from estimate.searched import with_searched

    several = [*with_searched(with_platform(overrides), known)]
    if len(several) > 1:
        raise ConfigError(Problem("layout", "has several values", hint="a command each, or `estimate search`"))
    ((typed, why),) = several
    notes += [why] if why else []
    try:
        e = load(typed)
    except ConfigError as error:
        if not any(problem.what.startswith("no row for this case") for problem in error.problems):
            raise
        rest = [text for text in typed if not text.startswith("layout=")]
        ((typed, why),) = with_searched([*rest, "layout=searched"], known)
        e = load(typed)
        notes.append(f"no table has a layout for this case; {why}")
    if e.rehearse:
        raise ConfigError(Problem("rehearse", "a rehearsal has no speed", str(e.rehearse), "null", "leave it out"))
    if refused := [*refused_by_framework(e)]:
        raise ConfigError(*refused)
    notes += [str(warning.what) for warning in e.warnings]
    return e


def _lines(result: Estimate, terms: Terms, notes: Sequence[str], explain: bool) -> Iterator[str]:
    from estimate.figures import gpus_of

    e, figures = result.experiment, result.figures
    yield f"{e.name}: {e.model.name} on {gpus_of(e)}, {e.layout}, {_work(e)} (estimated)"
    room = f"{result.room_bytes / 1e9:,.0f} GB"
    device = figures["peak_memory_device_bytes"].readable()
    allocated = figures["peak_memory_allocated_bytes"].readable()
    yield _row("memory per GPU", f"{device} of {room}: {result.fits}", f"{allocated} allocated by torch; {device.note}")
    yield from (_row("what fits", change) for change in what_fits(e))
    yield from (_row(label, _interval(figures[name]), _narrower(figures[name])) for label, name in _SPEEDS)
    yield _row("how wrong", result.accuracy)
    yield _row(f"for {terms.tokens:g} tokens", "", f"goodput {100 * terms.goodput:g} %, PUE {terms.pue:g}")
    bill_: Bill = bill(result.option, terms)
    said = set[str]()
    for name in (name for name in _MONEY if name in bill_):
        note = bill_[name].note
        yield _row(f"  {name}", _interval(bill_[name]), "" if note in said else note)
        said.add(note)
    yield from map(_note, notes)
    if explain:
        yield from _explained(result)


_SPEEDS = (
    ("step time", "step_time_mean_s"),
    ("speed", "tokens_per_s_per_gpu"),
    ("", "tokens_per_s"),
    ("", "tflops_per_gpu"),
    ("MFU", "mfu_percent"),
)
_COLUMN = 28


def _row(label: str, text: str, note: str = "") -> str:
    return f"{label:<{_COLUMN}}{text:<44} {note}".rstrip()


def _note(text: str) -> str:
    return _row("note", text)


def _interval(quantity: Quantity) -> str:
    if quantity.value is None or quantity.interval is None:
        return str(quantity)
    low, high = quantity.interval
    return f"{quantity} ({shown(low, 3)} to {shown(high, 3)})"


def _narrower(quantity: Quantity) -> str:
    """Return the note of a speed; behind that of the step time, whose the others follow from, the ends with 80 %."""
    if quantity.unit != "s" or quantity.interval_80 is None:
        return quantity.note
    low, high = quantity.interval_80
    return f"{quantity.note}; with 80 %: {shown(low, 3)} to {shown(high, 3)} s"


def _work(e: Experiment) -> str:
    training = e.training
    return f"{e.precision.name}, {training.global_batch_size} sequences of {training.seq_length:,} tokens a step"


def _explained(result: Estimate) -> Iterator[str]:
    from estimate.explained import bars, roofline_lines, sensitivities, swing_lines

    yield from ("", "the parts of a step", *bars(result.time.parts.of(0), "s"))
    yield from ("", "memory of the fullest GPU", *bars(result.memory.parts(0), "GB", 1e-9))
    yield from ("", "roofline", *roofline_lines(result.jobs))
    yield from ("", "sensitivity", *swing_lines(sensitivities(result.jobs, result.parameters)))


def _object(result: Estimate, terms: Terms, notes: Sequence[str], explain: bool) -> dict[str, Any]:
    e = result.experiment
    about = {
        "experiment": e.name,
        "model": e.model.name,
        "hardware": e.hardware.name,
        "gpus": e.layout.world_size,
        "layout": str(e.layout),
        "provenance": "estimated",
        "fits": result.fits,
        "what_fits": what_fits(result.experiment),
        "accuracy": {
            "class": result.time.classes[0],
            "runs": int(result.time.rows[0]),
            "notes": list(result.time.notes[0]),
            **({"trained_on": result.trained_on} if result.trained_on else {}),
        },
        "notes": list(notes),
        "figures": {name: quantity.to_json() for name, quantity in result.figures.items()},
        "bill": {name: quantity.to_json() for name, quantity in bill(result.option, terms).items()},
        "tokens": terms.tokens,
        "step_time_parts_s": result.time.parts.of(0),
        "memory_parts_bytes": result.memory.parts(0),
    }
    if not explain:
        return about
    from estimate.explained import sensitivities
    from estimate.roofline import rooflines

    swings = {swing.name: 100 * swing.change for swing in sensitivities(result.jobs, result.parameters)}
    modules = [bound._asdict() | {"flop_per_byte": bound.intensity} for bound in rooflines(result.jobs)]
    return about | {"step_time_percent_for_10_percent_more": swings, "roofline": modules}
