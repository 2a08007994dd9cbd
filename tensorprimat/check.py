"""`tprimat check KEY=VALUE …`: can this experiment run here, and would it run as requested? It leaves no files.

Checks the rules of the config, this machine and the corpus; then, inside the environment that would train
(framework.python, or the container of cluster.container), the versions, the recipe and every setting's place in it,
without a training step; then rehearses a vendor's stack that is here. Lists what only a GPU can show."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from conf import devices
from conf.arguments import Command, Key, experiment_keys, switch
from conf.errors import ConfigError, Problem, command
from conf.load import experiments
from conf.machine import read
from conf.resolve import Experiment
from conf.vocabulary import requested
from estimate.headroom import memory_text
from launchers import containers, leftovers, make_plan, preflight, rehearse, where
from launchers.frameworks import framework_of
from launchers.plan import Host, Plan
from launchers.runner import environment
from parsers import marks
from parsers.assemble import same
from tensorprimat.recipe_plans import too_large
from tensorprimat.run import rehearsal, run_once

NOT_DONE = "not done"
Part = tuple[str, str, list[Problem]]  # its name, its result in words, and what is wrong
LIMIT_S = 600.0  # imports of a vendor's stack take up to a minute on a cold disk


class Target(NamedTuple):
    """The answer of the environment that would train. configured: settings of the recipe that was built, by canonical
    name; nothing of it ran. facts: versions and devices there."""

    problems: tuple[Problem, ...]
    configured: Mapping[str, Any] = {}
    facts: Mapping[str, Any] = {}


def ask_target(e: Experiment, plan: Plan) -> Target | None:
    """Run the plan's own check; None where the framework has none (the engine refuses in its first second)."""
    if not plan.check:
        return None
    with tempfile.TemporaryDirectory(prefix="tprimat-check-") as directory:
        for name, text in plan.files.items():
            (Path(directory) / name).write_text(text, encoding="utf-8")
        wrapped = containers.wrap(plan, e, Path(directory))
        try:
            how: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "encoding": "utf-8", "errors": "replace"}
            how |= {"cwd": directory, "env": environment(wrapped, os.environ), "timeout": LIMIT_S}
            done = subprocess.run(wrapped.check, check=False, **how)
        except OSError as error:
            what = f"cannot be started: {error.strerror or error}"
            hint = "framework.python=/path/to/bin/python names the interpreter that has the stack"
            return Target((Problem("framework.python", what, wrapped.check[0], hint=hint),))
        except subprocess.TimeoutExpired:
            what = f"the check in the target environment took more than {LIMIT_S:.0f} s and was ended"
            return Target((Problem("framework", what, e.framework.name),))
        finally:
            leftovers.remove(wrapped.container)
    return read_answer(done.returncode, done.stdout, done.stderr)


def read_answer(code: int, out: str, err: str) -> Target:
    """Return what the check printed as a Target."""
    marked: dict[str, dict[str, Any]] = {"configured": {}, "facts": {}}
    refused = []
    for line in out.splitlines():
        for kind, values in marked.items():
            values.update(marks.read(kind, line) or {})
        if (refusal := marks.read("refused", line)) is not None:
            refused.append(Problem(*(str(refusal.get(name) or "") for name in Problem.__slots__)))
    if code != 0 and not refused:
        last = " | ".join(line.strip() for line in err.splitlines()[-3:]) or "nothing was printed"
        refused.append(Problem("framework", f"the check in the target environment ended with exit code {code}", last))
    if code == 0 and not marked["configured"]:
        refused.append(Problem("framework", "the check in the target environment reported no settings"))
    return Target(tuple(refused), marked["configured"], marked["facts"])


