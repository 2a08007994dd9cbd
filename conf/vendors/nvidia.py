"""NVIDIA: nvidia-smi, CUDA."""

from __future__ import annotations

from collections.abc import Mapping

from conf.vendors import Devices, Vendor, output


class Nvidia(Vendor):
    name = "nvidia"
    order = 1
    aliases = ("nvd", "cuda")
    tool = "nvidia-smi"
    visibility = ("CUDA_VISIBLE_DEVICES",)
    device_prefixes = ("nvidia",)
    torch_device = "cuda"
    container_arguments: Mapping[str, tuple[str, ...]] = {  # enroot's own hook finds NVIDIA's GPUs
        "docker": ("--gpus", "all"),
        "podman": ("--device", "nvidia.com/gpu=all"),
        "apptainer": ("--nv",),
    }

    def devices(self) -> Devices | None:
        """Read one line a GPU: name, memory in MiB, driver."""
        query = "--query-gpu=name,memory.total,driver_version"
        text = output(self.tool, query, "--format=csv,noheader,nounits")
        rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.count(",") == 2]
        if not rows:
            return None
        memory = int(rows[0][1]) * 2**20 if rows[0][1].isdigit() else None
        return Devices(self.name, tuple(row[0] for row in rows), memory, rows[0][2])


VENDOR = Nvidia()
