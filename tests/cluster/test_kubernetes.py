"""cluster=kubernetes: a JobSet and a TrainJob by their published schemas, by vendor; the ConfigMap, mounted as a node
does it, trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from conf import load_experiment
from launchers import kubernetes
from parsers import read
from parsers.cli import main as parse_logs
from tensorprimat.launch import main as launch
from tests.drills import MARK, PATIENCE_S, ROOT

SCHEMAS = ROOT / "tests" / "schemas"
VERSIONS = {"JobSet": "v1alpha2", "TrainJob": "v1alpha1", "TrainingRuntime": "v1alpha1"}
BASE = ("cluster=kubernetes", "model=llama31_70b", "nodes=4")
SITE: tuple[str, ...] = (
    "cluster.kubernetes.secret=hugging-face",
    "cluster.kubernetes.runs_claim=runs",
    "cluster.kubernetes.namespace=llm",
)
SITE = (*SITE, "cluster.kubernetes.claims={corpora: /data}", "cluster.kubernetes.resources={rdma/hca: 8}")
CASES = {
    "nvidia": (*BASE, *SITE, "platform=nvidia", "framework=nemo", "image=nvcr.io/nvidia/nemo:25.09"),
    "amd": (*BASE, "platform=amd", "framework=primus", "image=rocm/primus:v26.5"),
}
CASES |= {f"{name}_trainjob": (*case, "cluster.kubernetes.kind=TrainJob") for name, case in CASES.items()}
TINY: tuple[str, ...] = (
    "platform=cpu",
    "framework=megatron",
    "model=llama_tiny",
    "gpus_per_node=1",
    "training.train_iters=3",
)
TINY = (*TINY, "optimizer.lr_warmup_iters=1", "cluster=kubernetes", "image=mine:1", "name=Tiny_run")


def strict(schema: Any) -> Any:
    """Return the schema as a server with strict validation of fields takes it: no field that it does not know."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: strict(one) for name, one in schema.items()}
    known = isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and schema["properties"]
    return {**parts, "additionalProperties": False} if known and "additionalProperties" not in parts else parts


def wrong(document: Mapping[str, Any]) -> list[str]:
    kind = document["kind"]
    text = (SCHEMAS / f"{kind.lower()}_{VERSIONS[kind]}.json").read_text(encoding="utf-8")
    assert document["apiVersion"].endswith(f"/{VERSIONS[kind]}")
    schema = strict(json.loads(text))
    schema["properties"]["metadata"] = {"type": "object"}
    return [one.message for one in jsonschema.Draft202012Validator(schema).iter_errors(document)]


@pytest.mark.parametrize("name", CASES)
def test_golden_job_is_valid(name: str, golden: Callable[[str, str], None]) -> None:
    e = load_experiment(*CASES[name])
    rendered = kubernetes.jobs(e, {"ranks__engine.py": "ranks/engine.py", "run.sh": "run.sh"})
    assert [wrong(one) for one in rendered] == [[]] * len(rendered)
    text = kubernetes.text(*rendered)
    assert [*yaml.safe_load_all(text)] == rendered
    golden(f"kubernetes/{name}.yaml", text)


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(document, dict):
        yield path
        for name, one in document.items():
            yield from places(one, (*path, name))
    elif isinstance(document, list):
        for number, one in enumerate(document):
            yield from places(one, (*path, number))


@pytest.mark.parametrize("name", ["nvidia", "nvidia_trainjob"])
def test_the_schema_refuses_what_is_spelled_otherwise(name: str) -> None:
    """So the check above can fail: an unknown field in each object of it, but for those with free keys."""
    e = load_experiment(*CASES[name])
    free = {"metadata", "labels", "limits", "nodeSelector"}
    rendered = kubernetes.jobs(e, {"run.sh": "run.sh"})
    paths = [(number, *path) for number, one in enumerate(rendered) for path in places(one) if not free & {*path}]
    assert len(paths) > 20
    for number, *path in paths:
        document = part = kubernetes.jobs(e, {"run.sh": "run.sh"})[number]
        for key in path:
            part = part[key]
        part["nonsense"] = 1
        assert wrong(document), path


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_a_trainjob_is_what_its_trainer_takes(vendor: str) -> None:
    """See that it keeps the rules of Trainer's webhook (its pkg/webhooks/trainingruntime_webhook.go)."""
    (jobset,) = kubernetes.jobs(load_experiment(*CASES[vendor]), {"run.sh": "run.sh"})
    runtime, job = kubernetes.jobs(load_experiment(*CASES[f"{vendor}_trainjob"]), {"run.sh": "run.sh"})
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    labels = replicated["template"].pop("metadata")["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"} and replicated["replicas"] == 1
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "node"
    assert runtime["spec"]["template"]["spec"] == jobset["spec"], "Trainer makes the JobSet that we render"
    assert (job["spec"]["runtimeRef"]["kind"], job["spec"]["runtimeRef"]["name"]) == (
        "TrainingRuntime",
        jobset["metadata"]["name"],
    )
    nodes = (job["spec"]["trainer"]["numNodes"], runtime["spec"]["mlPolicy"]["numNodes"])
    assert nodes == (4, 4) and job["metadata"] == runtime["metadata"] == jobset["metadata"]


