"""AMD: rocm-smi, ROCm."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conf.errors import Problem
from conf.vendors import IN_USE, Devices, Vendor, is_number, output

KFD = Path("/sys/class/kfd/kfd/proc")
"""A folder for each process that uses a GPU (Linux, drivers/gpu/drm/amd/amdkfd/kfd_process.c)."""
_NAME_KEYS = ("Card Series", "Card series", "Card Model", "Card model")
# As runner/primus-cli-container.sh of AMD-AGI/Primus and its documentation have it.
_DEVICE_FILES = (
    *("--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video"),
    *("--cap-add", "SYS_PTRACE", "--security-opt", "seccomp=unconfined"),
)


class Amd(Vendor):
    name = "amd"
    order = 2
    aliases = ("rocm",)
    tool = "rocm-smi"
    visibility = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")  # HIP honours CUDA's, too
    device_prefixes = ("amd",)
    torch_device = "rocm"
    kubernetes_resource = "amd.com/gpu"
    container_arguments: Mapping[str, tuple[str, ...]] = {
        **dict.fromkeys(("docker", "podman"), _DEVICE_FILES),
        "apptainer": ("--rocm",),
    }

    def devices(self) -> Devices | None:
        """Read one object a card, and the driver's. rocm-smi is in every ROCm image, also where amd-smi is not."""
        text = output(self.tool, "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json")
        try:
            cards: Mapping[str, Any] = json.loads(text[text.find("{") :])  # warnings about idle GPUs come before it
        except ValueError:
            return None
        devices = [card for key, card in sorted(cards.items()) if key.startswith("card") and isinstance(card, Mapping)]
        if not devices:
            return None
        memory = str(devices[0].get("VRAM Total Memory (B)"))
        known = ([str(card[key]) for key in _NAME_KEYS if card.get(key) not in (None, "", "N/A")] for card in devices)
        names = tuple(next(iter(names), "unknown AMD GPU") for names in known)
        driver = cards.get("system", {}).get("Driver version")
        return Devices(self.name, names, int(memory) if memory.isdigit() else None, driver)

    def users(self) -> Iterator[str]:
        """Yield the programs that the kernel driver has open; in a container GPUs whose memory is in use."""
        programs = sorted(path.name for path in KFD.glob("*") if path.name.isdigit())
        yield from (f"process {pid}" for pid in programs)
        for card, cells in () if programs else self._cards("--showmeminfo", "vram"):
            used, total = (str(cells.get(f"VRAM Total {name}Memory (B)")) for name in ("Used ", ""))
            if used.isdigit() and total.isdigit() and int(used) > IN_USE * int(total):
                yield f"{card}: {int(used) >> 20} MiB of its memory are in use"

    def power_limits_w(self) -> tuple[float, ...]:
        cells = (str(cells.get("Max Graphics Package Power (W)")) for _, cells in self._cards("--showmaxpower"))
        return tuple(float(cell) for cell in cells if is_number(cell))

    def _cards(self, *options: str) -> list[tuple[str, Mapping[str, Any]]]:
        text = output(self.tool, *options, "--json")
        try:
            cards: Mapping[str, Any] = json.loads(text[text.find("{") :])
        except ValueError:
            return []
        return [(key, card) for key, card in sorted(cards.items()) if key.startswith("card")]

    def node_problems(self, gpus_per_node: int) -> Iterator[Problem]:
        """Refuse the counts for which RCCL has no fast ring."""
        if gpus_per_node in (5, 6, 7):
            what = "RCCL's all-reduce falls from 357 to 45 GB/s with 5, 6 or 7 GPUs of a node (MI355X): no fair figure"
            yield Problem("gpus_per_node", what, str(gpus_per_node), "1, 2, 4, 8")


VENDOR = Amd()
