"""`tprimat estimate`: figures of an experiment, a record beside measured runs, tables in and out, and bad input."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from estimate.cli import main
from estimate.tables import ADDED
from parsers.storage import read
from tests.estimate.test_rows import HEADER, LINE

CASE = ["model=llama31_70b", "hardware=mi300x", "nodes=8"]


def test_an_estimate_says_what_a_step_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CASE, "--explain"]) == 0
    text = capsys.readouterr().out
    for words in ("memory per GPU", "fits", "step time", "MFU", "95 % by the errors of", "roofline", "sensitivity"):
        assert words in text
    assert "an example, not your price" in text


def test_every_figure_has_unit_source_and_interval(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*CASE, "--json", "tokens=15T", "carbon=FRA", "-o", str(tmp_path / "here")]) == 0
    known = json.loads(capsys.readouterr().out)
    step, parts = known["figures"]["step_time_mean_s"], known["step_time_parts_s"]
    assert step["interval"][0] < step["value"] < step["interval"][1]
    assert sum(parts.values()) == pytest.approx(step["value"])
    assert known["bill"]["carbon_t"]["value"] > 0
    assert known["figures"]["power_w_per_gpu"]["source"] == "assumed"
    record = read(tmp_path / "here")
    assert (record.provenance, record.status, len(record.steps)) == ("estimated", "completed", 0)
    assert record.summary["step_time_mean_s"]["value"] == step["value"]


def test_what_does_not_fit_says_what_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["model=llama31_8b", "hardware=a100_40gb"]
    assert main(small) == 0
    out = capsys.readouterr().out
    assert "does not fit" in out
    assert "what fits" in out
    assert main([*small, "--json"]) == 0
    (change,) = json.loads(capsys.readouterr().out)["what_fits"]
    typed, _, _ = change.partition(": ")
    assert main([*small, *typed.split(), "--json"]) == 0
    changed = json.loads(capsys.readouterr().out)
    assert (changed["fits"], changed["what_fits"]) == ("fits", [])


def test_an_estimate_stands_beside_a_measured_run_and_never_in_the_verdict(tmp_path: Path) -> None:
    from compare.cli import main as compare

    assert main([*CASE, "-o", str(tmp_path / "a")]) == 0
    assert main(["model=llama31_70b", "hardware=h100", "nodes=8", "-o", str(tmp_path / "b")]) == 0
    assert compare([str(tmp_path / "a"), str(tmp_path / "b")]) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=llama31_8b", "hardware=h101"], "h101"),
        (["search", "model=llama31_8b", "hardware=h100", "nodes=1", "objective=beauty"], "no such value"),
        (["calibrate", "nowhere", "-o", "x.yaml"], "nowhere"),
        (["calibrate"], "needs a file to write to"),
        (["fit", "nowhere.csv", "-o", "x.yaml"], "nowhere.csv"),
        (["model=llama31_8b", "hardware=unknown", "platform=nvidia"], "no peak of bf16 is known"),
        (["model=llama31_70b", "hardware=h100", "layout.tensor_model_parallel_size=3"], "TP 3"),
        ([*CASE, "price.usd_per_gpu_hour.mi300x=-3"], "not a positive number"),
        ([*CASE, "price.usd_per_gpu_hour.mi300x=1e30"], "the price of mi300x is beyond all that money is"),
        ([*CASE, "price=cheap"], "price"),
        (["FILE.csv"], "is not KEY=VALUE"),
        (["rows", "missing.csv", "-o", "out.csv"], "cannot be read"),
        (["rows"], "needs one table"),
        ([*CASE, "calibrated=missing.yaml"], "missing.yaml: no such file"),
    ],
)
def test_bad_input_is_a_message_and_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_table_comes_back_with_its_columns_and_predictions(tmp_path: Path) -> None:
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    bad, odd = LINE.replace("H100", "=cmd('x')"), LINE.replace("llama3-70b", '"a ""model"", \udcff"')
    source.write_text("\n".join([HEADER, LINE, bad, odd, LINE + ",more", "H100"]), "utf-8", "surrogateescape")
    assert main(["rows", str(source), "-o", str(target)]) == 0
    before = list(csv.reader(io.StringIO(source.read_text("utf-8", "surrogateescape"))))
    after = list(csv.reader(io.StringIO(target.read_text("utf-8", "surrogateescape"))))
    width = len(before[0])
    assert after[0] == [*before[0], *ADDED]
    assert [row[:width] for row in after[:4]] == before[:4]
    good, refused, other, long, short = (dict(zip(after[0], row, strict=False)) for row in after[1:])
    low, step, high = (float(good[f"predicted_step_time_{end}s"]) for end in ("low_", "", "high_"))
    assert low < step < high
    assert high / step == pytest.approx(step / low, rel=1e-4)
    assert 50 < float(good["predicted_memory_gb"]) < 120
    assert 300 < float(good["predicted_tflops_per_gpu"]) < 600
    assert refused["note"].startswith("not predicted: gpu: no facts of a GPU")
    assert refused["predicted_step_time_s"] == ""
    assert float(other["predicted_step_time_s"]) > 0
    assert long["note"] == f"not predicted: {width + 1} cells under {width} columns"
    assert short["note"].startswith("not predicted: no model of ours is called '', and its shape is not stated: layers")


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "\x00\xff", HEADER + ",note\n" + LINE + ",x\n"])
def test_what_is_no_table_of_runs_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.csv"
    source.write_text(text, encoding="utf-8")
    assert main(["rows", str(source), "-o", str(tmp_path / "out.csv")]) == 2
    assert "in.csv: " in capsys.readouterr().err


def test_searches_and_plans_are_wired(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", *CASE]) == 0
    assert "best in throughput" in capsys.readouterr().out
    assert main(["plan", *CASE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_without_a_layout_in_a_table_the_fastest_is_taken_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model=llama31_8b", "hardware=h100", "gpus_per_node=4"]) == 0
    assert "layout: the fastest of" in capsys.readouterr().out


def test_a_run_calibrates_and_the_estimate_comes_nearer(tmp_path: Path) -> None:
    import numpy as np

    from conf import load_experiment
    from estimate.calibrate import calibrate
    from estimate.experiment import columns_of
    from estimate.figures import estimate
    from estimate.fitted import shipped
    from estimate.predict import predict
    from estimate.rows import jobs_of

    jobs = jobs_of([columns_of(load_experiment("platform=amd", *CASE))])
    before = predict(jobs).step_time_s[0]
    learned = calibrate(shipped(), jobs, np.array([before * 1.08])).parameters
    after = estimate(load_experiment("platform=amd", *CASE), learned).figures["step_time_mean_s"].value
    assert after is not None
    assert before < after <= before * 1.08


def test_a_run_of_the_engine_has_the_stack_of_its_estimates() -> None:
    from msgspec.structs import replace

    from conf import load_experiment
    from estimate.experiment import columns_of
    from estimate.of_record import release_of
    from tests.compare.made import made

    estimated = columns_of(load_experiment("platform=amd", "framework=megatron", *CASE))
    assert estimated["stack"] == "megatron"
    for framework, release in {"megatron": None, "nemo": "0.15.3", "torchtitan_of_others": "0.15.3"}.items():
        assert release_of(replace(made("own"), framework=framework, framework_version="0.15.3")) == release


def test_on_a_cpu_nothing_narrow_is_said_without_a_measured_machine() -> None:
    import numpy as np

    from estimate.fitted import shipped
    from estimate.predict import HOST, _expected
    from estimate.step_time import Case

    own = Case("megatron", "cpu", "fp32", "pretraining", 0)
    assert _expected(shipped(), own)[1].half_95 == HOST > 1.5
    gpu = Case("megatron", "mi300x", "bf16", "pretraining", 0)
    assert np.isfinite(_expected(shipped(), gpu)[1].half_95) and _expected(shipped(), gpu)[1].half_95 < HOST


def test_a_written_estimate_stands_beside_a_measured_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from compare.cli import main as compare
    from parsers.storage import write
    from tests.compare.made import made

    write(made("measured"), tmp_path / "measured")
    assert main([*CASE, "-o", str(tmp_path / "estimate")]) == 0
    speed = json.loads((tmp_path / "estimate" / "run.json").read_text("utf-8"))["summary"]["step_time_mean_s"]["value"]
    capsys.readouterr()
    assert compare([str(tmp_path / "measured"), str(tmp_path / "estimate")]) == 3, "one side was not measured"
    text = capsys.readouterr().out
    assert "estimated: does not count" in text
    row = next(line for line in text.splitlines() if line.startswith(" step time, s"))
    assert row.split()[3:] in ([f"{speed:#.4g}", "c", "2.000", "m"], ["2.000", "m", f"{speed:#.4g}", "c"])
