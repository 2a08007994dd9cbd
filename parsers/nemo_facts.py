"""What NeMo 1 and NeMo 2 both print before they train: process groups, Megatron's config objects, sizes, devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from conf.vocabulary import printed
from parsers.events import Event, Fact, Setting
from parsers.values import literal

STARTUP = (
    b"`Trainer.fit` stopped",
    b"GLOBAL_RANK: 0, MEMBER",
    b"Rank 0 has",
    b"Padded vocab_size",
    b"number of parameters on (tensor",
    b"OptimizerConfig(",
    b"DistributedDataParallelConfig(",
    b"You are using a CUDA device",
    b"of microbatches to constant",
    b"of micro-batches to constant",
    b"distributed_backend=",
    b": NVIDIA ",
    b"MegatronGPTModel() does not have field.name: ",
)

FRAMEWORK = "nemo"
# nemo/lightning/megatron_init.py, in NeMo 1 modules/common/megatron/megatron_init.py: of rank 0, the ranks of a group.
_GROUP = re.compile(r"Rank 0 has ([a-z ]{4,40}group) ?: ?\[([\d, ]{1,60000})\]")
_PATTERNS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"GLOBAL_RANK: 0, MEMBER: \d{1,7}/(\d{1,7})"), ("world_size",)),
    (re.compile(r"Padded vocab_size: (\d{1,9}), original vocab_size: (\d{1,9})"), ("padded_vocab_size", "vocab_size")),
    (re.compile(r"number of micro-?batches to constant (\d{1,7})"), ("num_micro_batches",)),
    (re.compile(r"^distributed_backend=(\w{1,20})\s*$"), ("distributed_backend",)),
)
_PARAMETERS = re.compile(r"\(tensor, pipeline\) model parallel rank \((\d{1,6}) ?, ?(\d{1,6})\): (\d{1,18})")
_DEVICE = re.compile(r"You are using a CUDA device \('([^']{1,100})'\)")
_SMI = re.compile(r"^GPU (\d{1,3}): ([^()]{1,100}) \(UUID")  # nvidia-smi -L
_STOPPED = re.compile(r"`Trainer\.fit` stopped: `max_(steps|epochs)=(\d{1,12})` reached")

# NeMo 1 says of each field of Megatron's TransformerConfig that is not in its configuration that it keeps its default.
_DEFAULT = re.compile(r"MegatronGPTModel\(\) does not have field\.name: (\w{1,60}) in its cfg")
_DEFAULTS: Mapping[str, tuple[str, object]] = {
    "num_moe_experts": ("num_experts", None),
    "multi_latent_attention": ("multi_latent_attention", False),
    "mtp_num_layers": ("mtp_num_layers", None),
    "window_size": ("window_size", None),
}


def read(line: int, text: str, body: str) -> Iterator[Event]:
    """The events of one line; `body` is `text` without its prefixes."""
    for pattern, names in _PATTERNS:
        found = pattern.search(body)
        if found is not None:
            yield from (Setting(name, literal(value), line) for name, value in zip(names, found.groups(), strict=True))
    yield from _group(line, text)
    yield from _default(line, text)
    for kind in ("OptimizerConfig", "DistributedDataParallelConfig"):
        if f"{kind}(" in text:
            yield from _config(line, text.partition(f"{kind}(")[2], kind)
    parameters, device, smi = _PARAMETERS.search(text), _DEVICE.search(text), _SMI.search(body)
    if parameters is not None:
        yield Fact("parameters_by_rank", {f"{parameters[1]},{parameters[2]}": int(parameters[3])}, line)
    if device is not None:
        yield Fact("device_name", device[1], line)
    if smi is not None:
        yield Fact("device_name", smi[2], line)
    stopped = _STOPPED.search(text)
    if stopped is not None:
        yield Fact("completed", True, line)
        if stopped[1] == "steps":
            yield Fact("train_iters", int(stopped[2]), line)


def _default(line: int, text: str) -> Iterator[Setting]:
    found = _DEFAULT.search(text) if "field.name" in text else None
    if found is not None and found[1] in _DEFAULTS:
        name, value = _DEFAULTS[found[1]]
        yield Setting(name, value, line)


def _group(line: int, text: str) -> Iterator[Setting]:
    found = _GROUP.search(text) if "Rank 0 has" in text else None
    if found is not None and found[1] in printed(FRAMEWORK):
        yield Setting(printed(FRAMEWORK)[found[1]].name, found[2].count(",") + 1, line)


def _config(line: int, text: str, kind: str) -> Iterator[Setting]:
    # A dataclass as Python shows it. Parts of nested objects carry other names; the first of a name is the config's.
    known, seen = printed(FRAMEWORK), set()
    for part in text.split(", "):
        name, _, shown = part.partition("=")
        value = literal(shown.rstrip(")").strip("'"))
        setting = known.get(f"{kind}.{name}")
        if setting is not None and name not in seen and value is not None:
            seen.add(name)
            yield Setting(setting.name, value, line)
