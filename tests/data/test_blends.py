"""Blends, splits and several epochs: the predicted order is that of Megatron-Core's own builder."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
RANKS = Path(__file__).parents[2] / "launchers" / "ranks"
SEQUENCE, BATCH, SEED = 16, 4, 7
MEGATRON = """
import engine_standin
engine_standin.install()
import json, numpy
from types import SimpleNamespace
from corpus_order import Reading, batch_of, mix
from engine_train import _datasets
for path, split, iters, every, count in {cases!r}:
    s = SimpleNamespace(vocab_size=200, data="blend", data_path=path, split=split, seed=7, seq_length=16,
        global_batch_size=4, train_iters=iters, eval_interval=every, eval_iters=count, tokenizer_model=None)
    validated = (iters // every + 1) * count * 4
    reading = Reading(16, 4, iters * 4, 7, split, validated)
    for part, dataset in enumerate(_datasets(s)):
        mixture = mix(path, reading, part)
        ours = numpy.concatenate([*mixture.batches(4)])
        assert mixture.size <= len(dataset), (path, part)
        assert numpy.array_equal(ours, batch_of(dataset, range(mixture.size))), (path, split, iters, part)
        print(part, [p.epochs for p in mixture.parts], [p.apart for p in mixture.parts])
"""


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RANKS))
    return importlib.import_module("corpus_order")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return the prefixes of two corpora of unlike sizes."""
    folder = tmp_path_factory.mktemp("corpora")
    for name, documents, seed in (("wiki", 40, 1), ("code", 25, 2)):
        words = ["--prefix", str(folder / name), "--documents", str(documents), "--seed", str(seed)]
        made = [sys.executable, str(RANKS / "corpus.py"), *words, "--vocab-size", "200"]
        subprocess.run(made, check=True, capture_output=True)
    return str(folder / "wiki"), str(folder / "code")


@pytest.mark.engine
def test_the_order_is_that_of_megatrons_builder(corpora: tuple[str, str]) -> None:
    """One epoch, several, the last of them apart or not, of one corpus and of blends; training and validation."""
    wiki, code = corpora
    blend = f"0.7 {wiki} 0.3 {code}"
    cases = [
        (wiki, "90,10,0", 20, 5, 2),
        (blend, "90,10,0", 20, 5, 2),
        (blend, "94,6,0", 200, 50, 3),
        (f"1.0 {wiki} 3.0 {code}", "8,1,1", 311, 100, 30),
        (f"0.3333 {wiki} 0.3333 {code} 0.3334 {wiki}", "90,10,0", 95, 30, 1),
        (wiki, "90,10,0", 260, 40, 25),
    ]
    done = subprocess.run(
        [sys.executable, "-c", MEGATRON.format(cases=cases)],
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(RANKS), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert {"True", "False"} <= {*done.stdout.replace("[", " ").replace("]", " ").replace(",", " ").split()}
    assert any(
        int(word) > 2
        for word in done.stdout.replace("[", " ").replace("]", " ").replace(",", " ").split()
        if word.isdigit()
    )


def test_a_data_path_is_a_corpus_or_a_blend(order: Any) -> None:
    text = "0.7 /corpora/wiki 0.3 /corpora/code"
    assert order.members(text) == [(0.7, "/corpora/wiki"), (0.3, "/corpora/code")]
    assert order.stated(["/corpora/wiki", "/corpora/code"], [0.7, 0.3]) == text
    for path in ("data/corpus", "/a folder/with four words", "/corpora/wiki"):
        assert order.members(path) == [(None, path)]
        assert order.stated([path], None) == path


def test_parts_are_cut_by_documents_and_rounded(order: Any, corpora: tuple[str, str]) -> None:
    corpus = order.open_corpus(corpora[1])
    assert [order.part_of(corpus, "90,9,1", part) for part in range(3)] == [(0, 22), (22, 25), (25, 25)]
    assert order.part_of(corpus, "100,0,0", 1) == (0, 0)


@pytest.mark.parametrize(
    ("split", "what"),
    [
        ("9999,1,0", "has nothing in the validation part of split 9999,1,0"),
        ("90,9,1", "has nothing in the test part of split 90,9,1"),
    ],
)
def test_an_empty_part_is_refused(order: Any, corpora: tuple[str, str], split: str, what: str) -> None:
    with pytest.raises(order.Refused, match=what):
        order.check_reading(corpora[1], order.Reading(SEQUENCE, BATCH, 40, SEED, split, 8))


def test_a_part_shorter_than_a_sequence_is_refused(order: Any, corpora: tuple[str, str]) -> None:
    with pytest.raises(order.Refused, match="is shorter than a sequence of 2,000 in the validation part"):
        order.check_reading(corpora[0], order.Reading(2000, BATCH, 2, SEED, "90,10,0", 4))


def test_the_weights_and_the_length_of_a_run_decide_its_first_batch(order: Any, corpora: tuple[str, str]) -> None:
    wiki, code = corpora

    def first(path: str, samples: int) -> str:
        reading = order.Reading(SEQUENCE, BATCH, samples, SEED)
        return str(order.fingerprint(next(order.batches(path, reading))))

    blend = f"0.7 {wiki} 0.3 {code}"
    assert first(blend, 40) == first(blend, 80), "of one epoch it does not depend on the length"
    several = {first(blend, 40), first(f"0.3 {wiki} 0.7 {code}", 40), first(blend, 2000), first(wiki, 40)}
    assert len(several) == 4


def requested(*overrides: str) -> Any:
    from conf.load import load

    return load(["platform=cpu", "model=llama_tiny", *overrides])


def problems_of(call: Callable[[], Any]) -> str:
    from conf.errors import ConfigError

    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def test_a_blend_by_name_and_by_path(corpora: tuple[str, str]) -> None:
    wiki, code = corpora
    direct = requested(f"data.blend={{{wiki}:0.7,{code}:0.3}}")
    named = requested("data.blend={wiki:0.7,code:0.3}", f"data.corpora.wiki={wiki}", f"data.corpora.code={code}")
    assert direct.data.path == named.data.path == f"0.7 {wiki} 0.3 {code}"
    assert direct.data.name == "blend"


REFUSED = [
    (("data.blend={wiki:0.7,code:0.3}",), "is no path and no name in data.corpora"),
    (("data.blend={/a/b:1}",), "a blend is of two corpora or more"),
    (("data.blend={/a/b:1,/c/d:0}",), "a weight must be above 0"),
    (("data.blend={/a/b:1,/c/d.bin:1}",), "the path that .bin and .idx share"),
    (("data=synthetic", "data.blend={/a/b:1,/c/d:1}"), "data=synthetic is no blend"),
    (("data.split='1,2'",), "three weights"),
    (("data.split='0,1,1'",), "training has some"),
    (("training.eval_iters=2",), "a validation needs an interval"),
    (("training.eval_interval=5",), "an interval of validations of no batch"),
    (("training.eval_interval=5", "training.eval_iters=1"), "leaves nothing to validate on"),
    (("training.eval_interval=500", "training.eval_iters=1", "data.split='9,1,0'"), "no validation would be made"),
    (("data=mock", "training.eval_interval=5", "training.eval_iters=1"), "mock data is each stack's own"),
]


@pytest.mark.parametrize(("overrides", "what"), REFUSED)
def test_what_a_blend_or_a_validation_is_refused_for(overrides: tuple[str, ...], what: str) -> None:
    assert what in problems_of(lambda: requested(*overrides))
