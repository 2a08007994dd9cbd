"""`metrics check`: is a published figure possible? `metrics flops`: a model's FLOPs in every convention.

Speeds are judged against peaks, peaks against data sheets, ratios against their own numbers. Nothing here says whether
a possible figure is true."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeAlias

from conf.arguments import Arguments, Command, Key, positive, positive_integer, switch
from conf.compose import choices, compose
from conf.errors import InputError, Main, Problem, closest, command, listed
from conf.facts import PRECISIONS, hardware
from conf.freeze import MOST_LAYERS, frozen
from conf.schema import Hardware, Model
from metrics.flops import CONVENTIONS, DEFAULT, FORWARD, TRAINING, convert, flops_per_token
from metrics.peak import Cause, Judgement, Word, causes_in_a_run, judge_tflops, peak_tflops
from metrics.published import BESIDE, Beside, Case, disagreement, judged_beside, reference
from metrics.quantity import Quantity, shown
from metrics.shape import Shape, shape_of_model
from parsers.storage import dumps

_CONVERTED = {name: convention for name, convention in CONVENTIONS.items() if not convention.recompute}
_SHAPE = ("num_layers", "hidden_size", "ffn_hidden_size", "gated_linear_unit", "vocab_size")
_MODEL = ("model", "seq_length", *_SHAPE)
_EXIT = {"possible": 0, "implausible": 1, "impossible": 1, "cannot tell": 3}
_TFLOPS = ("TFLOP/s", "TFLOPS", "TFLOP/s/GPU", "TFLOPS/GPU")
_ONE = "leave out the one that is wrong"
GB = 1e9
_DIGITS = 0.005  # half of the last of three digits, as such figures are quoted
_MOST_GPUS = 1_000_000
_LAYOUT = tuple(f"{name}_parallel_size" for name in ("tensor_model", "pipeline_model", "context"))


class MemoryClaim(NamedTuple):
    """A claim of what one of `gpus` GPUs holds. sizes: of the layout, by their names, those that are stated. shared_by:
    the GPUs that share one copy of the weights; None: not stated."""

    shape: Shape
    seq_length: int
    precision: str
    training: bool
    gpus: int
    sizes: Mapping[str, int]
    shared_by: int | None


class Held(NamedTuple):
    """The least that a GPU must hold, bytes by part, in the layout of those left open that takes least. states: the
    least of weights and gradients alone in any of them."""

    parts: Mapping[str, float]
    layout: str
    states: float


LeastMemory: TypeAlias = Callable[[MemoryClaim], Held | None]
"""Returns the least that a GPU must hold; None where that is not known: estimate.least.least_memory."""


def _two(text: str) -> tuple[float, float]:
    parts = text.split(",")
    if len(parts) != 2:
        raise ValueError("two numbers with a comma between them")
    return positive()(parts[0]), positive()(parts[1])


def _hardware(text: str) -> Hardware | str:
    """Return the hardware, else the name: a GPU that no file describes leaves the question open. InputError: a name
    close to one of ours."""
    if (device := hardware(text)) is None and (near := closest(text, choices("hardware"))):
        raise InputError(Problem("hardware", "no such hardware", text, listed(choices("hardware")), near))
    return device or text


_OF_A_MODEL = (
    Key("model", "of conf/model; or its shape:", choices=partial(choices, "model"), example="llama31_8b"),
    Key("num_layers", "", partial(positive_integer, most=MOST_LAYERS), example="16"),
    Key("hidden_size", "also the width of all attention heads together", positive_integer, example="4096"),
    Key("ffn_hidden_size", "width of the MLP; left out where unknown", positive_integer, example="14336"),
    Key("gated_linear_unit", "whether the MLP has a gate (SwiGLU)", switch, False, "true"),
    Key("vocab_size", "rows of the output matrix; left out where unknown", positive_integer, None, "128256"),
    Key("seq_length", "tokens (default: the model's)", positive_integer, example="8192"),
)
_COUNTED = f"by which the TFLOP/s were counted (default: {DEFAULT.name})"
_CONVENTION = Key("convention", _COUNTED, str, None, "full_attention", partial(list, CONVENTIONS))
CHECK = Command(
    name="metrics check",
    summary="Is a published figure physically possible? 0: possible, 1: not, 3: cannot tell.",
    keys=(
        *_OF_A_MODEL,
        Key("hardware", "of conf/hardware", _hardware, None, "mi355x", partial(choices, "hardware")),
        Key(
            "gpus", "that a speed, or a memory, is of (default 1)", partial(positive_integer, most=_MOST_GPUS), 1, "16"
        ),
        Key("precision", "(default: bf16)", str, "bf16", "fp8", lambda: PRECISIONS),
        Key("mode", "(default: training)", str, "training", "forward", lambda: ("training", "forward")),
        Key("tokens_per_s_per_gpu", "claim: a speed", positive("tokens/s/GPU"), example="20k"),
        Key("tokens_per_s", "claim: a speed of all gpus together", positive("tokens/s"), example="1.45M"),
        Key("tflops_per_gpu", "claim: a rate", positive(*_TFLOPS), example="1100"),
        Key("mfu_percent", "beside a speed: must agree with it", positive("%"), example="41.5"),
        Key("step_time_s", "beside a speed, with its global_batch_size and gpus", positive("s"), example="2.1"),
        Key("global_batch_size", "of that step", positive_integer, example="128"),
        Key(
            "memory_gb",
            "claim: what one of gpus GPUs holds, in the layout that is left open and takes least",
            positive("GB"),
            example="5",
        ),
        *(Key(name, "of the memory's layout", positive_integer, None, "2") for name in _LAYOUT),
        Key(
            "model_parallel_size",
            "GPUs that share one copy of the weights: TP × PP, of FSDP all",
            positive_integer,
            None,
            "16",
        ),
        Key("peak_tflops", "claim: the dense peak of hardware in precision", positive(*_TFLOPS), example="989"),
        Key("ratio", "claim: the ratio of the numbers in of", positive(), example="6.34"),
        Key("of", "the two numbers of a ratio", _two, example="13363,5115"),
        _CONVENTION,
    ),
    examples=(
        "model=llama31_8b hardware=mi355x precision=bf16 tokens_per_s_per_gpu=20k",
        "num_layers=16 hidden_size=4096 seq_length=100000 hardware=h100 gpus=16 tokens_per_s=1.45M",
        "num_layers=16 hidden_size=4096 ffn_hidden_size=14336 seq_length=100000 hardware=h100 gpus=16 memory_gb=5",
        "hardware=h100 precision=fp8 peak_tflops=989",
        "model=llama31_8b hardware=h100 gpus=8 tokens_per_s_per_gpu=9k mfu_percent=46",
        "ratio=6.34 of=13363,5115",
    ),
    old={
        "--gpu": "hardware=mi355x",
        "--layers": "num_layers=16",
        "--hidden": "hidden_size=4096",
        "--ffn": "ffn_hidden_size=14336",
        "--gated": "gated_linear_unit=true",
        "--vocabulary": "vocab_size=128256",
    },
)
FLOPS = Command(
    name="metrics flops",
    summary="A model's FLOPs in every convention; TFLOP/s converted between them.",
    keys=(
        *_OF_A_MODEL,
        Key("tflops", "a printed figure, to be converted", positive(*_TFLOPS), example="1441"),
        Key("tflops_per_gpu", "the same, as metrics check calls it", positive(*_TFLOPS), example="1441"),
        _CONVENTION,
    ),
    examples=("model=llama31_8b seq_length=8192 tflops=1441 convention=full_attention",),
    old=CHECK.old,
)


def check_with(least_memory: LeastMemory) -> Main:
    """Return `metrics check`. least_memory: given from outside, since no import goes from here to estimate/."""

    @command
    def check(argv: Sequence[str] | None = None) -> int:
        """Judge a claim. 0: possible; 1: not possible; 2: bad input; 3: cannot tell."""
        return _check(CHECK.parse(argv), least_memory)

    return check


def _check(arguments: Arguments, least_memory: LeastMemory) -> int:
    judges: dict[str, _Judge] = {**_CLAIMS, "memory_gb": (partial(_memory, least_memory), _OF_MEMORY)}
    claim = next((name for name in judges if name in arguments.typed), None)
    if claim is None:
        raise InputError(Problem("check", "no figure to check", allowed=listed([*judges]), hint=CHECK.examples[0]))
    judge, needed = judges[claim]
    used = [claim, *needed]
    ignored = sorted(arguments.typed - {*used})
    problems = [Problem(name, f"has no part in {claim}", allowed=listed(used)) for name in ignored]
    if claim == "tflops_per_gpu" and not arguments["convention"] and arguments.typed & {"model", "seq_length"}:
        where, hint = listed(sorted(arguments.typed & {"model", "seq_length"})), f"convention={DEFAULT.name}"
        what = "for converting TFLOP/s only, and no convention is given"
        problems.append(Problem(where, what, allowed=listed([*_CONVERTED]), hint=hint))
    if (others := sorted({*BESIDE} & arguments.typed - {claim})) and not {"model", "hardware"} <= arguments.typed:
        problems.append(Problem(listed(others), "agrees with a speed only of a known model= and hardware="))
    if len(step := {"step_time_s", "global_batch_size"} & arguments.typed) == 1 or (
        step and "gpus" not in arguments.typed
    ):
        problems.append(Problem("step_time_s", "needs global_batch_size= and gpus="))
    _refuse(arguments, problems)
    judged = judge(arguments)
    beside = _published(arguments, judged)
    if arguments.switches:
        figures = {name: quantity.to_json() for name, quantity in judged.figures.items()}
        print(dumps({**judged._asdict(), "figures": figures, **beside.to_json()}))
    else:
        print("\n".join([f"{judged.word}: {judged.reason}", *beside.lines]))
    return _EXIT[judged.word]


def _published(arguments: Arguments, judged: Judgement) -> Beside:
    """Return what was published beside a speed that is judged, and what is odd though it may be possible."""
    (device, precision), rate = _device(arguments), judged.figures.get("tflops_per_gpu")
    if device is None or rate is None or rate.value is None or arguments["mode"] != "training":
        return Beside()
    known, speed = None, arguments["tokens_per_s_per_gpu"]
    if arguments["model"] and (speed or arguments["tokens_per_s"]):
        shape, length, _ = _model(arguments)
        gpus = arguments["gpus"] if not speed or "gpus" in arguments.typed else None
        speed, case = speed or arguments["tokens_per_s"] / gpus, Case(shape, device.name, precision, gpus, length)
        others = {name: arguments[name] for name in BESIDE}
        if judged.word != "impossible" and (why := disagreement(case, speed, others)):
            raise InputError(Problem("check", f"the figures contradict each other: {why}", hint=_ONE))
        known = reference(case, Quantity(speed, "tokens/s/GPU", "given"))
    return judged_beside(known, float(rate.value), device, precision) if judged.word == "possible" else Beside(known)


@command
def flops(argv: Sequence[str] | None = None) -> int:
    """Print a model's FLOPs. 0: printed; 2: bad input."""
    arguments = FLOPS.parse(argv)
    tflops: float | None = arguments["tflops"] or arguments["tflops_per_gpu"]
    problems = []
    if {"tflops", "tflops_per_gpu"} <= arguments.typed:
        problems.append(Problem("tflops, tflops_per_gpu", "exclude each other"))
    if "convention" in arguments.typed and tflops is None:
        hint = f"tflops=400 convention={arguments['convention']}"
        problems.append(Problem("convention", "of which figure?", hint=hint))
    _refuse(arguments, problems)
    shape, length, left_out = _model(arguments)
    counted_by = None if tflops is None else CONVENTIONS[arguments["convention"] or DEFAULT.name]
    rows: list[dict[str, Any]] = []
    for convention in _CONVERTED.values():
        value, ours = (flops_per_token(shape, length, one) for one in (convention, DEFAULT))
        converted = convert(tflops, shape, length, counted_by, convention) if tflops and counted_by else None
        rows.append({"convention": convention.name, "flops_per_token": value, "ratio": value / ours})
        rows[-1] |= {"tflops": converted, "source": convention.source}
    if arguments.switches:
        known = {"seq_length": length, "left_out": left_out, "counted_by": counted_by and counted_by.name}
        print(dumps({**known, "conventions": rows}, indent=1))
        return 0
    least = f"; left out: {listed(left_out)}" if left_out else ""
    print(f"FLOP for a token in training, {length:,} tokens a sequence{least}")
    if counted_by:
        default = "" if arguments["convention"] else " (convention=… says otherwise)"
        print(f"{shown(tflops)} TFLOP/s taken as counted by {counted_by.name}{default}")
    for row in rows:
        converted_to = "" if row["tflops"] is None else f"{shown(row['tflops'])} TFLOP/s"
        counted = f"{row['convention']:<16} {row['flops_per_token']:.4e} {row['ratio']:>6.3f} ×"
        print(f"  {counted} {converted_to:<16} {row['source']}")
    return 0


