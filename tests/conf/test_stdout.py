"""Test that what a command answers does not depend on who reads it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from conf.errors import command
@command
def main(argv=None):
    print("row\\n" * 100_000)
    sys.stdout.writelines(["last\\n"])
    return 3
sys.exit(main())
"""


def test_a_gate_fails_whoever_reads_its_table() -> None:
    script = 'set -o pipefail; "$1" -c "$2" | head -n 1'
    done = subprocess.run(["bash", "-c", script, "sh", sys.executable, PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "row\n", "")


def test_a_full_disk_is_told() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("standard output: cannot be written") and "Traceback" not in done.stderr
