"""Work that `tprimat measure` times: for each kind a function that makes its tensors and returns what runs once.

The words of a case are those of measure/cases.py: sizes in elements, rows, columns or bytes as its kinds state them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

Work = Callable[[], object]
Groups = Mapping[tuple[int, int], "dist.ProcessGroup | None"]
"""The process group that this rank belongs to, by how many ranks it has and how far each is from the next."""
LAUNCHES = 200  # of one small kernel, timed as one
BEHIND = 20
"""Small kernels before each that threads share, who sleep meanwhile as in a training: right behind one another, such
kernels find them awake or asleep by chance."""
SHARED = 32769  # elements: torch gives more than 32,768 to several threads (at::internal::GRAIN_SIZE)


def work_of(case: Mapping[str, Any], device: torch.device, groups: Groups) -> Work:
    """Return the work of a case. KeyError: no such kind. RuntimeError: torch cannot do it here, or lacks the memory."""
    if device.type == "cuda":
        wanted = case.get("dtype") == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = wanted  # of any kind of work: the case before left its own
        if wanted and not torch.backends.cuda.matmul.allow_tf32:
            raise RuntimeError("this torch computes fp32 although tf32 is allowed: on ROCm HIPBLASLT_ALLOW_TF32=1")
    return _KINDS[case["kind"]](case, device, groups)


_AS = {"tf32": "float32", "fp8": "bfloat16"}
"""How operands are drawn of a dtype that torch has no name for, or draws nothing of."""


def _random(case: Mapping[str, Any], device: torch.device, *shape: int, grad: bool = False) -> torch.Tensor:
    drawn = torch.randn(shape, device=device).to(getattr(torch, _AS.get(case["dtype"], case["dtype"])))
    return drawn.requires_grad_(grad)


def _gemm(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    """Multiply as a linear layer does: rows of m tokens by a weight of n × k."""
    rows, weight = _random(case, device, case["m"], case["k"]), _random(case, device, case["n"], case["k"])
    if case["dtype"] == "fp8":
        return _fp8(rows, weight)
    return lambda: functional.linear(rows, weight)


def _fp8(rows: torch.Tensor, weight: torch.Tensor) -> Work:
    """Multiply in e4m3, scaled by one number a tensor, into bf16."""
    older = device_name(rows.device).startswith("gfx94")  # MI300: another encoding of the same width
    kind = torch.float8_e4m3fnuz if older else torch.float8_e4m3fn
    one = torch.ones((), device=rows.device)
    first, second = rows.to(kind), weight.to(kind).t()
    return lambda: torch._scaled_mm(first, second, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def device_name(device: torch.device) -> str:
    """Return ROCm's name of the architecture; empty on any other device."""
    return getattr(torch.cuda.get_device_properties(device), "gcnArchName", "") if device.type == "cuda" else ""


