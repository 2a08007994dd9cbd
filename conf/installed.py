"""Which distributions an environment has: this interpreter's, another's, or an image's. Imports none of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from conf.errors import ConfigError, Problem

IMAGES = Path(__file__).parent / "tables" / "images.yaml"
TIMEOUT_S = 60
_PROGRAM = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


def versions(distributions: Sequence[str], python: str | None) -> Mapping[str, str | None]:
    """The version of each in the environment of the interpreter `python` (None: this one); None where it is not there.

    Raises:
        ConfigError: `python` cannot be run.
    """
    if python is None or python == sys.executable:
        return {name: _version(name) for name in distributions}
    return _of_another(tuple(distributions), python)


def in_image(image: str) -> Mapping[str, str] | None:
    """Framework → version in a known container image, None for one that is not in conf/tables/images.yaml."""
    import yaml

    table: Mapping[str, Mapping[str, str]] = yaml.safe_load(IMAGES.read_text(encoding="utf-8"))
    return table.get(image)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache
def _of_another(distributions: tuple[str, ...], python: str) -> Mapping[str, str | None]:
    try:
        argv = [python, "-c", _PROGRAM, *distributions]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        found: Mapping[str, str | None] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        what = f"this interpreter cannot be asked what is installed: {error}"
        raise ConfigError(Problem("framework.python", what, python, hint="the path of a Python")) from error
    return found
