"""Runs as jobs of Slurm: a bundle each, arrays of those that take the same, and their records when they have ended."""

from __future__ import annotations

import re
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import parsers
from conf.errors import ConfigError, InputError, writing
from conf.resolve import Experiment
from launchers import bundle, make_plan, run_dir, slurm, slurm_jobs, where
from launchers.matrix import Matrix, Run
from launchers.plan import NO_REHEARSAL
from tensorprimat.job_record import Starts, recorded_job
from tensorprimat.journal import Journal
from tensorprimat.turns import begin

SAVED = 85
"""Exit code of a job that saved and ended before its time, where Slurm does not queue it again."""
KILLED = re.compile(r"srun: error: \S+: task \d+: (?!Exited)")  # of a node's script that a signal ended
BUNDLE, SUBMITTED = "bundle", ".matrix"
FIRST_S, STEADY_S = 1.0, 10.0
"""Between two polls of Slurm, after something was submitted and, from the fifth on, always: controllers serve hundreds
of users."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """A matrix whose runs are jobs of Slurm. lock: the descriptor of its lock. since: bytes of the journal when the
    runner began."""

    journal: Journal
    experiments: Mapping[str, Experiment]
    lock: int
    since: int

    def known(self) -> list[str]:
        """Return the jobs of which Slurm is to say what became of them, those of a runner that was killed too."""
        self._find_again(self.journal.read())
        return [run.job for run in self._active(self.journal.read()) if run.job]

    def step(self, states: Mapping[str, slurm_jobs.Job]) -> tuple[bool, bool]:
        """Record the jobs that have ended, by `states`, and submit what is to run; return whether any is left, and
        whether any was submitted. ConfigError: Slurm refuses one."""
        self._observe(self.journal.read(), states)
        matrix, submitted = self.journal.read(), False
        if self.journal.is_cancelled_since(self.since):
            slurm_jobs.cancel([run.job for run in self._active(matrix) if run.job])
            return bool(self._active(matrix)), False
        try:
            submitted = self._submit(matrix)
        except ConfigError as error:
            if all(matrix.runs[name].tag is None for name in self.experiments):
                raise
            print(
                f"warning: {error}\n  it took such jobs before: tried again", file=sys.stderr, flush=True
            )  # nodes are down
            return True, False
        return bool(self._active(self.journal.read())), submitted

    def _active(self, matrix: Matrix) -> list[Run]:
        return [run for run in matrix.active() if run.tag is not None and run.id in self.experiments]

    def _find_again(self, matrix: Matrix) -> None:
        """Give every intention of a runner that was killed its answer: Slurm has a job of this name, or it has none.
        sbatch keeps the lock until it has ended, so none is on its way."""
        tags = sorted({run.tag for run in self._active(matrix) if run.state == "intended" and run.tag})
        found = slurm_jobs.named(tags) if tags else None
        for tag in tags if found is not None else ():
            job = (found or {}).get(tag)
            event = {"event": "submitted", "job": job} if job else {"event": "not submitted"}
            self.journal.append({**event, "tag": tag, "found": "by its name"})

    def _observe(self, matrix: Matrix, states: Mapping[str, slurm_jobs.Job]) -> None:
        runs = {run.job: run for run in self._active(matrix) if run.job}
        for task, run in runs.items():
            job = states.get(task)
            if job is None:
                continue
            if job.place == "ended":
                self._ended(run, job)
            elif (job.place, job.waits_for) != (run.state, run.waits_for):
                self.journal.state(run.id, run.attempt, job.place, waits_for=job.waits_for)
                if job.waits_for:
                    print(f"warning: job {task} waits: {job.waits_for}", file=sys.stderr, flush=True)

    def settle(self) -> None:
        """Record the jobs that have ended while nobody was at work: failures of before, which may begin anew."""
        self._observe(self.journal.read(), slurm_jobs.states(self.known()))

    def mend(self) -> None:
        """Write the record of a completed run again, from its logs, where it cannot be read."""
        for run in self.journal.read().runs.values():
            path = self.journal.folder / run.id
            if run.id in self.experiments and run.state == "completed" and (starts := self._starts(run)):
                try:
                    parsers.read(path)
                except InputError as error:
                    print(f"warning: {path}: its record is written again: {error}", file=sys.stderr)
                    recorded_job(self.experiments[run.id], path, starts, None)

    def _ended(self, run: Run, job: slurm_jobs.Job) -> None:
        """Record the run of a job that has ended. It is completed where its record says so."""
        path = self.journal.folder / run.id
        starts = self._starts(run)
        out = self.journal.folder / SUBMITTED / f"{run.tag}-{run.task}.out"
        said = out.read_text(encoding="utf-8", errors="replace").splitlines() if out.exists() else []
        ours = said if not self._has_started(run, starts) else list(filter(KILLED.match, said))[:1]
        record = recorded_job(self.experiments[run.id], path, starts, _reason(run, job, ours))
        state = "completed" if record.status == "completed" else "failed"
        if state == "failed" and job.exit_code.partition(":")[0] == str(SAVED):
            state = "interrupted"
        if job.state == "CANCELLED" and state == "failed":
            state = "cancelled"
        self.journal.state(run.id, run.attempt, state, record.cause)
        print(f"{state:<12}{path}", file=sys.stderr, flush=True)

    def _starts(self, run: Run) -> Starts:
        """Return the logs of every start of a run: each attempt is a job, and Slurm may have started that again."""
        bundle_of = self.journal.folder / run.id / BUNDLE
        starts: dict[tuple[int, int], list[Path]] = {}
        for attempt in range(1, run.attempt + 1):
            claim = bundle_of / "attempts" / str(attempt)
            number = claim.read_text(encoding="utf-8").strip() if claim.exists() else None
            for log in sorted(bundle_of.glob(f"runs/job{number}.*-node*/train.log"), key=_node):
                restart = log.parent.name.rpartition("-node")[0].partition("-restart")[2]
                starts.setdefault((attempt, int(restart or 0)), []).append(log)
        return [starts[at] for at in sorted(starts)]

    def _has_started(self, run: Run, starts: Starts) -> bool:
        """Return whether the last attempt left a log."""
        claim = self.journal.folder / run.id / BUNDLE / "attempts" / str(run.attempt)
        if not claim.exists() or not starts:
            return False
        return starts[-1][0].parent.name.startswith(f"job{claim.read_text(encoding='utf-8').strip()}.")

    def _submit(self, matrix: Matrix) -> bool:
        """Submit an array of jobs for each group of runs that take the same; return whether there was any. ConfigError:
        Slurm refuses one."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, e in self.experiments.items():
            if matrix.startable([name], e.cluster.retries):
                text = slurm.job_sh(e)
                self._leave(name, e)
                groups.setdefault(slurm_jobs.options_of(text), []).append(name)
        if not groups:
            return False
        most = slurm_jobs.most_tasks()
        wrong = [p for own in groups for p in slurm_jobs.tested([*own, str(slurm_jobs.TASK)], self.journal.folder)]
        if wrong:
            raise ConfigError(*dict.fromkeys(wrong))
        for own, names in groups.items():
            for at in range(0, len(names), most):
                self._submit_array(matrix, own, names[at : at + most])
        return True

    def _leave(self, name: str, e: Experiment) -> None:
        """Write the bundle of a run, where there is none. InputError: it cannot be written."""
        folder = self.journal.folder / name / BUNDLE
        if not (folder / slurm.JOB).exists():
            bundle.write(folder, bundle.texts(e, make_plan(e, where.host()), NO_REHEARSAL))

    def _submit_array(self, matrix: Matrix, options: Sequence[str], names: Sequence[str]) -> None:
        first = self.experiments[names[0]]
        tag = f"{first.name}.{secrets.token_hex(4)}"
        listed = self.journal.folder.absolute() / SUBMITTED / f"{tag}.list"
        with writing(listed):
            listed.parent.mkdir(exist_ok=True)
            listed.write_text("".join(self._row(matrix, name) for name in names), encoding="utf-8")
        budget = first.cluster.budget
        most = max(1, budget // first.layout.world_size) if budget else len(names)
        argv = [
            *options,
            f"--job-name={tag}",
            f"--array=0-{len(names) - 1}%{most}",
            f"--output={SUBMITTED}/{tag}-%a.out",
            "--open-mode=append",
            str(slurm_jobs.TASK),
            str(listed),
        ]
        self.journal.append({"event": "intends", "tag": tag, "runs": list(names)})
        try:
            number = slurm_jobs.submit(argv, self.journal.folder, self.lock)
        except ConfigError as error:
            self.journal.append({"event": "not submitted", "tag": tag, "cause": str(error)})
            raise
        if number is not None:
            self.journal.append({"event": "submitted", "tag": tag, "job": number})
            print(f"submitted job {number} of {len(names)} runs ({tag})", file=sys.stderr, flush=True)

    def _row(self, matrix: Matrix, name: str) -> str:
        """Return what shell/array_task.sh reads of a run."""
        folder = self.journal.folder.absolute() / name / BUNDLE
        python = make_plan(self.experiments[name], where.host()).argv[0]
        return "\t".join([str(matrix.runs[name].attempt + 1), str(folder), python]) + "\n"


def run(experiments: Sequence[Experiment], commit: str | None, anew: bool) -> list[tuple[Run, Path]]:
    """Run experiments of one seed each as jobs; return what became of each when none is left. The runner may be killed,
    and the same command goes on. ConfigError: Slurm refuses a job. InputError: another runner is at work."""
    paths = [run_dir.directory(e, commit) for e in experiments]
    with ExitStack() as held:
        all_of_them = []
        for folder in sorted({path.parent for path in paths}):
            journal = Journal(folder)
            lock = held.enter_context(journal.held())
            ours = {path.name: e for path, e in zip(paths, experiments, strict=True) if path.parent == folder}
            Jobs(journal, ours, lock, 0).settle()
            begin(journal, ours, anew)
            all_of_them.append(Jobs(journal, ours, lock, journal.path.stat().st_size))
            all_of_them[-1].mend()
        wait = FIRST_S
        while True:
            states = slurm_jobs.states([task for jobs in all_of_them for task in jobs.known()])  # of all, in one call
            steps = [jobs.step(states) for jobs in all_of_them]
            if not any(left for left, _ in steps):
                break
            wait = FIRST_S if any(submitted for _, submitted in steps) else min(STEADY_S, 2 * wait)
            time.sleep(wait)
        matrices = {jobs.journal.folder: jobs.journal.read() for jobs in all_of_them}
    return [(matrices[path.parent].runs[path.name], path) for path in paths]


def _node(log: Path) -> int:
    """Return the number of the node whose log this is."""
    return int(log.parent.name.rpartition("-node")[2])


def _reason(run: Run, job: slurm_jobs.Job, said: Sequence[str]) -> str | None:
    """Return why a job ended as it did, in what Slurm and its script say; None where it ended by itself, well. said:
    lines of its script, of which the last one counts."""
    if job.state == "COMPLETED":
        return None
    if job.state == slurm_jobs.FORGOTTEN:
        return f"Slurm knows job {run.job} no more"
    about = f"job {run.job} of Slurm: {job.state}, exit code {job.exit_code}"
    last = next((line.strip() for line in reversed(said) if line.strip()), "")[:400]
    return f"{about}: {last}" if last else about
