"""The same settings give the same losses in every layout, because the engine's weights and data do not know it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest

from tests.engine import layouts as at

pytestmark = pytest.mark.engine
FP32, BF16 = 1e-5, 2e-3
# in bf16 a token at the border of two experts takes the other one by a rounding, which a CPU decides: 2.9e-3 on a Xeon
# without AMX or AVX512-BF16, below 2e-3 on others
BF16_EXPERTS = 1e-2
Reported = Callable[[str, object], None]


def difference(one: Any, other: Any) -> float:
    """Return the largest difference of losses, over the steps that the shorter of the two runs has."""
    assert one.code == other.code == 0, one.err + other.err
    pairs = list(zip(one.losses, other.losses, strict=False))
    assert len(pairs) == min(one.settings["train_iters"], other.settings["train_iters"])
    return float(max(abs(a - b) for a, b in pairs))


def reported(record_property: Reported, result: float) -> float:
    """`found`, kept for `pytest --junit-xml`: the table of all layouts."""
    record_property("largest_loss_difference", result)
    return result


def marked(names: Iterable[str], always: Collection[str]) -> list[Any]:
    """Return the names as parameters, those that are not in `always` marked slow."""
    return [pytest.param(name, marks=() if name in always else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("layout", marked(at.DENSE, at.ALWAYS))
def test_fp32_layouts_equal_the_single_process(run: Callable[..., Any], layout: str, record_property: Reported) -> None:
    assert reported(record_property, difference(run(**at.DENSE[layout]), run())) <= FP32


@pytest.mark.parametrize("layout", at.UNEVEN)
def test_stages_of_unequal_layers_equal_the_single_process(run: Callable[..., Any], layout: str) -> None:
    base, uneven = at.UNEVEN[layout]
    assert difference(run(**base, **uneven), run(**base)) <= FP32


@pytest.mark.parametrize("layout", marked(at.MIXTURE, ("EP2",)))
def test_layouts_of_experts_equal_the_single_process(
    run: Callable[..., Any], layout: str, record_property: Reported
) -> None:
    assert reported(record_property, difference(run(**at.EXPERTS, **at.MIXTURE[layout]), run(**at.EXPERTS))) <= FP32


@pytest.mark.parametrize("layout", marked(at.IN_BFLOAT16, at.ALWAYS))
def test_bf16_layouts_equal_the_single_process(run: Callable[..., Any], layout: str, record_property: Reported) -> None:
    base = {**at.BFLOAT16, **(at.EXPERTS if layout == "EP2" else {})}
    bound = BF16_EXPERTS if layout == "EP2" else BF16
    assert reported(record_property, difference(run(**{**base, **at.IN_BFLOAT16[layout]}), run(**base))) <= bound


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "layout"), [(model, layout) for model, (_, layouts) in at.VARIANTS.items() for layout in layouts]
)
def test_layouts_of_what_models_have_beyond_it(
    run: Callable[..., Any], model: str, layout: str, record_property: Reported
) -> None:
    base, layouts = at.VARIANTS[model]
    assert reported(record_property, difference(run(**base, **layouts[layout]), run(**base))) <= FP32


def test_each_model_setting_changes_the_losses(run: Callable[..., Any]) -> None:
    for changes in (at.LLAMA_LIKE, at.QWEN_LIKE, at.EXPERTS, at.DROPOUT):
        assert difference(run(**changes), run()) > FP32
    assert difference(run(**at.VARIANTS["deepseek"][0]), run(**at.EXPERTS)) > FP32
    assert difference(run(**at.BFLOAT16), run()) > 1e-7


def test_both_attentions_give_the_same_losses(run: Callable[..., Any]) -> None:
    assert difference(run(**at.VARIANTS["unfused"][0]), run()) <= FP32


def test_recomputation_changes_nothing(run: Callable[..., Any]) -> None:
    assert difference(run(**at.RECOMPUTE, **at.SHORT), run()) == 0
    assert difference(run(**at.DROPOUT, **at.RECOMPUTE), run(**at.DROPOUT)) == 0  # the same masks are drawn again


@pytest.mark.parametrize("layout", [{}, at.CP2], ids=["single", "CP2"])
def test_dropout_is_seeded_and_only_disturbs(run: Callable[..., Any], layout: dict[str, Any]) -> None:
    one = run(**at.DROPOUT, **layout, **at.SHORT)
    assert 1e-4 < difference(one, run()) < 0.3
    assert difference(one, run(**at.DROPOUT, **layout, train_iters=4)) == 0  # other processes


def test_loss_falls(run: Callable[..., Any]) -> None:
    for losses in (run().losses, run(**at.EXPERTS).losses, run(**at.DROPOUT).losses):
        assert losses[-1] < losses[0] - 1
