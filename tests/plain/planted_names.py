"""Name what is planted in the program of framework=hf (planted_hf.py, which needs transformers), and the checks and
words by which a comparison must find it."""

from __future__ import annotations

VARIABLE = "PLANTED_IN_HF"
FOUND: dict[str, tuple[set[str], str]] = {
    "sampler": ({"inputs", "tokens_checksum"}, "other tokens are read"),
    "labels not shifted": ({"inputs"}, "masked targets"),
    "labels shifted twice": ({"inputs"}, "masked targets"),
    "schedule": ({"lr_used"}, "in the schedule"),
    "norms decay": ({"parameters_undecayed"}, "norms"),
}
