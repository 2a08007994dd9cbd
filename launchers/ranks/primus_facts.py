"""Print facts of this machine and this Primus, as a mark for the record: python3 primus_facts.py [ENVIRONMENT.sh]

Runs in the environment that trains, before it, and needs the standard library, bundle_marks.py,
primus_check.py and rank_program.py beside it. What is not known is left out.
ENVIRONMENT.sh: shell/environment.sh, where nothing of ours has reported the host's facts already."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from bundle_marks import host_facts, start_facts
from image_facts import absent, header_version, image_facts
from primus_check import git, output, version_of
from rank_program import installed, mark

PACKAGES = ("torch", "transformer_engine", "primus_turbo", "aiter", "triton", "numpy")


def facts(environment_script: str | None = None) -> dict[str, Any]:
    """Return versions, driver, devices, image and Primus commit."""
    values: dict[str, Any] = {"image": os.environ.get("PRIMUS_IMAGE"), "image_source": "given"}
    if os.environ.get("PRIMUS_ENTRY") not in ("container", "slurm"):  # there this is the host, and no image
        values |= {f"{name}_version": version for name, version in installed(*PACKAGES).items()}
        values["transformer_engine_version"] = values["transformer_engine_version"] or absent("transformer_engine")
        rocm = Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
        values |= {"rccl_version": header_version(rocm, "rccl/rccl.h")}
        values |= {"hipblaslt": header_version(rocm, "hipblaslt/hipblaslt-version.h"), **image_facts()}
    if path := os.environ.get("PRIMUS_PATH"):
        commit = git(Path(path), "rev-parse", "HEAD") or None
        values |= {"framework_version": version_of(Path(path)), "primus_commit": commit}
    if os.environ.get("SLURM_JOB_ID"):
        values |= start_facts()
    if os.environ.get("TPRIMAT_REHEARSE"):
        values["stand_in"] = "torch.cuda"
    if environment_script is not None:
        values |= host_facts(environment_script)
        values |= {} if values.get("stand_in") else _devices()
    return {name: value for name, value in values.items() if value is not None}


def _devices() -> dict[str, Any]:
    """Return name and number of the GPUs as rocm-smi reports them, which is in every ROCm image."""
    text = output("rocm-smi", "--showproductname", "--json")
    try:
        cards = json.loads(text[text.find("{") :])
    except ValueError:
        return {}
    devices = [card for key, card in sorted(cards.items()) if key.startswith("card") and isinstance(card, dict)]
    if not devices:
        return {}
    named = (devices[0].get(key) for key in ("Card Series", "Card series", "Card Model", "Card model"))
    name = next((text for text in named if text and text != "N/A"), None)
    return {"vendor": "amd", "device_name": name, "device_count": len(devices)}


if __name__ == "__main__":
    mark("facts", facts(*sys.argv[1:2]))
