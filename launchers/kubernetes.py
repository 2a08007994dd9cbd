"""cluster=kubernetes: a bundle as a JobSet (sigs.k8s.io/jobset), one pod a node, as text: nothing is submitted. Pure.

The bundle goes along as a ConfigMap. Rank 0 is on pod 0, whose name the JobSet's own service resolves. Secrets stand
there by name only. JobSet's fields are those of its v1alpha2, on which Kubeflow's TrainJob is built, too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from conf.errors import Problem
from conf.resolve import Experiment
from conf.schema import Kubernetes
from conf.vendors import vendor_of

FILE = "jobset.yaml"
MOST_BYTES = 2**20  # of a ConfigMap (kubernetes.io/docs/concepts/configuration/configmap)
_BUNDLE, _RUNS = "/bundle", "/runs"
_NODE = "node"
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_LABEL = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def problems(e: Experiment) -> Iterator[Problem]:
    """Yield why no JobSet can be rendered for `e`."""
    of = e.cluster.kubernetes
    if of is None:
        return
    if e.image is None:
        yield Problem("image", "a pod needs one", "null", hint="see conf/tables/images.yaml")
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
        what = "a JobSet is rendered, and not submitted"
        yield Problem("cluster", what, e.cluster.name, hint=f"bundle=DIR, then kubectl create -f DIR/{FILE}")


def documents(e: Experiment, texts: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the ConfigMap of a bundle's files and the JobSet that runs them, of which `problems` yields nothing.
    ValueError: they are too large for a ConfigMap."""
    data = {path.replace("/", "__"): text for path, text in sorted(texts.items())}
    if sum(len(text.encode()) for text in data.values()) > MOST_BYTES:
        raise ValueError(f"the bundle has more than {MOST_BYTES} bytes")
    about = {"name": name_of(e), "namespace": _of(e).namespace, "labels": {"app.kubernetes.io/managed-by": "tprimat"}}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "immutable": True, "data": data}
    return config, jobset(e, {path.replace("/", "__"): path for path in sorted(texts)})


def jobset(e: Experiment, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the JobSet. files: key of the ConfigMap → path in the bundle."""
    of, name = _of(e), name_of(e)
    about = {"name": name, "namespace": of.namespace, "labels": {"app.kubernetes.io/managed-by": "tprimat"}}
    job: dict[str, Any] = {
        "parallelism": e.nodes,
        "completions": e.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        **({"activeDeadlineSeconds": of.deadline_s} if of.deadline_s else {}),
        "template": {"spec": _pod(e, files)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": about,
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": _NODE, "replicas": 1, "template": {"spec": job}}],
        },
    }


def name_of(e: Experiment) -> str:
    """Return the name of the JobSet: pods add to it, and have 63 characters."""
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
        "name": "train",
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