def _refuse(arguments: Arguments, problems: list[Problem]) -> None:
    """Raise InputError with `problems` and those of keys that contradict each other."""
    if arguments["model"]:
        hint = f"leave out model={arguments['model']}"
        problems += [Problem(name, "the model has its own", hint=hint) for name in _SHAPE if name in arguments.typed]
    if arguments["convention"] not in (None, *_CONVERTED):
        what = "cannot be converted without knowing what was recomputed"
        problems.append(Problem("convention", what, arguments["convention"], listed([*_CONVERTED])))
    if problems:
        raise InputError(*problems)


def named_model(name: str, seq_length: int | None) -> tuple[Shape, int]:
    """Return the shape of a model of conf/model, and the sequence length, which is its own where that is None."""
    config = compose([f"model={name}"])
    return shape_of_model(frozen(Model, config["model"], "model")), seq_length or config["training"]["seq_length"]


def _model(arguments: Arguments) -> tuple[Shape, int, tuple[str, ...]]:
    """Return the shape, the sequence length, and the parts of the model that are not known."""
    if arguments["model"]:
        return *named_model(arguments["model"], arguments["seq_length"]), ()
    missing = [name for name in ("num_layers", "hidden_size", "seq_length") if not arguments[name]]
    if missing:
        hint = "model=llama31_8b, or num_layers=16 hidden_size=4096 seq_length=8192"
        raise InputError(Problem(listed(missing), "needed where no model is named", hint=hint))
    ffn, vocabulary = arguments["ffn_hidden_size"], arguments["vocab_size"]
    stated = {name: arguments[name] for name in ("num_layers", "hidden_size", "gated_linear_unit")}
    attention = {"num_attention_heads": 1, "num_query_groups": 0, "kv_channels": arguments["hidden_size"]}
    sizes = {**stated, **attention, "ffn_hidden_size": ffn or 0, "vocabulary": vocabulary or 0}
    shape = Shape(**sizes, untie_embeddings_and_output_weights=True)
    parts = (("keys' and values' projections", None), ("MLP", ffn), ("logits", vocabulary))
    return shape, arguments["seq_length"], tuple(name for name, size in parts if not size)


