"""Records on disk: complete or not at all, the schema, older and newer versions, foreign files."""

from __future__ import annotations

import json
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from conf.errors import InputError
from parsers import Declaration, Ending, Reading, Record, Step, assemble, differences, judge, parse, read, write
from parsers.cautions import settled
from parsers.read_back import Batch, Object, Optimizer, Process, ReadBack, Tensor
from parsers.record import Difference, RunFile
from parsers.storage import dumps, run_file, upgrade

ROOT = Path(__file__).parents[2]
SCHEMAS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "run": (RunFile, "TensorPrimat run record, version 2 (run.json)"),
    "steps": (Step, "TensorPrimat step, version 1 (one line of steps.jsonl)"),
}
ENGINE = Path(__file__).parent / "fixtures" / "engine.log"
BARE = Record(id="a1", name="tiny", provenance="measured", status="running")
FULL = replace(
    BARE,
    notes=("one",),
    last_lines=("a last line",),
    wall_time_s=1.5,
    requested={"lr": 0.1, "fp8": None},
    effective={"lr": Reading(0.1, 7), "seed": Reading(5, 1, "probe/rank0.json")},
    not_rehearsed={"fp8": "needs TransformerEngine"},
    shrunk={"num_layers": {"asked": 32, "ran": 4}},
    differences=(Difference("seed", 1, 2),),
    declared=(Declaration("adam_eps", 1e-5, "the recipe's"),),
    environment={"host": "box"},
    summary={"tokens_per_s": {"value": 1.0, "unit": "tokens/s", "source": "log", "interval": None}},
    steps=(Step(step=0, line=3, iteration=1, loss=2.5, nonfinite=("grad_norm",)),),
    read_back=ReadBack(
        first_weights={"w": Tensor(shape=(2, 3), dtype="bfloat16", checksum=2**52 - 1, norm=1.5)},
        batches=(Batch(step=0, tokens=7, masked=3),),
        optimizer=Optimizer(kind="torch.optim.adamw.AdamW", arguments={"fused": None}, weight_decays=(0.1,)),
        objects={"DDP": Object(kind="m.DDP", fields={"overlap": True}, defaults={"overlap": False})},
        process=Process(commits={"megatron": "abc-dirty"}),
    ),
)

ENTRY: dict[str, Any] = json.loads(dumps(run_file(FULL)))


def changed(**fields: Any) -> str:
    return dumps({**json.loads(dumps(run_file(BARE))), **fields})


