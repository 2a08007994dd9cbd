"""Read what the vendors' own tools say of the GPUs of this node before anything runs on them: kind, use, limits of
power and clock, links between them. What no tool says is unknown, with the reason. Standard library only.

Texts that were read: nvidia-smi --query-gpu and topo -m (github.com/NVIDIA/nccl/issues/1505), rocm-smi --json of four
MI210, --showtopo of eight MI308X (modelscope/ms-swift, AMD GPU Support), amd-smi --json of an MI210 and an MI355X and
what its CHANGELOG says of its forms (github.com/ROCm/amdsmi): tests/launch/tools says from where each is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

LIMIT_S = 60.0  # of one call; a tool whose driver hangs is named
_NVIDIA = {  # field of --query-gpu that drivers of ten years know → ours
    "index": "index",
    "name": "name",
    "driver_version": "driver",
    "power.limit": "power_limit_w",
    "power.default_limit": "power_default_w",
    "clocks.max.sm": "clock_limit_mhz",
    "utilization.gpu": "use_percent",
    "memory.used": "memory_used_mib",
    "ecc.errors.uncorrected.volatile.total": "uncorrected_errors",
    "clocks_throttle_reasons.active": "held_back",
}
_ROCM = {
    "Max Graphics Package Power (W)": "power_limit_w",
    "Performance Level": "performance_level",
    "GPU use (%)": "use_percent",
}
_AMD = {  # of amd-smi static and metric, by their sections; a name was another in ROCm 6 or in 7
    "power_limit_w": (("limit", "ppt0", "socket_power_limit"), ("limit", "socket_power"), ("limit", "power")),
    "use_percent": (("usage", "gfx_activity"),),
    "memory_used_mib": (("mem_usage", "used_vram"),),
    "uncorrected_errors": (("ecc", "total_uncorrectable_count"),),
    "name": (("asic", "market_name"),),
    "kind": (("asic", "device_id"), ("asic", "market_name")),
    "driver": (("driver", "version"), ("driver", "driver_version")),
}
_HELD_BACK = {0x8: "the hardware slows it down", 0x40: "heat", 0x80: "the power brake", 0x20: "heat (software)"}
"""Bits of clocks_throttle_reasons.active that no idle GPU has (nvml.h, nvmlClocksEventReason*)."""
_OWN_LINK = {"X", "0", "", "SELF"}
MIB = 2**20


def gpus_of_node() -> dict[str, Any]:
    """Return tool, driver, gpus (one mapping each), links ("0-1": "NV18"), busy (processes of others) and unknown
    (what: why) of this node."""
    silent = []
    for tool, read in (("nvidia-smi", _of_nvidia), ("rocm-smi", _of_rocm), ("amd-smi", _of_amd)):
        if shutil.which(tool):
            found = read()
            if found["gpus"]:
                return {"tool": tool, **found}
            silent.append(f"{tool} lists no GPU: {found['unknown'].get('gpus', 'it printed none')}")
    return nothing_known("; ".join(silent) or "none of nvidia-smi, rocm-smi and amd-smi is here")


def nothing_known(why: str) -> dict[str, Any]:
    """Return the answer of a node whose GPUs nobody has looked at."""
    return {"gpus": [], "links": {}, "busy": [], "unknown": dict.fromkeys(("gpus", "links", "idle"), why)}


def _of_nvidia() -> dict[str, Any]:
    text, why = printed("nvidia-smi", f"--query-gpu={','.join(_NVIDIA)}", "--format=csv,noheader,nounits")
    gpus = nvidia_gpus(text)
    links, no_links = printed("nvidia-smi", "topo", "-m")
    apps, no_apps = printed("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name", "--format=csv,noheader")
    found: dict[str, Any] = {"gpus": gpus, "links": nvidia_links(links)}
    found |= {"busy": [line.strip() for line in apps.splitlines() if line]}
    return {**found, "driver": _one(gpus, "driver"), "unknown": _unknown(gpus, why, found["links"], no_links, no_apps)}


def nvidia_gpus(text: str) -> list[dict[str, Any]]:
    """Return a mapping for each line of --query-gpu. kind: the name; what is [N/A] or [Not Supported] is left out."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_NVIDIA) or not cells[0].isdigit():
            continue
        gpu: dict[str, Any] = {ours: _value(cell) for ours, cell in zip(_NVIDIA.values(), cells, strict=True)}
        if isinstance(gpu.get("memory_used_mib"), float):
            gpu["memory_used_bytes"] = int(gpu["memory_used_mib"] * MIB)
        if isinstance(gpu["held_back"], str):
            bits = int(gpu["held_back"], 16) if gpu["held_back"].startswith("0x") else 0
            gpu["held_back"] = [why for bit, why in _HELD_BACK.items() if bits & bit]
        kept = {name: value for name, value in gpu.items() if value not in (None, []) and name != "memory_used_mib"}
        gpus.append({**kept, "index": int(cells[0]), "kind": cells[1], "driver": cells[2]})
    return gpus


