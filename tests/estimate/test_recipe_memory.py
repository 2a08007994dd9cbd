"""Recipes of vendors against the memory model: what a vendor ran fits its GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf import load_experiment
from conf.errors import ConfigError
from conf.recipe_request import request_of
from conf.recipes import Recipe, recipes
from conf.resolve import Experiment
from conf.vocabulary import read_yaml
from estimate.headroom import headroom

REFUSED = 7  # published for a number of GPUs that their own layout does not divide
PUBLISHED = [r for r in recipes() if r.published]


def own(recipe: Recipe) -> Experiment | None:
    """Return a recipe with its own batch and length; None where no plan is made of it."""
    length = f"training.seq_length={recipe.experiment['training.seq_length']}"
    for batch in ("batch=vendor", "batch=identical"):
        try:
            return load_experiment(*request_of(recipe), length, batch)
        except ConfigError:
            continue
    return None


@pytest.mark.long
def test_every_recipe_that_has_a_published_figure_fits() -> None:
    found = {r.name: headroom(e).word for r in PUBLISHED if (e := own(r)) is not None}
    assert len(found) == len(PUBLISHED) > 20
    assert {name: word for name, word in found.items() if word not in ("fits", "tight")} == {}


@pytest.mark.slow
def test_every_recipe_fits_or_has_a_reason() -> None:
    reasons = read_yaml(Path(__file__).with_name("recipes_that_do_not_fit.yaml"), list)
    expected = [name for group in reasons for name in group["recipes"]]
    made = {r.name: own(r) for r in recipes()}
    words = {name: headroom(e).word for name, e in made.items() if e is not None}
    assert len(made) - len(words) == REFUSED
    assert sorted(name for name, word in words.items() if word == "does not fit") == sorted(expected)
    assert sum(word == "fits" for word in words.values()) > 0.9 * len(words)
