"""cluster=kubernetes: a bundle as a JobSet (sigs.k8s.io/jobset) or as a TrainJob of Kubeflow's Trainer, one pod a node,
as text: nothing is submitted. Pure.

The bundle goes along as a ConfigMap. Rank 0 is on pod 0, whose name the JobSet's own service resolves. Secrets stand
there by name only. A TrainJob names a TrainingRuntime, which has the same JobSet within: Trainer makes it, with the
TrainJob's name. Fields are those of jobset.x-k8s.io/v1alpha2 and trainer.kubeflow.org/v1alpha1."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from conf.errors import Problem
from conf.resolve import Experiment
from conf.schema import Kubernetes
from conf.vendors import vendor_of

KINDS = {"JobSet": "jobset.yaml", "TrainJob": "trainjob.yaml"}
"""The file of a bundle that has it, by what is rendered."""
MOST_BYTES = 2**20  # of a ConfigMap (kubernetes.io/docs/concepts/configuration/configmap)
_BUNDLE, _RUNS = "/bundle", "/runs"
_NODE = "node"  # of the replicated job and of its container: Trainer knows them by this name
_MANAGED = {"app.kubernetes.io/managed-by": "tprimat"}
_TRAINER = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}  # by which Trainer finds a TrainJob's nodes
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_LABEL = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def problems(e: Experiment) -> Iterator[Problem]:
    """Yield why no JobSet can be rendered for `e`."""
    of = e.cluster.kubernetes
    if of is None:
        return
    if e.image is None:
        yield Problem("image", "a pod needs one", "null", hint="see conf/tables/images.yaml")
    if of.kind not in KINDS:
        yield Problem("cluster.kubernetes.kind", "is not rendered", of.kind, ", ".join(KINDS))
    if e.cluster.container != "none":
        hint = "leave it out: image is what the pods run"
        yield Problem("cluster.container", "Kubernetes starts the image itself", e.cluster.container, "none", hint)
    if e.rehearse:
        yield Problem("rehearse", "a rehearsal needs no cluster", e.rehearse, hint="cluster=local")
    names = {"namespace": of.namespace, "service_account": of.service_account, "secret": of.secret}
    names |= {"runs_claim": of.runs_claim, **{f"claims.{claim}": claim for claim in of.claims}}
    for name, value in names.items():
        if value is not None and not _LABEL.fullmatch(value):
            yield Problem(f"cluster.kubernetes.{name}", "is no name of Kubernetes", value, "a-z, 0-9, - and .")
    for claim, path in of.claims.items():
        if not str(path).startswith("/") or str(path) in (_BUNDLE, _RUNS, "/dev/shm"):
            what = "must be a path of its own"
            yield Problem(f"cluster.kubernetes.claims.{claim}", what, str(path), "/data, not /bundle or /runs")


def not_started(e: Experiment) -> Iterator[Problem]:
    """Yield that nothing of ours starts a run there."""
    if e.cluster.kubernetes is not None and e.bundle is None and not e.dry_run:
        what = f"a {e.cluster.kubernetes.kind} is rendered, and not submitted"
        yield Problem("cluster", what, e.cluster.name, hint=f"bundle=DIR, then kubectl create -f DIR/{file_of(e)}")


def file_of(e: Experiment) -> str:
    """Return the name of the file that has the documents."""
    return KINDS[_of(e).kind]


def documents(e: Experiment, texts: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the ConfigMap of a bundle's files and what runs them, of which `problems` yields nothing. ValueError: they
    are too large for a ConfigMap."""
    data = {path.replace("/", "__"): text for path, text in sorted(texts.items())}
    if sum(len(text.encode()) for text in data.values()) > MOST_BYTES:
        raise ValueError(f"the bundle has more than {MOST_BYTES} bytes")
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _about(e), "immutable": True, "data": data}
    return [config, *jobs(e, {path.replace("/", "__"): path for path in sorted(texts)})]