def test_no_value_of_a_secret_and_the_right_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret_value")
    pods = {}
    for name in ("nvidia", "amd"):
        (rendered,) = kubernetes.jobs(load_experiment(*CASES[name]), {})
        assert "hf_very_secret_value" not in kubernetes.text(rendered)
        pods[name] = rendered["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    assert pods["nvidia"]["resources"]["limits"] == {"nvidia.com/gpu": 8, "rdma/hca": 8}
    assert pods["amd"]["resources"]["limits"] == {"amd.com/gpu": 8}
    reference = {"name": "hugging-face", "key": "HF_TOKEN", "optional": True}
    assert {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}} in pods["nvidia"]["env"]
    assert not any(one["name"] == "HF_TOKEN" for one in pods["amd"]["env"])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("image=null",), "a pod needs one"),
        (("cluster.container=docker",), "Kubernetes starts the image itself"),
        (("cluster.kubernetes.secret=Hugging_Face",), "is no name of Kubernetes"),
        (("cluster.kubernetes.claims={corpora: /runs}",), "must be a path of its own"),
        (("cluster.kubernetes.namespaces=x",), "namespace"),
        (("cluster.kubernetes.kind=PyTorchJob",), "JobSet, TrainJob"),
        (("bundle=null",), "a JobSet is rendered, and not submitted"),
    ],
)
def test_what_cannot_be_rendered(more: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch([*TINY, "bundle=/nowhere/b", *more]) == 2
    shown = capsys.readouterr().err
    assert says in shown and "Traceback" not in shown


def test_a_dry_run_prints_it_and_a_site_has_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("kubernetes:\n  namespace: research\n", encoding="utf-8")
    assert launch([*TINY[:-3], f"cluster={site}", "image=mine:1", "dry_run=true"]) == 0
    shown = capsys.readouterr().out
    assert "kind: JobSet" in shown and "namespace: research" in shown and "not here" not in shown


def mounted(document: Mapping[str, Any], volume: Mapping[str, Any], folder: Path) -> Path:
    """Write a ConfigMap as a kubelet does: links to links to files of a folder with a date, none of them writable."""
    (folder / "..2026").mkdir(parents=True)
    (folder / "..data").symlink_to("..2026")
    for item in volume["configMap"]["items"]:
        path = folder / "..2026" / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document["data"][item["key"]], encoding="utf-8", newline="\n")
        path.chmod(volume["configMap"]["defaultMode"])
        top = folder / item["path"].partition("/")[0]
        if not top.is_symlink():
            top.symlink_to(f"..data/{top.name}")
    return folder


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.long
def test_what_a_pod_gets_trains(tmp_path: Path) -> None:
    assert launch([*TINY, f"framework.python={sys.executable}", f"bundle={tmp_path / 'b'}"]) == 0
    config, jobs = yaml.safe_load_all((tmp_path / "b" / "jobset.yaml").read_text(encoding="utf-8"))
    assert (config["metadata"]["name"], wrong(jobs)) == ("tiny-run", [])
    pod = jobs["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (container,), (volume,) = pod["containers"], [v for v in pod["volumes"] if v["name"] == "bundle"]
    folder = mounted(config, volume, tmp_path / "bundle")
    env = {"NODE_RANK": "0", "POD_NAME": "tiny-run-node-0-0-x7k2p"}
    env |= {one["name"]: one["value"] for one in container["env"] if "value" in one}
    env["RUN_DIR"] = env["RUN_DIR"].replace("$(POD_NAME)", env["POD_NAME"]).replace("/runs", str(tmp_path / "runs"))
    command = [word.replace("/bundle", str(folder)) for word in container["command"]]
    env |= {"PATH": os.environ["PATH"], "HOME": str(tmp_path), MARK: os.environ[MARK]}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert parse_logs([f"{env['RUN_DIR']}/train.log", "-o", str(tmp_path / "record")]) == 0
    record = read(tmp_path / "record")
    assert (record.status, len(record.steps), record.image) == ("completed", 3, "mine:1")
