"""Plant faults in rehearsals, one at a time, and show what `compare` says of each.

    .venv/bin/python benchmarks/planted.py                       every fault and every clean pair of planted.yaml
    .venv/bin/python benchmarks/planted.py --faults              faults alone
    .venv/bin/python benchmarks/planted.py --clean               pairs without a fault alone: none may alarm
    .venv/bin/python benchmarks/planted.py --only rotary decay   those with one of the words in their name or part
    .venv/bin/python benchmarks/planted.py --keep DIR            what has completed in DIR is not run again
    .venv/bin/python benchmarks/planted.py --seconds 3600        nothing is started after that; 0: DIR is compared again

Each fault is planted in one side of two rehearsals of the same experiment. It passes where `compare` says "comparable",
exit code 0: a defect. It is right where the first thing that differs, in the order of a step, is said to be in the part
that the fault is in (of what parts nothing: where its name is said), and named where one of its words is said that is
not said of the same stacks without the fault, too. A run that dies shows nothing: its row is an ERROR, and so is one of
runs of two commits; neither counts as found. One that trains to its end and is then refused is. Fails where a fault
passes, a clean pair alarms, or one of either is an ERROR or did not run. Every answer is a line of DIR/results.jsonl.

First come the faults in environment, provenance, schedule and the vendors' stacks, then the clean pairs, then the
faults in the engine."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # before this folder, some of whose files have names of packages of ours

from compare.cli import main as compare_command  # noqa: E402
from conf.errors import InputError, Problem  # noqa: E402
from launchers.where import commit  # noqa: E402
from parsers.cli import main as parse  # noqa: E402
from tensorprimat.launch import main as launch  # noqa: E402
from tests.drills import free_port  # noqa: E402
from tests.rehearsal.stacks import SAME, interpreter, rehearsed  # noqa: E402

CASES = Path(__file__).with_suffix(".yaml")
ENGINE = "megatron"
PLANTED, REFERENCE = "platform=amd", "platform=nvidia"
"""The platform that the engine is rehearsed for on each side, so that there are two: nothing else of it differs."""
OUTSIDE = ("settings", "speed", "environment", "provenance")
"""Parts of faults that are in no part of a step: their name decides, wherever the runs part after them."""
FIRST = ("environment", "provenance", "schedule")
"""Parts whose faults come first, with those in the vendors' stacks."""
ERROR, NOT_RUN = -1, -2
"""In place of an exit code: the fault could not be planted, or a run died; there was no time for a run."""
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

    @property
    def planted(self) -> tuple[str, ...]:
        """Return the request of the side with the fault."""
        return (PLANTED, *self.request) if self.stack == ENGINE else self.request


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of `compare` about runs. found: settings and checks by which it is found; said: the sentences; part:
    where the runs part, in the order of a step; decided: by what alone the pair is not comparable, the first reason
    first."""

    code: int
    found: tuple[str, ...]
    said: tuple[str, ...]
    part: str | None
    decided: tuple[str, ...] = ()
    own: frozenset[str] | None = None
    """The names and pieces of sentences that are not said without the fault."""

    def beside(self, without: Answer) -> Answer:
        """Return the answer with its own pieces. without: what is said of the same two stacks without the fault."""
        return replace(self, own=self._pieces() - without._pieces())

    def _pieces(self) -> frozenset[str]:
        """Return names and pieces of sentences. That losses differ names nothing."""
        pieces = (piece for said in self.said for piece in re.split("; |: ", said))
        return frozenset((*pieces, *(name for name in self.found if name != "loss")))

    def names(self, case: Case) -> bool:
        """Return whether one of the fault's words is said, and not so without the fault."""
        return bool(re.search(case.says, "\n".join(self._pieces() if self.own is None else self.own)))

    def passes(self, case: Case) -> bool:
        """Return whether nobody finds it: the pair is comparable, and it is no condition of a ratio, either."""
        return self.code == 0 and not (case.part == "speed" and self.names(case))

    def right(self, case: Case) -> bool:
        """Return whether the fault is found, and in its own part of a step; where no part is said, by its name."""
        placed = self.names(case) if self.part is None or case.part in OUTSIDE else self.part == case.part
        return self.code >= 0 and not self.passes(case) and placed

    def named_as(self, case: Case) -> str:
        """Return the first sentence that has one of the fault's words; else the first of all."""
        return next((said for said in self.said if re.search(case.says, said)), (*self.said, "")[0])

    def word(self, case: Case) -> str:
        """Return how the fault was found, in a word."""
        if self.code < 0:
            return {ERROR: "ERROR", NOT_RUN: "NOT RUN"}[self.code]
        return "PASSES" if self.passes(case) else "right" if self.right(case) else "wrong"


