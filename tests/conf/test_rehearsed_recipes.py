"""conf/recipes/rehearsed.csv: of no recipe is it unsaid how its rehearsal went."""

from __future__ import annotations

import csv

from conf.recipes import COMPLETED, NOT_REHEARSED, OUTCOMES, REHEARSED, SAME, recipes, rehearsals


def test_every_recipe_has_its_rehearsal_or_the_reason_why_not() -> None:
    known = rehearsals()
    written = {row["recipe"] for row in csv.DictReader(REHEARSED.open(encoding="utf-8", newline=""))}
    assert written == set(known) == {recipe.name for recipe in recipes()}
    for row in known.values():
        assert row.outcome in OUTCOMES and bool(row.version and row.date) == (row.outcome != NOT_REHEARSED), row
        assert (row.outcome in (COMPLETED, SAME)) != bool(row.reason), row
        assert row.outcome != SAME or known[row.same_as].outcome == COMPLETED, row
        assert not row.same_as or row.same_as in known, row
