"""`tprimat estimate`: figures of an experiment, a record beside measured runs, tables in and out, and bad input."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as changed

from estimate.cli import main
from estimate.fitted import shipped, write
from estimate.tables import ADDED
from metrics.quantity import shown
from parsers.storage import read
from tests.estimate.test_rows import HEADER, LINE

SHARED = Path(__file__).parents[3] / "shared" / "records"
CASE = ["model=llama31_70b", "hardware=mi300x", "nodes=8"]


def own_run(folder: Path, seconds: float = 2.0, over: dict[str, Any] | None = None, **known: Any) -> str:
    """Write a run on a CPU of a dense model of one layer, and return its folder."""
    from parsers.storage import write
    from tests.compare.made import made

    dense = {"num_experts": None, "mtp_num_layers": None, "multi_latent_attention": False, "swiglu": True}
    write(made("own", seconds, over={**dense, **(over or {})}, **known), folder)
    return str(folder)


def test_an_estimate_says_what_a_step_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CASE, "--explain"]) == 0
    text = capsys.readouterr().out
    for words in (
        "memory per GPU",
        "fits",
        "step time",
        "MFU",
        "95 % interval by the errors of",
        "roofline",
        "sensitivity",
    ):
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


def test_energy_of_a_token_is_one_figure_in_estimate_and_compare(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its bill added 25 % for hosts, which no other command does, and said so in one of three places."""
    from compare.cli import main as compare

    assert main([*CASE, "--json", "-o", str(tmp_path)]) == 0
    known = json.loads(capsys.readouterr().out)
    own, billed = (known[part]["energy_j_per_token"] for part in ("figures", "bill"))
    assert compare([str(tmp_path), "--json"]) == 3
    compared = json.loads(capsys.readouterr().out)["groups"][0]["figures"]
    assert own["value"] == pytest.approx(billed["value"]) and own == compared["energy_j_per_token"]
    assert compared["training_energy_kwh"]["value"] == pytest.approx(known["bill"]["energy_kwh"]["value"])
    assert billed["note"].startswith("GPUs alone, PUE 1; TDP of mi300x")
    left = "energy and CO2 are without hosts and network (host_share=25%) and the building (pue=1.25)"
    assert known["notes"] == [left]
    assert main([*CASE, "host_share=25%", "--json"]) == 0
    billed = json.loads(capsys.readouterr().out)["bill"]["energy_j_per_token"]
    assert billed["value"] == pytest.approx(1.25 * own["value"]) and billed["note"].startswith("hosts 25 % on top")
    for name in ("search", "plan"):
        assert main([name, *CASE]) == 0
        assert left in capsys.readouterr().out


