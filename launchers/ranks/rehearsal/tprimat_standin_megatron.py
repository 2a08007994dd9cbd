"""What Megatron-Core, NeMo and Bridge do unconditionally and a CPU cannot (M: megatron/core of 0.15.3)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tprimat_standin_parts import Replacement, answer, counts_as_numpy, decayed_first

_STACKS = "tests/rehearsal/test_standin_stacks.py::test_"


def _norm_of_a_shard(original: Any) -> Any:
    """The plain norm on this rank's shard; its weight is marked, so that Megatron sums its gradient over TP."""

    def new(cls: Any, config: Any, *arguments: Any, **options: Any) -> Any:
        plain = copy.copy(config)
        plain.sequence_parallel = False
        norm = original(cls, plain, *arguments, **options)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm

    return staticmethod(new)


def _backward(_: Any) -> Any:
    def custom_backward(output: Any, grad_output: Any) -> None:
        import torch

        torch.autograd.backward(output, grad_tensors=grad_output)

    return custom_backward


def _attention_without_cp(original: Callable[..., None]) -> Callable[..., None]:
    def init(self: Any, config: Any, *arguments: Any, **options: Any) -> None:
        plain = copy.copy(config)
        plain.context_parallel_size = 1
        original(self, plain, *arguments, **options)
        self.tprimat_is_split = config.context_parallel_size > 1

    return init


def _attention_on_the_shard(original: Callable[..., Any]) -> Callable[..., Any]:
    """Causal on the shard's own order: the mask that comes with the batch is of the whole sequence in one stack, and
    cut in the other."""

    def forward(
        self: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, *rest: Any, **named: Any
    ) -> Any:
        mask = None if self.tprimat_is_split else attention_mask
        return original(self, query, key, value, mask, *rest, **named)

    return forward


def _mock_arguments(original: Any) -> Any:
    def init(self: Any, tokenizer: Any, name: str, count: int, length: int, *_: Any) -> None:
        original(self, tokenizer, name, count, length, 42, True)

    return init


def _built_helpers(make: Callable[[], None]) -> Callable[[], None]:
    def compile_helpers() -> None:
        from megatron.core import datasets

        folder = Path(datasets.__file__).parent
        if (folder / "Makefile").exists() or not any(folder.glob("helpers_cpp*.so")):
            make()

    return compile_helpers


_ATTENTION = "megatron.core.transformer.dot_product_attention:DotProductAttention"
_SPLIT = "it asserts that the sequence is not split (M:transformer/dot_product_attention.py), which is "

MEGATRON = (
    Replacement(
        "megatron.core.transformer.torch_norm:WrappedTorchNorm",
        "__new__",
        _norm_of_a_shard,
        "asserts that the sequence is not parallel, which TransformerEngine's may be (M:transformer/torch_norm.py)",
        _STACKS + "tp2_sp_recomputed",
    ),
    Replacement(
        "megatron.core.pipeline_parallel.schedules",
        "deallocate_output_tensor",
        answer(None),
        "gloo sends from host memory in the background: freed before that, an output is NaN at the next stage",
        _STACKS + "pp2_vp2",
    ),
    Replacement(
        "megatron.core.pipeline_parallel.schedules",
        "custom_backward",
        _backward,
        "asserts that the output was freed as above",
        _STACKS + "pp2_vp2",
    ),
    Replacement(
        "megatron.core.optimizer",
        "_get_param_groups",
        decayed_first,
        "0.15 begins with the group of the rank's first parameter (M:optimizer/__init__.py:147), 0.16 with the decayed "
        "one (:189): a later stage's is linear_proj with TransformerEngine's layers, and here a norm, so that the "
        "gradient norm was summed in another order, and losses parted by 1e-4 in bf16",
        _STACKS + "tied_pp2_vp2",
    ),
    Replacement(_ATTENTION, "__init__", _attention_without_cp, _SPLIT + "TransformerEngine's part", _STACKS + "cp2"),
    Replacement(
        _ATTENTION,
        "forward",
        _attention_on_the_shard,
        _SPLIT + "done there: each rank attends to its own shard, so the loss is not context parallelism's",
        _STACKS + "cp2",
    ),
    Replacement(
        "megatron.core.transformer.moe.moe_utils",
        "te_general_gemm",
        lambda original: original,
        "RouterGatingLinearFunction reads this name, which only TransformerEngine defines",
        _STACKS + "moe_ep2",
        added=True,
    ),
    Replacement(
        "megatron.core.transformer.moe.moe_utils",
        "maybe_move_tensor_to_cpu",
        counts_as_numpy,
        "a CPU tensor is left a tensor, and gloo's all_to_all_single takes no tensors as split sizes",
        _STACKS + "moe_ep2",
    ),
    Replacement(
        "megatron.core.datasets.utils",
        "compile_helpers",
        _built_helpers,
        "the wheels hold helpers_cpp built and no Makefile, and Bridge and Primus run `make` whatever is there",
        _STACKS + "a_users_own_script_of_bridge",
    ),
    Replacement(
        "nemo.collections.llm.gpt.data.mock:_MockGPTDataset",
        "__init__",
        _mock_arguments,
        "NeMo 2.7.3 passes create_attention_mask in the place of seed (mock.py:110 against :184), and Megatron's own "
        "attention needs the mask",
        _STACKS + "a_users_own_script_of_nemo",
    ),
)