class NotRunError(Exception):
    """There is no time left to run something."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Where runs are kept, and until when new ones are started (seconds of time.monotonic)."""

    folder: Path
    until: float = float("inf")


def cases() -> tuple[Case, ...]:
    """Return the faults of planted.yaml."""
    rows = yaml.safe_load(CASES.read_text(encoding="utf-8"))["cases"]
    return tuple(Case(**{**row, "request": tuple(row.get("request", ()))}) for row in rows)


def ran(folder: Path, stack: str, case: Case | None, request: Sequence[str], keep: Keep) -> Path:
    """Rehearse one side, or return the folder of what completed there before. Another process that wants the same
    waits."""
    # the side without one is started in the same way; of Primus, which has no program of ours, settings alone
    fault = "" if stack == "primus" else "none" if case is None else case.fault
    with _alone(folder), _environ({} if case is None else case.environ):
        if begin(folder, keep, planted=case is not None):
            rehearsed(folder, stack, *request, wrong={} if case is None else case.set, fault=fault)
    return kept(folder, planted=case is not None)


def begin(folder: Path, keep: Keep, *, planted: bool = False) -> bool:
    """Return whether a run must be made in `folder`: there is none to keep. NotRunError: there is no time for it."""
    with contextlib.suppress(ValueError):
        kept(folder, planted=planted)
        return False
    if time.monotonic() >= keep.until:
        raise NotRunError(f"{folder.name} did not run")
    shutil.rmtree(folder / "t", ignore_errors=True)
    return True


