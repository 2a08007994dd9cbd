"""Test how far rehearsals may part for the code of their models: a property of the pair, which compare says."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Any

import pytest

from compare.audit import Audit, Check
from compare.codes import pair_of, pairs, share
from compare.rehearsed import unlike
from conf.compose import choices
from conf.frameworks import facts
from parsers import Record
from parsers.read_back import Tensor
from tests.compare.made import compared, toy
from tests.compare.test_rehearsed import off

YES, NO, OPEN = "comparable", "not comparable", "cannot tell"
CODES = {name: facts(name).get("model_code") for name in choices("framework")}


def audited(*records: Record) -> Audit:
    return compared(*records).audit


def of(stack: str, share: float = 0.0, what: str = "loss", **settings: Any) -> Record:
    return off(toy(stack, settings, framework=stack), share, what)


def check(found: Audit, name: str) -> Check:
    return next(one for one in found.checks if one.name == name)


def test_every_pair_of_codes_has_a_row_with_a_reason_and_figures_of_each_precision() -> None:
    known = sorted({code for code in CODES.values() if code})
    assert known == ["Megatron-Core", "PyTorch", "TorchTitan", "transformers"]
    rows = [tuple(sorted(one.between)) for one in pairs()]
    assert len(rows) == len({*rows})
    alone = {("PyTorch", "PyTorch"), ("TorchTitan", "TorchTitan")}  # of one stack each
    assert {*rows} == {*combinations_with_replacement(known, 2)} - alone
    for one in pairs():
        assert one.reason
        assert one.bits or {*one.within} == {"float32", "bfloat16", "autocast"}
        of_all = {"loss", "grad_norm", "gradient", "weight"}
        assert all({*of_one} - {"bias"} == of_all for of_one in one.within.values())


def test_biases_have_a_band_of_their_own_where_it_is_given() -> None:
    """Hold them to it: those of keys have no gradient but rounding, and in bf16 their values are rounding, too."""
    ours, theirs = (
        {name: Tensor(norm=norm) for name in ("linear_qkv.bias", "linear_qkv.weight")} for norm in (1.0, 1.01)
    )
    assert unlike(ours, theirs, 1e-3, 2e-2) == ["linear_qkv.weight"]
    assert unlike(ours, theirs, 1e-3) == [*ours]
    assert unlike(ours, theirs, 2e-2) == []
    assert share(of("megatron"), of("hf"), "bias", None) == share(of("megatron"), of("hf"), "weight", None)
    bf16 = of("megatron", params_dtype="bfloat16"), of("deepspeed", params_dtype="bfloat16")
    assert share(*bf16, "bias", None) == 2e-2


@pytest.mark.parametrize("other", ["hf", "deepspeed", "torchtitan", "fsdp2"])
def test_other_codes_round_within_what_is_known_of_the_pair_and_it_is_said(other: str) -> None:
    inside = audited(of("megatron"), of(other, 1.0e-6 / 6))
    assert inside.verdict.word == YES
    text = check(inside, "loss").reason
    assert "2.0e-06 nats/token" in text
    assert str(CODES[other]) in text
    outside = audited(of("megatron"), of(other, 1.3e-4 / 6))
    assert (outside.verdict.word, check(outside, "loss").state) == (NO, "apart")
    assert audited(of("megatron"), of(other, 1e-3, "grad_norm")).verdict.word == NO


def test_bf16_and_autocast_have_figures_of_their_own() -> None:
    def verdict(nats: float, **settings: Any) -> str:
        one, other = of("megatron", **settings), of("hf", nats / 5, **settings)
        return audited(one, other).verdict.word

    assert [verdict(2.4e-3, params_dtype="bfloat16"), verdict(4.5e-3, params_dtype="bfloat16")] == [YES, NO]
    both = {"params_dtype": "bfloat16", "enable_autocast": True}
    assert [verdict(4.0e-3, **both), verdict(8e-3, **both)] == [YES, NO]


def test_one_code_is_bit_equal_also_beside_another_code_and_one_stack_with_itself() -> None:
    first, apart = of("fsdp2"), of("primus", 2e-8)
    assert audited(of("nemo"), apart).verdict.word == NO
    assert audited(first, of("nemo"), of("primus")).verdict.word == YES
    assert audited(first, of("nemo"), apart).verdict.word == NO
    assert pair_of(first, of("fsdp2")) is None
    assert pair_of(of("nemo"), of("primus")) is None


def test_a_code_that_nobody_has_measured_is_not_judged() -> None:
    found = audited(of("megatron"), of("mine", 1e-7))
    assert found.verdict.word == OPEN
    assert "no rounding was measured between Megatron-Core and mine" in check(found, "loss").reason