def nvidia_links(text: str) -> dict[str, str]:
    """Return the links between GPUs that topo -m prints; those to network cards are left out."""
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    header = next((row for row in rows if row[0] == "GPU0" and row[1:2] != ["X"]), [])
    count = len([name for name in header if re.fullmatch(r"GPU\d+", name)])
    links: dict[str, str] = {}
    for row in rows:
        if re.fullmatch(r"GPU\d+", row[0]) and row != header and len(row) > count:
            first = int(row[0][3:])
            links |= {f"{first}-{other}": row[1 + other] for other in range(first + 1, count)}
    return links


def _of_rocm() -> dict[str, Any]:
    wanted = (
        "--showproductname",
        "--showid",
        "--showuse",
        "--showmaxpower",
        "--showperflevel",
        "--showmeminfo",
        "vram",
    )
    text, why = printed("rocm-smi", *wanted, "--showdriverversion", "--json")
    clocks, _ = printed("rocm-smi", "--showsclkrange", "--json")  # apart: not every card has it
    processes, no_processes = printed("rocm-smi", "--showpids", "--json")
    topology, no_links = printed("rocm-smi", "--showtopo")
    gpus, driver = rocm_gpus(text, clocks)
    links = rocm_links(topology)
    unknown = _unknown(gpus, why, links, no_links, no_processes)
    return {"gpus": gpus, "driver": driver, "links": links, "busy": rocm_busy(processes), "unknown": unknown}


def rocm_gpus(text: str, clocks: str = "") -> tuple[list[dict[str, Any]], str | None]:
    """Return a mapping for each card, and the driver. kind: the id of the device, since one model has several names."""
    cards, ranges = _json(text), _json(clocks)
    gpus = []
    for name in sorted((name for name in cards if re.fullmatch(r"card\d+", name)), key=lambda name: int(name[4:])):
        card = {**ranges.get(name, {}), **cards[name]}
        gpu = {ours: _value(str(card[theirs])) for theirs, ours in _ROCM.items() if theirs in card}
        limits = re.findall(r"(\d+)Mhz", str(card.get("Valid sclk range", "")))
        names = (str(card[key]) for key in ("Card Series", "Card series", "Card Model", "Card model") if key in card)
        known = next((one for one in names if one not in ("", "N/A")), None)
        kind = next((str(card[key]) for key in ("GPU ID", "Device ID") if card.get(key)), known)
        memory = _value(str(card.get("VRAM Total Used Memory (B)", "")))
        more = {"clock_limit_mhz": float(limits[-1])} if limits else {}
        more |= {"memory_used_bytes": int(memory)} if isinstance(memory, float) else {}
        kept = {**gpu, **more, "name": known, "kind": kind}
        gpus.append({"index": int(name[4:]), **{key: value for key, value in kept.items() if value is not None}})
    driver = cards.get("system", {}).get("Driver version")
    return gpus, str(driver) if driver else None