def _device(arguments: Arguments) -> tuple[Hardware | None, str]:
    """Return the device, None if no file describes it, and the precision."""
    device = arguments["hardware"]
    return device if isinstance(device, Hardware) else None, arguments["precision"]


def _speed(arguments: Arguments) -> Judgement:
    """Judge a model's speed on one GPU in a precision, by the operations that it takes."""
    shape, length, left_out = _model(arguments)
    rate = arguments["tokens_per_s_per_gpu"] or arguments["tokens_per_s"] / arguments["gpus"]
    return judge_speed(rate, shape, length, *_device(arguments), arguments["mode"], left_out)


def judge_speed(  # noqa: PLR0913 - what a speed is of
    rate: float,
    shape: Shape,
    length: int,
    device: Hardware | None,
    precision: str | None,
    mode: str = "training",
    left_out: Sequence[str] = (),
) -> Judgement:
    """Judge tokens/s of one GPU. left_out: parts of the model that are not known, which would take more."""
    per_token = flops_per_token(shape, length, passes=TRAINING if mode == "training" else FORWARD)
    tflops = rate * per_token / 1e12
    least = f" at least (left out: {listed(left_out)})" if left_out else ""
    at = f"{length:,} tokens a sequence{least}"
    needs = f"{per_token:.4g} FLOP a token in {mode} at {at}, so {shown(tflops)} TFLOP/s on each GPU"
    causes = [Cause("whether only the forward pass was timed (mode=forward)", 3.0)] if mode == "training" else []
    if device is not None:
        node = float(device.gpus_per_node * device.devices_per_package)
        causes.append(Cause("a node's tokens taken as one GPU's", node))
    causes += causes_in_a_run(device, precision)
    total, linear = flops_per_token(shape, length), flops_per_token(shape, 1)
    if total > 2 * linear:
        what = "whether attention really spans all of the sequence (packed or short samples)"
        causes.append(Cause(what, total / linear))
    return judge_tflops(tflops, device, precision, needs, causes)