def kept(folder: Path, *, planted: bool = False) -> Path:
    """Return the one run below `folder`. planted: it has the fault, so that our own checks may have refused what its
    ranks made, which is a way to find it. ValueError: there is none that completed; of one planted, that ended well."""
    for path in folder.glob("t/*/run.json"):
        record = json.loads(path.read_text())
        if record["status"] == "completed" or (planted and record["exit_code"] == 0):
            return path.parent
        raise ValueError(f"{folder.name} {record['status']}: {record['cause']}")
    raise ValueError(f"{folder.name} left no record")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _environ(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


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
    decided = [name for one in answer["verdict"]["ranked"] for name in one["settings"]]
    causes = [run["cause"] for group in answer["groups"] for run in group["runs"] if run["cause"]]
    variables = [row["setting"] for row in answer["audit"] if row["state"] == "varied" and "." in row["setting"]]
    said = (parting.get("sentence", ""), *causes, *reasons, *answer["conditions"], *variables)
    fields = [f"{one['object']}.{one['field']}" for one in answer.get("objects", ()) if one["weight"] != "idle"]
    found = (*(row["setting"] for row in rows), *(check["name"] for check in checks), *fields)
    return Answer(code, found, tuple(filter(None, said)), parting.get("part"), tuple(dict.fromkeys(decided)))


def of_one_commit(*paths: Path) -> None:
    """ValueError: the runs are of two states of the code, which alone makes them not comparable."""
    commits = {json.loads((path / "run.json").read_text())["environment"]["launcher_commit"] for path in paths}
    if len(commits) > 1:
        raise ValueError(f"runs of two commits: {', '.join(sorted(map(str, commits)))}")


def reference(case: Case, keep: Keep) -> Path:
    """Return the run of the side without the fault, made if it is missing: one serves all faults of its request."""
    key = re.sub(r"\W+", "-", "_".join((case.against, *case.request)))
    request = (REFERENCE, *case.request) if case.against == ENGINE else case.request
    return ran(keep.folder / "references" / key, case.against, None, request, keep)


def judged(case: Case, keep: Keep) -> Answer:
    """Plant the fault and return what is said of it."""
    folder = keep.folder / "planted" / re.sub(r"\W+", "-", case.name)
    vary = "" if case.stack == case.against else "framework"
    try:
        paths = (DONE[case.do] if case.do else _pair)(case, folder, keep)
        without = unplanted(case.stack, case.planted, paths[0], vary, keep)
    except NotRunError as error:
        return Answer(NOT_RUN, (), (str(error),), None)
    except (Exception, pytest.skip.Exception) as error:  # noqa: BLE001 - whatever it is, the other rows go on
        said = [NOT_PLANTED.search(log.read_text(encoding="utf-8")) for log in folder.glob("t/*/train.log")]
        return Answer(ERROR, (), (said[0].group() if said and said[0] else f"{error}",), None)
    return compared(*paths, vary=vary).beside(without)


@cache
def unplanted(stack: str, request: tuple[str, ...], base: Path, vary: str, keep: Keep) -> Answer:
    """Return what is said of a stack without the fault beside the reference `base`. Raises as judged catches."""
    path = well(stack, request, keep)
    of_one_commit(base, path)
    return compared(path, base, vary=vary)


def well(stack: str, request: Sequence[str], keep: Keep) -> Path:
    """Return a run without a fault, made if it is missing: one serves all that ask for it."""
    folder = keep.folder / "clean" / re.sub(r"\W+", "-", "_".join((stack, *request)))
    with _alone(folder):
        if begin(folder, keep):
            rehearsed(folder, stack, *request)
    return kept(folder)


def _older(case: Case, folder: Path, keep: Keep) -> tuple[Path, ...]:
    """Leave a completed record and, of the same request, a newer one that failed."""
    base, old = reference(case, keep), ran(folder, case.stack, None, case.planted, keep)
    of_one_commit(base, old)
    return base, old, _altered(old, status="failed", cause="out of memory", exit_code=1)


def _version(case: Case, folder: Path, keep: Keep) -> tuple[Path, ...]:
    """Compare with a record that another version of ours has made."""
    base, path = reference(case, keep), ran(folder / "made", case.stack, None, case.planted, keep)
    of_one_commit(base, path)
    return base, _altered(path, launcher_commit="0123456789ab")


def _altered(path: Path, launcher_commit: str | None = None, **fields: Any) -> Path:
    """Return a copy of a record, begun a minute later, in which something is another."""
    record = json.loads((path / "run.json").read_text())
    began = datetime.fromisoformat(record["started_at"]) + timedelta(minutes=1)
    record |= {"id": f"{path.name}-2", "started_at": began.isoformat(timespec="seconds"), **fields}
    if launcher_commit:
        record["environment"]["launcher_commit"] = launcher_commit
    copy = path.parents[1] / "altered" / str(record["id"])
    shutil.copytree(path, copy, dirs_exist_ok=True)
    (copy / "run.json").write_text(json.dumps(record))
    return copy


def _failed(case: Case, folder: Path, keep: Keep) -> tuple[Path, ...]:
    """Ask for three, of which one dies."""
    base, other = reference(case, keep), ran(folder / "well", case.stack, None, case.planted, keep)
    dead = replace(case, set={"padded_vocab_size": 1152})
    if not [*folder.glob("dead/t/*/run.json")]:
        with contextlib.suppress(ValueError):  # as it must
            ran(folder / "dead", case.stack, dead, ("hardware=mi355x", *case.planted), keep)
    (record,) = folder.glob("dead/t/*/run.json")
    of_one_commit(base, other, record.parent)
    return base, other, record.parent


def _patched(case: Case, folder: Path, keep: Keep) -> tuple[Path, ...]:
    """Put a copy of Megatron-Core ahead, in which one number is another."""
    core = Path(subprocess.check_output((sys.executable, "-c", _CORE), text=True).strip())
    copy = folder / "ahead" / "megatron" / "core"
    if not copy.exists():
        shutil.copytree(core, copy, ignore=shutil.ignore_patterns("__pycache__"))
    clip = copy / "optimizer" / "clip_grads.py"
    clip.write_text(clip.read_text().replace("1.0e-6", "1.0e-5"))
    assert "1.0e-5" in clip.read_text()
    return _pair(replace(case, environ={"PYTHONPATH": str(folder / "ahead")}), folder, keep)


def _dirty(case: Case, folder: Path, keep: Keep) -> tuple[Path, ...]:
    """Train from a checkout in which a file of a submodule was changed, and not committed."""
    checkout = folder / "checkout"
    if not checkout.exists():
        shutil.copytree(os.environ["PRIMUS_PATH"], checkout, symlinks=True)
    clip = checkout / "third_party" / "Megatron-LM" / "megatron" / "core" / "optimizer" / "clip_grads.py"
    clip.write_text(f"{clip.read_text()}\n# changed\n")
    return _pair(replace(case, environ={"PRIMUS_PATH": str(checkout)}), folder, keep)


def _archive(case: Case, folder: Path, keep: Keep) -> tuple[Path, ...]:
    """Put einops ahead, as it is, in an archive."""
    package = Path(interpreter(case.stack)).parents[1] / "lib"
    archive = folder / "front.zip"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w") as file:
        for module in package.glob("python*/site-packages/einops/**/*.py"):
            file.write(module, str(Path("einops", *module.parts[module.parts.index("einops") + 1 :])))
    return _pair(replace(case, environ={"PYTHONPATH": str(archive)}), folder, keep)


def _loose(case: Case, folder: Path, keep: Keep) -> tuple[Path, ...]:
    """Copy the environment, and leave another einops in front of the one that is installed, of no package."""
    python = Path(interpreter(case.stack))
    copy = folder / "environment"
    if not copy.exists():
        shutil.copytree(python.parents[1], copy, symlinks=True)
        (site,) = copy.glob("lib/python*/site-packages")
        found = subprocess.check_output((python, "-c", "import einops; print(einops.__path__[0])"), text=True).strip()
        shutil.copytree(found, site / "einops", dirs_exist_ok=True)
    return _pair(replace(case, environ={"BRIDGE_PYTHON": str(copy / "bin" / "python")}), folder, keep)


def _pair(case: Case, folder: Path, keep: Keep) -> tuple[Path, ...]:
    """Return the side without the fault, and the one with it."""
    base, path = reference(case, keep), ran(folder, case.stack, case, case.planted, keep)
    of_one_commit(base, path)
    return base, path


def _bundle(case: Case, folder: Path, keep: Keep) -> tuple[Path, ...]:
    """Run a bundle of Primus whose primus.yaml was edited after it was written."""
    bundle, run = folder / "bundle", folder / "t" / "bundled"
    base = reference(case, keep)
    if begin(folder, keep):
        shutil.rmtree(bundle, ignore_errors=True)
        port = f"cluster.master_port={free_port()}"
        if launch(["framework=primus", *SAME, *case.request, port, f"bundle={bundle}"]) != 0:
            raise InputError(Problem("bundle", "was not written", str(bundle)))
        settings = bundle / "primus.yaml"
        edited = settings.read_text().replace("log_throughput: true", "log_throughput: false")
        assert edited != settings.read_text()
        settings.write_text(edited)
        python = Path(interpreter("primus"))
        env = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "HOME": str(folder / "home")}
        subprocess.run(("bash", str(bundle / "run.sh")), env=env, check=False, capture_output=True)
        (log,) = bundle.glob("runs/*/train.log")
        parse([str(log), "-o", str(run)])
    return base, kept(folder)


