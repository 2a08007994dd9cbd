"""A Plan as the same Plan inside a container: every command wrapped, nothing else changed. Pure. Paths are the same
inside and outside, so a plan needs no other text for a container. Values of variables stay in the Plan's environment
and go in by name: a secret is in no command line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from conf.errors import ConfigError, Problem
from conf.resolve import Experiment
from conf.vendors import vendor_of
from conf.vocabulary import read_yaml
from launchers.frameworks import framework_of
from launchers.plan import Plan

RANKS = Path(__file__).parent / "ranks"
TABLE = Path(__file__).parent.parent / "conf" / "tables" / "containers.yaml"

RUNTIMES: tuple[Literal["docker", "podman", "enroot", "pyxis"], ...] = ("docker", "podman", "enroot", "pyxis")

Command = tuple[str, ...]
Mount = tuple[str, bool]
"""A folder, and whether it may be written."""


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


def wrap(plan: Plan, e: Experiment, directory: Path, cache: Path | None = None) -> Plan:
    """Return `plan` in e.image by e.cluster.container; as it is where that is none. directory: where the run happens.
    cache: the user's Hugging Face cache, where there is one. Both absolute. ConfigError: problems(e), or a folder that
    cannot be written as a mount."""
    if e.cluster.container == "none":
        return plan
    folders, variables = framework_of(e.framework.name).in_container(e)
    mounts = [(str(directory), True), (str(RANKS), False)]
    if e.data.path is not None and Path(e.data.path).is_absolute():
        mounts.append((str(Path(e.data.path).parent), e.data.name == "synthetic"))
    mounts += [*((folder, True) for folder in folders), *([(str(cache), False)] if cache else [])]
    what = "a folder with : or , in its name cannot be mounted"
    if refused := [*problems(e), *(Problem("mount", what, path) for path, _ in mounts if {*":,"} & {*path})]:
        raise ConfigError(*refused)
    if cache is not None and "HF_HOME" not in plan.env:
        plan = plan.with_env({"HF_HOME": (str(cache), "the user's Hugging Face cache, mounted")})
    env = {**plan.env, **variables}
    before = _before(e, str(directory), mounts, (*sorted(env), *plan.forward_env))
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


def _before(e: Experiment, directory: str, mounts: list[Mount], variables: Command) -> Command:
    image, runtime = e.image or "", e.cluster.container
    devices = vendor_of(e.platform.vendor).container_arguments.get(runtime, ())
    shared = (*read_yaml(TABLE)["common"][runtime], *devices)
    name = name_of(Path(directory))
    names = [f"--env={name}" for name in variables]
    shown = [f"{path}:{path}{'' if writable else ':ro'}" for path, writable in mounts]
    if runtime in ("docker", "podman"):
        volumes = [f"--volume={mount}" for mount in shown]
        return (runtime, "run", *shared, f"--name={name}", *volumes, *names, f"--workdir={directory}", image)
    if runtime == "enroot":
        how = {True: "x-create=dir,bind,rw", False: "x-create=dir,bind,ro"}
        options = [f"--mount={path}:{path}:none:{how[writable]}" for path, writable in mounts]
        return ("enroot", "start", *shared, *options, *names, image, "env", f"--chdir={directory}")
    options = [f"--container-image={enroot_name(image)}", f"--container-mounts={','.join(shown)}"]
    options += [f"--container-workdir={directory}", f"--container-env={','.join(variables)}"]
    return ("srun", "--nodes=1", f"--gpus-per-node={e.gpus_per_node}", f"--job-name={name}", *shared, *options)
