"""No fact without a source: the shipped hardware and layout rows pass, planted ones without one do not."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf import load_experiment
from conf.compose import compose
from conf.errors import ConfigError
from conf.facts import LayoutRow, check_hardware, find_row, layout_rows, no_row, read_rows
from conf.freeze import freeze
from conf.schema import Hardware
from tests.conf.test_parameters import OURS, PUBLISHED, load

CONF = Path(__file__).parents[2] / "conf"
COLLECTED = Path(__file__).parents[3] / "shared" / "data/hardware.csv"
HARDWARE = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (CONF / "hardware").glob("*.yaml")}
CSV_NAMES = {
    "a100": "A100-SXM-80",
    "a100_40gb": "A100-SXM-40",
    "h100": "H100-SXM",
    "h100_pcie": "H100-PCIe",
    "h200": "H200-SXM",
    "gh200": "GH200",
    "b200": "B200-SXM",
    "gb200": "GB200-NVL72",
    "b300": "B300-SXM",
    "gb300": "GB300-NVL72",
    "h800": "H800-SXM",
    "l40s": "L40S",
    **{name: name.upper() for name in ("mi250x", "mi300x", "mi325x", "mi350x", "mi355x")},
}
CSV_COLUMNS = {
    "memory_gb": "hbm_gb",
    "memory_bandwidth_tb_s": "hbm_tb_s",
    "link_gb_s_per_gpu_unidirectional": "link_gb_s_per_gpu_unidir",
    "gpus_per_domain": "domain_gpus",
    "network_gbit_s_per_gpu": "nic_gbit_s_per_gpu_typ",
    "tdp_w": "tdp_w",
    "launch_year": "launch_year",
    "achievable_tflops.bf16": "mamf_bf16_tflops",
    "achievable_tflops.fp8": "mamf_fp8_tflops",
    **{f"peak_dense_tflops.{p}": f"{p}_tflops" for p in ("fp32", "tf32")},
    **{f"peak_dense_tflops.{p}": f"{p}_dense_tflops" for p in ("bf16", "fp8", "fp4")},
}
HEADER = ",".join(LayoutRow.__slots__)
ROW = "identical,llama31_8b,8,2,1,,1,1,true,1,,,,true,true,true,{source},{note}"


MODELS = {name: load(name) for name in (*PUBLISHED, *OURS)}


def figure(entry: Mapping[str, Any], key: str) -> float | None:
    group, _, precision = key.partition(".")
    value: float | None = entry[group].get(precision) if precision else entry[group]
    return value


# Hardware


def test_every_collected_gpu_is_shipped() -> None:
    assert set(CSV_NAMES) | {"cpu"} <= set(HARDWARE)


def test_shipped_hardware_is_sourced_and_fits_the_schema() -> None:
    for name in HARDWARE:
        problems = check_hardware(HARDWARE[name])
        freeze(Hardware, HARDWARE[name], name, problems)
        assert not problems, problems
        assert HARDWARE[name]["name"] in (name, "unknown_${platform.vendor}")


def test_no_device_name_is_in_two_entries() -> None:
    names = [n.lower() for entry in HARDWARE.values() for n in entry["device_names"]]
    assert len(names) == len(set(names))


def test_precisions_halve_in_order() -> None:
    for name in CSV_NAMES:
        peaks = HARDWARE[name]["peak_dense_tflops"]
        assert sorted(peaks.values()) == [peaks[p] for p in ("fp32", "tf32", "bf16", "fp8", "fp4") if p in peaks]
        for precision, best in HARDWARE[name]["achievable_tflops"].items():
            assert best < peaks[precision]


@pytest.mark.skipif(not COLLECTED.is_file(), reason="the collected table is not part of the repository")
@pytest.mark.parametrize("name", CSV_NAMES)
def test_figures_are_the_collected_ones_or_the_note_names_the_other(name: str) -> None:
    with COLLECTED.open(newline="", encoding="utf-8") as file:
        row = next(r for r in csv.DictReader(file) if r["gpu"] == CSV_NAMES[name])
    assert "UNVERIFIED" not in row["confidence"]
    for key, column in CSV_COLUMNS.items():
        ours, theirs = figure(HARDWARE[name], key), row[column]
        if ours is None:
            continue
        assert theirs, f"{key} is in no source"
        if "-" in theirs or ours != pytest.approx(float(theirs), rel=0.01):
            assert theirs in HARDWARE[name]["note"], f"{key}: {ours}, collected {theirs}"


GOOD = {"name": "x", "source": "a data sheet", "status": "data sheet", "note": None, "peak_dense_tflops": {"bf16": 1.0}}


PLANTED: list[dict[str, Any]] = [
    *({"source": text} for text in (None, "  ", "recalled AMD datasheet", "a blog, UNVERIFIED")),
    *({"peak_dense_tflops": {"bf16": figure}} for figure in (0.0, -989.0, None)),
    *({"achievable_tflops": figures} for figures in ({"fp8": float("nan")}, {"fp8": "1402"}, {"bf8": 362.05})),
    *({"status": "Unverified"}, {"note": "tdp recalled"}, {"memory_gb": 0}, {"tdp_w": True}),
]


@pytest.mark.parametrize("change", PLANTED, ids=str)
def test_planted_hardware_is_refused(change: dict[str, Any]) -> None:
    assert not check_hardware(GOOD)
    problems = check_hardware(GOOD | change)
    assert len(problems) == 1
    assert "hardware x" in str(problems[0])


# Models


@pytest.mark.parametrize(("alias", "name"), [("llama", "llama31_8b"), ("qwen", "qwen25_7b")])
def test_an_alias_composes_to_the_same(alias: str, name: str) -> None:
    composed = compose([f"model={alias}"])
    assert composed == compose([f"model={name}"])
    assert composed["model"]["name"] == name


def test_a_model_sets_only_what_is_the_same_on_every_platform() -> None:
    for name in MODELS:
        config = yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text(encoding="utf-8"))
        assert {group: set(config[group]) for group in config if group not in ("model", "defaults")} == {
            "training": {"seq_length", "global_batch_size", "train_iters"},
            "optimizer": {"lr", "min_lr", "lr_warmup_iters"},
        }
        assert config["model"]["name"] == name
        assert config["training"]["seq_length"] <= MODELS[name].max_position_embeddings
        assert all(isinstance(config["optimizer"][key], float) for key in ("lr", "min_lr"))
        composed = compose([f"model={name}"])
        assert composed["model"] == config["model"]
        assert composed["optimizer"] | config["optimizer"] == composed["optimizer"]
        assert composed["training"] | config["training"] == composed["training"]


# Layouts


def test_shipped_layout_says_where_it_is_from() -> None:
    for row in layout_rows():
        assert (row.table, row.source) == ("identical", "TensorPrimat")
        assert "80 GB" in row.note, "what a GPU needs of it: tests/estimate/test_headroom.py"


def test_no_row_names_the_nearest() -> None:
    for case, nearest in (
        (("identical", "llama31_70b", 48), "llama31_70b on"),
        (("identical", "no_such_model", 8), ""),
        (("identical", "llama31_8b", 0), "llama31_8b"),
    ):
        assert find_row(*case) is None
        problem = no_row(*case)
        assert problem.found == f"{case[1]} on {case[2]} GPUs"
        assert problem.allowed.startswith(nearest) and problem.hint


@pytest.mark.parametrize(("gpus", "row"), [(8, 8), (16, 8), (24, 8), (4, None), (12, None)])
def test_more_gpus_take_the_row_of_which_they_are_a_multiple(gpus: int, row: int | None) -> None:
    found = find_row("identical", "llama31_8b", gpus)
    assert (found and found.gpus) == row


def test_the_largest_such_row_is_taken_and_said() -> None:
    row = find_row("identical", "llama31_70b", 128)
    assert row is not None
    assert row.gpus == 64
    e = load_experiment("model=llama31_8b", "platform=nvidia", "hardware=h100", "nodes=2")
    assert (e.layout.tensor_model_parallel_size, e.layout.data_parallel_size) == (2, 8)
    (said,) = (reason for reason in e.reasons if reason.startswith("layout identical"))
    assert "that for 8, with 2 times its data parallel ranks" in said


def test_planted_layout_row_is_refused_with_its_line() -> None:
    for line, word in (
        (ROW.format(source="", note="n"), "without a source"),
        (ROW.format(source="recalled", note="n"), "from memory"),
        (ROW.format(source="s", note="Unverified"), "from memory"),
        (ROW.format(source="s", note="n").replace(",8,", ",eight,", 1), "gpus"),
        (ROW.format(source="s", note="n").replace("true", "yes", 1), "sequence_parallel"),
        (ROW.format(source="s", note="n") + ",more", "no such key"),
        (ROW.format(source="s", note="n") + "\n" + ROW.format(source="s", note="n"), "second row"),
    ):
        with pytest.raises(ConfigError, match=word) as caught:
            read_rows([HEADER, *line.split("\n")])
        assert f"layouts.csv:{2 + line.count(chr(10))}" in str(caught.value)
