"""Runs as jobs of Slurm: a bundle each, arrays of those that take the same, and their records when they have ended."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from conf.errors import ConfigError, writing
from conf.resolve import Experiment
from launchers import bundle, make_plan, run_dir, slurm, slurm_jobs, where
from launchers.matrix import Matrix, Run
from launchers.plan import NO_REHEARSAL
from tensorprimat.journal import Journal
from tensorprimat.run import recorded_job
from tensorprimat.turns import begin

BUNDLE, SUBMITTED = "bundle", ".matrix"
FIRST_S, STEADY_S = 1.0, 10.0
"""Between two polls of Slurm, at first and once nothing changes: controllers serve hundreds of users."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """A matrix whose runs are jobs of Slurm. lock: the descriptor of its lock. since: bytes of the journal when the
    runner began."""

    journal: Journal
    experiments: Mapping[str, Experiment]
    lock: int
    since: int

    def step(self) -> bool:
        """See what became of the jobs, record those that ended, submit what is to run; return whether any is left.
        ConfigError: Slurm refuses one."""
        self._find_again(self.journal.read())
        self._observe(self.journal.read())
        matrix = self.journal.read()
        if self.journal.is_cancelled_since(self.since):
            slurm_jobs.cancel([run.job for run in self._active(matrix) if run.job])
        else:
            self._submit(matrix)
        return bool(self._active(self.journal.read()))

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

    def _observe(self, matrix: Matrix) -> None:
        runs = {run.job: run for run in self._active(matrix) if run.job}
        for task, job in slurm_jobs.states(runs).items():
            run = runs[task]
            if job.place == "ended":
                self._ended(run, job)
            elif job.place != run.state:
                self.journal.state(run.id, run.attempt, job.place)

    def _ended(self, run: Run, job: slurm_jobs.Job) -> None:
        """Record the run of a job that has ended. It is completed where its record says so."""
        path = self.journal.folder / run.id
        logs = self._logs(run)
        reason = _reason(run, job, self.journal.folder / SUBMITTED / f"{run.tag}-{run.task}.out" if not logs else None)
        record = recorded_job(self.experiments[run.id], path, logs, reason)
        state = "completed" if record.status == "completed" else "failed"
        if job.state == "CANCELLED" and state == "failed":
            state = "cancelled"
        self.journal.state(run.id, run.attempt, state, record.cause)
        print(f"{state:<12}{path}", file=sys.stderr, flush=True)

    def _logs(self, run: Run) -> list[Path]:
        """Return the logs of the job, one a node, those of its last start where Slurm started it several times."""
        claim = self.journal.folder / run.id / BUNDLE / "attempts" / str(run.attempt)
        if not claim.exists():
            return []
        number = claim.read_text(encoding="utf-8").strip()
        logs = [*self.journal.folder.glob(f"{run.id}/{BUNDLE}/runs/job{number}.*-node*/train.log")]
        starts = [log.parent.name.rpartition("-node")[0].partition("-restart")[2] for log in logs]
        last = max((int(start or 0) for start in starts), default=0)
        return [log for log, start in zip(logs, starts, strict=True) if int(start or 0) == last]

    def _submit(self, matrix: Matrix) -> None:
        """Submit an array of jobs for each group of runs that take the same. ConfigError: Slurm refuses one."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, e in self.experiments.items():
            if matrix.startable([name], e.cluster.retries):
                text = slurm.job_sh(e)
                self._leave(name, e)
                groups.setdefault(slurm_jobs.options_of(text), []).append(name)
        if not groups:
            return
        most = slurm_jobs.most_tasks()
        wrong = [p for own in groups for p in slurm_jobs.tested([*own, str(slurm_jobs.TASK)], self.journal.folder)]
        if wrong:
            raise ConfigError(*dict.fromkeys(wrong))
        for own, names in groups.items():
            for at in range(0, len(names), most):
                self._submit_array(matrix, own, names[at : at + most])

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
            begin(journal, ours, anew)
            all_of_them.append(Jobs(journal, ours, lock, journal.path.stat().st_size))
        wait, before = FIRST_S, -1
        while left := [jobs for jobs in all_of_them if jobs.step()]:
            size = sum(jobs.journal.path.stat().st_size for jobs in left)
            wait, before = (FIRST_S if size != before else min(STEADY_S, 2 * wait)), size
            time.sleep(wait)
        states = {jobs.journal.folder: jobs.journal.read() for jobs in all_of_them}
    return [(states[path.parent].runs[path.name], path) for path in paths]


def _reason(run: Run, job: slurm_jobs.Job, said: Path | None) -> str | None:
    """Return why a job ended as it did, in what Slurm and its script say; None where it ended by itself, well."""
    if job.state == "COMPLETED":
        return None
    if job.state == slurm_jobs.FORGOTTEN:
        return f"Slurm knows job {run.job} no more"
    about = f"job {run.job} of Slurm: {job.state}, exit code {job.exit_code}"
    if said is None or not said.exists():
        return about
    lines = said.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")[:400]
    return f"{about}: {last}" if last else about
