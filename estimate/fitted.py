"""Parameters of the model of a step's time: each with its prior, its value and how well it is known, as shipped in
parameters.yaml or as a calibration wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import inf
from pathlib import Path

import msgspec

from conf.errors import ConfigError, Problem, listed, made_by
from conf.vocabulary import read_yaml

SHIPPED = Path(__file__).with_name("parameters.yaml")
FEW = "few_own_runs"
"""Calibrated on few runs: among what widens an interval, measured by `benchmarks/estimate.py anchors`."""

OWN_RUNS = "; own runs"
"""The end of the source of calibrated parameters."""

UNSTATED = "_unknown"
"""The end of the names of shares of jobs that have something where nobody states it: none may have it."""


class Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of one kind. prior: the expected value; sd: of its logarithm; most: a bound of physics;
    each: what a parameter of this kind belongs to, empty where there is one for all."""

    about: str
    unit: str
    prior: float
    sd: float
    most: float | None = None
    each: tuple[str, ...] = ()


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fitted parameter. sd: of the logarithm of the value behind the fit; prior: where it is not that of its kind."""

    value: float
    sd: float
    prior: float | None = None


class Error(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Errors of predictions of a class of jobs at one distance, each of a job that the fit did not have. n: jobs.
    half_80 and half_95: half widths of the intervals of the logarithm of the step time."""

    n: int
    half_80: float
    half_95: float


class Wider(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By which factors the intervals of 80 and 95 % are wider. n: jobs whose errors it is known by."""

    n: int
    by: tuple[float, float]


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """All parameters. values: by KIND or KIND.PART.PART. offsets: factors on a step by what the job has in common with
    measured ones (OFFSETS of estimate/step_time.py). errors: by the distance of jobs from measured ones and their class
    (estimate/predict.py). measured: GEMM efficiencies in the precisions of measured jobs. wider: by WIDER of predict.py
    and FEW of calibrate.py. reach: the largest of some columns of the measured jobs. source: of which runs."""

    source: str
    kinds: Mapping[str, Kind]
    values: Mapping[str, Value] = {}
    offsets: Mapping[str, Value] = {}
    errors: Mapping[str, Mapping[str, Error]] = {}
    measured: tuple[str, ...] = ()
    wider: Mapping[str, Wider] = {}
    reach: Mapping[str, float] = {}

    def of(self, kind: str, *parts: str) -> float:
        """Return a parameter's value, by its prior where it was never fitted."""
        value = self.values.get(".".join((kind, *parts)))
        return self.kinds[kind].prior if value is None else value.value

    def known(self, kind: str, *parts: str) -> bool:
        """Return whether a parameter has a value or a prior of its own."""
        return ".".join((kind, *parts)) in self.values


def read(path: Path) -> Parameters:
    """Return the parameters of a file. ConfigError: it cannot be used."""
    if not path.is_file():
        raise ConfigError(Problem(str(path), "no such file", hint="`estimate calibrate` and `estimate fit` write one"))
    with made_by("estimate calibrate", path):
        known = msgspec.convert(read_yaml(path), Parameters, strict=False)
    if missing := [] if path == SHIPPED else sorted({*shipped().kinds} - {*known.kinds}):
        what = "cannot be used as parameters: it lacks kinds of parameters that this version has"
        hint = "write it again by `estimate calibrate` or `estimate fit`"
        raise ConfigError(Problem(str(path), what, listed(missing), hint=hint))
    if not known.errors or (path != SHIPPED and {*shipped().wider} - {*known.wider, FEW}):
        what = "cannot be used as parameters: it does not say how wrong they are (of another version?)"
        raise ConfigError(Problem(str(path), what, hint="write it again by `estimate calibrate` or `estimate fit`"))
    values = {**known.values, **known.offsets}
    if wrong := [f"{name} {one.value}" for name, one in values.items() if not _possible(name, one)]:
        what, allowed = "has values that no measurement gives", "above 0, with a deviation of 0 or more"
        hint = "write it again by `estimate calibrate` or `estimate fit`"
        raise ConfigError(Problem(str(path), what, listed(wrong), allowed, hint))
    return known


def _possible(name: str, one: Value) -> bool:
    """Return whether a measurement may give a value."""
    return (0 < one.value < inf or (one.value == 0 and name.endswith(UNSTATED))) and 0 <= one.sd < inf


@cache
def shipped() -> Parameters:
    """Return the parameters that are shipped."""
    return read(SHIPPED)


def write(path: Path, parameters: Parameters) -> None:
    """Write parameters as a file that `read` reads."""
    from yaml import safe_dump

    text = safe_dump(msgspec.to_builtins(parameters), sort_keys=False, width=120, default_flow_style=None)
    path.write_text(text, encoding="utf-8")
