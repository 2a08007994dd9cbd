"""Test what a comparison comes to: standing, conditions, what to run again, and what is compared."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from compare import Question, compare, find_runs
from compare.cli import main
from compare.report.blocks import Code, text_of
from compare.report.page import headline, summary
from compare.statistics import ratio_of
from conf import load_experiment
from conf.errors import InputError
from conf.vocabulary import RANKS, meant, requested, vocabulary
from parsers import Record
from parsers.record import Validation
from tests.compare.made import TP2, compared, made, ran, repeats, save, silent, vendor_run

A, B = made("a"), made("b", over=TP2)
OVERLAP, RATE = made("b", over={**TP2, "overlap_grad_reduce": 2}), made("b", over={**TP2, "lr": 0.004})


def test_every_setting_has_a_rank_and_an_effect_has_its_source() -> None:
    ranks = {name: row.rank for name, row in vocabulary().items()}
    assert set(ranks.values()) == {*RANKS}
    known = dict(num_layers="breaks", seq_length="breaks", lr="breaks", fp8="breaks", data="breaks")
    known |= dict(tensor_model_parallel_size="shifts", recompute_granularity="shifts", attention_backend="shifts")
    assert {name: ranks[name] for name in known} == known and ranks["seed"] == "bookkeeping"
    effects = [row.effect for row in vocabulary().values() if row.effect]
    assert effects and all("arXiv" in effect.source for effect in effects)


MEANT: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "null beside what it is derived as": ({"kv_channels": None}, {"kv_channels": 16}, True),
    "null beside another": ({"kv_channels": None}, {"kv_channels": 32}, False),
    "as many groups as heads": ({"num_query_groups": None}, {"num_query_groups": 8}, True),
    "four times as wide": ({"ffn_hidden_size": None}, {"ffn_hidden_size": 512}, True),
    "four times as wide, were it not gated": (
        {"ffn_hidden_size": None, "swiglu": True},
        {"ffn_hidden_size": 512, "swiglu": True},
        False,
    ),
    "capitals": ({"normalization": "RMSNorm"}, {"normalization": "rms_norm"}, True),
    "another norm": ({"normalization": "RMSNorm"}, {"normalization": "LayerNorm"}, False),
    "another word": ({"params_dtype": "bf16"}, {"params_dtype": "torch.bfloat16"}, True),
    "no clipping": ({"clip_grad": None}, {"clip_grad": 0.0}, True),
    "one chunk is none": ({"virtual_pipeline_model_parallel_size": None}, {}, True),
    "the word none": ({"moe_router_load_balancing_type": None}, {"moe_router_load_balancing_type": "none"}, True),
    "a path is no word": ({"data_path": "/A"}, {"data_path": "/a"}, False),
}


def test_equal_by_meaning_is_equal() -> None:
    shape = {"hidden_size": 128, "num_attention_heads": 8, "swiglu": False}
    for case, (mine, theirs, equal) in MEANT.items():
        pair = (made(name, over={**shape, **over}) for name, over in (("a", mine), ("b", {**theirs, **TP2})))
        result = compared(*pair).audit
        states = {row.state for row in result.rows if row.setting in mine.keys() | theirs.keys() and row.decides}
        assert (case, result.verdict.word == "comparable", states == set()) == (case, equal, equal)
    asked = made("b", over={**TP2, **shape, "kv_channels": None, "normalization": "RMSNorm"})
    assert compared(made("a", over=shape), ran(asked, kv_channels=16, normalization="rmsnorm")).audit.deviations == ()
    assert meant("kv_channels", None, {"hidden_size": 100, "num_attention_heads": 8}) is None


STANDING: dict[str, tuple[tuple[Record, ...], dict[str, str], str, str]] = {
    "alike": ((A, B), {}, "comparable", "ratio"),
    "a switch": ((A, OVERLAP), {}, "not comparable", "conditional"),
    "a rate": ((A, RATE), {}, "not comparable", "side by side"),
    "an unknown switch": ((A, silent(B, "overlap_grad_reduce")), {}, "cannot tell", "conditional"),
    "an unknown rate": ((A, silent(B, "lr")), {}, "cannot tell", "side by side"),
    "a switch, and an unknown rate": ((A, silent(OVERLAP, "lr")), {}, "not comparable", "side by side"),
    "shifts are accepted": ((A, OVERLAP), {"shifts": "each tuned"}, "comparable", "conditional"),
    "breaks are accepted": ((A, RATE), {"breaks": "speed alone"}, "comparable", "conditional"),
    "the other rank is accepted": ((A, RATE), {"shifts": "each tuned"}, "not comparable", "side by side"),
    "a seed": ((A, made("b", over={**TP2, "seed": 2})), {}, "not comparable", "conditional"),
    "did not run as requested": ((A, ran(B, clip_grad=0)), {}, "not comparable", "side by side"),
    "no steps, and all accepted": (
        (A, replace(B, steps=())),
        dict.fromkeys(RANKS, "whatever"),
        "cannot tell",
        "side by side",
    ),
    "one group": ((A,), {}, "nothing to compare", "side by side"),
}


def test_a_ratio_stands_alone_on_conditions_or_not_at_all() -> None:
    for case, (records, accept, word, standing) in STANDING.items():
        result = compared(*records, accept=accept)
        assert (case, result.audit.verdict.word, result.standing) == (case, word, standing)
        assert (case, bool(result.ratios), bool(result.conditions)) == (
            *(case, standing != "side by side"),
            standing == "conditional",
        )
        ranks = [RANKS.index(reason.rank) for reason in result.audit.verdict.reasons]
        assert ranks == sorted(ranks), case


def test_what_a_user_accepted_is_not_said_to_break_nothing() -> None:
    taken, shifted = compared(A, RATE, accept={"breaks": "a try"}), compared(A, OVERLAP, accept={"shifts": "a try"})
    assert summary(taken).aside == "what breaks it was accepted: the ratio stands on that condition"
    assert summary(shifted).aside == "nothing breaks it: the ratio stands, on conditions"


def test_a_conditional_ratio_is_the_ratio() -> None:
    times = [(2.0, 2.02, 2.05), (2.5, 2.52, 2.55)]
    switched = {**TP2, "recompute_granularity": "full"}
    known, open_ = (compared(*repeats("a", times[0]), *repeats("b", times[1], over)) for over in (TP2, switched))
    assert [(r.metric, r.ratio, r.interval) for r in open_.ratios] == [
        (r.metric, r.ratio, r.interval) for r in known.ratios
    ]
    speed = next(r for r in open_.ratios if r.metric == "step_time_mean_s")
    assert speed.interval == pytest.approx(ratio_of(times[1], times[0], "lower").interval, rel=1e-3)
    (condition,) = open_.conditions
    assert condition.startswith("recompute_granularity: DP2 None; TP2 full (") and "arXiv:2205.05198" in condition


def result_of(name: str, hardware: str, seconds: float, **settings: Any) -> Record:
    facts = {"mlperf_submission_benchmark": "llama2_70b_lora", "mlperf_submission_division": "closed", "num_nodes": 1}
    facts |= {"mlperf_time_to_train_s": seconds, "mlperf_run_start_unix_s": 1.7e9}
    blank = made(name, provenance="imported", framework=None, platform=None, requested={}, steps=())
    blank = replace(blank, effective={}, hardware=hardware, environment=facts, dialects=("mllog",))
    return ran(blank, **{"global_batch_size": 8, "weight_decay": 1e-4, **settings})


def test_two_results_of_a_benchmark_did_the_same_work_by_its_rules() -> None:
    pair = (
        result_of("a", "mi300x", 1700.0, seed=1, lr=4e-4),
        result_of("b", "h100", 1770.0, seed=2, lr=5e-4, world_size=8),
    )
    result = compared(*pair)
    assert (result.audit.verdict.word, result.standing) == ("comparable", "conditional")
    ratio = next(r for r in result.ratios if r.metric == "time_to_train_s")
    assert ratio.ratio == pytest.approx(1770 / 1700)
    assert "rules for llama2_70b_lora (closed division, rounds 4.0" in result.conditions[0]
    assert result.conditions[-1] == "AMD Instinct MI300X on 8 GPUs (assumed); NVIDIA H100 80GB HBM3 on 8 GPUs"
    assert result.title == (
        "llama2_70b_lora of MLPerf, 1 node, one run each, 2023-11-14: "
        "AMD Instinct MI300X (8 assumed) against 8 × NVIDIA H100 80GB HBM3"
    )
    assert [one.metric for one in result.decides] == ["time_to_train_s", "cost_to_target"]
    one, two = (
        replace(pair[0], id=org, environment={**pair[0].environment, "mlperf_submission_org": org}) for org in "xy"
    )
    assert [group.label for group in compared(one, two).groups] == ["x", "y"], "another system, and no repeat"
    unsized = compared(pair[0], result_of("b", "h100", 1770.0))  # a node of H100 has 4 or 8
    assert (unsized.audit.verdict.word, unsized.standing) == ("cannot tell", "side by side")
    assert "on how many GPUs NVIDIA H100 80GB HBM3 trained is not reported" in unsized.audit.verdict.texts[0]
    broken = result_of("b", "h100", 1770.0, weight_decay=0.1)  # fixed, and another
    assert compared(pair[0], broken).audit.verdict.texts[0].startswith("weight_decay: ")
    open_ = replace(pair[1], environment={**pair[1].environment, "mlperf_submission_division": "open"})
    assert compared(pair[0], open_).audit.verdict.word == "not comparable"


def test_a_ratio_of_unlike_machines_names_their_gpus_and_of_what_a_stack_counts_its_own_way_there_is_none() -> None:
    points = tuple(Validation(line=n, metrics={"samples_per_s": 2.0}) for n in (1, 2))
    small, large = (
        replace(result_of(name, name, seconds, world_size=gpus), validations=points)
        for name, seconds, gpus in (("mi300x", 1700.0, 8), ("h200", 850.0, 16))
    )
    result = compared(small, large)
    ratios = {item.metric: item for item in result.ratios}
    assert ratios["time_to_train_s"].ratio == pytest.approx(0.5)
    speed = ratios["tokens_per_s_per_gpu"]
    assert speed.ratio is None and "the samples/s that the log states" in speed.reason
    first = text_of(headline(result)[0])
    assert first.startswith(
        "NVIDIA H200 on 16 GPUs has 0.500 times the time to train of AMD Instinct MI300X on 8 GPUs (one run each"
    )
    timed = [
        {**one.environment, "mlperf_samples_to_target": 3200, "mlperf_evaluation_s": 50.0} for one in (small, large)
    ]
    whole = [replace(one, environment=facts) for one, facts in zip((small, large), timed, strict=True)]
    speed = next(item for item in compared(*whole).ratios if item.metric == "tokens_per_s_per_gpu")
    assert speed.ratio == pytest.approx((3200 / 800 / 16) / (3200 / 1650 / 8)), "over the time to train, without 50 s"
    mixed = {item.metric: item for item in compared(small, whole[1]).ratios}
    assert (
        mixed["tokens_per_s"].reason.startswith("tokens/s are not counted alike: ") and mixed["time_to_train_s"].ratio
    )
    alike = compared(small, replace(large, effective={**large.effective, "world_size": small.effective["world_size"]}))
    assert text_of(headline(alike)[0]).startswith("NVIDIA H200 has 0.500 times the time to train of AMD I")


def test_a_title_states_as_a_fact_what_is_one() -> None:
    gpu: dict[str, Any] = dict(over={"world_size": 8}, platform="amd", hardware="mi300x")
    for more, machine in (
        ({"environment": {"device_name": "AMD Instinct MI300X VF"}}, "8 × AMD Instinct MI300X"),
        ({"environment": {}}, "8 × AMD Instinct MI300X (requested)"),
        ({"provenance": "rehearsed"}, "rehearsed for AMD Instinct MI300X"),
        ({"platform": "cpu", "hardware": "cpu"}, "8 processes on a CPU"),
    ):
        assert compared(made("a", **{**gpu, **more})).title.startswith(f"{machine}, ")


def test_the_question_is_what_varies() -> None:
    def keys(*records: Record) -> tuple[str, ...]:
        return compared(*records).audit.varied.keys

    images = [made(name, image=name, framework_version=version) for name, version in (("a", "1"), ("b", "2"))]
    fp8 = made("b", over={"fp8": "hybrid", "fp8_recipe": "delayed"})
    assert keys(*images) == ("image", "framework_version")
    assert keys(made("a", image="a"), made("b", image="b")) == ("image",)
    assert keys(A, fp8) == ("precision",)
    assert keys(A, B) == keys(images[0], replace(fp8, image="b")) == ("layout",)
    assert keys(images[0], replace(images[1], platform="amd")) == ("platform",)


def test_the_shortest_list_of_reruns() -> None:
    """All but the group that most others are like are made like that one."""
    third = made("c", over={"pipeline_model_parallel_size": 2})
    result = compared(A, RATE, third)
    (step,) = result.reruns
    assert (step.group, step.because) == (result.groups[1].label, f"lr as {result.groups[0].label} has it")
    assert "optimizer.lr=0.003" in step.command
    silent_log = replace(silent(B, "clip_grad", "norm_epsilon"), provenance="imported", requested={}, log="b.log")
    (step,) = compared(A, silent_log).reruns
    assert step.command == "python -m parsers b.log --save model=… clip_grad=…"
    (step,) = compared(A, replace(silent_log, given={"hardware": "h100"})).reruns
    assert "b.log --save hardware=h100 model=…" in step.command, "what was given is not lost"
    (step,) = compared(A, replace(silent_log, status="unknown")).reruns
    assert step.command == "python -m parsers b.log --save status=completed" and "you know it" in step.because
    assert compared(A, B).reruns == ()


def test_why_there_is_no_ratio_is_a_sentence_and_its_command_can_be_pasted() -> None:
    """Two logs from elsewhere state little, and no model."""
    settings = dict(seq_length=2048, global_batch_size=64, micro_batch_size=1, train_iters=12, world_size=8)
    blank = replace(A, provenance="imported", requested={}, effective={})
    gpus = (("amd", "mi300x", "primus"), ("nvidia", "h100", "nemo"))
    amd, nvidia = (ran(replace(blank, id=p, platform=p, hardware=h, framework=f), **settings) for p, h, f in gpus)
    apart = replace(nvidia, steps=tuple(replace(s, loss=s.loss and s.loss + 3) for s in nvidia.steps))
    result = compared(amd, apart)
    (sentence,) = headline(result)
    unknown = r"\d+ settings \(model, optimizer, precision, data\) are unknown"
    takes = r"one experiment on all sides, (one clock, )?\d+ unknown settings read back"
    expected = rf"No ratio is given: the losses part from step \d+ on, and {unknown}; a ratio takes, [a-z ]+, {takes}\."
    assert re.fullmatch(expected, text_of(sentence))
    (code,) = (block.text for block in summary(result).sections[0].blocks if isinstance(block, Code))
    lines = [line for line in code.splitlines() if not line.startswith("#")]
    assert lines[0].startswith("MODEL=  # which model was trained no log says") and len(lines) == 3
    for line in lines[1:]:
        words = shlex.split(line.replace("$MODEL", "llama31_8b"))
        assert requested(load_experiment(*words[2:]))["seq_length"] == 2048


def test_a_rerun_is_a_command_that_requests_what_is_wanted(tmp_path: Path) -> None:
    """As the other side has it; all else as it was requested."""
    amd, nvidia = vendor_run("amd", "mi300x", 1), vendor_run("nvidia", "h100", 1)
    over = {"lr": 1e-4, "global_batch_size": 64, "train_iters": 20, "seed": 1}
    amd = ran(replace(amd, requested={**amd.requested, **over}), **over)
    save(tmp_path, amd, nvidia)
    for run in (amd, nvidia):
        (tmp_path / run.name / "experiment.yaml").write_text("model:\n  name: llama31_8b\n")
    (step,) = compare(find_runs([str(tmp_path)]), Question(baseline="NVIDIA H100 80GB HBM3")).reruns
    words = shlex.split(step.command)
    assert words[:2] == ["python", "launch.py"]
    got, wanted = requested(load_experiment(*words[2:])), requested(load_experiment("model=llama31_8b", "platform=amd"))
    assert {name: got[name] for name in over} == {name: nvidia.requested[name] for name in over}
    assert {name for name in got if got[name] != wanted[name]} <= {*over, "lr_decay_iters", "num_micro_batches"}


def test_a_rerun_names_the_users_corpora_their_tokenizer_and_sizes_of_its_model(tmp_path: Path) -> None:
    kinds = {
        "blend": ("0.7 /corpora/wiki 0.3 /corpora/code", "data.blend={/corpora/wiki: 0.7, /corpora/code: 0.3}"),
        "prefix": ("/corpora/wiki", "data=/corpora/wiki"),
    }
    for kind, (path, word) in kinds.items():
        over = {"data": kind, "data_path": path, "split": "90,10,0", "tokenizer_model": "/tok", "vocab_size": 32000}
        sides = (vendor_run("amd", "mi300x", 1), vendor_run("nvidia", "h100", 1))
        amd, nvidia = (replace(side, requested={**side.requested, **over}) for side in sides)
        requests = {**amd.requested, "seq_length": 64, "lr": 1e-4}
        amd = ran(replace(amd, requested=requests, shrunk={"seq_length": {"asked": 4096, "ran": 64}}), lr=1e-4)
        save(tmp_path / kind, amd, nvidia)
        for run in (amd, nvidia):
            (tmp_path / kind / run.name / "experiment.yaml").write_text("model:\n  name: llama31_8b\n")
        question = Question(baseline="NVIDIA H100 80GB HBM3")
        steps = compare(find_runs([str(tmp_path / kind)]), question).reruns
        step = next(one for one in steps if "MI300X" in one.group)
        got = load_experiment(*shlex.split(step.command)[2:])
        wanted = load_experiment("model=llama31_8b", "platform=amd", word)
        assert (got.data.path, got.data.split, got.data.tokenizer) == (wanted.data.path, "90,10,0", "/tok")
        assert (got.model.vocab_size, got.model.num_layers) == (32000, wanted.model.num_layers)
        assert got.training.seq_length == 4096


def test_what_cannot_be_accepted_is_refused() -> None:
    with pytest.raises(InputError, match="breaks, shifts, bookkeeping"):
        compared(A, B, accept={"shift": "x"})


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(words)
    return code, "".join(capsys.readouterr())


def test_bad_input_ends_with_a_sentence_and_a_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(Path("one"), made("a"))
    save(Path("many"), *(made(f"a{seed}", over={"seed": seed}) for seed in range(60)))
    other = {"mlperf_submission_benchmark": "gpt3"}
    save(Path("results"), result_of("a", "h100", 1.0), replace(result_of("b", "h100", 2.0), environment=other))
    save(Path("pair"), made("a"), made("b", over=TP2))
    cases = {
        "RUN: none given": (),
        "empty: no run there": ("empty",),
        "one run, and nothing to compare it with": ("one/a", "one/a"),
        "a: is the same run as": ("one", "pair"),
        "results of different benchmarks": ("results",),
        "a currency that is not known": ("pair", "price.xyz_per_gpu_hour.h100=3"),
        "in two currencies": ("pair", "price.usd_per_gpu_hour.h100=3", "price.eur_per_gpu_hour.mi300x=3"),
    }
    Path("empty").mkdir()
    for sentence, words in cases.items():
        code, text = told(capsys, *words)
        assert (sentence, code, sentence in text) == (sentence, 2, True), text
        assert len(text.splitlines()) <= 4 and "    try: " in text, text
    code, text = told(capsys, "many")
    assert code == 3 and "one group of runs only" in text and text.count("Name the runs of another group") == 1
