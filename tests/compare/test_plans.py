"""Test what is said of plans, and of two vendors' recipes: what a method may change, and what it may not."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from compare import Run
from compare.cli import main as compare
from compare.report.files import files
from conf.errors import InputError
from parsers import Declaration, Record, find_runs, write
from parsers.planned import as_planned
from parsers.record import Departure, RunRecipe
from tensorprimat.launch import main as launch
from tests.compare.made import TP2, compared, made, ran

BEST = "max_performance"
ON_AMD: dict[str, Any] = {"platform": "amd", "vendor": "amd", "hardware": "mi300x", "framework": "primus"}
ON_NVIDIA: dict[str, Any] = {
    "platform": "nvidia",
    "vendor": "nvidia",
    "hardware": "h100",
    "framework": "megatron_bridge",
}


def recipe(name: str, framework: str, *departures: Departure) -> RunRecipe:
    return RunRecipe(name, framework, "1.0", f"somebody/{framework}@abc recipes.py:3", departures)


def best(name: str, over: dict[str, Any] | None = None, amd: bool = False, **known: Any) -> Record:
    """A run by its vendor's recipe."""
    where = ON_AMD if amd else ON_NVIDIA
    of = {"method": BEST, "batch": "identical", "recipe": recipe(f"recipe_{name}", where["framework"]), "variables": {}}
    return made(name, over={**(over or {}), "layout": BEST}, **{**where, **of, **known})


def plan(path: Path, *words: str, capsys: pytest.CaptureFixture[str]) -> Path:
    assert launch([*words, "model=llama_tiny", "dry_run=true", "--json"]) == 0
    path.write_text(capsys.readouterr().out)
    return path


def row(records: tuple[Record, ...], name: str, **question: Any) -> tuple[str, str]:
    found = next(row for row in compared(*records, **question).audit.rows if row.setting == name)
    return found.state, found.reason


def test_each_vendors_recipe_is_no_difference_and_is_named() -> None:
    pair = best("a", variables={"NCCL_NVLS_ENABLE": "1"}), best("b", {**TP2, "recompute_granularity": "full"}, amd=True)
    result = compared(*pair)
    assert result.audit.verdict.word == "comparable"
    states = {row.setting: row.state for row in result.audit.rows}
    for name in (*TP2, "recompute_granularity", "recipe", "environment.NCCL_NVLS_ENABLE"):
        assert states[name] == "varied", name
    assert states["method"] == "identical"
    ours = "NVIDIA's recipe recipe_a of Megatron-Bridge 1.0; AMD's recipe recipe_b of Primus 1.0"
    assert result.conditions[0] == f"each vendor's own recipe ({ours}); the work is the same"
    assert "AMD's recipe of Primus 1.0" in result.title


def test_all_in_which_a_run_departs_from_its_recipe_is_shown() -> None:
    apart = Departure("train.train_iters", 50, 500, "training.train_iters")
    pair = best("a", recipe=recipe("r", "megatron_bridge", apart)), best("b", TP2, amd=True)
    out = {name: str(content) for name, content in files(compared(*pair), []).items()}
    text = html.unescape(" ".join(re.sub("<[^>]*>", " ", out["compare.html"]).split()))
    assert "NVIDIA's recipe r of Megatron-Bridge 1.0, 1 of its settings otherwise" in text
    assert "train.train_iters 50 500 training.train_iters" in text
    assert json.loads(out["compare.json"])["groups"][0]["recipe"]["departures"][0]["why"] == "training.train_iters"


def test_a_recipe_excuses_nothing_of_the_work() -> None:
    for name in ("lr", "seq_length", "global_batch_size", "num_layers", "accumulate_allreduce_grads_in_fp32"):
        result = compared(best("a"), best("b", {name: 7}, amd=True))
        assert result.audit.verdict.word == "not comparable", name
        assert result.standing == "side by side"


