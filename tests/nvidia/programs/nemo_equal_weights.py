"""launchers/ranks/nemo_ranks.py with the engine's initial weights: each matrix a function of its global name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent.parent / "launchers" / "ranks"))
import nemo_ranks
import vendor_standin

SEED = 1234
install = vendor_standin.install


def install_and_hook() -> str | None:
    """The weights are set at the end of GPTModel's making, before DDP and the optimizer copy them."""
    name = install()
    import engine_init
    from megatron.core.models.gpt import gpt_model

    make = gpt_model.GPTModel.__init__

    def make_equal(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        engine_init.set_weights(self, SEED)

    gpt_model.GPTModel.__init__ = make_equal
    return name


vendor_standin.install = install_and_hook
sys.exit(nemo_ranks.main())
