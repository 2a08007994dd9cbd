"""Report the image that this process runs in, and the versions of libraries that torch does not state.

Standard library only, and beside rank_program.py, which every program of ours prints its facts by. What the environment
inside the container does not say is left out: never guessed from a request."""

from __future__ import annotations

import ctypes
import os
import re
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

# Set inside by the runtime: the image as it was requested. Sources: Apptainer's user guide, Appendix; Shifter's manual;
# Slurm's spank(7), which hands srun's --container-image to Pyxis by such a variable.
NAMED_BY = (
    *("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "SHIFTER_IMAGEREQUEST"),
    "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image",
)
PODMAN = Path("/run/.containerenv")  # empty but with --privileged: podman-run(1)
# Set by the images themselves: which build it is, and what is in it.
VERSIONS = (
    *("NVIDIA_BUILD_ID", "NVIDIA_PYTORCH_VERSION", "NEMO_VERSION", "PYTORCH_VERSION", "TRANSFORMER_ENGINE_VERSION"),
    *("CUDA_VERSION", "CUBLAS_VERSION", "NV_LIBCUBLAS_VERSION", "CUDNN_VERSION", "NCCL_VERSION"),
)
_MAPS = Path("/proc/self/maps")
_LONGEST = 500


def image_facts() -> dict[str, Any]:
    """Return the image that the environment names, and what the image says of itself."""
    text = PODMAN.read_text(encoding="utf-8", errors="replace")[:10_000] if PODMAN.is_file() else ""
    podman = dict(re.findall(r'^(image|imageid)="([^"\n]{1,500})"$', text, re.MULTILINE))
    name = podman.get("image") or next(filter(None, map(os.environ.get, NAMED_BY)), None)
    named = {"image": name[:_LONGEST], "image_source": "environment"} if name else {}
    built = {"image_id": podman["imageid"]} if "imageid" in podman else {}
    return {**named, **built, **{name: os.environ[name][:_LONGEST] for name in VERSIONS if os.environ.get(name)}}


def library_facts() -> dict[str, Any]:
    """Return cuBLAS' version, or hipBLASLt's, of the library that this process has loaded; None: none, or unknown."""
    cublas, hipblaslt = _loaded("cublas"), _loaded("hipblaslt")
    return {
        "cublas": _cublas(cublas) if cublas else None,
        "hipblaslt": header_version(hipblaslt.parents[1], "hipblaslt/hipblaslt-version.h") if hipblaslt else None,
    }


def header_version(root: Path, header: str) -> str | None:
    """Return the version that a header in `root`/include defines; None where it does not."""
    path = root / "include" / header
    text = path.read_text(encoding="utf-8", errors="replace")[:100_000] if path.is_file() else ""
    found = dict(re.findall(r"^#define \w{1,40}_(MAJOR|MINOR|PATCH|TWEAK) {1,40}(\w{1,40})", text, re.MULTILINE))
    return ".".join(found.values()) if {"MAJOR", "MINOR", "PATCH"} <= found.keys() else None


def absent(module: str) -> str | None:
    """Return "not installed" where Python would not find the module; None where it would."""
    try:
        return None if PathFinder.find_spec(module) else "not installed"  # a rehearsal's finder would import torch
    except (ImportError, ValueError):
        return None


def _loaded(library: str) -> Path | None:
    """Return the file from which this process has loaded a library."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    files = (line.partition("/") for line in lines if f"/lib{library}.so" in line)
    return next((Path(f"/{path}").resolve() for _, _, path in files), None)


def _cublas(path: Path) -> str | None:
    """Return what the library says of itself: cublasGetProperty needs neither a handle nor a device."""
    numbers = [ctypes.c_int(-1) for _ in range(3)]
    try:
        ask = ctypes.CDLL(str(path)).cublasGetProperty
        fine = [ask(kind, ctypes.byref(number)) == 0 for kind, number in enumerate(numbers)]
    except (OSError, AttributeError):
        return None
    return ".".join(str(number.value) for number in numbers) if all(fine) else None
