"""Test what may be compared: each state of a setting, and each verdict."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from compare import Run
from compare.audit import Audit
from compare.groups import expand, group
from conf.errors import InputError
from parsers import Declaration, Record
from parsers.given import given_of, with_given
from tests.compare.made import TP2, compared, made, ran, silent, toy, without

YES, NO, OPEN = "comparable", "not comparable", "cannot tell"


def audited(*records: Record, **question: Any) -> Audit:
    return compared(*records, **question).audit


def state(of: Audit, setting: str) -> str:
    return next(row.state for row in of.rows if row.setting == setting)


def expect(word: str, *records: Record, question: dict[str, Any] | None = None, **states: str) -> None:
    """Check the word, and the states of some settings."""
    result = audited(*records, **(question or {}))
    assert (result.verdict.word, {name: state(result, name) for name in states}) == (word, states)


def labels(*records: Record) -> list[str]:
    return [g.label for g in group([Run(record.name, record) for record in records])]


def test_layouts_of_one_platform_are_comparable_out_of_the_box() -> None:
    result = audited(made("a"), made("b", over=TP2))
    assert result.verdict.word == "comparable"
    assert {row.setting for row in result.rows if row.state == "varied"} == set(TP2)
    assert all(row.state == "identical" for row in result.rows if row.setting not in TP2 and row.kind != "fact")


def test_what_did_not_run_as_requested_decides() -> None:
    result = audited(made("a"), ran(made("b", over=TP2), clip_grad=0))
    assert result.verdict.word == "not comparable"
    assert "clip_grad of b: requested 1, ran 0" in result.verdict.texts
    expect(NO, ran(made("a"), clip_grad=0), ran(made("b", over=TP2), clip_grad=0))
    declared = (Declaration("clip_grad", 0, "not read by this stack"),)
    expect(YES, *(ran(made(n, over=over, declared=declared), clip_grad=0) for n, over in (("a", {}), ("b", TP2))))


def test_two_gpus_are_not_one_hardware_whatever_was_planned() -> None:
    """The driver's word: of a log from elsewhere nothing else reports it, and a plan may have been for another GPU."""
    h100, a100, epyc, xeon = (
        {"device_name": name} for name in ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "EPYC 9654", "Xeon 8480")
    )
    for planned in (None, "h100"):
        pair = made("a", hardware=planned, environment=h100), made("b", over=TP2, hardware=planned, environment=a100)
        assert audited(*pair).varied.reason == "the groups differ in hardware"
        result = audited(*pair, vary=("layout",)).verdict
        assert (result.word, result.texts[0][:9]) == ("not comparable", "hardware:")
    reasons = audited(made("a", environment=epyc), made("b", over=TP2, environment=xeon)).verdict.texts
    assert any(reason.startswith("device_name: ") for reason in reasons)


def test_a_log_that_does_not_report_its_end_counts_where_the_user_knows_it() -> None:
    cut = made("b", over=TP2, provenance="imported", status="unknown")
    (reason,) = audited(made("a"), cut).verdict.texts
    assert reason.startswith("the log does not report how it ended (if you know: ")
    expect(YES, made("a"), with_given(cut, given_of(["status=completed"])))
    other = with_given(replace(cut, status="diverged"), given_of(["status=completed"]))
    assert (other.status, other.notes) == ("diverged", ("the log says that it diverged, completed as given",))


def test_what_is_given_of_a_log_is_checked_and_the_log_is_right() -> None:
    expected = replace(made("a"), hardware=None, effective={}, environment={"device_name": "NVIDIA H100 80GB HBM3"})
    assert with_given(expected, given_of(["precision=bf16"])).setting("params_dtype") == "bfloat16"
    assert [with_given(expected, given_of([f"fp8={no}"])).given["fp8"] for no in ("null", "None", "~")] == [None] * 3
    with pytest.raises(InputError) as caught:
        given_of(["fp8=e4", "params_dtype=bf16", "num_layers=abc", "train_iters=-1", "status=complete"])
    wrong = [problem.where for problem in caught.value.problems]
    assert wrong == ["fp8", "params_dtype", "num_layers", "train_iters", "status"]
    assert "did you mean completed" in str(caught.value)


