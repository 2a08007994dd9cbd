"""The commands of Slurm: submit an array of jobs, see what became of it, find it by its name, cancel it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.errors import ConfigError, Problem

TASK = Path(__file__).parents[1] / "shell" / "array_task.sh"
LIMIT_S = 120.0  # of one command: a busy controller takes its time
FORGOTTEN = "FORGOTTEN"
"""State of a job that Slurm knows no more: not one of Slurm's."""
PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REQUEUE_FED")
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
_USUAL = ("None", "(null)", "", "Resources", "Priority", "BeginTime", "JobArrayTaskLimit", "Cleaning")
_FIELD = re.compile(r"(\w+)=(\S*)")
_UNKNOWN = "invalid job id"
_REFUSED = "submission failed"
_NO_TASK = str(0xFFFFFFFE)  # Slurm's NO_VAL: scontrol prints it for an array that was cancelled before a task began


@dataclass(frozen=True, slots=True)
class Job:
    """The state of one task of an array, in Slurm's words. exit_code: CODE:SIGNAL, as Slurm prints it. reason: why it
    waits, as Slurm last noted it."""

    state: str
    exit_code: str = ""
    reason: str = ""

    @property
    def waits_for(self) -> str | None:
        """Return why it is pending, where that is not simply its turn: PartitionTimeLimit may stay so for ever."""
        return self.reason if self.place == "pending" and self.reason not in _USUAL else None

    @property
    def place(self) -> str:
        """Return pending, running or ended."""
        return "pending" if self.state in PENDING else "running" if self.state in RUNNING else "ended"


def options_of(script: str) -> tuple[str, ...]:
    """Return sbatch's options in a batch script, without those that an array has of its own."""
    own = re.findall(r"^#SBATCH (--\S+)$", script, re.MULTILINE)
    return tuple(one for one in own if not one.startswith(("--job-name=", "--output=")))


def submit(argv: Sequence[str], folder: Path, kept: int) -> str | None:
    """Submit as `argv`, arguments of sbatch, says, in `folder`; return the number of the job, None where nobody knows
    whether it was taken. The descriptor `kept` (of a lock) stays open until sbatch has ended, whatever becomes of us.
    ConfigError: Slurm refuses it, in its words."""
    done = _done(["sbatch", "--parsable", *argv], folder, kept)
    number = done.stdout.strip().partition(";")[0]
    if done.returncode == 0 and number.isdigit():
        return number
    said = done.stderr.lower()
    if _REFUSED in said and "timed out" not in said:
        raise ConfigError(refusal(done))
    print(f"warning: sbatch: {done.stderr.strip()}", file=sys.stderr)
    return None


def refusal(done: subprocess.CompletedProcess[str]) -> Problem:
    """Return the problem that sbatch has."""
    said = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no word"]
    hint = "sinfo -o '%P %D %c %G' shows partitions and what their nodes have; nodes, gpus_per_node, cluster.job.*"
    return Problem("cluster", "Slurm does not take the job", "; ".join(said), hint=hint)


def tested(argv: Sequence[str], folder: Path) -> list[Problem]:
    """Return why Slurm would refuse a job with these arguments of sbatch; nothing is submitted."""
    done = _done(["sbatch", "--test-only", *argv], folder)
    return [refusal(done)] if done.returncode else []


def most_tasks() -> int:
    """Return how many tasks an array may have here."""
    match = re.search(r"MaxArraySize\s*=\s*(\d+)", _done(["scontrol", "show", "config"]).stdout)
    return max(1, int(match[1]) - 1) if match else 1000


