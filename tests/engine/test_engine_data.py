"""Synthetic samples depend on the seed and the global index alone."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

np = pytest.importorskip("numpy")


@pytest.fixture
def data(rank_path: None) -> Any:
    """The engine's data source, of global batches of 8 samples."""
    return importlib.import_module("engine_data").SyntheticData(500, 64, 2, 8, 1234)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_step_holds_the_same_samples_in_every_layout(data: Any, ranks: int) -> None:
    parts = [data.rank_batches(3, rank, ranks) for rank in range(ranks)]
    assert np.array_equal(np.stack(parts, 1).reshape(8, 65), data.samples(np.arange(24, 32)))


def test_tokens_are_in_the_vocabulary_and_spread(data: Any) -> None:
    tokens = data.samples(np.arange(1000))
    assert tokens.min() >= 0
    assert tokens.max() < 500
    large = type(data)(128_000, 64, 2, 8, 1234).samples(np.arange(1000))
    assert 120_000 < large.max() < 128_000


def test_most_tokens_follow_from_the_last(data: Any) -> None:
    tokens = data.samples(np.arange(1000))
    step = (tokens[:, 1:] - tokens[:, :-1]) % 256
    assert 0.6 < (step == 7).mean() < 0.7  # both of two neighbours are free of noise in 0.8 * 0.8 of all cases


def test_seeds_and_indices_differ(data: Any) -> None:
    other = type(data)(500, 64, 2, 8, 1235)
    assert not np.array_equal(data.samples(np.arange(8)), other.samples(np.arange(8)))
    assert len(np.unique(data.samples(np.arange(1000)), axis=0)) == 1000
