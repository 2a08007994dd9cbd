"""bundle=DIR: a run as a folder that needs nothing of ours where it is started, `bash run.sh` on a ROCm box."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conf.errors import ConfigError, InputError, Problem
from conf.resolve import Experiment
from conf.vocabulary import requested
from launchers import rehearse
from launchers.plan import Plan
from launchers.rehearse import NOTHING_TOLD, Told

ROOT = Path(__file__).parent.parent
PROGRAMS = {
    "run.sh": "shell/run_bundle.sh",
    "sample_power.sh": "shell/sample_power.sh",
    "power_tools": "shell/power_tools",
    "environment.sh": "shell/environment.sh",
    "rank_program.py": "launchers/ranks/rank_program.py",
    "corpus.py": "launchers/ranks/corpus.py",
    "corpus_order.py": "launchers/ranks/corpus_order.py",
    "primus_check.py": "launchers/ranks/primus_check.py",
    "primus_facts.py": "launchers/ranks/primus_facts.py",
    "primus_settle.py": "launchers/ranks/primus_settle.py",
}
"""Name in a bundle → file here."""

REHEARSAL = "rehearsal"  # the folder in a bundle that run.sh puts in front of PYTHONPATH

REHEARSED = """\
This is a rehearsal: Primus itself trains a toy of the experiment on a CPU, for its settings and not for speed.
Start it anywhere with a python3 in PATH that has what Primus needs, and a checkout of the release"""

OVERRIDABLE = (
    *("PRIMUS_PATH", "PRIMUS_ENTRY", "PRIMUS_IMAGE", "PRIMUS_CACHE_ROOT", "DATA_PREFIX"),
    *("NNODES", "NODE_RANK", "GPUS_PER_NODE", "MASTER_ADDR", "MASTER_PORT"),
)
"""Variables that keep the value that the user gives them; every other one is ours."""


def files(e: Experiment, plan: Plan, told: Told = NOTHING_TOLD) -> dict[str, str]:
    """Every file of the bundle by its name, as text. Pure but for our own programs, which are read."""
    return {
        **{name: (ROOT / path).read_text(encoding="utf-8") for name, path in PROGRAMS.items()},
        **(_rehearsal() if e.rehearse else {}),
        **plan.files,
        "env.sh": env_sh({name: value for name, value in plan.env.items() if name != "PYTHONPATH"}, plan.env_reasons),
        "bundle.json": json.dumps(facts(e, plan, told), indent=1, ensure_ascii=False) + "\n",
        "README.txt": readme(e, plan, told),
    }


def _rehearsal() -> dict[str, str]:
    """What stands in for a GPU (launchers/ranks/rehearsal)."""
    ours = (path for path in sorted(rehearse.FOLDER.rglob("*")) if path.is_file() and path.suffix != ".pyc")
    return {f"{REHEARSAL}/{path.relative_to(rehearse.FOLDER)}": path.read_text(encoding="utf-8") for path in ours}


def facts(e: Experiment, plan: Plan, told: Told = NOTHING_TOLD) -> dict[str, Any]:
    """bundle.json, which primus_settle.py reads: the request, and what of it may follow another number of GPUs."""
    declared = [asdict(d) for d in (*e.declared, *plan.declared)]
    where = {"platform": e.platform.name, "vendor": e.platform.vendor, "hardware": e.hardware.name}
    known = {"name": e.name, "framework_release": e.framework.release, "image": e.image, **where}
    rehearsed = {"not_rehearsed": told.not_rehearsed, "shrunk": told.shrunk, "cautions": told.notes}
    facts = {name: value for name, value in known.items() if value is not None} | (rehearsed if e.rehearse else {})
    return {
        "requested": requested(e),
        "nodes": e.nodes,
        "gpus_per_node": e.gpus_per_node,
        "layout_from_table": e.layout.source is not None,
        "data_prefix": e.data.path,
        "facts": facts | {"declared": declared},
    }


def env_sh(env: Mapping[str, str], reasons: Mapping[str, str]) -> str:
    """Exports of every variable, each with its reason; overridable ones keep what the user has set."""
    lines = ["# Sourced by run.sh. A variable with a condition keeps the value that you give it; the others are fixed."]
    for name, value in sorted(env.items()):
        line = f"{name}={shlex.quote(value)}"
        line = f"[[ -n ${{{name}:-}} ]] || {line}; export {name}" if name in OVERRIDABLE else f"export {line}"
        lines.append(f"{line} # {reasons.get(name, '')}".rstrip(" #"))
    return "\n".join(lines) + "\n"


def readme(e: Experiment, plan: Plan, told: Told = NOTHING_TOLD) -> str:
    """README.txt: what this is, how it is started, what may be changed, and how a record comes of it."""
    image = e.image or f"rocm/primus:{e.framework.release}"
    passed = ", ".join(plan.forward_env) or "none"
    inside = f"Start it inside {image}, with a checkout of the same release"
    start = "\n".join([*told.notes, REHEARSED]) if e.rehearse else inside
    title = f"{e.name}: {e.model.name} on {e.nodes} x {e.gpus_per_node} {e.hardware.name}, Primus {e.framework.release}"
    return f"""{title}, {e.layout}

