"""Where two rehearsals part: the first thing that differs in the order of a step, in a sentence. Pure.

A step reads its data and masks, goes forward, makes its loss, goes backward, reduces the gradients over the ranks and
clips them, and the optimizer steps at the rate of the schedule. What a record says of each is compared with the
other's; of all that differs the first is where they part, and what follows differs because of it. A fault that leaves
no trace of its own is where its first effect shows: gradients that differ below one loss are of the backward pass,
weights that differ after one gradient of the optimizer."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from compare.codes import WEIGHTS
from compare.draws import drawn_apart
from compare.objects import WHOLE, FieldRow, Part, beside, columns
from compare.rehearsed import SUMMED, by_step, gap, inputs_of, known_apart, read_of, series, tolerance, unlike
from conf.errors import some
from metrics import shown
from parsers import Record
from parsers.assemble import same
from parsers.read_back import ReadBack, Tensor

ORDER: tuple[Part, ...] = get_args(Part)
_IN_WORDS: Mapping[Part, str] = {
    "first weights": "before the first step",
    "data": "in the data",
    "mask": "in the masks",
    "forward": "in the forward pass",
    "loss": "in the loss",
    "backward": "in the backward pass",
    "gradient reduction": "in the gradient reduction",
    "clipping": "in the clipping",
    "optimizer": "in the optimizer",
    "schedule": "in the schedule",
}
_CONSTANT = 1e-3  # by which share ratios of norms may differ and still be one factor
_OF_NAMES: Mapping[str, re.Pattern[str]] = {
    "norms": re.compile(r"norm"),
    "router": re.compile(r"\.router\."),
    "embedding": re.compile(r"^embedding\.|^output_layer\."),
    "experts": re.compile(r"\.experts\."),
    "biases": re.compile(r"\.bias$"),
}
_LAYER = re.compile(r"^decoder\.layers\.(\d+)(?:\.(.*))?$")
_IN_LAYER = ("mlp", "pre_mlp", "cross", "self_attention", "input_layernorm")
"""Modules of a layer in the order of the backward pass."""
_FACTORS: tuple[tuple[str, Part, str], ...] = (
    ("num_micro_batches", "backward", "accumulation is not averaged (over {n} micro-batches)"),
    ("data_parallel_size", "gradient reduction", "a sum, and no mean, over {n} data parallel ranks"),
    ("context_parallel_size", "gradient reduction", "a sum, and no mean, over {n} context parallel ranks"),
    ("tensor_model_parallel_size", "gradient reduction", "summed over {n} tensor parallel ranks once more"),
    ("expert_model_parallel_size", "gradient reduction", "a sum, and no mean, over {n} expert parallel ranks"),
    ("global_batch_size", "loss", "a sum, and no mean, over {n} samples"),
    ("seq_length", "loss", "a sum, and no mean, over {n} tokens of a sample"),
)
"""A size by which gradients may be off, where that shows first, and why."""
_MOST_CAUSES = 6
_SAME_RATE = 1e-12  # as compare/curve.py has it: the last bits of a formula
_ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""The unit roundoff of each params_dtype."""
_ARGUMENTS = ("betas", "eps", "bias_correction", "amsgrad", "momentum", "dampening", "nesterov")


class Seen(Struct, frozen=True):
    """One of the two runs, by the name that sentences use."""

    label: str
    record: Record

    @property
    def read(self) -> ReadBack:
        return read_of(self.record)


