"""The arguments of torchrun and the environment that the machine needs, alike for every stack."""

from __future__ import annotations

from collections.abc import Iterator

from conf import devices
from conf.resolve import Experiment
from launchers.plan import Host


def torchrun(e: Experiment) -> Iterator[str]:
    """Yield torchrun's own arguments, for this node."""
    yield f"--nproc-per-node={e.gpus_per_node}"
    if e.nodes == 1:
        yield "--standalone"  # a free port of its own: two runs on one machine do not meet
        return
    yield f"--nnodes={e.nodes}"
    yield f"--node-rank={e.cluster.node_rank}"
    yield f"--master-addr={e.cluster.master_addr}"
    yield f"--master-port={e.cluster.master_port}"


def machine(e: Experiment, host: Host) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that the ranks of any stack get for the machine's sake, and the reason of each."""
    processes = 1 if e.rehearse == "layout" else e.gpus_per_node
    threads = max(1, host.cpu_count // processes)
    rows = [("OMP_NUM_THREADS", str(threads), f"{host.cpu_count} cores / {processes} processes")]
    if e.accelerator is None and (processes * threads >= host.cpu_count or host.ci):
        rows.append(("OMP_WAIT_POLICY", "PASSIVE", "no core is left over for threads that spin"))
    if e.accelerator is None:
        rows += [(name, "", "a run on the CPU sees no GPU") for name in devices.hidden_by()]
    if e.hardware.vendor is not None and e.layout.tensor_model_parallel_size > 1:
        reason = "TP's communication must be queued before the matmuls it overlaps"
        rows.append(("CUDA_DEVICE_MAX_CONNECTIONS", "1", reason))
    return {name: value for name, value, _ in rows}, {name: reason for name, _, reason in rows}