@pytest.mark.parametrize("record", [BARE, FULL], ids=["bare", "full"])
def test_what_is_written_is_read_again_and_fits_the_schema(record: Record, tmp_path: Path) -> None:
    write(record, tmp_path)
    assert read(tmp_path) == record
    jsonschema.validate(json.loads((tmp_path / "run.json").read_text()), schema("run"))
    for line in (tmp_path / "steps.jsonl").read_text().splitlines():
        jsonschema.validate(json.loads(line), schema("steps"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "steps.jsonl"]


def schema(name: str) -> dict[str, Any]:
    path = ROOT / "parsers" / f"{name}.schema.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schemas_are_those_of_the_structs(name: str) -> None:
    """`UPDATE_GOLDEN=1 pytest tests/parsers/test_parsers_record.py` writes them."""
    kind, title = SCHEMAS[name]
    _, defined = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **defined.pop(kind.__name__), "title": title}
    now = json.dumps({**schema, **({"$defs": defined} if defined else {})}, indent=1, ensure_ascii=False) + "\n"
    path = ROOT / "parsers" / f"{name}.schema.json"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(now, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == now


def test_a_run_from_its_log(tmp_path: Path) -> None:
    parsed = parse(ENGINE)
    about = replace(BARE, requested={"lr": 0.003, "seed": 5, "num_layers": 4, "unheard_of": 1}, exit_code=0)
    record = assemble(parsed, judge(Ending(exit_code=0), parsed), about)
    write(record, tmp_path)
    assert record.status == "completed"
    assert [d.setting for d in record.differences] == ["seed"]
    assert read(tmp_path) == record


def test_nan_is_never_written(tmp_path: Path) -> None:
    write(
        replace(FULL, wall_time_s=float("inf"), steps=(Step(step=0, line=1, iteration=1, loss=float("nan")),)), tmp_path
    )
    again = read(tmp_path)
    assert (again.wall_time_s, again.steps[0].loss) == (None, None)


def test_a_full_disk_leaves_the_old_record_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(FULL, tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write(replace(FULL, name="new", steps=()), tmp_path)
    assert read(tmp_path) == FULL
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "has no schema_version"),
        ('{"schema_version": "1"}', "has no schema_version"),
        ('{"schema_version": 3}', "update TensorPrimat"),
        ('{"schema_version": 0}', "not known here"),
        ('{"schema_version": 1}', "missing required field `id`"),
        ('{"schema_version": NaN}', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (changed(status="fine"), "status: Invalid enum value 'fine'"),
        (changed(exit_code=True), "exit_code: Expected `int | null`, got `bool`"),
        (changed(effective={"lr": 3}), "effective[...]: Expected `object`, got `int`"),
        (changed(notes=[3]), "notes[0]: Expected `str`, got `int`"),
        (changed(restarts=[{"steps": -1, "line": 1}]), "restarts[0].steps: Expected `int` >= 0"),
        (changed(exit_code=2**63), "too large"),
        (changed(wall_time_s=1.5).replace("1.5", "1e999"), "too large"),
    ],
)
def test_foreign_files_are_refused_with_a_reason(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError) as refused:
        read(tmp_path)
    assert says in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path)
    (tmp_path / "run.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path)


def test_a_damaged_step_is_named_by_its_line(tmp_path: Path) -> None:
    write(FULL, tmp_path)
    with (tmp_path / "steps.jsonl").open("a") as stream:
        stream.write('{"step": 1, "line": 4, "iteration": 2, "loss": "low"}\n')
    with pytest.raises(InputError, match=r"steps\.jsonl:2: loss: Expected `float \| null`, got `str`"):
        read(tmp_path)


def test_later_additions_are_passed_over(tmp_path: Path) -> None:
    write(FULL, tmp_path)
    for name in ("run.json", "steps.jsonl"):
        text = (tmp_path / name).read_text().replace("{", '{"colour": {"red": [1]}, "steps": 5, ', 1)
        (tmp_path / name).write_text(text)
    assert read(tmp_path) == FULL


def test_an_older_version_is_brought_up_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    older = {0: lambda e: {**e, "schema_version": 1}, 1: lambda e: {**e, "schema_version": 2, "status": "unknown"}}
    monkeypatch.setattr("parsers.storage.UPGRADES", older)
    assert upgrade({"schema_version": 0}, "x") == {"schema_version": 2, "status": "unknown"}


def test_a_record_of_version_1_is_read(tmp_path: Path) -> None:
    new = ("method", "batch", "recipe", "variables")
    older = {name: value for name, value in ENTRY.items() if name not in new} | {"schema_version": 1}
    (tmp_path / "run.json").write_text(dumps(older))
    assert read(tmp_path) == replace(FULL, steps=())


def test_requested_against_effective() -> None:
    for requested, ran, differ in (
        (1, 1.0, False),
        (500000.0, 500000, False),
        (0.1, 0.1, False),
        (1e-5, 1.0000001e-5, True),
        (True, 1, True),
        (0, False, True),
        (None, None, False),
        (None, 0, True),
        ("bfloat16", "bfloat16", False),
    ):
        assert bool(differences({"x": requested, "only": 1}, {"x": Reading(ran, 1), "other": Reading(1, 2)})) is differ


def test_a_lone_surrogate_is_replaced_also_in_a_record_of_before(tmp_path: Path) -> None:
    step = replace(FULL.steps[0], flags=("a \ud800",))
    write(replace(FULL, last_lines=("lone \ud800 surrogate",), steps=(step,)), tmp_path)
    again = read(tmp_path)
    assert (again.last_lines, again.steps[0].flags) == (("lone ? surrogate",), ("a ?",))
    for name in ("run.json", "steps.jsonl"):
        (tmp_path / name).write_text((tmp_path / name).read_text().replace("?", "\\ud800"))
    again = read(tmp_path)
    assert (again.last_lines, again.steps[0].flags) == (("lone ? surrogate",), ("a ?",)), "writable again"


def _spoiled() -> st.SearchStrategy[dict[str, Any]]:
    value = st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.floats(0.1, 0.9), st.text(max_size=2))
    value = st.one_of(value, st.lists(value, max_size=2), st.dictionaries(st.sampled_from(["value", "line"]), value))
    names = st.sampled_from([*ENTRY, "unheard_of"])
    return st.dictionaries(names, value, max_size=3).map(lambda changes: {**ENTRY, **changes})


@given(_spoiled())
def test_what_is_read_is_what_the_schema_allows(entry: dict[str, Any]) -> None:
    try:
        msgspec.convert(entry, RunFile)
        ours = True
    except msgspec.ValidationError:
        ours = False
    assert ours == jsonschema.Draft202012Validator(schema("run")).is_valid(entry)


STATED = {
    "host": "box",
    "os": "Linux",
    "device_name": "NVIDIA H200",
    "device_count": 8,
    "driver": "570",
    "device_memory_bytes": 150_754_820_096,
}


def test_what_launcher_and_log_state_differently_is_a_note() -> None:
    for log, notes in (
        ({"device_name": "AMD EPYC"}, ["device_name: the driver says NVIDIA H200, the log AMD EPYC"]),
        ({"host": "other"}, ["host: the launcher says box, the log other"]),
        ({"device_count": 4, "driver": None}, ["device_count: the driver says 8, the log 4"]),
        ({**STATED, "kernel": "6.1", "torch": "2.13"}, []),
        ({"device_memory_bytes": 148_000_000_000}, []),
        (
            {"device_memory_bytes": 80_000_000_000},
            ["device_memory_bytes: the driver says 150754820096, the log 80000000000"],
        ),
        ({"device_memory_bytes": "much"}, ["device_memory_bytes: the driver says 150754820096, the log much"]),
    ):
        parsed = parse([f"[tprimat] facts {json.dumps(log)}"])
        record = assemble(parsed, judge(Ending(exit_code=1), parsed), replace(BARE, environment=STATED))
        assert [note for note in record.notes if " the log " in note and "says" in note] == notes
        assert record.environment == {**STATED, **log}


