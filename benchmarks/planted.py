"""Plant faults in rehearsals, one at a time, and show what `compare` says of each.

    .venv/bin/python benchmarks/planted.py                       every fault of planted.yaml
    .venv/bin/python benchmarks/planted.py --only rotary decay   those with one of the words in their name or part
    .venv/bin/python benchmarks/planted.py --clean               pairs without a fault: none may alarm
    .venv/bin/python benchmarks/planted.py --keep DIR            what has run in DIR is compared, and not run again

Each fault is planted in one side of two rehearsals of the same experiment. It passes where `compare` says
"comparable", exit code 0: a defect. It is right where the first thing that differs, in the order of a step, is said to
be in the part that the fault is in (of what parts nothing: where its name is said), and named where one of its words is
said. Fails where a fault passes or a clean pair alarms."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # before this folder, some of whose files have names of packages of ours

from compare.cli import main as compare_command  # noqa: E402
from conf.errors import InputError, Problem, UserError  # noqa: E402
from launch import main as launch  # noqa: E402
from parsers.cli import main as parse  # noqa: E402
from tests.rehearsal.stacks import SAME, free_port, interpreter, rehearsed  # noqa: E402

CASES = Path(__file__).with_suffix(".yaml")
ENGINE = "megatron"
PLATFORMS = {"planted": "platform=amd", "reference": "platform=nvidia"}
"""The platform that the engine is rehearsed for on each side, so that there are two: nothing else of it differs."""
OUTSIDE = ("settings", "speed", "environment", "provenance")
"""Parts of faults that are in no part of a step: their name decides, wherever the runs part after them."""
ERROR = -1
"""In place of an exit code: the fault could not be planted, or its reference did not run."""
NOT_PLANTED = re.compile(r"the fault \w+ was not planted.*")
_NAME, _SAID = 44, 110


@dataclass(frozen=True, slots=True)
class Case:
    """A fault, as planted.yaml has it: its head says what each field is."""

    name: str
    part: str
    says: str
    fault: str = "none"
    set: Mapping[str, Any] = field(default_factory=dict)
    request: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    do: str = ""
    stack: str = ENGINE
    against: str = ENGINE
    issue: bool = False
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of `compare` about runs. found: settings and checks by which it is found; said: the sentences; part:
    where the runs part, in the order of a step."""

    code: int
    found: tuple[str, ...]
    said: tuple[str, ...]
    part: str | None

    def names(self, case: Case) -> bool:
        """Return whether one of the fault's words is said. That losses differ names nothing."""
        return bool(re.search(case.says, "\n".join((*(name for name in self.found if name != "loss"), *self.said))))

    def passes(self, case: Case) -> bool:
        """Return whether nobody finds it: the pair is comparable, and it is no condition of a ratio, either."""
        return self.code == 0 and not (case.part == "speed" and self.names(case))

    def right(self, case: Case) -> bool:
        """Return whether the fault is found, and in its own part of a step; where no part is said, by its name."""
        placed = self.names(case) if self.part is None or case.part in OUTSIDE else self.part == case.part
        return self.code != ERROR and not self.passes(case) and placed


def cases() -> tuple[Case, ...]:
    """Return the faults of planted.yaml."""
    rows = yaml.safe_load(CASES.read_text(encoding="utf-8"))["cases"]
    return tuple(Case(**{**row, "request": tuple(row.get("request", ()))}) for row in rows)


def ran(folder: Path, stack: str, side: str, case: Case | None, request: Sequence[str]) -> Path:
    """Rehearse one side, or return the folder of what it left before."""
    if not [*folder.glob("t/*/run.json")]:
        platform = [PLATFORMS[side]] if stack == ENGINE else []
        wanted = {} if case is None else case.environ
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            # the side without one is started in the same way; of Primus, which has no program of ours, settings alone
            fault = "" if stack == "primus" else "none" if case is None else case.fault
            wrong = {} if case is None else case.set
            rehearsed(folder, stack, *platform, *request, wrong=wrong, fault=fault)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
    return kept(folder)


def kept(folder: Path) -> Path:
    """Return the one run below `folder`."""
    (path,) = folder.glob("t/*/run.json")
    return path.parent