def test_what_a_recipe_changes_of_the_work_is_declared_and_named_with_its_rank() -> None:
    reduced = {"accumulate_allreduce_grads_in_fp32": False}
    declared = (Declaration(*next(iter(reduced.items())), "changes numerics, by the vendor's recipe recipe_b"),)
    result = compared(best("a"), best("b", reduced, amd=True, declared=declared))
    assert (result.audit.verdict.word, result.standing) == ("comparable", "conditional")
    named = next(text for text in result.conditions if "accumulate" in text)
    assert named.startswith("declared, or it would break the comparison: ") and "changes numerics" in named
    assert result.conditions[0].endswith("; the work is the same but for what is declared")
    batch = (Declaration("global_batch_size", 16, "batch=vendor: recipe_b"),)
    result = compared(best("a"), best("b", {"global_batch_size": 16}, amd=True, declared=batch))
    assert result.audit.verdict.word == "comparable"
    assert any("global_batch_size" in text and "batch=vendor" in text for text in result.conditions)


def test_what_nobody_requests_is_named_where_a_recipe_changes_it() -> None:
    pair = ran(best("a"), exp_avg_dtype="torch.float32"), ran(best("b", amd=True), exp_avg_dtype="fp32")
    assert row(pair, "exp_avg_dtype") == ("identical", "the same by its meaning")
    pair = pair[0], ran(best("b", amd=True), exp_avg_dtype="bf16")
    state, reason = row(pair, "exp_avg_dtype")
    assert state == "declared" and "changes numerics, by the vendor's recipe recipe_b" in reason
    identical = [replace(one, method="identical", recipe=None) for one in pair]
    assert row((identical[0], identical[1]), "exp_avg_dtype")[0] == "unexplained"


def test_an_option_of_ones_own_is_declared() -> None:
    typed = (Declaration("model.cuda_graph_impl", "none", "framework.options"),)
    same: dict[str, Any] = {"recipe": recipe("r", "megatron_bridge")}
    pair = (
        ran(best("a", **same), cuda_graph_impl="local"),
        ran(best("b", **same, declared=typed), cuda_graph_impl="none"),
    )
    assert row(pair, "cuda_graph_impl", vary=("image",))[0] == "declared"
    assert [group.label for group in compared(*pair).groups] == ["other", "model.cuda_graph_impl=none"]
    silent = pair[0], replace(pair[1], requested={**pair[1].requested, **TP2}, declared=())
    assert row(silent, "cuda_graph_impl", vary=("image",))[0] == "unexplained"


def test_methods_are_compared_only_where_that_is_the_question() -> None:
    one, other = made("a", method="identical", **ON_NVIDIA), best("b", TP2, amd=True)
    result = compared(one, other)
    assert (result.audit.verdict.word, result.standing) == ("not comparable", "side by side")
    assert result.audit.verdict.texts[0].startswith("method: ") and "vary=method" in result.audit.verdict.texts[0]
    here = best("b", TP2, recipe=recipe("r", "megatron_bridge"))
    assert compared(one, here).audit.verdict.word == "not comparable"
    assert compared(one, here, vary=("method",)).audit.verdict.word == "comparable"
    assert compared(one, replace(other, requested=one.requested), vary=("platform", "method")).audit.verdict.word


def test_a_variable_that_a_user_sets_is_named() -> None:
    variables = {"NCCL_DEBUG": "INFO"}
    known: dict[str, Any] = {"method": "identical", **ON_NVIDIA}
    typed = (Declaration("environment.NCCL_DEBUG", "INFO", "as requested"),)
    silent = made("a", variables={}, **known)
    pair = silent, made("b", over=TP2, variables=variables, declared=typed, **known)
    assert row(pair, "environment.NCCL_DEBUG") == ("declared", "TP2: as requested")
    tuned = silent, made("b", over=TP2, variables=variables, **known)
    assert row(tuned, "environment.NCCL_DEBUG")[0] == "varied", "chosen by the layout"
    repeated = silent, made("b", variables=variables, **known)
    assert row(repeated, "environment.NCCL_DEBUG", vary=("image",))[0] == "unexplained"
    older = silent, made("b", over=TP2, **known)
    assert compared(*older).audit.verdict.word == "comparable"


