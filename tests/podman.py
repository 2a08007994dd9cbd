"""An image of this machine's own files, in a storage of its own: podman's registry is not reachable, nor needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.drills import ROOT

IMAGE = "localhost/tprimat-test:1"
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
_LIMITS = ("nofile=1024:1024", "nproc=1024:1024", "memlock=65536:65536", "stack=8388608:8388608")
OPTIONS = tuple(word for limit in _LIMITS for word in ("--ulimit", limit))
"""Where raising a limit is not allowed: the last of several counts."""


def mounts() -> list[str]:
    """Return the folders that hold this machine's programs, our Python, its packages and our code."""
    folders = {"/usr", "/etc", sys.prefix, sys.base_prefix, str(ROOT), str(Path(sys.executable).resolve().parents[1])}
    return sorted(f"{folder}:{folder}:ro" for folder in folders)


def podman() -> Iterator[Mapping[str, str]]:
    """Yield the variables under which podman has the image. Skips the test where podman cannot start it.

    Its folder's path is short: beneath one as long as pytest's, each `podman run` waits 20 s before it ends."""
    if not shutil.which("podman"):
        pytest.skip("podman is not installed: apt-get install podman runc catatonit")
    with tempfile.TemporaryDirectory(prefix="podman-", ignore_cleanup_errors=True) as folder:
        yield _with_image(Path(folder))


def _with_image(folder: Path) -> Mapping[str, str]:
    runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""
    limits = ", ".join(f'"{limit}"' for limit in _LIMITS)
    engine = f'[engine]\ncgroup_manager = "cgroupfs"\n{runtime}'
    texts = {
        "containers.conf": f"[containers]\ndefault_ulimits = [{limits}]\n{engine}",
        "storage.conf": f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n',
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    env = {"CONTAINERS_CONF": str(folder / "containers.conf"), "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf")}
    with tarfile.open(folder / "image.tar", "w") as archive:
        for name, target in _LINKS.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        for name in ("usr", "etc", "tmp", "dev", "proc", "sys"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o777
            archive.addfile(entry)
    everything = {**os.environ, **env}
    trial = ["podman", "run", "--rm", "--network=host", "--volume=/usr:/usr:ro", *OPTIONS, IMAGE, "/usr/bin/true"]
    for argv in (["podman", "import", str(folder / "image.tar"), IMAGE], trial):
        done = subprocess.run(argv, env=everything, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"podman starts nothing here: {done.stderr.strip().splitlines()[-1:]}")
    return env
