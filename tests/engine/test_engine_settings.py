"""Settings that cannot be run are refused in one clear line; what they may be is conf's and the renderer's to say."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import RANKS, finished
from tests.engine.layouts import EP2, EXPERTS, TP2_SP

Settings = Callable[..., dict[str, Any]]


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[..., str]:
    """A function from settings, or any text, to rank 0's words; it asserts that they are refused in the agreed way."""

    def words(settings: dict[str, Any] | str, world_size: str | None = "1") -> str:
        path = tmp_path / "s.json"
        path.write_text(settings if isinstance(settings, str) else json.dumps(settings))
        world = ("env", "-u", "WORLD_SIZE") if world_size is None else ("env", f"WORLD_SIZE={world_size}", "RANK=0")
        ended = finished({}, [*world, sys.executable, str(RANKS / "engine.py"), "--settings", str(path)])
        assert (ended.code, ended.out, "Traceback" in ended.err) == (2, "", False), ended.err
        return ended.err

    return words


@pytest.mark.engine
def test_a_setting_that_the_file_lacks_ends_the_run_with_its_name(
    tmp_path: Path, torchrun: Callable[[Path, int], list[str]], corpus: Callable[..., str], settings_of: Settings
) -> None:
    """A wrong name is a missing one; it is found when the engine reads it, and said once."""
    settings = settings_of(data_parallel_size=2)
    settings |= {"data_path": corpus(settings), "clip_gard": settings.pop("clip_grad")}
    path = tmp_path / "s.json"
    path.write_text(json.dumps(settings))
    ended = finished(settings, torchrun(path, 2))
    assert "clip_grad: is missing in the settings; try: rename clip_gard" in ended.err
    assert ended.err.count("engine: settings refused, 1 problem\n") == 1
    assert "Traceback" not in ended.err.partition("ChildFailedError")[0].partition("elastic")[0]
    assert re.search(r"exitcode +: 2 ", ended.err)


def test_world_size_is_torchruns(refusal: Callable[..., str], settings_of: Settings) -> None:
    assert "world_size: is not the number of processes; found: 1, and torchrun started 2" in refusal(settings_of(), "2")
    assert "no WORLD_SIZE" in refusal(settings_of(), None)


@pytest.mark.parametrize("text", ["", "[1]", "3", "{"])
def test_files_that_are_no_settings(refusal: Callable[..., str], text: str) -> None:
    assert "engine: settings refused" in refusal(text)


@pytest.mark.engine
def test_layouts_that_gloo_cannot_carry_are_refused(in_rank: Callable[[str], str], settings_of: Settings) -> None:
    code = f"""
import engine_standin
engine_standin.install()
import engine_train
from engine_settings import Settings
try:
    engine_train._set_up_groups(Settings(**{settings_of(**EXPERTS, **TP2_SP, **EP2)!r}))
except engine_train.EngineError as error:
    print(error)
"""
    assert in_rank(code).startswith("TP 2 x EP 2: gloo cannot gather the experts' unequal numbers of tokens; try TP 1")