@given(st.dictionaries(st.sampled_from(["lr", "seq_length", "fp8", "num_layers"]), st.integers(1, 9)), st.booleans())
def test_a_plan_is_comparable_with_itself(over: dict[str, Any], by_recipe: bool) -> None:
    one = as_planned(best("a", over) if by_recipe else made("a", over=over))
    result = compared(one, one)
    assert (result.audit.verdict.word, result.audit.among, len(result.groups)) == ("comparable", "planned", 2)
    assert not result.run_figures and not result.ratios


def test_plans_are_audited_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nvidia, amd, longer = (
        str(plan(tmp_path / f"{i}.json", *words, "platform=cpu", "gpus_per_node=2", capsys=capsys))
        for i, words in enumerate(((), ("layout=tp2",), ("layout=tp2", "training.seq_length=64")))
    )
    assert compare([nvidia, amd]) == 0
    text = capsys.readouterr().out
    assert "by the request: nothing ran" in text and "What is planned does the same work" in text
    assert compare([nvidia, longer]) == 3
    text = " ".join(capsys.readouterr().out.split())
    assert "seq_length" in text and "What is planned cannot be compared as it is" in text
    assert "launch.py model=llama_tiny" in text and "dry_run=true --json" in text
    assert compare([nvidia, amd, "--json", "-o", str(tmp_path / "out")]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["planned"] and content["groups"][0]["method"] == "identical" and not content["ratios"]
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "does the same work" in page and "Planned, and not started" in page
    assert compare([nvidia, nvidia]) == 0
    assert compare([nvidia]) == 3


def test_plans_of_runs_and_several_in_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several = plan(tmp_path / "plans.json", "-m", "layout=data_parallel,tp2", "gpus_per_node=2", capsys=capsys)
    first, second = find_runs([str(several)])
    assert [run.record.requested["tensor_model_parallel_size"] for run in (first, second)] == [1, 2]
    write(made("a", method="identical"), tmp_path / "run")
    (tmp_path / "run" / "plan.json").write_text('{"argv": [], "files": {}}')
    (of_run,) = find_runs([str(tmp_path / "run" / "plan.json")])
    assert (of_run.record.provenance, of_run.record.setting("lr"), of_run.record.method) == (
        "planned",
        0.003,
        "identical",
    )
    assert not of_run.record.steps and "layout" not in of_run.record.effective


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read as a plan"),
        ("[]", "is not a plan"),
        ('{"x": 1}', "is not a plan"),
        ('[{"experiment": {}, "plan": {}}]', "is a plan of an older version"),
        ('{"argv": [], "files": {}}', "there is no run.json beside it"),
        ('[{"record": {"schema_version": 99}}]', "schema version not known here"),
        ('[{"record": {"schema_version": 2}}]', "missing required field"),
    ],
)
def test_what_is_no_plan_is_refused_with_the_command_that_prints_one(text: str, says: str, tmp_path: Path) -> None:
    (path := tmp_path / "plan.json").write_text(text)
    with pytest.raises(InputError) as refused:
        find_runs([str(path)])
    assert says in str(refused.value) and str(path) in str(refused.value)


def test_a_plan_does_not_count_beside_what_was_measured() -> None:
    result = compared(made("a"), as_planned(made("b", over=TP2)))
    assert result.audit.verdict.word == "cannot tell"
    assert "compared with other plans alone" in result.audit.verdict.texts[0]


def test_declared_values_are_what_would_run() -> None:
    record = as_planned(made("a", declared=(Declaration("lr", 0.5, "why"), Declaration("environment.X", "1", "why"))))
    assert record.setting("lr") == 0.5 and "environment.X" not in record.effective
    assert as_planned(ran(made("a"), lr=9)).setting("lr") == 0.003, "of a run that is planned again the request counts"
    assert Run("x", record).record.status == "unknown"