def _tflops(arguments: Arguments) -> Judgement:
    """Judge TFLOP/s; those of another convention are converted to ours first, which takes the model."""
    value, convention, (device, precision) = arguments["tflops_per_gpu"], arguments["convention"], _device(arguments)
    causes, needs = causes_in_a_run(device, precision), f"{shown(value)} TFLOP/s on each GPU"
    if convention in (None, DEFAULT.name):
        sparse = Cause("whether the figure counts sparsity", 2.0)
        counted = Cause(f"how FLOPs were counted ({listed(tuple(CONVENTIONS))})", 2.0)
        judged = judge_tflops(value, device, precision, needs, (sparse, counted, *causes))
        return judged._replace(figures={**judged.figures, "tflops_per_gpu": Quantity(value, "TFLOP/s", "given")})
    if not arguments["model"]:
        what = "is converted by the model's FLOPs"
        raise InputError(Problem("convention", what, convention, hint="model=llama31_8b"))
    shape, length, _ = _model(arguments)
    ours = convert(value, shape, length, CONVENTIONS[convention])
    needs += f" by {convention} at {length:,} tokens a sequence, so {shown(ours)} by {DEFAULT.name}"
    return judge_tflops(ours, device, precision, needs, causes)


def _memory(least_memory: LeastMemory, arguments: Arguments) -> Judgement:
    """Judge what one GPU is claimed to hold: no more than it has, no less than its share of weights and, in training,
    of gradients in 16 bits; and plausibly no less than all that must stand beside them."""
    shape, length, left_out = _model(arguments)
    (device, precision), training = _device(arguments), arguments["mode"] == "training"
    sizes = {name: arguments[name] for name in _LAYOUT if name in arguments.typed}
    shared = arguments["model_parallel_size"]
    gpus = arguments["gpus"] if "gpus" in arguments.typed else max(prod(sizes.values()), shared or 1)
    held = least_memory(MemoryClaim(shape, length, precision, training, gpus, sizes, shared))
    if held is None:
        return Judgement("cannot tell", f"how many bytes a weight in {precision} has is not known")
    least, of_one = sum(held.parts.values()), f"one of {gpus} GPUs ({held.layout})" if held.layout else "one GPU"
    room = device.room_bytes if device is not None else None
    figures = {
        "least_memory_gb": Quantity(least / GB, "GB", "computed"),
        "device_memory_gb": Quantity(room / GB if room else None, "GB", "spec"),
    }
    without = f" (left out: {listed(left_out)})" if left_out else ""
    word, reason = _held(arguments["memory_gb"] * GB, held, f"{of_one} holds", "gradients" if training else "", without)
    if word != "possible":
        return Judgement(word, reason, figures)
    if device is None or room is None:
        return Judgement("cannot tell", f"{reason}; the memory of the GPU is not known", figures)
    has = f"one {device.name} has {shown(room / GB, 3)} GB"
    if arguments["memory_gb"] * GB > room:
        return Judgement("impossible", f"{has}, less than {arguments['memory_gb']:g} GB", figures)
    return Judgement("possible", f"{reason}; {has}", figures)


