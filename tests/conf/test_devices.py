"""The memory of this machine: a container's limit and what is in use in it count."""

from __future__ import annotations

import psutil
import pytest

from conf import devices

GB = 10**9


def machine(monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    """Make this a machine of 64 GB, 60 of them free, with a cgroup of these files."""
    memory = type("Memory", (), {"total": 64 * GB, "available": 60 * GB})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    named = {name.replace("memory_", "memory/"): text for name, text in files.items()}
    monkeypatch.setattr(devices, "cgroup_memory", lambda name, folder="": named.get(f"{folder}{name}", ""))


def test_memory_that_a_container_has_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, max=f"{24 * GB}", current=f"{20 * GB}", stat=f"anon 5\ninactive_file {6 * GB}")
    assert (devices.host_memory_bytes(), devices.available_memory_bytes()) == (24 * GB, 10 * GB)
    machine(
        monkeypatch,
        memory_limit_in_bytes=f"{24 * GB}",
        memory_usage_in_bytes=f"{23 * GB}",
        memory_stat=f"inactive_file 1\ntotal_inactive_file {GB}",
    )
    assert (devices.host_memory_bytes(), devices.available_memory_bytes()) == (24 * GB, 2 * GB)


def test_without_a_limit_the_machines_own_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for files in (
        {},
        {"max": "max", "current": f"{20 * GB}", "stat": ""},
        {"memory_limit_in_bytes": f"{2**63 - 4096}"},
    ):
        machine(monkeypatch, **files)
        assert (devices.host_memory_bytes(), devices.available_memory_bytes()) == (64 * GB, 60 * GB)


def test_free_memory_is_some_of_what_there_is() -> None:
    assert 0 < devices.available_memory_bytes() <= devices.host_memory_bytes()
