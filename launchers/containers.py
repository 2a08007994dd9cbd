"""A Plan as the same Plan inside a container: every command wrapped, nothing else changed. Pure. Paths are the same
inside and outside, so a plan needs no other text for a container. Values of variables stay in the Plan's environment
and go in by name: a secret is in no command line."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

from conf.errors import ConfigError, Problem
from conf.resolve import Experiment
from conf.vendors import vendor_of
from conf.vocabulary import read_yaml
from launchers.frameworks import framework_of
from launchers.leftovers import MARK
from launchers.plan import Plan

RANKS = Path(__file__).parent / "ranks"
TABLE = Path(__file__).parent.parent / "conf" / "tables" / "containers.yaml"

RUNTIMES: tuple[Literal["docker", "podman", "apptainer", "enroot", "pyxis"], ...] = (
    *("docker", "podman"),
    *("apptainer", "enroot", "pyxis"),
)

Command = tuple[str, ...]
Mount = tuple[str, str, bool]
"""A folder, its place in the container, and whether it may be written."""
SCRIPT = "container.sh"
_HERE, _NAME = "@here@", "@name@"  # what only the node knows, until the words are written for its shell
_OF_RUNS = re.compile(r"--(?:name|detach|job-name|container-(?:image|name))|-[dJ].*")
_OF_JOB = (
    *("SLURM_JOB_ID", "SLURM_NNODES", "SLURM_NODEID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID"),
    *("CHECKPOINTS", "DRY_RUN", "PREFLIGHT", "POWER_INTERVAL_S", "PYTHON", "RUN_DIR", "TRAIN_ITERS", "TRAIN_LOG"),
    *("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "NNODES", "GPUS_PER_NODE"),
)
"""Variables that the scripts of a bundle read: inside the container they have the values of the job."""


def problems(e: Experiment) -> Iterator[Problem]:
    """Yield why `e` cannot be started in a container as it requests."""
    runtime, image = e.cluster.container, e.image
    if runtime == "none":
        return
    if image is None:
        yield Problem("image", f"cluster.container={runtime} needs one", "null", hint="see conf/tables/images.yaml")
    elif runtime == "enroot" and "/" in image and not image.endswith(".sqsh"):
        hint = f"enroot import docker://{enroot_name(image)}, then image=/path/to/it.sqsh"
        yield Problem("image", "enroot starts a local image", image, "the path of a .sqsh file, or a container", hint)
    if runtime == "pyxis" and e.nodes > 1 and e.cluster.job is None:
        yield Problem("nodes", "srun would start the same node rank on each node", str(e.nodes), "1")
    yield from _refused_options(e.cluster.container_options)


def _refused_options(options: Command) -> Iterator[Problem]:
    """Yield what of the user's words would start another image, or what no longer ends with the run: it is ended by its
    name."""
    where = "cluster.container_options"
    for before, word in pairwise(("", *options)):
        takes_a_word = before.startswith("-") and "=" not in before
        if word == "--" or not (word.startswith("-") or takes_a_word):
            what, hint = "is no option, and would be taken for the image", "image=, or --OPTION=VALUE in one word"
            yield Problem(where, what, word or "an empty word", hint=hint)
        elif _OF_RUNS.fullmatch(word.partition("=")[0]):
            what = "decides how the run is found again and ended, which is the plan's to say"
            yield Problem(where, what, word, hint="leave it out")


def wrap(plan: Plan, e: Experiment, directory: Path, cache: Path | None = None) -> Plan:
    """Return `plan` in e.image by e.cluster.container; as it is where that is none. Enroot's processes are our own, and
    keep the mark by which those are found that nobody waits for. directory: where the run happens.
    cache: the user's Hugging Face cache, where there is one. Both absolute. ConfigError: problems(e), or a folder that
    cannot be written as a mount."""
    if e.cluster.container == "none":
        return plan
    folders, variables = framework_of(e.framework.name).in_container(e)
    own = [(str(directory), True), (str(RANKS), False), *_corpus(e)]
    own += [*((folder, True) for folder in folders), *([(str(cache), False)] if cache else [])]
    what = "a folder with : or , in its name cannot be mounted"
    if refused := [*problems(e), *(Problem("mount", what, path) for path, _ in own if {*":,"} & {*path})]:
        raise ConfigError(*refused)
    mounts = [(path, path, writable) for path, writable in own]
    if cache is not None and "HF_HOME" not in plan.env:
        plan = plan.with_env({"HF_HOME": (str(cache), "the user's Hugging Face cache, mounted")})
    env = {**plan.env, **variables}
    passed = (*sorted(env), *plan.forward_env, *((MARK,) if e.cluster.container == "enroot" else ()))
    before = _before(e, str(directory), mounts, passed, name_of(directory))
    check = (*before, *plan.check) if plan.check else ()
    setup = tuple((*before, *command) for command in plan.setup)
    container = (e.cluster.container, name_of(directory))
    return replace(plan, env=env, setup=setup, argv=(*before, *plan.argv), check=check, container=container)


def name_of(directory: Path) -> str:
    """Return the name of the container, or of the job step, of the run in `directory`: one at a time has it."""
    return f"tprimat-{hashlib.sha256(str(directory).encode()).hexdigest()[:16]}"


def enroot_name(image: str) -> str:
    """Return nvcr.io/nvidia/nemo:26.02 as Enroot writes it, nvcr.io#nvidia/nemo:26.02; a path stays."""
    registry, slash, rest = image.partition("/")
    is_registry = bool(re.search(r"[.:]|^localhost$", registry)) and not registry.startswith(".")
    return f"{registry}#{rest}" if slash and is_registry else image


