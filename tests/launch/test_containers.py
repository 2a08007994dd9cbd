"""A plan inside a container: the text of every runtime, and that no value of a variable is in it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from conf import load_experiment
from launchers import containers, make_plan
from launchers.plan import Host, Plan
from launchers.runner import environment

HOST = Host(python="/here/bin/python", cpu_count=64)
RUN = Path("/runs/llama/one")
IMAGE = "image=nvcr.io/nvidia/nemo:26.02"
CASES = {
    "docker": ("platform=nvidia", "framework=megatron_bridge", IMAGE),
    "podman": ("platform=nvidia", "framework=nemo", IMAGE),
    "enroot": ("platform=nvidia", "framework=megatron_bridge", "image=/images/nemo.sqsh"),
    "apptainer": ("platform=amd", "framework=megatron", "image=rocm/primus:v26.2"),
    "pyxis": ("platform=nvidia", "framework=megatron_bridge", IMAGE),
    "docker_amd": ("platform=amd", "framework=megatron", "image=rocm/primus:v26.2"),
    "docker_own_corpus": ("platform=nvidia", "framework=megatron_bridge", IMAGE, "data=/corpora/web/part"),
}


def wrapped(runtime: str, *overrides: str, cache: Path | None = Path("/home/me/.cache/huggingface")) -> Plan:
    e = load_experiment("model=llama", f"cluster.container={runtime}", *overrides)
    return containers.wrap(make_plan(e, HOST), e, RUN, cache)


@pytest.mark.parametrize("name", CASES)
def test_golden_command(name: str, golden: Callable[[str, str], None]) -> None:
    plan = wrapped(name.partition("_")[0], *CASES[name])
    stated = [("setup", *command) for command in plan.setup] + [("run", *plan.argv)] + [("check", *plan.check)]
    lines = "\n".join("\n    ".join(map(shlex.quote, command)) for command in stated)
    golden(f"containers/{name}.txt", lines.replace(str(containers.RANKS), "RANKS") + "\n")


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (("img2",), "would be taken for the image"),
        (("--", "img2"), "would be taken for the image"),
        (("--privileged=true", "img2"), "would be taken for the image"),
        (("-v", "/a:/b", "img2"), "would be taken for the image"),
        (("--name=other",), "found again and ended"),
        (("--name", "other"), "found again and ended"),
        (("-d",), "found again and ended"),
        (("--device", "/dev/infiniband", "--privileged", "-v", "/a:/b"), ""),
    ],
)
def test_options_that_hide_the_image_or_the_run_are_refused(options: tuple[str, ...], refused: str) -> None:
    own = f"cluster.container_options={json.dumps(options)}"
    e = load_experiment("model=llama", "cluster.container=docker", *CASES["docker"], own)
    problems = [str(problem) for problem in containers.problems(e)]
    assert (refused in problems[0]) if refused else problems == []


def test_without_a_container_nothing_changes() -> None:
    e = load_experiment("model=llama", "platform=nvidia", "framework=megatron_bridge", IMAGE)
    plan = make_plan(e, HOST)
    assert containers.wrap(plan, e, RUN) is plan
    assert plan.argv[0] == HOST.python


@pytest.mark.parametrize("name", CASES)
def test_variables_go_in_by_name_and_their_values_by_the_environment(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret_value")
    plan = wrapped(name.partition("_")[0], *CASES[name])
    assert "hf_very_secret_value" not in repr(plan)
    if name != "apptainer":  # which passes all on
        assert "HF_TOKEN" in repr(plan.argv)
        for variable in plan.env:
            assert any(variable in part for part in plan.argv), variable
    assert environment(plan, os.environ)["OMP_NUM_THREADS"] == plan.env["OMP_NUM_THREADS"]


def test_a_registry_as_enroot_writes_it() -> None:
    registries = {
        "nvcr.io/nvidia/nemo:26.02": "nvcr.io#nvidia/nemo:26.02",
        "localhost:5000/nemo": "localhost:5000#nemo",
    }
    plain = {name: name for name in ("nvidia/cuda:12", "ubuntu", "/images/nemo.sqsh", "./nemo.sqsh")}
    for image, name in (registries | plain).items():
        assert containers.enroot_name(image) == name


def test_the_wrapped_command_reaches_the_runtime_as_it_is(tmp_path: Path) -> None:
    """A docker that prints what it is given: the plan's complete command comes last, the variables are there."""
    fake = tmp_path / "docker"
    fake.write_text('#!/bin/sh\nfor a in "$@"; do echo "$a"; done\necho "OMP=$OMP_NUM_THREADS"\n', encoding="utf-8")
    fake.chmod(0o755)
    plan = wrapped("docker", *CASES["docker"])
    e = load_experiment("model=llama", "cluster.container=docker", *CASES["docker"])
    inner = make_plan(e, HOST).argv
    env = {**environment(plan, os.environ), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    out = subprocess.run(plan.argv, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[-1] == f"OMP={plan.env['OMP_NUM_THREADS']}"
    assert tuple(out[-1 - len(inner) : -1]) == inner
    assert inner[0] == "python"


def test_a_dry_run_shows_how_each_runtime_would_start_the_image(capsys: pytest.CaptureFixture[str]) -> None:
    from tensorprimat.launch import main

    assert main(["platform=nvidia", "model=llama", "framework=megatron_bridge", IMAGE, "dry_run=true", "--files"]) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = {line.split()[1]: line for line in lines if line.startswith("or ")}
    assert set(starts) == {"docker", "podman", "apptainer", "pyxis"}, "enroot wants a local image"
    assert "docker run --rm" in starts["docker"] and "srun --nodes=1" in starts["pyxis"]