_CORE = "import importlib.util as u; print(u.find_spec('megatron.core').submodule_search_locations[0])"
DONE = {
    "older_record": _older,
    "other_version": _version,
    "failed_stack": _failed,
    "patched_megatron": _patched,
    "edited_bundle": _bundle,
    "dirty_checkout": _dirty,
    "archive_in_front": _archive,
    "loose_dependency": _loose,
}


def row(case: Case, answer: Answer) -> str:
    """Return a line: planted, stack, part, exit code, right or not, what decided | found by | named as."""
    verdict = answer.word(case) + (", named" if answer.code >= 0 and answer.names(case) else "")
    part = f"{case.part} as {answer.part}" if answer.part not in (None, case.part) else case.part
    said = " ".join(answer.named_as(case).split())[:_SAID]
    found = f"{_some(answer.decided)} | {_some(answer.found)} | {said}"
    return f"{case.name[:_NAME]:<{_NAME}} {case.stack:<15} {part:<28} {answer.code:>2}  {verdict:<12} {found}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (" …" if len(names) > 4 else "")


@dataclass(frozen=True, slots=True)
class Clean:
    """Sides of one experiment, each pair of which must be comparable. sides: name → framework and overrides of its
    own."""

    name: str
    sides: Mapping[str, Sequence[str]]
    vary: str
    request: Sequence[str] = ()

    def pairs(self) -> list[Pair]:
        return [Pair(self, a, b) for a, b in combinations(self.sides, 2)]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sides of an experiment without a fault."""

    of: Clean
    a: str
    b: str

    @property
    def name(self) -> str:
        return f"{self.of.name}: {self.a} and {self.b}"

    def row(self, answer: Answer) -> str:
        """Return a line: experiment and sides, exit code, clean or not, found by | named as."""
        word = {0: "clean", ERROR: "ERROR", NOT_RUN: "NOT RUN"}.get(answer.code, "ALARM")
        said = "" if answer.code == 0 else f"{_some(answer.found)} | {' '.join(answer.said)[:_SAID]}"
        return f"{self.name:<64} {answer.code:>2}  {word:<7} {said}"


def clean() -> tuple[Clean, ...]:
    """Return the experiments of planted.yaml without a fault."""
    return tuple(Clean(**row) for row in yaml.safe_load(CASES.read_text(encoding="utf-8"))["clean"])


def paired(pair: Pair, keep: Keep) -> Answer:
    """Run both sides, and return what is said of them."""
    one = pair.of
    try:
        sides = [one.sides[name] for name in (pair.a, pair.b)]
        paths = [well(stack, (*own, *one.request), keep) for stack, *own in sides]
        of_one_commit(*paths)
    except NotRunError as error:
        return Answer(NOT_RUN, (), (str(error),), None)
    except (Exception, pytest.skip.Exception) as error:  # noqa: BLE001 - whatever it is, the other rows go on
        return Answer(ERROR, (), (str(error),), None)
    return compared(*paths, vary=one.vary if one.sides[pair.a][0] == one.sides[pair.b][0] else "framework")


def answers(chosen: Sequence[Case | Pair], keep: Keep, jobs: int) -> Iterator[tuple[Case | Pair, Answer]]:
    """Yield each fault and each pair with what is said of it, in order."""
    with ProcessPoolExecutor(jobs) as pool:
        for one, done in [(one, pool.submit(_answer, one, keep)) for one in chosen]:
            yield one, done.result()


def _answer(one: Case | Pair, keep: Keep) -> Answer:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        return judged(one, keep) if isinstance(one, Case) else paired(one, keep)


def in_order(faults: Sequence[Case], pairs: Sequence[Pair]) -> list[Case | Pair]:
    """Return all in the order in which they run."""
    first = [case for case in faults if case.part in FIRST or case.stack != ENGINE]
    return [*first, *pairs, *(case for case in faults if case not in first)]


def written(one: Case | Pair, answer: Answer) -> dict[str, Any]:
    """Return a line of results.jsonl."""
    if isinstance(one, Pair):
        return {"clean": one.name, **asdict(replace(answer, own=frozenset())), "own": []}
    verdict: dict[str, Any] = {"verdict": answer.word(one), "named": answer.code >= 0 and answer.names(one)}
    verdict["named_as"] = answer.named_as(one)
    own = sorted(answer.own or ())
    return {"planted": one.name, "stack": one.stack, "in": one.part, **verdict, **asdict(answer), "own": own}


def summary(rows: Sequence[tuple[Case | Pair, Answer]]) -> tuple[str, bool]:
    """Return the counts by part of a step, and whether all is well."""
    faults = [(case, answer) for case, answer in rows if isinstance(case, Case)]
    lines = []
    parts = dict.fromkeys(case.part for case, _ in faults)
    for part in (*parts, *(("all",) if faults else ())):
        of = [(case, answer) for case, answer in faults if part in (case.part, "all")]
        words = Counter(answer.word(case) for case, answer in of)
        named = sum(answer.code >= 0 and answer.names(case) for case, answer in of)
        counts = f"{words['PASSES']:>2} pass  {words['right']:>3} right part  {words['wrong']:>2} wrong part"
        rest = f"{named:>3} named  {words['ERROR']:>2} ERROR  {words['NOT RUN']:>2} not run"
        lines.append(f"{part:<20} {len(of):>3} planted  {counts}  {rest}")
    codes = Counter(min(answer.code, 1) for pair, answer in rows if isinstance(pair, Pair))
    if codes:
        alarms = f"{codes[0]} clean, {codes[1]} alarm, {codes[ERROR]} ERROR, {codes[NOT_RUN]} not run"
        lines.append(f"{codes.total()} clean pairs: {alarms}")
    found = all(answer.code >= 0 and not answer.passes(case) for case, answer in faults)
    return "\n".join(lines), found and codes[0] == codes.total()


def main() -> int:
    """Print the table. Return 1 where a fault passes or a clean pair alarms, is an ERROR or did not run."""
    parser = argparse.ArgumentParser(description="what compare says of planted faults, and of pairs without one")
    parser.add_argument("--only", nargs="+", default=[""], help="words of names or parts")
    parser.add_argument("--faults", action="store_true", help="faults alone")
    parser.add_argument("--clean", action="store_true", help="pairs without a fault alone")
    parser.add_argument("--keep", type=Path, help="where runs are kept; what completed there is not run again")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which nothing more is started")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    started = time.monotonic()
    faults = [case for case in cases() if any(word in f"{case.name} {case.part}" for word in options.only)]
    pairs = [pair for one in clean() for pair in one.pairs() if any(word in pair.name for word in options.only)]
    chosen = in_order([] if options.clean else faults, [] if options.faults else pairs)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        keep = Keep((options.keep or Path(temporary)).absolute(), started + options.seconds)
        keep.folder.mkdir(parents=True, exist_ok=True)
        with (keep.folder / "results.jsonl").open("w", encoding="utf-8") as results:
            for one, answer in answers(chosen, keep, options.jobs):
                print(row(one, answer) if isinstance(one, Case) else one.row(answer), flush=True)
                print(json.dumps(written(one, answer)), file=results, flush=True)
                rows.append((one, answer))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    text, good = summary(rows)
    wall = time.monotonic() - started
    print(f"{text}\ncommit {commit()}; {wall:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processor time")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
