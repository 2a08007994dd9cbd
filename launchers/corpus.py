"""The corpus of an experiment: its size, and the command that makes or checks it before the ranks start."""

from __future__ import annotations

from pathlib import Path

from conf.resolve import Experiment

PROGRAM = Path(__file__).parent / "ranks" / "corpus.py"


def samples(e: Experiment) -> int:
    """Return the samples that the run trains on."""
    return e.training.train_iters * e.training.global_batch_size


def tokens(e: Experiment) -> int:
    """Return the tokens of a corpus of which the run is one epoch: every stack shuffles a longer run otherwise. One
    part in a hundred and one batch more than needed, for stacks that ask for a few samples more than they use."""
    spare = samples(e) // 100 + e.training.global_batch_size
    return (samples(e) + spare) * e.training.seq_length + 1


def setup(e: Experiment, python: str, program: str | Path = PROGRAM) -> tuple[tuple[str, ...], ...]:
    """Return a Plan's `setup`. python, program: the interpreter and ranks/corpus.py as the run sees them."""
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
    }
    return ((python, str(program), *(str(part) for pair in sizes.items() for part in pair), *make),)
