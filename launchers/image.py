"""The image that a run happens in, and how that is known: from the runtime that starts it, from the environment that
we are in already, or only because somebody said so."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from conf.resolve import Experiment
from conf.vendors import output
from launchers.rank_modules import rank_module

_INSPECTS = ("docker", "podman")
_BLOCK = 1 << 24


def image_of(e: Experiment) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return image, image_source and image_digest for the record of a run that is about to start, and what to note."""
    if e.cluster.container != "none":
        return {"image": e.image, "image_source": "runtime", "image_digest": digest(e)}, ()
    inside = rank_module("image_facts").image_facts()
    named = {name: inside[name] for name in ("image", "image_source") if name in inside}
    if e.image is None or named.get("image") == e.image:
        return named, ()
    if named:
        return named, (f"image: {e.image} was given, and the environment names {named['image']}",)
    why = "given, not verified, so that no gate takes it; cluster.container= starts it and asks its runtime"
    return {"image": e.image, "image_source": "given"}, (f"image: {e.image} is {why}",)


def digest(e: Experiment) -> str | None:
    """Return the digest of the image as its runtime has it now; None: it is not there yet, or the runtime keeps none.
    A file that is started (Enroot, Pyxis) has that of its bytes."""
    image, runtime = e.image or "", e.cluster.container
    if runtime in _INSPECTS:
        return _inspected(output(runtime, "image", "inspect", image), image)
    path = Path(image)
    return _of_file(path, path.stat().st_mtime_ns) if "/" in image and path.is_file() else None


def _inspected(text: str, image: str) -> str | None:
    """Return the digest of `docker image inspect` and `podman image inspect`: the registry's, else the image's own."""
    try:
        known = json.loads(text)[0]
        pulled, own = known.get("RepoDigests") or [], known.get("Id")
        of_it = sorted(each for each in pulled if _repository(each) == _repository(image)) or sorted(pulled)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    if of_it:
        return str(of_it[0].rpartition("@")[2])
    return f"sha256:{own.removeprefix('sha256:')}" if isinstance(own, str) and own else None


def _repository(image: str) -> str:
    """Return an image's name without tag and digest, as docker.io/library/ubuntu and ubuntu are one."""
    name = image.partition("@")[0]
    before, colon, tag = name.rpartition(":")
    return (before if colon and "/" not in tag else name).removeprefix("docker.io/").removeprefix("library/")


@cache
def _of_file(path: Path, changed_ns: int) -> str:
    whole = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            whole.update(block)
    return f"sha256:{whole.hexdigest()}"