def compared(*paths: Path, vary: str = "") -> Answer:
    """Return what `compare` answers. vary: what differs on purpose."""
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = compare_command([*map(str, paths), *([f"vary={vary}"] if vary else []), "--json"])
    if not printed.getvalue().startswith("{"):
        return Answer(code, (), (errors.getvalue(),), None)
    answer = json.loads(printed.getvalue())
    rows = [row for row in answer["audit"] if row["state"] == "unexplained" or row["decides"]]
    checks = [check for check in answer["checks"] if check["state"] == "apart" or check["decides"]]
    parting = answer.get("parting") or {}
    reasons = [one["text"] for one in answer["verdict"]["ranked"] if one["settings"] != ["loss"]]
    causes = [run["cause"] for group in answer["groups"] for run in group["runs"] if run["cause"]]
    variables = [row["setting"] for row in answer["audit"] if row["state"] == "varied" and "." in row["setting"]]
    said = (parting.get("sentence", ""), *causes, *reasons, *answer["conditions"], *variables)
    fields = [f"{one['object']}.{one['field']}" for one in answer.get("objects", ()) if one["weight"] != "idle"]
    found = (*(row["setting"] for row in rows), *(check["name"] for check in checks), *fields)
    return Answer(code, found, tuple(filter(None, said)), parting.get("part"))


def reference_of(case: Case, keep: Path) -> Path:
    """Return where the side without the fault runs."""
    key = re.sub(r"\W+", "-", "_".join((case.against, *case.request)))
    return keep / "references" / key


def judged(case: Case, keep: Path) -> Answer:
    """Plant the fault and return what is said of it. Its reference has run."""
    folder = keep / "planted" / re.sub(r"\W+", "-", case.name)
    try:
        if case.do:
            return compared(*DONE[case.do](case, folder, keep), vary="" if case.stack == case.against else "framework")
        path, reference = ran(folder, case.stack, "planted", case, case.request), kept(reference_of(case, keep))
    except (UserError, ValueError) as error:
        return Answer(ERROR, (), (str(error),), None)
    said = NOT_PLANTED.search((path / "train.log").read_text(encoding="utf-8"))
    if said:
        return Answer(ERROR, (), (said.group(),), None)
    return compared(path, reference, vary="" if case.stack == case.against else "framework")


def _older(case: Case, folder: Path, keep: Path) -> tuple[Path, ...]:
    """Leave a completed record and, of the same request, a newer one that failed."""
    old = ran(folder, case.stack, "planted", None, case.request)
    return kept(reference_of(case, keep)), old, _altered(old, status="failed", cause="out of memory", exit_code=1)


def _version(case: Case, folder: Path, keep: Path) -> tuple[Path, ...]:
    """Compare with a record that another version of ours has made."""
    path = ran(folder / "made", case.stack, "planted", None, case.request)
    return kept(reference_of(case, keep)), _altered(path, launcher_commit="0123456789ab")


def _altered(path: Path, launcher_commit: str | None = None, **fields: Any) -> Path:
    """Return a copy of a record, begun a minute later, in which something is another."""
    record = json.loads((path / "run.json").read_text())
    began = datetime.fromisoformat(record["started_at"]) + timedelta(minutes=1)
    record |= {"id": f"{path.name}-2", "started_at": began.isoformat(timespec="seconds"), **fields}
    if launcher_commit:
        record["environment"]["launcher_commit"] = launcher_commit
    copy = path.parents[1] / "altered" / record["id"]
    shutil.copytree(path, copy, dirs_exist_ok=True)
    (copy / "run.json").write_text(json.dumps(record))
    return copy


def _failed(case: Case, folder: Path, keep: Path) -> tuple[Path, ...]:
    """Ask for three, of which one dies."""
    more = ("hardware=mi355x", *case.request)
    dead = replace(case, set={"padded_vocab_size": 1152})
    return (
        kept(reference_of(case, keep)),
        ran(folder / "well", case.stack, "planted", None, case.request),
        ran(folder / "dead", case.stack, "planted", dead, more),
    )


