"""Cross-validation: each shape, size or training as the others predict it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from conf.machine import Training, Validation, processes_of
from measure.cases import COLLECTIVES, group_of
from measure.rates import Numbers, Samples, left_out

OURS, GUIDE, AT_SCALE = 0.08, 0.15, 0.20
"""The median error that we want of all trainings; what guides of the field want of all, and of the largest ones."""
LEAST = 4  # of a kind, to leave one out


def validations(samples: Samples, trainings: Sequence[Training]) -> Iterator[Validation]:
    """Yield a row for trainings, products, attention and links."""
    known = [one for one in trainings if one.left_out_s]
    errors = np.array([abs(float(one.left_out_s or 0) / one.step_time_s - 1) for one in known])
    processes = np.array([processes_of(one) for one in known])
    if len(errors):
        yield _row("trainings", errors, OURS, "us")
        yield _row("trainings", errors, GUIDE, "guides of the field")
        if (most := processes.max()) > 1:
            yield _row(f"trainings of {most} processes", errors[processes == most], AT_SCALE, "guides, at scale")
    for kinds, of in ((("gemm",), "matrix products"), (("attention",), "attention"), (COLLECTIVES, "collectives")):
        found = [*_of_kinds(samples, kinds)]
        if found:
            yield _row(of, np.concatenate(found), GUIDE, "guides of the field")


def _row(of: str, errors: Numbers, target: float, wanted_by: str) -> Validation:
    middle, most = (float(f"{np.quantile(errors, share):.4g}") for share in (0.5, 0.9))
    return Validation(of, len(errors), middle, most, target, wanted_by)


def _of_kinds(samples: Samples, kinds: Sequence[str]) -> Iterator[Numbers]:
    groups: dict[tuple[str, str, int, int], list[int]] = {}
    for index, case in enumerate(samples.cases):
        if case["kind"] in kinds and not case.get("backward"):
            groups.setdefault((case["kind"], case["dtype"], case["ranks"], group_of(case)), []).append(index)
    for indices in groups.values():
        own = samples.seconds[indices]
        seen = ~np.isnan(own).all(axis=1)
        cases = [samples.cases[index] for index, one in zip(indices, seen, strict=True) if one]
        if len(cases) >= LEAST:
            yield left_out(cases, np.nanmedian(own[seen], axis=1))
