"""Test how strictly rehearsals are compared: bit for bit in one layout, within measured rounding in two; what cannot be
tested is never comparable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from compare.audit import Audit, Check
from compare.groups import group
from compare.rehearsed import ALWAYS_READ, MARGIN, ROUNDING, SIZES
from conf.vocabulary import vocabulary
from metrics import shown
from parsers import Record, Run
from parsers.read_back import Object, Output
from parsers.record import Validation
from tests.compare.made import TP2, compared, each, made, objects, ran, read_back, silent, tensors, toy

YES, NO, OPEN = "comparable", "not comparable", "cannot tell"
NEMO: dict[str, Any] = {"framework": "nemo"}
PRIMUS: dict[str, Any] = {"framework": "primus"}


def off(record: Record, share: float, what: str = "loss", first: int = 0) -> Record:
    """Return `record` whose loss or gradient norm is off by a share, from a step on."""
    return each(record, lambda s: s if s.step < first else replace(s, **{what: getattr(s, what) * (1 + share)}))


def audited(*records: Record, **question: Any) -> Audit:
    return compared(*records, **question).audit


def check(of: Audit, name: str) -> Check:
    return next(one for one in of.checks if one.name == name)


@pytest.mark.parametrize("what", ["loss", "grad_norm"])
def test_in_one_layout_anything_but_the_same_numbers_is_not_comparable(what: str) -> None:
    same = audited(toy("a", **NEMO), toy("b", **PRIMUS))
    assert (same.verdict.word, check(same, what).reason) == (YES, "bit-equal over 12 steps, seed by seed")
    apart = audited(toy("a", **NEMO), off(toy("b", **PRIMUS), 1e-6, what, 3))
    assert (apart.verdict.word, check(apart, what).step) == (NO, 3)
    assert "from the same weights in one layout" in check(apart, what).reason
    renamed = {**off(toy("b", **PRIMUS), 1e-6, what, 3).environment}  # as Primus' programs name it
    renamed["torch_version"] = renamed.pop("torch")
    of_primus = replace(off(toy("b", **PRIMUS), 1e-6, what, 3), environment=renamed)
    assert check(audited(toy("a", **NEMO), of_primus), what) == check(apart, what)


def test_between_layouts_the_band_is_that_of_measured_rounding_and_is_shown() -> None:
    measured = next(
        one.largest[0] for one in ROUNDING if (one.precision, one.differs, one.what) == ("float32", "TP", "loss")
    )
    inside = audited(toy("a"), off(toy("b", TP2 | {"data_parallel_size": 2}), measured))
    assert inside.verdict.word == YES
    assert "of rounding between TP (4 × measured, benchmarks/rounding.py)" in check(inside, "loss").reason
    outside = audited(toy("a"), off(toy("b", TP2 | {"data_parallel_size": 2}), 2 * MARGIN * measured))
    assert (outside.verdict.word, check(outside, "loss").state) == (NO, "apart")


@pytest.mark.parametrize(("factor", "word"), [(1 + 1.1 * 2**-24, YES), (1 + 16 * 2**-24, NO)])
def test_between_layouts_norms_round_also_where_a_band_was_measured_to_be_nothing(factor: float, word: str) -> None:
    stages = {"pipeline_model_parallel_size": 2, "data_parallel_size": 1}
    assert [one.largest for one in ROUNDING if (one.differs, one.what) == ("PP", "gradient")] == [(0.0,)] * 2
    gradients = read_back(first_gradients=tensors(factor, "layernorm"))
    one, other = toy("a", NEMO), replace(toy("b", {**NEMO, **stages}), read_back=gradients)
    assert compared(one, other).audit.verdict.word == word


def test_validations_may_differ_by_the_order_in_which_they_are_added_up_and_by_no_more() -> None:
    """With the losses of Primus v26.5.1 and of the engine in one rehearsal, of 2 x 4 micro-batches."""
    exact, settings = 6.796536445617676, {"eval_interval": 4, "eval_iters": 2}

    def validated(name: str, loss: float) -> Record:
        made = toy(name, {"global_batch_size": 4, "micro_batch_size": 1, "data_parallel_size": 1, **settings})
        return replace(made, validations=(Validation(line=1, iteration=4, loss=loss),))

    def found(loss: float) -> Check:
        return check(audited(validated("a", exact), validated("b", loss)), "validation")

    assert found(exact).reason.startswith("bit-equal over 1 steps")
    printed = found(6.796537)  # with seven digits
    assert (printed.state, printed.reason) == (
        "equal",
        f"at most {shown(1 / 6.796537e6, 2)} of it apart, as sums of 8 losses in another order may be",
    )
    assert found(exact * (1 + 3e-6)).state == "apart"


def test_every_band_that_may_be_looked_up_was_measured() -> None:
    settings = [name for names in SIZES.values() for name in names]
    assert {*settings} <= vocabulary().keys()
    measured = {(one.precision, one.differs, one.what) for one in ROUNDING}
    assert measured == {
        (precision, differs, what)
        for precision in ("float32", "bfloat16")
        for differs in {*SIZES} - {"CP"}
        for what in ("loss", "grad_norm", "gradient", "weight")
    }
    assert all(list(one.largest) == sorted(one.largest) for one in ROUNDING)


CANNOT: dict[str, tuple[Callable[[Record], Record], str]] = {
    "other weights": (
        lambda r: off(replace(r, environment={"launcher_commit": "a" * 40}), 0.03),
        "begin with equal ones",
    ),
    "no gradient norm": (lambda r: each(r, lambda s: replace(s, grad_norm=None)), "reports no gradient norm"),
    "nothing read": (lambda r: replace(r, read_back=None), "has no reading of the weights before the first step"),
    "no gradients": (
        lambda r: replace(r, read_back=read_back(first_gradients={})),
        "has no reading of the gradients of the first step",
    ),
    "no batches": (lambda r: replace(r, read_back=read_back(batches=())), "has no reading of its batches"),
    "no loss": (lambda r: each(r, lambda s: replace(s, loss=None)), "reports no loss"),
    "no checksums": (lambda r: each(r, lambda s: replace(s, metrics={})), "report no checksums of the same step"),
    "no rates": (lambda r: each(r, lambda s: replace(s, lr_used=None)), "reports no learning rate"),
    "another torch": (
        lambda r: off(replace(r, environment={**r.environment, "torch": "2.9"}), 1e-9),
        "rehearse both on one",
    ),
    "fewer steps": (lambda r: replace(r, steps=r.steps[:-1]), "do not report it of the same steps"),
}


LACKING: dict[str, dict[str, Any]] = {
    "objects": {"objects": {}},
    "process": {"process": None},
    "Switches": {"objects": {"OptimizerConfig": Object(kind="O", fields={"lr": 1e-3})}},
    "optimizer": {"optimizer": None},
    "first_outputs": {"first_outputs": {}},
    "drawn": {"drawn": {}},
    "order": {"batches": tuple(replace(one, order=None) for one in read_back().batches)},
}


@pytest.mark.parametrize("name", LACKING)
def test_what_one_of_two_records_was_not_read_of_is_not_known_and_of_both_it_is_no_difference(name: str) -> None:
    more = read_back(
        objects=objects(OptimizerConfig=Object(kind="O", fields={"lr": 1e-3})),
        first_outputs={"embedding": Output(checksum=5)},
    )
    older = replace(more, **LACKING[name])
    first, second = (toy(n, **of, read_back=more) for n, of in (("a", NEMO), ("b", PRIMUS)))
    assert audited(first, second).verdict.word == YES
    for pair in ((first, replace(second, read_back=older)), (replace(first, read_back=older), second)):
        verdict = audited(*pair).verdict
        assert verdict.word == OPEN and any(name in text for text in verdict.texts), verdict.texts
    both = audited(replace(first, read_back=older), replace(second, read_back=older)).verdict
    assert both.word == (OPEN if name in ("drawn", "Switches", *ALWAYS_READ) else YES), "what every rehearsal has"


def test_what_an_optimizer_is_given_decides_though_no_number_shows_it() -> None:
    before = read_back().optimizer
    assert before is not None
    other = replace(before, groups=({**before.groups[0], "eps": 1e-6},))
    of = audited(toy("a", **NEMO), replace(toy("b", **PRIMUS), read_back=read_back(optimizer=other)))
    assert of.verdict.word == NO and check(of, "parting").step == 0
    assert "eps: nemo 1e-08; primus 1e-06" in of.verdict.texts[0]


@pytest.mark.parametrize("case", CANNOT)
def test_what_cannot_be_tested_is_not_known(case: str) -> None:
    change, reason = CANNOT[case]
    verdict = audited(toy("a", **NEMO), change(toy("b", **PRIMUS))).verdict
    assert verdict.word in ((OPEN, NO) if case == "fewer steps" else (OPEN,))
    assert any(reason in text for text in verdict.texts), verdict.texts


def test_two_stacks_with_context_parallelism_are_open_whatever_their_losses() -> None:
    """Each stack's attention leaves it out in its own way: that they part is no difference of theirs."""
    first, second = (toy(n, {"context_parallel_size": 2}, **of) for n, of in (("a", NEMO), ("b", PRIMUS)))
    part = audited(first, off(second, 0.03))
    assert part.verdict.word == OPEN and part.parting is None
    assert any("context parallelism is not rehearsed" in text for text in part.verdict.texts)


