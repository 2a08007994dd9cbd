"""A Plan: all that a run needs, as plain data that can be printed, kept, compared and executed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from conf.resolve import Declared, Experiment

Reasoned = Mapping[str, tuple[str, str]]
"""Variable → its value, and the reason that it has it."""

OF_LAUNCHERS = (
    "PET_[A-Za-z0-9_]+|TORCH_?ELASTIC_[A-Za-z0-9_]+|ROLE_[A-Za-z0-9_]+|ACCELERATE_[A-Za-z0-9_]+|PYTHON_EXEC|LOGLEVEL"
    "|USE_LIBUV|TORCH_DISABLE_SHARE_RDZV_TCP_STORE|TORCH_WORKER_SERVER_SOCKET|PYTHON(INSPECT|SAFEPATH)"
    "|BACKEND(_PATH)?|VENV_ACTIVATE|PRIMUS_(PATCHES|EXIT_FAST|SKIP_MAIN_LAUNCH|THIRDPARTY_DIR)"
)
"""Names of variables by which a shell steers torchrun, Primus or a program of ours past a plan, for Python, grep -E and
bash (shell/run_bundle.sh has them, too). PET_NNODES is --nnodes: Kubeflow, torchx and a torchrun around us leave such
(torch/distributed/argparse_util.py, elastic). With PYTHON… a Python does not end as its program does, or finds nothing
that lies beside it. Primus takes another program or checkout by the last (examples/run_pretrain.sh, primus/core)."""
STEERING = (
    f"{OF_LAUNCHERS}|TPRIMAT_[A-Za-z0-9_]+"
    "|(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|NNODES|NODE_RANK|GPUS_PER_NODE|NPROC_PER_NODE"
)
"""All of it, and the place of a rank, which the plan says."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine that will run the plan, as far as a renderer must know it. python: the interpreter to start."""

    python: str
    cpu_count: int
    ci: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that a run needs. files: path (relative to the run directory) → text. env: set on top of the environment, the
    reason of each in env_reasons. forward_env: names whose values are passed on and never read. argv runs in the run
    directory, after the commands of `setup`, the first of which that fails is the end of the run. check: the command
    that finds out in the target environment, without training, whether argv can run. declared: what the framework has
    no setting for, and has instead. container: the runtime and the name of what the commands start in it, which may
    outlive them."""

    setup: tuple[tuple[str, ...], ...] = ()
    argv: tuple[str, ...]
    files: Mapping[str, str]
    env: Mapping[str, str] = field(default_factory=dict)
    env_reasons: Mapping[str, str] = field(default_factory=dict)
    forward_env: tuple[str, ...] = ()
    log: str = "train.log"
    check: tuple[str, ...] = ()
    declared: tuple[Declared, ...] = ()
    container: tuple[str, str] | None = None

    def with_env(self, reasoned: Reasoned) -> Plan:
        """Return it with these variables on top of its own."""
        values, reasons = ({name: pair[n] for name, pair in reasoned.items()} for n in (0, 1))
        return replace(self, env={**self.env, **values}, env_reasons={**self.env_reasons, **reasons})

    def command(self) -> str:
        """Return one line for a shell in a folder with the plan's files, which does what launchers/runner.py does."""
        env = " ".join(f"{name}={_quoted(name, value)}" for name, value in sorted(self.env.items()))
        commands = " && ".join(shlex.join(argv) for argv in (*self.setup, self.argv))
        kept = "".join(f" | grep -vx {name}" for name in self.forward_env if re.fullmatch(STEERING, name))
        without = f"unset $(env | grep -oE '^({STEERING})=' | tr -d ={kept})"
        return f"({without}; {f'export {env} && ' if env else ''}{commands})"


@dataclass(frozen=True, slots=True)
class Scope:
    """How far a rehearsal goes, as its record has it. shrunk: setting → {"asked", "ran"}. not_rehearsed: setting or
    topic → reason. notes: printed before it starts, too. requested: the full experiment, by which the run is named: two
    of them may have the same toy."""

    shrunk: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    not_rehearsed: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    requested: Experiment | None = None


NO_REHEARSAL = Scope()


def _quoted(name: str, value: str) -> str:
    """Quote for a shell; of PYTHONPATH, the plan's folder comes before what is there."""
    return shlex.quote(value) + ("${PYTHONPATH:+:$PYTHONPATH}" if name == "PYTHONPATH" else "")
