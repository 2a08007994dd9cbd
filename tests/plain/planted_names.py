"""Name what is planted in the programs of framework=hf and torchtitan (planted_hf.py, planted_torchtitan.py, which need
them), and the checks and words by which a comparison must find it."""

from __future__ import annotations

VARIABLE = "PLANTED_IN_HF"
FOUND: dict[str, tuple[set[str], str]] = {
    "sampler": ({"inputs", "tokens_checksum"}, "other tokens are read"),
    "labels not shifted": ({"inputs"}, "the tokens are the same, and the labels are not"),
    "labels shifted twice": ({"inputs"}, "the tokens are the same, and the labels are not"),
    "schedule": ({"lr_used"}, "in the schedule"),
    "norms decay": (
        {"parameters_undecayed"},
        "in the optimizer of step 0: weight decay: megatron spares 1,152 parameters, hf 0",
    ),
}
IN_TORCHTITAN: dict[str, tuple[set[str], str]] = {
    "schedule": FOUND["schedule"],
    "norms decay": (
        {"parameters_undecayed"},
        "in the optimizer of step 0: weight decay: megatron spares 1,152 parameters, torchtitan 0",
    ),
}