def states(tasks: Iterable[str]) -> dict[str, Job]:
    """Return what Slurm says of each of `tasks` (JOB_TASK), by one call of sacct, else of scontrol for each array. An
    end that sacct states is asked of scontrol, too: after a node's failure it may be queued again, which sacct learns
    later; so is what a job waits for, which sacct says less exactly. One that is missing in the result is not known for
    now: Slurm does not answer."""
    wanted = sorted({*tasks})
    arrays = sorted({task.partition("_")[0] for task in wanted}, key=int)
    if not arrays:
        return {}
    seen = accounted(
        _done(["sacct", "-n", "-P", "-X", f"-j{','.join(arrays)}", "--format=JobID,State,ExitCode,Reason"]).stdout
    )
    stated = {task: job for task in wanted if (job := _of(seen, task))}
    known = {task: job for task, job in stated.items() if job.place != "ended" and not job.waits_for}
    for array in sorted({task.partition("_")[0] for task in wanted if task not in known}):
        done = _done(["scontrol", "show", "job", "-o", array])
        if done.returncode != 0 and _UNKNOWN not in done.stderr.lower():
            continue  # the controller is away: it may know more later
        shown = controlled(done.stdout)
        ours = [task for task in wanted if task.partition("_")[0] == array and task not in known]
        known |= {task: _of(shown, task) or stated.get(task) or Job(FORGOTTEN) for task in ours}
    return known


def accounted(text: str) -> dict[str, Job]:
    """Return what sacct printed, by JOB_TASK; those of an array that wait together by JOB alone."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 3]
    return {_task(name): Job(state.split(" ")[0].rstrip("+"), code, reason) for name, state, code, reason in rows}


def controlled(text: str) -> dict[str, Job]:
    """Return what scontrol -o printed, as `accounted` does."""
    found: dict[str, Job] = {}
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if "JobState" in fields:
            name = f"{fields.get('ArrayJobId', fields['JobId'])}_{fields.get('ArrayTaskId', '')}"
            found[_task(name)] = Job(fields["JobState"], fields.get("ExitCode", ""), fields.get("Reason", ""))
    return found


def _task(name: str) -> str:
    array, _, task = name.partition("_")
    return name if task.isdigit() and task != _NO_TASK else array


def _of(seen: Mapping[str, Job], task: str) -> Job | None:
    return seen.get(task) or seen.get(task.partition("_")[0])


def named(names: Sequence[str]) -> dict[str, str] | None:
    """Return which of these names jobs of this user have: name → number of the job. None: Slurm does not answer."""
    one = ",".join(names)
    waiting = _done(["squeue", "--me", "--noheader", f"--name={one}", "--format=%F|%j"])
    remembered = _done(["scontrol", "show", "job", "-o"])
    if waiting.returncode or (remembered.returncode and _UNKNOWN not in remembered.stderr.lower()):
        return None
    # without accounting it prints nothing
    kept = _done(["sacct", "-n", "-P", "-X", "--starttime=now-30days", f"--name={one}", "--format=JobID,JobName"])
    lines = [line.strip() for line in (waiting.stdout + kept.stdout).splitlines() if "|" in line]
    rows = [line.split("|", 1) for line in lines]
    for line in remembered.stdout.splitlines():
        fields: dict[str, str] = dict(_FIELD.findall(line))
        rows.append([fields.get("ArrayJobId") or fields.get("JobId", ""), fields.get("JobName", "")])
    return {name: number.partition("_")[0] for number, name in rows if name in names}


def cancel(tasks: Sequence[str]) -> None:
    """Cancel jobs; those that have ended stay as they are."""
    if tasks:
        _done(["scancel", *tasks])


def _done(argv: Sequence[str], folder: Path | None = None, kept: int | None = None) -> subprocess.CompletedProcess[str]:
    """Return what `argv` ended with; where it is missing or hangs, exit code 127."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SBATCH_", "SLURM_"))}
    env = {**clean, **{name: value for name, value in os.environ.items() if name == "SLURM_CONF"}}
    try:
        return subprocess.run(
            argv,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=LIMIT_S,
            pass_fds=() if kept is None else (kept,),
            start_new_session=True,  # a Ctrl-C at the terminal is for us alone
        )
    except (OSError, subprocess.SubprocessError) as error:
        return subprocess.CompletedProcess(argv, 127, "", str(error))
