"""What a comparison comes to, and what to do next, in sentences."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from long_runs import vendor_run
from made import TP2, compared, made, ran, repeats, silent
from msgspec.structs import replace

from compare.report.page import advice, headline, text_of
from metrics.bill import Prices, Terms
from parsers import Record


def next_of(records: Sequence[Record], **question: Any) -> list[str]:
    return [text_of(step) for step in advice(compared(*records, **question))]


FAST, SLOW = repeats("a", (2.0, 2.02, 1.98)), repeats("b", (2.5, 2.52, 2.49), TP2)


def test_an_answered_question_has_nothing_next() -> None:
    assert next_of([*FAST, *SLOW]) == []


def test_what_differs_is_named_with_the_words_that_accept_it() -> None:
    other = repeats("b", (2.5, 2.52, 2.49), {**TP2, "lr": 0.1})
    expected = "Run the groups alike in lr; or compare it, vary=layout,lr; or accept what is meant to differ, "
    assert next_of([*FAST, *other]) == [f"{expected}accept.lr=REASON"]
    assert next_of([*FAST, *other], vary=("layout", "lr")) == []
    assert next_of([*FAST, *other], accept={"lr": "tuned by each"}) == []


def test_what_did_not_run_as_requested_is_no_difference_to_vary() -> None:
    """On both sides alike: neither running the groups alike nor vary= helps."""
    both = [ran(record, adam_eps=7) for record in (*FAST, *SLOW)]
    expected = "adam_eps did not run as requested: request what ran, or have the stack run what was requested; "
    assert next_of(both) == [f"{expected}or accept it, accept.adam_eps=REASON"]
    assert next_of(both, vary=("layout", "adam_eps")) == next_of(both)
    assert next_of(both, accept={"adam_eps": "known"}) == []
    assert [text_of(output) for output in headline(compared(*both))] == [
        "No ratio is given: not all that was requested ran."
    ]
    one = [*FAST, *(ran(record, adam_eps=7) for record in repeats("b", (2.5, 2.52, 2.49), {**TP2, "lr": 0.1}))]
    first, second = next_of(one)
    assert first.startswith("Run the groups alike in lr; or compare it, vary=layout,lr; or accept")
    assert second == next_of(both)[0]


def test_what_is_unknown_can_be_stated_or_accepted() -> None:
    (step,) = next_of([made("a"), silent(made("b", over=TP2), "seq_length", "lr", "adam_eps", "adam_beta1")])
    assert "python -m parsers LOG --save KEY=VALUE" in step
    assert step.endswith("accept.KEY=REASON"), "four keys: no command is spelled out"


def test_too_few_and_undecided_runs_want_repeats() -> None:
    assert next_of([made("a"), made("b", over=TP2)]) == [
        "Repeat the runs with other seeds: from 3 a side on there is an interval."
    ]
    wide = [*repeats("a", (2.0, 2.2, 1.8)), *repeats("b", (2.1, 2.3, 1.95), TP2)]
    result = compared(*wide)
    speed = next(item for item in result.ratios if item.metric == "tokens_per_s_per_gpu")
    assert speed.runs_to_decide
    (step,) = advice(result)
    about = f"about {speed.runs_to_decide} a side would decide"
    assert about in text_of(step)
    (sentence,) = headline(result)
    assert text_of(sentence).startswith("Undecided whether TP2 is faster than DP2: 0.9")


def test_one_group_a_rehearsal_and_no_completed_run() -> None:
    assert next_of([made("a")]) == ["Name the runs of another group as well: of another platform, layout or image."]
    toys = [replace(made(name, over=more), provenance="rehearsed") for name, more in (("a", {}), ("b", TP2))]
    assert next_of(toys) == ["Run it for real, without rehearse=: a rehearsal has no speed."]
    dead = [made("a", status="failed"), made("b", over=TP2, status="failed")]
    assert next_of(dead) == ["Complete a run of each group."]


def test_money_is_spoken_of_at_the_users_prices_alone() -> None:
    records = [vendor_run(p, h, seed, 30) for p, h in (("nvidia", "h100"), ("amd", "mi300x")) for seed in (1, 2, 3)]
    prices = Prices("USD", {"h100": 2.6, "mi300x": 1.9})
    yours = compared(*records, terms=Terms(tokens=1e12, prices=prices))
    assert re.search(r"; a token costs 0\.8\d\d times as much \(.*\) at your prices\.$", text_of(headline(yours)[0]))
    assert [*advice(yours)] == []
    ours = compared(*records, terms=Terms(tokens=1e12, prices=dataclasses.replace(prices, example=True)))
    assert "costs" not in text_of(headline(ours)[0])
    wanted = "price.usd_per_gpu_hour.h100=… price.usd_per_gpu_hour.mi300x=…"
    assert [text_of(step) for step in advice(ours)] == [f"Give your own prices, of which ours are an example: {wanted}"]
