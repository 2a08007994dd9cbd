"""The one answer that a recipe of Megatron-Bridge wants from the Hugging Face hub, put where its client looks first.

Every recipe reads config.json of its model when it is built: from the network, and some repositories are gated. The
answer is ours (launchers/hugging_face.py), so it checks nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_COMMIT = "0" * 40


def seed(folder: str, answer: Mapping[str, Any]) -> None:
    """Make `folder` an offline cache that holds `answer`: {id, revisions, config}. Before huggingface_hub is imported,
    which reads the variables then."""
    home = Path(folder) / "hub" / ("models--" + answer["id"].replace("/", "--"))
    for commit in (_COMMIT, *answer["revisions"]):
        snapshot = home / "snapshots" / commit
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / "config.json").write_text(json.dumps(answer["config"]), encoding="utf-8")
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / "main").write_text(_COMMIT, encoding="utf-8")
    os.environ.update({"HF_HOME": folder, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
    os.environ.pop("HF_HUB_CACHE", None)
