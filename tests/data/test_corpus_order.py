"""Corpora of any origin: what is refused, and that a predicted batch is cut from the right places."""

from __future__ import annotations

import importlib
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
Make = Callable[..., str]


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "launchers" / "ranks"))
    return importlib.import_module("corpus_order")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function from documents (lists of ids) to the prefix of their corpus."""

    def made(documents: list[list[int]], name: str = "c", code: int = 8, dtype: str = "<u2") -> str:
        lengths = np.array([len(d) for d in documents], "<i4")
        offsets = (np.cumsum(lengths, dtype="<i8") - lengths) * np.dtype(dtype).itemsize
        n = len(documents)
        head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, n, n + 1)
        index = head + lengths.tobytes() + offsets.astype("<i8").tobytes() + np.arange(n + 1, dtype="<i8").tobytes()
        (tmp_path / f"{name}.idx").write_bytes(index)
        (tmp_path / f"{name}.bin").write_bytes(np.concatenate([np.array(d, dtype) for d in documents]).tobytes())
        return str(tmp_path / name)

    return made


DOCUMENTS = [[i * 10 + k for k in range(5 + i % 3)] for i in range(20)]


def test_a_batch_is_cut_from_the_shuffled_documents(order: Any, make: Make) -> None:
    """The formula of reference/corpus.md, written as plainly as it stands there."""
    found = order.open_corpus(make(DOCUMENTS))
    draw = np.random.RandomState(5)
    docs = np.arange(20)
    draw.shuffle(docs)
    stream = [token for d in docs for token in DOCUMENTS[d]]
    m = (len(stream) - 1) // 8
    samples = np.arange(m, dtype=np.uint32)
    draw.shuffle(samples)
    wanted = [stream[s * 8 : s * 8 + 9] for s in samples]
    batches = list(order.batches(found.prefix, order.Reading(8, 3, 12, 5)))
    assert [batch.shape for batch in batches] == [(3, 9)] * 4
    assert np.concatenate(batches).tolist() == wanted[:12]


def test_empty_documents_and_other_integer_types(order: Any, make: Make) -> None:
    found = order.open_corpus(make([[1, 2, 3], [], [4, 5], [], []], code=5, dtype="<i8"))
    (batch,) = order.batches(found.prefix, order.Reading(4, 1, 1, 0))
    assert sorted(batch[0].tolist()) == [1, 2, 3, 4, 5]
    assert order.describe(found, complete=True)["dtype"] == "int64"


def test_a_fingerprint_is_of_the_tokens_not_of_their_type(order: Any) -> None:
    batch = np.arange(12).reshape(3, 4)
    assert order.fingerprint(batch) == order.fingerprint(batch.astype(np.uint16))
    assert order.fingerprint(batch) != order.fingerprint(batch[::-1])


def refusal(order: Any, prefix: str) -> str:
    with pytest.raises(order.Refused) as caught:
        order.open_corpus(prefix)
    ((where, _, found, _, attempt),) = caught.value.problems
    assert where.startswith(prefix.removesuffix(".bin"))
    assert found
    assert attempt
    return str(caught.value)


def test_files_that_are_not_there(order: Any, make: Make, tmp_path: Path) -> None:
    prefix = make(DOCUMENTS)
    message = refusal(order, prefix + ".bin")
    assert "no corpus is here" in message and message.endswith(f"try: {prefix}")
    (tmp_path / "c.idx").unlink()
    assert "found: no .idx" in refusal(order, prefix)
    (tmp_path / "text.jsonl").write_text("{}", encoding="utf-8")
    assert f"tprimat data tokenize {tmp_path}/text.jsonl" in refusal(order, f"{tmp_path}/text.jsonl")
    (tmp_path / "begun.partial").mkdir()
    assert "it is unfinished" in refusal(order, f"{tmp_path}/begun")


def test_a_bin_of_another_size_than_the_idx_says(order: Any, make: Make) -> None:
    for change, what in ((-2, "is truncated"), (2, "does not belong to this .idx")):
        prefix = make(DOCUMENTS)
        size = Path(f"{prefix}.bin").stat().st_size
        with Path(f"{prefix}.bin").open("r+b") as file:
            file.truncate(size + change)
        message = refusal(order, prefix)
        texts = (what, f"found: {size + change} bytes", f"{size} bytes, as c.idx says")
        assert [text for text in texts if text not in message] == []
    os.replace(f"{make([[1] * 100] * 9, 'other')}.idx", f"{prefix}.idx")
    assert "is truncated" in refusal(order, prefix), "by an .idx of another corpus"


def test_an_idx_with_a_wrong_byte_or_cut_short(order: Any, make: Make) -> None:
    for at in (0, 9, 17, 18, 26, 34, 40, 114, 122, 300):
        index = Path(f"{make(DOCUMENTS)}.idx")
        raw = bytearray(index.read_bytes())
        raw[at] ^= 0x41
        index.write_bytes(bytes(raw))
        assert refusal(order, str(index.with_suffix("")))
    for size in (0, 5, 33, 34, 100):
        prefix = make(DOCUMENTS)
        os.truncate(f"{prefix}.idx", size)
        assert refusal(order, prefix)


def test_ids_beyond_the_vocabulary(order: Any, make: Make) -> None:
    found = order.open_corpus(make(DOCUMENTS))
    least, most = order.id_range(found)
    assert (least, most) == (0, 195)
    order.check_ids(found, 196, least, most)
    with pytest.raises(order.Refused, match=r"found: ids 0 to 195; allowed: 0 to 194 \(vocab_size 195\)"):
        order.check_ids(found, 195, least, most)
    below = order.open_corpus(make([[3, -1, 2]], "below", 4, "<i4"))
    with pytest.raises(order.Refused, match="ids -1 to 3"):
        order.check_ids(below, 10, *order.id_range(below))


def test_a_large_corpus_is_sampled_and_a_small_one_read(
    order: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "_CHUNK", 1)
    found = order.open_corpus(make([list(range(1000))]))
    assert order.id_range(found, complete=True) == (0, 999)
    monkeypatch.setattr(order, "_SAMPLED", 3)
    assert order.id_range(found) == (0, 999), "first, middle and last"


def test_a_corpus_is_read_once_or_several_times(order: Any, make: Make) -> None:
    prefix = make(DOCUMENTS)  # 119 tokens
    assert [order.mix(prefix, order.Reading(8, 2, n, 0)).parts[0].epochs for n in (14, 15, 40)] == [1, 2, 3]
    order.check_reading(prefix, order.Reading(118, 1, 1, 0))
    with pytest.raises(order.Refused, match="is shorter than a sequence of 119; found: 119 tokens"):
        order.check_reading(prefix, order.Reading(119, 1, 1, 0))
