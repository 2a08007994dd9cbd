"""In what a plan is not the vendor's recipe, by why, in words for people."""

from __future__ import annotations

from conf.recipes import OF_THE_WORK, Recipe
from conf.resolve import Experiment
from conf.vocabulary import follow
from launchers.attribute_settings import COMPUTED, Difference

THE_WORK, HOW = "the same work on both sides", "how it is done, as requested or as the batch demands"
AT_ITS_START = "as the vendor's own stack settles it at its start"
EVERY_RUN, YOURS = "data, logs and checkpoints, as in every run of ours", "framework.options of yours"
GROUPS = {THE_WORK: "forced", COMPUTED: "forced", **dict.fromkeys((HOW, AT_ITS_START, EVERY_RUN, YOURS), "differs")}


def part_of(d: Difference, e: Experiment, recipe: Recipe) -> str:
    """Return how the plan labels a value that is not the vendor's: forced, or differs."""
    return GROUPS[why(d, e, recipe)]


def why(d: Difference, e: Experiment, recipe: Recipe) -> str:
    """Return why a setting is not the vendor's, in words for people."""
    if d.why == COMPUTED:
        return COMPUTED
    if d.why.startswith("launchers/"):
        return EVERY_RUN
    if d.why.startswith("framework.options"):
        return YOURS
    if d.why not in recipe.experiment or d.why in OF_THE_WORK:
        return THE_WORK
    return AT_ITS_START if follow(e, d.why) == recipe.experiment[d.why] else HOW
