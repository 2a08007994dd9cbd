"""NeMo's own count of FLOPs, called in its environment, against ours."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from conf import load_experiment
from metrics.flops import flops_per_token
from metrics.shape import shape_of_model

pytestmark = pytest.mark.nvidia
COUNT = """from nemo.utils.flops_formulas import FLOPSConfig, llama3, mixtral
sizes = dict(gbs=1, enc_seq_len=4096, hs=4096, layers=32, ffn_hs=14336, attention_heads=32, query_groups=8)
print(llama3(FLOPSConfig(vocab_size=128256, **sizes)) / 4096)
print(mixtral(FLOPSConfig(vocab_size=32000, moe_router_topk=2, **sizes)) / 4096)"""


def test_nemo_counts_the_same(nemo_python: str) -> None:
    """nemo/utils/flops_formulas.py: of Llama 3.1 8B and Mixtral 8x7B, for a token of 4,096."""
    done = subprocess.run([nemo_python, "-c", COUNT], capture_output=True, text=True, check=True)
    theirs = [float(line) for line in done.stdout.splitlines()[-2:]]
    models = {"llama31_8b": 128256, "mixtral_8x7b": 32000}
    fixed = ("platform=nvidia", "layout=data_parallel")
    shapes = {name: shape_of_model(load_experiment(*fixed, f"model={name}").model) for name in models}
    ours = [flops_per_token(replace(shape, vocabulary=models[name]), 4096) for name, shape in shapes.items()]
    assert ours == pytest.approx(theirs, rel=1e-12)
