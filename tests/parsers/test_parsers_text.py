"""Colours and prefixes."""

from __future__ import annotations

import pytest

from parsers.text import body, cell, colourless


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\x1b[32mINFO\x1b[0m", "INFO"),
        ("[32mINFO[0m", "INFO"),
        ("[1;31mstep[0m", "step"),
        ("\x1b[Ka\x1b[1A", "a"),
        ("a\0b", "ab"),
        ("[model] [m] [7] [1] [99m] [rank0]", "[model] [m] [7] [1] [99m] [rank0]"),
    ],
)
def test_colours_go_and_text_stays(text: str, plain: str) -> None:
    assert colourless(text) == plain


PREFIXES = ("0: ", "12: [default0]:", "[rank3]: ", "> 2: ", "(pretrain, pid=4112) ", "[2026-11-21 10:00:00] ")
MORE = ("(RayTrainWorker pid=12, ip=10.0.0.1) ", "2026-11-21T10:00:00.123456789Z ", "ining-demo/0 [default0]:")


def test_prefixes_go_and_what_is_none_stays() -> None:
    assert {body(f"{prefix}key: 1") for prefix in (*PREFIXES, *MORE)} == {"key: 1"}
    for text in ("key: 1", "  - 1", "    name: x", "", "loss: 1.5"):
        assert body(text) == text


def test_a_cell_is_no_formula_and_a_number_stays_one() -> None:
    values = ("=cmd|' /C calc'!A0", "+1", "@x", "\tx", "a=b", "\x1b[31m", -1.5, None)
    assert [*map(cell, values)] == ["'=cmd|' /C calc'!A0", "'+1", "'@x", "\ufffdx", "a=b", "\ufffd[31m", -1.5, None]
