"""Equal initial weights in every layout, as rehearsal/tprimat_equal_init.py gives them to the vendors' stacks."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "rehearsal"))  # its modules find one another by their own names

from tprimat_equal_init import full_matrix, set_weights

__all__ = ["full_matrix", "set_weights"]