def _patched(case: Case, folder: Path, keep: Path) -> tuple[Path, ...]:
    """Put a copy of Megatron-Core ahead, in which one number is another."""
    core = Path(subprocess.check_output((sys.executable, "-c", _CORE), text=True).strip())
    copy = folder / "ahead" / "megatron" / "core"
    shutil.copytree(core, copy, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    clip = copy / "optimizer" / "clip_grads.py"
    assert "1.0e-6" in clip.read_text()
    clip.write_text(clip.read_text().replace("1.0e-6", "1.0e-5"))
    with_path = replace(case, environ={"PYTHONPATH": str(folder / "ahead")})
    return kept(reference_of(case, keep)), ran(folder, case.stack, "planted", with_path, case.request)


def _dirty(case: Case, folder: Path, keep: Path) -> tuple[Path, ...]:
    """Train from a checkout in which a file of a submodule was changed, and not committed."""
    checkout = folder / "checkout"
    if not checkout.exists():
        shutil.copytree(os.environ["PRIMUS_PATH"], checkout, symlinks=True)
    clip = checkout / "third_party" / "Megatron-LM" / "megatron" / "core" / "optimizer" / "clip_grads.py"
    clip.write_text(f"{clip.read_text()}\n# changed\n")
    from_it = replace(case, environ={"PRIMUS_PATH": str(checkout)})
    return kept(reference_of(case, keep)), ran(folder, case.stack, "planted", from_it, case.request)


def _bundle(case: Case, folder: Path, keep: Path) -> tuple[Path, ...]:
    """Run a bundle of Primus whose primus.yaml was edited after it was written."""
    bundle, record = folder / "bundle", folder / "record"
    if not (record / "run.json").exists():
        port = f"cluster.master_port={free_port()}"
        if launch(["framework=primus", *SAME, *case.request, port, f"bundle={bundle}"]) != 0:
            raise InputError(Problem("bundle", "was not written", str(bundle)))
        settings = bundle / "primus.yaml"
        settings.write_text(settings.read_text().replace("log_throughput: true", "log_throughput: false"))
        python = Path(interpreter("primus"))
        env = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "HOME": str(folder / "home")}
        subprocess.run(("bash", str(bundle / "run.sh")), env=env, check=False, capture_output=True)
        (log,) = bundle.glob("runs/*/train.log")
        parse([str(log), "-o", str(record)])
    return kept(reference_of(case, keep)), record


_CORE = "import importlib.util as u; print(u.find_spec('megatron.core').submodule_search_locations[0])"
DONE = {
    "older_record": _older,
    "other_version": _version,
    "failed_stack": _failed,
    "patched_megatron": _patched,
    "edited_bundle": _bundle,
    "dirty_checkout": _dirty,
}


def run_reference(case: Case, keep: Path) -> None:
    """Rehearse the side without the fault, unless it has run."""
    with contextlib.suppress(UserError):  # said again where it is missing
        ran(reference_of(case, keep), case.against, "reference", None, case.request)


def _quiet(work: Any, *arguments: Any) -> Any:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        return work(*arguments)


def table(chosen: Sequence[Case], keep: Path, jobs: int) -> Iterator[tuple[Case, Answer]]:
    """Yield each fault with what is said of it, in order."""
    with ProcessPoolExecutor(jobs) as pool:
        first = {reference_of(case, keep): case for case in chosen}
        for done in [pool.submit(_quiet, run_reference, case, keep) for case in first.values()]:
            done.result()
        for case, done in [(case, pool.submit(_quiet, judged, case, keep)) for case in chosen]:
            yield case, done.result()


def row(case: Case, answer: Answer) -> str:
    """Return a line: planted, part, exit code, right or not, found by, named as."""
    verdict = "right" if answer.right(case) else "PASSES" if answer.passes(case) else "wrong"
    verdict = "ERROR" if answer.code == ERROR else verdict + (", named" if answer.names(case) else "")
    found = ", ".join(answer.found[:4]) + (" …" if len(answer.found) > 4 else "")
    part = f"{case.part} as {answer.part}" if answer.part not in (None, case.part) else case.part
    said = " ".join((answer.said or ("",))[0].split())[:_SAID]
    return f"{case.name[:_NAME]:<{_NAME}} {case.stack:<9} {part:<28} {answer.code}  {verdict:<12} {found} | {said}"


