"""Estimates, or logs to be read, as jobs of Slurm, one for each combination of values, by hydra-submitit-launcher.

python sweep.py -m hydra/launcher=submitit_slurm hydra.launcher.partition=cpu model=llama,qwen hardware=h100,mi300x
python sweep.py -m hydra/launcher=submitit_slurm hydra.launcher.partition=cpu +log=/runs/a.log,/runs/b.log"""

from __future__ import annotations

from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from estimate.cli import main as estimate
from parsers.cli import main as parse


@hydra.main(version_base=None, config_path="pkg://conf", config_name="config")
def one(config: DictConfig) -> None:
    """Leave the record of one estimate, or of one log, in the folder of its job."""
    job = HydraConfig.get()
    record = str(Path(job.runtime.output_dir) / "record")
    code = parse([config.log, "-o", record]) if "log" in config else estimate([*job.overrides.task, "-o", record])
    if code:
        raise RuntimeError(f"exit code {code}: {job.overrides.task}")  # by which the sweep fails, too


if __name__ == "__main__":
    one()
