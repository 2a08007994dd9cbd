"""tprimat measure: time kernels, links and small trainings on this machine, and write what it can do as
DIR/machine.yaml."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from conf import devices
from conf import machine as machines
from conf.arguments import OUTPUT, Arguments, Command, Key, between, positive_integer, switch
from conf.errors import InputError, Problem, command, listed, writing
from conf.locks import lock_of, take
from conf.machine import Machine, write
from conf.vendors import Devices
from measure.cases import Scope
from measure.page import page, unknown
from measure.parameters import against
from measure.session import FILE, LOG, PAGE, SIZES, Nodes, joined, measured, refuse_busy, samples_in, scope_of, usable
from metrics.quantity import shown
from parsers.storage import replace_file


def _number(text: str) -> int:
    """Read the number of a node. Raises ValueError."""
    if not text.isdecimal():
        raise ValueError("an integer from 0")
    return int(text)


MEASURE = Command(
    name="measure",
    summary="Time kernels, links and small trainings on this machine by torch: what estimate uses of it.",
    words="quick|full|probe",
    words_help="quick: two minutes (default); full: more sizes and rounds, ten minutes; probe: half a minute",
    keys=(
        Key(
            "ranks",
            "GPUs, or processes of a CPU, of each node (default: all; two a core, 8 at most)",
            positive_integer,
            None,
            "4",
        ),
        Key("minutes", "end after so long with what there is", between(0.1, 24 * 60, "0.1 to 1440"), None, "5"),
        Key("nodes", "nodes that measure together, each by this call", positive_integer, 1, "2"),
        Key("node_rank", "the number of this one of them, from 0", _number, 0, "1"),
        Key("master_addr", "where the first of them is reached", str, None, "node1"),
        Key("master_port", "and by which port", partial(positive_integer, most=65535), 29500, "29501"),
        Key("baseline", "a machine.yaml that links and throughput are set against", Path, None, "other/machine.yaml"),
        Key("force", "measure although other programs use a GPU", switch, False, "true"),
    ),
    output="where machine.yaml and every sample go (default: machine); one that was stopped there goes on",
    examples=("", "full -o machine", "nodes=2 node_rank=1 master_addr=node1 -o /shared/machine"),
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Measure. 0: machine.yaml is written; 1: a rank or a training died, somebody ended it, or nothing was timed; 2: it
    cannot be measured here."""
    given = MEASURE.parse(argv)
    size = given.words[0] if given.words else "quick"
    if len(given.words) > 1 or size not in SIZES:
        raise InputError(Problem("measure", "how far?", " ".join(given.words), listed([*SIZES])))
    (here, unseen), folder, nodes = usable(devices.find()), given.output or Path("machine"), _nodes(given)
    if unseen:
        print(f"warning: {unseen}", file=sys.stderr)
    baseline = machines.read(given["baseline"]) if given["baseline"] else None
    if not given["force"]:
        refuse_busy(here)
    scope = scope_of(here, given["ranks"], size, nodes.count)
    rounds, minutes = SIZES[size]
    if nodes.own:
        return _join(scope, here, folder, nodes)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with lock_of(folder.resolve()).open("w") as lock:
            if not take(lock):
                raise InputError(Problem(OUTPUT, "another measurement runs there", str(folder), hint=f"{OUTPUT} OTHER"))
            limit_s = 60 * (given["minutes"] or minutes)
            machine, code = measured(scope, here, folder, rounds, limit_s, nodes)
            if unseen:
                machine = replace(machine, warnings=(unseen, *machine.warnings))
            if baseline:
                machine = _beside(machine, baseline)
            if machine.figures:
                write(folder / FILE, machine)
                replace_file(folder / PAGE, page(machine, samples_in(folder, scope)))
    print(
        json.dumps(to_builtins(machine), indent=1) if "--json" in given.switches else "\n".join(_text(machine, folder))
    )
    return 0 if machine.figures and not code else 1


