"""The parts of a toy's tensors, batches and optimizer that its ranks read (tprimat_readings.py), put together into one
ReadBack of the complete model and the global batch.

A reading that lacks a part, or of which replicas report different ones, is absent, and a note says why: parts of a
tensor are no tensor. Sums do not depend on the order of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from parsers.read_back import MODULUS, Batch, Checksum, Optimizer, Output, Size, Tensor

_MOST_NAMED = 4
_NEAR = 1e-6  # relative; of one number that all ranks work out together in fp32


class Part(Struct, frozen=True, array_like=True, gc=False):
    """A rank's part of one tensor. shape: of the complete one. which: the part of the dimension that is cut, and the
    first element and the end of this one in it. squares: the sum of squared deviations from the mean."""

    name: str
    shape: Annotated[tuple[Size, ...], Meta(max_length=8)]
    dtype: str
    which: tuple[Size, Size, Size]
    count: Size
    mean: float | None
    squares: float | None
    least: float | None
    most: float | None
    checksum: Checksum


class Given(Struct, frozen=True):
    """The input of a rank's model, or its targets, in one step: sums over its micro-batches."""

    samples: Size = 0
    tokens: Checksum | None = None
    order: Checksum | None = None
    position_ids: Checksum | None = None
    attention_mask: Checksum | None = None
    labels: Checksum | None = None
    loss_mask: Checksum | None = None
    masked: Size | None = None


class ModuleOutput(Struct, frozen=True, array_like=True, gc=False):
    """The outputs of a module on one rank. shape, dtype, squares, checksum: of its first forward pass; a checksum is
    the CRC-32 of the values in float32. passes: of each forward pass of the first step; recomputed: of each inside of
    a backward pass."""

    name: str
    shape: Annotated[tuple[Size, ...], Meta(max_length=8)]
    dtype: str
    squares: float | None
    checksum: Checksum
    passes: tuple[Checksum, ...] = ()
    recomputed: tuple[Checksum, ...] = ()


class OptimizerRow(Struct, frozen=True):
    """The optimizer of one rank, see `Optimizer`."""

    kind: str
    arguments: Mapping[str, Any] = {}
    groups: tuple[Mapping[str, Any], ...] = ()
    state: Mapping[str, str] = {}
    decay: str | None = None


class Tensors(Struct, frozen=True, kw_only=True):
    """The members of a rank's file that tprimat_readings.py writes, but for its steps."""

    drawn: tuple[Part, ...] = ()
    first_weights: tuple[Part, ...] = ()
    last_weights: tuple[Part, ...] = ()
    first_gradients: tuple[Part, ...] = ()
    first_outputs: tuple[ModuleOutput, ...] = ()
    optimizer: OptimizerRow | None = None


def outputs(files: Sequence[Tensors]) -> dict[str, Output]:
    """Return the outputs of all ranks together, by module: of equal layouts the same ones. shape: on the first rank."""
    of_names: dict[str, list[ModuleOutput]] = {}
    for output in (output for file in files for output in file.first_outputs):
        of_names.setdefault(output.name, []).append(output)
    return {
        name: Output(
            shape=parts[0].shape,
            dtype=parts[0].dtype,
            checksum=sum(part.checksum for part in parts) % MODULUS,
            norm=None if any(part.squares is None for part in parts) else math.sqrt(sum(p.squares or 0 for p in parts)),
            passes=_added([part.passes for part in parts]),
            recomputed=_added([part.recomputed for part in parts]),
        )
        for name, parts in of_names.items()
    }


