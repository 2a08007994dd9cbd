"""NVIDIA: nvidia-smi, CUDA."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from conf.vendors import IN_USE, Devices, Vendor, is_number, output


class Nvidia(Vendor):
    name = "nvidia"
    order = 1
    aliases = ("nvd", "cuda")
    tool = "nvidia-smi"
    visibility = ("CUDA_VISIBLE_DEVICES",)
    device_prefixes = ("nvidia",)
    torch_device = "cuda"
    kubernetes_resource = "nvidia.com/gpu"
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

    def users(self) -> Iterator[str]:
        """Yield programs that compute; in a container, which does not see them, GPUs whose memory is in use."""
        programs = [line.strip() for line in self._query("compute-apps", "pid,process_name,used_memory")]
        yield from (f"process {line}" for line in programs)
        for line in () if programs else self._query("gpu", "index,memory.used,memory.total"):
            index, used, total = (cell.strip() for cell in line.split(","))
            if used.isdigit() and total.isdigit() and int(used) > IN_USE * int(total):
                yield f"GPU {index}: {used} MiB of its memory are in use"

    def power_limits_w(self) -> tuple[float, ...]:
        return tuple(map(float, filter(is_number, (line.strip() for line in self._query("gpu", "power.limit")))))

    def _query(self, what: str, fields: str) -> list[str]:
        count = fields.count(",")
        text = output(self.tool, f"--query-{what}={fields}", "--format=csv,noheader,nounits")
        return [line for line in text.splitlines() if line.strip() and line.count(",") == count]


VENDOR = Nvidia()
