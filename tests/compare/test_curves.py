"""The curves' part of the audit: rates, tokens and losses by step."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from scipy import stats

from compare.audit import Audit
from compare.losses import BLOCKS, RISK, Band, leaves
from compare.report.blocks import text_of
from compare.report.page import advice, headline
from parsers import Record, Step
from tests.compare.made import TP2, compared, made

Fields = Callable[[int], Mapping[str, Any]]


def audited(*records: Record, **question: Any) -> Audit:
    return compared(*records, **question).audit


def check(name: str, *records: Record, **question: Any) -> tuple[str, bool]:
    result = next(one for one in audited(*records, **question).checks if one.name == name)
    return result.state, result.decides


def refused(*records: Record, reason: str) -> None:
    verdict = audited(*records).verdict
    assert (verdict.word, verdict.texts[0][: len(reason)]) == ("not comparable", reason)


EQUAL, APART, UNKNOWN = ("equal", False), ("apart", True), ("unknown", False)


def run(name: str, count: int, fields: Fields, over: Mapping[str, Any] | None = None, **known: Any) -> Record:
    """Return a run of `count` steps; fields: of each step, by its number."""
    settings = {"train_iters": count, **(over or {})}
    steps = tuple(Step(step=i, line=i + 1, iteration=i + 1, **fields(i)) for i in range(count))
    return made(name, over=settings, steps=steps, **known)


def rate(step: int, peak: float = 3e-4, warmup: int = 5) -> float:
    """Warm-up to `peak`, then a cosine to nothing."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / 40))


def printed(value: float, digits: int = 7) -> float:
    return float(f"{value:.{digits - 1}e}")


def exact(peak: float = 3e-4) -> Fields:
    """As a mark reports it: with its clock."""
    return lambda i: {"lr_used": rate(i, peak), "loss": 6 - i / 10, "end_monotonic_s": 10.0 + i}


def test_rates_that_were_read_exactly_are_equal_to_1e_12() -> None:
    first, hair = run("a", 30, exact()), run("b", 30, exact(3e-4 * (1 + 1e-10)), TP2)
    assert check("lr_used", first, run("b", 30, exact(), TP2)) == EQUAL
    assert check("lr_used", first, run("b", 30, exact(3e-4 * (1 + 2e-16)), TP2)) == EQUAL
    refused(first, hair, reason="lr_used: ")


def test_rates_that_were_printed_are_equal_to_their_digits() -> None:
    for digits in (4, 7):

        def expected(scale: float, digits: int = digits) -> Fields:
            return lambda i: {"lr_used": printed(scale * rate(i), digits), "loss": 6 - i / 10, "step_time_s": 1.0}

        marked, off = run("a", 30, exact()), run("b", 30, expected(1 + 3 * 10.0 ** (1 - digits)), TP2)
        assert check("lr_used", marked, run("b", 30, expected(1), TP2)) == EQUAL
        assert check("lr_used", marked, off) == APART


def only_printed(offset: int, dialect: str = "", **known: Any) -> Record:
    """Return a log that prints the rate of this step (0) or of the next (1) and does not say which."""
    fields: Fields = lambda i: {"lr": printed(rate(i + offset)), "loss": 6 - i / 10, "step_time_s": 1.0}  # noqa: E731
    framework = f"trainer{offset}"
    more = {"framework": framework, "dialects": (dialect,) if dialect else (), **known}
    return run(f"printed{offset}", 30, fields, {} if offset else TP2, **more)


def test_a_rate_that_is_printed_one_step_early_is_neither_a_difference_nor_equal() -> None:
    this, following = only_printed(0), only_printed(1)
    result = audited(this, following, vary=("platform", "layout"))
    rates = next(one for one in result.checks if one.name == "lr_used")
    assert (rates.state, rates.decides) == UNKNOWN
    assert "which step's rate is printed is not known" in rates.reason
    assert "lr_used" not in " ".join(result.verdict.texts)


