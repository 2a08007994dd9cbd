"""Read the numbers of a toy inside its ranks: weights, gradients, their norm and the clip, what the model is given, and
the optimizer. For the probe (tprimat_probe.py), in rehearse=train alone: on a GPU all of it would wait for the device.

Every reading is of the complete model, so that no layout changes it: each rank writes its parts, and
parsers/readings.py puts them together. A part is a row: the parameter's global name, the complete shape, dtype,
[which part of the cut dimension, first element, end], count, mean, sum of squared deviations from it, least, most,
checksum. Replicas write the same part, and must agree."""

from __future__ import annotations

import functools
import math
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import tprimat_parameters
from tprimat_after_import import after, wrap
from tprimat_parameters import Split, global_name, split_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

READS = "train" in (os.environ.get("TPRIMAT_REHEARSE"), os.environ.get("TPRIMAT_REHEARSED"))
MODULUS = 2**52
"""Sums of this modulus survive as JSON numbers everywhere."""
_STEPS = ("ChainedOptimizer", "MixedPrecisionOptimizer", "FP32Optimizer")
"""Megatron's classes whose step() clips: the outermost of them is the one that a stack calls."""
_ARGUMENTS = ("input_ids", "position_ids", "attention_mask", "decoder_input", "labels")
"""GPTModel.forward's, in order (megatron/core/models/gpt/gpt_model.py)."""
_SAME_STEP = 1e-3  # relative: what fp32 rounds of a step that is small beside its weight
_PLACES = 4099  # of micro-batches on one rank, for their order: a prime number
_TOGETHER = 1 << 16  # elements: what a core's cache holds


