"""One corpus for every stack: Megatron-Core's own writer makes these bytes, its own dataset reads in this order."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import RANKS, finished, torchrun_words
from tests.engine.layouts import DP2, MOCK

pytestmark = pytest.mark.engine
np = pytest.importorskip("numpy")

# Writes the documents of the corpus argv[1] with Megatron's builder to argv[2].
BUILD = """
import sys, engine_standin
engine_standin.install()
import numpy, torch
from corpus_order import open_corpus
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
for prefix, out, vocabulary in {cases!r}:
    found = open_corpus(prefix)
    ids = numpy.array(found.ids()).astype(numpy.int64)
    builder = IndexedDatasetBuilder(out + ".bin", dtype=DType.optimal_dtype(vocabulary))
    for start, length in zip(found.offsets, found.lengths):
        builder.add_document(torch.from_numpy(ids[start : start + length]), [int(length)])
    builder.finalize(out + ".idx")
"""
# One rank of a training: keeps what the model was given, in the order in which it was given.
SPY = """
import os, sys
import engine_standin
stand_in = engine_standin.install()
engine_standin.install = lambda: stand_in
import numpy, engine, engine_train
seen, forward = [], engine_train._forward
def spy(batches, model):
    tokens, labels = next(batches)
    assert (tokens[:, 1:] == labels[:, :-1]).all()
    seen.append(numpy.concatenate([tokens.numpy(), labels[:, -1:].numpy()], axis=1))
    return forward(iter([(tokens, labels)]), model)
engine_train._forward = spy
out = sys.argv.pop()
assert engine.main() == 0
numpy.save(out + os.environ["RANK"] + ".npy", numpy.stack(seen))
"""


def order() -> Any:
    return importlib.import_module("corpus_order")


def test_the_bytes_are_those_of_megatrons_builder(
    in_rank: Callable[[str], str], corpus: Callable[..., str], settings_of: Any, tmp_path: Path
) -> None:
    prefixes = {size: corpus(settings_of(vocab_size=size, padded_vocab_size=size)) for size in (500, 70000)}
    in_rank(BUILD.format(cases=[(prefix, str(tmp_path / f"theirs{size}"), size) for size, prefix in prefixes.items()]))
    for size, prefix in prefixes.items():
        for suffix in (".bin", ".idx"):
            theirs = (tmp_path / f"theirs{size}{suffix}").read_bytes()
            assert Path(prefix + suffix).read_bytes() == theirs, (size, suffix)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_first_three_batches_are_those_that_were_predicted(
    ranks: int, settings_of: Any, corpus: Callable[..., str], rank_path: None, tmp_path: Path
) -> None:
    """Complete trainings: what each rank's model was given is put together as the loader `single` takes it apart."""
    settings = settings_of(data_parallel_size=ranks, train_iters=3, lr_decay_iters=18)
    settings["data_path"] = corpus(settings)
    (tmp_path / "s.json").write_text(json.dumps(settings))
    (tmp_path / "spy.py").write_text(f"import sys; sys.path.insert(0, {str(RANKS)!r})\n{SPY}")
    words = [str(tmp_path / "spy.py"), "--settings", str(tmp_path / "s.json"), str(tmp_path / "seen")]
    done = finished(settings, [*torchrun_words(ranks), *words])
    assert done.code == 0, done.err
    seen = np.stack([np.load(tmp_path / f"seen{rank}.npy") for rank in range(ranks)], axis=1)  # micro-batch, rank, …
    reading = order().Reading(settings["seq_length"], 8, 24, settings["seed"])
    predicted = list(order().batches(settings["data_path"], reading))
    assert np.array_equal(seen.reshape(3, 8, -1), np.stack(predicted))
    assert f'"data_first_batch": "{order().fingerprint(predicted[0])}"' in done.out


def test_the_order_of_a_larger_corpus(in_rank: Callable[[str], str], tmp_path: Path, rank_path: None) -> None:
    """Thousands of documents, int32 ids, another seed: the samples of Megatron's dataset, the last ones too."""
    prefix = str(tmp_path / "c")
    made = [sys.executable, str(Path(order().__file__).with_name("corpus.py")), "--prefix", prefix]
    subprocess.run([*made, "--vocab-size", "100000", "--seed", "9", "--documents", "3000"], check=True)
    code = f"""
import engine_standin
engine_standin.install()
import numpy
from types import SimpleNamespace
from corpus_order import Reading, batches, open_corpus
from engine_train import TokenData
corpus = open_corpus({prefix!r})
n = (corpus.tokens - 1) // 128 // 8 * 8
settings = SimpleNamespace(vocab_size=100000, data="prefix", data_path={prefix!r}, split="100,0,0", seed=77,
    seq_length=128, micro_batch_size=2, global_batch_size=8, train_iters=n // 8, eval_interval=None, eval_iters=0,
    tokenizer_model=None)
data = TokenData(settings)
for step, batch in enumerate(batches({prefix!r}, Reading(128, 8, n, 77))):
    parts = [data.rank_batches(step, rank, 2) for rank in range(2)]
    assert numpy.array_equal(numpy.stack(parts, 1).reshape(8, 129), batch), step
print(step + 1 == n // 8 > 400)
"""
    assert in_rank(code) == "True\n"


@pytest.mark.slow  # Megatron indexes 200 million tokens, twice
def test_mock_data_is_megatrons_own(run: Callable[..., Any]) -> None:
    done = run(**MOCK)
    assert done.code == 0, done.err
    assert (done.arguments["data"], done.arguments["data_path"], done.arguments["split"]) == ("mock", "None", "1,1,1")
    assert {"data_first_batch": None} in done.marks("facts")
    other = run(**MOCK, **DP2)
    assert max(abs(a - b) for a, b in zip(done.losses, other.losses, strict=True)) <= 1e-5


def test_the_engine_leaves_no_file_behind(run: Callable[..., Any], tmp_path: Path) -> None:
    """An index cache on disk would be found again by the corpus' path, whatever the corpus then holds."""
    folder = Path(run().settings["data_path"]).parent
    assert {p.suffix for p in folder.iterdir()} == {".bin", ".idx", ".json"}


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"data_path": "/nowhere/c"}, "data_path: /nowhere/c: no corpus is here; found: no .bin and no .idx; allowed: "),
    ({"data_path": None}, "no corpus is here"),
    ({"split": "99999,1,0"}, "has nothing in the validation part of split 99999,1,0"),
]


def test_settings_that_the_data_do_not_fit(
    settings_of: Any, corpus: Any, monkeypatch: pytest.MonkeyPatch, rank_path: None, tmp_path: Path
) -> None:
    engine_settings = importlib.import_module("engine_settings")
    monkeypatch.setenv("WORLD_SIZE", "1")
    settings, path = settings_of(), tmp_path / "s.json"
    for changes, said in UNFIT:
        path.write_text(json.dumps({**settings, "data_path": corpus(settings), **changes}))
        with pytest.raises(engine_settings.Refused) as caught:
            engine_settings.read_settings(str(path))
        assert said in str(caught.value)
