"""A ROCm box that is none: bash, a Primus tree of stubs that prints Primus' dialect, and AMD's tools on PATH.

The stub prints the argument dump from the YAML that it is given, so what a bundle asks for is what is read back."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from conf import load_experiment
from launchers.frameworks import primus
from tests.drills import MARK, PATIENCE_S, wait_until

AMD_SMI = r"""#!/usr/bin/env bash
[[ $1 == metric ]] || exit 1
printf 'gpu,socket_power,gfx_voltage,total_vram,used_vram,total_energy_consumption\r\n'
for gpu in 0 1 2 3 4 5 6 7; do printf '%d,700,N/A,196592,90000,8123.5\r\n' "$gpu"; done
"""

ROCM_SMI = r"""#!/usr/bin/env bash
[[ $* == *showproductname* ]] || exit 1
printf '{"card0": {"Card Series": "AMD Instinct MI300X OAM"}, "card1": {"Card Series": "AMD Instinct MI300X OAM"}}\n'
"""

FILES = {
    "Primus/examples/run_pretrain.sh": Path(__file__).with_name("fake_primus.sh").read_text(encoding="utf-8"),
    "Primus/primus-cli": '#!/usr/bin/env bash\nprintf "%s\\n" "$@"\nprintf -- "-- environment\\n"\nenv | sort\n',
    "bin/amd-smi": AMD_SMI,
    "bin/rocm-smi": ROCM_SMI,
}


@dataclass(frozen=True)
class Box:
    """The box at `root`."""

    root: Path

    @property
    def checkout(self) -> Path:
        return self.root / "Primus"

    def environment(self, **variables: str) -> dict[str, str]:
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        mark = {MARK: os.environ[MARK]}
        return {"PATH": path, "HOME": str(self.root), "PRIMUS_PATH": str(self.checkout), **mark, **variables}

    def start(self, bundle: Path, **variables: str) -> subprocess.Popen[str]:
        """bash run.sh, from somewhere else."""
        command, env = ["bash", str(bundle / "run.sh")], self.environment(**variables)
        return subprocess.Popen(
            command,
            cwd=self.root,
            env=env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, bundle: Path, **variables: str) -> tuple[int, str]:
        process = self.start(bundle, **variables)
        out, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out


def checkout(root: Path, branch: str | None = None) -> Path:
    """Return a tree of a few files that Primus has, with the keys that our YAML writes."""
    e = load_experiment("platform=amd", "framework=primus", "model=llama", "framework.release=v26.5")
    keys = dict.fromkeys({**primus.overrides(e), **primus.overrides(replace(e, rehearse="train"))})
    files = {
        "primus/cli/main.py": "",
        "primus/configs/modules/megatron/pre_trainer.yaml": "extends: [base.yaml]\n",
        "primus/configs/modules/megatron/base.yaml": yaml.safe_dump(keys | {"does_nothing": 1}),
        "primus/configs/models/megatron/llama3.1_8B.yaml": "",
        "primus/train.py": "\n".join(f"args.{key}" for key in keys),
        "third_party/Megatron-LM/megatron/training/arguments.py": "group.add_argument('--swiglu-limit')",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    if branch:
        git = ("git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@t")
        subprocess.run([*git, "init", "-q", "-b", branch], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    return root


def box(root: Path) -> Box:
    checkout(root / "Primus", "release/v26.5")
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    if "TEST_BASH" in os.environ:  # an older one, for everything on the box
        (root / "bin" / "bash").symlink_to(os.environ["TEST_BASH"])
    return Box(root)


def the_run(bundle: Path) -> Path:
    """Return the only run of a bundle."""
    (run,) = (bundle / "runs").iterdir()
    return run


def wait_for(path: Path, text: str) -> None:
    """Wait until the file holds the text."""
    wait_until(
        lambda: path.exists() and text in path.read_text(encoding="utf-8", errors="replace"), f"{text} in {path}"
    )


def terminate(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    process.send_signal(number)
    out, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out