def rocm_links(text: str) -> dict[str, str]:
    """Return the links between cards that --showtopo prints: a table of pairs under this heading."""
    table = re.search(r"= Link Type between two GPUs =+\n(.*?)(?:\n\s*\n|\n=|\Z)", text, re.DOTALL)
    rows = [line.split() for line in table[1].splitlines() if line.strip()] if table else []
    links: dict[str, str] = {}
    for name, *cells in rows[1:]:
        if re.fullmatch(r"GPU\d+", name) and len(cells) == len(rows[0]):
            pairs = {f"{name[3:]}-{other[3:]}": cell for other, cell in zip(rows[0], cells, strict=True)}
            links |= {pair: cell for pair, cell in pairs.items() if _is_pair(pair) and cell not in _OWN_LINK}
    return links


def _is_pair(pair: str) -> bool:
    """Return whether FIRST-SECOND names two GPUs in their order: each pair is in a table twice."""
    first, _, second = pair.partition("-")
    return first.isdigit() and second.isdigit() and int(first) < int(second)


def rocm_busy(text: str) -> list[str]:
    """Return the processes that have a GPU: PID1905652: "name, GPUs, bytes of VRAM, …"; some have none."""
    busy = []
    for key, value in _json(text).get("system", {}).items():
        cells = [cell.strip() for cell in str(value).split(",")]
        if re.fullmatch(r"PID\d+", str(key)) and len(cells) >= 3 and (cells[1], cells[2]) != ("0", "0"):
            busy.append(f"{key[3:]} {cells[0]}")
    return busy


def _of_amd() -> dict[str, Any]:
    static, why = printed("amd-smi", "static", "--json")
    metric, no_use = printed("amd-smi", "metric", "--json")
    topology, no_links = printed("amd-smi", "topology", "--json")
    processes, no_processes = printed("amd-smi", "process", "--json")
    gpus, links = amd_gpus(static, metric), amd_links(topology)
    found = {"gpus": gpus, "driver": _one(gpus, "driver"), "links": links, "busy": amd_busy(processes)}
    return {**found, "unknown": _unknown(gpus, why, links, no_links, no_processes or no_use)}


def amd_gpus(static: str, metric: str = "") -> list[dict[str, Any]]:
    """Return a mapping for each GPU that `amd-smi static` and `metric` print, with the words of `rocm_gpus`."""
    now = {each["gpu"]: each for each in _each_gpu(metric)}
    gpus = []
    for each in _each_gpu(static):
        both = {**now.get(each["gpu"], {}), **each}
        gpu = {ours: next(filter(_known, (_at(both, way) for way in ways)), None) for ours, ways in _AMD.items()}
        gpu["clock_limit_mhz"] = _most_mhz(each, now.get(each["gpu"], {}))
        level = str(both.get("perf_level", "")).rpartition("PERF_LEVEL_")[2].lower()
        gpu["performance_level"] = level if level not in ("", "n/a") else None
        used = gpu.pop("memory_used_mib")
        gpu["memory_used_bytes"] = int(used * MIB) if isinstance(used, float) else None
        gpus.append({"index": each["gpu"], **{name: value for name, value in gpu.items() if value is not None}})
    return gpus


def _most_mhz(static: Mapping[str, Any], metric: Mapping[str, Any]) -> float | None:
    """Return the highest clock that a GPU may take: of its levels, else the limit in force; 0 is none."""
    levels = _at(static, ("clock", "sys", "frequency_levels"))
    named = [float(mhz) for mhz in re.findall(r"(\d+) ?MHz", str(levels), re.IGNORECASE)]
    limit = _at(metric, ("clock", "gfx_0", "max_clk"))
    return max(named, default=None) or (limit if isinstance(limit, float) and limit else None)


