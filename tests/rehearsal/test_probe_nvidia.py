"""The probe inside NVIDIA's stacks, each in an environment of its own: nothing that runs is otherwise than requested.

One toy for all: RoPE scaled as Llama 3.1's is, a vocabulary that is padded.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from probed import ROOT, assert_read_back, launched, requested

from conf.errors import ConfigError
from conf.frameworks import versions

pytestmark = pytest.mark.nvidia

TOY = (
    "model.rotary_base=500000.0",
    "model.use_rope_scaling=true",
    "model.rope_scaling_factor=8.0",
    "model.vocab_size=500",
)
STACKS = {
    "nemo": ("nemo_toolkit", "2.7.3", "TPRIMAT_NEMO_PYTHON", ".venv-nemo"),
    "megatron_bridge": ("megatron-bridge", "0.3.1", "TPRIMAT_BRIDGE_PYTHON", ".venv-bridge"),
}


def python_of(stack: str) -> str:
    """The interpreter that has it; else the test is skipped."""
    package, release, variable, folder = STACKS[stack]
    python = os.environ.get(variable, str(ROOT / folder / "bin" / "python"))
    try:
        result = versions((package,), python).get(package)
    except ConfigError:
        result = None
    if result != release:
        pytest.skip(f"{package} {release} is not in {python}")
    return python


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("layout", [(), ("layout=pp2", "gpus_per_node=2")], ids=["one rank", "PP2"])
def test_what_is_built_and_stepped_is_what_was_asked_for(tmp_path: Path, stack: str, layout: tuple[str, ...]) -> None:
    recipe = ("framework.recipes.llama_tiny=llama31_8b",) if stack == "nemo" else ()  # the one that scales RoPE
    overrides = (f"framework={stack}", f"framework.python={python_of(stack)}", *recipe, *TOY, *layout)
    e = requested(*overrides)
    record, _ = launched(tmp_path, *overrides)
    assert_read_back(record, e, world=e.layout.world_size)
    effective = {name: reading.value for name, reading in record.effective.items() if reading.file is not None}
    assert (effective["use_rope_scaling"], effective["rope_scaling_factor"], effective["rotary_base"]) == (
        True,
        8.0,
        5e5,
    )
    assert effective["padded_vocab_size"] == e.model.padded_vocab_size == 512
    assert effective["weight_decay"] == e.optimizer.weight_decay
