"""Containers end with their run: a stub of each client, whose daemon's processes are not ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conf import load_experiment
from launchers import containers, leftovers, runner
from launchers.plan import Plan
from tests.drills import ROOT, started_processes, wait_until

# What docker, podman and srun start belongs to a daemon, and goes on when they are killed.
CLIENT = """#!{python}
import os, pathlib, signal, sys, time
state = pathlib.Path({state!r})
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
state.joinpath("calls").open("a").write(" ".join([name, *words]) + chr(10))
kept = lambda name: state / ("pid-" + name)
if words[0] == "daemon":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kept("mine").write_text(str(os.getpid()))
    while "stay" in words:
        time.sleep(0.1)
elif words[0] in ("run", "--job-name=mine"):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        del os.environ["TPRIMAT_RUN"]  # a daemon's processes do not have it
        os.execv(sys.argv[0], [sys.argv[0], "daemon", *words])
    os.wait()
    while "stay" in words or not kept("mine").exists():
        time.sleep(0.1)
elif name == "squeue":
    print("77.0|another" + chr(10) + "77.1|mine")
else:
    named = "mine" if words[-1] == "77.1" else words[-1]
    if not kept(named).exists():
        sys.exit("Error response from daemon: No such container: " + named)
    if state.joinpath("deaf").exists():
        sys.exit("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")
    os.kill(int(kept(named).read_text()), signal.SIGKILL)
    kept(named).unlink()
"""
# Enroot starts processes of ours, with the variables of the image and those that are named.
ENROOT = """#!{python}
import os, sys
words = sys.argv[2:]
image = next(at for at, word in enumerate(words) if not word.startswith("-"))
named = (word.removeprefix("--env=") for word in words[:image] if word.startswith("--env="))
os.execve("/usr/bin/env", words[image + 1:], {{name: os.environ[name] for name in named if name in os.environ}})
"""
DAEMON = "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(600)"
LAUNCHER = """
import json, pathlib, sys
from launchers import runner
from launchers.plan import Plan
argv, container = json.loads(sys.argv[2])
plan = Plan(argv=tuple(argv), files={}, env={}, forward_env=("TENSORPRIMAT_TESTS",), container=tuple(container))
runner.execute(plan, pathlib.Path(sys.argv[1]), 600, lambda line: None)
"""
STARTS: dict[str, tuple[str, ...]] = {
    "docker": ("docker", "run", "--name=mine"),
    "podman": ("podman", "run", "--name=mine"),
}
STARTS["pyxis"] = ("srun", "--job-name=mine")


@pytest.fixture(autouse=True)
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("docker", "podman", "srun", "squeue", "scancel", "enroot"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        text = ENROOT if name == "enroot" else CLIENT
        program.write_text(text.format(python=sys.executable, state=str(tmp_path)), encoding="utf-8")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=os.pathsep)
    monkeypatch.setattr(runner, "GRACE_S", 1.0)
    monkeypatch.setattr(runner, "FAMILY_S", 60.0)


def run(directory: Path, runtime: str, *words: str, hang_after_s: float = 60.0) -> runner.Ending:
    plan = Plan(argv=(*STARTS[runtime], *words), files={}, env={}, container=(runtime, "mine"))
    return runner.execute(plan, directory, hang_after_s, lambda line: None)


@pytest.mark.drill("the container went on without its run")
@pytest.mark.parametrize("runtime", STARTS)
def test_a_run_that_is_ended_ends_what_its_daemon_runs(tmp_path: Path, runtime: str) -> None:
    ending = run(tmp_path, runtime, "stay", hang_after_s=2.0)
    assert (ending.hung, ending.left) == (True, None)
    wait_until(lambda: not started_processes(), "the daemon's process has ended")


@pytest.mark.drill("a job step of pyxis and a daemon in enroot went on without their launcher")
@pytest.mark.parametrize("runtime", [*STARTS, "enroot"])
def test_a_launcher_that_is_killed_leaves_nothing_in_a_container(tmp_path: Path, runtime: str) -> None:
    plan = Plan(argv=(*STARTS.get(runtime, ()), "stay"), files={}, env={}, container=(runtime, "mine"))
    if runtime == "enroot":
        daemon = (
            sys.executable,
            "-c",
            f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {DAEMON!r}]); "
            f"open('{tmp_path}/pid-mine', 'w'); time.sleep(600)",
        )
        e = load_experiment(
            "model=llama", "platform=nvidia", "framework=megatron_bridge", "image=/i.sqsh", "cluster.container=enroot"
        )
        plan = containers.wrap(Plan(argv=daemon, files={}, env={}, forward_env=("TENSORPRIMAT_TESTS",)), e, tmp_path)
    argv = (sys.executable, "-c", LAUNCHER, str(tmp_path), json.dumps([plan.argv, plan.container]))
    with subprocess.Popen(argv, cwd=ROOT) as launcher:
        wait_until((tmp_path / "pid-mine").exists, "the container runs")
        time.sleep(0.2)  # its first process has begun, and the client waits
        launcher.kill()
    wait_until(lambda: not started_processes(), "all of it has ended", 30.0)


@pytest.mark.drill("the next launch began beside the old container")
def test_a_client_that_is_killed_leaves_nothing_and_a_killed_launchers_container_is_removed_first(
    tmp_path: Path,
) -> None:
    client = os.fork()
    if client == 0:
        os.environ["TPRIMAT_RUN"] = "another"
        os.execv(tmp_path / "bin" / "docker", ["docker", "run", "stay"])
    wait_until((tmp_path / "pid-mine").exists, "the container runs")
    os.kill(client, signal.SIGKILL)
    os.waitpid(client, 0)
    assert started_processes(), "the daemon's process outlives its client"
    assert run(tmp_path, "docker").exit_code == 0
    wait_until(lambda: not started_processes(), "both have ended")


def test_what_may_run_still_is_said(tmp_path: Path) -> None:
    (tmp_path / "deaf").touch()
    left = run(tmp_path, "docker", "stay", hang_after_s=2.0).left
    assert left is not None and "Cannot connect" in left and "docker rm --force mine" in left
    (tmp_path / "deaf").unlink()
    assert leftovers.remove(("docker", "mine")) is None
    wait_until(lambda: not started_processes(), "it has ended")