def _held(claimed: float, held: Held, holds: str, gradients: str, without: str) -> tuple[Word, str]:
    """Return whether `claimed` bytes can be as few, and why."""
    least, said = sum(held.parts.values()), f"{claimed / GB:g} GB"
    if claimed < held.states:
        what = "weights and gradients" if gradients else "weights"
        needs = f"{holds} {shown(held.states / GB, 3)} GB of {what} at least{without}"
        hint = "are the weights split over more GPUs (model_parallel_size=), or in fewer bits (precision=)?"
        return "impossible", f"{needs}, {shown(held.states / claimed, 3)} times {said}; {hint}"
    each = " + ".join(f"{name} {shown(size / GB, 3)}" for name, size in held.parts.items())
    needs = f"{holds} {shown(least / GB, 3)} GB at least{without}: {each}"
    if claimed < least:
        hint = "less takes an optimizer with smaller states, offloading, or layers in pieces"
        return "implausible", f"{needs}; that is {shown(least / claimed, 3)} times {said}; check: {hint}"
    return "possible", f"{needs}; {said} is {shown(claimed / least, 3)} times as much"


def _peak(arguments: Arguments) -> Judgement:
    """Judge a claimed peak by the data sheet: which of its figures it is, if any."""
    tflops, (device, precision) = arguments["peak_tflops"], _device(arguments)
    peak = peak_tflops(device, precision)
    figures = {"peak_dense_tflops": peak}
    if device is None or peak.value is None:
        return Judgement("cannot tell", peak.note, figures)
    if _same(tflops, peak.value):
        return Judgement("possible", f"the dense {precision} peak of {device.name}", figures)
    known = f"the dense {precision} peak of {device.name} is {shown(float(peak.value))} TFLOP/s"
    kinds = ((1, "of {}, dense"), (2, "of {} with sparsity"))
    sheet = device.peak_dense_tflops.items()
    is_of = [text.format(name) for times, text in kinds for name, dense in sheet if _same(tflops, times * dense)]
    other = f"; {shown(tflops)} is that {' and that '.join(is_of)}" if is_of else ""
    return Judgement("impossible", known + other, figures)


