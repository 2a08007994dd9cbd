"""Runs in a container of the real podman: what ends the launcher ends the container, whose processes are not ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from parsers import read
from tests import podman
from tests.drills import PATIENCE_S, Stub, wait_until

pytestmark = pytest.mark.engine  # which must be installed, and does not train here


@pytest.fixture(scope="module")
def storage() -> Iterator[Mapping[str, str]]:
    yield from podman.podman()


@pytest.mark.slow
@pytest.mark.drill("the container went on without its launcher")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_container_of_podman_ends_with_its_launcher(
    tmp_path: Path, storage: Mapping[str, str], number: signal.Signals
) -> None:
    stub = Stub(tmp_path)
    volumes = [f"--volume={mount}" for mount in (*podman.mounts(), f"{tmp_path}:{tmp_path}")]
    options = f"cluster.container_options={json.dumps([*podman.OPTIONS, *volumes])}"

    def listed() -> str:
        done = subprocess.run(["podman", "ps", "-aq"], env={**os.environ, **storage}, capture_output=True, check=True)
        return done.stdout.decode()

    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"  # which podman passes on
    stub.program(f"if step == 0: {deaf}\ntime.sleep(0.1)")
    process = stub.start("cluster.container=podman", f"image={podman.IMAGE}", options, iterations=6_000, **storage)
    log = stub.directory() / "train.log"
    try:
        wait_until(lambda: '"step": 3' in log.read_text(encoding="utf-8"), "step 3")
        assert listed()
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)
        wait_until(lambda: not listed(), "the container is gone")
    finally:
        process.kill()
        subprocess.run(
            ["podman", "rm", "-af", "--time=0"], env={**os.environ, **storage}, capture_output=True, check=False
        )
    if number == signal.SIGTERM:
        assert read(log.parent).status == "killed"