class Parting(Struct, frozen=True):
    """Where two runs part. step: from 0; -1 before the first. sentence: what differs there, and what it looks like.
    causes: what else of the stacks differs and can make such a difference, in their own words, each with the values of
    the groups `between`."""

    part: Part
    step: int
    sentence: str
    causes: tuple[str, ...] = ()
    between: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the sentence with what can be its cause."""
        if not self.causes:
            return self.sentence
        causes = some(self.causes, _MOST_CAUSES, between="; ")
        return f"{self.sentence}; what can do this differs ({' / '.join(self.between)}): {causes}"


def parting(first: Seen, second: Seen) -> Parting | None:
    """Return the first thing in which two rehearsals of one seed part; None where nothing that is read differs."""
    events = [*_inputs(first, second), *_steps_otherwise(first, second), *_rates(first, second)]
    if _begin_equal(first, second):
        events += [*_weights(first, second), *_forward(first, second), *_gradients(first, second)]
        events += _norms(first, second)
    events.sort(key=lambda one: (one.step, ORDER.index(one.part)))
    inferred = _afterwards(first, second) if _begin_equal(first, second) else None
    given = {one.step for one in events if one.part in ("data", "mask")}  # which alone makes another loss of that step
    if inferred and inferred.step + 1 not in given and (not events or events[0].step > inferred.step):
        events.insert(0, inferred)
    if not events or not _begin_equal(first, second):  # equal weights in its place part nothing
        events[:0] = _draws(first, second)
    events += _order_of_a_sum(first, second) if not events else ()
    if not events:
        return None
    at = "" if events[0].step < 0 else f" of step {events[0].step}"
    return Parting(events[0].part, events[0].step, f"parts {_IN_WORDS[events[0].part]}{at}: {events[0].sentence}")


def first_parting(pairs: Iterable[tuple[Seen, Seen]], rows: Sequence[FieldRow]) -> Parting | None:
    """Return where the pairs part that do first, with the fields that can be the cause. rows: of the stacks' own
    configuration objects, all that differ."""
    found = [(one, pair) for pair in pairs if (one := parting(*pair))]
    if not found:
        return None
    first, pair = min(found, key=lambda one: (one[0].step, ORDER.index(one[0].part)))
    given = [row for row in rows if row.weight in ("differs", "alone") and row.field != WHOLE]
    first = _computed_otherwise(first, pair, {row.cause for row in given})
    able = [row for row in given if row.cause in (first.part, "unknown")]
    able.sort(key=lambda row: row.cause == "unknown")
    return replace(first, causes=tuple(map(beside, able)), between=columns(able))


def candidates(rows: Sequence[FieldRow]) -> tuple[FieldRow, ...]:
    """Return the fields that can make rehearsals part which begin with the same data, and with weights of their own."""
    numbers = ORDER[ORDER.index("forward") :]
    return tuple(row for row in rows if row.cause in numbers and row.weight in ("differs", "alone"))


def _computed_otherwise(parts: Parting, pair: tuple[Seen, Seen], causes: Collection[str]) -> Parting:
    """Return a parting of gradients as one of the forward pass where settings of that alone differ, and the gradients
    by no more than one rounding: a module that keeps its values in another precision can round to equal outputs, and
    the derivative of what it kept does not. causes: of all fields that differ."""
    outputs, gradients = ([getattr(one.read, name) for one in pair] for name in ("first_outputs", "first_gradients"))
    if (parts.part, parts.step) != ("backward", 0) or not all(outputs) or unlike(*outputs):
        return parts
    if "forward" not in causes or "backward" in causes or differing_layout(*pair):
        return parts
    ours, theirs = ({name: one.norm or 0.0 for name, one in of.items()} for of in gradients)
    most = max(gap(norm, theirs.get(name, math.inf)) for name, norm in ours.items())
    if not most <= _ROUNDING.get(str(pair[0].record.setting("params_dtype")), 0.0):
        return parts
    text = (
        f"parts {_IN_WORDS['forward']} of step 0: every module's output rounds to the same bits, and the gradients to "
        f"others, whose norms are at most {shown(most, 2)} apart: modules are computed otherwise"
    )
    return replace(parts, part="forward", sentence=text)


def _begin_equal(first: Seen, second: Seen) -> bool:
    seeds = [seen.record.environment.get("equal_init") for seen in (first, second)]
    return seeds[0] is not None and seeds[0] == seeds[1]


def _draws(first: Seen, second: Seen) -> Iterator[Parting]:
    """Yield that the stacks draw their own first weights from other distributions."""
    if apart := drawn_apart(first.read.drawn, second.read.drawn):
        name, how = next(iter(apart.items()))
        yield Parting("first weights", -1, f"another initialisation of {some([*apart])}: {name} with {how}")


def _weights(first: Seen, second: Seen) -> Iterator[Parting]:
    """Yield that runs begin with other weights."""
    ours, theirs = first.read.first_weights, second.read.first_weights
    for one, names in ((first, ours.keys() - theirs.keys()), (second, theirs.keys() - ours.keys())):
        if names and ours and theirs:
            yield Parting("first weights", -1, f"{some(sorted(names))} only in {one.label}")
    if apart := unlike(ours, theirs):
        yield Parting("first weights", -1, f"the first weights of {some(apart)} are not equal")


def _inputs(first: Seen, second: Seen) -> Iterator[Parting]:
    """Yield where the inputs of a step differ: what the model reads, and which targets count."""
    others, members = by_step(second.record), inputs_of(first.record, second.record)
    for one in first.read.batches:
        other = others.get(one.step)
        if other is None:
            continue
        if known_apart(one.masked, other.masked):
            count = _tokens(first.record)
            of = f" of {count:,}" if count else ""
            yield Parting(
                "mask", one.step, f"masked targets: {one.masked}{of} in {first.label}, {other.masked} in {second.label}"
            )
        for name, part, text in _INPUTS:
            if name in members and known_apart(getattr(one, name), getattr(other, name)):
                yield Parting(part, one.step, text)
    ours, theirs = ({s.step: s.metrics.get("tokens_checksum") for s in seen.record.steps} for seen in (first, second))
    if step := [s for s in ours if known_apart(ours[s], theirs.get(s))]:
        yield Parting("data", step[0], "other tokens are read")


_INPUTS: tuple[tuple[str, Part, str], ...] = (
    ("tokens", "data", "other tokens are read"),
    ("order", "data", "the same tokens are read, in another order of micro-batches"),
    ("labels", "data", "the tokens are the same, and the labels are not"),
    ("position_ids", "data", "the positions of the tokens are counted otherwise"),
    ("loss_mask", "mask", "other targets count in the loss"),
    ("attention_mask", "mask", "attention sees other positions"),
)


def _tokens(record: Record) -> int | None:
    batch, length = record.setting("global_batch_size"), record.setting("seq_length")
    return batch * length if type(batch) is int and type(length) is int else None


def _first_apart(first: Seen, second: Seen, what: Literal["loss", "grad_norm"]) -> int | None:
    """Return the first step at which a series leaves what rounding explains."""
    ours, theirs = series(first.record, what), series(second.record, what)
    common = sorted(ours.keys() & theirs.keys())
    least = SUMMED if what == "grad_norm" and _groups_apart(first, second) else 0.0
    within = {step: max(least, tolerance(first.record, second.record, what, step)) for step in common}
    return next((step for step in common if not gap(ours[step], theirs[step]) <= within[step]), None)


def _forward(first: Seen, second: Seen) -> Iterator[Parting]:
    """Yield that the first loss differs: by the module that does first, else by what its gradients look like."""
    if _first_apart(first, second, "loss") != 0:
        return
    losses = [series(seen.record, "loss")[0] for seen in (first, second)]
    ratio = losses[1] / losses[0] if losses[0] else float("nan")
    by = f"{second.label}'s first loss is {shown(losses[1], 7)}, {first.label}'s {shown(losses[0], 7)}"
    gradients = first.read.first_gradients, second.read.first_gradients
    outputs = first.read.first_outputs, second.read.first_outputs
    if all(outputs) and not differing_layout(first, second):
        if apart := sorted(unlike(*outputs), key=_depth):
            yield Parting("forward", 0, f"{apart[0]} is the first module whose output differs; {by}")
        else:
            yield _later(first, second) or Parting(
                "loss", 0, f"every module's output is equal, and the loss of them is not: {by}"
            )
    elif all(gradients) and not unlike(*gradients):
        yield Parting("loss", 0, f"every gradient is equal, and the loss that is reported is not: {by}")
    elif (factor := _factor(*gradients)) and gap(factor, ratio) < _CONSTANT:
        yield Parting("loss", 0, f"loss and gradients are {shown(factor, 3)} times the other's: {by}")
    else:
        yield Parting("forward", 0, f"the weights and the data are equal, and the first loss is not: {by}")


def _later(first: Seen, second: Seen) -> Parting | None:
    """Return what differs behind the first forward pass: the backward pass computes a module's output again, of an
    earlier micro-batch, and differs there, or a later forward pass does."""
    ours, theirs = first.read.first_outputs, second.read.first_outputs
    names = sorted(ours.keys() & theirs.keys(), key=_depth)
    passes = _first_unlike(names, [(ours[name].passes, theirs[name].passes) for name in names])
    again = _first_unlike(names, [(ours[name].recomputed, theirs[name].recomputed) for name in names])
    if again and (passes is None or again[0] < passes[0]):
        place, module = again
        text = f"{module} is recomputed in the backward pass of micro-batch {place}, and differs there alone"
        return Parting("backward", 0, text)
    if passes:
        return Parting(
            "forward", 0, f"{passes[1]} is the first module whose output differs, in micro-batch {passes[0]}"
        )
    return None


def _first_unlike(names: Sequence[str], pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[int, str] | None:
    """Return the first pass, from 0, in which a module's checksums differ, and the first module in it."""
    found = (
        (at, place)
        for place, pair in enumerate(pairs)
        if (at := next((n for n, (one, other) in enumerate(zip(*pair, strict=False)) if one != other), None))
        is not None
    )
    first = min(found, default=None)
    return None if first is None else (first[0], names[first[1]])


