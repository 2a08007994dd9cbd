"""Measure in a folder: plan what is left, run it on all ranks, and put together the machine by all that is there."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
from msgspec.structs import replace

from conf import devices
from conf.arguments import OUTPUT
from conf.errors import InputError, Problem, blamed, listed
from conf.facts import named_by_driver
from conf.frameworks import is_module, versions
from conf.machine import VERSION, Figure, Machine
from conf.plain import terminal
from conf.schema import Hardware
from conf.threads import cores_here
from conf.vendors import Devices, output, vendor_of
from launchers.plan import Plan
from launchers.power import sampled
from launchers.rank_modules import FOLDER
from launchers.runner import Ending, execute
from launchers.variables import START, ranks_of_node
from measure import power, trainings
from measure.cases import Case, Scope, cases, too_large, visits
from measure.parameters import parameters, shares_of
from measure.rates import Samples, figures, incomplete, samples_of
from measure.standard import standard
from measure.suspicious import suspicious
from measure.validation import validations
from parsers import marks
from parsers.storage import RUN_FILE

FILE, PAGE, SETTINGS, TODO, LOG = "machine.yaml", "machine.html", "settings.json", "todo.json", "measure.log"
SIZES = {"quick": (5, 2.0), "full": (15, 10.0), "probe": (3, 0.5)}
"""Rounds, and the minutes after which it ends with what it has."""
OF_KERNELS, OF_KERNELS_IN_FULL = 0.4, 0.33
"""Share of the time after which kernels and links end, for the trainings to have the rest: `full` runs 21 of them
twice."""
_WATCHED_S = 2.0  # before anything runs: a load average has in it what we ran ourselves a minute ago
MOST_RANKS, USUAL_RANKS, SHARE_OF_MEMORY = 64, 8, 0.5
"""Processes of a CPU that may be asked for; the most without ranks=, of which two minutes are enough for every pair."""

PAUSE_S = 3.0
"""Between the rounds of a probe: within seconds, other programs slow down all of them or none."""
PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes that measure together, each by the same call with a number of its own from 0; `address` and `port` are
    where the first listens. All write into one folder, which they share."""

    count: int = 1
    own: int = 0
    address: str = ""
    port: int = 29500


def refuse_busy(here: Devices) -> None:
    """Raise InputError where other programs use a GPU of this machine."""
    if users := [*vendor_of(here.vendor).users()]:
        what = "other programs use a GPU, and figures would be of what they leave"
        raise InputError(Problem("measure", what, listed(users), hint="end them, or force=true"))


def usable(here: Devices) -> tuple[Devices, str]:
    """Return the devices that torch can use, and why it is the CPU that is measured where a vendor's tool is here."""
    tools = " and ".join(devices.silent_tools())
    if here.vendor is None:
        hint = f"call {tools}, which says why; {listed(devices.hidden_by())} may hide them"
        return here, f"{tools} is here and lists no GPU, so the CPU is measured: {hint}" if tools else ""
    version, _, can = output(sys.executable, "-c", _CAN).strip().partition(" ")
    if can != "False":
        return here, ""
    seen = f"torch {version} can use none of {here.count} × {here.names[0]}, so the CPU is measured"
    return (
        devices.NO_DEVICES,
        f"{seen}: {vendor_of(here.vendor).tool} lists them: install a torch that is built for them, or a newer driver",
    )


_CAN = "import torch; print(torch.__version__, torch.cuda.is_available())"


def measured(  # noqa: PLR0913
    scope: Scope, here: Devices, folder: Path, rounds: int, limit_s: float, nodes: Nodes | None = None
) -> tuple[Machine, int]:
    """Measure what is left to do in a folder, on the first of `nodes`; return the machine by all that there is, and how
    the ranks ended."""
    known, began = _planned(scope, here, folder), time.monotonic()
    once = [index for index, case in enumerate(known) if case.get("once")]
    left = visits(len(known), rounds, _done(folder, known), once=once)
    sustained = power.phases(scope, known) if (here.vendor or power.counter()) and not scope.probe else []
    runs, why = _trainings(scope)
    ending, last, failed = None, None, ""
    if left or scope.nodes > 1 or not power.done(folder, sustained):  # other nodes wait for this one
        limit = limit_s * (1 if not runs else OF_KERNELS_IN_FULL if scope.full else OF_KERNELS)
        work = {"cases": known, "visits": left, "phases": sustained, "limit_s": limit}
        ending = _run(scope, here, work, folder, nodes or Nodes())
    if runs and not (ending and (ending.exit_code or ending.signal_sent)):
        last, failed = trainings.run(folder, runs, began + limit_s, _said)
    machine = machine_of(scope, here, known, folder)
    missing = len(visits(len(known), rounds, _done(folder, known), once=once))
    every_visit = len(visits(len(known), rounds, {}, once=once))
    machine = replace(machine, unknown={**machine.unknown, **_cut(missing, every_visit, ending, folder)})
    if why:
        machine = replace(machine, unknown={**machine.unknown, "trainings": why})
    every, last = [*trainings.done(folder, runs)], last or ending
    machine = trainings.with_trainings(machine, every, len(runs), failed or _ended(last, folder))
    if failed:  # one that completed by its other seed, too
        said = f"{len(every)} of {len(runs)} completed: {failed}"
        machine = replace(machine, unknown={**machine.unknown, "trainings": said})
    code = (last.exit_code or int(last.signal_sent is not None)) if last else int(bool(failed))
    return _judged(machine, scope, known, folder, sustained), code