def test_a_dialect_that_is_known_reports_which_step_it_prints() -> None:
    vary, following = {"vary": ("platform", "layout")}, only_printed(1, "primus", framework="megatron")
    assert check("lr_used", only_printed(0, "nemo2"), only_printed(1, "primus"), **vary) == EQUAL
    assert check("lr_used", only_printed(0, "primus"), only_printed(1, "primus"), **vary) == APART
    assert check("lr_used", run("a", 30, exact()), following, **vary) == EQUAL


def test_two_logs_of_one_unknown_trainer_print_alike() -> None:
    shifted = only_printed(1, framework="trainer0")
    assert check("lr_used", only_printed(0), shifted) == APART
    again = replace(only_printed(0), id="c", name="c", requested={**shifted.requested})
    assert check("lr_used", only_printed(0), again) == EQUAL


def test_another_schedule_is_apart_however_it_is_printed() -> None:
    other = run("x", 30, lambda i: {"lr": printed(rate(i, warmup=9)), "step_time_s": 1.0}, framework="trainer9")
    result = audited(only_printed(0), other, vary=("platform", "layout"))
    assert next((c.state, c.step) for c in result.checks if c.name == "lr_used") == ("apart", 1)


def test_rates_that_part_in_the_last_step_are_both_said() -> None:
    def last(i: int) -> dict[str, Any]:
        return {"lr": 0.5 if i == 29 else printed(rate(i)), "step_time_s": 1.0}

    result = audited(only_printed(0), run("x", 30, last, TP2, framework="trainer0"))
    found = next(c for c in result.checks if c.name == "lr_used")
    assert found.state == "apart" and "?" not in found.reason and " 0.5 at step" in found.reason


def test_a_rate_that_is_compared_or_declared_decides_nothing() -> None:
    over = {"lr": 3e-4, "lr_warmup_init": 5e-5}
    other = {"lr": 6e-4, "lr_warmup_init": 1e-4}
    pair = run("a", 30, exact(), over), run("b", 30, exact(6e-4), other)
    assert check("lr_used", *pair, vary=("lr",)) == ("varied", False)
    accepted = {"lr": "a scan", "lr_warmup_init": "a scan"}
    assert check("lr_used", *pair, accept=accepted) == APART
    both = audited(*pair, accept={**accepted, "lr_used": "a scan"})
    assert both.verdict.word == "comparable"
    assert "accepted: a scan" in next(c.reason for c in both.checks if c.name == "lr_used")


def test_tokens_seen_are_compared_with_each_other_step_by_step() -> None:
    def samples(each: int) -> Fields:
        return lambda i: {"consumed_samples": each * (i + 1), "loss": 5.0, "end_monotonic_s": 1.0 * i}

    first = run("a", 9, samples(8))
    assert check("tokens_seen", first, run("b", 9, samples(8), TP2)) == EQUAL
    refused(first, run("b", 9, samples(16), TP2), reason="tokens_seen: DP2 800; TP2 1,600 at step 0")
    unreported = run("b", 9, lambda i: {"end_monotonic_s": 1.0 * i}, TP2)
    assert check("tokens_seen", first, unreported) == EQUAL, "worked out from the batch"


def test_a_dropped_value_does_not_shift_a_curve_and_lost_lines_leave_tokens_unknown() -> None:
    complete, cut = run("a", 30, exact()), run("b", 30, exact(), TP2)
    gap = replace(cut, steps=tuple(step for step in cut.steps if step.step != 7))
    assert check("lr_used", complete, gap) == check("tokens_seen", complete, gap) == EQUAL
    assert check("tokens_seen", complete, replace(cut, steps=cut.steps[:10])) == UNKNOWN
    every_seventh = replace(cut, steps=tuple(s for s in cut.steps if (s.step + 1) % 7 == 0))
    assert check("tokens_seen", complete, every_seventh) == EQUAL


def summed(record: Record, other: int = -1) -> Record:
    """With a checksum of the tokens of each step; another one at step `other`."""
    steps = (replace(s, metrics={"tokens_checksum": 17.0 * s.step + (s.step == other)}) for s in record.steps)
    return replace(record, steps=tuple(steps))


