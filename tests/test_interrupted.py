"""Ctrl-C as soon as a command was typed: it is still importing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drills import PATIENCE_S

ROOT = Path(__file__).parent.parent
_SLOW = "import time; print('importing', flush=True); time.sleep(300)"
_ENTRIES: list[tuple[str, ...]] = [
    *(("-m", name) for name in ("tensorprimat", "measure", "estimate"))
]  # other packages import more first
_ENTRIES += [
    (str(ROOT / "launch.py"),),
    ("-c", "import sys; from tensorprimat.entry import tprimat; sys.exit(tprimat())"),
]


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize("entry", _ENTRIES, ids=" ".join)
def test_ctrl_c_while_a_command_imports_ends_it_without_a_word(entry: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text(_SLOW, encoding="utf-8")  # which every command imports
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    with subprocess.Popen(
        [sys.executable, *entry, "quick"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as started:
        assert started.stdout
        assert started.stdout.readline() == "importing\n"
        started.send_signal(signal.SIGINT)
        assert started.communicate(timeout=PATIENCE_S)[1] == ""
        assert started.returncode == 130