def _depth(module: str) -> float:
    """Return a key that sorts modules as the forward pass reaches them, over pipeline stages and their chunks."""
    if match := _LAYER.match(module):
        return int(match[1])
    return -1 if module.startswith(("embedding", "rotary_pos_emb")) else math.inf


def differing_layout(first: Seen, second: Seen) -> bool:
    """Return whether two runs have other layouts, or codes of the model, in which sums are taken in another order."""
    return tolerance(first.record, second.record, "loss", 0) > 0


def _gradients(first: Seen, second: Seen) -> Iterator[Parting]:
    """Yield how the first step's gradients differ."""
    ours, theirs = first.read.first_gradients, second.read.first_gradients
    within = tolerance(first.record, second.record, "gradient", 0) if differing_layout(first, second) else 0.0
    if ours and theirs and (alone := sorted(ours.keys() ^ theirs.keys())):
        which = first if alone[0] in theirs else second
        text = f"the gradients of {some(alone)} have no reading in {which.label}: its replicas hold different ones"
        yield Parting("gradient reduction", 0, text)
        return
    apart = unlike(ours, theirs, within)
    if not apart:
        return
    if (factor := _factor(ours, theirs)) and gap(factor, 1.0) > _CONSTANT:
        part, why = _scaled(factor, first.record, second.record)
        large, small = (second, first) if factor > 1 else (first, second)
        times = f"{max(factor, 1 / factor):.2f} times {small.label}'s"
        yield Parting(part, 0, f"every gradient of {large.label} is {times}{why}")
        return
    part, text = _which(apart, ours, theirs, second)
    yield Parting(part, 0, text)


