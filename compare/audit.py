"""Whether groups of runs may be compared at all: every setting that decides it, as it really ran. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compare.accepted import accepted, refuse_unknown
from compare.curve import Curve, curve_of
from compare.curves import Check, checks, same_checksums
from compare.groups import SEED, Group, Side, sides
from compare.question import Question
from compare.row import Row, State, Values
from compare.unlike import Unlike, declared_by, unlike_of
from compare.vary import DEVICE, DUMPED, FACTS, LAYOUT, PARAMETERS, TOKENS, Varied, choose, expand, fact_of
from compare.verdict import Verdict, some, verdict_of
from conf.vocabulary import Setting, vocabulary
from parsers import Record, Run
from parsers.assemble import same

# A setting that has no effect while its switch is None or False in every group.
_SWITCHES: Mapping[str, str] = {
    "fp8_recipe": "fp8",
    "recompute_method": "recompute_granularity",
    "recompute_num_layers": "recompute_granularity",
    "rope_scaling_factor": "use_rope_scaling",
    **dict.fromkeys(("moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size"), "num_experts"),
    **dict.fromkeys(("moe_first_dense_layers", "moe_router_load_balancing_type", "moe_aux_loss_coeff"), "num_experts"),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_head_dim"), "multi_latent_attention"),
    **dict.fromkeys(("qk_pos_emb_head_dim", "v_head_dim"), "multi_latent_attention"),
}
_OFTEN_VARIED = (LAYOUT, "image", "precision")
_A_SEED = (SEED, TOKENS)  # differ between the repeats of one experiment
_ENVIRONMENT = (DEVICE, TOKENS, *PARAMETERS, *DUMPED)


@dataclass(frozen=True, slots=True)
class Audit:
    """rows: every setting; checks: of the curves; unlike: requested against effective, run by run; varied: what is
    compared; rehearsed: these are rehearsals among themselves, and the verdict is about settings alone."""

    rows: tuple[Row, ...]
    checks: tuple[Check, ...]
    unlike: tuple[Unlike, ...]
    verdict: Verdict
    varied: Varied
    rehearsed: bool = False


def audit(
    groups: Sequence[Group], question: Question | None = None, curves: Mapping[str, Curve] | None = None
) -> Audit:
    """Hold the groups that have a say against each other. curves: of each run, by its path, where they are known
    already. InputError."""
    question = question or Question()
    held, rehearsed = sides(groups)
    found = curves if curves is not None else {run.path: curve_of(run.record) for s in held for run in s.runs}
    compared = choose(held, question.vary)
    may = compared.settings
    if rehearsed and "framework" in may:  # which the platform of a rehearsal follows, and nothing of it runs
        may |= {"platform", "hardware", DEVICE}
    rows: tuple[Row, ...] = ()
    if held:
        facts = tuple(_fact_rows(held, may, found))
        same_tokens = any(row.setting == TOKENS and row.state == "identical" for row in facts)
        same_tokens = same_tokens or same_checksums(held, found)
        rows = (*facts, *_layout_row(held, may), *_setting_rows(held, may, same_tokens), *_topic_rows(held))
    unlike = tuple(item for side in held for run in side.usable for item in unlike_of(run))
    held_curves = checks(held, found, {row.setting: row.state for row in rows}, question.baseline)
    refuse_unknown(question.accept, rows, held_curves, unlike)
    rows, held_curves, unlike = accepted(question.accept, rows, held_curves, unlike)
    verdict = verdict_of(groups, held, rows, held_curves, unlike)
    return Audit(rows, held_curves, unlike, verdict, compared, rehearsed)


def _fact_rows(held: Sequence[Side], varied: frozenset[str], curves: Mapping[str, Curve]) -> Iterator[Row]:
    for name in FACTS:
        values = {side.label: _told([_fact(run, name, curves) for run in _counting(side, name)]) for side in held}
        if name not in (*PARAMETERS, *DUMPED) or any(values.values()):  # a probe or one stack alone tells them
            row = _row(name, None, values, varied, held)
            timers = name == "clock" and row.state == "unexplained" and not row.reason
            yield replace(row, reason="step times by different timers") if timers else row


def _counting(side: Side, name: str) -> Sequence[Run]:
    """The set of seeds, and what follows from each, was planned: a run that died counts."""
    return side.runs if name in _A_SEED else side.usable


def _fact(run: Run, name: str, curves: Mapping[str, Curve]) -> tuple[bool, Any]:
    if name == "clock":
        value: Any = curves[run.path].clock
    else:
        value = run.record.environment.get(name) if name in _ENVIRONMENT else fact_of(run.record, name)
    return value is not None, value


def _layout_row(held: Sequence[Side], varied: frozenset[str]) -> Iterator[Row]:
    """How a layout was asked for: no log tells it, and alone it decides nothing, for the sizes are rows themselves."""
    asked = [(side.label, [run.record.requested for run in side.usable]) for side in held]
    values = {label: _told([(LAYOUT in one, one.get(LAYOUT)) for one in requests]) for label, requests in asked}
    first = next(iter(values.values()))
    if all(_alike(first, found) for found in values.values()):
        yield Row(LAYOUT, LAYOUT, "identical", values, "", decides=False)
    elif any(values.values()):
        state: State = "varied" if LAYOUT in varied else "allowed"
        yield Row(LAYOUT, LAYOUT, state, values, "" if state == "varied" else "a name; its sizes decide", decides=False)


def _setting_rows(held: Sequence[Side], varied: frozenset[str], same_tokens: bool) -> Iterator[Row]:
    settings = {name: setting for name, setting in vocabulary().items() if setting.dump}
    values = {name: {side.label: _values(side, name) for side in held} for name in settings}
    for name, setting in settings.items():
        row = _row(name, setting, values[name], varied, held)
        if setting.kind == "data" and row.state in ("unknown", "unexplained") and same_tokens:
            row = replace(row, state="allowed", reason="the first batch has the same tokens", decides=False)
        if row.state in ("unknown", "unexplained") and (why := _no_effect(name, values)):
            row = replace(row, state="allowed", reason=f"no effect: {why}", decides=False)
        if row.state != "unexplained" and (reason := _not_rehearsed(held, name)):
            row = replace(row, state="not rehearsed", reason=reason, decides=False)
        given = [s.label for s in held if any(_is_given(run.record, name) for run in s.usable)]
        yield (
            replace(row, reason="; ".join(filter(None, (row.reason, f"as given for {some(given)}")))) if given else row
        )


def _topic_rows(held: Sequence[Side]) -> Iterator[Row]:
    """What a rehearsal leaves out that is no setting: kernels, collectives."""
    topics = dict.fromkeys(t for side in held for run in side.usable for t in run.record.not_rehearsed)
    for topic in (topic for topic in topics if topic not in vocabulary()):
        values: Values = {side.label: None for side in held}
        yield Row(topic, "rehearsal", "not rehearsed", values, _not_rehearsed(held, topic), decides=False)


def _not_rehearsed(held: Sequence[Side], name: str) -> str:
    found = [(s.label, r.record.not_rehearsed[name]) for s in held for r in s.usable if name in r.record.not_rehearsed]
    reasons = dict.fromkeys(reason for _, reason in found)
    labels = list(dict.fromkeys(label for label, _ in found))
    whose = "" if len(labels) == len(held) else f"{some(labels)}: "
    return f"{whose}{'; '.join(reasons)}" if found else ""


def _values(side: Side, name: str) -> tuple[Any, ...] | None:
    if name == SEED:
        return _told([_seed(run.record) for run in side.runs])
    return _told([_effective(run.record, name) for run in side.usable])


def _no_effect(name: str, values: Mapping[str, Values]) -> str:
    """Why a setting that differs does nothing in any group; empty where it does."""
    switch = _SWITCHES.get(name, "")
    if switch in values and all(found in ((None,), (False,)) for found in values[switch].values()):
        return f"{switch} is off"
    if name == "tokenizer_model" and all(found == ("NullTokenizer",) for found in values["tokenizer_type"].values()):
        return "the corpus holds token ids already"
    ends = [found[0] if found else None for found in values["train_iters"].values()]
    if name == "save_interval" and all(map(_saves_at_the_end, values[name].values(), ends)):
        return "nothing is saved before the end"
    return ""


def _saves_at_the_end(intervals: tuple[Any, ...] | None, end: Any) -> bool:
    if intervals is None or type(end) is not int:
        return False
    return all(every is None or (type(every) is int and every >= end) for every in intervals)


def _effective(record: Record, name: str) -> tuple[bool, Any]:
    """What ran, else what the user gave who brought the log."""
    return name in record.effective or _is_given(record, name), record.setting(name)


def _is_given(record: Record, name: str) -> bool:
    return name in record.given and name not in record.effective


def _seed(record: Record) -> tuple[bool, Any]:
    """A run that died before it told its seed counts with the one it was given: the set was planned."""
    told, value = _effective(record, SEED)
    return (told, value) if told else (SEED in record.requested, record.requested.get(SEED))


def _told(found: Sequence[tuple[bool, Any]]) -> tuple[Any, ...] | None:
    if not all(told for told, _ in found):
        return None
    distinct: list[Any] = []
    for _, value in found:
        if not any(same(value, other) for other in distinct):
            distinct.append(value)
    return tuple(sorted(distinct, key=repr))


def _row(name: str, setting: Setting | None, values: Values, varied: frozenset[str], held: Sequence[Side]) -> Row:
    """setting: None of a fact. Not knowing a fact, a kernel or what nobody can ask for decides nothing."""
    kind = "fact" if setting is None else setting.kind
    state, reason = _state(name, kind, values, varied, held)
    matters = setting is not None and kind != "kernels" and setting.request is not None and name not in varied
    decides = state == "unexplained" or (state == "unknown" and matters)
    return Row(name, kind, state, values, reason, decides)


def _state(name: str, kind: str, values: Values, varied: frozenset[str], held: Sequence[Side]) -> tuple[State, str]:
    told = {label: found for label, found in values.items() if found is not None}
    mixed = [label for label, found in told.items() if len(found) > 1 and name not in _A_SEED]
    if mixed and kind != "kernels":
        return "unexplained", f"differs between the repeats of {some(mixed)}"
    first = next(iter(told.values()), ())
    apart = any(not _alike(first, found) for found in told.values())
    excused = name in varied or kind == "kernels"
    declared = _declared(name, told, held) if apart and not excused else ""
    if apart and not excused and not declared:
        asked_by = next((key for key in _OFTEN_VARIED if name in expand((key,))), None)
        return "unexplained", f"{asked_by}s are compared with vary={asked_by}" if asked_by else ""
    if silent := [label for label in values if label not in told]:
        return "unknown", f"not told by {some(silent)}"
    if not apart:
        return "identical", ""
    if declared:
        return "declared", declared
    return ("varied", "") if name in varied else ("allowed", "another kernel")


def _alike(first: tuple[Any, ...] | None, found: tuple[Any, ...] | None) -> bool:
    if first is None or found is None or len(first) != len(found):
        return False
    return all(same(a, b) for a, b in zip(first, found, strict=True))


def _declared(name: str, told: Values, held: Sequence[Side]) -> str:
    """The reasons given for a setting, where the groups that give none have it alike."""
    given = {side.label: declared_by(side.usable, name) for side in held if side.label in told}
    silent = [told[label] for label, reason in given.items() if not reason]
    if any(given.values()) and all(_alike(silent[0], found) for found in silent):
        return "; ".join(f"{label}: {reason}" for label, reason in given.items() if reason)
    return ""
