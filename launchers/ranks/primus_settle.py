"""Apply a bundle's overrides from the environment: python3 primus_settle.py BUNDLE RUN_DIRECTORY

TRAIN_ITERS, NNODES, GPUS_PER_NODE and DATA_PREFIX may differ from what was rendered. What follows from them is computed
here and nowhere else; where more would have to change, the run is refused: render again. Writes primus.yaml and
corpus.args (the corpus program's arguments, one a line) into RUN_DIRECTORY and prints the request as it is now, as a
mark for the record. Needs bundle_marks.py and rank_program.py beside it, and PyYAML as Primus does. Exit code 2:
refused."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bundle_marks import BUNDLE, print_marks
from rank_program import Problem, Refused

EXPERIMENT, CORPUS = "primus.yaml", "corpus.args"
AGAIN = "render again: python launch.py … {} bundle=DIR"


class Settled(NamedTuple):
    """The effect of overrides. requested: canonical settings as they are now. overrides: keys of the YAML that change.
    corpus: arguments."""

    requested: dict[str, Any]
    overrides: dict[str, Any]
    corpus: tuple[str, ...]


def settle(bundle: Mapping[str, Any], environment: Mapping[str, str], folder: str = "") -> Settled:
    """Return `bundle` (bundle.json, of `folder`) under the overrides in `environment`.
    Raises Refused: an override that is no number, or that changes what only a new rendering can."""
    rendered: Mapping[str, Any] = bundle["requested"]
    size = (bundle["nodes"], bundle["gpus_per_node"])
    defaults = zip(("TRAIN_ITERS", "NNODES", "GPUS_PER_NODE"), (rendered["train_iters"], *size), strict=True)
    stated = {name: environment.get(name) or str(default) for name, default in defaults}
    bad = {name: text for name, text in stated.items() if not text.isdecimal() or not 1 <= int(text) <= 10**9}
    if bad:
        raise Refused(*(Problem(name, "is not a count", repr(text), "an integer from 1") for name, text in bad.items()))
    iters, nodes, gpus = map(int, stated.values())
    requested = {**rendered, "train_iters": iters}
    if rendered["lr_decay_iters"] == rendered["train_iters"]:  # a decay that ended with the run still does
        requested["lr_decay_iters"] = iters
    warm_up, least = requested["lr_warmup_iters"], min(iters, requested["lr_decay_iters"])
    problems = []
    if warm_up >= least:
        again = AGAIN.format(f"training.train_iters={iters} optimizer.lr_warmup_iters=N")
        what = f"the warm-up of {warm_up} iterations must end before {least}"
        problems.append(Problem("TRAIN_ITERS", what, hint=f"TRAIN_ITERS={warm_up + 1} or more, or {again}"))
    if (nodes, gpus) != size:
        problems += _world(bundle, requested, nodes, gpus)
    if problems:
        raise Refused(*problems)
    rendered_prefix, prefix = bundle["data_prefix"], environment.get("DATA_PREFIX")
    if rendered_prefix and prefix and prefix not in (rendered_prefix, os.path.join(folder, rendered_prefix)):  # noqa: PTH118
        requested["data_path"] = prefix
    changed = {name: requested[name] for name in ("train_iters", "lr_decay_iters") if requested[name] != rendered[name]}
    if "train_iters" in changed:  # a bundle validates nothing: the interval stands for the run's length
        changed["eval_interval"] = requested["train_iters"]
    return Settled(requested, changed, tuple(_corpus(bundle, requested, prefix)))


def _world(bundle: Mapping[str, Any], requested: dict[str, Any], nodes: int, gpus: int) -> Iterator[Problem]:
    """Put what follows from another number of GPUs into `requested`; yield what does not follow."""
    again = AGAIN.format(f"nodes={nodes} gpus_per_node={gpus}")
    if gpus in (5, 6, 7):
        what = f"RCCL's all-reduce falls to an eighth with {gpus} GPUs of a node"
        yield Problem("GPUS_PER_NODE", what, allowed="1, 2, 4, 8")
    sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    world, split, batch = nodes * gpus, math.prod(requested[name] for name in sizes), requested["global_batch_size"]
    data_parallel, rest = divmod(world, split)
    step = max(requested["micro_batch_size"] * data_parallel, 1)
    micro_batches, stages = batch // step, requested["pipeline_model_parallel_size"]
    virtual = (requested["virtual_pipeline_model_parallel_size"] or 1) > 1
    sharded = requested["use_distributed_optimizer"]
    reasons = {
        f"the layout was chosen for {bundle['nodes']} × {bundle['gpus_per_node']} GPUs": bundle["layout_from_table"],
        f"experts are shared out over {requested['world_size']} GPUs": requested["expert_model_parallel_size"] > 1,
        f"{requested['data_parallel_replicas']} groups of GPUs hold the same shards": sharded
        and requested["data_parallel_replicas"] > 1,
        f"TP × PP × CP = {split} does not divide {world} GPUs": rest or not data_parallel,
        f"micro-batch × DP = {step} does not divide the batch of {batch}": batch % step,
        f"{micro_batches} micro-batches are not a multiple of PP {stages}": virtual and micro_batches % stages,
    }
    why = [reason for reason, applies in reasons.items() if applies]
    if why:
        yield Problem("NNODES × GPUS_PER_NODE", why[0], hint=again)
    requested |= {
        "world_size": world,
        "data_parallel_size": data_parallel,
        "num_micro_batches": micro_batches,
        "data_parallel_shards": data_parallel if sharded else 1,
        "data_parallel_replicas": 1 if sharded else data_parallel,
    }


def _corpus(bundle: Mapping[str, Any], requested: Mapping[str, Any], prefix: str | None) -> Iterator[str]:
    """Yield the arguments of corpus.py; none where no corpus is read. Its length is that of launchers/corpus.py."""
    if requested["data_path"] is None:
        return
    batch, length = requested["global_batch_size"], requested["seq_length"]
    samples = requested["train_iters"] * batch
    yield from ("--prefix", prefix or bundle["data_prefix"])
    for name in ("vocab_size", "seed", "seq_length", "global_batch_size"):
        yield from (f"--{name.replace('_', '-')}", str(requested[name]))
    yield from ("--samples", str(samples))
    if requested["data"] == "synthetic":
        yield from ("--tokens", str((samples + samples // 100 + batch) * length + 1))
    else:
        yield "--text" if requested["data"] == "tiny" else "--check"


def written(text: str, changed: Mapping[str, Any]) -> str:
    """Return the YAML `text` with `changed` among the overrides, written as it was; byte by byte if nothing changes."""
    import yaml

    if not changed:
        return text
    document = yaml.safe_load(text)
    document["modules"]["pre_trainer"]["overrides"].update(changed)
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def main(folder: str, run_directory: str) -> int:
    source, target = Path(folder), Path(run_directory)
    bundle = json.loads((source / BUNDLE).read_text(encoding="utf-8"))
    try:
        settled = settle(bundle, os.environ, folder)
    except Refused as refusal:
        print(f"engine: primus: {refusal}", file=sys.stderr)
        return 2
    text = written((source / EXPERIMENT).read_text(encoding="utf-8"), settled.overrides)
    (target / EXPERIMENT).write_text(text, encoding="utf-8")
    (target / CORPUS).write_text("".join(f"{part}\n" for part in settled.corpus), encoding="utf-8")
    print_marks(bundle, settled.requested, source)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