def joined(scope: Scope, here: Devices, folder: Path, nodes: Nodes) -> int:
    """Run the ranks of another node than the first, whose folder it is, too; return how they ended. InputError: the
    first node's work is not in that folder."""
    ending = _ranks(scope, here, folder, nodes, f"measure-{nodes.own}.log")
    if not (folder / TODO).is_file():
        what = f"has no {TODO} of the first node: it has to be one folder that all nodes share"
        raise InputError(Problem(OUTPUT, what, str(folder)))
    return ending.exit_code or 0


def _cut(missing: int, of: int, ending: Ending | None, folder: Path) -> dict[str, str]:
    """Return that timings are missing, and why."""
    if not missing:
        return {}
    why = _ended(ending, folder) or "time was up: more minutes, or the same call again"
    return {"timings": f"{missing:,} of {of:,} are missing: {why}"}


def _ended(ending: Ending | None, folder: Path) -> str:
    """Return what ended it before its time; empty where nothing did."""
    if ending and ending.signal_sent:
        return f"{ending.signal_sent} ended it: the same call again goes on"
    if ending and ending.exit_code:
        return f"a rank died, exit code {ending.exit_code}: {folder}/measure*.log say of what"
    return ""


def _judged(
    machine: Machine, scope: Scope, known: Sequence[Case], folder: Path, sustained: Sequence[Mapping[str, Any]]
) -> Machine:
    """Return the machine with the parameters, the cross-validation and the warnings that follow from all figures."""
    lines = [*_lines(folder)]
    samples = samples_of(known, lines, scope.ranks)
    limit = _limit_w(scope, machine)
    watts = power.figures(folder, sustained, limit, scope.node_ranks)
    device = named_by_driver(machine.device) if machine.accelerator else None
    peaks, bandwidth = _peaks(device)
    found = [*parameters(machine, known, lines), *shares_of(machine, peaks), *watts]
    machine = replace(machine, figures=(*machine.figures, *found))
    machine = replace(machine, unknown={**machine.unknown, **_not_there(machine, scope, limit)})
    warnings = tuple(suspicious(machine, samples, peaks, bandwidth))
    return replace(machine, validation=tuple(validations(samples, machine.trainings)), warnings=warnings)


def scope_of(here: Devices, ranks: int | None, size: str, nodes: int = 1) -> Scope:
    """Return how far to measure, with so many ranks on each of `nodes`. InputError: there are fewer devices, or no
    torch."""
    if not is_module("torch", None):
        raise InputError(
            Problem("measure", "torch is not installed here", hint="make install, or a vendor's container")
        )
    cores = cores_here()
    most = here.count or min(USUAL_RANKS, 2 * cores)
    if ranks is not None and ranks > (here.count or MOST_RANKS):
        raise InputError(Problem("ranks", "more than there are", str(ranks), f"1 to {here.count or MOST_RANKS}"))
    count = ranks or most
    memory = here.memory_bytes or devices.available_memory_bytes() * SHARE_OF_MEMORY / count
    accelerator = here.vendor is not None
    full, probe = size == "full", size == PROBE
    model = None if probe else standard(accelerator)
    return Scope(accelerator, count * nodes, cores, int(memory), full, model, probe, nodes)


def _planned(scope: Scope, here: Devices, folder: Path) -> list[Case]:
    """Return the cases of the measurement in a folder, begun now or before. InputError: it is another one."""
    path, hint = folder / SETTINGS, f"{OUTPUT} OTHER, or remove the folder"
    about = json.loads(json.dumps({**_plain(scope), "memory_bytes": None}))  # others use memory, too
    about |= {"version": VERSION}
    own = {"host": platform.node(), "device": _device(here), "driver": here.driver, **versions(("torch",), None)}
    if path.is_file():
        with blamed(str(path), "cannot be read", hint):
            before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            known = list(before["cases"])
        if before.get("scope") != about:
            what = "holds another measurement, of other ranks, sizes or release"
            raise InputError(Problem(OUTPUT, what, str(folder), hint=hint))
        theirs = {name: before.get(name) for name in own}
        if other := [name for name in own if theirs[name] != own[name]]:
            found, allowed = (listed([f"{name} {of[name] or 'unknown'}" for name in other]) for of in (theirs, own))
            what = f"{folder} holds another measurement, of another {' and '.join(other)}"
            raise InputError(Problem(OUTPUT, what, found, allowed, hint))
        return known
    known = [*cases(scope)]
    path.write_text(json.dumps({"scope": about, **own, "cases": known}), encoding="utf-8")
    return known


