"""What this machine and this Primus are, as one mark of facts for the record: python3 primus_facts.py [ENVIRONMENT.sh]

Runs in the environment that trains, before it, and needs the standard library and primus_check.py beside it. What
cannot be told is left out.
ENVIRONMENT.sh: shell/environment.sh, where nothing of ours has told the host's facts already.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from primus_check import git, version_of

PACKAGES = ("torch", "transformer_engine", "primus_turbo", "aiter", "triton", "numpy")
LIMIT_S = 20.0


def facts(environment_script: str | None = None) -> dict[str, Any]:
    """Versions, driver, devices, image and Primus commit."""
    found: dict[str, Any] = {f"{name}_version": _version(name) for name in PACKAGES}
    found |= {"rccl_version": _rccl()}
    if path := os.environ.get("PRIMUS_PATH"):
        checkout = Path(path)
        found |= {
            "framework_version": version_of(checkout),
            "primus_commit": git(checkout, "rev-parse", "HEAD") or None,
        }
    found |= {"image": os.environ.get("PRIMUS_IMAGE"), "slurm_job_id": os.environ.get("SLURM_JOB_ID")}
    if os.environ.get("TPRIMAT_REHEARSE"):
        found["stand_in"] = "torch.cuda"
    if environment_script is not None:
        lines = _output("bash", environment_script).splitlines()
        found |= dict(line.split("=", 1) for line in lines if "=" in line)
        found |= {} if found.get("stand_in") else _devices()
    return {name: value for name, value in found.items() if value is not None}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _rccl() -> str | None:
    """From the header or the library's file name: torch, which could be asked, takes ten seconds to import."""
    root = Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
    numbers = re.findall(r"#define NCCL_(?:MAJOR|MINOR|PATCH) (\d+)", _text(root / "include" / "rccl" / "rccl.h"))
    return ".".join(numbers) if len(numbers) == 3 else None


def _devices() -> dict[str, Any]:
    """Name and number of the GPUs as rocm-smi tells them, which is in every ROCm image."""
    text = _output("rocm-smi", "--showproductname", "--json")
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


def _output(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    print(f"[tprimat] facts {json.dumps(facts(*sys.argv[1:2]))}", flush=True)
