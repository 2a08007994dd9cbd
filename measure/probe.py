"""Probe this box for some seconds and hold it against a file of `measure`, before GPU-hours are spent on it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from conf import box, devices
from conf.errors import Problem
from conf.machine import Machine
from measure.session import PROBE, SIZES, measured, refuse_busy, scope_of, usable


def problems(known: Machine) -> list[Problem]:
    """Return what is wrong with this box beside a machine's file, of several nodes beside its first one's figures, by a
    probe of as many ranks. InputError: it cannot be measured here."""
    reference = known.of_a_node()
    rounds, minutes = SIZES[PROBE]
    here, _ = usable(devices.find())
    refuse_busy(here)
    scope = scope_of(here, min(reference.ranks, here.count) if here.count else reference.ranks, PROBE)
    with tempfile.TemporaryDirectory(prefix="tprimat-probe-") as directory:
        machine, code = measured(scope, here, Path(directory), rounds, 60 * minutes)
    if code or not machine.figures:
        hint = f"tprimat measure probe ranks={scope.ranks} -o DIR, whose measure.log says of what"
        return [Problem("machine", "a rank of the probe died", f"exit code {code}", hint=hint)]
    return [*box.against(reference, machine)]
