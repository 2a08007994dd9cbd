"""A machine's file in use: a box is held against it, two of them compare, it has a schema and a page."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

from compare.cli import main as compare
from conf import box, devices
from conf.machine import VERSION, Figure, Machine, read, write
from conf.vocabulary import read_yaml
from measure import probe, session
from measure.cases import PROBED, Scope, cases
from measure.page import page
from measure.probe import problems
from measure.rates import figures, samples_of
from metrics import summarise
from tensorprimat import launch
from tests.compare.made import vendor_run
from tests.measure.test_rates import lines_of, machine

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "conf" / "machine.schema.json"
FOUR = Scope(accelerator=True, ranks=4, cores=16, memory_bytes=80 << 30, full=False)


def gpus(**slower: float) -> Machine:
    """Return a machine of four GPUs, with figures of a name times a factor."""
    own = tuple(_times(one, slower.get(one.name, 1.0)) for one in _figures())
    return Machine(VERSION, "2026-11-24T00:00:00+00:00", "a", "NVIDIA H100 80GB HBM3", True, 4, 64, {}, own)


@cache
def _figures() -> tuple[Figure, ...]:
    known = cases(FOUR)
    return tuple(figures(samples_of(known, lines_of(known, noise=0.005), 4)))


def _times(one: Figure, factor: float) -> Figure:
    ends = one.interval and (one.interval[0] * factor, one.interval[1] * factor)
    return replace(one, value=one.value * factor, interval=ends)


def test_a_box_that_is_slower_or_has_a_link_at_half_rate_is_refused_and_a_sound_one_is_not() -> None:
    reference = gpus()
    assert not [*box.against(reference, gpus(gemm_probed=0.97, send_rate=0.9))]  # of one kind, not of one GPU
    capped = [*box.against(reference, gpus(gemm_probed=0.85))]
    assert capped
    assert {problem.where.split()[0] for problem in capped} == {"gemm_probed"}
    assert "capped" in capped[0].hint
    half = [*box.against(reference, gpus(send_rate=0.5))]
    assert len(half) == 6  # every pair of four
    assert half[0].hint == "a link at half rate"
    slow = "rank 2 takes 1.10 times as long as the median rank for the same products"
    (neighbour,) = box.against(reference, replace(reference, warnings=(slow, "products took longer")))
    assert neighbour.what == slow
    cpu = replace(reference, accelerator=False)
    assert not [*box.against(cpu, replace(cpu, warnings=(slow,)))]  # whose ranks move between cores
    assert [*box.against(cpu, replace(cpu, warnings=("node 1 takes 1.10 times as long as the fastest",)))]


@cache
def measured(full: bool = False, probe: bool = False, accelerator: bool = True, products: float = 1.0) -> Machine:
    """Return a machine of two, as a scope measures it, whose products are the faster the larger they are."""
    scope = Scope(accelerator, ranks=2, cores=16, memory_bytes=80 << 30, full=full, probe=probe)
    known = cases(scope)
    lines = lines_of(known, noise=0.005)
    for line in lines:
        if known[line["case"]]["kind"] == "gemm":
            line["seconds"] *= products * (1 + PROBED[accelerator] / 4 / known[line["case"]]["m"])
    own = tuple(figures(samples_of(known, lines, 2)))
    return Machine(VERSION, "2026-11-24T00:00:00+00:00", "a", "one", accelerator, 2, 16, {}, own)


@pytest.mark.parametrize("accelerator", [True, False])
def test_a_sound_box_is_not_refused_by_quick_or_full_and_a_capped_one_is(accelerator: bool) -> None:
    here = measured(probe=True, accelerator=accelerator)
    for full in (False, True):
        reference = measured(full=full, accelerator=accelerator)
        assert not [*box.against(reference, here)]
        capped = measured(probe=True, accelerator=accelerator, products=1.2)
        assert {one.where.split()[0] for one in box.against(reference, capped)} == {"gemm_probed"}
    of: dict[str, Any] = {"ranks": 2, "precision": "bf16" if accelerator else "fp32"}
    best, probed = reference.value("gemm_best", **of), here.value("gemm_best", **of)
    assert best and probed and probed < 0.95 * best  # of other sizes, which would refuse it


def test_a_probe_of_some_seconds_spreads_no_less_than_its_reference() -> None:
    reference = gpus()
    wide = tuple(replace(one, interval=(0.9 * one.value, 1.1 * one.value)) for one in reference.figures)
    reference = replace(reference, figures=wide)
    for share, refused in ((0.83, False), (0.7, True)):
        narrow = tuple(replace(one, value=share * one.value, interval=None) for one in wide)
        found = [*box.against(reference, replace(reference, figures=narrow))]
        assert bool(found) == refused


def test_a_reference_of_few_rounds_refuses_no_box_and_says_so() -> None:
    reference = gpus(gemm_probed=1.5)
    figures_ = tuple(replace(one, interval=None) for one in reference.figures)
    (problem,) = box.against(replace(reference, figures=figures_), gpus())
    assert "too few rounds" in problem.what
    wide = tuple(
        (one.interval and replace(one, interval=(one.value / 2, one.value))) or one for one in reference.figures
    )
    assert not [*box.against(replace(reference, figures=wide), gpus())]  # which may be as slow itself


def test_a_file_of_another_machine_is_no_measure() -> None:
    (other,) = box.against(gpus(), replace(gpus(), device="AMD Instinct MI300X"))
    assert "another device" in other.what
    (fewer,) = box.against(gpus(), replace(gpus(), ranks=2))
    assert fewer.allowed == "ranks=4"


@pytest.mark.engine
@pytest.mark.slow
def test_a_box_is_probed_before_a_launch_and_held_against_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a probe for real, of one rank: beside ten times what it does it is slow, beside a tenth it is not."""
    here, folder = devices.find(), tmp_path / "machine"
    folder.mkdir()
    rounds, minutes = session.SIZES[session.PROBE]
    own, code = session.measured(session.scope_of(here, 1, session.PROBE), here, folder, rounds, 60 * minutes)
    assert code == 0
    few, fast = tmp_path / "few.yaml", tmp_path / "fast.yaml"
    write(few, replace(own, figures=tuple(_times(one, 0.1) for one in own.figures)))
    write(fast, replace(own, figures=tuple(_times(one, 10.0) for one in own.figures)))
    assert problems(read(few)) == []
    monkeypatch.setattr(probe, "measured", lambda *_: (own, 0))
    started = list[object]()

    def run_all(runs: object, *_: object, **__: object) -> int:
        started.append(runs)
        return 0

    monkeypatch.setattr(launch, "run_all", run_all)
    words = ["platform=cpu", "model=llama_tiny", "gpus_per_node=1", f"runs_dir={tmp_path}"]
    assert launch.main([*words, f"machine={few}"]) == 0
    assert len(started) == 1
    assert launch.main([*words, f"machine={fast}"]) == 2
    assert "gemm_probed precision=fp32 ranks=1: is 10% of the " in capsys.readouterr().err
    assert len(started) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("platform=cpu cluster=slurm", "nobody looks at its nodes found: preflight=none allowed: note, stop"),
        ("platform=cpu bundle=left", "nobody looks at its nodes"),
        ("platform=nvidia cluster=slurm preflight=none", "nobody looks at its nodes"),
        ("platform=cpu bundle=left preflight=note", "is a file of another device found: NVIDIA H100 80GB HBM3"),
        ("platform=nvidia hardware=b200 cluster=slurm", "another device found: NVIDIA H100 80GB HBM3 allowed: b200"),
        (
            "platform=nvidia cluster=slurm",
            "of 8 ranks at once on one node found: 2026-11-24T00:00:00+00:00 try: tprimat",
        ),
    ],
)
def test_a_file_that_no_node_of_a_job_can_be_held_against_is_refused(
    words: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "machine.yaml", gpus())
    assert launch.main(["model=llama_tiny", "dry_run=true", *words.split(), f"machine={path}"]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert says in err, err


def test_a_node_is_held_against_the_first_of_a_file_of_several() -> None:
    whole = replace(gpus(), nodes=2)
    node = whole.of_a_node()
    assert (node.ranks, node.nodes) == (2, 1)
    assert {one.of["ranks"] for one in node.figures if "ranks" in one.of} == {1, 2}
    assert [dict(one.of) for one in node.pairs(across=False)] == [{"first": 0, "second": 1}]
    assert not [*box.against(node, node)]
    assert gpus().of_a_node() == gpus()


def test_one_machine_alone_or_beside_a_run_says_what_compares(tmp_path: Path, capsys: Any) -> None:
    only = written(tmp_path / "a.yaml", gpus())
    for words in ([only], [str(tmp_path), only]):
        assert compare(words) == 2
        assert f"machine={only}" in capsys.readouterr().err


def written(path: Path, known: Machine) -> str:
    write(path, known)
    return str(path)


def test_two_machines_compare_like_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = written(tmp_path / "a.yaml", gpus())
    second = written(tmp_path / "b.yaml", gpus(gemm_best=1.5, all_reduce_latency=2.0))
    assert compare([first, second, "--json", "-o", str(tmp_path / "out")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "out" / "machines.json").read_text(encoding="utf-8")) == printed
    rows: list[dict[str, Any]] = printed["compared"][0]["ratios"]
    words = {(row["name"], row["word"]) for row in rows}
    assert ("gemm_best", "better") in words
    assert ("all_reduce_latency", "worse") in words
    best = next(row for row in rows if row["name"] == "gemm_best")
    assert best["ratio"] == pytest.approx(1.5)
    assert best["interval"][0] < 1.5 < best["interval"][1]
    assert {row["word"] for row in rows if row["name"] == "triad_rate"} == {"same"}
    assert compare([first, second]) == 0
    assert "better" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a.yaml", "a.yaml"), "is the same measurement"),
        (("a.yaml", "none.yaml"), "no such file"),
        (("a.yaml", "cpu.yaml"), "shares no figure"),
    ],
)
def test_what_does_not_compare_is_refused(
    names: tuple[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.yaml", gpus())
    write(tmp_path / "cpu.yaml", replace(machine(), figures=(Figure("jitter", 1.0, "1", "", {"ranks": 64}),)))
    assert compare([str(tmp_path / name) for name in names]) == 2
    assert said in capsys.readouterr().err


def test_the_second_mfu_is_of_what_this_machine_achieves() -> None:
    run = vendor_run("nvidia", "h100", 1, steps=20)
    run = replace(run, environment={**run.environment, "device_name": "NVIDIA H100 80GB HBM3"})
    own, known = gpus(), summarise(run)
    own = replace(own, figures=tuple(replace(one, value=700e12) if _is_best(one) else one for one in own.figures))
    found = summarise(run, (own,))
    assert found["mfu_achievable_percent"].value == pytest.approx((known["tflops_per_gpu"].value or 0) / 700 * 100)
    assert found["mfu_percent"] == known["mfu_percent"]
    other = summarise(run, (replace(own, device="NVIDIA B200"),))
    note = other.pop("mfu_achievable_percent").note
    assert "machine= is of NVIDIA B200, the run's device is NVIDIA H100 80GB HBM3" in note
    assert other.items() <= known.items()


def _is_best(one: Figure) -> bool:
    return one.name == "gemm_best" and one.of == {"ranks": 4, "precision": "bf16"}


def test_the_schema_is_that_of_the_struct(tmp_path: Path) -> None:
    """`UPDATE_GOLDEN=1 pytest tests/measure/test_box.py` writes it."""
    _, defined = msgspec.json.schema_components([Machine], ref_template="#/$defs/{name}")
    own = defined.pop("Machine")
    own["properties"] = {"hash": {"type": "string", "pattern": "^[0-9a-f]{16}$"}, **own["properties"]}
    own["required"] = ["hash", *own["required"]]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **own,
        "title": "machine.yaml",
        "$defs": defined,
    }
    now = json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        SCHEMA.write_text(now, encoding="utf-8")
    assert SCHEMA.read_text(encoding="utf-8") == now
    path = tmp_path / "machine.yaml"
    write(path, gpus())
    values = json.loads(json.dumps(read_yaml(path)))
    jsonschema.validate(values, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**values, "ranks": "four"}, schema)


def test_the_page_has_every_picture_and_loads_nothing() -> None:
    known = cases(FOUR)
    samples = samples_of(known, lines_of(known), 4)
    phases = [("idle", 70.0), *((f"products {share}%", 2.0 * share) for share in (25, 100)), ("training", 600.0)]
    power = tuple(Figure("power", watts, "W", "", {"phase": name}) for name, watts in phases)
    sick = 'rank 1 takes 1.10 times <b>"as long"</b>'
    text = page(replace(gpus(), figures=(*gpus().figures, *power), warnings=(sick,)), samples)
    for title in ("Roofline, bf16", "Products, bf16", "Links, 4 ranks", "Pairs of ranks", "Power"):
        assert title in text
    assert "&lt;b&gt;" in text
    assert "<script" not in text
    assert page(replace(gpus(), figures=()), samples_of([], [], 1))  # of nothing: no picture, and no failure
