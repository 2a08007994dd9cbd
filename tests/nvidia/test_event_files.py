"""Event files as torch and TensorBoard write them, read by TensorBoard's own package and by ours."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path

import pytest

from parsers.exports import _events

pytestmark = pytest.mark.nvidia
PROGRAM = """import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter(sys.argv[1])
writer.add_text("args", "--lr 0.0003")
for step in range(300):
    for tag, value in (("lr", 3e-4 / (step + 1)), ("loss/näher", 11 - step / 7), ("tokens", 2.0**24 * step + 1)):
        writer.add_scalar(tag, value, step * 10**9, new_style=step % 2 == 0)
for value in (float("nan"), float("inf"), -0.0):
    writer.add_scalar("odd", value, 1)
writer.close()
read = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
read.Reload()
of = read.Tags()
rows = [(e.step, tag, e.value) for tag in of["scalars"] for e in read.Scalars(tag)]
for tag in of["tensors"]:
    values = ((event.step, make_ndarray(event.tensor_proto).reshape(-1)[0]) for event in read.Tensors(tag))
    rows += [(step, tag, value.decode() if isinstance(value, bytes) else float(value)) for step, value in values]
print("read", json.dumps(rows))"""


def test_tensorboard_reads_the_same(nemo_python: str, tmp_path: Path) -> None:
    argv = [nemo_python, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
    theirs = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("read "))[5:])
    ours = [[step, tag, _as_stored(value)] for step, tag, value in _events([*tmp_path.iterdir()])]
    assert len(theirs) == 904
    assert sorted(map(repr, ours)) == sorted(repr([step, tag, _as_stored(value)]) for step, tag, value in theirs)


def _as_stored(value: float | str) -> float | str:
    """Return a number as the 32 bits of the file have it: ours is the shortest decimal of these."""
    return value if isinstance(value, str) else float(struct.unpack("<f", struct.pack("<f", value))[0])
