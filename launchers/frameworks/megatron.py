"""framework=megatron: the embedded engine (launchers/ranks/engine.py) under torchrun, on CPU, CUDA or ROCm."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.check import wrong
from conf.errors import Problem
from conf.resolve import Experiment
from conf.shapes import Sizes
from conf.vendors import vendor_of
from launchers import attribute_settings, corpus
from launchers.frameworks import Framework
from launchers.plan import Host, Plan
from launchers.rehearse import MOCK_VOCABULARY
from launchers.variables import machine, place, started

ENGINE = Path(__file__).parents[1] / "ranks" / "engine.py"
SETTINGS = "settings.json"


class Megatron(Framework):
    name = "megatron"
    takes_environment = False  # of the engine's own few, launchers/variables.py knows
    own_stand_in = True  # a light one: launchers/ranks/engine_standin.py
    goes_on = True

    def render(self, e: Experiment, host: Host) -> Plan:
        engine = (str(ENGINE), "--settings", SETTINGS)
        return Plan(
            setup=corpus.setup(e, host.python),
            argv=started(e, host.python, engine),
            files={SETTINGS: json.dumps(settings(e), indent=2) + "\n"},
            forward_env=e.cluster.forward_env,
        ).with_env({**machine(e, host), **place(e)})

    def refusals(self, e: Experiment) -> Iterator[Problem]:
        if e.rehearse == "layout":
            what = "playing a rank would show nothing: the engine has no rules beyond those of conf/"
            yield wrong(e, "rehearse", what, "train", "rehearse=train, or a vendor's framework")
        if e.precision.fp8:
            what = "fp8 needs TransformerEngine, which the embedded engine does without"
            yield Problem("precision", what, hint="precision=bf16")
        if e.data.name == "mock" and e.model.vocab_size < MOCK_VOCABULARY:
            what = (
                "Megatron-Core 0.15.3's mock data has ids up to 4094 whatever the vocabulary: too many for this model"
            )
            allowed = f"a vocabulary of {MOCK_VOCABULARY} or more"
            yield Problem("data", what, str(e.model.vocab_size), allowed, "data=synthetic")
        training = replace(e.training, keep_checkpoints=None)  # the engine prunes its own, and goes on from them
        yield from attribute_settings.problems(replace(e, resume=False, training=training), self.table)
        yield from _unfit(e)

    def preflight(self, e: Experiment) -> Iterator[Problem]:
        system = platform.system()
        if system != "Linux":
            what = "Megatron-Core has no wheel for this system: the engine runs on Linux"
            yield Problem("framework", what, system, "Linux")


def settings(experiment: Experiment) -> dict[str, Any]:
    """Return the engine's settings file: every requested setting by canonical name, how many checkpoints
    stay, and the device it is meant for."""
    assigned = attribute_settings.assignments(experiment, FRAMEWORK.table)
    kept = experiment.training.keep_checkpoints or attribute_settings.KEEP_CHECKPOINTS
    return {**assigned.set, "keep_checkpoints": kept, "device": vendor_of(experiment.accelerator).torch_device}


def _unfit(e: Experiment) -> Iterator[Problem]:
    """Yield sizes that Megatron-Core asserts and no other rule refuses."""
    sizes, key = Sizes.of(e.layout), "layout.virtual_pipeline_model_parallel_size"
    if e.model.moe and e.model.add_bias_linear:
        yield wrong(e, "model.add_bias_linear", "the embedded engine cannot build biases in experts", "false")
    if e.layout.virtual_pipeline_model_parallel_size == 1:
        yield wrong(e, key, "one virtual stage is none", f"{key}=null")
    if e.model.kv_channels % 2:
        yield wrong(e, "model.kv_channels", "RoPE turns pairs of channels", "an even number")
    layers = e.model.num_layers // (sizes.pp * sizes.vp)
    if (e.training.recompute_num_layers or 0) > layers:
        what = "one (virtual) pipeline stage has fewer layers"
        yield wrong(e, "training.recompute_num_layers", what, f"1 to {layers}")
    if e.training.attention == "unfused" and sizes.cp > 1:
        what = "Megatron's own attention cannot split a sequence"
        yield wrong(e, "training.attention", what, "sdpa", "training.attention=sdpa, or CP 1")


FRAMEWORK = Megatron()
