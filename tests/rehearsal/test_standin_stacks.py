"""The stand-in under NVIDIA's own stacks: a user's own script, and the layouts that need more of it than one rank does.

(TP2 with sequence parallelism, PP2 and DP2: tests/nvidia.)"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from conf import load_experiment
from launchers.frameworks.megatron_bridge import hub_answer
from launchers.rank_modules import rank_module
from tests.rehearsal.stacks import interpreter, rehearsed
from tests.rehearsal.test_launch_rehearsal import command, record
from tests.rehearsal.test_standin_start import FOLDER

pytestmark = pytest.mark.nvidia

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
TOY = (
    "model=llama_tiny",
    "training.train_iters=8",
    "optimizer.lr_warmup_iters=2",
    "gpus_per_node=2",
    "equal_init=false",
)


def own(folder: Path, python: str, program: str, *arguments: str, **variables: str) -> str:
    """Return the log of a user's own script, which is started as ever, but for two variables."""
    ours = {"PYTHONPATH": str(FOLDER), "TPRIMAT_REHEARSE": "train"}
    launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}
    argv = (python, str(PROGRAMS / program), *arguments)
    env = {**os.environ, **ours, **launched, "HF_HUB_OFFLINE": "1", **variables}
    done = subprocess.run(
        argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert '[tprimat] rehearsal {"mode": "train", "rank": 0, "world": 1, "stand_in": "torch.cuda"' in done.stdout
    assert "degraded" not in done.stdout
    return done.stdout


def test_a_users_own_script_of_nemo(tmp_path: Path) -> None:
    """Needs _MockGPTDataset.__init__."""
    log = own(tmp_path, interpreter("nemo"), "own_nemo.py", str(tmp_path))
    assert len(re.findall(r"reduced_train_loss: \d+\.\d+", log)) == 3


def test_a_users_own_script_of_bridge(tmp_path: Path) -> None:
    """Needs compile_helpers."""
    before = dict(os.environ)
    try:
        rank_module("bridge_ranks").seed_cache(
            str(tmp_path), hub_answer("llama31_8b_pretrain_config", load_experiment("model=llama").model)
        )
    finally:
        os.environ.clear()
        os.environ.update(before)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    log = own(tmp_path, interpreter("megatron_bridge"), "own_bridge.py", HF_HOME=str(tmp_path), **alone)
    assert len(re.findall(r"lm loss: \d\.\d+E", log)) == 3


def losses(folder: Path, stack: str, *overrides: str) -> list[float]:
    """Return the losses of a rehearsal that got to its end, and went down."""
    made, _ = rehearsed(folder, stack, *TOY, *overrides)
    assert made.status == "completed", made
    result = [step.loss for step in made.steps if step.loss is not None]
    assert len(result) == 8
    assert result[0] - result[-1] > 0.5
    return result


def test_tied_pp2_vp2(tmp_path: Path) -> None:
    """Needs deallocate_output_tensor, custom_backward and _get_param_groups: groups in another order on the last stage
    are another last bit of the gradient norm, which bf16 shows in 8 steps."""
    sizes = ("layout.pipeline_model_parallel_size=2", "layout.virtual_pipeline_model_parallel_size=2")
    requested = ("model=llama32_1b", "equal_init=true", *sizes)
    first, *others = (losses(tmp_path / stack, stack, *requested) for stack in ("nemo", "megatron_bridge", "megatron"))
    assert others == [first, first]


@pytest.mark.parametrize(("stack", "key"), [("nemo", "optim.config"), ("megatron_bridge", "optimizer")])
def test_the_fused_optimizer_is_given_what_it_is_on_a_gpu(stack: str, key: str, tmp_path: Path) -> None:
    """Needs Adam and USING_PYTORCH_OPTIMIZER."""
    made, _ = rehearsed(tmp_path, stack, wrong={f"{key}.decoupled_weight_decay": False})
    assert made.status == "completed" and made.read_back is not None and made.read_back.optimizer is not None
    optimizer = made.read_back.optimizer
    betas = [made.requested["adam_beta1"], made.requested["adam_beta2"]]
    given = {"betas": betas, "eps": made.requested["adam_eps"], "adam_w_mode": False, "bias_correction": True}
    assert optimizer.kind == "tprimat_standin.FusedAdam"
    assert {name: optimizer.arguments[name] for name in given} == given


def test_experts_are_equal_to_the_last_bit(tmp_path: Path) -> None:
    requested = ("model=moe_tiny", "gpus_per_node=1", "equal_init=true")
    first, second = (losses(tmp_path / stack, stack, *requested) for stack in ("nemo", "megatron"))
    assert first == second


OWN_LAYERS = """
import tprimat_standin; tprimat_standin.install()
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
from megatron.core import parallel_state; parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
from megatron.core.models.gpt import gpt_layer_specs as specs
from megatron.core.transformer import TransformerConfig
config = TransformerConfig(num_layers=2, hidden_size=8, num_attention_heads=2, mtp_num_layers=1)
*_, last = specs.get_gpt_decoder_layer_specs(config, use_transformer_engine=True)
(joint,) = specs.get_gpt_mtp_block_spec(config, last, use_transformer_engine=True).layer_specs
alone = specs.get_gpt_layer_with_transformer_engine_spec(None, qk_layernorm=True)
cores = [layer.submodules.self_attention.submodules.core_attention for layer in (last, alone)]
print(*(module.__name__ for module in (*cores, joint.submodules.eh_proj)))
"""


def test_layers_of_transformer_engine_are_megatrons_own(tmp_path: Path) -> None:
    """Needs get_gpt_decoder_layer_specs, get_gpt_mtp_block_spec and get_gpt_layer_with_transformer_engine_spec."""
    env = {**os.environ, "PYTHONPATH": str(FOLDER), "TPRIMAT_REHEARSE": "layout", "OMP_NUM_THREADS": "1"}
    argv = (interpreter("megatron_bridge"), "-c", OWN_LAYERS)
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-3:] == ["DotProductAttention", "DotProductAttention", "ColumnParallelLinear"]