def _grouped(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    """Multiply for each expert in turn, as experts without a grouped kernel do."""
    rows = _random(case, device, case["experts"], case["m"], case["k"])
    weights = _random(case, device, case["experts"], case["n"], case["k"])
    return lambda: [functional.linear(one, weight) for one, weight in zip(rows, weights, strict=True)]


def _grouped_kernel(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    """Multiply for all experts at once, by torch's grouped product."""
    if (grouped_mm := getattr(functional, "grouped_mm", None)) is None:
        raise NotImplementedError(f"torch {torch.__version__} has no grouped product")
    rows = _random(case, device, case["experts"] * case["m"], case["k"])
    weights = _random(case, device, case["experts"], case["n"], case["k"]).transpose(1, 2)
    ends = case["m"] * torch.arange(1, case["experts"] + 1, dtype=torch.int32, device=device)
    return lambda: grouped_mm(rows, weights, offs=ends)


def _sdpa(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    """Attend by one of torch's kernels."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels = {"flash": "FLASH", "efficient": "EFFICIENT", "cudnn": "CUDNN"}
    name = f"{kernels[case['backend']]}_ATTENTION" if case["backend"] in kernels else "MATH"
    shape = (case["batch"], case["heads"], case["seq"], case["channels"])
    query, key, value = (_random(case, device, *shape) for _ in range(3))

    def forward() -> torch.Tensor:
        with sdpa_kernel(getattr(SDPBackend, name)):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=bool(case["causal"]))

    return forward


def _attention(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    shape = (case["batch"], case["heads"], case["seq"], case["channels"])
    query, key, value = (_random(case, device, *shape, grad=bool(case["backward"])) for _ in range(3))

    def forward() -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    if not case["backward"]:
        return forward
    gradient = torch.ones_like(query)
    return lambda: torch.autograd.grad(forward(), (query, key, value), gradient)


def _copy(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    source = _random(case, device, case["n"])
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _triad(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    a, b, c = (_random(case, device, case["n"]) for _ in range(3))
    return lambda: torch.add(b, c, alpha=3.0, out=a)


def _rms_norm(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    rows, weight = _random(case, device, case["rows"], case["width"]), _random(case, device, case["width"])
    return lambda: functional.rms_norm(rows, (case["width"],), weight)


def _swiglu(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    gate, up = _random(case, device, case["rows"], 2 * case["width"]).chunk(2, dim=-1)
    return lambda: functional.silu(gate) * up


def _rope(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    """Turn the halves of each head, as Megatron's rotary embedding does without its fused kernel."""
    heads = _random(case, device, case["rows"], case["width"] // case["channels"], case["channels"])
    cos, sin = (_random(case, device, case["rows"], 1, case["channels"]) for _ in range(2))
    return lambda: heads * cos + torch.roll(heads, case["channels"] // 2, dims=-1) * sin


def _softmax(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    logits = _random(case, device, case["rows"], case["width"])
    return lambda: torch.softmax(logits, dim=-1)


def _adam(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    weight = torch.nn.Parameter(torch.zeros(case["n"], device=device))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight], lr=1e-4, fused=True)
    return lambda: optimizer.step()


def _launches(_: Mapping[str, Any], device: torch.device, groups: Groups) -> Work:
    small = torch.zeros(1, device=device)

    def launch() -> None:
        for _ in range(LAUNCHES):
            small.add_(1.0)

    return launch


def _thread_launches(_: Mapping[str, Any], device: torch.device, groups: Groups) -> Work:
    """Launch small kernels, and behind each BEHIND of them one that all threads of the rank share."""
    small, shared = torch.zeros(1, device=device), torch.zeros(SHARED, device=device)

    def launch() -> None:
        for _ in range(LAUNCHES // BEHIND):
            for _ in range(BEHIND):
                small.add_(1.0)
            shared.add_(1.0)

    return launch


def _graph(case: Mapping[str, Any], device: torch.device, groups: Groups) -> Work:
    """Replay the same launches as one graph of CUDA or HIP."""
    launch, graph = _launches(case, device, groups), torch.cuda.CUDAGraph()
    launch()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog asks for its events meanwhile
        launch()
    return lambda: graph.replay()


def _to_device(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    host = torch.zeros(case["n"], dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(host, device=device)
    return lambda: there.copy_(host, non_blocking=True)


def _to_host(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    host = torch.empty(case["n"], dtype=torch.uint8, pin_memory=True)
    there = torch.zeros_like(host, device=device)
    return lambda: host.copy_(there, non_blocking=True)


def _bytes(case: Mapping[str, Any], device: torch.device, parts: int = 1) -> torch.Tensor:
    """Return fp32 elements of about so many bytes, which `parts` divides."""
    return torch.zeros(max(1, case["bytes"] // 4 // parts) * parts, device=device)


def _group(case: Mapping[str, Any], groups: Groups) -> tuple[int, Any]:
    """Return how many ranks exchange with one another, and their process group."""
    ranks = case.get("group", case["ranks"])
    return ranks, groups[ranks, case.get("stride", 1)]


def _all_reduce(case: Mapping[str, Any], device: torch.device, groups: Groups) -> Work:
    whole, (_, group) = _bytes(case, device), _group(case, groups)
    return lambda: dist.all_reduce(whole, group=group)


def _all_gather(case: Mapping[str, Any], device: torch.device, groups: Groups) -> Work:
    ranks, group = _group(case, groups)
    whole = _bytes(case, device, ranks)
    part = torch.zeros_like(whole[: len(whole) // ranks])
    return lambda: dist.all_gather_into_tensor(whole, part, group=group)


def _reduce_scatter(case: Mapping[str, Any], device: torch.device, groups: Groups) -> Work:
    ranks, group = _group(case, groups)
    whole = _bytes(case, device, ranks)
    part = torch.zeros_like(whole[: len(whole) // ranks])
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


def _all_to_all(case: Mapping[str, Any], device: torch.device, groups: Groups) -> Work:
    ranks, group = _group(case, groups)
    whole = _bytes(case, device, ranks)
    other = torch.empty_like(whole)
    return lambda: dist.all_to_all_single(other, whole, group=group)


def _send(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    """Send from one rank of a pair to the other and back: half of it is one way."""
    whole, here, (first, second) = _bytes(case, device), dist.get_rank(), case["pair"]

    def there_and_back() -> None:
        if here == first:
            dist.send(whole, second)
            dist.recv(whole, second)
        else:
            dist.recv(whole, first)
            dist.send(whole, first)

    return there_and_back


def _overlap(case: Mapping[str, Any], device: torch.device, groups: Groups) -> Work:
    """Reduce while a product runs; both alone are cases of their own."""
    product, whole, group = _gemm(case, device, groups), _bytes(case, device), groups[case["ranks"], 1]

    def both() -> None:
        reduced = dist.all_reduce(whole, group=group, async_op=True)
        product()
        reduced.wait()

    return both


def _model(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    """Take a step of the standard model, or its forward pass alone."""
    from plain_llama import Peer

    sizes = {**case["model"], "seq_length": case["seq"]}
    peer = Peer(sizes, device, case["dtype"])
    batch = torch.randint(sizes["padded_vocab_size"], (1, case["batch"], case["seq"] + 1), device=device)
    return (lambda: peer.step(batch)) if case["backward"] else (lambda: peer.loss(batch[0]))


@contextmanager
def _passing(case: Mapping[str, Any]) -> Iterator[Path]:
    """Yield where a file of this rank is while it is written: it has no name afterwards, whatever went wrong."""
    path = Path(f"{case['kind']}-{dist.get_rank()}.tmp")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _check_space(wanted: int) -> None:
    """Raise OSError where the disk has no room for so many bytes: torch.save says "unexpected pos 704 vs 598"."""
    if (free := shutil.disk_usage(".").free) < wanted:
        raise OSError(f"the disk has {free} bytes free, {wanted} are needed")


def _save(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    """Write a checkpoint's tensors from the device to a file of this rank, and wait until the disk has them."""
    _check_space(case["bytes"])
    state = torch.zeros(case["bytes"], dtype=torch.uint8, device=device)

    def save() -> None:
        with _passing(case) as path, path.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    return save


def _load(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    """Read such a file, of which the system has forgotten what it kept in memory, back to the device."""
    _check_space(case["bytes"])
    with _passing(case) as path:
        torch.save(torch.zeros(case["bytes"], dtype=torch.uint8), path)
        held = path.open("rb")
        os.fsync(held.fileno())

    def load() -> torch.Tensor:
        os.posix_fadvise(held.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        held.seek(0)
        return torch.load(held, map_location=device, weights_only=True)

    return load


def _data(case: Mapping[str, Any], device: torch.device, _: Groups) -> Work:
    """Read a batch of sequences from anywhere in a file of tokens that is mapped into memory, to the device."""
    import numpy as np

    with _passing(case) as path:
        np.zeros(case["n"], dtype=np.int32).tofile(path)
        tokens, length = np.memmap(path, np.int32, "r"), case["seq"] + 1
    draw = np.random.default_rng(dist.get_rank())

    def read() -> torch.Tensor:
        starts = draw.integers(0, len(tokens) - length, case["batch"])
        return torch.from_numpy(np.stack([tokens[at : at + length] for at in starts])).to(device)

    return read


_KINDS: Mapping[str, Callable[[Mapping[str, Any], torch.device, Groups], Work]] = {
    "gemm": _gemm,
    "grouped": _grouped,
    "grouped_kernel": _grouped_kernel,
    "sdpa": _sdpa,
    "attention": _attention,
    "copy": _copy,
    "triad": _triad,
    "rms_norm": _rms_norm,
    "swiglu": _swiglu,
    "rope": _rope,
    "softmax": _softmax,
    "adam": _adam,
    "launches": _launches,
    "thread_launches": _thread_launches,
    "graph": _graph,
    "to_device": _to_device,
    "to_host": _to_host,
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send": _send,
    "overlap": _overlap,
    "model": _model,
    "jitter": _model,
    "save": _save,
    "load": _load,
    "data": _data,
}