def test_the_tokens_themselves_are_compared_with_each_other_where_a_probe_read_them() -> None:
    first, second = run("a", 9, exact()), run("b", 9, exact(), TP2)
    assert check("tokens_checksum", first, second) == UNKNOWN
    assert check("tokens_checksum", summed(first), summed(second)) == EQUAL
    refused(
        summed(first),
        summed(second, other=5),
        reason="tokens_checksum: DP2 and TP2 read other tokens at step 5",
    )


def losing(name: str, seed: int, over: Mapping[str, Any] | None = None, shift: float = 0.0, noise: int = 0) -> Record:
    """Return a loss curve as a seed has it: 0.01 of its own from step to step."""
    batches = random.Random(1000 * noise + seed)

    def fields(i: int) -> Mapping[str, Any]:
        return {"loss": 2 + 5 / (i + 2) + shift + batches.gauss(0, 0.01), "end_monotonic_s": 10.0 + i}

    return run(name, 80, fields, {"seed": seed, **(over or {})})


def sides(shift: float, seeds: Sequence[int] = (1, 2, 3)) -> list[Record]:
    return [losing(f"a{s}", s) for s in seeds] + [losing(f"b{s}", s, TP2, shift, noise=1) for s in seeds]


def test_losses_beyond_the_band_of_the_seeds_are_apart_both_ways() -> None:
    assert check("loss", *sides(0.0)) == EQUAL
    for shift in (0.05, -0.05):
        assert "the band of the seeds is ±" in audited(*sides(shift)).verdict.texts[0]
        assert check("loss", *sides(shift)) == APART
        assert check("loss", *sides(shift), accept={"loss": "fp8 against bf16"}) == ("declared", False)


@pytest.mark.parametrize(("shift", "side"), [(0.05, "above"), (-0.05, "below")])
def test_another_precision_at_another_loss_gives_no_ratio_until_it_is_accepted(shift: float, side: str) -> None:
    """The loss is part of the answer to vary=precision, and a speed is worth something at equal loss."""
    fp8 = {"fp8": "hybrid", "fp8_recipe": "delayed"}
    records = [losing(f"a{s}", s, {"fp8": None}) for s in (1, 2, 3)]
    records += [losing(f"b{s}", s, fp8, shift, noise=1) for s in (1, 2, 3)]
    result = compared(*records, vary=("precision",))
    assert (result.audit.verdict.word, result.ratios) == ("not comparable", ())
    (reason,) = result.audit.verdict.texts
    assert f"nats/token {side} fp8=None in the block from step 10" in reason
    assert f"nats/token {side} it in the last; the band of the seeds is ±" in reason
    assert text_of(headline(result)[0]).startswith("No ratio is given: the groups train to other losses")
    assert ": accept.loss=REASON" in text_of(next(advice(result)))
    accepted = compared(*records, vary=("precision",), accept={"loss": "0.05 will do"})
    assert accepted.audit.verdict.word == "comparable"
    assert accepted.ratios
    assert accepted.audit.verdict.texts[0].startswith("loss: accepted: 0.05 will do (fp8=hybrid is ")


def test_two_seeds_on_one_side_give_a_band() -> None:
    states = [check("loss", *sides(shift, seeds=(1, 2)))[0] for shift in (0.0, 0.5)]
    assert states == ["equal", "apart"]


def test_without_a_second_seed_only_what_is_far_off_is_apart() -> None:
    near = audited(*sides(0.02, seeds=(1,)))
    assert (near.verdict.word, near.checks[-1].state, near.checks[-1].decides) == ("comparable", "unknown", False)
    assert "no spread between seeds" in near.checks[-1].reason
    assert check("loss", *sides(0.5, seeds=(1,))) == APART


def test_losses_that_are_equal_missing_no_numbers_or_of_other_settings() -> None:
    first, second = losing("a", 1), losing("b", 1, TP2)
    same = audited(first, second).checks[-1]
    assert (same.state, same.reason) == ("equal", "bit-equal over 80 steps, seed by seed")
    broken = tuple(replace(s, loss=None, nonfinite=("loss",)) if s.step == 40 else s for s in second.steps)
    sick = replace(second, steps=broken)
    refused(first, sick, reason="loss: nan or inf in TP2 at step 40, a number in DP2")
    assert check("loss", first, run("b", 80, lambda i: {"end_monotonic_s": 10.0 + i}, TP2)) == UNKNOWN
    assert check("loss", first, losing("b", 1, {"adam_eps": 2}, 1.0), vary=("optimizer",)) == ("varied", False)
    assert check("loss", first, losing("b", 1, TP2, 1.0), vary=("layout",)) == APART