def test_a_measured_run_needs_none_of_it() -> None:
    pair = (made("a", **NEMO), made("b", **PRIMUS))
    assert audited(*pair).verdict.word == YES
    assert audited(*(each(one, lambda s: replace(s, loss=None)) for one in pair)).verdict.word == YES


def test_a_switch_that_is_on_beside_silence_is_shown_and_softmax_in_fp32_decides() -> None:
    on, off = (ran(toy("b", **PRIMUS), eod_mask_loss=value) for value in (True, False))
    nemo = silent(toy("a", **NEMO), "eod_mask_loss")
    verdict = audited(replace(nemo, requested={}), replace(on, requested={})).verdict
    assert verdict.word == OPEN and any("eod_mask_loss" in text for text in verdict.texts)
    assert audited(replace(nemo, requested={}), replace(off, requested={})).verdict.word == YES
    fp32 = ran(toy("b", **PRIMUS), attention_softmax_in_fp32=True)
    assert audited(ran(toy("a", **NEMO), attention_softmax_in_fp32=False), fp32).verdict.word == NO
    measured = [ran(made(n, **of), attention_softmax_in_fp32=v) for n, of, v in (("a", NEMO, True), ("b", PRIMUS, 0))]
    assert "attention_softmax_in_fp32" not in " ".join(
        audited(*(replace(m, requested={}) for m in measured)).verdict.texts
    )


