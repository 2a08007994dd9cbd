"""Equal initial weights: one matrix for one name, however ranks and layouts keep it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "equal_weights.py"
FOLDER = Path(__file__).parents[2] / "launchers" / "ranks" / "rehearsal"
KINDS = ("dense", "moe", "mla")

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def weights(layout: tuple[int, int, int], *kinds: str, seed: int = 7) -> tuple[dict[str, Any], str]:
    """By kind what the program reports of models in this layout (TP, PP, EP), and all that it said."""
    ranks = layout[0] * layout[1] * layout[2]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    env = {**os.environ, "TPRIMAT_EQUAL_INIT": str(seed), "PYTHONPATH": str(FOLDER), "OMP_NUM_THREADS": "1"}
    argv = [*start, str(PROGRAM), *map(str, layout), *kinds]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    parts = [json.loads(line[8:]) for line in done.stdout.splitlines() if line.startswith("WEIGHTS ")]
    return {kind: rows for part in parts for kind, rows in part.items()}, done.stdout


@pytest.fixture(scope="module")
def complete() -> tuple[dict[str, Any], str]:
    """Return that of a single rank."""
    return weights((1, 1, 1), *KINDS, "grouped")


def test_a_matrix_is_what_it_was_in_every_release(complete: tuple[dict[str, Any], str]) -> None:
    result, said = complete
    # numpy guarantees RandomState's stream
    assert result["dense"]["decoder.layers.1.mlp.linear_fc1.weight"] == [192, 64, 558173873]
    assert result["dense"]["embedding.word_embeddings.weight"] == [128, 64, 1578510735]
    assert '[tprimat] facts {"equal_init": 7}' in said
    shared = result["dense"].keys() & result["moe"].keys()
    assert len(shared) > 3 and all(result["dense"][name] == result["moe"][name] for name in shared), (
        "one name, one matrix"
    )
    assert len({tuple(row) for row in result["moe"].values()}) == len(result["moe"]), "another name, another matrix"


def test_experts_in_one_matrix_are_the_experts_apart(complete: tuple[dict[str, Any], str]) -> None:
    assert complete[0]["grouped"] < 1e-7


@pytest.mark.parametrize(
    ("layout", "kinds"), [((2, 1, 1), KINDS), ((1, 2, 1), KINDS), ((1, 1, 2), ("moe",))], ids=["TP2", "PP2", "EP2"]
)
def test_every_layout_has_the_same_weights(
    complete: tuple[dict[str, Any], str], layout: tuple[int, int, int], kinds: tuple[str, ...]
) -> None:
    result, _ = weights(layout, *kinds)
    assert result == {kind: complete[0][kind] for kind in kinds}


def test_another_seed_is_another_model(complete: tuple[dict[str, Any], str]) -> None:
    result, _ = weights((1, 1, 1), "dense", seed=8)
    assert all(result["dense"][name] != row for name, row in complete[0]["dense"].items())