def _added(ranks: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the sums over the ranks, pass by pass; nothing where they did not make as many."""
    if len({*map(len, ranks)}) > 1:
        return ()
    return tuple(sum(checksums) % MODULUS for checksums in zip(*ranks, strict=True))


def tensors(files: Sequence[Tensors], kind: str, notes: list[str]) -> dict[str, Tensor]:
    """Return the complete tensors of one kind, a member of `Tensors`, by name. A note says which are not complete."""
    parts: dict[str, dict[tuple[int, int, int], Part]] = {}
    apart: dict[str, None] = {}
    for part in (part for file in files for part in getattr(file, kind)):
        first = parts.setdefault(part.name, {}).setdefault(part.which, part)
        if first != part:
            apart[part.name] = None
    whole = {name: _joined([of[key] for key in sorted(of)]) for name, of in parts.items() if name not in apart}
    spoken = kind.replace("_", " ")
    _note(notes, f"ranks disagree on the {spoken} of", apart)
    _note(notes, f"the {spoken} were not read in full of", [name for name, tensor in whole.items() if tensor is None])
    return {name: tensor for name, tensor in whole.items() if tensor is not None}


def _note(notes: list[str], what: str, names: Iterable[str]) -> None:
    if listed := [*names]:
        more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
        notes.append(f"probe: {what} {', '.join(listed[:_MOST_NAMED])}{more}")


def _joined(parts: Sequence[Part]) -> Tensor | None:
    """Return the tensor of which these are all parts, None where they are not all, or not of one tensor. Means and
    squared deviations are joined as Chan, Golub and LeVeque do (1983, "Algorithms for Computing the Sample Variance",
    formula 2.1): exact where all elements are equal."""
    shape, dtype, count = parts[0].shape, parts[0].dtype, sum(part.count for part in parts)
    if count == 0 or count != math.prod(shape) or {(part.shape, part.dtype) for part in parts} != {(shape, dtype)}:
        return None
    checksum = sum(part.checksum for part in parts) % MODULUS
    numbers = [(p.count, p.mean, p.squares, p.least, p.most) for p in parts]
    known = [n for n in numbers if all(v is not None and math.isfinite(v) for v in n)]
    if len(known) != len(numbers):  # nan or inf in one element
        return Tensor(shape=shape, dtype=dtype, checksum=checksum)
    counts, means, squares, least, most = zip(*known, strict=True)
    try:
        mean = means[0] + math.fsum(n * (m - means[0]) for n, m in zip(counts, means, strict=True)) / count
        spread = math.fsum([*squares, *(n * (m - mean) ** 2 for n, m in zip(counts, means, strict=True))])
        norm, std = math.sqrt(spread + count * mean * mean), math.sqrt(spread / count)
    except (ValueError, OverflowError):  # numbers that no rank works out
        return None
    if not math.isfinite(norm):
        return None
    return Tensor(
        shape=shape, dtype=dtype, checksum=checksum, norm=norm, mean=mean, std=std, least=min(least), most=max(most)
    )


def batch(step: int, given: Sequence[Given], targets: Sequence[Given], samples: int) -> Batch:
    """Return one step's batch of `samples`. given, targets: of the ranks that see the first stage's input and the last
    stage's targets, one of each part of the batch; masked targets add up where ranks see parts of the samples, too."""

    def total(rows: Sequence[Given], value: Callable[[Given], int | None]) -> int | None:
        values = [v for v in map(value, rows) if v is not None]
        seen = sum(row.samples for row in rows) == samples
        return sum(values) % MODULUS if seen and len(values) == len(rows) else None

    masked = [row.masked for row in targets if row.masked is not None]
    left_out = sum(masked) if masked and len(masked) == len(targets) else None
    return Batch(
        step=step,
        tokens=total(given, lambda row: row.tokens),
        order=total(given, lambda row: row.order),
        labels=total(targets, lambda row: row.labels),
        loss_mask=total(targets, lambda row: row.loss_mask),
        position_ids=total(given, lambda row: row.position_ids),
        attention_mask=total(given, lambda row: row.attention_mask),
        masked=left_out if left_out is None or left_out < MODULUS else None,
    )


def optimizer(
    files: Sequence[Tensors], decays: Sequence[float], rates: Sequence[tuple[float, ...]], notes: list[str]
) -> Optimizer | None:
    """Return the optimizer of the first rank that has one. decays, rates: of each step."""
    rows = [file.optimizer for file in files if file.optimizer is not None]
    if not rows:
        return None
    for name in ("kind", "arguments", "state"):
        if any(getattr(row, name) != getattr(rows[0], name) for row in rows):
            notes.append(f"probe: ranks disagree on the optimizer's {name}")
    first, decays_by = rows[0], {row.decay for row in rows}
    return Optimizer(
        kind=first.kind,
        arguments=first.arguments,
        groups=first.groups,
        weight_decays=tuple(decays),
        rates=tuple(rates),
        state=first.state,
        decay=first.decay if len(decays_by) == 1 else None,
    )


def distinct(rates: Iterable[float | None]) -> tuple[float, ...]:
    """Return the rates that are known, each once, the least first."""
    return tuple(sorted({float(rate) for rate in rates if rate is not None and math.isfinite(rate)}))


def agreed(values: Sequence[float | None]) -> float | None:
    """Return the first of a number that all ranks must report alike, None where they do not."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    alike = known and all(math.isclose(value, known[0], rel_tol=_NEAR) for value in known)
    return known[0] if alike and len(known) == len(values) else None


def clip_coefficient(squares: Sequence[tuple[float | None, float | None] | None]) -> float | None:
    """Return by what the gradients were multiplied on their way into the optimizer: the root of their sum of squares
    as they stepped over that before, of all ranks. squares: (before, as stepped) of each rank."""
    known = [n for pair in squares for n in pair or (None,) if n is not None and 0 <= n < 1e300]
    before, stepped = math.fsum(known[::2]), math.fsum(known[1::2])
    return math.sqrt(stepped / before) if len(known) == 2 * len(squares) and before > 0 else None
