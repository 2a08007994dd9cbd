"""The cells of a table of runs, as people write them: GPU, precision, recomputation, sharding, network, stack. Each
reader raises ValueError with the reason, in words that repeat at most a short piece of the cell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conf.compose import choices
from conf.errors import closest, listed
from conf.facts import hardware, named_by_driver
from conf.schema import Hardware
from conf.vocabulary import read_yaml

_LONGEST = 40
_FASTEST_GBIT_S = 10_000  # of a GPU's network: twelve times the fastest of 2026
_ROUNDED = 0.1  # memory of one GPU, as people state it
_FORM = re.compile(r"nvidia|amd|instinct|tesla|dgx|hgx|blackwell|gpus?|oam|sxm\d?|hbm\d\w?|\d{2,3}(?:gb?|gib)")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")
_MOST = 2**53  # beyond, a float is no integer any more
_CARDS = re.compile(  # of a node: 8x200Gb, 4xOPA100, 4 * 100Gb; not bytes, and not the lanes of PCIe4 x16
    r"(?<![A-Za-z\d])(\d) ?[x*×] ?(?:(?:IB|OPA|NDR|HDR|CX-?\d) ?)?(\d{2,4}) ?(?:Gb|G\b|(?=$|[^\w. ]))"
)
_CARD = re.compile(r"(?:IB|RoCE|RDMA|NIC|OPA)(\d{2,7})(Gb/node)?(?:x(\d))?")  # IB400, RoCE1600Gb/node, IB200x8
_KINDS = (  # with a rate of their own or without
    r"(?:NVLink|NVSwitch|NVL|xGMI|PCIe)\d*|IB|InfiniBand|RoCE(?:v2)?|RDMA|NIC|OPA|\d*GbE|Ethernet|EFA(?:v\d)?"
    r"|Slingshot(?:-\d+)?|[EHNX]DR|\d+ ?Gb?"
)
_NETWORK = re.compile(rf"(?i)(?:{_KINDS})(?:[+ /,]+(?:{_KINDS}))*")
_DATE = re.compile(
    r"(?i)(?:core_)?v?\d+(?:[./-]\d+)*(?:[.+-]?(?:rc|a|b|dev|post|alpha|beta|py)[.\d]*)*"
    r"(?:\+\w+|[ T]\d\d:\d\d(?::\d\d)?)?|[a-z]{3,9} \d{4}"
)


@cache
def spellings() -> Mapping[str, Any]:
    """Return spellings.yaml."""
    known: Mapping[str, Any] = read_yaml(Path(__file__).with_name("spellings.yaml"))
    return known


def named(stacks: NDArray[np.str_] | str, kind: str) -> NDArray[np.bool_]:
    """Return of which stacks the name begins as one of a kind of spellings.yaml."""
    each = [np.char.startswith(stacks, name) for name in spellings()[kind]]
    return np.asarray(np.any(each, axis=0), dtype=bool)


def plain(text: str) -> str:
    """Return a text in lower case, without what is no letter or digit."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def quoted(text: str) -> str:
    """Return a piece of a cell that a message can show: one line, printable, short."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text.strip())
    clean = clean.encode("ascii", "replace").decode() if not clean.isascii() else clean
    return repr(clean if len(clean) <= _LONGEST else f"{clean[: _LONGEST - 1]}~")


def count(text: str) -> int:
    """Read an integer of 1 or more."""
    value = size(text)
    if value < 1:
        raise ValueError(f"{quoted(text)} is below 1")
    return value


def size(text: str) -> int:
    """Read an integer of 0 or more, with a comma before each three digits or without (1,024)."""
    bare = text.replace(",", "") if _THOUSANDS.fullmatch(text.strip()) else text
    try:
        value = float(bare) if len(bare) <= _LONGEST else inf
    except ValueError:
        raise ValueError(f"{quoted(text)} is no number") from None
    if not 0 <= value <= _MOST or value != int(value):
        raise ValueError(f"{quoted(text)} is no integer of 0 or more")
    return int(value)


@cache
def hardware_named(text: str) -> Hardware:
    """Return the GPU that people call `text`."""
    bare = re.sub(r"\(.*", "", text).strip()
    name = re.sub(r"^(nvidia|amd|instinct)+", "", plain(bare))
    names = {plain(choice): choice for choice in choices("hardware")} | spellings()["hardware"]
    device = named_by_driver(bare) or hardware(names.get(name)) or _without_its_form(bare, names)
    if device is None or device.vendor is None or not device.peak_dense_tflops:
        known = [c for c in choices("hardware") if c not in ("cpu", "unknown")]
        near = closest(name, known)
        raise ValueError(f"no facts of a GPU {quoted(text)}; {near or f'known are {listed(known)}'}")
    return device


def _without_its_form(text: str, names: Mapping[str, str]) -> Hardware | None:
    """Return the GPU without what is said of its board, its box and its memory, which must be the GPU's own: DGX H100,
    H100-SXM5-80GB, MI300X OAM, 8xH100."""
    words = re.sub(r"[-_/ ]+", " ", re.sub(r"(?i)^\d+ ?[x×] ?", "", text)).lower().split()
    sizes = [int(found[1]) for one in words if (found := re.fullmatch(r"(\d{2,3})(?:gb?|gib)", one))]
    left = "".join(one for one in words if not _FORM.fullmatch(one))
    if any(one.startswith("sxm") for one in words) and "pcie" in words:
        return None
    memories = [f"{left}{one}" for one in words if one.startswith("hbm")]
    left = next((name for name in memories if name in names), left)
    fitting = (hardware(names.get(name)) for name in (left, *(f"{left}{size}gb" for size in sizes)))
    known = [device for device in fitting if device and device.memory_gb]
    same = (d for d in known if all(abs(size / (d.memory_gb or inf) - 1) <= _ROUNDED for size in sizes))
    return next(same, None)


def word(kind: str, text: str) -> Any:
    """Return what spellings.yaml says that `text` means."""
    known = spellings()[kind]
    if (name := plain(text)) not in known:
        raise ValueError(f"{quoted(text)} is none of {listed([*known])}")
    return known[name]


def tokens(text: str) -> int:
    """Read the tokens of a sequence, whose thousands are powers of two: 8192, 128k."""
    in_k = re.fullmatch(r"(?i)(\d{1,4}) ?k", text.strip())
    return int(in_k[1]) * 1024 if in_k else count(text)


def sharding(text: str) -> Mapping[str, float]:
    """Return the switches distributed_optimizer and fsdp. A number behind the name, the ranks of a group, is not
    used."""
    whole = text.strip().rstrip("?")
    bare = whole if plain(whole) in spellings()["sharding"] else re.sub(r"[ :=]\(?\d+\)?$", "", whole)
    is_off = re.search(r"[:=]\(?0+\)?$", whole)
    switches: Mapping[str, float] = word("sharding", "none" if is_off else bare)
    return switches


class Again(NamedTuple):
    """Work that is recomputed. layers: a share of all; modules: in the others, too."""

    layers: float = 0.0
    modules: frozenset[str] = frozenset()
    note: str = ""


BY_OPERATOR = Again(modules=frozenset(("by_operator",)))
"""TorchTitan's selective_ac_option=op: every second matrix product and the attention are kept."""


