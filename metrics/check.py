"""`metrics check`: is a published figure possible? `metrics flops`: a model's FLOPs in every convention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from conf.arguments import Arguments, Command, Key, positive, positive_integer, switch
from conf.compose import choices, compose
from conf.errors import InputError, Problem, closest, command, listed
from conf.freeze import freeze
from conf.schema import Hardware, Model
from metrics.claims import Judgement, Mode, Speed, judge_peak, judge_ratio, judge_speed, judge_tflops
from metrics.flops import CONVENTIONS, DEFAULT, Convention, convert, flops_per_token
from metrics.peak import causes_in_a_run, hardware
from metrics.quantity import shown
from metrics.shape import Shape, shape_of_model
from parsers.storage import dumps

_CONVERTED = {name: convention for name, convention in CONVENTIONS.items() if not convention.recompute}
_SHAPE = ("num_layers", "hidden_size", "ffn_hidden_size", "gated_linear_unit", "vocab_size")
_MODEL = ("model", "seq_length", *_SHAPE)
# The keys that each claim is judged by: another key beside it would be ignored, and is refused.
_CLAIMS = {
    "tokens_per_s_per_gpu": ("hardware", "precision", "mode", *_MODEL),
    "tokens_per_s": ("gpus", "hardware", "precision", "mode", *_MODEL),
    "tflops_per_gpu": ("convention", "model", "seq_length", "hardware", "precision"),
    "peak_tflops": ("hardware", "precision"),
    "ratio": ("of",),
}
_EXIT = {"possible": 0, "implausible": 1, "impossible": 1, "cannot tell": 3}


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
    Key("num_layers", "", positive_integer, example="16"),
    Key("hidden_size", "also the width of all attention heads together", positive_integer, example="4096"),
    Key("ffn_hidden_size", "width of the MLP; left out where unknown", positive_integer, example="14336"),
    Key("gated_linear_unit", "whether the MLP has a gate (SwiGLU)", switch, False, "true"),
    Key("vocab_size", "rows of the output matrix; left out where unknown", positive_integer, None, "128256"),
    Key("seq_length", "tokens (default: the model's)", positive_integer, example="8192"),
)
_CONVENTION = Key(
    "convention",
    f"by which the TFLOP/s were counted (default: {DEFAULT.name})",
    choices=partial(list, CONVENTIONS),
    example="full_attention",
)
CHECK = Command(
    name="metrics check",
    summary="Is a published figure physically possible? 0: possible, 1: not, 3: cannot tell.",
    keys=(
        *_OF_A_MODEL,
        Key("hardware", "of conf/hardware", _hardware, example="mi355x"),
        Key("gpus", "that tokens_per_s is of (default: 1)", positive_integer, example="16"),
        Key("precision", "(default: bf16)", choices=lambda: ("fp32", "tf32", "bf16", "fp8", "fp4"), example="fp8"),
        Key("mode", "(default: training)", choices=lambda: ("training", "forward"), example="forward"),
        Key("tokens_per_s_per_gpu", "claim: a speed", positive("tokens/s/GPU"), example="20k"),
        Key("tokens_per_s", "claim: a speed of all gpus together", positive("tokens/s"), example="1.45M"),
        Key("tflops_per_gpu", "claim: a rate", positive("TFLOP/s"), example="1100"),
        Key("peak_tflops", "claim: the dense peak of hardware in precision", positive("TFLOP/s"), example="989"),
        Key("ratio", "claim: the ratio of the numbers in of", positive(), example="6.34"),
        Key("of", "the two numbers of a ratio", _two, example="13363,5115"),
        _CONVENTION,
    ),
    examples=(
        "model=llama31_8b hardware=mi355x precision=bf16 tokens_per_s_per_gpu=20k",
        "num_layers=16 hidden_size=4096 seq_length=100000 hardware=h100 gpus=16 tokens_per_s=1.45M",
        "hardware=h100 precision=fp8 peak_tflops=989",
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
        Key("tflops", "a printed figure, to be converted", positive("TFLOP/s"), example="1441"),
        _CONVENTION,
    ),
    examples=("model=llama31_8b seq_length=8192 tflops=1441 convention=full_attention",),
    old=CHECK.old,
)


@command
def check(argv: Sequence[str] | None = None) -> int:
    """Judge a claim. 0: possible; 1: not possible; 2: bad input; 3: cannot tell."""
    arguments = CHECK.parse(argv)
    claim = next((name for name in _CLAIMS if name in arguments.typed), None)
    if claim is None:
        raise InputError(Problem("check", "no figure to check", allowed=listed([*_CLAIMS]), hint=CHECK.examples[0]))
    _refuse(arguments, [*_ignored(arguments, claim)])
    judged = _judge(arguments, claim)
    print(dumps(asdict(judged)) if arguments.switches else f"{judged.word}: {judged.reason}")
    return _EXIT[judged.word]


@command
def flops(argv: Sequence[str] | None = None) -> int:
    """Print a model's FLOPs. 0: printed; 2: bad input."""
    arguments = FLOPS.parse(argv)
    tflops: float | None = arguments["tflops"]
    problems = []
    if "convention" in arguments.typed and tflops is None:
        hint = f"tflops=400 convention={arguments['convention']}"
        problems.append(Problem("convention", "of which figure?", hint=hint))
    _refuse(arguments, problems)
    shape, length, left_out = _model(arguments)
    counted_by = None if tflops is None else CONVENTIONS[arguments["convention"] or DEFAULT.name]
    rows = [_row(convention, shape, length, tflops, counted_by) for convention in _CONVERTED.values()]
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
        converted = "" if row["tflops"] is None else f"{shown(row['tflops'])} TFLOP/s"
        counted = f"{row['convention']:<16} {row['flops_per_token']:.4e} {row['ratio']:>6.3f} ×"
        print(f"  {counted} {converted:<16} {row['source']}")
    return 0