{start}
(git clone --recurse-submodules -b release/{e.framework.release} https://github.com/AMD-AGI/Primus):

    PRIMUS_PATH=/path/to/Primus bash run.sh              DRY_RUN=1 bash run.sh  only says what it would do

Several nodes: the same on each of them, with NODE_RANK=0, 1, ... (srun tells it) and MASTER_ADDR=HOST of node 0.
The last node's log is the one with the iteration lines.
From outside a container: PRIMUS_ENTRY=container PRIMUS_IMAGE={image} bash run.sh

These may be set before it: TRAIN_ITERS, NNODES, GPUS_PER_NODE, NODE_RANK, MASTER_ADDR, MASTER_PORT,
PRIMUS_PATH, PRIMUS_ENTRY, PRIMUS_IMAGE, PRIMUS_CACHE_ROOT, DATA_PREFIX (a corpus elsewhere),
RUN_DIR (where the run is kept), TRAIN_LOG (a file in a folder that exists).
What follows from them is computed again; where more would have to change, run.sh refuses: render again.
Before it starts, the checkout is asked for its release and for every key: PRIMUS_CHECK=0 leaves that out.
Where its git does not tell the release, PRIMUS_RELEASE={e.framework.release} says that it is that one.
Passed on by name if you have set them, never written down: {passed}.

A run is a folder runs/TIME: primus.yaml as it ran, train.log, power.jsonl. Elsewhere, with TensorPrimat, its record is
    python -m parsers runs/TIME/train.log -o runs/TIME
"""


def leave(asked: Sequence[tuple[Experiment, Plan, Told]]) -> None:
    """Write the bundle of each experiment, and say where.

    Raises:
        ConfigError: a framework that needs our programs where it runs, or one folder for several runs.
        InputError: a folder that cannot be used.
    """
    problems = [problem for e, *_ in asked for problem in _problems(e)]
    if len({e.bundle for e, *_ in asked}) < len(asked):
        problems.append(Problem("bundle", "one folder holds one experiment", hint="one call a bundle"))
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    for e, plan, told in asked:
        write(Path(e.bundle or ""), files(e, plan, told))
        for note in told.notes:
            print(f"warning: {note}", file=sys.stderr)
        print(
            f"{e.bundle}: copy it to the ROCm box, then PRIMUS_PATH=/path/to/Primus bash run.sh (README.txt says more)"
        )


def _problems(e: Experiment) -> Iterator[Problem]:
    if e.framework.name != "primus":
        what = f"{e.framework.name} is started by programs of ours, which a bundle leaves behind"
        yield Problem("bundle", what, e.framework.name, "primus", "framework=primus platform=amd")
    if e.rehearse == "layout":
        what = "a bundle starts Primus once, and a layout is rehearsed rank by rank"
        yield Problem("rehearse", what, "layout", "train", "rehearse=train, or without bundle=")
    if e.repeat > 1:
        yield Problem("repeat", "a bundle is one run", str(e.repeat), "1", "start it several times, or a bundle a seed")


def write(directory: Path, texts: Mapping[str, str]) -> None:
    """Write the bundle.

    Raises:
        InputError: something else is in the folder, or it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        foreign = sorted(_foreign(directory, texts))
        if foreign:
            hint = "bundle=ANOTHER/FOLDER, or empty it"
            raise InputError(Problem(str(directory), "holds what is of no bundle", ", ".join(foreign[:5]), hint=hint))
        for name, text in texts.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            path.chmod(0o755 if text.startswith("#!") else 0o644)
    except OSError as error:
        where = str(error.filename or directory)
        raise InputError(Problem(where, "cannot be written", error.strerror or str(error))) from error


def _foreign(directory: Path, texts: Mapping[str, str]) -> Iterator[str]:
    """What lies there and no bundle leaves: its own files, runs and corpus may stay."""
    ours = {*(name.partition("/")[0] for name in texts), "runs", "data"}
    return (path.name for path in directory.iterdir() if path.name not in ours)
