"""Test where two rehearsals are said to part: the first thing that differs in the order of a step, and what it looks
like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from compare.parting import ORDER, Parting
from parsers import Record, Step
from parsers.read_back import Batch, Object, Optimizer, Output, Tensor
from tests.compare.made import compared, each, read_back, tensors, toy

NEMO: dict[str, Any] = {"framework": "nemo"}
PRIMUS: dict[str, Any] = {"framework": "primus"}
Change = Callable[[Record], Record]


def read(**known: Any) -> Change:
    """Return what gives a record other readings."""
    return lambda record: replace(record, read_back=read_back(**known))


def series(what: str, factor: float, first: int) -> Change:
    """Return what changes a loss or a norm from a step on."""

    def changed(step: Step) -> Step:
        return step if step.step < first else replace(step, **{what: getattr(step, what) * factor})

    return lambda record: each(record, changed)


def metric(**values: float) -> Change:
    return lambda record: each(record, lambda s: replace(s, metrics={**s.metrics, **values}))


def batch(step: int, **other: Any) -> Change:
    """Return what changes the input of one step."""

    def of(one: Batch) -> Batch:
        return replace(one, **other) if one.step == step else one

    return read(batches=tuple(map(of, read_back().batches)))


def optimizer(**other: Any) -> Change:
    before = read_back().optimizer or Optimizer()
    return read(optimizer=replace(before, **other))


def rates(of: Callable[[int], tuple[float, ...]], **other: Any) -> Change:
    """Return what changes the rates of the groups of parameters, of each step."""
    return optimizer(rates=tuple(map(of, range(12))), **other)


def of_size(change: Change, over: Mapping[str, Any]) -> tuple[Change, Mapping[str, Any]]:
    return change, over


def both(*changes: Change) -> Change:
    def all_of(record: Record) -> Record:
        for change in changes:
            record = change(record)
        return record

    return all_of


LOSS = series("loss", 1.001, 0)
LATER = series("loss", 1.0001, 1)
GROUPS = {"betas": [0.9, 0.95], "eps": 1e-8}
OUTPUTS = {
    name: Output(checksum=at, norm=1.0, passes=(at, at + 10, at + 20), recomputed=(at, at + 10))
    for at, name in enumerate(("embedding", "decoder.layers.0.self_attention", "decoder.layers.1.mlp", "output_layer"))
}
OTHER_OUTPUTS = {**OUTPUTS, **{n: Output(checksum=99, norm=1.1) for n in ("output_layer", "decoder.layers.1.mlp")}}


def later(**passes: tuple[int, ...]) -> dict[str, Output]:
    """Return outputs of which some passes of one module are others."""
    name = "decoder.layers.1.mlp"
    return {**OUTPUTS, name: replace(OUTPUTS[name], **passes)}


DP = {"data_parallel_size": 4}
TP = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
PP = {"pipeline_model_parallel_size": 2}

CASES: dict[str, tuple[Change, Mapping[str, Any], str, str]] = {
    "another first weight": (
        both(read(first_weights=tensors(2.0, "embedding")), LOSS),
        {},
        "first weights",
        "embedding.word_embeddings.weight",
    ),
    "a parameter more": (
        read(first_weights={**tensors(), "extra.bias": Tensor(checksum=1, norm=1.0)}),
        {},
        "first weights",
        "extra.bias only in primus",
    ),
    "other tokens later": (both(batch(3, tokens=77), series("loss", 1.1, 3)), {}, "data", "of step 3: other tokens"),
    "labels": (both(batch(0, labels=77), LOSS), {}, "data", "the labels are not"),
    "masked": (
        both(batch(0, loss_mask=77, masked=12), LOSS),
        {},
        "mask",
        "masked targets: 0 of 800 in nemo, 12 in primus",
    ),
    "forward": (both(LOSS, read(first_gradients=tensors(1.01, "layers"))), {}, "forward", "and the first loss is not"),
    "reported loss": (LOSS, {}, "loss", "the loss that is reported is not"),
    "loss scaled": (
        both(series("loss", 4.0, 0), series("grad_norm", 4.0, 0), read(first_gradients=tensors(4.0))),
        {},
        "loss",
        "loss and gradients are 4.00 times",
    ),
    "accumulation": (
        both(series("grad_norm", 8.0, 0), read(first_gradients=tensors(8.0))),
        {"num_micro_batches": 8},
        "backward",
        "every gradient of primus is 8.00 times nemo's: accumulation is not averaged (over 8 micro-batches)",
    ),
    "accumulation on the other side": (
        both(series("grad_norm", 1 / 8, 0), read(first_gradients=tensors(1 / 8))),
        {"num_micro_batches": 8},
        "backward",
        "every gradient of nemo is 8.00 times primus's",
    ),
    "sum over ranks": (
        both(series("grad_norm", 4.0, 0), read(first_gradients=tensors(4.0))),
        DP,
        "gradient reduction",
        "a sum, and no mean, over 4 data parallel ranks",
    ),
    "norms without their all-reduce": (
        both(LATER, read(first_gradients=tensors(1.3, "norm"))),
        TP,
        "gradient reduction",
        "sequence parallelism without their all-reduce",
    ),
    "replicas that differ are not read": (
        both(
            series("grad_norm", 1.2, 0),
            read(first_gradients={n: t for n, t in tensors().items() if "norm" not in n}),
        ),
        TP,
        "gradient reduction",
        "have no reading in primus: its replicas hold different ones",
    ),
    "norms doubled": (
        read(first_gradients=tensors(2.0, "norm")),
        {},
        "backward",
        "gradients of the norms differ (2.00",
    ),
    "tied embedding": (
        read(first_gradients=tensors(0.7, "embedding")),
        PP,
        "gradient reduction",
        "not summed over the first and the last stage",
    ),
    "below a layer": (
        read(first_gradients={**tensors(), **{n: t for n, t in tensors(1.4).items() if "layers.0" in n or "emb" in n}}),
        {},
        "backward",
        "from the loss down decoder.layers.0.mlp.linear_fc1.weight is the first whose gradient differs",
    ),
    "norm of the gradients": (series("grad_norm", 1.2, 0), {}, "clipping", "the norm of them is not"),
    "clip": (both(metric(clip_coefficient=0.5), LATER), {}, "clipping", "clipped by 0.5000, nemo's by 0.2500"),
    "growing decay": (
        both(optimizer(weight_decays=(0.1,) * 4 + (0.2,) * 8), series("loss", 1.0001, 5)),
        {},
        "optimizer",
        "primus's grows from 0.1 to 0.2 from step 4 on",
    ),
    "epsilon": (
        both(optimizer(groups=({**GROUPS, "eps": 1e-5},)), LATER),
        {},
        "optimizer",
        "eps: nemo 1e-08; primus 1e-05",
    ),
    "L2": (
        both(optimizer(groups=({**GROUPS, "decoupled_weight_decay": False},)), LATER),
        {},
        "optimizer",
        "decoupled weight decay is off in primus",
    ),
    "state": (
        both(optimizer(state={"exp_avg": "bfloat16", "master": "float32"}), LATER),
        {},
        "optimizer",
        "exp_avg is kept in float32 by nemo, in bfloat16 by primus",
    ),
    "decay of norms": (
        both(LATER, read(last_weights=tensors(0.9, "norm"))),
        {},
        "optimizer",
        "the weights of the norms alone that it makes are not",
    ),
    "rates": (
        both(lambda r: each(r, lambda s: replace(s, lr_used=1e-3 + 1e-5 * (s.step > 3))), series("loss", 1.001, 5)),
        {},
        "schedule",
        "primus steps at 0.00101, nemo at 0.001",
    ),
    "a rate of its own": (
        both(rates(lambda step: (1e-3,) if step == 0 else (1e-3, 1e-3 * (1 + step))), series("loss", 1.0001, 2)),
        {},
        "schedule",
        "of step 1: primus steps at 0.001 and 0.002, nemo at 0.001",
    ),
    "a multiple of the rate": (
        both(rates(lambda step: (0.5e-3, 1e-3)), LATER),
        {},
        "optimizer",
        "primus steps at 0.0005 and 0.001, nemo at 0.001: a group of parameters has a multiple of the rate",
    ),
    "more groups round otherwise": (
        both(optimizer(groups=(GROUPS,) * 3), series("grad_norm", 1 + 1e-7, 0)),
        {},
        "optimizer",
        "nemo steps 2 groups of parameters, primus 3: the norm of equal gradients is summed in another order",
    ),
    "a rate of its own in a group more": (
        both(
            rates(lambda step: (1e-3,) if step == 0 else (1e-3, 1e-3 * (1 + step)), groups=(GROUPS,) * 3),
            series("grad_norm", 1 + 1e-7, 0),
            series("loss", 1.0001, 2),
        ),
        {},
        "schedule",
        "of step 1",
    ),
    "a rate of its own, whose groups round otherwise at that step": (
        both(
            rates(lambda step: (1e-3,) if step == 0 else (1e-3, 1e-3 * (1 + step)), groups=(GROUPS,) * 3),
            series("grad_norm", 1 + 1e-7, 1),
            series("loss", 1.0001, 2),
        ),
        {},
        "schedule",
        "of step 1",
    ),
    "the last weights alone": (read(last_weights=tensors(1.1)), {}, "optimizer", "of step 11"),
}


def where(change: Change, over: Mapping[str, Any]) -> tuple[Parting | None, str, tuple[str, ...]]:
    first, second = toy("a", dict(over), **NEMO), change(toy("b", dict(over), **PRIMUS))
    first = metric(clip_coefficient=0.25)(first)
    if not any("clip_coefficient" in step.metrics for step in second.steps):
        second = metric(clip_coefficient=0.25)(second)
    audit = compared(first, second).audit
    return audit.parting, audit.verdict.word, audit.verdict.texts


@pytest.mark.parametrize("case", CASES)
def test_the_part_of_a_step_is_named(case: str) -> None:
    change, over, part, says = CASES[case]
    parting, word, reasons = where(change, over)
    assert parting is not None and (parting.part, word) == (part, "not comparable"), (parting, reasons)
    assert says in parting.sentence and reasons[0].startswith(parting.sentence)


def test_of_all_that_differs_the_first_decides() -> None:
    parting, *_ = where(both(LOSS, batch(0, labels=77)), {})
    assert parting is not None and parting.part == "data"
    assert ORDER.index("data") < ORDER.index("forward")


MLP = "decoder.layers.1.mlp is "


@pytest.mark.parametrize(
    ("outputs", "part", "says"),
    [
        (OTHER_OUTPUTS, "forward", f"{MLP}the first module whose output differs"),
        (OUTPUTS, "loss", "every module's output is equal"),
        (later(passes=(2, 12, 99)), "forward", f"{MLP}the first module whose output differs, in micro-batch 2"),
        (later(recomputed=(2, 99)), "backward", f"{MLP}recomputed in the backward pass of micro-batch 1"),
        (later(recomputed=(2, 99), passes=(2, 99, 22)), "forward", "differs, in micro-batch 1"),
        (later(recomputed=(99, 12), passes=(2, 99, 22)), "backward", "of micro-batch 0"),
    ],
)
def test_the_first_module_is_named_where_the_losses_part(outputs: Mapping[str, Output], part: str, says: str) -> None:
    first = replace(toy("a", **NEMO), read_back=read_back(first_outputs=OUTPUTS))
    second = LOSS(replace(toy("b", **PRIMUS), read_back=read_back(first_outputs=outputs)))
    parting = compared(first, second).audit.parting
    assert parting is not None and parting.part == part
    assert says in parting.sentence


def test_what_can_be_the_cause_is_said() -> None:
    def built(percent: float) -> dict[str, Object]:
        return {"TransformerConfig": Object(kind="T", fields={"rotary_percent": percent, "hidden_size": 8})}

    first = replace(toy("a", **NEMO), read_back=read_back(objects=built(1.0)))
    second = LOSS(
        replace(toy("b", **PRIMUS), read_back=read_back(objects=built(0.5), first_gradients=tensors(1.1, "qkv")))
    )
    parting = compared(first, second).audit.parting
    assert parting is not None and parting.causes == ("rotary_percent 1.0 / 0.5",)
    assert parting.text.endswith("what can do this differs (nemo / primus): rotary_percent 1.0 / 0.5")


def computed(in_fp32: bool, factor: float, **fields: Any) -> Record:
    """Return a rehearsal whose outputs are equal, and whose gradients are off by a factor."""
    config = Object(kind="T", fields={"attention_softmax_in_fp32": in_fp32, **fields})
    apart = {"grad_norm": factor} if factor != 1 else {}
    known = read_back(
        objects={"TransformerConfig": config}, first_outputs=OUTPUTS, first_gradients=tensors(factor, "qkv")
    )
    alone = {"data_parallel_size": 1, "tensor_model_parallel_size": 1, "params_dtype": "bfloat16"}
    made = replace(toy("b" if in_fp32 else "a", alone, **(PRIMUS if in_fp32 else NEMO)), read_back=known)
    return both(*(series(what, by, 0) for what, by in apart.items()), *([LATER] if apart else []))(made)


@pytest.mark.parametrize(
    ("factor", "fields", "part"),
    [
        (1.0001, {}, "forward"),
        (1.1, {}, "backward"),
        (1.0001, {"gradient_accumulation_fusion": True}, "backward"),
    ],
)
def test_gradients_that_round_otherwise_below_equal_outputs_are_of_the_forward_pass(
    factor: float, fields: Mapping[str, Any], part: str
) -> None:
    """Where something of the forward pass is known to differ, and nothing of the backward pass."""
    absent = dict.fromkeys(fields, False)
    parting = compared(computed(False, 1.0, **absent), computed(True, factor, **fields)).audit.parting
    assert parting is not None and parting.part == part, parting
    assert any("attention_softmax_in_fp32" in cause for cause in parting.causes) == (part == "forward")


def test_the_order_of_micro_batches_is_data_where_the_layouts_are_one() -> None:
    parting, word, _ = where(both(batch(0, order=77), series("grad_norm", 1.001, 0)), {})
    assert parting is not None and (parting.part, word) == ("data", "not comparable")
    first, second = toy("a", DP), batch(0, order=77)(toy("b", {"data_parallel_size": 1}))
    assert compared(first, second).audit.parting is None


def test_of_weights_of_their_own_the_fields_are_named_and_the_decay_that_was_stepped() -> None:
    def own(name: str, percent: float, **known: Any) -> Record:
        objects = {"TransformerConfig": Object(kind="T", fields={"rotary_percent": percent, "save_dir": name})}
        made = toy(name, framework=name, read_back=read_back(objects=objects, **known))
        return LOSS(replace(made, environment={**made.environment, "equal_init": None})) if name == "b" else made

    audit = compared(own("a", 1.0), own("b", 0.5)).audit
    assert (audit.parting, audit.verdict.word) == (None, "cannot tell")
    assert audit.verdict.texts[-1].endswith("(a / b), and can make the losses part: rotary_percent 1.0 / 0.5")
    adam = read_back().optimizer
    assert adam is not None
    steps = {how: {"optimizer": replace(adam, decay=how)} for how in ("decoupled", "L2")}
    parting = compared(own("a", 1.0, **steps["decoupled"]), own("b", 1.0, **steps["L2"])).audit.parting
    assert parting is not None and "decoupled weight decay is off in b: L2" in parting.sentence


def test_equal_rehearsals_part_nowhere() -> None:
    assert where(lambda record: record, {})[:2] == (None, "comparable")