FP4_UNKNOWN = "fp4, fp4_recipe: unknown, not reported by fp4 unknown"  # its label


def test_a_precision_that_one_log_alone_reports_is_a_difference_of_the_other() -> None:
    """No stack can be requested to use it, and older ones do not print it: unknown on all sides it decides nothing."""
    older, other = (silent(made(name, requested={}), "fp4", "fp4_recipe") for name in "ab")
    newer = made("b", over={"fp4": "e2m1", "fp4_recipe": "nvfp4"}, requested={})
    reasons = [audited(older, one).verdict.texts for one in (newer, other)]
    assert [[reason for reason in each if "fp4" in reason] for each in reasons] == [[FP4_UNKNOWN], []]


def test_logs_that_were_given_two_models_are_no_repeats() -> None:
    silent_log = replace(made("a", provenance="imported"), requested={}, effective={})
    other = replace(silent_log, id="b", name="b")
    models = [with_given(silent_log, given_of(["model=llama31_8b"])), with_given(other, given_of(["model=qwen"]))]
    assert len(labels(silent_log, other)) == 1 and len(labels(*models)) == 2


def on_amd(**over: Any) -> Record:
    return made("b", over=over, platform="amd", hardware="mi300x", framework="primus", image="rocm/primus")


def test_platforms_bring_their_hardware_and_framework_but_not_another_layout() -> None:
    result = audited(made("a"), on_amd())
    assert (result.verdict.word, result.varied.keys) == ("comparable", ("platform",))
    assert result.varied.reason == "the groups differ in platform, hardware, framework"
    result = audited(made("a"), on_amd(**TP2, micro_batch_size=2))
    assert {reason.partition(":")[0] for reason in result.verdict.texts} == {*TP2, "micro_batch_size"}
    assert all("vary=layout" in reason for reason in result.verdict.texts)
    expect(YES, made("a"), on_amd(**TP2), question={"vary": ("platform", "layout")})
    expect(NO, made("a"), on_amd(**TP2), question={"vary": ("layout",)})


def test_how_a_layout_was_requested_is_shown_and_decides_nothing() -> None:
    named = [made("a", over={"layout": "dp2"}), made("b", over={**TP2, "layout": "tp2"})]
    result = audited(*named)
    assert (result.verdict.word, result.varied.keys, state(result, "layout")) == ("comparable", ("layout",), "varied")
    assert result.varied.reason == "no difference in platform, hardware, framework is reported"
    unrequested = [without(record, "layout") for record in named]
    assert all(row.setting != "layout" for row in audited(*unrequested).rows)
    expect(YES, named[0], unrequested[1], layout="varied")


def test_only_completed_runs_carry_numbers() -> None:
    for status in ("failed", "killed", "out_of_memory", "diverged", "hung", "running", "unknown"):
        result = audited(made("a"), made("b", over=TP2, status=status))
        assert (result.verdict.word, "TP2" in result.verdict.texts[0]) == ("cannot tell", True)


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean layout"):
        expand(["layouts"])
    assert {"hardware", "framework", "image"} <= expand(["platform"])
    assert {"tensor_model_parallel_size", "num_micro_batches"} <= expand(["layout"]) - expand(["platform"])
    with pytest.raises(InputError, match="did you mean adam_eps"):
        audited(made("a"), made("b", over=TP2), accept={"adam_epsilon": "x"})


def reading(record: Record, tokens: str) -> Record:
    return replace(record, environment={**record.environment, "data_first_batch": tokens})