def amd_links(text: str) -> dict[str, str]:
    """Return the links between GPUs that `amd-smi topology` prints: a list for each GPU, before ROCm 6.3 a mapping."""
    links: dict[str, str] = {}
    for each in _each_gpu(text):
        listed = each.get("links")
        if isinstance(listed, list):
            others = {str(link.get("gpu")): link.get("link_type") for link in listed if isinstance(link, dict)}
        else:
            older = each.get("link_type")
            others = {str(key)[4:]: value for key, value in older.items()} if isinstance(older, dict) else {}
        pairs = {f"{each['gpu']}-{other}": str(kind) for other, kind in others.items()}
        links |= {pair: kind for pair, kind in pairs.items() if _is_pair(pair) and kind not in _OWN_LINK}
    return links


def amd_busy(text: str) -> list[str]:
    """Return the processes of `amd-smi process` that have memory of a GPU: an agent that only watches has none."""
    busy = set()
    for each in _each_gpu(text):
        listed = each.get("process_list")
        for item in listed if isinstance(listed, list) else ():
            process = item.get("process_info", item) if isinstance(item, dict) else None
            if isinstance(process, dict) and "pid" in process and _at(process, ("memory_usage", "vram_mem")) != 0:
                busy.add(f"{process['pid']} {process.get('name', '')}".strip())
    return sorted(busy)


def _each_gpu(text: str) -> list[dict[str, Any]]:
    """Return what amd-smi prints of each GPU: a list, since ROCm 7 in an object for some commands; warnings may come
    before it."""
    start = min((text.index(sign) for sign in "[{" if sign in text), default=len(text))
    try:
        found = json.loads(text[start:])
    except ValueError:
        return []
    listed = found.get("gpu_data") if isinstance(found, dict) else found
    entries = listed if isinstance(listed, list) else []
    return [each for each in entries if isinstance(each, dict) and type(each.get("gpu")) is int]


def _at(tree: Any, way: tuple[str, ...]) -> Any:
    """Return what is in `tree` at the end of `way`, of a {value, unit} the number, as a float; None: nobody knows."""
    for name in way:
        tree = tree.get(name) if isinstance(tree, dict) else None
    if isinstance(tree, dict) and "value" in tree:
        tree = tree["value"]
    if isinstance(tree, str):
        return None if tree.strip().upper() in ("N/A", "") else tree
    return float(tree) if isinstance(tree, int | float) and not isinstance(tree, bool) else tree


def _known(value: Any) -> bool:
    return isinstance(value, str | float)


def _unknown(gpus: list[Any], why: str, links: Mapping[str, str], no_links: str, no_idle: str) -> dict[str, str]:
    reasons = {"gpus": why if not gpus else "", "idle": no_idle}
    reasons["links"] = (no_links or "no pair is in the text") if not links and len(gpus) > 1 else ""
    return {what: reason for what, reason in reasons.items() if reason}


def _json(text: str) -> dict[str, Any]:
    """Return the object in a tool's text; warnings may come before it."""
    try:
        found = json.loads(text[text.index("{") :])
    except ValueError:
        return {}
    return {key: value for key, value in found.items() if isinstance(value, dict)} if isinstance(found, dict) else {}


def _value(text: str) -> float | str | None:
    if text.lower().strip("[]") in ("n/a", "not supported", "unknown error", ""):
        return None
    try:
        return float(text)
    except ValueError:
        return text


def _one(gpus: list[dict[str, Any]], name: str) -> str | None:
    return next((str(gpu[name]) for gpu in gpus if name in gpu), None)


def printed(*argv: str) -> tuple[str, str]:
    """Return what a tool prints, and why it printed nothing."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{argv[0]}: {'no answer' if isinstance(error, subprocess.TimeoutExpired) else error}"
    if done.returncode == 0:
        return done.stdout, ""
    said = next(iter(_last_lines(done.stdout + done.stderr)), "no word")
    return "", f"{argv[0]} ended with exit code {done.returncode}: {said}"


def _last_lines(text: str) -> Iterator[str]:
    return (line.strip()[:200] for line in reversed(text.splitlines()) if line.strip())
