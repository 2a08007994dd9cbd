"""`baseline=… candidate=… fail_on.regression=2%`: what is a regression, what is none, and what is undecided."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

import compare
from compare.cli import main
from parsers import Record
from tests.compare.made import made, save

Golden = Callable[[str, str], None]
Capture = pytest.CaptureFixture[str]
SCHEMA = json.loads(Path(compare.__file__).with_name("regression.schema.json").read_text(encoding="utf-8"))
OLD, NEW = "primus:v26.4", "primus:v26.5"
GATE = ("runs", f"baseline.image={OLD}", f"candidate.image={NEW}", "fail_on.regression=2%")


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ran(image: str, *seconds: float, name: str = "llama", **known: Any) -> list[Record]:
    """Return repeats of one experiment in `image`, a run for each step time, with the versions in it."""
    facts = {"host": f"node-{image[-1]}", "rocm": "7.2" if image == NEW else "7.1", "torch": "2.9"}
    records = []
    for seed, pace in enumerate(seconds, start=1):
        record = made(f"{name}-{image[-1]}-{seed}", pace, {"seed": seed, **known}, image=image, environment=facts)
        records.append(replace(record, framework_version=image[-4:], image_source="runtime"))
    return records


def judged(capsys: Capture, *more: str, records: list[Record] | None = None) -> tuple[int, Any]:
    """Return exit code and result of the gate, over `records` where they are given, else over what is there."""
    if records is not None:
        shutil.rmtree("runs", ignore_errors=True)
        save(Path("runs"), *records)
    code = main([*GATE, *more, "--json"])
    result = json.loads(capsys.readouterr().out)
    jsonschema.validate(result, SCHEMA)
    return code, result


def lines(result: Any, case: int = 0) -> dict[str, Any]:
    return {line["metric"]: line for line in result["cases"][case]["figures"]}


EVEN, SLOW, WIDE = (2.0, 2.01, 1.99), (2.1, 2.11, 2.09), (2.0, 2.1, 1.9)


def test_a_candidate_that_is_slower_beyond_its_noise_fails(capsys: Capture) -> None:
    code, result = judged(capsys, records=[*ran(OLD, *EVEN), *ran(NEW, *SLOW)])
    assert (code, result["outcome"]) == (1, "regression")
    line = lines(result)["tokens_per_s_per_gpu"]
    assert line["state"] == "regression"
    assert line["difference_percent"] == pytest.approx(100 * (2.0 / 2.1 - 1), abs=0.05)
    assert line["interval_percent"][1] < -2
    assert line["reference_noise_percent"] == pytest.approx(0.5, abs=0.01)
    assert "tokens/s/GPU" in result["reasons"][0]


def test_the_outcome_and_its_reason(capsys: Capture) -> None:
    def expect(old: list[Record], new: list[Record], code: int, outcome: str, reason: str) -> None:
        exit_code, result = judged(capsys, records=[*old, *new])
        assert (exit_code, result["outcome"]) == (code, outcome)
        assert any(re.search(reason, known) for known in result["reasons"] or [""])

    expect(ran(OLD, *EVEN), ran(NEW, 2.005, 2.01, 2.0), 0, "ok", "^$")
    expect(ran(OLD, *EVEN), ran(NEW, 1.5, 1.51, 1.49), 0, "ok", "^$")
    expect(ran(OLD, *WIDE), ran(NEW, 2.05, 2.15, 1.95), 3, "cannot tell", "limit")
    expect(ran(OLD, 2.0, 2.0, 2.0), ran(NEW, 3.0, 3.0, 3.0), 3, "cannot tell", "no spread")
    about = "; about 3 runs a side would decide against the limit of 2 %$"
    expect(ran(OLD, 2.0, 2.01), ran(NEW, 2.0, 2.01), 3, "cannot tell", about)
    never = "not even 1,000 runs a side would decide against the limit"
    expect(ran(OLD, 0.1, 1.0, 10.0), ran(NEW, 0.11, 1.0, 9.0), 3, "cannot tell", never)
    # Another setting beside the image is no other container.
    expect(ran(OLD, *EVEN), ran(NEW, *SLOW, lr=0.1), 3, "cannot tell", "not comparable")
    *done, fourth = ran(NEW, *EVEN, 2.0)
    expect(ran(OLD, *EVEN, 2.0), [*done, replace(fourth, status="running")], 1, "failed run", "killed: its launcher")
    for status in ("failed", "out_of_memory", "diverged", "hung", "killed"):
        died = replace(fourth, status=status, cause="RCCL error", steps=())
        expect(ran(OLD, *EVEN, 2.0), [*done, died], 1, "failed run", f"{status}: RCCL error$")
    for known in ({"provenance": "rehearsed"}, {"provenance": "estimated"}, {"steps": ()}):
        old, new = ([replace(r, **known) for r in ran(image, *EVEN)] for image in (OLD, NEW))
        expect(old, new, 3, "cannot tell", ".")


def test_slower_by_less_than_the_limit_passes_and_is_shown(capsys: Capture) -> None:
    records = [*ran(OLD, 2.0, 2.001, 1.999), *ran(NEW, 2.02, 2.021, 2.019)]
    code, result = judged(capsys, "difference=0.5%", records=records)
    assert (code, lines(result)["tokens_per_s"]["word"]) == (0, "slower")
    assert main([*GATE[:-1], "fail_on.regression=0.5%"]) == 1


def test_too_few_runs_neither_fail_nor_pass(capsys: Capture) -> None:
    for (few, fewer), slower in product(((1, 1), (3, 1), (1, 3), (2, 2)), (1.0, 1.5)):
        old, new = [2.0 + 0.01 * i for i in range(few)], [slower * 2.0 + 0.01 * i for i in range(fewer)]
        records = [*ran(OLD, *old), *ran(NEW, *new)]
        code, result = judged(capsys, "accept.seed=as many as there were", records=records)
        assert (code, result["outcome"], bool(result["reasons"])) == (3, "cannot tell", True)
        line = lines(result)["tokens_per_s"]
        assert line["interval_percent"] is None
        assert line["difference_percent"] == pytest.approx(100 * (1 / slower - 1), abs=1.5)


def test_so_many_runs_would_decide_against_the_limit(capsys: Capture) -> None:
    """Three runs a side show that it is slower, and not whether by 2 %: the number named does, one fewer not."""

    def expected(runs: int) -> tuple[str, str]:
        scale = 0.015 * math.sqrt(3 / (runs * (runs + 1)))  # the same spread however many there are
        paces = [math.exp(scale * (2 * i - runs + 1)) for i in range(runs)]
        records = [*ran(OLD, *(2.0 * pace for pace in paces)), *ran(NEW, *(2.08 * pace for pace in paces))]
        result = lines(judged(capsys, records=records)[1])["tokens_per_s_per_gpu"]
        assert result["word"] == "slower"
        return result["state"], result["reason"]

    state, reason = expected(3)
    named = re.fullmatch(r"Welch, 3 against 3 runs; about (\d+) runs a side would decide .* limit of 2 %", reason)
    assert state == "cannot tell" and named
    needed = int(named[1])
    assert (expected(needed - 1)[0], expected(needed)[0]) == ("cannot tell", "regression")


def test_experiments_are_paired_and_one_without_a_pair_leaves_it_open(capsys: Capture) -> None:
    records = [*ran(OLD, *EVEN), *ran(NEW, *EVEN), *ran(OLD, 4.0, 4.01, 3.99, name="big", seq_length=200)]
    code, result = judged(capsys, records=records)
    assert (code, len(result["cases"])) == (3, 1)
    assert "big" in result["reasons"][0]
    code, result = judged(capsys, records=[*records, *ran(NEW, 4.4, 4.41, 4.39, name="big", seq_length=200)])
    assert (code, [case["experiment"] for case in result["cases"]]) == (1, ["big-4-1", "llama-4-1"])
    assert result["reasons"][0].startswith("big")


def test_versions_that_changed_are_listed_and_places_are_not(capsys: Capture) -> None:
    _, result = judged(capsys, records=[*ran(OLD, *EVEN), *ran(NEW, *EVEN)])
    changes = {change["fact"]: (change["reference"], change["new"]) for change in result["changes"]}
    versions = {"framework_version": (["26.4"], ["26.5"]), "rocm": (["7.1"], ["7.2"])}
    assert changes == {"image": ([OLD], [NEW]), **versions}


def test_sides_may_be_folders_where_nothing_in_the_config_differs(capsys: Capture) -> None:
    for folder, driver, pace in (("before", "570", 2.0), ("after", "580", 2.2)):
        paces = (pace, pace + 0.01, pace - 0.01)
        save(
            Path(folder), *(replace(r, id=f"{folder}-{r.id}", environment={"driver": driver}) for r in ran(OLD, *paces))
        )
    assert main(["baseline=before", "candidate=after", "fail_on.regression=2%", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["changes"] == [{"fact": "driver", "reference": ["570"], "new": ["580"]}]
    save(Path("old"), *(replace(record, environment={}) for record in ran(OLD, *EVEN)))
    same = (replace(record, framework_version="26.4", environment={}, image=OLD) for record in ran(NEW, *EVEN))
    save(Path("new"), *same)
    assert main(["baseline=old", "candidate=new"]) == 0
    assert "nothing that all runs report" in capsys.readouterr().out


SOFTWARE = {"driver": "570", "cuda": "12.8", "nccl": "2.25.1", "cublas": "12.8.4", "torch": "2.9"}
SOFTWARE |= {"transformer_engine": "2.8"}


def test_nothing_changed_is_said_only_where_both_sides_report_all_of_it(capsys: Capture) -> None:
    def told(old: dict[str, Any], new: dict[str, Any]) -> tuple[list[str], list[str], list[str]]:
        for folder, facts in (("old", old), ("new", new)):
            known = {"environment": facts, "platform": "nvidia", "vendor": "nvidia", "framework_version": "1"}
            save(Path(folder), *(replace(r, id=f"{folder}{r.id}", **known) for r in ran(OLD, *EVEN)))
        assert main(["baseline=old", "candidate=new", "--json"]) in (0, 3)
        result = json.loads(capsys.readouterr().out)
        jsonschema.validate(result, SCHEMA)
        main(["baseline=old", "candidate=new"])
        said = capsys.readouterr().out
        assert bool(re.search(r"^ nothing *$", said, re.MULTILINE)) == (
            not result["changes"] and not result["unreported"]
        )
        assert ("nothing that all runs report" in said) == (not result["changes"] and bool(result["unreported"]))
        changes, alike, unknown = ([one["fact"] for one in result[of]] for of in ("changes", "unchanged", "unreported"))
        return changes, alike, unknown

    all_of_it = [*SOFTWARE, "framework_version"]
    assert told(SOFTWARE, SOFTWARE) == ([], all_of_it, [])
    assert told({**SOFTWARE, "nccl": "2.27"}, SOFTWARE) == (["nccl"], [n for n in all_of_it if n != "nccl"], [])
    for silent in SOFTWARE:  # on one side: it may have changed
        changes, alike, unknown = told({n: v for n, v in SOFTWARE.items() if n != silent}, SOFTWARE)
        assert (changes, len(unknown), silent in alike) == ([], 1, False)
    # What two witnesses call differently is not known to be the same; what both sides have of one of them is.
    image = {**{n: v for n, v in SOFTWARE.items() if n != "nccl"}, "NCCL_VERSION": "2.25.1"}
    assert told(image, SOFTWARE)[::2] == ([], ["NCCL or RCCL"])
    assert told(image, {**SOFTWARE, "NCCL_VERSION": "2.25.0"})[::2] == (["NCCL_VERSION"], [])


def test_an_image_that_nobody_verified_carries_no_gate(capsys: Capture) -> None:
    def expect(source: str | None, code: int, *more: str) -> list[str]:
        records = [*ran(OLD, *EVEN), *(replace(r, image_source=source) for r in ran(NEW, *SLOW))]
        exit_code, result = judged(capsys, *more, records=records)
        assert (exit_code, result["outcome"]) == (code, {1: "regression", 3: "cannot tell"}[code])
        return [reason for reason in result["reasons"] if "not verified" in reason]

    assert expect("runtime", 1) == expect("environment", 1) == []
    for source in ("given", None):  # None: a record of an earlier version
        (reason,) = expect(source, 3)
        assert reason.startswith(f"the image {NEW} of candidate.image={NEW}".replace("candidate.", ""))
    assert expect("given", 1, "accept.image=started by hand in it") == []
    moved = [replace(r, image=OLD, image_digest="sha256:2", framework_version="26.4") for r in ran(NEW, *EVEN)]
    save(Path("was"), *(replace(r, image_digest="sha256:1") for r in ran(OLD, *EVEN)))
    save(Path("is"), *moved)
    assert main(["baseline=was", "candidate=is", "--json"]) == 0
    changes = {one["fact"]: one["new"] for one in json.loads(capsys.readouterr().out)["changes"]}
    assert changes["image_digest"] == ["sha256:2"] and "image" not in changes, "a tag that moved is another image"
    given = [replace(r, image_source="given") for r in (*ran(OLD, *EVEN), *ran(NEW, *EVEN))]
    save(Path("one"), *(replace(r, image="same", framework_version="1", environment={}) for r in given[:3]))
    save(Path("two"), *(replace(r, image="same", framework_version="1", environment={}) for r in given[3:]))
    assert main(["baseline=one", "candidate=two"]) == 0, "both in one image: it is not what the gate is about"


def test_other_figures_can_be_limited_too(capsys: Capture) -> None:
    records = [*ran(OLD, *EVEN), *ran(NEW, *SLOW)]
    code, result = judged(capsys, "fail_on.step_time_mean_s=4%", records=records)
    states = {metric: line["state"] for metric, line in lines(result).items() if line["state"]}
    assert states == {"tokens_per_s_per_gpu": "regression", "step_time_mean_s": "cannot tell"}
    assert (code, result["limits"]) == (1, {"tokens_per_s_per_gpu": 0.02, "step_time_mean_s": 0.04})
    _, result = judged(capsys, "fail_on.energy_j_per_token=4%")
    assert lines(result)["energy_j_per_token"]["state"] == "cannot tell"


def test_the_table_and_the_markdown(capsys: Capture, golden: Golden) -> None:
    save(Path("runs"), *ran(OLD, *EVEN), *ran(NEW, *SLOW))
    assert main([*GATE]) == 1
    golden("compare/regression.txt", capsys.readouterr().out)
    assert main([*GATE, "--markdown", "-o", "out"]) == 1
    markdown = capsys.readouterr().out
    golden("compare/regression.md", markdown)
    assert Path("out/regression.md").read_text(encoding="utf-8") == markdown
    assert json.loads(Path("out/regression.json").read_text(encoding="utf-8"))["outcome"] == "regression"


def test_hostile_text_cannot_leave_its_cell(capsys: Capture) -> None:
    bad = "<img src=x onerror=alert(1)> | a `b` [c](d)\n# e"
    save(Path("runs"), *ran(OLD, *EVEN), *(replace(record, environment={"torch": bad}) for record in ran(NEW, *EVEN)))
    assert main([*GATE, "--markdown"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "onerror" in line)
    assert ("<img" in line, "[c](d)" in line, line.count("|") - line.count("\\|")) == (False, False, 4)


def test_bad_input(capsys: Capture) -> None:
    save(Path("runs"), *ran(OLD, 2.0, 2.01), *ran(NEW, 2.0, 2.01))
    old, new = f"baseline.image={OLD}", f"candidate.image={NEW}"
    for arguments, expected in (
        (["candidate=x"], "needs a baseline"),
        (["baseline=x", "candidate=x"], "another one than itself"),
        (["candidate="], "need a candidate"),
        (["--markdown"], "need a candidate"),
        ([old, "candidate.image=v9"], "fits none of the runs"),
        ([old, "candidate=nobody"], "matches no runs"),
        ([old, f"candidate.image={OLD} "], "fits none of the runs"),
        ([f"baseline.imagee={OLD}", new], "image"),
        ([old, "candidate=runs"], "is the same run as"),
        (["fail_on.speed=2%"], "no such figure"),
        ([old, new, "fail_on.regression=200%"], "below 100 %"),
        ([old, new, "fail_on.regression=x"], "below 100 %"),
        ([old, new, "fail_on.loss_last=2%"], "no such figure"),
    ):
        assert main(["runs", *arguments]) == 2
        assert expected in capsys.readouterr().err
