"""Let Primus' ranks train where there is no GPU: Python loads this file in each of them, as sitecustomize.

Of Primus and TorchTitan nothing is edited. What is replaced is what torchtitan_ranks.on_a_cpu replaces, before Primus
imports TorchTitan."""

from __future__ import annotations

import os
import sys

if "LOCAL_RANK" in os.environ:
    sys.path[:0] = os.environ["TORCHTITAN_ON_A_CPU"].split(":")  # TorchTitan's source tree, and launchers/ranks
    import torchtitan_ranks

    torchtitan_ranks.on_a_cpu()