def test_no_interval_goes_beyond_the_peak_and_both_are_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The end of 95 % was 101 % of the peak."""
    wide = {
        distance: {name: changed(one, half_95=10 * one.half_95) for name, one in classes.items()}
        for distance, classes in shipped().errors.items()
    }
    write(tmp_path / "wide.yaml", changed(shipped(), errors=wide))
    case = ["model=llama31_8b", "hardware=a100", f"calibrated={tmp_path / 'wide.yaml'}"]
    assert main([*case, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures["mfu_percent"]["interval"][1] == pytest.approx(100)
    for name in ("step_time_mean_s", "tokens_per_s_per_gpu", "mfu_percent"):
        (low, high), (nearer, less), value = (figures[name][key] for key in ("interval", "interval_80", "value"))
        assert low < nearer < value < less < high
    assert main(case) == 0
    low, high = (shown(end, 3) for end in figures["step_time_mean_s"]["interval_80"])
    assert f"; with 80 %: {low} to {high} s" in capsys.readouterr().out
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text(f"{HEADER}\n{LINE.replace('bf16', 'fp32')}\n", encoding="utf-8")
    assert main(["rows", str(source), "-o", str(target)]) == 0
    (done,) = csv.DictReader(target.open(encoding="utf-8"))
    reached = float(done["predicted_tflops_per_gpu"]) * float(done["predicted_step_time_s"])
    assert reached / float(done["predicted_step_time_low_s"]) <= 67 * 1.0001


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


def test_a_prediction_has_its_interval_and_memory_in_the_table_of_compare(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from compare.cli import main as compare

    assert main([*CASE, "--json", "-o", str(tmp_path)]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert compare([str(tmp_path)]) == 3
    text = capsys.readouterr().out
    for name in ("step_time_mean_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu_percent"):
        low, high = figures[name]["interval"]
        assert f"{shown(low, 3)} to {shown(high, 3)} predicted" in text, name
    assert "predicted: the ends of a prediction's own 95 % interval" in " ".join(text.split())
    lines = {line[: line.index("  ")].strip(): line.split()[-2:] for line in text.splitlines() if "  " in line[1:]}
    room = figures["memory_headroom_bytes"]
    assert room["value"] + figures["peak_memory_device_bytes"]["value"] == pytest.approx(191.98 * 2**30)
    assert lines["headroom of device memory, GB (device)"] == [shown(room["value"] / 1e9), "a"]
    assert lines["peak memory, GB (allocated)"] == [shown(figures["peak_memory_bytes"]["value"] / 1e9), "c"]
    assert compare([str(tmp_path), "--json"]) == 3
    compared = json.loads(capsys.readouterr().out)["groups"][0]["figures"]
    for name in ("step_time_mean_s", "tokens_per_s", "mfu_percent"):
        assert [compared[name][key] for key in ("interval", "interval_80")] == [
            pytest.approx(figures[name][key]) for key in ("interval", "interval_80")
        ]


def test_an_estimate_replaces_no_record_but_an_estimate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from parsers.storage import write
    from tests.compare.made import made

    here = tmp_path / "run"
    for provenance in ("measured", "rehearsed", "imported"):
        run = made("r", provenance=provenance)
        write(run, here)
        assert main([*CASE, "-o", str(here)]) == 2
        error = capsys.readouterr().err
        assert f"found: {provenance}, completed: {run.id}" in error and f"try: another directory: -o {here}-" in error
        assert (read(here).provenance, len(read(here).steps)) == (provenance, len(run.steps))
        assert not (here / "estimate.html").exists()
    again = ["-o", str(tmp_path / "estimated")]
    assert main([*CASE, *again]) == 0
    assert main(["model=llama31_8b", "hardware=h100", *again]) == 0
    assert read(tmp_path / "estimated").hardware == "h100"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=llama31_8b", "hardware=h101"], "h101"),
        (["search", "model=llama31_8b", "hardware=h100", "nodes=1", "objective=beauty"], "no such value"),
        (["calibrate", "nowhere", "-o", "x.yaml"], "nowhere"),
        (["calibrate"], "needs a file to write to"),
        (["fit", "nowhere.csv", "-o", "x.yaml"], "nowhere.csv"),
        (["calibrate", "nowhere", "-o", "sweep.csv"], "sweep.csv: is not named as a file of parameters"),
        (["fit", "nowhere.csv", "-o", "sweep.csv"], "try: -o sweep.yaml"),
        (["model=llama31_8b", "hardware=unknown", "platform=nvidia"], "no peak of bf16 is known"),
        (["model=llama31_70b", "hardware=h100", "layout.tensor_model_parallel_size=3"], "TP 3"),
        ([*CASE, "price.usd_per_gpu_hour.mi300x=-3"], "not a positive number"),
        ([*CASE, "price.usd_per_gpu_hour.mi300x=1e30"], "the price of mi300x is beyond all that money is"),
        ([*CASE, "price=cheap"], "price"),
        ([*CASE, "price.usd_per_gpu_hour.mi300x=nan"], "try: price.usd_per_gpu_hour.mi300x=3.10"),
        ([*CASE, "price.usd_per_gpu_hour.mi300x=1e300"], "try: price.usd_per_gpu_hour.mi300x=3.10"),
        ([*CASE, "capex.usd_per_gpu.mi300x=-4"], "not a positive number of USD/gpu\n"),
        ([*CASE, "carbon=-4"], "try: carbon=FRA"),
        ([*CASE, "price=none"], "allowed: crusoe, lambda, nebius, oracle\n"),
        (["FILE.csv"], "is not KEY=VALUE"),
        (["model=llama31_8b", "hardware=a100", "precision=fp32"], "TransformerEngine multiplies fp32 in TF32"),
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "llama31_70b"], "llama31_70b: is not KEY=VALUE"),
        (["plan", "llama31_70b", "hardware=h100"], "llama31_70b: is not KEY=VALUE"),
        (["long_context", "llama31_70b"], "llama31_70b: is not KEY=VALUE"),
        (["long_context", "layout=cp16"], "compares two of its own"),
        (["long_context", "nodes=1", "gpus_per_node=1"], "one GPU has nothing to split a sequence over"),
        (["long_context", "nodes=3"], "TP8 PP3: llama31_8b has 16 layers, which PP 3 does not divide"),
        (["long_context", "nodes=3"], "CP24: must divide by 2 × CP 24 = 48"),
        (["search", *CASE, "most_day=3"], "did you mean most_days?"),
        (["search", *CASE, "nodes=125", "-o", "o.json"], "is not named as a page"),
        (["search", "model=llama31_70b", "hardware=h100", "nodes=125"], "training.global_batch_size=125"),
        (["search", *CASE, "training.recompute_method=block"], "a search recomputes every layer or none"),
        (["plan", *CASE, "tokens=1T", "most_days=1"], "at least "),
    ],
)
def test_bad_input_of_the_commands_behind_it_is_a_message_and_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", [["rows", "a.csv"], ["fit"], ["calibrate", "runs"], ["search", *CASE]])
def test_a_file_is_written_to_a_folder_that_is_there(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([words[0], "--help"]) == 0
    assert "-o FILE" in capsys.readouterr().out
    assert main([*words, "-o", str(tmp_path / "new" / "file")]) == 2
    error = capsys.readouterr().err
    assert "-o: is a file in a folder that is not there" in error
    assert str(tmp_path / "new") in error
    assert not (tmp_path / "new").exists()
    assert main([*words, "-o"]) == 2
    assert "-o: needs a file" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["plan"], ["search"]])
def test_a_price_of_another_gpu_is_said_to_be_none_of_this(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *CASE, "price.usd_per_gpu_hour.h100=3"]) == 0
    assert "price: given for h100; none for mi300x, so that its cost is unknown" in capsys.readouterr().out
    assert main([*command, *CASE, "price.usd_per_gpu_hour.mi300x=3", "--json"]) == 0
    assert "whose cost is unknown" not in capsys.readouterr().out


@pytest.mark.parametrize("text", ["just text", "[1, 2", "source: x", "\N{SNOWMAN}"])
@pytest.mark.parametrize("key", ["calibrated", "machine"])
def test_a_file_that_is_none_of_ours_says_which_command_writes_one(
    key: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(text, encoding="utf-16" if text == "\N{SNOWMAN}" else "utf-8")
    assert main([*CASE, f"{key}={file}"]) == 2
    by, error = {"calibrated": "estimate calibrate", "machine": "measure"}[key], capsys.readouterr().err
    assert error.startswith(f"{file}: is not what `{by}` writes, or a part of it\n    found: ")
    assert "try: write it again" in error and "Error" not in error


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (("-5", "2.0", "inf"), ["in.csv:2: the step time is none", "found: -5", "in.csv:4: ", "found: inf", "try: "]),
        (("nan", "", "2.0"), ["line 2: step time unknown; line 3: step time unknown"]),
    ],
)
def test_a_fit_names_the_step_times_that_are_none(
    seconds: tuple[str, ...], says: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.csv"
    source.write_text("\n".join([f"{HEADER},step_time_s", *(f"{LINE},{each}" for each in seconds)]), encoding="utf-8")
    assert main(["fit", str(source), "-o", str(tmp_path / "own.yaml")]) == 2
    error = capsys.readouterr().err
    assert all(words in error for words in says), error


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
    assert "no table has a layout for this case; layout searched: number 1 in" in capsys.readouterr().out


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


def test_runs_on_cpus_and_on_gpus_are_not_learned_from_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"device_name": "NVIDIA H100 80GB HBM3"}
    runs = [own_run(tmp_path / "cpu", 0.02), own_run(tmp_path / "gpu", platform="nvidia", environment=names)]
    file = str(tmp_path / "own.yaml")
    assert main(["calibrate", *runs, "-o", file]) == 2
    assert "learns from runs on CPUs or on GPUs, a file of each\n    found: cpu, h100\n" in capsys.readouterr().err
    assert main(["calibrate", *runs, "platform=cpu", "-o", file]) == 0


def test_a_run_that_contradicts_is_named_by_its_path_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = own_run(tmp_path / "slow", 1e5), tmp_path / "own.yaml"
    assert main(["calibrate", run, "-o", str(file)]) == 1
    out = capsys.readouterr().out
    assert f"warning: {run} was not learned from: 1e+05 s a step" in out
    assert f"nothing was learned, {file} not written" in out and not file.exists()
    assert main(["calibrate", run, "-o", str(file), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["file"] is None


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ({"status": "failed"}, ["it is measured and failed", "imported by `parse`, and completed", "status=completed"]),
        ({"provenance": "rehearsed"}, ["it is rehearsed and completed", "allowed", "provenance=measured"]),
        (
            {"over": dict.fromkeys(("num_layers", "seq_length", "world_size"))},
            ["not known: num_layers, seq_length, world_size", "model=llama31_8b seq_length=N world_size=N -o DIR"],
        ),
        ({"over": {"tensor_model_parallel_size": 3}}, ["TP 3 × PP 1 × CP 1 does not divide", "sizes of what ran"]),
        ({"over": {"micro_batch_size": 3}}, ["micro-batch 3 × DP", "does not divide the batch of"]),
        ({"steps": ()}, ["no step time is known", "a run whose steps have times", "try:"]),
    ],
)
def test_what_nothing_can_be_learned_from_says_what_can(
    known: dict[str, Any], says: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", own_run(tmp_path / "run", **known), "-o", str(tmp_path / "own.yaml")]) == 2
    error = capsys.readouterr().err
    assert all(words in error for words in says), error


@pytest.mark.skipif(not SHARED.exists(), reason=f"{SHARED} is not here")
def test_what_a_brought_record_leaves_out_can_be_stated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By what the refusal of the record says."""
    from parsers.cli import main as parse

    log, file = SHARED / "train_amd_prim_llama.json", str(tmp_path / "own.yaml")
    assert parse([str(log), "-o", str(tmp_path / "as_brought")]) == 0
    assert main(["calibrate", str(tmp_path / "as_brought"), "-o", file]) == 2
    (hint,) = (line for line in capsys.readouterr().err.splitlines() if line.strip().startswith("try: "))
    stated = hint.partition(f" {log.name} ")[2].removesuffix(" -o DIR").split()
    assert parse([str(log), *stated, "-o", str(tmp_path / "stated")]) == 0
    assert main(["calibrate", str(tmp_path / "stated"), "-o", file]) == 0


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