def _factor(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float | None:
    """Return by what all norms differ, where that is one number."""
    norms = [(ours[name].norm, theirs[name].norm) for name in ours.keys() & theirs.keys()]
    ratios = [other / one for one, other in norms if one and other]
    if not ratios or gap(min(ratios), max(ratios)) > _CONSTANT:
        return None
    return sorted(ratios)[len(ratios) // 2]


def _scaled(factor: float, *records: Record) -> tuple[Part, str]:
    """Return where, and why, gradients are off by a factor: by which size of the run, or by a power of two."""
    larger = factor if factor > 1 else 1 / factor
    for name, part, why in _FACTORS:
        if any(
            gap(larger, float(n)) < _CONSTANT for record in records if type(n := record.setting(name)) is int and n > 1
        ):
            return part, ": " + why.format(n=round(larger))
    return "loss", ": the loss is scaled"


def _which(
    apart: Sequence[str], ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], second: Seen
) -> tuple[Part, str]:
    """Return in which part the gradients of these parameters came to differ, and which they are."""
    record, kinds = second.record, {_kind(name) for name in apart}
    sizes = {
        n: record.setting(f"{n}_parallel_size") or 1 for n in ("data", "tensor_model", "pipeline_model", "expert_model")
    }
    times = factor_text(_factor({n: ours[n] for n in apart}, theirs))
    if kinds == {"norms"}:
        if sizes["tensor_model"] > 1 and record.setting("sequence_parallel"):
            return (
                "gradient reduction",
                f"only the gradients of the norms differ{times}: sequence parallelism without their all-reduce",
            )
        return "backward", f"only the gradients of the norms differ{times}"
    if kinds == {"embedding"}:
        if sizes["pipeline_model"] > 1:
            return (
                "gradient reduction",
                f"only the embedding's gradients differ{times}: not summed over the first and the last stage",
            )
        return "backward", f"only the gradients of {some(apart)} differ{times}"
    if kinds == {"experts"} and sizes["expert_model"] > 1:
        return "gradient reduction", f"only the gradients of the experts differ{times}: reduced over other ranks"
    if len(kinds) == 1 and kinds != {""}:
        return "backward", f"only the gradients of the {kinds.pop()} differ{times}"
    backwards = sorted(ours.keys() & theirs.keys(), key=_place)
    start = next(at for at, name in enumerate(backwards) if name in apart)
    rest = set(backwards[start:]) - {*apart}
    ranks = max(sizes["data"], sizes["tensor_model"], sizes["expert_model"])
    if start and not any(_place(name)[:2] != _place(backwards[start])[:2] for name in rest):
        return "backward", f"from the loss down {backwards[start]} is the first whose gradient differs"
    if ranks > 1:
        return (
            "gradient reduction",
            f"the gradients of {len(apart)} of {len(backwards)} parameters differ, and the loss does not",
        )
    return "backward", f"the gradients of {len(apart)} of {len(backwards)} parameters differ, from {apart[0]} on"


def factor_text(factor: float | None) -> str:
    """Return by what gradients differ, where it is one factor."""
    return "" if factor is None or gap(factor, 1.0) <= _CONSTANT else f" ({factor:.2f} times the other's)"


def _kind(name: str) -> str:
    return next((kind for kind, pattern in _OF_NAMES.items() if pattern.search(name)), "")


def _place(name: str) -> tuple[int, int, str]:
    """Return a key that sorts parameters as the backward pass reaches them: from the output down."""
    if match := _LAYER.match(name):
        inner = next((at for at, kind in enumerate(_IN_LAYER) if (match[2] or "").startswith(kind)), len(_IN_LAYER))
        return -int(match[1]), inner, name
    return (1 << 20, 0, name) if name.startswith("embedding.") else (-(1 << 20), 0, name)


def _norms(first: Seen, second: Seen) -> Iterator[Parting]:
    """Yield where the gradient norm or the clipping differs, and the gradients themselves do not."""
    step = _first_apart(first, second, "grad_norm")
    if step is not None:
        ours, theirs = (series(seen.record, "grad_norm")[step] for seen in (first, second))
        gradients = first.read.first_gradients, second.read.first_gradients
        by = f"{second.label}'s gradient norm is {shown(theirs, 6)}, {first.label}'s {shown(ours, 6)}"
        if step == 0 and all(gradients):
            alike = gradients[0].keys() == gradients[1].keys() and not unlike(*gradients)
            if alike and not [*_order_of_a_sum(first, second)]:  # which is said where nothing else parts
                yield Parting("clipping", 0, f"every gradient is equal, and the norm of them is not: {by}")
        else:
            part, why = _scaled(theirs / ours, first.record, second.record) if ours else ("backward", "")
            yield Parting(part if part != "loss" else "backward", step, by + (why if part != "loss" else ""))
    coefficients = [
        {s.step: s.metrics["clip_coefficient"] for s in seen.record.steps if "clip_coefficient" in s.metrics}
        for seen in (first, second)
    ]
    common = sorted(coefficients[0].keys() & coefficients[1].keys())
    norms = [series(seen.record, "grad_norm") for seen in (first, second)]
    within = {  # a coefficient is as far apart as the norms that it is worked out of
        step: tolerance(first.record, second.record, "grad_norm", step) or SUMMED + _apart_at(norms, step)
        for step in common
    }
    if apart := [s for s in common if gap(coefficients[0][s], coefficients[1][s]) > within[s]]:
        ours, theirs = (one[apart[0]] for one in coefficients)
        text = f"{second.label}'s gradients are clipped by {shown(theirs, 4)}, {first.label}'s by {shown(ours, 4)}"
        yield Parting("clipping", apart[0], text)


def _apart_at(known: Sequence[Mapping[int, float]], step: int) -> float:
    """Return by which share two series differ at a step; 0 where one of them is not known there."""
    return gap(known[0][step], known[1][step]) if all(step in of for of in known) else 0.0


def _steps_otherwise(first: Seen, second: Seen) -> Iterator[Parting]:
    """Yield how the optimizers differ by what they were given and what they hold."""
    ours, theirs = first.read.optimizer, second.read.optimizer
    if ours is None or theirs is None:
        return
    decays = [*zip(ours.weight_decays, theirs.weight_decays, strict=False)]
    if apart := [step for step, pair in enumerate(decays) if not same(*pair)]:
        texts = [_over_steps(seen) for seen in (first, second)]
        yield Parting("optimizer", apart[0], f"weight decay: {'; '.join(texts)}")
    spared = [seen.record.environment.get("parameters_undecayed") for seen in (first, second)]
    if known_apart(*spared):
        text = f"{first.label} spares {spared[0]:,} parameters, {second.label} {spared[1]:,}"
        yield Parting("optimizer", 0, f"weight decay: {text}")
    for name in _ARGUMENTS:
        values = [_argument(optimizer, name) for optimizer in (ours, theirs)]
        if known_apart(*values):
            yield Parting("optimizer", 0, f"{name}: {first.label} {values[0]}; {second.label} {values[1]}")
    decoupled = [_decoupled(optimizer) for optimizer in (ours, theirs)]
    if known_apart(*decoupled):
        which = first if not decoupled[0] else second
        yield Parting(
            "optimizer", 0, f"decoupled weight decay is off in {which.label}: L2, which goes through Adam's moments"
        )
    for name in sorted(ours.state.keys() & theirs.state.keys()):
        if ours.state[name] != theirs.state[name]:
            text = f"{name} is kept in {ours.state[name]} by {first.label}, in {theirs.state[name]} by {second.label}"
            yield Parting("optimizer", 0, text)


def _over_steps(seen: Seen) -> str:
    decays = seen.read.optimizer.weight_decays if seen.read.optimizer else ()
    changes = next((step for step, decay in enumerate(decays) if decay != decays[0]), None)
    if changes is None:
        return f"{seen.label} {decays[0]:g}"
    word = "grows" if decays[-1] > decays[0] else "falls"
    return f"{seen.label}'s {word} from {decays[0]:g} to {decays[-1]:g} from step {changes} on"


def _argument(optimizer: Any, name: str) -> Any:
    group = optimizer.groups[0] if optimizer.groups else {}
    value = group.get(name, optimizer.arguments.get(name))
    return tuple(value) if isinstance(value, list | tuple) else value


def _decoupled(optimizer: Any) -> bool | None:
    """Return whether weight decay is Loshchilov and Hutter's: it decays the weight and not its gradient. The step that
    was made says it before what the optimizer was given."""
    if optimizer.decay is not None:
        return bool(optimizer.decay == "decoupled")
    for name in ("decoupled_weight_decay", "adam_w_mode"):
        if (value := _argument(optimizer, name)) is not None:
            return bool(value)
    name = (optimizer.kind or "").rpartition(".")[2]
    return {"AdamW": True, "Adam": False}.get(name)


def _order_of_a_sum(first: Seen, second: Seen) -> Iterator[Parting]:
    """Yield that equal gradients are summed into a norm over other groups of the optimizer, which rounds otherwise."""
    norms = [series(seen.record, "grad_norm").get(0, math.nan) for seen in (first, second)]
    gradients = first.read.first_gradients, second.read.first_gradients
    if not _groups_apart(first, second) or not all(gradients) or unlike(*gradients):
        return
    if 0 < gap(*norms) <= SUMMED:
        ours, theirs = map(_groups, (first, second))
        text = f"{first.label} steps {ours} groups of parameters, {second.label} {theirs}"
        yield Parting("optimizer", 0, f"{text}: the norm of equal gradients is summed in another order")


def _groups(seen: Seen) -> int:
    """Count the groups of parameters that the optimizer steps; 0 where nobody read them."""
    return len(seen.read.optimizer.groups) if seen.read.optimizer else 0


def _groups_apart(first: Seen, second: Seen) -> bool:
    """Return whether a norm of all gradients is summed over another number of groups."""
    ours, theirs = map(_groups, (first, second))
    return 0 not in (ours, theirs) and ours != theirs


def _rates(first: Seen, second: Seen) -> Iterator[Parting]:
    """Yield where the rates differ: of the schedule, or those of one group of parameters by a factor that stays."""
    ours, theirs = (_rates_of(seen) for seen in (first, second))
    pairs = {step: (ours[step], theirs[step]) for step in sorted(ours.keys() & theirs.keys())}
    step = next((step for step, pair in pairs.items() if not _same_rates(*pair)), None)
    if step is None:
        return
    one, other = (" and ".join(f"{rate:.6g}" for rate in of) for of in pairs[step])
    text = f"{second.label} steps at {other}, {first.label} at {one}"
    stays = all(len({_share(pair[side]) for pair in pairs.values() if pair[side][-1]}) == 1 for side in (0, 1))
    if stays and all({*map(_digits, of_one)} & {*map(_digits, of_other)} for of_one, of_other in pairs.values()):
        yield Parting("optimizer", step, f"{text}: a group of parameters has a multiple of the rate")
    else:
        yield Parting("schedule", step, text)


def _rates_of(seen: Seen) -> Mapping[int, Sequence[float]]:
    """Return the rates of all groups of parameters by step, else that of the first, the least first."""
    if seen.read.optimizer and seen.read.optimizer.rates:
        return dict(enumerate(seen.read.optimizer.rates))
    return {step.step: (step.lr_used,) for step in seen.record.steps if step.lr_used is not None}


def _same_rates(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    return len(ours) == len(theirs) and all(gap(*pair) <= _SAME_RATE for pair in zip(ours, theirs, strict=True))


def _share(rates: Sequence[float]) -> tuple[str, ...]:
    """Return rates as shares of the largest."""
    return tuple(_digits(rate / rates[-1]) for rate in rates)


def _digits(rate: float) -> str:
    return f"{rate:.9g}"


def _afterwards(first: Seen, second: Seen) -> Parting | None:
    """Return that a step of the optimizer made other weights of equal gradients: the next loss shows it, or the last
    weights."""
    step = _first_apart(first, second, "loss")
    records, steps = (first.record, second.record), len(first.record.steps)
    rounds = differing_layout(first, second)
    within, biases = (tolerance(*records, what, steps) if rounds else 0.0 for what in WEIGHTS)
    apart = unlike(first.read.last_weights, second.read.last_weights, within, biases)
    if step is None and not apart:
        return None
    at = step - 1 if step else len(first.record.steps) - 1
    if step == 0:
        return None
    kinds: Collection[str] = {_kind(name) for name in apart}
    of = f" of the {next(iter(kinds))} alone" if len(kinds) == 1 and kinds != {""} else ""
    text = f"data, losses, gradients and rates are equal up to it, and the weights{of} that it makes are not"
    return Parting("optimizer", at, text)