def _run(scope: Scope, here: Devices, work: Mapping[str, Any], folder: Path, nodes: Nodes) -> Ending:
    """Run the work that is left, on all ranks, while power is sampled."""
    counters = [str(zone) for zone in power.zones(rapl)] if (rapl := power.counter()) else None
    todo = {"accelerator": scope.accelerator, "cores": scope.cores, "counters": counters, **work}
    todo |= {"engine": not scope.probe, "pause_s": PAUSE_S if scope.probe else 0.0}
    todo["host_load"] = round(psutil.cpu_percent(_WATCHED_S) / 100, 2)
    (folder / TODO).write_text(json.dumps(todo), encoding="utf-8")
    return _ranks(scope, here, folder, nodes, LOG)


def _ranks(scope: Scope, here: Devices, folder: Path, nodes: Nodes, log: str) -> Ending:
    program = (str(FOLDER / "measure_ranks.py"), "--settings", TODO)
    env = {"OMP_NUM_THREADS": str(max(1, scope.cores // scope.node_ranks)), "OMP_WAIT_POLICY": "PASSIVE"}
    torchrun = ranks_of_node(scope.node_ranks, nodes.count, nodes.own, nodes.address, nodes.port)
    argv = (sys.executable, "-u", str(START), *torchrun, *program)
    with nullcontext() if nodes.own else sampled(folder, here.vendor):  # power is of the first node
        return execute(Plan(argv=argv, files={}, env=env, log=log), folder, trainings.HANG_S, _show)


def _trainings(scope: Scope) -> tuple[list[tuple[str, ...]], str]:
    """Return the trainings to run here, or why there are none."""
    why = ""
    if scope.probe:
        why = "a probe trains nothing"
    elif scope.accelerator and not scope.full:
        why = "trainings on GPUs take more time: measure full"
    elif scope.nodes > 1:
        why = "small trainings are run on one machine: measure it alone"
    elif not is_module("megatron-core", None):
        why = "megatron-core is not installed here: make install"
    return [] if why else trainings.overrides(scope.ranks, scope.full, scope.accelerator), why


def _show(line: str) -> bool:
    if is_ours := line.startswith("measure: "):
        _said(line)
    return is_ours


def _said(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{line}", end="", file=terminal(sys.stderr), flush=True)


def _lines(folder: Path) -> Iterator[Mapping[str, Any]]:
    for path in sorted(folder.glob("samples-*.jsonl")):
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                line = json.loads(text)
            except ValueError:  # cut by a kill: that visit is made again
                continue
            if isinstance(line, dict) and {"case", "round", "rank", "seconds"} <= line.keys():
                yield line


def _done(folder: Path, known: Sequence[Case]) -> Mapping[tuple[int, int], bool]:
    """Return the visits of which every rank has written its line."""
    counts: dict[tuple[int, int], int] = {}
    for line in _lines(folder):
        key = line["round"], line["case"]
        counts[key] = counts.get(key, 0) + 1
    return {key: True for key, count in counts.items() if count >= known[key[1]]["ranks"]}


def samples_in(folder: Path, scope: Scope) -> Samples:
    """Return all samples of the measurement in a folder."""
    known = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))["cases"]
    return samples_of(known, [*_lines(folder)], scope.ranks)


def _marked(folder: Path, kind: str) -> Mapping[str, Any]:
    path = folder / LOG
    log = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    return next(filter(None, (marks.read(kind, line) for line in log)), {})


def machine_of(scope: Scope, here: Devices, known: Sequence[Case], folder: Path) -> Machine:
    """Return what the samples in a folder say of the machine."""
    lines = [*_lines(folder)]
    samples = samples_of(known, lines, scope.ranks)
    return Machine(
        version=VERSION,
        date=_date(folder),
        host=platform.node(),
        device=_device(here),
        accelerator=scope.accelerator,
        ranks=scope.ranks,
        cores=scope.cores,
        nodes=scope.nodes,
        facts={**_marked(folder, "facts"), "driver": here.driver},
        figures=(*figures(samples), *_memory_figures(folder)),
        unknown={**_unknown(scope), **_skipped(samples, lines), **_too_large(scope)},
    )


def _date(folder: Path) -> str:
    """Return when the last of what was measured in a folder was written; now, where nothing was."""
    patterns = ("samples-*.jsonl", "phases-*.jsonl", f"{trainings.RUNS}/*/*/{RUN_FILE}")
    ends = [path.stat().st_mtime for pattern in patterns for path in folder.glob(pattern)]
    return datetime.fromtimestamp(max(ends, default=time.time()), timezone.utc).isoformat(timespec="seconds")


def _device(here: Devices) -> str:
    return here.names[0] if here.names else devices.processor()


def _memory_figures(folder: Path) -> Iterator[Figure]:
    """Yield what torch and Megatron-Core take without a tensor of a model."""
    found = _marked(folder, "memory")
    what = f"{found.get('of')}'s memory of the first rank"
    texts = {
        "torch": "after torch, its process group, a product and an all-reduce",
        "engine": "after importing Megatron-Core",
    }
    for name, text in texts.items():
        if found.get(name) is not None:
            formula, of = f"{what} {text}, less that before", {"framework": name}
            yield Figure("framework_memory", float(found[name]), "bytes", formula, of, None, 1, 1)


def _limit_w(scope: Scope, machine: Machine) -> float | None:
    """Return the limit of power that is set: of a GPU, or of all processors."""
    if not scope.accelerator:
        return power.counter_limit_w(folder) if (folder := power.counter()) else None
    limits = vendor_of(devices.find().vendor).power_limits_w()
    return sum(limits) / len(limits) if limits else None


def _peaks(device: Hardware | None) -> tuple[Mapping[str, float], float | None]:
    """Return FLOP/s by precision and bytes/s of memory as the data sheet of a GPU says, of one device as software sees
    it."""
    if not device:
        return {}, None
    own, bytes_s = 1e12 / device.devices_per_package, device.memory_bandwidth_tb_s
    peaks = {name: own * value for name, value in device.peak_dense_tflops.items()}
    return peaks, own * bytes_s if bytes_s else None


def _not_there(machine: Machine, scope: Scope, limit: float | None) -> dict[str, str]:
    """Return the parameters that this machine cannot tell, with the reason."""
    names = {one.name for one in machine.figures}
    found: dict[str, str] = {}
    if "power" not in names:
        why = f"no energy counter can be read in {power.RAPL}, and no vendor's tool reports power"
        found |= dict.fromkeys(("power", "power_share", "energy_per_token"), why)
    elif limit is None:
        found["power_share"] = "no tool states the limit of power"
    if "clock" not in names:
        why = "neither torch, by nvidia-ml-py or amdsmi, nor the vendor's tool reports them here"
        found |= dict.fromkeys(("clock", "temperature"), why if scope.accelerator else "this machine has no GPU")
    why = "no training completed that is split so, and one by data parallelism on as many processes"
    found |= dict.fromkeys(("communication_tp", "communication_pp"), why)
    found["fabric_factor"] = "baseline= names the machine that links are set against"
    found["vendor_factor"] = "baseline= names the machine that base_throughput is set against"
    no_sheet = f"no data sheet of {machine.device} is known" if scope.accelerator else "no data sheet of a CPU is used"
    found["peak_share"] = no_sheet
    no_step = "no round timed all steps of the standard model by one rank alone"
    found["base_throughput"] = no_step if scope.standard else "a probe does not run the standard model"
    found["base_utilisation"] = "it follows from base_throughput and gemm_best of one rank, of which one is missing"
    if scope.ranks == 1:
        of_several = ("communication_tp", "communication_pp", "all_reduce_rate", "fabric_factor")
        found |= dict.fromkeys(of_several, "there is one device")
    found["power_cap"] = "baseline= names a measurement of this device under another limit: nothing here sets one"
    return {name: why for name, why in found.items() if name not in names}


def _unknown(scope: Scope) -> dict[str, str]:
    if scope.accelerator:
        return {}
    return dict.fromkeys(("graph_launch", "to_device_rate", "to_host_rate"), "this machine has no GPU")


def _too_large(scope: Scope) -> dict[str, str]:
    why = f"needs more than half of the {scope.memory_bytes / 1e9:.3g} GB that a rank may use"
    return {_described(case): why for case in too_large(scope)}


def _described(case: Case) -> str:
    return " ".join(f"{k}={v}" for k, v in case.items() if k not in ("least_s", "model", "parameters", "flops"))


def _skipped(samples: Samples, lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the cases that torch refused, with its reason, and the figures for which there was too little time."""
    refused = {line["case"]: str(line.get("error")) for line in lines if line["seconds"] is None}
    cut = incomplete(samples, refused)
    return {**cut, **{_described(samples.cases[i]): why for i, why in refused.items()}}


def _plain(value: object) -> Any:
    import msgspec

    return msgspec.to_builtins(value)