def test_losses_are_aligned_by_tokens() -> None:
    fine = run("a", 40, lambda i: {"loss": 9 - i / 10, "consumed_samples": 8 * (i + 1), "end_monotonic_s": 1.0 * i})
    coarse = tuple(replace(step, step=step.step // 2) for step in fine.steps[1::2])
    half = replace(made("b", over={"train_iters": 20, "global_batch_size": 16}), steps=coarse)
    result = audited(fine, half, vary=("training", "layout"))
    assert result.checks[-1].reason == "bit-equal over 20 steps, seed by seed"


def test_the_band_is_students_where_blocks_are_one() -> None:
    """A seed that shifts all of a curve, or one block: the blocks are one draw a seed, and no rotation needed."""
    noise = random.Random(7)
    for seeds in (2, 3, 5, 10):
        draws = [[noise.gauss(0, 1) for _ in range(seeds)] for _ in range(2)]
        shifted = [[[draw] * (BLOCKS - 1) for draw in side] for side in draws]
        alone = [[[draw] + [0.0] * (BLOCKS - 2) for draw in side] for side in draws]
        spread = math.sqrt(statistics.fmean(map(statistics.variance, draws)))
        student = stats.t.ppf(1 - RISK / 2, 2 * seeds - 2) * spread * math.sqrt(2 / seeds)
        for first, second in (shifted, alone):
            assert Band([first, second]).half_width(first, second) == pytest.approx(student, rel=0.06)


def leaving(seed: Callable[[float], list[float]], count: int, shift: float, pairs: int) -> float:
    """Return the share of pairs of groups of `count` seeds, one shifted, that are called apart."""

    def apart() -> bool:
        first, second = [seed(0.0) for _ in range(count)], [seed(shift) for _ in range(count)]
        return leaves(first, second, Band([first, second]).half_width(first, second)) is not None

    return sum(apart() for _ in range(pairs)) / pairs


@pytest.mark.parametrize("kind", ["mixed", "falling"])
def test_equal_stacks_are_seldom_called_apart(kind: str) -> None:
    """Count, of 600 pairs of groups of three: 4 in 100, give or take 0.8. With the larger of Student's t and a normal
    quantile for seven blocks they were 7.5, and 29 where blocks spread by halves."""
    noise = random.Random(7)

    def seed(_: float) -> list[float]:
        own = noise.gauss(0, 1)
        return [0.5**b * noise.gauss(0, 1) if kind == "falling" else own + noise.gauss(0, 1) for b in range(BLOCKS - 1)]

    assert leaving(seed, 3, 0.0, pairs=600) < 0.055


@pytest.mark.parametrize(("kind", "spread"), [("mixed", math.sqrt(2)), ("shifted", 1.0), ("independent", 1.0)])
def test_three_spreads_between_seeds_are_found_by_five(kind: str, spread: float) -> None:
    noise = random.Random(7)

    def seed(shift: float) -> list[float]:
        own = 0.0 if kind == "independent" else noise.gauss(0, 1)
        return [shift + own + (0.0 if kind == "shifted" else noise.gauss(0, 1)) for _ in range(BLOCKS - 1)]

    assert leaving(seed, 5, 3 * spread, pairs=100) >= 0.95


def test_groups_compared_with_one_baseline_share_the_risk() -> None:
    noise = random.Random(7)
    groups = [[[noise.gauss(0, 1) for _ in range(BLOCKS - 1)] for _ in range(3)] for _ in range(2)]
    widths = [Band(groups, comparisons).half_width(*groups) for comparisons in (1, 2, 10)]
    assert widths == sorted(widths) and widths[0] < 0.9 * widths[2]
    assert Band([[[1.0]], [[2.0]]]).spread is None, "one seed each"
    assert Band([[[1.0], [1.0]], [[2.0]]]).spread is None, "seeds that do not differ"
