"""The writer of corpora: the same bytes everywhere, complete or not at all, nothing overwritten, something to learn."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.drills import wait_until

pytestmark = pytest.mark.long

np = pytest.importorskip("numpy")

RANKS = Path(__file__).parents[2] / "launchers" / "ranks"
SMALL = ("--vocab-size", "1000", "--seed", "1234", "--tokens", "20001")


def corpus(prefix: Path, *arguments: str, program: Path = RANKS / "corpus.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(program), "--prefix", str(prefix), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def facts(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1].removeprefix("[tprimat] facts "))


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "; try: " in done.stderr
    return done.stderr


def ids(prefix: Path) -> Any:
    return np.fromfile(f"{prefix}.bin", "<u2")


def test_the_bytes_never_change(tmp_path: Path) -> None:
    """Records name corpora by these sums (the same with numpy 1.26.4 and 2.4.6): a change counts GENERATOR up."""
    made = facts(corpus(tmp_path / "c", *SMALL))
    assert made["data_bin_sha256"] == "9c324396494979b1df878607f1c666ba683cc1361a38ec77d052e9567ffa81ca"
    assert made["data_idx_sha256"] == "b8697d9428e4ed241a32217354008b7c3fa9623fa1d3cffa7505cf47bf5a20a7"
    assert facts(corpus(tmp_path / "e", *SMALL, "--seed", "1235"))["data_bin_sha256"] != made["data_bin_sha256"]
    large = facts(corpus(tmp_path / "d", "--vocab-size", "128256", "--seed", "1", "--tokens", "20001"))
    assert large["data_dtype"] == "int32"
    assert large["data_bin_sha256"] == "a7834739f07d2d54f41f0ab3cb5c4f0ef2b9fd4fab83a167f0fef37aa1fc53a7"


def test_the_manifest_says_what_was_made(tmp_path: Path) -> None:
    made = facts(corpus(tmp_path / "deep" / "c", *SMALL))
    manifest = json.loads((tmp_path / "deep" / "c.json").read_text())
    assert manifest["generator"] == "tensorprimat corpus 1"
    arguments = {"vocab_size": 1000, "eod": 999, "seed": 1234, "tokens": 20001, "documents": None}
    assert manifest["arguments"] == arguments
    assert {f"data_{k}": v for k, v in manifest.items() if k not in ("generator", "arguments")} == made
    assert manifest["bin_bytes"] == 2 * 20001 == (tmp_path / "deep" / "c.bin").stat().st_size
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["c.bin", "c.idx", "c.json"]


def test_documents_instead_of_tokens(tmp_path: Path) -> None:
    made = facts(corpus(tmp_path / "c", "--vocab-size", "300", "--seed", "7", "--documents", "50", "--eod", "0"))
    assert made["data_documents"] == (ids(tmp_path / "c") == 0).sum() == 50, "the end of a document is in no text"


def test_what_follows_can_be_learned_and_the_vocabulary_is_used(tmp_path: Path) -> None:
    facts(corpus(tmp_path / "c", "--vocab-size", "512", "--seed", "3", "--tokens", "200000"))
    tokens = ids(tmp_path / "c").astype(np.int64)
    pairs = np.zeros((512, 512), np.int64)
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
    known = pairs.max(axis=1).sum() / pairs.sum()
    assert 0.7 < known < 0.8, "three of four tokens are the successor of the one before"
    counts = np.bincount(tokens, minlength=512)
    assert (counts > 0).sum() > 500
    share = counts / counts.sum()
    entropy = -(share[share > 0] * np.log(share[share > 0])).sum()
    assert 3 < entropy < 5.2, "ln 512 = 6.24: which tokens are frequent is learned first"


def test_made_once_and_then_found(tmp_path: Path) -> None:
    first = corpus(tmp_path / "c", *SMALL)
    before = (tmp_path / "c.bin").stat().st_mtime_ns
    second = corpus(tmp_path / "c", *SMALL)
    assert facts(first) == facts(second)
    assert (tmp_path / "c.bin").stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["truncated", "no index"])
def test_a_damaged_corpus_of_ours_is_made_again(tmp_path: Path, damage: str) -> None:
    made = facts(corpus(tmp_path / "c", *SMALL))
    if damage == "truncated":
        os.truncate(tmp_path / "c.bin", 100)
    else:
        (tmp_path / "c.idx").unlink()
    assert facts(corpus(tmp_path / "c", *SMALL)) == made


@pytest.mark.parametrize("there", ["another seed", "no manifest", "an index alone"])
def test_nothing_is_overwritten(tmp_path: Path, there: str) -> None:
    facts(corpus(tmp_path / "c", *SMALL))
    removed = {"another seed": (), "no manifest": ("c.json",), "an index alone": ("c.json", "c.bin")}
    for name in removed[there]:
        (tmp_path / name).unlink()
    before = [p.read_bytes() for p in sorted(tmp_path.iterdir())]
    seed = ("--seed", "1") if there == "another seed" else ()
    assert "is not overwritten" in refused(corpus(tmp_path / "c", *SMALL, *seed))
    assert [p.read_bytes() for p in sorted(tmp_path.iterdir())] == before


def test_a_corpus_that_is_half_written_does_not_count(tmp_path: Path) -> None:
    large = ("--vocab-size", "128000", "--seed", "1", "--tokens", "400000000")
    command = [sys.executable, str(RANKS / "corpus.py"), "--prefix", str(tmp_path / "c"), *large]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: any(p.stat().st_size for p in tmp_path.glob(".corpus-*/made.bin")), "the first tokens")
        process.send_signal(signal.SIGKILL)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("c.")] == []
    assert "no corpus is here" in refused(corpus(tmp_path / "c", "--vocab-size", "128000", "--seed", "1", "--check"))
    facts(corpus(tmp_path / "c", *SMALL))


def test_a_full_disk_is_refused_before_it_is_full(tmp_path: Path) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(RANKS)!r})
import corpus, shutil
corpus.shutil.disk_usage = lambda path: shutil._ntuple_diskusage(0, 0, 100)
sys.exit(corpus.main(["--prefix", {str(tmp_path / "c")!r}, *{SMALL!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "has no room for the corpus; found: 100 bytes free" in refused(done)
    assert list(tmp_path.glob("*c*")) == []
    assert "/proc/nowhere" in refused(corpus(Path("/proc/nowhere/c"), *SMALL)), "nor can it be written there"


@pytest.mark.parametrize("wrong", ["--vocab-size=1", "--seed=-1", "--tokens=1", "--eod=1000", "--documents=1"])
def test_arguments_that_make_no_corpus(tmp_path: Path, wrong: str) -> None:
    done = corpus(tmp_path / "c", *SMALL, wrong)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_make_one(tmp_path: Path) -> None:
    command = [sys.executable, str(RANKS / "corpus.py"), "--prefix", str(tmp_path / "c"), *SMALL]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert {p.communicate()[0] for p in both if p.wait() == 0}
    assert json.loads((tmp_path / "c.json").read_text())["tokens"] == 20001
    assert facts(corpus(tmp_path / "c", "--vocab-size", "1000", "--seed", "0", "--check"))["data_tokens"] == 20001


def test_three_files_and_numpy_are_enough(tmp_path: Path) -> None:
    for name in ("corpus.py", "corpus_order.py", "rank_program.py"):
        shutil.copy(RANKS / name, tmp_path)
    code = f"""
import sys, runpy
sys.modules.update(dict.fromkeys(("torch", "megatron", "yaml", "conf", "launchers")))
sys.argv = ["corpus.py", "--prefix", {str(tmp_path / "c")!r}, *{SMALL!r}]
sys.path.insert(0, {str(tmp_path)!r})
runpy.run_path({str(tmp_path / "corpus.py")!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c.idx").exists()