def test_latent_attention_and_a_stage_of_multi_token_prediction_alone(tmp_path: Path) -> None:
    """Needs HAVE_TE of multi_latent_attention. Bridge 0.3.1 forgets latent attention in such a stage
    (gpt_provider.py, mtp_block_spec takes default_layer_spec), and so does every run of this recipe."""
    interpreter("megatron_bridge")
    case = ("model=deepseek_v3", "platform=nvidia", "hardware=h100", "nodes=128", "precision=bf16", "batch=vendor")
    stack = ("framework=megatron_bridge", "framework.release=0.3.1", "method=max_performance")
    recipe = "recipe=deepseek_v3_pretrain_config_h100_bf16_v1"
    code, rows = command("launch", *case, *stack, recipe, "rehearse=layout", f"runs_dir={tmp_path}")
    reported, _ = record(rows[0]["run"])
    assert code == 1 and reported["cause"].startswith("rank 1022 has ")
    assert "mtp.layers.0.transformer_layer.self_attention.linear_kv_down_proj.weight: absent" in reported["cause"]
    assert "latent attention's kernel" in reported["not_rehearsed"]


def test_cp2(tmp_path: Path) -> None:
    """Needs DotProductAttention.__init__ and .forward."""
    losses(tmp_path, "nemo", "layout.context_parallel_size=2")


def test_moe_ep2(tmp_path: Path) -> None:
    """Needs te_general_gemm and maybe_move_tensor_to_cpu."""
    losses(tmp_path, "nemo", "model=moe_tiny", "layout.expert_model_parallel_size=2")


def test_tp2_sp_recomputed(tmp_path: Path) -> None:
    """Needs WrappedTorchNorm.__new__."""
    sizes = ("layout.tensor_model_parallel_size=2", "layout.sequence_parallel=true")
    layers = ("training.recompute_method=uniform", "training.recompute_num_layers=1")
    losses(tmp_path, "nemo", *sizes, "training.recompute_granularity=full", *layers)
