"""Test what is said of the stacks' own configuration objects, and of code that is not what it was named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import StringIO
from typing import Any, get_args

import jsonschema
import pytest
from msgspec.structs import replace

from compare.comparison import to_json
from compare.objects import Cause, FieldRow, cause_of, table
from compare.report.files import html, markdown
from compare.report.page import report, summary
from compare.report.terminal import print_report
from parsers import Record
from parsers.read_back import Object, Process, ReadBack
from parsers.storage import dumps
from tests.compare.made import SCHEMA, TP2, compared, made, read_back, toy

DEFAULTS = {"rotary_percent": 1.0, "fp8": None, "fp8_recipe": "delayed", "muon_momentum": 0.95, "new_switch": False}


def built(name: str, fields: Mapping[str, Any], over: Mapping[str, Any] | None = None, **known: Any) -> Record:
    """Return a run whose TransformerConfig had these fields."""
    objects = {"TransformerConfig": Object(kind="a.Config", fields=fields, defaults=DEFAULTS)}
    return replace(made(name, over=over), read_back=ReadBack(objects=objects, process=Process(**known)))


def rows(*fields: Mapping[str, Any]) -> dict[str, FieldRow]:
    runs = [built(f"r{n}", of, TP2 if n else {}) for n, of in enumerate(fields)]
    return {row.field: row for row in compared(*runs).audit.objects}


def test_what_is_alike_is_not_shown_and_what_differs_is_with_the_part_that_it_can_change() -> None:
    alike = {"hidden_size": 64, "fp8": None, "layers": [1, 2]}
    assert rows(alike, {**alike, "hidden_size": 64.0}) == {}
    found = rows({**alike, "rotary_percent": 1.0}, {**alike, "rotary_percent": 0.5})
    assert [(r.field, r.cause, r.weight) for r in found.values()] == [("rotary_percent", "forward", "differs")]
    assert found["rotary_percent"].at_default == (next(iter(found["rotary_percent"].values)),)
    assert rows({"on": True}, {"on": 1})["on"].weight == "differs", "True is no 1"


def test_true_against_silence_is_shown_unless_it_is_known_what_silence_means() -> None:
    found = rows({"eod_mask_loss": True, "other": True}, {"hidden_size": 1})
    assert {name: found[name].weight for name in ("eod_mask_loss", "other")} == dict.fromkeys(
        ("eod_mask_loss", "other"), "alone"
    )
    assert (found["eod_mask_loss"].cause, None in found["eod_mask_loss"].values.values()) == ("loss", True)
    assert "eod_mask_loss" not in rows({"eod_mask_loss": False}, {"hidden_size": 1})


def test_what_a_newer_class_alone_has_at_its_default_and_what_has_no_effect_come_last() -> None:
    older = {"num_layers": 2, "optimizer": "adam", "fp8": None}
    newer = {**older, "num_layers": 4, "new_switch": False, "fp8_recipe": "tensorwise", "muon_momentum": 0.9}
    found = rows({**older, "fp8_recipe": "delayed"}, newer)
    weights = {"num_layers": "differs", "new_switch": "default", "fp8_recipe": "idle", "muon_momentum": "idle"}
    assert {name: row.weight for name, row in found.items()} == weights
    assert next(iter(found)) == "num_layers"
    on = rows({**older, "fp8": "hybrid", "fp8_recipe": "delayed"}, {**newer, "fp8": "hybrid"})
    assert on["fp8_recipe"].weight == "differs"


def test_a_switch_that_changes_what_a_gpu_computes_decides_and_one_of_speed_does_not() -> None:
    def of(name: str, **switches: Any) -> Record:
        objects = {"Switches": Object(kind="Switches", fields={"allow_tf32": False, "evaluation": None, **switches})}
        return replace(toy(name), framework=name, read_back=read_back(objects=objects))

    decided = compared(of("nemo"), of("primus", allow_tf32=True))
    assert decided.audit.verdict.word == "not comparable"
    assert "Switches.allow_tf32: nemo False; primus True (a GPU computes" in decided.audit.verdict.texts[0]
    accepted = compared(of("nemo"), of("primus", allow_tf32=True), accept={"Switches.allow_tf32": "on purpose"})
    assert accepted.audit.verdict.word == "comparable"
    slower = compared(of("nemo"), of("primus", evaluation=[2, 1]))
    assert slower.audit.verdict.word == "comparable"
    assert "(nemo / primus): evaluation null / [2, 1]" in " ".join(slower.conditions)
    text = StringIO()
    print_report(summary(slower), text)
    assert "switches of the speed alone differ (nemo / primus): evaluation null / [2," in text.getvalue()
    interval = "garbage_collection_interval"
    by_hand = compared(of("nemo", **{interval: None}), of("primus", **{interval: 1}))
    assert f"(nemo / primus): {interval} null / 1" in " ".join(by_hand.conditions)


def test_an_object_that_one_stack_alone_has_is_one_row_and_a_run_that_nobody_read_none() -> None:
    first = built("a", {"hidden_size": 1})
    assert first.read_back is not None
    more = {**first.read_back.objects, "Trainer": Object(kind="b.Trainer", fields={"x": 1, "y": 2})}
    other = replace(built("b", {"hidden_size": 1}, TP2), read_back=ReadBack(objects=more))
    assert [(row.object, row.field) for row in compared(first, other).audit.objects] == [("Trainer", "(all of it)")]
    assert compared(first, made("b", over=TP2)).audit.objects == ()


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        ("GPTDatasetConfig.eod_mask_loss", "loss"),
        ("GPTDatasetConfig.reset_attention_mask", "mask"),
        ("GPTDatasetConfig.random_seed", "data"),
        ("GPTModel.rotary_percent", "forward"),
        ("TransformerConfig.attention_softmax_in_fp32", "forward"),
        ("TransformerConfig.moe_router_force_load_balancing", "forward"),
        ("TransformerConfig.calculate_per_token_loss", "loss"),
        ("TransformerConfig.init_method_std", "first weights"),
        ("TransformerConfig.gradient_accumulation_fusion", "backward"),
        ("DistributedDataParallelConfig.average_in_collective", "gradient reduction"),
        ("DistributedDataParallelConfig.bucket_size", "speed"),
        ("OptimizerConfig.clip_grad", "clipping"),
        ("OptimizerConfig.decoupled_weight_decay", "optimizer"),
        ("OptimizerConfig.decoupled_lr", "schedule"),
        ("OptimizerParamScheduler.end_wd", "schedule"),
        ("ConfigContainer.train.manual_gc_interval", "speed"),
        ("ConfigContainer.logger.timing_log_level", "speed"),
        ("OptimizerConfig.barrier_with_L1_time", "speed"),
        ("ConfigContainer.validation.eval_interval", "speed"),
        ("ConfigContainer.checkpoint.save", "bookkeeping"),
        ("ConfigContainer.nobody_knows_it", "unknown"),
    ],
)
def test_the_part_of_a_step_that_a_field_can_change(place: str, cause: str) -> None:
    owner, _, field = place.partition(".")
    assert cause_of(owner, field) == cause
    assert set(table().causes) <= set(get_args(Cause))


def test_the_report_has_all_of_it_folded_and_escaped() -> None:
    nasty = "</details><script>alert(1)</script>"
    on: dict[str, Any] = {"overlap_grad_reduce": True}
    runs = built("a", {"bucket_size": None, "x": nasty, **on}), built("b", {"bucket_size": 4, "x": "y", **on}, TP2)
    result = compared(*runs)
    jsonschema.validate(json.loads(dumps(to_json(result))), SCHEMA)
    assert [row["field"] for row in to_json(result)["objects"]] == ["x", "bucket_size"]
    content = report(result, "compare")
    assert "<script>alert" not in html(content) + markdown(content) and "&lt;script&gt;alert" in html(content)
    assert "2 fields of the stacks" in html(content)
    assert any("bucket_size" in text for text in result.conditions), "a rehearsal clears a pair for measuring"


def test_buckets_that_nothing_overlaps_are_shown_to_do_nothing() -> None:
    off: dict[str, Any] = {"overlap_grad_reduce": False}
    result = compared(built("a", {"bucket_size": None, **off}), built("b", {"bucket_size": 4, **off}, TP2))
    assert [(row.field, row.weight) for row in result.audit.objects] == [("bucket_size", "idle")]
    assert not any("bucket_size" in text for text in result.conditions)


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("code_uncommitted", {"commits": {"Primus": "v26.5.0-dirty"}}),
        ("code_changed", {"changed": ("megatron-core: megatron/core/optimizer/clip_grads.py",)}),
        ("code_ahead", {"ahead": ("/tmp/patched: megatron.core.utils",)}),
    ],
)
def test_code_that_is_not_what_it_was_named_is_not_comparable_unless_accepted(key: str, known: dict[str, Any]) -> None:
    clean = built("a", {}, commits={"torch": "2.13.0"})
    assert compared(clean, built("b", {}, TP2, commits={"torch": "2.13.0"})).audit.verdict.word == "comparable"
    for runs in ((clean, built("b", {}, TP2, **known)), (built("a", {}, **known), built("b", {}, TP2, **known))):
        verdict = compared(*runs).audit.verdict
        assert verdict.word == "not comparable" and verdict.reasons[0].settings == (key,)
        assert compared(*runs, accept={key: "a hot fix"}).audit.verdict.word == "comparable"
    edited = replace(made("b", over=TP2), environment={**clean.environment, "edited_files": ["primus.yaml"]})
    assert "code_edited" in compared(clean, edited).audit.verdict.reasons[0].settings


def test_versions_and_variables_as_the_ranks_had_them_are_rows() -> None:
    def run(name: str, over: Mapping[str, Any], torch: str, **variables: str) -> Record:
        return built(name, {}, over, commits={"torch": torch}, variables=variables)

    audited = compared(run("a", {}, "2.12.0"), run("b", TP2, "2.13.0")).audit
    assert [reason.settings for reason in audited.verdict.reasons] == [("code.torch",)]
    assert [row.rank for row in audited.rows if row.setting == "code.torch"] == ["shifts"]
    tf32 = compared(run("a", {}, "2.13.0"), run("b", TP2, "2.13.0", NVIDIA_TF32_OVERRIDE="1", NCCL_X="1")).audit
    states = {row.setting: row.state for row in tf32.rows if row.setting.startswith("environment.")}
    assert states == {"environment.NCCL_X": "varied", "environment.NVIDIA_TF32_OVERRIDE": "unexplained"}
    unread = compared(made("a"), run("b", TP2, "2.13.0", NVIDIA_TF32_OVERRIDE="1")).audit
    assert (unread.verdict.word, unread.rows[-1].state) == ("comparable", "unknown"), "nobody looked"
