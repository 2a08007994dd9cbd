"""The cases in which NVIDIA's plans are held: model × GPU × precision × framework, each at a size that it runs at."""

from __future__ import annotations

from collections.abc import Mapping

MODELS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "llama": (8, ()),
    "qwen": (8, ()),
    "llama31_70b": (64, ()),
    "mixtral_8x7b": (8, ("layout.expert_model_parallel_size=8",)),
    "deepseek_v3": (64, ("layout.expert_model_parallel_size=64",)),
}
"""GPUs, and the sizes of a layout where the table has no row."""
HARDWARE = ("h100", "h200", "b200", "gb200")
PRECISIONS = ("bf16", "fp8")
FRAMEWORKS = ("nemo", "megatron_bridge")


def overrides(model: str, hardware: str, precision: str, framework: str) -> tuple[str, ...]:
    """One case as launch.py takes it."""
    gpus, layout = MODELS[model]
    nodes = gpus // (4 if hardware == "gb200" else 8)
    return (
        *("platform=nvidia", f"model={model}", f"hardware={hardware}", f"precision={precision}"),
        *(f"framework={framework}", f"nodes={nodes}", *layout),
        *("cluster.master_addr=head", "cluster.master_port=29500", "cluster.node_rank=0"),
    )
