"""Which platform, hardware and defaults an experiment gets, and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conf import devices, load_experiment, summary

NVIDIA_SMI = "echo 'NVIDIA H200, 143771, 570.86.15'\n" * 2
ROCM_SMI = """cat <<'JSON'
{"card0": {"Card Series": "AMD Instinct MI300X", "VRAM Total Memory (B)": "206141652992"},
 "card1": {"Card Series": "AMD Instinct MI300X", "VRAM Total Memory (B)": "206141652992"},
 "system": {"Driver version": "6.10.5"}}
JSON
"""


@pytest.fixture(autouse=True)
def fresh_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    devices.find.cache_clear()
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """tool(name, body): a program of that name on PATH, as the vendor's would print."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def make(name: str, body: str) -> None:
        path = tmp_path / name
        path.write_text("#!/bin/sh\n" + body, encoding="utf-8")
        path.chmod(0o755)

    return make


@pytest.mark.usefixtures("tool")
def test_without_an_accelerator_it_is_the_cpu_and_the_tiny_model() -> None:
    e = load_experiment()
    assert (e.platform.name, e.model.name, e.hardware.name, e.precision.name) == ("cpu", "llama_tiny", "cpu", "fp32")
    assert "platform cpu: no accelerator found" in e.reasons


@pytest.mark.parametrize(
    ("vendor", "program", "body", "gpu", "memory_bytes", "driver", "visible"),
    [
        ("nvidia", "nvidia-smi", NVIDIA_SMI, "h200", 143771 * 2**20, "570.86.15", "CUDA_VISIBLE_DEVICES"),
        ("amd", "rocm-smi", ROCM_SMI, "mi300x", 206141652992, "6.10.5", "ROCR_VISIBLE_DEVICES"),
    ],
)
def test_a_gpu_that_is_here_decides_platform_hardware_and_count(
    tool: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    vendor: str,
    program: str,
    body: str,
    gpu: str,
    memory_bytes: int,
    driver: str,
    visible: str,
) -> None:
    tool(program, body)
    e = load_experiment("layout=data_parallel")
    assert (e.platform.name, e.model.name, e.hardware.name, e.gpus_per_node) == (vendor, "llama31_8b", gpu, 2)
    assert (devices.find().memory_bytes, devices.find().driver) == (memory_bytes, driver)
    for shown, count in (("1", 1), ("", 0)):
        devices.find.cache_clear()
        monkeypatch.setenv(visible, shown)
        assert devices.find().count == count
    assert load_experiment().platform.name == "cpu", "hidden GPUs are not there"


@pytest.mark.parametrize("body", ["exit 9\n", "echo 'No devices were found'\n", "echo\n", "printf '\\377\\376'\n"])
def test_a_tool_that_fails_or_finds_nothing_is_no_gpu(tool: Callable[[str, str], None], body: str) -> None:
    tool("nvidia-smi", body)
    tool("rocm-smi", body)
    assert load_experiment().platform.name == "cpu"


def test_an_unknown_gpu_runs_without_a_peak(tool: Callable[[str, str], None]) -> None:
    tool("nvidia-smi", "echo 'NVIDIA Z999, 1000, 1.0'\n")
    e = load_experiment("layout=data_parallel")
    assert e.hardware.name == "unknown_nvidia"
    assert e.hardware.peak_dense_tflops == {}


@pytest.mark.usefixtures("tool")
def test_without_a_gpu_a_plan_takes_the_platforms_own() -> None:
    assert load_experiment("platform=nvidia").hardware.name == "h100"
    assert load_experiment("platform=amd").hardware.name == "mi300x"


def test_per_platform_overrides_one_side_and_is_declared() -> None:
    overrides = ("model=llama", "per_platform.amd.precision=fp32", "per_platform.amd.training.seed=7", "layout=tp2")
    amd, nvidia = (load_experiment(f"platform={side}", *overrides) for side in ("amd", "nvidia"))
    assert (amd.precision.name, amd.training.seed) == ("fp32", 7)
    assert (nvidia.precision.name, nvidia.training.seed) == ("bf16", 1234)
    found = {d.key: d.value for d in amd.declared}
    assert found == {"params_dtype": "float32", "seed": 7}, "canonical settings, typed, whatever was overridden"
    assert nvidia.declared == ()


def test_the_users_own_price_for_a_gpu() -> None:
    e = load_experiment("platform=cpu", "price.usd_per_gpu_hour.mi355x=3.10")
    assert e.price.usd_per_gpu_hour == {"mi355x": 3.1}


def test_numbers_are_typed_as_on_every_other_command_line() -> None:
    price, steps = "price.usd_per_gpu_hour.mi355x=3.10 USD/gpu-hour", "per_platform.cpu.training.train_iters=1e3"
    e = load_experiment("platform=cpu", "training.seq_length=0.2k", "optimizer.weight_decay=10%", price, steps)
    assert (e.training.seq_length, e.training.train_iters, type(e.training.train_iters)) == (200, 1000, int)
    assert (e.optimizer.weight_decay, e.price.usd_per_gpu_hour) == (0.1, {"mi355x": 3.1})


def test_max_performance_comes_from_a_vendors_recipe() -> None:
    e = load_experiment("platform=amd", "model=llama", "layout=max_performance")
    assert "rimus" in (e.layout.source or "")
    assert (e.method, e.layout.name) == ("max_performance", "max_performance"), "the older spelling of the method"
    assert e.recipe and e.recipe.framework == e.framework.name == "primus"


def test_typed_sizes_beat_the_table() -> None:
    e = load_experiment("platform=nvidia", "model=llama", "layout.tensor_model_parallel_size=4")
    assert (e.layout.name, str(e.layout), e.layout.source) == ("explicit", "TP4 DP2 SP", None)


def test_the_summary_fits_a_screen_and_gives_reasons() -> None:
    text = summary(load_experiment("platform=nvidia", "model=llama", "layout=tp2_pp2"))
    assert len(text.splitlines()) <= 24
    assert "DP = 2: 8 GPUs / TP 2 / PP 2" in text and "8,030,261,248 parameters" in text
    text = summary(load_experiment("platform=nvidia", "model=deepseek_v3", "layout=data_parallel"))
    assert "671,026,419,200 parameters, 37,552,297,472 for a token, and 11,610,068,224 for multi-token" in text


def test_experts_take_less_memory_with_more_ranks_to_hold_them() -> None:
    from estimate.headroom import headroom

    base = ("platform=nvidia", "model=mixtral_8x7b", "layout=data_parallel", "gpus_per_node=8")
    complete, cut = (headroom(load_experiment(*base, f"layout.expert_model_parallel_size={ep}")) for ep in (1, 8))
    experts = 32 * 8 * 3 * 4096 * 14336
    assert complete.parameters - cut.parameters == experts * 7 // 8
    assert cut.parts["optimizer"] == complete.parts["optimizer"], "each expert's states lie on one rank either way"


def test_the_experiment_is_frozen() -> None:
    e = load_experiment("platform=cpu")
    with pytest.raises(AttributeError):
        e.training.seed = 3  # type: ignore[misc]