def container_sh(e: Experiment, plan: Plan) -> str:
    """Return the script that starts run.sh of a bundle in e.image by e.cluster.container on this node, where nothing
    else starts it there. `problems` yields nothing of `e`."""
    runtime = e.cluster.container
    mounts = [(_HERE, _HERE, True), *((path, path, writable) for path, writable in _corpus(e))]
    mounts += [_mount(text) for text in (e.cluster.job.mounts if e.cluster.job else ())]
    visible = vendor_of(e.accelerator).visibility
    names = {*_OF_JOB, *plan.env, *plan.forward_env, *visible} - {"PYTHONPATH", "OMP_NUM_THREADS"}
    before = [_shell(word) for word in _before(e, _HERE, mounts, tuple(sorted(names)), _NAME)]
    left = [f'{runtime} rm --force "$name" >/dev/null 2>&1 || true # of a job that was killed'] if by_name(e) else []
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# Start run.sh of this bundle in its image by {runtime}, on this node. Variables go in by name.",
            "set -euo pipefail",
            'here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)',
            "name=tprimat-${SLURM_JOB_ID:-$$}-${SLURM_NODEID:-${NODE_RANK:-0}}" if by_name(e) else "",
            *left,
            " \\\n  ".join([f"exec {before[0]} {before[1]}", *before[2:], f"bash {_shell(f'{_HERE}/run.sh')}"]),
            "",
        ]
    ).replace("\n\n", "\n")


def by_name(e: Experiment) -> bool:
    """Return whether what the runtime starts has a name, and may outlive its client."""
    return e.cluster.container in ("docker", "podman")


def on_each_node(e: Experiment) -> bool:
    """Return whether a bundle has a script of its own that starts its container: Pyxis needs none."""
    return e.cluster.container not in ("none", "pyxis")


def _shell(word: str) -> str:
    parts = re.split(f"({_HERE}|{_NAME})", word)
    known = {_HERE: '"$here"', _NAME: '"$name"'}
    return "".join(known.get(part) or shlex.quote(part) for part in parts if part)


def _corpus(e: Experiment) -> Iterator[tuple[str, bool]]:
    corpora = (e.data.path or "").split()[1::2] if e.data.name == "blend" else [e.data.path or ""]
    for folder in dict.fromkeys(str(Path(path).parent) for path in corpora if Path(path).is_absolute()):
        yield folder, not e.data.given
    if e.data.tokenizer:
        yield e.data.tokenizer, False


def _mount(text: str) -> Mount:
    """Return FROM:TO[:ro], or one folder, as a mount."""
    source, _, rest = text.partition(":")
    target, _, how = rest.partition(":")
    return source, target or source, how != "ro"


def oci_name(image: str) -> str:
    """Return an image as Apptainer writes it: docker://nvcr.io/nvidia/nemo:26.02; a path or a URL stays."""
    local = "://" in image or image.startswith((".", "/")) or image.endswith((".sif", ".sqsh"))
    return image if local else f"docker://{image}"


def _before(e: Experiment, directory: str, mounts: list[Mount], variables: Command, name: str) -> Command:
    image, runtime = e.image or "", e.cluster.container
    devices = vendor_of(e.accelerator).container_arguments.get(runtime, ())
    shared = (*read_yaml(TABLE)["common"][runtime], *devices)
    own = e.cluster.container_options
    names = [f"--env={variable}" for variable in variables]
    shown = [f"{source}:{target}{'' if writable else ':ro'}" for source, target, writable in mounts]
    if runtime in ("docker", "podman"):
        volumes = [f"--volume={mount}" for mount in shown]
        return (runtime, "run", *shared, f"--name={name}", *volumes, *names, f"--workdir={directory}", *own, image)
    if runtime == "apptainer":  # it passes the environment on by itself
        binds = [f"--bind={mount}" for mount in shown]
        return (runtime, "exec", *shared, *binds, f"--pwd={directory}", *own, oci_name(image))
    if runtime == "enroot":
        how = {True: "x-create=dir,bind,rw", False: "x-create=dir,bind,ro"}
        options = [f"--mount={source}:{target}:none:{how[writable]}" for source, target, writable in mounts]
        return ("enroot", "start", *shared, *options, *names, *own, image, "env", f"--chdir={directory}")
    options = [f"--container-image={enroot_name(image)}", f"--container-mounts={','.join(shown)}"]
    options += [f"--container-workdir={directory}", f"--container-env={','.join(variables)}", *own]
    return ("srun", "--nodes=1", f"--gpus-per-node={e.gpus_per_node}", f"--job-name={name}", *shared, *options)
