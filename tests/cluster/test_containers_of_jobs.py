"""Containers that a bundle starts on each node: the script of every runtime, and podman for real, here and in a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from conf import load_experiment
from launchers import containers, make_plan, slurm
from launchers.plan import Host
from parsers import read
from tensorprimat.launch import main as launch
from tests import podman
from tests.cluster.jobs import ON_TWO_NODES, TINY
from tests.cluster.test_slurm import recorded, submitted
from tests.drills import PATIENCE_S

HOST = Host(python="/here/bin/python", cpu_count=64)
SITE: tuple[str, ...] = (
    "cluster=slurm",
    "cluster.job.mounts=['/scratch:/scratch', '/data:/data:ro']",
    "nodes=2",
    "model=llama",
)
SITE = (*SITE, "layout=data_parallel", "cluster.network={NCCL_SOCKET_IFNAME: ib0}")
NVIDIA = (*SITE, "platform=nvidia", "framework=megatron_bridge", "image=nvcr.io/nvidia/nemo:26.02")
CASES = {
    "docker": (*NVIDIA, "cluster.container_options=[--device, /dev/infiniband]"),
    "podman": (*SITE, "platform=amd", "framework=megatron", "image=rocm/primus:v26.2", "data=/corpora/web/part"),
    "apptainer": NVIDIA,
    "enroot": (*NVIDIA, "image=/images/nemo.sqsh"),
}


@pytest.mark.parametrize("name", CASES)
def test_golden_script(name: str, golden: Callable[[str, str], None]) -> None:
    e = load_experiment(*CASES[name], f"cluster.container={name}")
    assert not [*slurm.problems(e)]
    assert 'bash "$here/container.sh"' in slurm.job_sh(e)
    text = containers.container_sh(e, make_plan(e, HOST))
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    golden(f"slurm/container_{name}.sh", text)


def test_network_variables_of_a_site_reach_the_ranks_under_those_of_the_user() -> None:
    plan = make_plan(load_experiment(*NVIDIA, "environment.NCCL_SOCKET_IFNAME=eth1"), HOST)
    assert plan.env["NCCL_SOCKET_IFNAME"] == "eth1"
    plan = make_plan(load_experiment(*NVIDIA, "cluster.network.NCCL_IB_HCA=mlx5"), HOST)
    assert (plan.env["NCCL_SOCKET_IFNAME"], plan.env["NCCL_IB_HCA"]) == ("ib0", "mlx5")
    assert plan.env_reasons["NCCL_IB_HCA"] == "of this network (cluster.network)"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("cluster.network={API_TOKEN: abc}", "looks like a secret"),
        ("cluster.network={MASTER_PORT: 1}", "cluster.network.MASTER_PORT"),
        ("cluster.network=ib0", "cluster.network"),
        ("cluster.container=singularity", "cluster.container"),
        ("cluster.container=enroot", ".sqsh"),
    ],
)
def test_what_a_site_file_may_not_say(override: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch([*NVIDIA, override, "bundle=/nowhere/b"]) == 2
    shown = capsys.readouterr().err
    assert says in shown and "abc" not in shown and "Traceback" not in shown


@pytest.fixture(scope="module")
def storage() -> Iterator[Mapping[str, str]]:
    yield from podman.podman()


def in_podman(where: str) -> tuple[str, ...]:
    volumes = [f"--volume={mount}" for mount in podman.mounts()] if where == "here" else []
    of_job = () if where == "here" else (f"cluster.job.mounts={json.dumps(podman.mounts())}",)
    options = f"cluster.container_options={json.dumps([*podman.OPTIONS, *volumes])}"
    return ("cluster.container=podman", f"image={podman.IMAGE}", options, *of_job)


@pytest.mark.slurm
def test_podman_runs_the_plan_and_the_record_has_its_digest(
    storage: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in storage.items():
        monkeypatch.setenv(name, value)
    python = f"framework.python={sys.executable}"
    few = ("gpus_per_node=2", f"runs_dir={tmp_path}", "name=a")
    assert launch([*TINY, *few, *in_podman("here"), python]) == 0
    (path,) = (path for path in (tmp_path / "a").iterdir() if path.is_dir())
    record = read(path)
    assert (record.status, len(record.steps), record.image_source) == ("completed", 4, "runtime")
    assert record.image_digest is not None and record.image_digest.startswith("sha256:")
    listed = subprocess.run(
        ["podman", "ps", "-aq"], env={**os.environ}, capture_output=True, text=True, check=True
    ).stdout
    assert listed == "", "no container is left"


@pytest.mark.slurm
def test_podman_starts_a_bundle_on_each_node_of_a_job(
    site: Mapping[str, str], storage: Mapping[str, str], tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    assert launch([*ON_TWO_NODES, *in_podman("job"), f"bundle={bundle}"]) == 0
    env = {**site, **storage, "PYTHON": sys.executable, "HF_TOKEN": "hf_not_to_be_seen"}
    assert submitted(env, bundle) == "COMPLETED", [p.read_text() for p in bundle.glob("slurm-*")]
    runs = sorted((bundle / "runs").iterdir())
    assert [run.name.partition("-")[2] for run in runs] == ["node0", "node1"]
    record = recorded(runs[1] / "train.log", tmp_path / "record")
    assert (record.status, len(record.steps), record.requested["world_size"]) == ("completed", 4, 4)
    assert record.environment["container"] == "podman"
    everything = b"".join(path.read_bytes() for path in bundle.rglob("*") if path.is_file())
    assert b"hf_not_to_be_seen" not in everything
    done = subprocess.run(
        ["podman", "ps", "-aq"], env=env, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout == ""
