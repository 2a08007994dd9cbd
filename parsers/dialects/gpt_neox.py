"""GPT-NeoX: "samples/sec: R | iteration N/ TOTAL | … | lm_loss: …", and NeoX's own names in its argument dump.

A second line a step ("steps: N loss: …", DeepSpeed's) repeats it with fewer digits, and is read where there is no
other: in the log of a node without the last rank. Which step's rate is printed is not settled: no lr_used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parsers.dialects import deepspeed, megatron
from parsers.dialects.megatron_deepspeed import NodeDriver

# Pipeline 0 is one stage, run without DeepSpeed's pipeline engine (megatron/initialize.py); one expert is the MLP.
_MEANT: Mapping[tuple[str, Any], Any] = {
    ("pipe_parallel_size", 0): 1,
    **{("moe_num_experts", count): None for count in (0, 1)},
    **{("precision", word): f"float{word[2:]}" for word in ("fp16", "fp32")},
}


class _Driver(NodeDriver):
    def value(self, name: str, printed: str) -> Any:
        """Return 512 for "512.........................updated": dots fill up to where the value came from."""
        value = super().value(name, re.sub(r"\.{0,100}(?:updated|default)$", "", printed))
        if name == "optimizer":  # {'type': 'Adam', 'params': …}
            named = re.search(r"'type': '(\w{1,40})'", printed)
            return value if named is None else named[1].lower()
        return _MEANT.get((name, value), value)


DIALECT = replace(
    megatron.DIALECT,
    framework="gpt_neox",
    clock="",
    rate_of=(0, 1),
    includes=("deepspeed",),
    looks_for="GPT-NeoX: 'samples/sec: ' before Megatron's iteration line, 'NeoXArgs'",
    signs=(b"NeoXArgs", b"| approx flops per GPU: ", b"| lm_loss: "),
    marks=(*megatron.DIALECT.marks, *deepspeed.DIALECT.marks),
    startup=(
        *(mark for mark in megatron.DIALECT.startup if mark != b"using world size"),
        *(b"  world_size .", b"Using topology: {", b"> total params: "),
    ),
    prints_next_rate=False,
    # DeepSpeed's own dump: the launcher's says None, and "using world size: 1" is said by the launcher too.
    settings=(
        *(*megatron.DIALECT.settings, r"  world_size {1,40}\.{2,80} {0,2}(?P<world_size>\d{1,9})\s*$"),
        r"Using topology: \{(?P<world_size>ProcessCoord\(.{1,60000}\): \d{1,6})\}",  # every rank's place
    ),
    facts=(*megatron.DIALECT.facts, r"> total params: (?P<parameters>[\d,]{1,24})\s*$"),
    conversions={"world_size": lambda text: text.count("ProcessCoord(") or int(text)},
    driver=_Driver,
)
