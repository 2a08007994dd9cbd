"""`python -m metrics check …`: is a published figure possible? `python -m metrics flops …`: a model's FLOPs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import inf
from typing import Any

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

# What each claim is judged by, and what `flops` counts: an option beside it would be ignored, and is refused.
_CONVERTED = tuple(name for name, convention in CONVENTIONS.items() if not convention.recompute)
_SHAPE = ("layers", "hidden", "ffn", "gated", "vocabulary")
_MODEL = ("model", "seq_length", *_SHAPE)
_CLAIMS = {
    "tokens_per_s_per_gpu": ("gpu", "precision", "mode", *_MODEL),
    "tokens_per_s": ("gpus", "gpu", "precision", "mode", *_MODEL),
    "tflops_per_gpu": ("convention", "model", "seq_length", "gpu", "precision"),
    "peak_tflops": ("gpu", "precision"),
    "ratio": ("of",),
}
_FLOPS = ("tflops", "convention", *_MODEL)
_NO_OPTIONS = ("what", "json")
_EXIT = {"possible": 0, "implausible": 1, "impossible": 1, "cannot tell": 3}
_EXAMPLE = """python -m metrics check --model llama31_8b --gpu mi355x --precision bf16 --tokens-per-s-per-gpu 20000
python -m metrics check --layers 16 --hidden 4096 --seq-length 100000 --gpu h100 --gpus 16 --tokens-per-s 1.45e6
python -m metrics check --gpu h100 --precision fp8 --peak-tflops 989
python -m metrics check --ratio 6.34 --of 13363 5115
python -m metrics flops --model llama31_8b --seq-length 8192 --tflops 1441 --convention full_attention"""


@command
def main(argv: Sequence[str] | None = None) -> int:
    """argv: `check` or `flops` and what follows. 0: possible, or printed; 1: not possible; 2: bad input; 3: unknown."""
    asked = _parser().parse_args(argv)
    _refuse(asked)
    if asked.what == "flops":
        return _flops(asked)
    judged = _judge(asked)
    print(dumps(asdict(judged)) if asked.json else f"{judged.word}: {judged.reason}")
    return _EXIT[judged.word]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m metrics",
        description="Whether a published figure is physically possible; a model's FLOPs.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("check", "flops"))
    add = parser.add_argument
    add("--model", help=f"{listed(choices('model'))}; or its shape:")
    add("--layers", type=int)
    add("--hidden", type=int, help="hidden size, and width of all attention heads together")
    add("--ffn", type=int, help="width of the MLP; left out where it is not told")
    add("--gated", action="store_true", help="the MLP has a gate (SwiGLU)")
    add("--vocabulary", type=int, help="rows of the output matrix; left out where they are not told")
    add("--seq-length", type=int, help="tokens (default: the model's)")
    add("--gpu", help=listed(choices("hardware")))
    add("--gpus", type=int, help="that --tokens-per-s is of (default: 1)")
    add("--precision", choices=("fp32", "tf32", "bf16", "fp8", "fp4"), help="(default: bf16)")
    add("--mode", choices=("training", "forward"), help="(default: training)")
    claim = parser.add_mutually_exclusive_group()
    claim.add_argument("--tokens-per-s-per-gpu", type=float)
    claim.add_argument("--tokens-per-s", type=float, help="of --gpus together")
    claim.add_argument("--tflops-per-gpu", type=float)
    claim.add_argument("--peak-tflops", type=float, help="claimed to be the dense peak of --gpu in --precision")
    claim.add_argument("--ratio", type=float, help="claimed to be of the numbers --of")
    add("--of", type=float, nargs=2, metavar=("A", "B"))
    add("--tflops", type=float, help="flops: a printed figure, to be converted")
    counted = f"that --tflops or --tflops-per-gpu was counted by (default: {DEFAULT.name})"
    add("--convention", choices=tuple(CONVENTIONS), help=counted)
    add("--json", action="store_true")
    return parser


def _judge(asked: argparse.Namespace) -> Judgement:
    if asked.ratio is not None:
        return judge_ratio(asked.ratio, *_two(asked))
    device, precision = _device(asked.gpu), asked.precision or "bf16"
    if asked.peak_tflops is not None:
        return judge_peak(asked.peak_tflops, device, precision)
    if asked.tflops_per_gpu is not None:
        return _judge_tflops(asked, device, precision)
    rate = asked.tokens_per_s_per_gpu or (asked.tokens_per_s or 0.0) / (asked.gpus or 1)
    if not rate:
        claims = "--tokens-per-s-per-gpu, --tokens-per-s, --tflops-per-gpu, --peak-tflops or --ratio"
        raise InputError(Problem("check", "no figure to check", allowed=claims, hint=_EXAMPLE.splitlines()[0]))
    shape, length, left_out = _model(asked)
    mode: Mode = asked.mode or "training"
    claim = Speed(shape=shape, seq_length=length, tokens_per_s_per_gpu=rate, mode=mode, left_out=left_out)
    return judge_speed(claim, device, precision)


def _judge_tflops(asked: argparse.Namespace, device: Hardware | None, precision: str) -> Judgement:
    """What another convention counted is judged as ours counts it, which takes the model."""
    if asked.convention in (None, DEFAULT.name):
        return judge_tflops(asked.tflops_per_gpu, device, precision)
    if not asked.model:
        what = "is converted by the model's FLOPs"
        raise InputError(Problem("--convention", what, asked.convention, hint="--model llama31_8b"))
    shape, length, _ = _model(asked)
    ours = convert(asked.tflops_per_gpu, shape, length, CONVENTIONS[asked.convention])
    counted = f"{shown(asked.tflops_per_gpu)} TFLOP/s on each GPU by {asked.convention} at {length:,} tokens a sequence"
    needs = f"{counted}, so {shown(ours)} by {DEFAULT.name}"
    return judge_tflops(ours, device, precision, needs, causes_in_a_run(device, precision))


def _refuse(asked: argparse.Namespace) -> None:
    wrong = [*_out_of_range(asked), *_ignored(asked), *_unconverted(asked)]
    if wrong:
        raise InputError(*wrong)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _ignored(asked: argparse.Namespace) -> Iterator[Problem]:
    """Of what was typed, what would change nothing."""
    told = [name for name, value in vars(asked).items() if name not in _NO_OPTIONS and value not in (None, False)]
    claim = next((name for name in told if name in _CLAIMS), None)
    if asked.what == "flops":
        of, used = "flops", list(_FLOPS)
    elif claim:
        of, used = _option(claim), [claim, *_CLAIMS[claim]]
    else:
        return  # there is no claim, which is told as such
    for name in told:
        if name not in used:
            yield Problem(_option(name), f"has no part in {of}", allowed=listed([_option(n) for n in used]))
        elif asked.model and name in _SHAPE:
            yield Problem(_option(name), "the model has its own", hint=f"leave out --model {asked.model}")


def _unconverted(asked: argparse.Namespace) -> Iterator[Problem]:
    """Conventions that convert nothing, or nothing that is named."""
    if asked.convention is None:
        if asked.tflops_per_gpu is not None and (asked.model or asked.seq_length):
            what = "only convert TFLOP/s, and no convention is named"
            yield Problem(
                "--model, --seq-length", what, allowed=listed(_CONVERTED), hint=f"--convention {DEFAULT.name}"
            )
    elif asked.convention not in _CONVERTED:
        what = "cannot be converted without knowing what was recomputed"
        yield Problem("--convention", what, asked.convention, listed(_CONVERTED))
    elif asked.what == "flops" and asked.tflops is None:
        yield Problem("--convention", "of which figure?", hint=f"--tflops 400 --convention {asked.convention}")


def _out_of_range(asked: argparse.Namespace) -> list[Problem]:
    numbers = ("layers", "hidden", "ffn", "vocabulary", "seq_length", "gpus", "tokens_per_s_per_gpu", "tokens_per_s")
    names = (*numbers, "tflops_per_gpu", "peak_tflops", "ratio", "tflops")
    told = [(_option(name), getattr(asked, name)) for name in names]
    told += [("--of", value) for value in asked.of or ()]
    bad = [(name, value) for name, value in told if value is not None and not 0 < value < inf]
    return [Problem(name, "must be above 0 and finite", f"{value:g}") for name, value in bad]


def _two(asked: argparse.Namespace) -> tuple[float, float]:
    if asked.of is None:
        raise InputError(Problem("--ratio", "of which two numbers?", hint="--ratio 6.34 --of 13363 5115"))
    return asked.of[0], asked.of[1]


def _device(name: str | None) -> Hardware | None:
    """None: a GPU that no file describes, which is no error but leaves the question open."""
    found = hardware(name)
    if found is None and (near := closest(name or "", choices("hardware"))):
        raise InputError(Problem("--gpu", "no such hardware", name or "", listed(choices("hardware")), near))
    return found


def _model(asked: argparse.Namespace) -> tuple[Shape, int, tuple[str, ...]]:
    """The shape, the sequence length, and what of the model was not told."""
    if asked.model:
        config = compose([f"model={asked.model}"])
        model = freeze(Model, config["model"], "model", [])
        return shape_of_model(model), asked.seq_length or config["training"]["seq_length"], ()
    lacking = [_option(name) for name in ("layers", "hidden", "seq_length") if not getattr(asked, name)]
    if lacking:
        hint = "--model llama31_8b, or --layers 16 --hidden 4096 --seq-length 8192"
        raise InputError(Problem(listed(lacking), "needed where no --model is named", hint=hint))
    shape = Shape(
        num_layers=asked.layers,
        hidden_size=asked.hidden,
        ffn_hidden_size=asked.ffn or 0,
        num_attention_heads=1,
        num_query_groups=0,
        kv_channels=asked.hidden,
        vocabulary=asked.vocabulary or 0,
        gated_linear_unit=asked.gated,
        untie_embeddings_and_output_weights=True,
    )
    parts = (("keys' and values' projections", None), ("MLP", asked.ffn), ("logits", asked.vocabulary))
    return shape, asked.seq_length, tuple(name for name, told in parts if not told)


def _flops(asked: argparse.Namespace) -> int:
    shape, length, left_out = _model(asked)
    counted_by = None if asked.tflops is None else CONVENTIONS[asked.convention or DEFAULT.name]
    rows = [_row(CONVENTIONS[name], shape, length, asked.tflops, counted_by) for name in _CONVERTED]
    if asked.json:
        known = {"seq_length": length, "left_out": left_out, "counted_by": counted_by and counted_by.name}
        print(dumps({**known, "conventions": rows}, indent=1))
        return 0
    least = f"; left out: {listed(left_out)}" if left_out else ""
    print(f"FLOP for a token in training, {length:,} tokens a sequence{least}")
    if counted_by:
        untold = "" if asked.convention else " (--convention says otherwise)"
        print(f"{shown(asked.tflops)} TFLOP/s taken as counted by {counted_by.name}{untold}")
    for row in rows:
        converted = "" if row["tflops"] is None else f"{shown(row['tflops'])} TFLOP/s"
        counted = f"{row['convention']:<16} {row['flops_per_token']:.4e} {row['ratio']:>6.3f} ×"
        print(f"  {counted} {converted:<16} {row['source']}")
    return 0


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