def test_ranks_that_were_played_have_no_loss_and_are_compared_by_their_settings() -> None:
    played = [
        replace(toy(name, **known), steps=(), not_rehearsed={"loss": "no step is made"})
        for name, known in (("a", NEMO), ("b", PRIMUS))
    ]
    assert audited(*played).verdict.word == YES


def test_records_of_two_versions_of_ours_are_compared_where_the_user_accepts_it() -> None:
    facts = {"equal_init": 1, "launcher_commit": "b" * 40}
    pair = (toy("a", **NEMO), replace(toy("b", **PRIMUS), environment=facts))
    refused = audited(*pair).verdict
    assert refused.word == NO and "two versions of TensorPrimat made the records" in refused.texts[0]
    assert audited(*pair, accept={"launcher_commit": "only the docs changed"}).verdict.word == YES


# the newest decides


def started(record: Record, hour: int, **known: Any) -> Record:
    return replace(record, id=f"{record.id}{hour}", started_at=f"2026-11-23T{hour:02}:00:00+00:00", **known)


def test_an_older_success_does_not_stand_for_a_newer_failure() -> None:
    nemo, old = started(toy("a", **NEMO), 9), started(toy("b", **PRIMUS), 10)
    assert audited(nemo, old).verdict.word == YES
    failed = started(toy("b", **PRIMUS), 11, status="failed", steps=())
    verdict = audited(nemo, old, failed).verdict
    assert (verdict.word, verdict.texts[0]) == (OPEN, "no completed run: primus")
    assert any("was rehearsed again" in text for text in verdict.texts)
    at_once = started(toy("b", **PRIMUS), 10, status="failed", steps=())
    assert audited(nemo, old, at_once).verdict.word == OPEN, "of two that began at once nobody knows which is newer"
    again = started(toy("b", **PRIMUS), 12)
    assert audited(nemo, failed, again).verdict.word == YES


def test_one_that_could_not_begin_has_the_request_and_not_the_toy() -> None:
    """Its record has the sizes that were requested, the toy's has its own and what was requested beside them."""
    nemo = started(toy("a", **NEMO), 9)
    small = started(toy("b", **PRIMUS, shrunk={"num_layers": {"asked": 32, "ran": 1}}), 10)
    failed = started(toy("b", {"num_layers": 32}, **PRIMUS, not_rehearsed={}), 11, status="failed", steps=())
    assert audited(nemo, small, failed).verdict.word == OPEN
    fixed = replace(small, started_at="2026-11-23T12:00:00+00:00")
    assert audited(nemo, failed, fixed).verdict.word == YES


def test_the_newest_of_thousands_of_attempts_is_looked_up() -> None:
    """Each against each other would take minutes."""
    sizes = [{"global_batch_size": 8 * (1 + n % 1000)} for n in range(3000)]
    of_all = [toy("a", over, **NEMO) for over in sizes[:1000]]
    runs = [Run(f"r{n}", started(of_all[n % 1000], n // 1000)) for n in range(3000)]
    begun = time.process_time()
    groups = group(runs)
    assert time.process_time() - begun < 60
    assert [[run.path for run in one.runs] for one in groups] == [[f"r{n}"] for n in range(2000, 3000)]
    assert [run.path for run in groups[7].older] == ["r7", "r1007"]


def test_a_stack_without_a_completed_run_leaves_it_open() -> None:
    two = toy("a", **NEMO), toy("b", **PRIMUS)
    lost = replace(toy("c", framework="megatron_bridge"), status="failed", steps=())
    verdict = audited(*two, lost).verdict
    assert (verdict.word, verdict.texts[0]) == (OPEN, "no completed run: megatron_bridge")


def test_two_seeds_are_no_two_attempts() -> None:
    runs = [
        started(toy(name, {"seed": seed}, **of), 9 + seed)
        for name, of in (("a", NEMO), ("b", PRIMUS))
        for seed in (1, 2)
    ]
    assert [len(group.runs) for group in compared(*runs).groups] == [2, 2]
