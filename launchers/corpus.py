"""The corpus of an experiment: its size, and the command that makes or checks it before the ranks start."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from conf.resolve import Experiment
from conf.schema import ALL_TRAINS

LONGEST_DOCUMENT = 257  # tokens, of a synthetic corpus
Part = Literal["training", "validation"]
PARTS = "parts"  # in the run's directory
PROGRAM = Path(__file__).parent / "ranks" / "corpus.py"


def samples(e: Experiment) -> int:
    """Return the samples that the run trains on."""
    return e.training.train_iters * e.training.global_batch_size


def tokens(e: Experiment) -> int:
    """Return the tokens of a corpus of which the run, with its validations, is one epoch: every stack shuffles a longer
    run otherwise. One part in a hundred and one batch more than needed, for stacks that ask for a few samples more than
    they use; of a split two documents more, at which a part may be cut."""
    shares, parts = e.data.shares, (samples(e), validated(e))
    needed = [(n + n // 100 + e.training.global_batch_size) * e.training.seq_length + 1 for n in parts]
    if not any(shares[1:]):
        return needed[0]
    cut = [share for share in shares if share]
    least = 2 * LONGEST_DOCUMENT * sum(shares) / min(cut)
    return int(max(n * sum(shares) / share for n, share in zip(needed, shares[:2], strict=True) if share) + least)


def validated(e: Experiment) -> int:
    """Return the samples of validation that every stack asks for: those of all validations, and of one more."""
    if not e.training.eval_iters:
        return 0
    validations = e.training.train_iters // (e.training.eval_interval or e.training.train_iters) + 1
    return validations * e.training.eval_iters * e.training.global_batch_size


def reading(e: Experiment, order: ModuleType) -> Any:
    """Return how `e` reads its data, as ranks/corpus_order.py, which is `order`, has it."""
    t = e.training
    return order.Reading(t.seq_length, t.global_batch_size, samples(e), t.seed, e.data.split, validated(e))


def part_paths(e: Experiment, part: Part) -> str:
    """Return the data path of a part that `setup` cuts: that of the experiment, with corpora in PARTS."""
    words = (e.data.path or "").split() if e.data.name == "blend" else []
    weights = words[::2] or [""]
    return " ".join(f"{weight} {PARTS}/{part}-{n}".strip() for n, weight in enumerate(weights))


def setup(
    e: Experiment, python: str, program: str | Path = PROGRAM, *, parts: bool = False
) -> tuple[tuple[str, ...], ...]:
    """Return a Plan's `setup`. python, program: the interpreter and ranks/corpus.py as the run sees them. parts: for a
    stack that takes a path for each part of the split."""
    if e.data.path is None:
        return ()
    made = {"synthetic": ("--tokens", str(tokens(e))), "tiny": ("--text",)}
    make = made.get(e.data.name, ("--check",))
    sizes = {
        "--prefix": e.data.path,
        "--vocab-size": e.model.vocab_size,
        "--seed": e.training.seed,
        "--seq-length": e.training.seq_length,
        "--global-batch-size": e.training.global_batch_size,
        "--samples": samples(e),
        **({"--split": e.data.split} if e.data.split != ALL_TRAINS else {}),
        **({"--parts": PARTS} if parts and e.data.split != ALL_TRAINS else {}),
        **({"--tokenizer": e.data.tokenizer} if e.data.tokenizer else {}),
        **({"--tokenizer-sha256": e.data.tokenizer_sha256} if e.data.tokenizer_sha256 else {}),
        **({"--validated": validated(e)} if e.training.eval_iters else {}),
    }
    return ((python, str(program), *(str(part) for pair in sizes.items() for part in pair), *make),)
