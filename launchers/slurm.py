"""cluster=slurm: a bundle as one batch script, which starts it on every node. Pure; the job needs nothing of ours.

The flags are those that Slurm 22.05 and 25 both know (https://slurm.schedmd.com/archive/)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from conf.errors import Problem
from conf.resolve import Experiment
from conf.schema import Job
from launchers import containers
from launchers.frameworks import framework_of

JOB = "job.sh"
_OURS = ("nodes", "ntasks", "ntasks-per-node", "output", "job-name", "signal")
_PLAIN = re.compile(r"[\w@%+:.,/=()\[\]{}&|*-]+", re.ASCII)  # what #SBATCH takes without quotes
_TIME = re.compile(r"(\d+-)?\d{1,2}(:\d{2}){0,2}|\d+", re.ASCII)

# Where the stack saves and goes on. Slurm gives the batch script its notice (--signal), and rank 0 looks for a file: a
# signal to the step would end torchrun.
_BEFORE = (
    "export TPRIMAT_CHECKPOINTS=${TPRIMAT_CHECKPOINTS:-$here/runs/job$SLURM_JOB_ID-checkpoints} # of every start",
    "export TPRIMAT_STOP=$here/runs/.stop-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}",
    'mkdir -p "$here/runs"',
    """trap 'noticed=1; : >"$TPRIMAT_STOP"' USR1""",
)
_AFTER = (
    "step=$! noticed=1",
    "while ((noticed)); do # the notice interrupts it",
    "  noticed=0 code=0",
    '  wait "$step" || code=$?',
    "done",
    "# 85: saved and ended before its time. It goes on as the same job; where Slurm forbids that, submitted again. 137",
    "# is a failure, to be counted: a node's script was killed, and the ranks that Slurm then ended have saved",
    '[[ ! -s $TPRIMAT_STOP ]] || ((code == 137)) || { code=85 && scontrol requeue "$SLURM_JOB_ID"; } || true',
    'exit "$code"',
)


def problems(e: Experiment) -> Iterator[Problem]:
    """Yield why no batch script can be rendered for `e`."""
    job = e.cluster.job
    if job is None:
        return
    yield from containers.problems(e)
    if e.rehearse:
        yield Problem("rehearse", "a rehearsal needs no cluster", e.rehearse, hint="cluster=local")
    if not 0 < job.notice_s < 65536:
        yield Problem("cluster.job.notice_s", "is no notice of Slurm", str(job.notice_s), "1 to 65535 seconds")
    if not _TIME.fullmatch(job.time_limit):
        allowed = "D-HH:MM:SS, HH:MM:SS or minutes"
        yield Problem("cluster.job.time_limit", "is no time of Slurm", job.time_limit, allowed)
    yield from _unquotable(job, _options(e))
    for name in set(_OURS) & {*job.options}:
        where, value = f"cluster.job.options.{name}", str(job.options[name])
        yield Problem(where, "follows from the experiment", value, hint="leave it out")


def _unquotable(job: Job, options: Mapping[str, str | int | bool]) -> Iterator[Problem]:
    """Yield what would need quotes, which a line of #SBATCH does not have."""
    texts = {f"cluster.job, as --{name}": f"{name}={value}" for name, value in options.items()}
    texts |= {f"cluster.job.modules, {name}": name for name in job.modules}
    texts |= {f"cluster.job.mounts, {name}": name for name in job.mounts}
    for where, text in texts.items():
        if not _PLAIN.fullmatch(text):
            yield Problem(where, "cannot be written there", text, "no spaces, no quotes")


def job_sh(e: Experiment) -> str:
    """Return the batch script of `e`, of which `problems` yields nothing. It is submitted in the bundle's folder."""
    job = e.cluster.job
    assert job is not None
    options = [
        f"#SBATCH --{name}" if value is True else f"#SBATCH --{name}={value}" for name, value in _options(e).items()
    ]
    modules = [f"module load {shlex.quote(name)} || fail 'the module {name} does not load'" for name in job.modules]
    goes_on = is_continued(e)
    step = ["srun", "--kill-on-bad-exit=1", '--output="$here/slurm-%j-node%n.out"', *_pyxis(e)]
    script = containers.SCRIPT if containers.on_each_node(e) else "run.sh"  # srun itself starts that of Pyxis
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *sorted(options),
            f"# {e.name}: cd BUNDLE && sbatch {JOB}. Each node keeps its run in runs/jobID.STEP-nodeN.",
            "set -euo pipefail",
            "fail() {",
            "  printf 'engine: slurm: %s\\n' \"$*\" >&2",
            "  exit 2",
            "}",
            "here=$SLURM_SUBMIT_DIR # Slurm runs a copy of this script",
            '[[ -f $here/run.sh ]] || fail "$here is no bundle. Try cd BUNDLE && sbatch ' + f'{JOB}"',
            *modules,
            "unset NODE_RANK RUN_DIR TRAIN_LOG # of another run; each node has its own",
            *(_BEFORE if goes_on else ("unset TPRIMAT_CHECKPOINTS TPRIMAT_STOP",)),
            'nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            "export MASTER_ADDR=${nodes%%$'\\n'*} # of node 0, whose rank is 0",
            "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 6000 * 2)) # and the next: each job's own, below Linux's",
            f'{"" if goes_on else "exec "}{" ".join(step)} bash "$here/{script}"{" &" if goes_on else ""}',
            *(_AFTER if goes_on else ()),
            "",
        ]
    )


def _options(e: Experiment) -> dict[str, str | int | bool]:
    """Return sbatch's options: what follows from the experiment, then what the site wants."""
    job = e.cluster.job
    assert job is not None
    devices: dict[str, str | int | bool] = (
        {"cpus-per-task": e.gpus_per_node} if e.accelerator is None else {"gpus-per-node": e.gpus_per_node}
    )
    if is_continued(e):
        devices |= {
            "signal": f"B:USR1@{job.notice_s}",
            "requeue": "no-requeue" not in job.options,
            "open-mode": "append",
        }
    own = {"job-name": e.name, "nodes": e.nodes, "ntasks-per-node": 1, **devices, "output": "slurm-%j.out"}
    site = {"partition": job.partition, "account": job.account, "qos": job.qos, "time": job.time_limit, **job.options}
    return {name: value for name, value in {**own, **site}.items() if value is not None and value is not False}


def is_continued(e: Experiment) -> bool:
    """Return whether a job of `e` that ends early goes on from its checkpoint. Into a container that each node starts
    no notice gets."""
    return (
        framework_of(e.framework.name).goes_on
        and e.training.save_interval is not None
        and not containers.on_each_node(e)
    )


def _pyxis(e: Experiment) -> Iterator[str]:
    if e.cluster.container != "pyxis" or e.cluster.job is None:
        return
    yield shlex.quote(f"--container-image={containers.enroot_name(e.image or '')}")
    yield '--container-mounts="$here:$here' + "".join(f",{mount}" for mount in e.cluster.job.mounts) + '"'
    yield "--no-container-mount-home"
    yield from map(shlex.quote, e.cluster.container_options)
