"""Settings that cannot be run are refused before torch is imported, with all problems at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from layouts import EP2, EXPERTS, RECOMPUTE, TP2_SP, VP2

Settings = Callable[..., dict[str, Any]]


@pytest.fixture
def refusal(tmp_path: Path, engine_without_torch: str) -> Callable[..., str]:
    """A function from settings, or any text, to rank 0's words; it asserts that they are refused in the agreed way."""

    def words(settings: dict[str, Any] | str, world_size: str | None = "1") -> str:
        path = tmp_path / "s.json"
        path.write_text(settings if isinstance(settings, str) else json.dumps(settings))
        env = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
        env |= {} if world_size is None else {"RANK": "0", "WORLD_SIZE": world_size}
        command = [sys.executable, engine_without_torch, "--settings", str(path)]
        ended = subprocess.run(command, env=env, check=False, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2, ended.stderr
        assert "Traceback" not in ended.stderr
        assert ended.stdout == ""
        return ended.stderr

    return words


def test_all_problems_are_listed(refusal: Callable[..., str], settings_of: Settings) -> None:
    wrong = settings_of(num_layers="four", hidden_size=64.0, sequence_parallel=1, lr=float("nan"), fp8="hybrid")
    wrong |= {"context_parallel_size": 0, "hidden_dropout": 1.0, "hiden_size": 64, "seed": True}
    del wrong["clip_grad"]
    message = refusal(wrong)
    assert message.startswith("engine: settings refused, 10 problems\n")
    for key in wrong.keys() & {"num_layers", "hidden_size", "sequence_parallel", "lr", "fp8", "context_parallel_size"}:
        assert re.search(rf"s\.json: {key}: found .*; allowed: .*; try: .+", message)
    assert "hiden_size: found an unknown key; allowed: canonical names; try: use hidden_size" in message
    assert "clip_grad: found nothing" in message
    assert 'fp8: found "hybrid"; allowed: null (fp8 needs TransformerEngine)' in message


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_query_groups": 3}, "num_attention_heads"),
        ({"tensor_model_parallel_size": 2, "ffn_hidden_size": 161}, "ffn_hidden_size"),
        ({"tensor_model_parallel_size": 4}, "num_query_groups"),
        ({"pipeline_model_parallel_size": 3}, "num_layers"),
        ({"global_batch_size": 7}, "global_batch_size"),
        ({"vocab_size": 513}, "vocab_size"),
        ({"seq_length": 129}, "seq_length"),
        ({"min_lr": 1.0}, "min_lr"),
        ({"lr_warmup_iters": 18}, "lr_warmup_iters"),
        ({"sequence_parallel": True}, "sequence_parallel"),
        ({"use_rope_scaling": True}, "rope_scaling_factor"),
        ({"overlap_param_gather": True}, "overlap_param_gather"),
        ({"recompute_granularity": "full"}, "recompute_method"),
        ({"recompute_num_layers": 1}, "recompute_num_layers"),
        ({"virtual_pipeline_model_parallel_size": 2}, "virtual_pipeline_model_parallel_size"),
        ({"virtual_pipeline_model_parallel_size": 3, "pipeline_model_parallel_size": 2}, "num_layers"),
        ({**VP2, "global_batch_size": 6}, "num_micro_batches"),
        ({**VP2, **RECOMPUTE, "recompute_num_layers": 2}, "recompute_num_layers"),
        ({"context_parallel_size": 2, "seq_length": 62}, "seq_length"),
        ({"context_parallel_size": 2, "attention_backend": "unfused"}, "attention_backend"),
        ({"attention_backend": "flash"}, "attention_backend"),
        ({**EP2}, "expert_model_parallel_size"),
        ({**EXPERTS, "data_parallel_size": 2, "expert_model_parallel_size": 4}, "expert_model_parallel_size"),
        ({**EXPERTS, **EP2, "num_experts": 3}, "expert_model_parallel_size"),
        ({**EXPERTS, "moe_router_topk": 5}, "moe_router_topk"),
        ({**EXPERTS, "moe_ffn_hidden_size": None}, "moe_ffn_hidden_size"),
        ({**EXPERTS, "moe_first_dense_layers": 4}, "moe_first_dense_layers"),
        ({**EXPERTS, "moe_router_load_balancing_type": "global_aux_loss"}, "moe_router_load_balancing_type"),
        ({**EXPERTS, "add_bias_linear": True}, "add_bias_linear"),
        ({**EXPERTS, "tensor_model_parallel_size": 2}, "sequence_parallel"),
        ({**EXPERTS, **TP2_SP, "moe_ffn_hidden_size": 81}, "moe_ffn_hidden_size"),
        ({"moe_router_topk": 2}, "moe_router_topk"),
        ({"multi_latent_attention": True}, "multi_latent_attention"),
        ({"kv_lora_rank": 16}, "kv_lora_rank"),
        ({"mtp_num_layers": 1}, "mtp_num_layers"),
        ({"save_interval": 0}, "save_interval"),
        ({"swiglu": False}, "swiglu"),
        ({"rotary_base": "1e4"}, "rotary_base"),
    ],
)
def test_values_that_do_not_fit(
    refusal: Callable[..., str], settings_of: Settings, changes: dict[str, Any], key: str
) -> None:
    settings = settings_of(**changes)
    message = refusal(settings, str(settings["world_size"]))
    assert f"s.json: {key}: found " in message


def test_world_size_is_torchruns(refusal: Callable[..., str], settings_of: Settings) -> None:
    assert "world_size: found 1, and torchrun started 2" in refusal(settings_of(), "2")
    assert "no WORLD_SIZE" in refusal(settings_of(), None)
    assert "world_size: found 3; allowed: 1 =" in refusal({**settings_of(), "world_size": 3}, "3")


@pytest.mark.parametrize("text", ["", "[1]", "3", "{", '{"lr": 1, "lr": 2}'])
def test_files_that_are_no_settings(refusal: Callable[..., str], text: str) -> None:
    assert "engine: settings refused" in refusal(text)


@pytest.mark.engine
def test_only_rank_0_speaks(tmp_path: Path, torchrun: Callable[[Path, int], list[str]], settings_of: Settings) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(settings_of(data_parallel_size=2, num_layers=0)))
    ended = subprocess.run(torchrun(path, 2), check=False, capture_output=True, text=True, timeout=60)
    assert ended.stderr.count("engine: settings refused") == 1
    assert re.search(r"exitcode +: 2 ", ended.stderr)


@pytest.mark.engine
def test_layouts_that_gloo_cannot_carry_are_refused(in_rank: Callable[[str], str], settings_of: Settings) -> None:
    code = f"""
import engine_standin
engine_standin.install()
import engine_train
from engine_settings import Settings
try:
    engine_train._set_up_groups(Settings(**{settings_of(**EXPERTS, **TP2_SP, **EP2)!r}))
except engine_train.DeviceError as error:
    print(error)
"""
    assert in_rank(code).startswith("TP 2 x EP 2: gloo cannot gather the experts' unequal numbers of tokens; try TP 1")