class Part(NamedTuple):
    """A rank's part of one parameter that it alone, or with replicas, keeps up to date: elements [start, end) of it."""

    name: str
    parameter: Any
    split: Split
    gated: bool
    start: int
    end: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Return that of the complete parameter."""
        return tuple(
            n * (self.split.size if dim == self.split.dim else 1) for dim, n in enumerate(self.parameter.shape)
        )

    @property
    def weight(self) -> Any:
        """Return the main weight that the optimizer steps, in fp32 beside a model in bf16, else the model's own."""
        main = getattr(self.parameter, "main_param", None)
        if main is not None and main.numel() == self.end - self.start:
            return main.detach()
        return self.parameter.detach().reshape(-1)[self.start : self.end]

    @property
    def last(self) -> Any:
        """Return the weight at the end: the model's own where that is not the main one, rounded."""
        main, own = self.weight.reshape(-1), self.parameter.detach().reshape(-1)[self.start : self.end]
        return main if bool((main.to(own.dtype) == own).all()) else own

    @property
    def gradient(self) -> Any:
        """Return that which is reduced and averaged: complete when the optimizer begins its step."""
        return self.parameter.main_grad.detach().reshape(-1)[self.start : self.end]

    def row(self, tensor: Any, factor: float = 1.0) -> list[Any]:
        """Return the row of a tensor of this part, each element times `factor`."""
        import numpy as np

        values = tensor.float().reshape(-1).numpy()
        if factor != 1.0:
            values = values * np.float32(factor)
        mean = float(values.mean(dtype=np.float64))
        deviations = np.subtract(values, mean, dtype=np.float64)
        squares = float(np.square(deviations, out=deviations).sum())
        which = [0 if self.split.dim is None else self.split.rank, self.start, self.end]
        dtype = str(tensor.dtype).removeprefix("torch.")
        numbers = (values.size, mean, squares, float(values.min()), float(values.max()))
        return [self.name, list(self.shape), dtype, which, *numbers, checksum(values, self.places())]

    def places(self) -> NDArray[Any]:
        """Return the index in the complete, flattened parameter of each element of this part."""
        import numpy as np

        if self.split.dim is None or self.split.size == 1:
            return np.arange(self.start, self.end, dtype=np.uint64)
        if self.split.dim > 1 or (self.split.dim == 1 and self.parameter.dim() > 2):
            raise ValueError(f"{self.name} is cut along dimension {self.split.dim}")
        rows = np.arange(self.parameter.shape[0], dtype=np.uint64)
        columns = np.arange(self.parameter[0].numel(), dtype=np.uint64)
        width = columns.size * (self.split.size if self.split.dim == 1 else 1)
        if self.split.dim == 1:
            columns += np.uint64(columns.size * self.split.rank)
        elif self.gated:  # [gate; up]: every rank has its part of both halves
            half = np.uint64(rows.size // 2)
            rows += half * np.uint64(self.split.rank) + (rows >= half) * half * np.uint64(self.split.size - 1)
        else:
            rows += np.uint64(rows.size * self.split.rank)
        return np.add.outer(rows * np.uint64(width), columns).reshape(-1)[self.start : self.end]


def checksum(values: NDArray[Any], places: NDArray[Any]) -> int:
    """Return the sum of a 52-bit hash of each float32 value's bits and its place, modulo 2**52: of any parts it is the
    sum of theirs. Both zeros are one value. The mixing is that of splitmix64 (https://prng.di.unimi.it/splitmix64.c)."""
    import numpy as np

    total = 0
    for start in range(0, values.size, _TOGETHER):
        bits = (values[start : start + _TOGETHER] + np.float32(0)).view(np.uint32)
        mixed = places[start : start + _TOGETHER] * np.uint64(0x9E3779B97F4A7C15) + bits
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed ^= mixed >> np.uint64(shift)
            mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        total += int((mixed >> np.uint64(12)).sum(dtype=np.uint64))
    return total % MODULUS


def all_parts(probe: Any) -> Iterator[Part]:
    """Yield this rank's parts of all parameters that step. Of a distributed optimizer's those elements alone that are
    its own: the others' gradients are not reduced here, and their weights may still be on the way."""
    ranges: dict[int, tuple[int, int]] = {}
    sharded = False
    for optimizer in probe.optimizers:
        sharded |= hasattr(optimizer, "gbuf_ranges")
        for parameter in getattr(optimizer, "model_param_gbuf_map", ()):
            owned = optimizer._get_model_param_range_map(parameter)["param"]
            ranges[id(parameter)] = (owned.start, owned.end)
    for model in probe.models:
        for part in parts_of(model):
            if not sharded and getattr(part.parameter, "main_grad", None) is not None:
                yield part
            elif id(part.parameter) in ranges and not getattr(part.parameter, "shared", False):
                # the last stage's copy of a tied weight is sharded in its own way: the first stage's is read
                start, end = ranges[id(part.parameter)]
                yield part._replace(start=start, end=end)


def parts_of(model: Any) -> Iterator[Part]:
    """Yield the parameters of a chunk. ValueError: experts that are fused into one matrix, which no CPU runs."""
    for name, parameter in model.named_parameters():
        own = global_name(model, name)
        if own.endswith(tprimat_parameters._FUSED):
            raise ValueError(f"{own} holds several experts, which are not told apart")
        gated = bool(model.config.gated_linear_unit) and ".linear_fc1." in own
        yield Part(own, parameter, split_of(parameter, own), gated, 0, parameter.numel())


class Readings:
    """Read a toy as it is built and stepped. probe: whose objects are read, and whose rows of steps get more members.
    content: what the rank's file gets."""

    def __init__(self, probe: Any) -> None:
        self.probe = probe
        self.content: dict[str, Any] = {"drawn": [], "first_weights": [], "first_gradients": [], "last_weights": []}
        self.content["first_outputs"] = []
        self.hooks: list[Any] = []
        self.outputs: dict[tuple[int, str], list[Any]] = {}
        self.parts: list[Part] | None = None
        self.inside = False
        self.before = self.stepped = 0.0  # sums of squares of the gradients, before clipping and as they step
        self.decaying: list[tuple[Any, Any, Any, dict[str, Any]]] = []  # of the first step, see `decay_of`
        self.given: dict[str, Any] = {}
        self.targets: dict[str, Any] = {}
        self.place = 0  # of the micro-batch in its step
        after("megatron.core.optimizer.optimizer")(self.watch_steps)
        if os.environ.get("TPRIMAT_REHEARSE"):  # the engine's own first weights are the equal ones
            tprimat_parameters.BEFORE.append(lambda model: probe.guarded(self.read_drawn, model))

    def read_drawn(self, model: Any) -> None:
        """Read the vendor's own first weights of one chunk, ahead of equal ones."""
        self.content["drawn"] += [part.row(part.weight) for part in parts_of(model)]

    # The optimizer's step, as the stack calls it: forward and backward passes are over, gradients are reduced

    def watch_steps(self, module: Any) -> None:
        """Read before and after the step of each class of optimizer; a step inside of another is passed over."""

        def read_and_step(step: Any, optimizer: Any, *arguments: Any, **options: Any) -> Any:
            if self.inside:
                return step(optimizer, *arguments, **options)
            self.inside = True
            try:
                self.probe.guarded(self.before_step)
                result = step(optimizer, *arguments, **options)
            finally:
                self.inside = False
            self.probe.guarded(self.after_step, result)
            return result

        for name in _STEPS:
            wrap(getattr(module, name), "step", read_and_step)

    def before_step(self) -> None:
        """Read gradients as they arrive, in the first step also each by itself, and the weights that they are of."""
        self.stepped = 0.0
        while self.hooks:
            self.hooks.pop().remove()
        if self.parts is None:
            self.parts = list(all_parts(self.probe))
            self.content["first_weights"] = [part.row(part.weight) for part in self.parts]
            if not self.content["drawn"]:  # nothing was put in place of the stack's own
                self.content["drawn"] = self.content["first_weights"]
        scale = next(map(_loss_scale, self.probe.optimizers), 1.0)
        self.before = math.fsum(_squares(part.gradient) for part in self.parts) / scale**2
        if not self.content["first_gradients"]:
            self.content["first_gradients"] = [part.row(part.gradient, 1 / scale) for part in self.parts]

    def stepping(self, optimizer: Any) -> None:
        """Take the gradients that a torch optimizer steps with, after clipping."""
        if "optimizer" not in self.content:
            self.decaying += kept_of(optimizer)
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        kept = ((getattr(parameter, "decoupled_grad", None), parameter.grad) for parameter in parameters)
        gradients = (next((one for one in of_one if one is not None), None) for of_one in kept)
        self.stepped += math.fsum(_squares(gradient) for gradient in gradients if gradient is not None)

    def after_step(self, result: tuple[Any, ...]) -> None:
        """Take what the step returns: whether it stepped, and the norm of the gradients before clipping."""
        stepped, norm, *_ = result
        if not stepped:  # fp16: there was an overflow; the next gradients are the first ones
            self.content["first_gradients"] = []
        elif self.probe.steps:
            known = norm is not None and (float(norm) > 0 or self.before == 0)  # 0: not worked out, as none are clipped
            row = {"grad_norm": float(norm) if known else None, "gradient_squares": [self.before, self.stepped]}
            self.probe.steps[-1] |= row
        if "optimizer" not in self.content:
            self.content["optimizer"] = {**optimizer_read(self.probe), "decay": decay_of(self.decaying)}
            self.decaying = []

    def read_last(self) -> None:
        """Read the weights as they are now, after the last step."""
        if self.parts is not None:
            self.content["last_weights"] = [part.row(part.last) for part in self.parts]

    # What the model is given, and which of its losses count

    def watch_outputs(self, model: Any) -> None:
        """Read the output of each module of a chunk in every forward pass of the first step, and where the backward
        pass computes it again."""

        def read_output(name: str, module: Any, arguments: Any, output: Any) -> None:
            if model.training:
                self.probe.guarded(self.read_output, model, name, output)

        for name, module in model.named_modules():
            if name:
                self.hooks.append(module.register_forward_hook(functools.partial(read_output, name)))

    def read_output(self, model: Any, name: str, output: Any) -> None:
        """Add one output to the row of its module: name, shape, dtype, sum of squares and checksum of the first one,
        and the checksums of all. A checksum is the CRC-32 of the values in float32."""
        parts = output if isinstance(output, tuple | list) else (output,)
        tensor = next((one for one in parts if hasattr(one, "is_floating_point")), None)
        if tensor is None:
            return
        checksum = zlib.crc32(tensor.detach().float().contiguous().numpy())
        if (key := (id(model), name)) not in self.outputs:
            row = [global_name(model, name).rstrip("."), list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
            self.outputs[key] = [*row, _squares(tensor), checksum, [], []]
            self.content["first_outputs"].append(self.outputs[key])
        again = sys.modules["torch"]._C._current_graph_task_id() != -1  # inside of a backward pass
        self.outputs[key][6 if again else 5].append(checksum)

    def watch(self, model: Any) -> None:
        """Read the input of each forward pass of a chunk; of one that makes losses also what is left of them."""
        self.watch_outputs(model)

        def read_forward(model: Any, arguments: Any, options: Mapping[str, Any], output: Any) -> None:
            if model.training:
                inputs = {**dict(zip(_ARGUMENTS, arguments, strict=False)), **options}
                self.probe.guarded(self.read_given, model, inputs, output)

        model.register_forward_hook(read_forward, with_kwargs=True)

    def read_given(self, model: Any, inputs: Mapping[str, Any], output: Any) -> None:
        """Add one micro-batch. Of context parallel ranks, which see parts of samples, only masked targets count."""
        from megatron.core import parallel_state as groups

        complete = groups.get_context_parallel_world_size() == 1
        tokens = inputs.get("input_ids")
        if complete and model is self.probe.models[0] and model.pre_process and tokens is not None:
            hashes = {
                "tokens": row_hash(tokens),
                "order": self.order_hash(tokens),
                "position_ids": positions_hash(inputs.get("position_ids"), tokens),
                "attention_mask": None if inputs.get("packed_seq_params") else mask_hash(inputs, tokens),
            }
            _add(self.given, samples=tokens.shape[0], **hashes)
        labels = inputs.get("labels")
        if model.post_process and labels is not None and output.requires_grad and output.dim() == 2:
            _add(self.targets, samples=labels.shape[0], labels=row_hash(labels) if complete else None)
            output.register_hook(lambda gradient: self.probe.guarded(self.read_counted, gradient, complete))

    def read_counted(self, gradient: Any, complete: bool) -> None:
        """Take the gradient of the loss by each token's loss [samples, sequence]: what is masked has none, however and
        wherever the stack masks it."""
        counted = gradient != 0
        hashed = row_hash(counted) if complete else None
        _add(self.targets, loss_mask=hashed, masked=int(counted.numel() - counted.sum()))

    def order_hash(self, tokens: Any) -> int:
        """Return the CRC-32 of a micro-batch times its place in the step: the sum is another in another order."""
        from megatron.core import parallel_state as groups

        self.place += 1
        checksum = zlib.crc32(tokens.detach().long().contiguous().numpy())
        return checksum * (self.place + _PLACES * int(groups.get_data_parallel_rank()))

    def end_batch(self, row: dict[str, Any]) -> None:
        """Put what was given since the last step into this one's row."""
        row |= {name: value for name, value in (("given", self.given), ("targets", self.targets)) if value}
        self.given, self.targets, self.place = {}, {}, 0


def _add(sums: dict[str, Any], **values: int | None) -> None:
    """Add to the sums of a step. None: one that is not known makes its sum unknown."""
    for name, value in values.items():
        before = sums.get(name, 0)
        sums[name] = None if None in (before, value) else (before + value) % MODULUS


def _squares(tensor: Any) -> float:
    """Return the sum of squares, in float64."""
    values = tensor.detach().reshape(-1).double()
    return float(values.dot(values))


def _loss_scale(optimizer: Any) -> float:
    """Return what the gradients are multiplied by until the step (fp16)."""
    scaler = getattr(optimizer, "grad_scaler", None)
    return float(scaler.scale) if scaler else 1.0


def row_hash(tensor: Any) -> int:
    """Return the sum of the CRC-32 of each sample of integers or flags [samples, …], as little endian int64."""
    import numpy as np

    array = np.ascontiguousarray(tensor.detach().long().numpy(), "<i8")
    return sum(zlib.crc32(sample) for sample in array)


def positions_hash(positions: Any, tokens: Any) -> int:
    """Return the `row_hash` of position ids [samples, sequence]. None: those of RoPE, 0, 1, 2 … in each sample."""
    import torch

    counted = torch.arange(tokens.shape[1]) if positions is None else positions
    return row_hash(counted.expand(tokens.shape))


def mask_hash(inputs: Mapping[str, Any], tokens: Any) -> int | None:
    """Return the `row_hash` of the attention masks [samples, 1, sequence, sequence], where True is masked. None given:
    that of causal attention, which a GPT then applies. None returned: it is no mask of this kind."""
    import torch

    samples, length = tokens.shape
    mask = inputs.get("attention_mask")
    if mask is None:
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)[None, None]
    if mask.dtype is not torch.bool or mask.dim() != 4 or mask.shape[0] not in (1, samples):
        return None
    return row_hash(mask.expand(samples, -1, -1, -1)) if mask.shape[0] != 1 else samples * row_hash(mask)


def kept_of(optimizer: Any) -> Iterator[tuple[Any, Any, Any, dict[str, Any]]]:
    """Yield of each parameter that decays itself, its value before the step, its gradient, and its group."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("weight_decay") else ():
            gradient = getattr(parameter, "decoupled_grad", None)
            gradient = parameter.grad if gradient is None else gradient
            if gradient is not None:
                yield parameter, parameter.detach().clone(), gradient.detach().clone(), group


def decay_of(kept: Iterable[tuple[Any, Any, Any, dict[str, Any]]]) -> str | None:
    """Return how weights decayed in the first step of Adam: "decoupled" from the gradient, or as "L2", a part of it.
    The step is lr (g / (|g| + eps) + decay w), or lr g' / (|g'| + eps) where g' = g + decay w: bias correction makes
    both moments those of the first gradient (Loshchilov and Hutter 2019, algorithm 2). None: neither, or no Adam."""
    apart, total = {"decoupled": 0.0, "L2": 0.0}, 0.0
    for parameter, before, gradient, group in kept:
        lr, eps, decay = group.get("lr"), group.get("eps"), group["weight_decay"] * before.double()
        if not isinstance(lr, float) or not isinstance(eps, float):
            return None
        one, both = gradient.double(), gradient.double() + decay
        step = before.double() - parameter.detach().double()
        apart["decoupled"] += _squares(step - lr * (one / (one.abs() + eps) + decay))
        apart["L2"] += _squares(step - lr * both / (both.abs() + eps))
        total += _squares(step)
    least = min(apart, key=lambda name: apart[name])
    return least if total > 0 and apart[least] < _SAME_STEP**2 * total else None


def optimizer_read(probe: Any) -> dict[str, Any]:
    """Return the torch optimizers that step: the first one's class and defaults, all groups, and what they keep."""
    torch = sys.modules["torch"]
    parts = [part.optimizer for part in probe.optimizers if getattr(part, "optimizer", None) is not None]
    kept: dict[str, str] = {}
    for state in (state for optimizer in parts for state in optimizer.state.values()):
        kept |= {name: str(v.dtype).removeprefix("torch.") for name, v in state.items() if torch.is_tensor(v)}
    mains = (getattr(p, "main_param", None) for model in probe.models for p in model.parameters())
    if (main := next((main for main in mains if main is not None), None)) is not None:
        kept["master"] = str(main.dtype).removeprefix("torch.")
    kind = type(parts[0])
    groups = [{k: v for k, v in group.items() if k != "params"} for part in parts for group in part.param_groups]
    return {
        "kind": f"{kind.__module__}.{kind.__qualname__}",
        "arguments": dict(getattr(parts[0], "given", parts[0].defaults)),  # of the stand-in for a fused one
        "groups": groups,
        "state": kept,
    }