def _nodes(given: Arguments) -> Nodes:
    """Return the nodes that measure together. InputError: one is not described."""
    nodes = Nodes(given["nodes"], given["node_rank"], given["master_addr"] or "", given["master_port"])
    if not 0 <= nodes.own < nodes.count:
        raise InputError(
            Problem("node_rank", "is no node", str(nodes.own), f"0 to {nodes.count - 1} with nodes={nodes.count}")
        )
    if nodes.count > 1 and not given["master_addr"]:
        raise InputError(
            Problem("master_addr", "several nodes have to meet", hint="master_addr= the first node's name")
        )
    return nodes


def _join(scope: Scope, here: Devices, folder: Path, nodes: Nodes) -> int:
    """Measure as another node than the first."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        code = joined(scope, here, folder, nodes)
    died = f"a rank died, here or on another node: {folder}/measure*.log say of what"
    print(f"node {nodes.own}: {died if code else f'measured; the first node writes {FILE}'}")
    return 1 if code else 0


def _beside(machine: Machine, baseline: Machine) -> Machine:
    """Return the machine with its factors against a baseline, and why it has none of those that it lacks."""
    found = [*against(machine, baseline)]
    names, why = {one.name for one in found}, dict(_not_beside(machine, baseline))
    unknown = {name: reason for name, reason in {**machine.unknown, **why}.items() if name not in names}
    return replace(machine, figures=(*machine.figures, *found), unknown=unknown)


def _not_beside(machine: Machine, baseline: Machine) -> Iterator[tuple[str, str]]:
    """Yield each factor against a baseline, and why there is none if there is none."""
    of, both = f"the baseline, {baseline.device} of {baseline.date[:10]},", {"here": machine, "the baseline": baseline}
    one_device = machine.ranks == 1
    yield (
        "fabric_factor",
        "there is one device" if one_device else f"{of} shares no rate of a collective with this file",
    )

    def lacking(name: str) -> str:
        return listed([who for who, one in both.items() if all(figure.name != name for figure in one.figures)])

    throughput = f"no base_throughput was measured: {lacking('base_throughput')}"
    of_kinds = f"{of} is {'a GPU, and here is a CPU' if baseline.accelerator else 'a CPU, and here is a GPU'}"
    alike = machine.accelerator == baseline.accelerator
    yield "vendor_factor", throughput if alike else of_kinds
    if machine.device != baseline.device:
        yield "power_cap", f"{of} is another device than {machine.device}"
    elif without := lacking("power_limit"):
        yield "power_cap", f"no limit of power is known: {without}"
    else:
        yield "power_cap", throughput if lacking("base_throughput") else f"{of} was under the same limit of power"


def _text(machine: Machine, folder: Path) -> Iterator[str]:
    yield f"{machine.device}, {machine.ranks} ranks"
    for one in machine.figures:
        of = " ".join(f"{name}={value}" for name, value in one.of.items())
        ends = f"  ({shown(one.interval[0])} to {shown(one.interval[1])})" if one.interval else ""
        yield f"  {one.name:<26}{of:<32} {shown(one.value):>12} {one.unit}{ends}"
    for training in machine.trainings:
        left_out = f", {training.left_out_s:.4g} s predicted by the others" if training.left_out_s else ""
        took = f"{training.step_time_s:.4g} s a step of {training.steps} ± {training.deviation:.0%}{left_out}"
        yield f"  training {' '.join(training.run)}: {took}"
    for row in machine.validation:
        met = "met" if row.met else "not met"
        errors = f"median error {row.median:.1%}, 90th percentile {row.percentile_90:.1%} of {row.runs}"
        yield f"  {row.of}, each predicted by the others: {errors}; wanted {row.target:.0%} ({row.wanted_by}): {met}"
    yield from (f"unknown: {line}" for line in unknown(machine))
    yield from (f"warning: {text}" for text in machine.warnings)
    yield f"written: {folder / FILE} and {PAGE}" if machine.figures else f"nothing was timed; see {folder / LOG}"
