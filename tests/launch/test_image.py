"""The image of a record is what the run was in: asked of the runtime, found in the environment, or only given."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from conf import load_experiment
from conf.resolve import Experiment
from launchers.image import digest, image_of
from launchers.rank_modules import rank_module
from parsers.software import software

OF_REGISTRY, OWN = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
NEMO = "nvcr.io/nvidia/nemo:26.02"
inside = rank_module("image_facts")
Runtime = Literal["none", "docker", "podman", "apptainer", "enroot", "pyxis"]


def in_container(runtime: Runtime, image: str) -> Experiment:
    e = load_experiment("model=llama", "platform=cpu")
    return replace(e, image=image, cluster=replace(e.cluster, container=runtime))


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*inside.NAMED_BY, *inside.VERSIONS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(inside, "PODMAN", tmp_path / "containerenv")


def runtime(folder: Path, name: str, known: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a stub on PATH with the documented output of `image inspect`: a JSON array; of an image that is not there an
    empty one and exit code 1."""
    program, answers = folder / name, folder / "answers"
    answers.mkdir(exist_ok=True)
    for image, entry in known.items():
        (answers / re.sub(r"\W", "_", image)).write_text(json.dumps([entry]) if isinstance(entry, dict) else entry)
    told = 'file="$(dirname "$0")/answers/$(printf %s "$3" | tr -c "[:alnum:]_" _)"'
    missing = 'echo "[]"; echo "Error response from daemon: No such image: $3" >&2; exit 1'
    program.write_text(
        f'#!/bin/sh\n[ "$1 $2" = "image inspect" ] || exit 9\n{told}\n[ -f "$file" ] && exec cat "$file"\n{missing}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_the_runtime_is_asked_for_the_digest(name: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = f"mirror.example.org:5000/nemo@sha256:{'0' * 64}"
    known = {
        NEMO: {"Id": OWN, "RepoDigests": [other, f"nvcr.io/nvidia/nemo@{OF_REGISTRY}"]},
        "ubuntu": {"Id": OWN, "RepoDigests": [f"docker.io/library/ubuntu@{OF_REGISTRY}", other]},
        "localhost:5000/mine": {"Id": OWN.removeprefix("sha256:"), "RepoDigests": None},  # built here; Podman's Id
        "odd": "not JSON",
        "odder": '["text"]',
    }
    runtime(tmp_path, name, known, monkeypatch)
    expected = {NEMO: OF_REGISTRY, "ubuntu": OF_REGISTRY, "localhost:5000/mine": OWN}
    for image in (*known, "not/pulled:1"):
        about, notes = image_of(in_container(name, image))
        assert (about.pop("image_digest"), notes) == (expected.get(image), ()), image
        assert about == {"image": image, "image_source": "runtime"}
    monkeypatch.setenv("PATH", "/nowhere")
    assert digest(in_container(name, NEMO)) is None


def test_a_file_that_is_started_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "nemo.sqsh"
    for content in (b"one", b"two"):
        path.write_bytes(content)
        assert digest(in_container("enroot", str(path))) == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert digest(in_container("pyxis", NEMO)) is None


def test_without_a_container_the_environment_counts_and_a_given_name_is_not_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    e = in_container("none", NEMO)
    assert image_of(replace(e, image=None)) == ({}, ())
    about, (note,) = image_of(e)
    assert about == {"image": NEMO, "image_source": "given"} and "not verified" in note
    for name in inside.NAMED_BY:
        monkeypatch.setenv(name, "/images/other.sif")
        about, (note,) = image_of(e)
        assert about == {"image": "/images/other.sif", "image_source": "environment"}
        assert NEMO in note and "/images/other.sif" in note
        monkeypatch.setenv(name, NEMO)
        assert image_of(e) == ({"image": NEMO, "image_source": "environment"}, ())
        monkeypatch.delenv(name)
    inside.PODMAN.write_text("")  # without --privileged
    assert image_of(e)[0]["image_source"] == "given"
    inside.PODMAN.write_text(
        f'engine="podman-5.3.0"\nname="x"\nid="{"c" * 64}"\nimage="{NEMO}"\nimageid="{"d" * 64}"\n'
    )
    assert image_of(e) == ({"image": NEMO, "image_source": "environment"}, ())
    assert inside.image_facts()["image_id"] == "d" * 64


def test_what_an_image_says_of_itself_is_passed_on_by_the_names_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name for row in software().values() for name in row.names if name.isupper()} <= {*inside.VERSIONS}
    monkeypatch.setenv("NVIDIA_BUILD_ID", "71422337")
    monkeypatch.setenv("SECRET_VERSION", "hidden")
    assert inside.image_facts() == {"NVIDIA_BUILD_ID": "71422337"}


def test_the_host_of_a_container_states_no_versions_of_what_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIMUS_IMAGE", "rocm/primus:v9.9")
    for entry, states in (("run_pretrain", True), ("direct", True), ("container", False), ("slurm", False)):
        monkeypatch.setenv("PRIMUS_ENTRY", entry)
        facts = rank_module("primus_facts").facts()
        assert (facts["image"], facts["image_source"]) == ("rocm/primus:v9.9", "given")
        assert ("numpy_version" in facts, "transformer_engine_version" in facts) == (states, states), entry


def test_a_library_is_known_by_what_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert inside.library_facts() == {"cublas": None, "hipblaslt": None}
    header = tmp_path / "include" / "hipblaslt" / "hipblaslt-version.h"
    header.parent.mkdir(parents=True)
    lines = ("MAJOR 1", "MINOR 2", "PATCH 2", "TWEAK abc1234")
    header.write_text("".join(f"#define HIPBLASLT_VERSION_{line}\n" for line in lines))
    maps = tmp_path / "maps"
    maps.write_text(
        f"7f00-7f01 r-xp 0 08:01 7 {tmp_path}/lib/libhipblaslt.so.1.2\n7f02-7f03 r 0 0 9 /x/libcublas.so.12\n"
    )
    monkeypatch.setattr(inside, "_MAPS", maps)
    assert inside.library_facts() == {"cublas": None, "hipblaslt": "1.2.2.abc1234"}
    assert (inside.absent("json"), inside.absent("no_such_module")) == (None, "not installed")