def jobs(e: Experiment, files: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the JobSet, or the TrainingRuntime and the TrainJob. files: key of the ConfigMap → path in the bundle."""
    if _of(e).kind == "JobSet":
        return [_document(e, "jobset.x-k8s.io/v1alpha2", "JobSet", _jobset(e, files, {}))]
    trainer = "trainer.kubeflow.org/v1alpha1"
    template = {"spec": _jobset(e, files, {"metadata": {"labels": _TRAINER}})}
    runtime = {"mlPolicy": {"numNodes": e.nodes}, "template": template}
    job = {
        "runtimeRef": {"apiGroup": trainer.partition("/")[0], "kind": "TrainingRuntime", "name": name_of(e)},
        "trainer": {"numNodes": e.nodes},
    }
    return [_document(e, trainer, "TrainingRuntime", runtime), _document(e, trainer, "TrainJob", job)]


def _document(e: Experiment, version: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": _about(e), "spec": spec}


def _about(e: Experiment) -> dict[str, Any]:
    return {"name": name_of(e), "namespace": _of(e).namespace, "labels": {**_MANAGED}}


def _jobset(e: Experiment, files: Mapping[str, str], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a JobSet specifies. more: of its job's template."""
    of = _of(e)
    job: dict[str, Any] = {
        "parallelism": e.nodes,
        "completions": e.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        **({"activeDeadlineSeconds": of.deadline_s} if of.deadline_s else {}),
        "template": {"spec": _pod(e, files)},
    }
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [{"name": _NODE, "replicas": 1, "template": {**more, "spec": job}}],
    }


def name_of(e: Experiment) -> str:
    """Return the name of all of it: pods add to it, and have 63 characters."""
    return re.sub(r"[^a-z0-9]+", "-", e.name.lower()).strip("-")[:40].strip("-") or "run"


def _of(e: Experiment) -> Kubernetes:
    assert e.cluster.kubernetes is not None
    return e.cluster.kubernetes


def _pod(e: Experiment, files: Mapping[str, str]) -> dict[str, Any]:
    of = _of(e)
    items = [{"key": key, "path": path} for key, path in files.items()]
    volumes: dict[str, tuple[str, dict[str, Any]]] = {
        "bundle": (_BUNDLE, {"configMap": {"name": name_of(e), "defaultMode": 0o555, "items": items}}),
        "runs": (_RUNS, _claimed(of.runs_claim) if of.runs_claim else {"emptyDir": {}}),
        "shared-memory": ("/dev/shm", {"emptyDir": {"medium": "Memory"}}),  # loaders and NCCL need more than 64 MB
    }
    volumes |= {f"claim-{n}": (str(path), _claimed(claim)) for n, (claim, path) in enumerate(of.claims.items())}
    resource = vendor_of(e.accelerator).kubernetes_resource
    devices = {resource: e.gpus_per_node} if resource else {"cpu": e.gpus_per_node}
    container = {
        "name": _NODE,
        "image": e.image,
        "command": ["bash", f"{_BUNDLE}/run.sh"],
        "env": [*_env(e)],
        "resources": {"limits": {**devices, **of.resources}},
        "volumeMounts": [{"name": name, "mountPath": path} for name, (path, _) in volumes.items()],
    }
    return {
        "restartPolicy": "Never",
        **({"serviceAccountName": of.service_account} if of.service_account else {}),
        **(
            {"nodeSelector": {name: str(value) for name, value in of.node_selector.items()}} if of.node_selector else {}
        ),
        "containers": [container],
        "volumes": [{"name": name, **source} for name, (_, source) in volumes.items()],
    }


def _claimed(claim: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": claim}}


def _env(e: Experiment) -> Iterator[dict[str, Any]]:
    """Yield what run.sh takes from where it runs: all else is in the bundle's env.sh."""
    of, name = _of(e), name_of(e)
    yield {"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}
    yield {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    yield {"name": "MASTER_ADDR", "value": f"{name}-{_NODE}-0-0.{name}"}
    yield {"name": "MASTER_PORT", "value": str(e.cluster.master_port)}
    yield {"name": "RUN_DIR", "value": f"{_RUNS}/$(POD_NAME)"}
    if e.framework.python:
        yield {"name": "PYTHON", "value": e.framework.python}
    for secret in e.cluster.forward_env if of.secret else ():
        yield {"name": secret, "valueFrom": {"secretKeyRef": {"name": of.secret, "key": secret, "optional": True}}}


def text(*documents: Mapping[str, Any]) -> str:
    """Return documents as YAML, texts of several lines as they are."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def shown(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, shown)
    how: Any = {"Dumper": Dumper, "sort_keys": False, "allow_unicode": True, "width": 120}
    return "---\n".join(yaml.dump(dict(one), **how) for one in documents)