DECIDE = (
    *("data", "data_path", "vocab_size", "padded_vocab_size", "seq_length", "global_batch_size"),
    *("optimizer", "lr", "min_lr", "lr_warmup_iters", "lr_warmup_init", "lr_decay_iters", "lr_decay_style"),
    *("weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "clip_grad", "params_dtype", "fp8"),
    *("accumulate_allreduce_grads_in_fp32", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads"),
    *("num_query_groups", "rotary_base", "use_rope_scaling", "normalization", "norm_epsilon", "init_method_std"),
    *("recompute_granularity", "overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer", "seed"),
)


def test_each_setting_of_the_list_decides() -> None:
    for name in DECIDE:
        other = made("b", over={**TP2, name: 77})
        words = [audited(made("a"), one).verdict.word for one in (other, without(silent(other, name), name))]
        assert (name, *words) == (name, "not comparable", "cannot tell")


def test_parameters_that_a_probe_counted_differently_are_not_comparable() -> None:
    for name in ("parameters", "parameters_decayed", "parameters_undecayed"):

        def counted(record: Record, count: int, name: str = name) -> Record:
            return replace(record, environment={**record.environment, name: count})

        a, b = counted(made("a"), 100), made("b", over=TP2)
        expect(YES, a, b)
        assert audited(a, counted(b, 101)).verdict.texts == (f"{name}: DP2 100; TP2 101",)
        deeper = counted(made("b", over={"num_layers": 2}), 200)
        expect(YES, a, deeper, question={"vary": ("num_layers",)})


def test_a_key_that_was_never_read_is_not_effective() -> None:
    expected = silent(made("b", over=TP2), "clip_grad", "attention_backend")
    never = replace(expected, environment={"probe_never_read": ["clip_grad", "use_flash_attn"]})
    result = audited(made("a"), never, accept={"clip_grad": "x"})
    shown = {item.setting: (item.requested, item.effective, item.decides) for item in result.deviations}
    assert shown == {"clip_grad": (1, "never read", False), "use_flash_attn": ("written", "never read", False)}
    assert "clip_grad of b: requested 1, ran never read" in audited(made("a"), never).verdict.texts
    effective = replace(made("b", over=TP2), environment={"probe_never_read": ["clip_grad"]})
    assert audited(made("a"), effective).deviations == ()


def rehearsed(name: str, over: dict[str, Any] | None = None, **known: Any) -> Record:
    return toy(name, over, **known)


def test_rehearsals_are_audited_among_themselves() -> None:
    result = audited(rehearsed("a"), rehearsed("b", TP2))
    assert (result.verdict.word, result.among) == ("comparable", "rehearsed")
    assert result.verdict.texts[0].startswith("rehearsed: ")
    expect(NO, rehearsed("a"), rehearsed("b", {**TP2, "lr": 0.1}))
    own = "v26.5.1-1-gcb458f47"
    both = rehearsed("a", framework_version=own), rehearsed("b", TP2, framework_version=own)
    texts = audited(*both).verdict.texts
    assert any("commits that no release has: " in text and "v26.5.1-1-gcb458f47" in text for text in texts), texts


def test_what_a_rehearsal_cannot_show_is_never_called_identical() -> None:
    toy = rehearsed("a", not_rehearsed={"fp8": "no fp8 on a CPU", "Transformer Engine": "needs a GPU"})
    result = audited(toy, rehearsed("b", TP2))
    assert (state(result, "fp8"), state(result, "Transformer Engine")) == ("not rehearsed", "not rehearsed")
    assert result.verdict.word == "comparable"
    assert result.verdict.texts[1] == "not rehearsed: fp8, Transformer Engine"
    expect(NO, toy, rehearsed("b", {**TP2, "fp8": "e4m3"}))


def test_rehearsals_and_estimates_stand_beside_what_was_measured_and_do_not_count() -> None:
    toy, third = rehearsed("b", {**TP2, "lr": 0.1}), made("c", over={"pipeline_model_parallel_size": 2})
    result = audited(made("a"), toy)
    assert (result.verdict.word, result.among) == ("cannot tell", "figures")
    assert "rehearsed, which is not compared with what was measured" in result.verdict.texts[0]
    pair = audited(made("a"), third, toy)
    assert (pair.verdict.word, {len(row.values) for row in pair.rows}) == ("comparable", {2})
    estimate = made("b", over={**TP2, "lr": 0.1}, provenance="estimated")
    result = audited(made("a"), estimate)
    assert result.verdict.word == "nothing to compare"
    assert any("estimated: does not count" in reason for reason in result.verdict.texts)
    expect(YES, made("a"), third, estimate)
    expect(OPEN, estimate, made("c", over={"lr": 3}, provenance="estimated"))


def test_clocks_of_two_frameworks_are_two_kinds() -> None:
    def timed(record: Record, dialect: str) -> Record:
        unstamped = tuple(replace(step, end_monotonic_s=None) for step in record.steps)
        return replace(record, steps=unstamped, dialects=(dialect,))

    pair = timed(made("a"), "nemo2"), timed(made("b", over=TP2), "primus")
    assert audited(*pair).verdict.texts == (
        "clock: DP2 log of nemo2; TP2 log of megatron (step times by different timers)",
    )
    assert audited(*pair, accept={"clock": "both from step end to step end"}).verdict.word == "comparable"
    assert audited(timed(pair[0], "megatron_bridge"), pair[1]).verdict.word == "comparable"


A, B = made("a"), made("b", over=TP2)
LR = made("b", over={"lr": 0.004, "lr_warmup_init": 2})
FP8, DENSE = {"fp8": "e4m3", "fp8_recipe": "delayed"}, {"num_experts": None, "multi_latent_attention": False}
FP8_A, FP8_B = made("a", over=FP8), made("b", over={**FP8, **TP2})
EPS = (Declaration("adam_eps", 2, "the recipe's own"),)
SEEDS = [made(f"a{seed}", over={"seed": seed}) for seed in (1, 2)]
OTHER_SEEDS = [made(f"b{seed}", over={**TP2, "seed": seed}) for seed in (1, 2)]
PART_DECLARED = [made(f"b{s}", over={**TP2, "adam_eps": 2, "seed": s}, declared=EPS * (2 - s)) for s in (1, 2)]
DEAD_SEED = replace(silent(OTHER_SEEDS[1], *OTHER_SEEDS[1].effective), status="failed")
NEVER_SAVED = made("a", over={"save_interval": None})
PATH = {**TP2, "data_path": "/elsewhere", "split": "99,1,0"}
BEST = {"layout": "max_performance"}
GIVEN = {"lr": 0.002, "lr_warmup_init": 0.002 / 3, "params_dtype": "bfloat16"}
ON_PURPOSE = replace(on_amd(**GIVEN), declared=tuple(Declaration(k, v, "per_platform.amd") for k, v in GIVEN.items()))
NULL = {"tokenizer_type": "NullTokenizer", "tokenizer_model": None}
NULLS = [ran(A, **NULL), ran(B, **{**NULL, "tokenizer_model": "meta-llama/Llama-3.1-8B"})]
OTHER_EPS, THIRD_EPS = made("b", over={**TP2, "adam_eps": 2}, declared=EPS), made("c", over={"adam_eps": 3})
OLD_EPS = made("a", declared=(Declaration("optimizer.adam_eps", 2, "the recipe's own"),))
SEVERAL = [reading(made(f"{a}{s}", over={**a, "seed": s}), f"{s}f") for a in ({}, TP2) for s in (1, 2)]
STATED = replace(silent(B, "norm_epsilon"), given={"norm_epsilon": 1})
THREE = [A, made("b", over={**TP2, "lr": 0.004}), silent(made("c", over={"global_batch_size": 16}), "lr")]
RATE, EPS_2 = made("b", over={**TP2, "lr": 0.004}), made("b", over={**TP2, "adam_eps": 2})
ELSEWHERE, BEST_A = made("b", over=PATH), made("a", over=BEST)
ACCEPT = {"accept": {"adam_eps": "the recipe of both vendors"}}


def test_declared_allowed_and_accepted() -> None:
    expect(YES, A, ran(made("b", over={**TP2, "attention_backend": "flash"})), attention_backend="allowed")
    expect(YES, A, OTHER_EPS, adam_eps="declared")
    expect(YES, OLD_EPS, made("b", over={"adam_eps": 2}), adam_eps="declared")
    expect(NO, A, OTHER_EPS, THIRD_EPS, adam_eps="unexplained")
    expect(NO, A, EPS_2, adam_eps="unexplained")
    expect(YES, A, EPS_2, question=ACCEPT, adam_eps="declared")
    declared: dict[str, Any] = dict.fromkeys(GIVEN, "declared")
    expect(YES, A, ON_PURPOSE, **declared)
    expect(NO, made("a", over={"lr": 0.001}), ran(ON_PURPOSE, lr=0.003))  # the stack went on with its own rate
    expect(NO, *THREE, question={"vary": ("layout", "global_batch_size")}, lr="unexplained")
    expect(YES, A, STATED, norm_epsilon="identical")
    expect(NO, A, replace(STATED, given={"norm_epsilon": 2}))


def test_the_same_tokens_excuse_another_path_but_nothing_else() -> None:
    expect(YES, *SEVERAL, data_first_batch="identical")
    expect(NO, A, ELSEWHERE)
    expect(YES, reading(A, "1f"), reading(ELSEWHERE, "1f"), data_path="allowed", split="allowed")
    expect(NO, reading(A, "1f"), reading(RATE, "1f"), lr="unexplained")
    expect(YES, *(replace(record, requested={}) for record in NULLS), tokenizer_model="allowed")


def test_each_platform_may_have_its_own_best_layout() -> None:
    expect(YES, BEST_A, on_amd(**BEST, **TP2, recompute_granularity="full"), recompute_granularity="varied")
    for other in ("identical", "explicit", "tp2"):
        expect(NO, BEST_A, on_amd(**TP2, layout=other), layout="allowed")
    expect(NO, BEST_A, on_amd(**BEST, **TP2, lr=0.1))
    expect(YES, BEST_A, on_amd(**BEST, **TP2), question={"vary": ("platform",)})


def test_reasons_of_rows() -> None:
    reasons = {row.setting: row.reason for row in audited(A, EPS_2, **ACCEPT).rows}
    assert reasons["adam_eps"] == "accepted: the recipe of both vendors"
    assert next(row.reason for row in audited(A, STATED).rows if row.setting == "norm_epsilon") == "as given for TP2"
    assert "layout=max_performance" in audited(BEST_A, on_amd(**BEST, **TP2)).varied.reason


UNSTAMPED = replace(B, steps=tuple(replace(step, end_monotonic_s=None) for step in B.steps))
UNREQUESTED = [
    without(record, "overlap_grad_reduce") for record in (A, ran(made("b", over={"seed": 2}), overlap_grad_reduce=0))
]


def test_reasons_of_the_verdict() -> None:
    def reasons(*records: Record) -> tuple[str, ...]:
        return audited(*records).verdict.texts

    off = replace(A, steps=tuple(replace(step, step_time_s=1.9) for step in A.steps))
    timers = "clock: DP2 measured; TP2 log of megatron (step times by different timers)"
    assert reasons(off, UNSTAMPED) == (timers,)
    repeats = "overlap_grad_reduce: cpu 0, 1 (differs between the repeats of cpu)"
    assert reasons(*UNREQUESTED) == (repeats,)
    unknown = "norm_epsilon, seq_length, clip_grad: unknown, not reported by TP2"
    assert reasons(A, silent(B, "norm_epsilon", "seq_length", "clip_grad")) == (unknown,)
    assert "b/steps.jsonl is missing" in reasons(A, replace(B, steps=()))[0]
    expect(OPEN, A, replace(B, steps=()))


FOREIGN: dict[str, Any] = {"platform": None, "hardware": None, "requested": {}}
LOGS = [made("a"), made("b", over={"seed": 2}), made("c", over=TP2)]


def test_groups_are_named_by_what_sets_them_apart() -> None:
    vendors = made("a", platform="nvidia", hardware="h100"), made("b", platform="amd", hardware="mi300x")
    assert labels(*vendors) == ["NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"]
    assert labels(A, B) == ["DP2", "TP2"]
    assert labels(A, made("b", over={"data_parallel_size": 1})) == ["DP2", "DP1"]
    rates = [A, made("b", over={"lr": 0.1}), made("c", over=TP2)]
    assert labels(*rates) == ["DP2 lr=0.003", "DP2 lr=0.1", "TP2 lr=0.003"]
    assert labels(A, made("b", image="x")) == ["image unknown", "x"]
    assert labels(A, made("b", over={"unheard_of": 1})) == ["other", "other (2)"]
    assert labels(*(replace(r, provenance="imported", requested={}) for r in LOGS)) == ["DP2", "TP2"]
    stacks = made("a", framework="nemo", **FOREIGN), silent(made("b", framework="primus", **FOREIGN), "num_layers")
    assert labels(*stacks) == ["nemo", "primus"]


WORDS: dict[str, tuple[list[Record], dict[str, Any], str]] = {
    "another rate": ([A, made("b", over={**TP2, "lr": 0.004})], {}, NO),
    "a rate that is compared": ([A, LR], {"vary": ("lr",)}, YES),
    "a kind that is compared": ([A, LR], {"vary": ("optimizer",)}, YES),
    "a layout where rates are compared": ([A, B], {"vary": ("lr",)}, NO),
    "an unknown kernel": ([A, silent(B, "attention_backend")], {}, YES),
    "an unknown consequence of what is the same": (
        [A, silent(made("b", seconds=3.0, over={"lr_warmup_init": 2}), "num_micro_batches")],
        {"vary": ("lr_warmup_init",)},
        YES,
    ),
    "an unknown size of the layout": ([A, silent(B, "num_micro_batches")], {}, YES),
    "an unknown setting without effect": ([A, silent(B, "fp8_recipe")], {}, YES),
    "an unknown setting": ([A, silent(B, "norm_epsilon")], {}, OPEN),
    "true against 1": ([A, made("b", over={"swiglu": True})], {}, NO),
    "the same seeds": ([*SEEDS, *OTHER_SEEDS], {}, YES),
    "a seed whose run died": ([*SEEDS, OTHER_SEEDS[0], DEAD_SEED], {}, YES),
    "one seed fewer": ([*SEEDS, OTHER_SEEDS[0]], {}, NO),
    "a reason that only one repeat gives": ([*SEEDS, *PART_DECLARED], {}, NO),
    "fp8 on both sides": ([FP8_A, FP8_B], {}, YES),
    "fp8, one recipe unknown": ([FP8_A, silent(FP8_B, "fp8_recipe")], {}, OPEN),
    "fp8, another recipe alone": ([FP8_A, made("b", over={**FP8, "fp8_recipe": "mxfp8"})], {}, YES),
    "fp8, another recipe": ([FP8_A, made("b", over={**FP8, **TP2, "fp8_recipe": "mxfp8"})], {}, NO),
    "the same tokens": ([reading(A, "1f"), reading(B, "1f")], {}, YES),
    "tokens of one side alone": ([reading(A, "1f"), B], {}, YES),
    "other tokens": ([reading(A, "1f"), reading(B, "2e")], {}, NO),
    "tokens that follow from what is compared": (
        [reading(A, "1f"), reading(made("b", over={"seq_length": 50}), "2e")],
        {"vary": ("seq_length",)},
        YES,
    ),
    "an unknown setting that is accepted": ([A, silent(B, "norm_epsilon")], {"accept": {"norm_epsilon": "known"}}, YES),
    "a deviation that is accepted": ([A, ran(B, clip_grad=0)], {"accept": {"clip_grad": "off on both"}}, YES),
    "another key that is accepted": ([A, ran(B, clip_grad=0)], {"accept": {"adam_eps": "something else"}}, NO),
    "a part that no model has": (
        [made("a", over=DENSE), made("b", over={**TP2, **DENSE, "moe_aux_loss_coeff": 0.0, "q_lora_rank": None})],
        {},
        YES,
    ),
    "a part that a model has": ([A, made("b", over={**TP2, "moe_aux_loss_coeff": 0.0})], {}, NO),
    "saved at the end": ([NEVER_SAVED, made("b", over={**TP2, "save_interval": 12})], {}, YES),
    "saved after the end": ([NEVER_SAVED, made("b", over={**TP2, "save_interval": 500})], {}, YES),
    "saved before the end": ([NEVER_SAVED, made("b", over={**TP2, "save_interval": 6})], {}, NO),
    "one group": (SEEDS, {}, "nothing to compare"),
    "no completed run": ([made("a", status="failed")], {}, OPEN),
}


def test_the_word() -> None:
    for case, (records, question, word) in WORDS.items():
        assert (case, audited(*records, **question).verdict.word) == (case, word)
    for name in ("tokenizer_type", "eod_mask_loss", "dataloader_type"):  # nobody can request them
        expect(NO, A, ran(B, **{name: 77}))
        expect(YES, *(replace(record, requested={}) for record in (A, silent(B, name))))
