"""Unpacking is bounded: an archive bomb ends with a message, before it costs minutes."""

from __future__ import annotations

import gzip
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from conf.archives import FREE_BYTES, MOST_TIMES
from conf.errors import InputError
from corpora import inputs
from parsers.scan import read_blocks

PART = gzip.compress(b"nothing to see here\n" * (1 << 20))
BOMB = PART * (FREE_BYTES // (20 << 20) + 4)  # members of one file: 0.8 MB that stand for 0.3 GB


@pytest.mark.long
@pytest.mark.drill("unpacked to its end, whatever that was")
def test_a_log_that_is_a_bomb_stops_at_a_stated_limit(tmp_path: Path) -> None:
    path, size = tmp_path / "train.log.gz", 0
    path.write_bytes(BOMB)
    blocks = read_blocks(path)
    with pytest.raises(InputError) as refused:  # noqa: PT012
        while block := next(blocks):
            size += len(block)
    assert size <= FREE_BYTES
    (problem,) = refused.value.problems
    assert problem.what == "unpacks to too much to be a log or a text"
    assert problem.allowed == f"{FREE_BYTES:,} bytes, or {MOST_TIMES} times its size"


def test_a_log_of_one_line_again_and_again_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    path.write_bytes(PART)
    assert sum(map(len, read_blocks(path))) == 20 << 20


@pytest.mark.long
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_a_corpus_that_is_a_bomb_stops_at_a_stated_limit(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("zst"):
        pytest.importorskip("pyarrow")
        if shutil.which("zstd") is None:
            pytest.skip("zstd is not installed")
        (tmp_path / "zeros").write_bytes(b"")
        with (tmp_path / "zeros").open("r+b") as zeros:
            zeros.truncate(FREE_BYTES + (64 << 20))
        subprocess.run(["zstd", "-q", "-1", str(tmp_path / "zeros"), "-o", str(path)], check=True)
    else:
        path.write_bytes(BOMB)
    file = inputs.File(str(path), "jsonl", path.stat().st_size, 0)
    with pytest.raises(InputError, match="unpacks to too much"):
        for _ in inputs.read(file, "text", True, inputs.Position()):
            pass


@pytest.mark.long
def test_a_parquet_whose_rows_are_one_text_stops_at_a_stated_limit_in_bounded_memory(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, text = tmp_path / "a.parquet", "0" * (8 << 20)
    rows = arrow.DictionaryArray.from_arrays(arrow.array([0] * 4096, arrow.int32()), arrow.array([text]))
    parquet.write_table(arrow.table({"text": rows}), path, compression="zstd")  # a few kB that stand for 32 GB
    file = inputs.File(str(path), "parquet", path.stat().st_size, 0)
    with pytest.raises(InputError, match="unpacks to too much"):
        for _ in inputs.read(file, "text", True, inputs.Position()):
            pass
    assert file.size < 1 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20  # kB: a batch of 256 texts alone has 2 GB