def _ratio(arguments: Arguments) -> Judgement:
    """Judge a claimed ratio by its two numbers, in either order, to the digits it is quoted in."""
    if arguments["of"] is None:
        raise InputError(Problem("ratio", "of which two numbers?", hint=CHECK.examples[-1]))
    ratio, (value, other) = arguments["ratio"], arguments["of"]
    true_ratio = value / other
    known = f"{value:,.10g} / {other:,.10g} = {shown(true_ratio, 3)}"
    if _same(ratio, true_ratio) or _same(ratio, 1 / true_ratio):
        return Judgement("possible", known, {"ratio": Quantity(true_ratio, "", "computed")})
    return Judgement("impossible", f"{known}, not {ratio:g}", {"ratio": Quantity(true_ratio, "", "computed")})


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= _DIGITS * abs(b)


# What judges each claim, and by which keys: another key beside it would be ignored, and is refused.
_Judge: TypeAlias = tuple[Callable[[Arguments], Judgement], tuple[str, ...]]
_CLAIMS: Mapping[str, _Judge] = {
    "tokens_per_s_per_gpu": (_speed, ("gpus", "hardware", "precision", "mode", *_MODEL, *BESIDE)),
    "tokens_per_s": (_speed, ("gpus", "hardware", "precision", "mode", *_MODEL, *BESIDE)),
    "tflops_per_gpu": (_tflops, ("convention", "model", "seq_length", "hardware", "precision")),
    "peak_tflops": (_peak, ("hardware", "precision")),
    "ratio": (_ratio, ("of",)),
}
_OF_MEMORY = ("gpus", *_LAYOUT, "model_parallel_size", "hardware", "precision", "mode", *_MODEL)
