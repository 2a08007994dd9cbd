"""Test the configuration that TorchTitan prints: which settings are read, and where it ends."""

from __future__ import annotations

import pytest

from tests.parsers.helpers import parse_text

# TorchTitan 0.2.2 on a CPU, cut to the parts that state something
LOG = """\
[titan] 2026-11-27 13:43:43,309 - root - INFO - Running with configs: {
  "job": {
    "print_config": true
  },
  "optimizer": {
    "name": "AdamW",
    "lr": 0.001,
    "eps": 1e-08,
    "weight_decay": 0.1
  },
  "training": {
    "local_batch_size": 2,
    "global_batch_size": -1,
    "max_norm": 1.0,
    "steps": 8,
    "dataloader": {
      "steps": 99
    }
  },
  "parallelism": {
    "tensor_parallel_degree": 1,
    "pipeline_parallel_degree": 2
  },
  "debug": {
    "seed": 1234
  }
}
  "optimizer": {
    "lr": 0.5
  }
[titan] 2026-11-27 13:43:46,084 - root - INFO - Training starts at step 1
[titan] 2026-11-27 13:43:47,281 - root - INFO - step:  1  loss:  6.22893  grad_norm:  4.7232  memory:  0.00GiB(0.00%)  tps: 155  tflops: 0.00  mfu: 0.00%
[titan] 2026-11-27 13:43:48,078 - root - INFO - step:  2  loss:  6.00440  grad_norm:  3.4478  memory:  0.00GiB(0.00%)  tps: 321  tflops: 0.00  mfu: 0.00%
[titan] 2026-11-27 13:43:54,254 - root - INFO - Training completed
"""  # noqa: E501
STATED = {
    "lr": 0.001,
    "adam_eps": 1e-08,
    "weight_decay": 0.1,
    "clip_grad": 1.0,
    "train_iters": 8,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 2,
    "seed": 1234,
}


@pytest.mark.parametrize("prefix", ["", "[rank0]:"])
def test_the_printed_configuration_is_read(prefix: str) -> None:
    """A size that is derived (-1) is none, the local batch is the Trainer's to say; behind the end nothing counts."""
    (run,) = parse_text("".join(f"{prefix}{line}\n" for line in LOG.splitlines()))
    assert {name: reading.value for name, reading in run.effective.items()} == STATED
    assert len(run.steps) == 2


def test_a_configuration_that_breaks_off_hides_no_step() -> None:
    """Here after its first entry."""
    lines = LOG.splitlines(keepends=True)
    (run,) = parse_text("".join([*lines[:8], *lines[-4:]]))
    assert run.effective["lr"].value == 0.001
    assert len(run.steps) == 2