def _judge(arguments: Arguments, claim: str) -> Judgement:
    value = arguments[claim]
    if claim == "ratio":
        if arguments["of"] is None:
            raise InputError(Problem("ratio", "of which two numbers?", hint=CHECK.examples[-1]))
        return judge_ratio(value, *arguments["of"])
    device = arguments["hardware"] if isinstance(arguments["hardware"], Hardware) else None
    precision = arguments["precision"] or "bf16"
    if claim == "peak_tflops":
        return judge_peak(value, device, precision)
    if claim == "tflops_per_gpu":
        return _judge_tflops(arguments, device, precision)
    rate = value / (arguments["gpus"] or 1) if claim == "tokens_per_s" else value
    shape, length, left_out = _model(arguments)
    mode: Mode = arguments["mode"] or "training"
    speed = Speed(shape=shape, seq_length=length, tokens_per_s_per_gpu=rate, mode=mode, left_out=left_out)
    return judge_speed(speed, device, precision)


def _judge_tflops(arguments: Arguments, device: Hardware | None, precision: str) -> Judgement:
    """Judge TFLOP/s; those of another convention are converted to ours first, which takes the model."""
    value, convention = arguments["tflops_per_gpu"], arguments["convention"]
    if convention in (None, DEFAULT.name):
        return judge_tflops(value, device, precision)
    if not arguments["model"]:
        what = "is converted by the model's FLOPs"
        raise InputError(Problem("convention", what, convention, hint="model=llama31_8b"))
    shape, length, _ = _model(arguments)
    ours = convert(value, shape, length, CONVENTIONS[convention])
    counted = f"{shown(value)} TFLOP/s on each GPU by {convention} at {length:,} tokens a sequence"
    needs = f"{counted}, so {shown(ours)} by {DEFAULT.name}"
    return judge_tflops(ours, device, precision, needs, causes_in_a_run(device, precision))


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


def _ignored(arguments: Arguments, claim: str) -> Iterator[Problem]:
    """Yield the typed keys that would change nothing."""
    used = [claim, *_CLAIMS[claim]]
    for name in sorted(arguments.typed - {*used}):
        yield Problem(name, f"has no part in {claim}", allowed=listed(used))
    if claim == "tflops_per_gpu" and not arguments["convention"] and arguments.typed & {"model", "seq_length"}:
        what = "only convert TFLOP/s, and no convention is named"
        yield Problem("model, seq_length", what, allowed=listed([*_CONVERTED]), hint=f"convention={DEFAULT.name}")


def _model(arguments: Arguments) -> tuple[Shape, int, tuple[str, ...]]:
    """Return the shape, the sequence length, and the parts of the model that are not known."""
    if arguments["model"]:
        config = compose([f"model={arguments['model']}"])
        model = freeze(Model, config["model"], "model", [])
        return shape_of_model(model), arguments["seq_length"] or config["training"]["seq_length"], ()
    missing = [name for name in ("num_layers", "hidden_size", "seq_length") if not arguments[name]]
    if missing:
        hint = "model=llama31_8b, or num_layers=16 hidden_size=4096 seq_length=8192"
        raise InputError(Problem(listed(missing), "needed where no model is named", hint=hint))
    ffn, vocabulary = arguments["ffn_hidden_size"], arguments["vocab_size"]
    shape = Shape(
        num_layers=arguments["num_layers"],
        hidden_size=arguments["hidden_size"],
        ffn_hidden_size=ffn or 0,
        num_attention_heads=1,
        num_query_groups=0,
        kv_channels=arguments["hidden_size"],
        vocabulary=vocabulary or 0,
        gated_linear_unit=arguments["gated_linear_unit"],
        untie_embeddings_and_output_weights=True,
    )
    parts = (("keys' and values' projections", None), ("MLP", ffn), ("logits", vocabulary))
    return shape, arguments["seq_length"], tuple(name for name, size in parts if not size)


def _row(
    convention: Convention, shape: Shape, length: int, tflops: float | None, counted_by: Convention | None
) -> dict[str, Any]:
    value = flops_per_token(shape, length, convention)
    return {
        "convention": convention.name,
        "flops_per_token": value,
        "ratio": value / flops_per_token(shape, length),
        "tflops": convert(tflops, shape, length, counted_by, convention) if tflops and counted_by else None,
        "source": convention.source,
    }
