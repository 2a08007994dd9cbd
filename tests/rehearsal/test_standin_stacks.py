"""The stand-in under NVIDIA's own stacks: a user's own script, and the layouts that need more of it than one rank does.

(TP2 with sequence parallelism, PP2 and DP2: tests/nvidia.)"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from stacks import free_port, interpreter, rehearsed
from test_standin_start import FOLDER

from conf import load_experiment
from launchers.frameworks.megatron_bridge import hub_answer
from launchers.rank_modules import rank_module

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
    launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
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
    record, _ = rehearsed(folder, stack, *TOY, *overrides)
    assert record.status == "completed", record
    result = [step.loss for step in record.steps if step.loss is not None]
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
    record, _ = rehearsed(tmp_path, stack, wrong={f"{key}.decoupled_weight_decay": False})
    assert record.status == "completed" and record.read_back is not None and record.read_back.optimizer is not None
    optimizer = record.read_back.optimizer
    betas = [record.requested["adam_beta1"], record.requested["adam_beta2"]]
    given = {"betas": betas, "eps": record.requested["adam_eps"], "adam_w_mode": False, "bias_correction": True}
    assert optimizer.kind == "tprimat_standin.FusedAdam"
    assert {name: optimizer.arguments[name] for name in given} == given


def test_experts_are_equal_to_the_last_bit(tmp_path: Path) -> None:
    requested = ("model=moe_tiny", "gpus_per_node=1", "equal_init=true")
    first, second = (losses(tmp_path / stack, stack, *requested) for stack in ("nemo", "megatron"))
    assert first == second


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
