"""NeMo's own count of FLOPs, called in its environment, against ours."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from conf.freeze import freeze
from conf.schema import Model
from metrics.flops import flops_per_token
from metrics.shape import Shape, shape_of_model

pytestmark = pytest.mark.nvidia
MODELS = Path(__file__).parents[2] / "conf" / "model"
COUNT = """from nemo.utils.flops_formulas import FLOPSConfig, llama3, mixtral
sizes = dict(gbs=1, enc_seq_len=4096, hs=4096, layers=32, ffn_hs=14336, attention_heads=32, query_groups=8)
print(llama3(FLOPSConfig(vocab_size=128256, **sizes)) / 4096)
print(mixtral(FLOPSConfig(vocab_size=32000, moe_router_topk=2, **sizes)) / 4096)"""


def shape(name: str, vocabulary: int) -> Shape:
    entry = yaml.safe_load((MODELS / f"{name}.yaml").read_text(encoding="utf-8"))["model"]
    model = freeze(Model, entry, "model", [])
    assert isinstance(model, Model)
    return replace(shape_of_model(model), vocabulary=vocabulary)


def test_nemo_counts_the_same(nemo_python: str) -> None:
    """nemo/utils/flops_formulas.py: of Llama 3.1 8B and Mixtral 8x7B, for a token of 4,096."""
    done = subprocess.run([nemo_python, "-c", COUNT], capture_output=True, text=True, check=True)
    theirs = [float(line) for line in done.stdout.splitlines()[-2:]]
    ours = [flops_per_token(one, 4096) for one in (shape("llama31_8b", 128256), shape("mixtral_8x7b", 32000))]
    assert ours == pytest.approx(theirs, rel=1e-12)
