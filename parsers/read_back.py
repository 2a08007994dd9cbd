"""The part `read_back` of a record: all that a rehearsal read inside the ranks beyond settings, rates and losses.

The probe reads it (launchers/ranks/rehearsal), parsers/probe.py puts the ranks' parts together. None is unknown, and an
absent name was not read. Every number is one of the complete model or the global batch, whatever the layout: two runs
of the same calculation have the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

MODULUS = 2**52
"""Checksums are sums modulo this one: of any number of parts, in any order, and exact as a JSON number."""
Checksum = Annotated[int, Meta(ge=0, lt=MODULUS)]
Size = Annotated[int, Meta(ge=0, lt=2**53)]


class Tensor(Struct, frozen=True, kw_only=True, gc=False):
    """One tensor of the complete model, its shards put together. checksum: over its elements the sum of a hash of the
    value's bits in float32 and its place in the complete tensor: equal where every element is. norm: Euclidean, in
    float64, as mean and std (of all elements, not of a sample). least, most: of its elements."""

    shape: tuple[Size, ...] = ()
    dtype: str | None = None
    checksum: Checksum | None = None
    norm: float | None = None
    mean: float | None = None
    std: float | None = None
    least: float | None = None
    most: float | None = None


class Output(Tensor, frozen=True, kw_only=True, gc=False):
    """The output of a module in its first forward pass, summed over the ranks. passes: the checksum of each forward
    pass of the first step, in their order; recomputed: of each that the backward pass made again."""

    passes: tuple[Checksum, ...] = ()
    recomputed: tuple[Checksum, ...] = ()


class Batch(Struct, frozen=True, kw_only=True, gc=False):
    """The input of the model in one step, as sums over the global batch, so that their order does not matter.
    step: from 0. Each is the sum of a hash of each sample's row, but these: order: of each micro-batch's tokens and its
    place, another where the same samples come in another order; masked: targets that do not count."""

    step: Size
    tokens: Checksum | None = None
    order: Checksum | None = None
    labels: Checksum | None = None
    loss_mask: Checksum | None = None
    position_ids: Checksum | None = None
    attention_mask: Checksum | None = None
    masked: Size | None = None


class Optimizer(Struct, frozen=True, kw_only=True):
    """The optimizer that really steps. kind: its class, by module and name. arguments: what it was constructed with.
    groups: its parameter groups at the first step, without the parameters. weight_decays: the first decaying group's,
    of each step. rates: of each step the learning rates of its groups, each once, the least first. state: the name of
    each tensor that it keeps of a parameter, and its dtype. decay: how weights really decayed in the first step:
    "decoupled" from the gradient, or as "L2"; None where neither, or not known."""

    kind: str | None = None
    arguments: Mapping[str, Any] = {}
    groups: tuple[Mapping[str, Any], ...] = ()
    weight_decays: tuple[float, ...] = ()
    rates: tuple[tuple[float, ...], ...] = ()
    state: Mapping[str, str] = {}
    decay: str | None = None


class Object(Struct, frozen=True, kw_only=True):
    """A configuration object of the stack. kind: its class, by module and name. fields: as they took effect; of what is
    no JSON the name of its type. defaults: the class's own, of the fields that have one."""

    kind: str = ""
    fields: Mapping[str, Any] = {}
    defaults: Mapping[str, Any] = {}


class Process(Struct, frozen=True, kw_only=True):
    """The code and the environment that really ran. commits: folder or package to its `git describe --always --dirty`
    (submodules, too), or its version. changed: imported files of installed packages that are not as the package's
    RECORD has them, "package: file". ahead: folders ahead of the packages on sys.path that modules of the stack came
    from. variables: those that steer numerics and communication. files: of each rendered file its SHA-256 when the
    ranks started."""

    commits: Mapping[str, str] = {}
    changed: tuple[str, ...] = ()
    ahead: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}
    files: Mapping[str, str] = {}


class ReadBack(Struct, frozen=True, kw_only=True):
    """All that was read. drawn: the stack's own first weights, before equal ones were put in their place.
    first_weights: before the first step; last_weights: after the last; first_gradients: of the first step, reduced over
    the ranks and averaged as the optimizer receives them, before clipping. Each by the parameter's name in the complete
    model. first_outputs: of each module, in the order of the forward pass: the same where the layout is the same.
    objects: by a short name (TransformerConfig, OptimizerConfig …)."""

    drawn: Mapping[str, Tensor] = {}
    first_weights: Mapping[str, Tensor] = {}
    last_weights: Mapping[str, Tensor] = {}
    first_gradients: Mapping[str, Tensor] = {}
    first_outputs: Mapping[str, Output] = {}
    batches: tuple[Batch, ...] = ()
    optimizer: Optimizer | None = None
    objects: Mapping[str, Object] = {}
    process: Process | None = None
