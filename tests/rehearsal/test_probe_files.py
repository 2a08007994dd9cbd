"""From the ranks' files to a record: how they add up, and that nothing in them can break it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from parsers import Reading, Record, Step, read, write
from parsers.cli import discover, imported
from parsers.probe import with_probe
from parsers.record import Restart

BARE = Record(
    id="a",
    name="a",
    provenance="rehearsed",
    status="completed",
    framework="primus",
    requested={"num_layers": 2, "lr": 0.5, "data": "mock"},
    effective={"num_layers": Reading(2, 7), "lr": Reading(0.25, 8)},
    dumped={"num_layers": Reading(2, 7), "lr": Reading(0.25, 8)},
    notes=("requested, and not reported by the log: data", "kept"),
    steps=tuple(Step(step=k, line=k + 1, iteration=k + 1, lr_used=9.0) for k in range(3)),
)
PART = ["w", [2, 4], "float32", [0, 0, 8], 8, 0.5, 2.0, -1.0, 1.0, 77]
MATRIX, NORM, EXPERT = ["w", [2, 4], 16, True], ["n", [4], 4, False], ["e0", [3], 3, True]


def rank_file(rank: int = 0, **changes: Any) -> dict[str, Any]:
    places = dict.fromkeys(("tensor", "pipeline", "data", "context", "expert"), 0)
    file: dict[str, Any] = {
        "version": 1,
        "rank": rank,
        "ranks": {"world": 1, **places, **changes.pop("places", {})},
        "settings": {"num_layers": 2, "lr": 0.5, "data_parallel_size": 1, "global_batch_size": 4},
        "chunks": [{"layers": [1, 2], "parameters": [MATRIX, NORM]}],
        "steps": [row(0.1, 7), row(0.2, 8), row(0.3, 9)],
        "never_read": {"primus": ["lr_warmup_itres", "save_interval"]},
        "faults": [],
        "probe_time_total_s": 0.25 + rank,
        "first_weights": [PART],
        "optimizer": {"kind": "AdamW", "arguments": {"eps": 1e-8}, "groups": [{"lr": 0.1}], "state": {"m": "float32"}},
    }
    file["settings"].update(changes.pop("settings", {}))
    return {**file, **changes}


def row(rate: float, tokens: int | None = None, forwards: int = 4, samples: int = 4) -> dict[str, Any]:
    return {"forwards": forwards, "samples": samples, "tokens_checksum": tokens, "groups": [[rate], [rate]]}


def left(folder: Path, *files: dict[str, Any]) -> Path:
    probe = folder / "probe"
    probe.mkdir(exist_ok=True, parents=True)
    for file in files:
        (probe / f"rank{file['rank']}.json").write_text(json.dumps(file))
    return probe


def test_the_probe_is_ahead_of_the_log_which_is_kept(tmp_path: Path) -> None:
    record = with_probe(BARE, left(tmp_path, rank_file()))
    assert record.effective["lr"] == Reading(0.5, 1, "probe/rank0.json")
    assert record.dumped["lr"] == Reading(0.25, 8)
    assert record.differences == ()
    assert [(step.lr_used, step.metrics) for step in record.steps] == [
        (rate, {"tokens_checksum": float(tokens)}) for rate, tokens in ((0.1, 7), (0.2, 8), (0.3, 9))
    ]
    reported = {"parameters": 20, "parameters_decayed": 16, "parameters_undecayed": 4, "parameters_by_rank": {"0": 12}}
    assert record.environment == {**reported, "probe_never_read": ["lr_warmup_itres"], "probe_time_s": 0.25}
    write(record, tmp_path / "run")
    assert read(tmp_path / "run") == record


def test_what_the_probe_reports_is_no_longer_unreported(tmp_path: Path) -> None:
    record = with_probe(BARE, left(tmp_path, rank_file(settings={"data": "mock"})))
    assert record.notes == ("kept",)


@pytest.mark.parametrize(
    ("of_record", "never_read", "reported"),
    [
        ({}, [{}], None),  # a stack that takes any name is not trusted to have read all
        ({"framework": "megatron"}, [{}], []),
        # tensor rank 1 builds no loader, and requests no num_workers: what one rank has read was read
        ({}, [{"primus": ["lr_warmup_itres", "num_workers"]}, {"primus": ["lr_warmup_itres"]}], ["lr_warmup_itres"]),
        ({}, [{"primus": ["enable_primus_turbo"]}], []),  # only a GPU reads it: no finding of a rehearsal
        ({"provenance": "measured"}, [{"primus": ["enable_primus_turbo"]}], ["enable_primus_turbo"]),
    ],
)
def test_names_that_nothing_has_read(
    tmp_path: Path, of_record: dict[str, Any], never_read: list[dict[str, Any]], reported: list[str] | None
) -> None:
    probe = left(tmp_path, *(rank_file(rank, never_read=names) for rank, names in enumerate(never_read)))
    assert with_probe(replace(BARE, **of_record), probe).environment["probe_never_read"] == reported


def test_a_log_brings_the_probe_beside_it(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes((Path(__file__).parents[1] / "parsers" / "fixtures" / "engine.log").read_bytes())
    assert "probe_never_read" not in imported(log).environment
    left(tmp_path, rank_file(settings={"lr": 0.125}))
    record = imported(log)
    assert (record.effective["lr"].value, record.steps[0].lr_used) == (0.125, 0.1)
    result, _ = discover([tmp_path])
    assert [one.path for one in result] == [log], "a file of the probe is no log"


def test_without_a_folder_a_record_is_as_it_was(tmp_path: Path) -> None:
    assert with_probe(BARE, tmp_path / "probe") is BARE
    (tmp_path / "probe").mkdir()
    assert with_probe(BARE, tmp_path / "probe").notes[-1] == "probe: no rank left a file"


def test_stages_add_up_and_replicas_count_once(tmp_path: Path) -> None:
    sizes = {"pipeline_model_parallel_size": 2, "data_parallel_size": 2, "global_batch_size": 8}
    files = []
    for rank in range(4):
        stage, data = divmod(rank, 2)
        name = f"{'wx'[stage]}"
        parameters = [[name, *MATRIX[1:]], ["tied", *MATRIX[1:]]]
        places = {"world": 4, "pipeline": stage, "data": data}
        chunks = [{"layers": [stage + 1], "parameters": parameters}]
        steps = [row(0.1, 2**52 - 1 if data else 5)]
        files.append(rank_file(rank, places=places, settings=sizes, chunks=chunks, steps=steps))
    record = with_probe(BARE, left(tmp_path, *files))
    assert record.environment["parameters"] == 3 * 16
    assert record.environment["parameters_by_rank"] == dict.fromkeys("0123", 16)
    assert record.steps[0].metrics["tokens_checksum"] == 4, "modulo 2**52"
    assert record.environment["probe_time_s"] == 3.25, "of the rank where it took most"
    (tmp_path / "probe" / "rank3.json").unlink()
    assert with_probe(BARE, tmp_path / "probe").environment["parameters"] == 48, "its stage has another rank"
    (tmp_path / "probe" / "rank2.json").unlink()
    partial = with_probe(BARE, tmp_path / "probe")
    assert "parameters" not in partial.environment
    assert partial.notes[-1] == "probe: 2 of 4 ranks left no file: 2, 3"
    assert (
        with_probe(BARE, tmp_path / "probe", expected=(0, 1)).notes == with_probe(BARE, tmp_path / "probe").notes[:-1]
    )


def test_experts_are_those_of_all_expert_ranks(tmp_path: Path) -> None:
    sizes = {"expert_model_parallel_size": 2, "data_parallel_size": 2}
    files = [
        rank_file(
            rank,
            places={"world": 2, "expert": rank, "data": rank},
            settings=sizes,
            chunks=[{"layers": [1, 2], "parameters": [NORM, [f"e{rank}", *EXPERT[1:]]]}],
        )
        for rank in range(2)
    ]
    assert with_probe(BARE, left(tmp_path, *files)).environment["parameters"] == 4 + 3 + 3
    (tmp_path / "probe" / "rank1.json").unlink()
    assert "parameters" not in with_probe(BARE, tmp_path / "probe").environment


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"settings": {"lr": 0.4}}, "ranks disagree on lr: 0.5 in probe/rank0.json, 0.4 in probe/rank1.json"),
        ({"steps": [row(0.1), row(0.7)]}, "ranks disagree on the learning rate of 1 steps, from step 1 on"),
        ({"chunks": [{"layers": [1], "parameters": [[*MATRIX[:2], 17, True]]}]}, "different sizes or decays of w"),
        ({"chunks": [{"layers": [3], "parameters": [MATRIX]}]}, "3 layers were built, of 2 that the config names"),
        ({"faults": ["on_step: KeyError: 'lr'"]}, "probe on rank 1: on_step: KeyError: 'lr'"),
        ({"version": 2}, "rank1.json: is of version 2, which is not known here"),
    ],
)
def test_ranks_that_contradict_each_other_are_reported_and_not_believed(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    second = rank_file(1, **{"places": {"tensor": 1}, **changes})
    record = with_probe(BARE, left(tmp_path, rank_file(), second))
    assert any(says in note for note in record.notes)
    assert ("lr" in record.effective) is ("settings" not in changes), "nor the log: it is of one rank"
    if "chunks" in changes:
        assert "parameters" not in record.environment
    if "learning" in says:
        assert [step.lr_used for step in record.steps] == [0.1, 9.0, 0.3]


@pytest.mark.parametrize(
    ("restarts", "steps", "rates"),
    [
        ((), [row(0.1), {**row(0.2), "groups": [[0.2], [0.4]]}], [0.1, 0.2, 9.0]),  # and a note, see below
        ((), [row(0.1, 7), row(0.3, 9, forwards=8)], [0.1, 9.0, 0.3]),  # fp16 skipped a step: it has no rate
        ((Restart(2, 3),), [row(0.1, 7), row(0.2, 8), row(0.3, 9)], [9.0, 9.0, 0.1]),  # the file is of the last start
    ],
)
def test_the_rate_of_each_step(
    tmp_path: Path, restarts: tuple[Restart, ...], steps: list[dict[str, Any]], rates: list[float]
) -> None:
    record = with_probe(replace(BARE, restarts=restarts), left(tmp_path, rank_file(steps=steps)))
    assert [step.lr_used for step in record.steps] == rates
    note = "probe: parameter groups step at different rates, from step 1 on; the first's is kept"
    assert (note in record.notes) is (rates == [0.1, 0.2, 9.0])


def test_a_batch_that_was_not_seen_in_full_has_no_checksum(tmp_path: Path) -> None:
    seen: tuple[dict[str, Any], ...] = (
        {"settings": {"data_parallel_size": 2}},
        {"steps": [row(0.1, 7, samples=3)]},
        {"ranks": {}},
    )
    for changes in seen:
        record = with_probe(BARE, left(tmp_path, rank_file(**changes)))
        assert "tokens_checksum" not in record.steps[0].metrics


def test_losses_are_the_mean_over_replicas_where_the_log_says_nearly_the_same(tmp_path: Path) -> None:
    """Printed 1.5 becomes the exact one; 9.9 stays: labels were masked. A printed mean of two steps is replaced."""
    sizes = {"data_parallel_size": 2, "context_parallel_size": 1}
    sums = ((2.0, 4.000_01), (3.0, 5.0), (3.0, 5.0))  # of two micro-batches, on each of two ranks: 1.5, 2, 2
    files = [
        rank_file(
            rank,
            places={"data": rank},
            settings=sizes,
            steps=[{**row(0.1), "loss_sum": pair[rank], "losses": 2} for pair in sums],
        )
        for rank in range(2)
    ]
    printed = ((1.5, ()), (9.9, ()), (7.0, ("loss:interval_mean", "x")))
    steps = tuple(replace(s, loss=loss, flags=f) for s, (loss, f) in zip(BARE.steps, printed, strict=True))
    record = with_probe(replace(BARE, steps=steps), left(tmp_path, *files))
    assert [step.loss for step in record.steps] == [6.000_01 / 4, 9.9, 2.0]
    assert record.steps[2].flags == ("x",)
    second = replace(steps[1], loss=1.75)  # a mean of the first two that is not known as such
    record = with_probe(replace(BARE, steps=(steps[0], second)), left(tmp_path, *files))
    assert [step.loss for step in record.steps] == [6.000_01 / 4, 2.0]
    alone = with_probe(replace(BARE, steps=steps), left(tmp_path / "one", files[0]))
    assert [step.loss for step in alone.steps] == [1.5, 9.9, 7.0]


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
_VALUES = st.recursive(
    _SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=4), v, max_size=3), max_leaves=6
)
_HUGE = {"settings": {"pipeline_model_parallel_size": 2**40}, "chunks": [{"parameters": [["w", [2**52] * 8, 8, True]]}]}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*rank_file()]), _VALUES, max_size=3),
    st.sampled_from(["settings", "chunks", "steps", "ranks", "first_weights", "optimizer"]),
    _VALUES,
)
@example(_HUGE, "ranks", 2**52)  # sizes that no memory can count up, and a product beyond 64 bits
def test_whatever_a_file_holds_the_record_can_be_written_and_read(
    tmp_path: Path, changes: dict[str, Any], inside: str, value: Any
) -> None:
    second = {**rank_file(1), **changes}
    inner = second.get(inside)
    if isinstance(inner, dict) and inner:
        inner[next(iter(inner))] = value
    elif isinstance(inner, list) and inner and isinstance(inner[0], dict) and inner[0]:
        inner[0][next(iter(inner[0]))] = value
    elif inside == "first_weights" and isinstance(inner, list):
        second["first_weights"] = [[*PART[:5], value, *PART[6:]], [*PART[:3], [1, 0, 2**52], 2**52, 1e308, *PART[6:]]]
    probe = left(tmp_path, rank_file())
    (probe / "rank1.json").write_text(json.dumps(second))
    record = with_probe(BARE, probe)
    write(record, tmp_path / "run")
    assert read(tmp_path / "run").id == "a"


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"[" * 100_000, b"[]", b'{"rank": 1e999}', b'{"rank": -1, "version": 1}']
)
def test_files_that_are_none_of_the_probe(tmp_path: Path, content: bytes) -> None:
    probe = left(tmp_path)
    (probe / "rank0.json").write_bytes(content)
    with (probe / "rank1.json").open("wb") as stream:
        stream.truncate((64 << 20) + 1)
    (probe / "rank2.json").mkdir()
    record = with_probe(BARE, probe)
    said = ("is not a complete file of the probe", "is larger than 64 MiB", "is not a file")
    for rank, text in enumerate(said):
        assert any(f"probe: rank{rank}.json: {text}" in note for note in record.notes)
    assert record.effective == BARE.effective