@dataclass(frozen=True, slots=True)
class Clean:
    """Sides of one experiment, each pair of which must be comparable. sides: name → framework and overrides of its
    own."""

    name: str
    sides: Mapping[str, Sequence[str]]
    vary: str
    request: Sequence[str] = ()

    def folder(self, keep: Path, side: str) -> Path:
        return keep / "clean" / re.sub(r"\W+", "-", f"{self.name} {side}")


def clean() -> tuple[Clean, ...]:
    """Return the experiments of planted.yaml without a fault."""
    return tuple(Clean(**row) for row in yaml.safe_load(CASES.read_text(encoding="utf-8"))["clean"])


def _side(one: Clean, side: str, keep: Path) -> str:
    """Rehearse a side; return why it did not run, or nothing."""
    folder, (framework, *own) = one.folder(keep, side), one.sides[side]
    if not [*folder.glob("t/*/run.json")]:
        try:
            record, _ = rehearsed(folder, framework, *one.request, *own)
        except UserError as error:
            return str(error)
        return record.cause or ""
    return ""


def pairs(chosen: Sequence[Clean], keep: Path, jobs: int) -> Iterator[tuple[str, Answer]]:
    """Yield each pair of sides by its name, with what is said of it."""
    with ProcessPoolExecutor(jobs) as pool:
        for one in chosen:
            running = {side: pool.submit(_quiet, _side, one, side, keep) for side in one.sides}
            causes = {side: done.result() for side, done in running.items()}
            for pair in combinations(one.sides, 2):
                name = f"{one.name}: {' and '.join(pair)}"
                if dead := [causes[side] for side in pair if causes[side]]:
                    yield name, Answer(ERROR, (), (dead[0],), None)
                else:
                    varied = one.vary if one.sides[pair[0]][0] == one.sides[pair[1]][0] else "framework"
                    yield name, compared(*(kept(one.folder(keep, side)) for side in pair), vary=varied)


def _print_clean(chosen: Sequence[Clean], keep: Path, jobs: int) -> int:
    """Print the pairs; return how many alarm or did not run."""
    alarms = count = 0
    for name, answer in pairs(chosen, keep, jobs):
        word = {0: "clean", ERROR: "ERROR"}.get(answer.code, "ALARM")
        said = "" if answer.code == 0 else f"{', '.join(answer.found)} | {' '.join(answer.said)[:_SAID]}"
        print(f"{name:<64} {answer.code:>2}  {word:<6} {said}", flush=True)
        alarms, count = alarms + (answer.code != 0), count + 1
    print(f"{count} clean pairs: {alarms} alarm")
    return alarms


def main() -> int:
    """Print the table. Return 1 where a fault passes, or a clean pair alarms."""
    parser = argparse.ArgumentParser(description="what compare says of planted faults")
    parser.add_argument("--only", nargs="+", default=[""], help="words of names or parts")
    parser.add_argument("--clean", action="store_true", help="pairs without a fault")
    parser.add_argument("--keep", type=Path, help="where runs are kept; what is there is not run again")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        keep = (options.keep or Path(temporary)).absolute()
        if options.clean:
            named = [one for one in clean() if any(word in one.name for word in options.only)]
            return 1 if _print_clean(named, keep, options.jobs) else 0
        chosen = [one for one in cases() if any(word in f"{one.name} {one.part}" for word in options.only)]
        answers = []
        for case, answer in table(chosen, keep, options.jobs):
            print(row(case, answer), flush=True)
            answers.append((case, answer))
    passed = sum(answer.code == ERROR or answer.passes(case) for case, answer in answers)
    right = sum(answer.right(case) for case, answer in answers)
    spent = time.monotonic() - started
    named = sum(not answer.passes(case) and answer.names(case) for case, answer in answers)
    print(f"{len(answers)} faults: {passed} pass; {right} in the right part, {named} named by a word; {spent:.0f} s")
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