def recompute(text: str, chunks: int, layers: int) -> Again:
    """Read full, none, full:Nlayers (of each of `chunks` parts of the pipeline), selective, selective:a+b."""
    text = text.strip()
    kind, _, detail = text.rstrip("?").lower().partition(":")
    if kind in ("none", "no", "false"):
        return Again()
    if kind in ("full", "full ac", "true"):
        detail = "" if detail == "uniform" else detail
        each = re.fullmatch(r"(\d{1,6})(?: ?layers?)?", detail)
        if detail and not each:
            raise ValueError(f"{quoted(text)}: layers are written full:5layers")
        many, part = int(each[1]) if each else layers, -(-layers // chunks)
        if many > layers:
            raise ValueError(f"{quoted(text)} of a model of {layers} layers: at most full:{layers}layers")
        more = each and many > part
        note = f"recompute {quoted(text)}: all layers, for a part of the pipeline has {part}" if more else ""
        return Again(min(1.0, many * chunks / layers), note=note)
    if kind in ("selective-op", "selective op"):
        return BY_OPERATOR
    if all(plain(name) in spellings()["recompute_modules"] for name in kind.split("+")):
        kind, detail = "selective", kind
    if kind in ("selective", "selective+sp"):
        names = [name for name in detail.split("+") if name] or ["core_attn"]
        return Again(modules=frozenset(word("recompute_modules", name) for name in names))
    raise ValueError(f"{quoted(text)} is none of none, full, full:5layers, selective, selective:mlp+layernorm")


def network_bandwidth(text: str, device: Hardware, gpus_per_node: float) -> tuple[float, str]:
    """Return bytes/s of one GPU's network, and a note where the cell states none."""
    rate = None
    if match := _CARDS.search(text):
        rate = int(match[1]) * int(match[2]) / gpus_per_node
    elif match := _CARD.search(text):
        cards = 1 if match[2] else int(match[3] or gpus_per_node)
        rate = int(match[1]) * cards / gpus_per_node
    if rate and rate > _FASTEST_GBIT_S:
        raise ValueError(f"interconnect: {quoted(text)} is more than {_FASTEST_GBIT_S:,} Gbit/s of a GPU")
    if rate:
        return rate * 1e9 / 8, ""
    if not device.network_gbit_s_per_gpu:
        return float("nan"), "network unknown"
    rate = device.network_gbit_s_per_gpu / device.devices_per_package
    return rate * 1e9 / 8, f"network of {rate:g} Gbit/s per GPU assumed"


def names_network(text: str) -> bool:
    """Return whether a cell is empty, or names links and networks, with their rate or without."""
    bare = re.sub(r"\(.*?\)", "", text).strip()
    return not bare or any((_CARDS.search(text), _CARD.search(text), _NETWORK.fullmatch(bare)))


_BESIDE = re.compile(r"(?i)(?<=\S)[ /-]+(?:rocm|cuda)[ -]?v?\d[\w.]*|^(?:rocm|nvidia|amd)/")
"""The base of a stack, and whose copy it is: Primus ROCm7.1, ROCm/Megatron-LM."""
_RELEASE = re.compile(r"v?(\d+(?:\.\d+)+)")


def is_date(text: str) -> bool:
    """Return whether a cell is a date or a release: 2024, 2025-06, v25.04.02, 0.9.0rc1, MLPerf Training v5.1."""
    round_ = text.strip().lower().startswith("mlperf") and _RELEASE.search(text)
    return bool(round_ or _DATE.fullmatch(text.strip()))


def stack(framework: str, date: str) -> str:
    """Return FRAMEWORK-RELEASE, as in Jobs: megatron_bridge-26.04.01, nemo-25.04.02, mlperf-5.0. A date stands where no
    release is stated; the framework alone where neither is, or where what stands there is no date."""
    date = date if is_date(date) else ""
    if framework.lower().startswith("mlperf"):
        release = _RELEASE.search(date) or _RELEASE.search(framework)
        return f"mlperf-{release[1]}" if release else "mlperf"
    name = _BESIDE.sub("", re.sub(r"\(.*?\)", "", framework)).strip()
    stated = re.search(r"(?<![\w.])(?:v?|core)\d[\w. ]*$", name)
    family = (name[: stated.start()] if stated else name).partition("/")[0]
    family = re.sub(r"[^a-z0-9]+", "_", family.lower()).strip("_")
    in_date = _RELEASE.fullmatch(date.strip())
    release_text = stated[0] if stated else in_date[1] if in_date else date.strip()
    return "-".join(filter(None, (family, release_text)))[:80]
