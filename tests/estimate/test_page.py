"""The pages of an estimate and of a search: what stands in them is what was predicted."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from estimate.cli import main
from estimate.explained import Swing, sensitivities
from estimate.fitted import shipped, write
from estimate.page import bars, roofline, swings
from estimate.roofline import rooflines
from parsers.find import copies, find_runs
from tests.estimate.test_step_time import job

CASE = ("model=llama31_8b", "hardware=h100", "nodes=1")
GEMM = "gemm_efficiency.h100.bf16"


def test_bars_are_as_long_as_their_parts() -> None:
    drawn = bars({"small": 1.0, "large <b>": 4.0, "none": 0.0}, "s")
    lengths = [float(text) for text in re.findall(r'class="bar"[^>]* width="([\d.]+)"', drawn)]
    assert len(lengths) == 2 and lengths[0] == pytest.approx(4 * lengths[1], rel=1e-3)
    assert "large &lt;b&gt;" in drawn and "80.0 %" in drawn


def test_the_roofline_and_the_sensitivities_are_drawn_to_scale() -> None:
    jobs = job()
    circles = re.findall(r'<circle class="front" cx="([\d.]+)" cy="([\d.]+)"[^>]*><title>([^:]+)', roofline(jobs))
    assert {name for *_, name in circles} == {bound.module for bound in rooflines(jobs)}
    heights = {name: float(y) for _, y, name in circles}
    assert heights["norms and residuals"] > heights["fc1"], "bound by memory, it lies lower"
    assert roofline(job(gpu="b200")) != roofline(jobs)
    drawn = swings((Swing("slower", 0.04), Swing("faster", -0.02)))
    bars_ = re.findall(r'class="bar" x="([\d.]+)"[^>]* width="([\d.]+)"', drawn)
    (right, long), (left, short) = ((float(x), float(width)) for x, width in bars_)
    assert long == pytest.approx(2 * short) and left + short == pytest.approx(right)
    assert "+4.00 %" in drawn and "-2.00 %" in drawn


def test_an_estimate_has_its_page_beside_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CASE, "-o", str(tmp_path / "own")]) == 0
    printed, page = capsys.readouterr().out, (tmp_path / "own" / "estimate.html").read_text("utf-8")
    speed = next(line for line in printed.splitlines() if line.startswith("speed")).split()[1]
    assert speed in page and "tensor parallel" in page and page.count('class="bar"') > 10
    assert page.count("<svg") == 4 and page.count("<circle") > 5


def test_estimates_that_differ_are_no_copies_of_each_other(tmp_path: Path) -> None:
    """One id of all that a model's name and a vendor's share was "the same run" to `compare`."""
    known = shipped()
    slower = msgspec.structs.replace(known.values[GEMM], value=known.values[GEMM].value / 2)
    write(tmp_path / "own.yaml", msgspec.structs.replace(known, values={**known.values, GEMM: slower}))
    others: tuple[str, ...] = ("hardware=b200", "nodes=2", "layout=data_parallel", "precision=fp8")
    others += ("training.global_batch_size=256", f"calibrated={tmp_path / 'own.yaml'}")
    for at, more in enumerate(("nodes=1", *others)):
        assert main([*CASE, more, "-o", str(tmp_path / str(at))]) == 0
    runs = find_runs([str(tmp_path)])
    ids = [run.record.id for run in runs]
    assert ids[0].startswith("llama31_8b-nvidia-estimated-h100-x8-") and "-bf16-" in ids[0]
    assert [*copies(runs)] == []


def test_what_only_multiplies_another_parameter_is_named_once() -> None:
    names = [swing.name for swing in sensitivities(job())]
    assert "gemm efficiency" in names and "attention efficiency" in names
    assert not {"gemm vendor", "gemm gpu", "gemm precision", "attention software"} & {*names}


def test_the_sensitivities_are_those_of_the_parameters_in_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = shipped()
    kinds = {**known.kinds, "straggler": msgspec.structs.replace(known.kinds["straggler"], prior=0.5)}
    values = {**known.values, "straggler": msgspec.structs.replace(known.values["straggler"], value=0.5)}
    write(tmp_path / "own.yaml", msgspec.structs.replace(known, kinds=kinds, values=values))
    swing = {}
    for name, own in {"shipped": (), "own": (f"calibrated={tmp_path / 'own.yaml'}",)}.items():
        assert main(["model=llama31_8b", "hardware=h100", "nodes=4", "--explain", *own]) == 0
        lines = capsys.readouterr().out.splitlines()
        swing[name] = next(line for line in lines if line.strip().startswith("straggler "))
    assert swing["shipped"] != swing["own"]


def test_a_search_draws_every_layout_that_no_other_beats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "layouts.html"
    assert main(["search", *CASE, "-o", str(page)]) == 0
    counted = re.search(
        r"not beaten in speed, cost and memory at once(?:, \d+ of (\d+) shown)?", page.read_text("utf-8")
    )
    assert counted
    circles = page.read_text("utf-8").count("<circle")
    assert circles == int(counted[1]) if counted[1] else 0 < circles <= 12


def test_a_page_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["search", *CASE, "-o", str(tmp_path / "file" / "layouts.html")]) == 2
    assert "Traceback" not in capsys.readouterr().err
