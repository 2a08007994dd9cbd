"""The lock files, and the bill of materials that the wheel has of them."""

from __future__ import annotations

import re
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.drills import ROOT

ENTRY = r"^([\w.-]+)==(\S+)(?: ; (.*?))?((?: \\\n +--hash=sha256:[0-9a-f]{64})+)\n((?: +#.*\n)*)"
HASHED = re.compile(ENTRY, re.MULTILINE)
NAMES = ("lock.txt", "lock-dev.txt", "lock-torch.txt")
LOCKS = {name: (ROOT / "requirements" / name).read_text(encoding="utf-8") for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_file_has_hashes_and_no_place(name: str) -> None:
    comment, _, text = LOCKS[name].partition("\n")
    assert comment.startswith("# Made by `make lock`")
    assert HASHED.sub("", text) == "", "every line belongs to a requirement with hashes"
    assert "/" not in text and "index" not in text, "no address, no path"


@pytest.mark.parametrize(
    ("name", "extras"), [("lock.txt", ("", "embedded")), ("lock-dev.txt", ("", "embedded", "dev"))]
)
def test_the_lock_has_what_the_project_asks_for(name: str, extras: tuple[str, ...]) -> None:
    locked: dict[str, list[str]] = {}
    for package, version, *_ in HASHED.findall(LOCKS[name] + LOCKS["lock-torch.txt"]):
        locked.setdefault(package, []).append(version)
    for wanted in map(Requirement, requires("tensorprimat") or ()):
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras):
            versions = locked.get(canonicalize_name(wanted.name), [])
            fitting = versions and all(wanted.specifier.contains(version) for version in versions)
            assert fitting, f"{wanted}: make lock"
