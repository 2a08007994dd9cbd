"""How much CO2 a kilowatt-hour stands for: the user's figure, else a country's dated average."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from conf.arguments import number
from conf.compose import CONF
from conf.errors import InputError, Problem, closest, listed
from metrics.quantity import Quantity

_UNIT = "gCO2e/kWh"
_TABLE = Path("data") / "private_infra" / "global_energy_mix.json"


def intensity(text: str) -> Quantity:
    """Read a number (the user's own, in gCO2e/kWh) or a country's ISO code (USA, FRA) of conf/carbon, else of
    codecarbon where that is installed. InputError: neither."""
    try:
        value = number(text, (_UNIT,))
    except ValueError:
        return _country(text.strip().upper())
    if value < 0:
        raise InputError(Problem("carbon", "is no carbon intensity", text, "0 gCO2e/kWh or more"))
    return Quantity(value, _UNIT, "computed", note="yours")


def _country(code: str) -> Quantity:
    import yaml

    table = yaml.safe_load((CONF / "carbon" / "countries.yaml").read_text(encoding="utf-8"))
    if code in table["g_co2e_per_kwh"]:
        note = f"{code}, average of {table['date']}: {table['source'].split(',')[0]}"
        return Quantity(table["g_co2e_per_kwh"][code], _UNIT, "assumed", note=note)
    more = _codecarbon()
    if code in more:
        value, year = more[code]
        return Quantity(value, _UNIT, "assumed", note=f"{code}, average of {year}: codecarbon's {_TABLE.name}")
    known = sorted({*table["g_co2e_per_kwh"], *more})
    hint = closest(code, known) or "yours, carbon=120" + ("" if more else "; pip install codecarbon knows 200 more")
    raise InputError(Problem("carbon", "no such country in the tables", code, listed(known), hint))


def _codecarbon() -> Mapping[str, tuple[float, int]]:
    """codecarbon's table, read without importing it: that takes seconds and looks for GPUs. Empty if not installed."""
    spec = find_spec("codecarbon")
    places = list(spec.submodule_search_locations or []) if spec else []
    files = [file for place in places if (file := Path(place) / _TABLE).is_file()]
    if not files:
        return {}
    countries = json.loads(files[0].read_text(encoding="utf-8"))
    return {code: (c["carbon_intensity"], c["year"]) for code, c in countries.items() if c.get("carbon_intensity")}