def undeclared(e: Experiment, plan: Plan, configured: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the settings that would run otherwise than requested, and that the plan does not declare."""
    declared = {d.key for d in (*e.declared, *plan.declared)}
    for name, wanted in requested(e).items():
        if name in configured and name not in declared and not same(wanted, configured[name]):
            yield Problem(name, f"{wanted} is requested, and {e.framework.name} would run", str(configured[name]))


def target_problems(e: Experiment, plan: Plan) -> list[Problem]:
    """Return all that keeps `plan` from running as requested in its own environment."""
    target = ask_target(e, plan)
    return [] if target is None else [*target.problems, *undeclared(e, plan, target.configured)]


CHECK = Command(
    name="check",
    summary="Can this experiment run here, and would it run as requested? It leaves nothing behind.",
    words="KEY=VALUE…",
    words_help="as for launch",
    keys=(
        Key("rehearsal", "whether a toy run of the vendor's stack is made (default: true)", switch, True, "false"),
        Key("machine", "a file of `measure`: a probe of half a minute is held against it", Path, None, "machine.yaml"),
    ),
    others="any key of conf/",
    examples=("model=llama platform=nvidia", "platform=nvidia framework=nemo rehearsal=false"),
    old={"--no-rehearsal": "rehearsal=false"},
    known=experiment_keys,
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print whether it can run. 0: here, as requested; 2: not, and why."""
    arguments = CHECK.parse(argv)
    rows = [_row(e, arguments["rehearsal"]) for e in experiments(arguments.rest, multirun=False)]
    if arguments["machine"]:
        rows[0]["parts"].append(_as_part(*_probed(arguments["machine"])))
    print(json.dumps(rows, indent=2) if arguments.switches else "\n\n".join(_shown(row) for row in rows))
    return 2 if any(part["problems"] for row in rows for part in row["parts"]) else 0


def _row(stated: Experiment, rehearsing: bool) -> dict[str, Any]:
    host, e = where.host(), replace(stated, rehearse=None)
    plan = make_plan(e, host)
    target = ask_target(e, plan)
    rehearsed: list[Part] = []
    if rehearsing and not framework_of(e.framework.name).own_stand_in:
        rehearsed = [*_rehearsed(replace(e, rehearse=stated.rehearse or "train", equal_init=True), host)]
    said = f"every rule holds; memory: {memory_text(e)}"
    parts: list[Part] = [("config", said, too_large(e))]
    parts.append(_machine(e, any(not text.startswith(NOT_DONE) for _, text, _ in rehearsed)))
    if target is None:
        parts.append(("target", f"{NOT_DONE}: {e.framework.name} has no check of its settings before it starts", []))
    else:
        versions = ", ".join(f"{name} {value}" for name, value in sorted(target.facts.items()) if value)
        parts.append(("target", versions or "nothing reported", list(target.problems)))
        wanted, built = requested(e), target.configured
        equal = sum(name in built and same(value, built[name]) for name, value in wanted.items())
        counts = f"{len(plan.declared)} declared, {len(wanted.keys() - built.keys())} seen only in a run"
        text = f"{equal} of {len(wanted)} are built as requested, {counts}"
        parts.append(("settings", text, list(undeclared(e, plan, built))))
    return {
        "experiment": e.name,
        "framework": e.framework.name,
        "platform": e.platform.name,
        "parts": [_as_part(*part) for part in (*parts, *rehearsed)],
        "only_a_gpu_can_show": rehearse.not_rehearsed(replace(e, rehearse="train")) if e.platform.vendor else {},
    }


def _as_part(part: str, text: str, problems: Sequence[Problem]) -> dict[str, Any]:
    return {"part": part, "says": text, "problems": [asdict(problem) for problem in problems]}


def _probed(path: Path) -> Part:
    """Hold this box against what it was measured to do."""
    from measure.probe import problems

    reference = read(path)
    return "box", f"as fast as on {reference.date[:10]}, by a probe", problems(reference)


def _machine(e: Experiment, rehearsed: bool) -> Part:
    """Check this machine. After a rehearsal a missing GPU is no problem: it is what remains to be shown."""
    problems = preflight.problems(e)
    gpus = [problem for problem in problems if problem.where == "platform"]
    if rehearsed and gpus and devices.find().vendor is None:
        return "machine", f"{NOT_DONE}: {gpus[0].what}", [problem for problem in problems if problem not in gpus]
    return "machine", "all that it needs is here", problems


def _rehearsed(e: Experiment, host: Host) -> Iterator[Part]:
    """Rehearse `e` in a temporary folder, where its stack is on this machine."""
    with tempfile.TemporaryDirectory(prefix="tprimat-check-") as directory:
        try:
            small, rehearsed = rehearsal(replace(e, runs_dir=directory))
        except ConfigError as error:
            yield "rehearsal", "", list(error.problems)
            return
        try:
            plan, missing = make_plan(small, host), preflight.problems(small)
        except ConfigError as error:  # what a GPU can do and a CPU cannot
            missing = list(error.problems)
        if missing:
            yield "rehearsal", f"{NOT_DONE}: {missing[0].what}", []
            return
        record, _ = run_once(small, plan, rehearsed)
    declared = {d.key for d in record.declared}
    unlike = [d for d in record.differences if d.setting not in declared and d.setting not in record.not_rehearsed]
    problems = [Problem(d.setting, f"{d.requested} is requested, the rehearsal ran", str(d.effective)) for d in unlike]
    if record.status != "completed":
        what, hint = f"{record.status}: {record.cause}", "what a rehearsal needs of a stack: CONTRIBUTING.md, Rehearsed"
        problems.append(Problem("rehearse", what, " | ".join(record.last_lines[-3:]), hint=hint))
    read = sum(name in record.effective for name in record.requested)
    as_declared = sum(d.setting in declared for d in record.differences)
    otherwise = f"{as_declared} otherwise, as declared" if as_declared else "none otherwise"
    text = f"{e.rehearse}, {small.layout}: {len(record.steps)} steps, {read} settings read back, {otherwise}"
    yield "rehearsal", text, problems


def _shown(row: Mapping[str, Any]) -> str:
    lines = [f"{row['experiment']} by {row['framework']} on {row['platform']}"]
    for part in row["parts"]:
        done = "-" if part["says"].startswith(NOT_DONE) else "ok"
        word, text = ("no", "") if part["problems"] else (done, part["says"])
        lines.append(f"  {part['part']:<10}{word:<4}{text}".rstrip())
        lines += [f"      {text}" for p in part["problems"] for text in str(Problem(**p)).splitlines()]
    names = [name.replace("_", " ") for name in row["only_a_gpu_can_show"]]
    lines += [f"  only a GPU can show: {', '.join(names)}"] if names else []
    return "\n".join(lines)