NUMBERS = st.sampled_from((-1, 0, 3, 2**63 - 1, 2**63, -(2**64), 10**30, 10**400, 1.5, -0.0, math.inf, math.nan))
ODD = st.one_of(NUMBERS, st.sampled_from(("\ud800", None, {"a": [10**30, {2: 2**64}]})))
STEPS = st.lists(
    st.fixed_dictionaries(
        {"step": NUMBERS.filter(lambda n: isinstance(n, int)), "line": st.sampled_from((1, 0, 2**63))},
        optional={
            **dict.fromkeys(("loss", "consumed_samples", "skipped", "nan", "interval_steps", "memory_bytes"), NUMBERS),
            "metrics": st.dictionaries(st.sampled_from("ab\ud800"), NUMBERS),
        },
    ),
    max_size=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(RunFile.__struct_fields__[4:]), ODD), ODD, NUMBERS, STEPS)
def test_whatever_is_written_is_read_again(
    tmp_path: Path, over: dict[str, Any], value: Any, number: Any, steps: list[dict[str, Any]]
) -> None:
    """Numbers beyond 64 bits, counts below zero, and what is no value of its field, are left out and noted."""
    odd = {"effective": {"lr": Reading(value, number), "seed": Reading(5, 1)}, "environment": {"x": value, "host": "h"}}
    write(replace(BARE, **{**odd, **over}, steps=[Step(iteration=None, **step) for step in steps]), tmp_path)
    record = read(tmp_path)
    if not {"effective", "environment"} & over.keys():
        assert record.effective["seed"].value == 5 and record.environment["host"] == "h"
    given = {step["step"] for step in steps}
    assert {step.step for step in record.steps} <= given


def test_what_cannot_be_recorded_is_named(tmp_path: Path) -> None:
    bad = [Step(step=0, line=1, iteration=1, consumed_samples=-8), Step(step=2**70, line=2, iteration=2)]
    good = Step(step=1, line=3, iteration=2, loss=1.0)
    write(replace(BARE, exit_code=2**70, steps=(*bad, good)), tmp_path)
    record = read(tmp_path)
    assert (record.exit_code, [step.step for step in record.steps]) == (None, [0, 1])
    assert "steps: all of a step (1), steps: consumed_samples (1)" in record.notes[-1]


@pytest.mark.parametrize("name", ["run.json", "steps.jsonl"])
def test_a_pipe_or_a_device_in_place_of_a_file_is_refused(name: str, tmp_path: Path) -> None:
    """Reading one would wait for ever, or fill the memory."""
    write(
        Record(id="x", name="x", provenance="measured", status="completed", steps=(Step(step=0, line=1, iteration=1),)),
        tmp_path,
    )
    for make in (partial(os.symlink, "/dev/zero"), os.mkfifo):
        (tmp_path / name).unlink()
        make(tmp_path / name)
        with pytest.raises(InputError, match="no regular file"):
            read(tmp_path)


@pytest.mark.parametrize(
    ("field", "said"), [("count", "2 steps, 0 to 2"), ("first", "3 steps, 1 to 2"), ("last", "3 steps, 0 to 9")]
)
def test_steps_that_are_not_as_many_as_the_record_states_are_not_read(field: str, said: str, tmp_path: Path) -> None:
    """The hash may agree: whoever wrote the record stated something else."""
    steps = tuple(Step(step=i, line=i + 1, iteration=None) for i in range(3))
    write(Record(id="a", name="a", provenance="measured", status="completed", steps=steps), tmp_path)
    path = tmp_path / "run.json"
    entry = json.loads(path.read_text(encoding="utf-8"))
    entry["steps_file"][field] = {"count": 2, "first": 1, "last": 9}[field]
    path.write_text(json.dumps(entry), encoding="utf-8")
    with pytest.raises(InputError, match="is not as") as refused:
        read(tmp_path)
    assert said in str(refused.value) and "3 steps, 0 to 2" in str(refused.value)


@pytest.mark.drill("the last line of any file that a stranger's record named by a link was shown")
def test_the_log_of_a_dead_run_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("ValueError: nobody else's\n", encoding="utf-8")
    run = tmp_path / "run"
    write(Record(id="run", name="x", provenance="measured", status="running", log="train.log"), run)
    (run / "train.log").symlink_to(tmp_path / "private")
    assert "nobody" not in str(settled(read(run), run))
    (run / "train.log").unlink()
    (run / "train.log").write_bytes((tmp_path / "private").read_bytes())
    assert "nobody" in str(settled(read(run), run))
