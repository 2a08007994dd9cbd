"""Test data=tiny: English that Python ships with, byte by byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launchers import corpus
from launchers.rank_modules import rank_module
from tensorprimat import data


def made(prefix: Path, vocabulary: int = 300) -> subprocess.CompletedProcess[str]:
    arguments = ("--prefix", str(prefix), "--vocab-size", str(vocabulary), "--seed", "1", "--text")
    return subprocess.run(
        [sys.executable, str(corpus.PROGRAM), *arguments], capture_output=True, text=True, check=False
    )


def test_its_documents_are_the_topics_of_help(tmp_path: Path) -> None:
    from pydoc_data.topics import topics

    assert made(tmp_path / "c").returncode == 0
    opened = rank_module("corpus_order").open_corpus(str(tmp_path / "c"))
    ids, ends = opened.ids(), opened.offsets + opened.lengths
    assert (ids[ends - 1] == 299).all()
    documents = [ids[at : end - 1].astype("u1").tobytes() for at, end in zip(opened.offsets, ends, strict=True)]
    assert documents == [topics[name].encode() for name in sorted(topics)]
    assert b'The "assert" statement' in documents[0]


def test_it_is_made_once_and_needs_257_ids(tmp_path: Path) -> None:
    assert made(tmp_path / "c").returncode == 0
    before = Path(f"{tmp_path}/c.bin").stat().st_mtime_ns
    assert made(tmp_path / "c").returncode == 0
    assert Path(f"{tmp_path}/c.bin").stat().st_mtime_ns == before
    refused = made(tmp_path / "d", 256)
    assert refused.returncode == 2
    assert "allowed: vocab_size 257 or more" in refused.stderr
    other = made(tmp_path / "c", 400)
    assert other.returncode == 2
    assert "is not overwritten" in other.stderr


def test_recipes_say_what_is_published_and_what_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert data.main(["recipes"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert {"fineweb", "c4", "dolma-sample", "dolma", "bookcorpus"} <= {*names}
    for name in names:
        assert data.main(["recipes", name]) == 0
        out = capsys.readouterr().out
        assert "sha256 unknown" in out
        assert "source        " in out
        assert "tprimat data tokenize " in out
    assert data.main(["recipes", "bookcorpus", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 74_004_228
    assert data.main(["recipes", "c44"]) == 2
    assert "did you mean c4?" in capsys.readouterr().err


def test_a_run_reads_english(capsys: pytest.CaptureFixture[str]) -> None:
    assert data.main(["preview", "platform=cpu", "data=tiny", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["tokens"][0]
    text = bytes(token for token in first if token < 256).decode("utf-8", "replace")
    assert text.isascii()
    assert text.count(" ") > 10
