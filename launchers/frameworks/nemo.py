"""framework=nemo: NVIDIA NeMo 2.x (launchers/ranks/nemo_ranks.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conf.check import wrong
from conf.errors import Problem
from conf.resolve import Experiment
from conf.vendors import vendor_of
from launchers import corpus
from launchers.nvidia import RANKS, RecipeStack


class Nemo(RecipeStack):
    name = "nemo"
    program = RANKS / "nemo_ranks.py"
    lists_on_one_line = True  # one entry a layer is no reading matter

    def settings(self, e: Experiment) -> dict[str, Any]:
        # the name in NeMo's flops_callback.py, for the TFLOP/s that it prints: qwen3's counts widths as configured;
        # llama3's and mixtral's have a vocabulary of their own, deepseekv3's wants a low rank of the queries
        mla = e.model.mla
        flops = "qwen3" if mla is None else None if mla.q_lora_rank is None else "deepseekv3"
        data = {"name": e.data.name, "path": e.data.path, "split": e.data.split, "vocab_size": e.model.vocab_size}
        return {
            "recipe": e.framework.recipes[e.model.name],
            "device": vendor_of(e.accelerator).torch_device,
            "nodes": e.nodes,
            "gpus_per_node": e.gpus_per_node,
            "seed": e.training.seed,
            "data": {**data, "samples": corpus.samples(e)},
            "precision": self.precision(e),
            "flops_formula": flops,
        }

    def refusals(self, e: Experiment) -> Iterator[Problem]:
        yield from super().refusals(e)
        if e.accelerator is None and e.training.save_interval and e.layout.world_size > 1:
            what = "with several ranks over gloo NeMo's checkpoint callback was seen to hang (Lightning's broadcast)"
            hint = "gpus_per_node=1, or framework=megatron_bridge"
            yield wrong(e, "training.save_interval", what, "null", hint)


FRAMEWORK = Nemo()
