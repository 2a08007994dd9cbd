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

JOB = "job.sh"
_OURS = ("nodes", "ntasks", "ntasks-per-node", "output", "job-name")
_PLAIN = re.compile(r"[\w@%+:.,/=()\[\]{}&|*-]+", re.ASCII)  # what #SBATCH takes without quotes
_TIME = re.compile(r"(\d+-)?\d{1,2}(:\d{2}){0,2}|\d+", re.ASCII)


def problems(e: Experiment) -> Iterator[Problem]:
    """Yield why no batch script can be rendered for `e`."""
    job = e.cluster.job
    if job is None:
        return
    yield from containers.problems(e)
    if e.rehearse:
        yield Problem("rehearse", "a rehearsal needs no cluster", e.rehearse, hint="cluster=local")
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
            'nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            "export MASTER_ADDR=${nodes%%$'\\n'*} # of node 0, whose rank is 0",
            "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000 * 2)) # and the next: two jobs on a node do not meet",
            f'exec {" ".join(step)} bash "$here/{script}"',
            "",
        ]
    )


def _options(e: Experiment) -> dict[str, str | int | bool]:
    """Return sbatch's options: what follows from the experiment, then what the site wants."""
    job = e.cluster.job
    assert job is not None
    devices = {"cpus-per-task": e.gpus_per_node} if e.accelerator is None else {"gpus-per-node": e.gpus_per_node}
    own = {"job-name": e.name, "nodes": e.nodes, "ntasks-per-node": 1, **devices, "output": "slurm-%j.out"}
    site = {"partition": job.partition, "account": job.account, "qos": job.qos, "time": job.time_limit, **job.options}
    return {**own, **{name: value for name, value in site.items() if value is not None and value is not False}}


def _pyxis(e: Experiment) -> Iterator[str]:
    if e.cluster.container != "pyxis" or e.cluster.job is None:
        return
    yield shlex.quote(f"--container-image={containers.enroot_name(e.image or '')}")
    yield '--container-mounts="$here:$here' + "".join(f",{mount}" for mount in e.cluster.job.mounts) + '"'
    yield "--no-container-mount-home"
    yield from map(shlex.quote, e.cluster.container_options)
