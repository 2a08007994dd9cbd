"""Start the ranks of this node by torchrun, within the run's directory and, on one machine, within that machine.

    python start_ranks.py --standalone --nproc-per-node N PROGRAM …

The arguments are torchrun's. Its folder of logs and errors is a hidden one of PET_LOG_DIR, or of the current folder,
removed when it ends: torchrun leaves one in /tmp for each start. With --standalone, or --nnodes 1 as Primus has it, its
store listens on the loopback: torch's listens on every interface, and obeys whoever connects."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch.distributed as dist
from rank_program import die_with_parent
from torch.distributed import run
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, static_tcp_rendezvous

LOOPBACK = "127.0.0.1"


class LocalStore(dist.TCPStore):
    """A store that listens, where it is the one that does, on the loopback alone."""

    def __init__(self, host_name: str, port: int, *places: Any, **options: Any) -> None:
        options |= dict(zip(("world_size", "is_master", "timeout"), places, strict=False))
        if options.get("is_master"):
            listener = socket.create_server((LOOPBACK, port))
            port = listener.getsockname()[1]
            options |= {"master_listen_fd": listener.detach()}
        super().__init__(LOOPBACK, port, **options)


def main(arguments: list[str]) -> None:
    """Run torchrun to its end; its exit code is that of this process."""
    die_with_parent(signal.SIGTERM)  # by which torchrun ends its ranks
    if "--standalone" in arguments or ("--nnodes", "1") in pairwise(arguments):
        dist.TCPStore = c10d_rendezvous_backend.TCPStore = static_tcp_rendezvous.TCPStore = LocalStore
        arguments = [f"--local-addr={LOOPBACK}", *arguments]
    logs = Path(os.environ.get("PET_LOG_DIR", Path.cwd()))
    logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".torchrun-", dir=logs) as folder:
        run.main([f"--log-dir={folder}", *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
