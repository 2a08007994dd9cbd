"""The Megatron dialect and our marks: what is read, what is refused, and that nothing makes the reader raise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from parsers import Restart, live, parse, parse_all
from parsers.scan import LINE_LIMIT

ROOT = Path(__file__).parents[2]
ENGINE = Path(__file__).parent / "fixtures" / "engine.log"
LINE = (
    " [2026-11-21 13:00:00.1] iteration {i:8d}/      20 | consumed samples:  {c:9d} | elapsed time per iteration (ms): "
    "1234.5 | learning rate: {lr:.6E} | global batch size:     8 | lm loss: 6.26E+00 | loss scale: 1.0 |"
)


def line(iteration: int, lr: float = 1e-4) -> str:
    return LINE.format(i=iteration, c=iteration * 8, lr=lr)


def test_the_engines_own_log() -> None:
    parsed = parse(ENGINE)
    first, last = parsed.steps[0], parsed.steps[-1]
    assert (first.step, first.iteration, last.iteration) == (0, 1, parsed.train_iters)
    assert first.lr_used == 0.0005
    assert first.end_monotonic_s is not None
    assert first.memory_kind == "rss"
    assert parsed.facts["backend"] == "gloo"
    assert parsed.facts["parameters_by_rank"].keys() == {"0,0", "1,0"}
    assert parsed.effective["params_dtype"].value == "float32"
    assert parsed.effective["recompute_granularity"].value is None
    assert parsed.completed


def test_the_rate_that_a_step_used_stands_in_the_line_before() -> None:
    parsed = parse([line(1, 1e-4), line(2, 2e-4), line(4, 4e-4), line(5, 5e-4), line(5, 5e-4)])
    assert [step.lr_used for step in parsed.steps] == [None, 1e-4, None, 4e-4]


def test_a_mark_refines_the_step_of_its_iteration() -> None:
    parsed = parse([line(1), '[tprimat] step {"iteration": 1, "lr_used": 1.25e-5, "loss": 6.2601, "x": 1}', line(2)])
    assert [(s.iteration, s.lr_used, s.loss) for s in parsed.steps] == [(1, 1.25e-5, 6.2601), (2, 1e-4, 6.26)]


def test_a_line_that_another_process_wrote_into_our_mark_is_read() -> None:
    mark = '[tprimat] step {"iteration": %d, "lr_used": 1e-5, "end_monotonic_s": 2.5}'
    apart = parse([line(1), mark % 1, line(2), mark % 2, line(3)]).steps
    glued = parse([line(1) + mark % 1, "", mark % 2 + line(2), "", f"[rank0]: {line(3)}"]).steps
    assert [replace(step, line=1) for step in glued] == [replace(step, line=1) for step in apart]
    assert [step.iteration for step in glued] == [1, 2, 3]


def test_a_line_that_is_seen_to_end_after_the_next_mark_joins_its_own() -> None:
    mark, nan = '[tprimat] step {"iteration": %d, "loss": 6.26017}', " number of nan iterations:   0 |"
    log = [mark % 1, f"{line(1)}{nan}Number of parameters in billions:  0.00", "", mark % 2, line(2) + nan, mark % 3]
    (run,) = parse_all(log)
    assert [(step.iteration, step.loss, step.line) for step in run.steps] == [
        (i, 6.26017, at) for i, at in ((1, 2), (2, 5), (3, 6))
    ]


def test_a_mark_alone_is_a_step_and_the_line_that_follows_joins_it() -> None:
    mark = '[tprimat] step {"iteration": 3, "lr_used": 1e-5, "memory_bytes": 7, "memory_kind": "rss"}'
    parsed = parse([mark, line(3), line(4)])
    assert [(s.iteration, s.lr_used, s.memory_bytes, s.line) for s in parsed.steps] == [
        (3, 1e-5, 7, 2),
        (4, 1e-4, None, 3),
    ]


def test_a_mark_that_is_no_mark_changes_nothing() -> None:
    for mark in (
        '{"iteration": true}',
        '{"iteration": "1"}',
        '{"loss": 1.0}',
        "[1]",
        "{",
        "[" * 60_000,
        '{"iteration": 1' + "0" * 5000 + "}",
    ):
        assert parse([line(1), f"[tprimat] step {mark}"]).steps == parse([line(1)]).steps


def test_a_field_of_a_wrong_type_stays_as_it_was() -> None:
    parsed = parse([line(1), '[tprimat] step {"iteration": 1, "loss": "6", "lr_used": true, "memory_bytes": 1.5}'])
    assert parsed.steps == parse([line(1)]).steps


def test_a_loss_that_is_not_finite_is_named_and_is_no_number() -> None:
    parsed = parse(
        [
            line(1).replace("6.26E+00", "NAN"),
            line(2),
            '[tprimat] step {"iteration": 2, "loss": null, "nonfinite": true}',
        ]
    )
    assert [(s.loss, s.nonfinite) for s in parsed.steps] == [(None, ("loss",)), (None, ("loss",))]


def test_a_number_cut_short_is_no_number() -> None:
    complete = line(1)
    cut = parse([complete[: complete.index("6.26") + 2]]).steps[0]
    assert (cut.loss, cut.global_batch_size) == (None, 8)


@pytest.mark.parametrize("printed", ["6.2[rank1]", "1_0", "0x10", "٣", "", "1e99999"])
def test_what_is_not_wholly_a_number_is_none(printed: str) -> None:
    assert parse([line(1).replace("6.26E+00", printed)]).steps[0].loss is None


@pytest.mark.parametrize(
    "prefix", ["", "0: [default0]:", "2026-01-01T00:00:00 ", "\x1b[32m", "Number of parameters 0.08"]
)
def test_any_prefix(prefix: str) -> None:
    assert parse([prefix + line(7)]).steps[0].iteration == 7


def test_the_argument_dump() -> None:
    dump = """0: [default0]:------------------------ arguments ------------------------
0: [default0]:  bf16 ............................................ True
0: [default0]:  lr .............................................. 0.0003
0: [default0]:  norm_epsilon .................................... 1e-05
0: [default0]:  params_dtype .................................... torch.bfloat16
0: [default0]:  data_path ....................................... ['a b', 1]
0: [default0]:  recompute_method ................................ None
0: [default0]:-------------------- end of arguments ---------------------
0: [default0]:  seed ............................................ 7"""
    parsed = parse(dump.splitlines())
    assert {name: at.value for name, at in parsed.effective.items()} == {
        "norm_epsilon": 1e-5,
        "lr": 0.0003,
        "params_dtype": "bfloat16",
        "data_path": "['a b', 1]",
        "recompute_method": None,
    }
    assert parsed.effective["lr"].line == 3
    assert parsed.arguments["bf16"].value is True
    assert parsed.arguments["data_path"].value == "['a b', 1]"


def test_two_dumps_that_differ_leave_the_setting_unknown() -> None:
    dump = ["---- arguments ----", "  lr ........ 0.1", "---- end of arguments ----"]
    parsed = parse([*dump, dump[0], "  lr ........ 0.2", dump[2], *dump])
    assert "lr" not in parsed.effective
    assert "lr" in " ".join(parsed.notes)


def test_an_iteration_that_goes_back_takes_back_what_it_redoes() -> None:
    again = [line(i, i * 1e-4) for i in (1, 2, 3, 4)] + [line(i, i * 1e-5) for i in (3, 4, 5)]
    parsed = parse(again)
    assert [(s.iteration, s.line) for s in parsed.steps] == [(1, 1), (2, 2), (3, 5), (4, 6), (5, 7)]
    assert parsed.restarts == (Restart(steps=2, line=5),)


def test_a_first_iteration_that_comes_again_is_another_run() -> None:
    runs = parse_all([line(i, 1e-4) for i in range(1, 10)] + ["x"] + [line(i, 2e-4) for i in (1, 2)])
    assert [[s.iteration for s in run.steps] for run in runs] == [list(range(1, 10)), [1, 2]]
    assert runs[1].first_line == 11


def test_the_runs_of_two_programs_in_one_log() -> None:
    titan = [
        f"[titan] - root - INFO - step: {i:2d}  loss:  {i}.50000  memory:  1.00GiB(9.00%)  tps: 10,050" for i in (1, 2)
    ]
    runs = parse_all([*(line(i) for i in range(1, 5)), "something else", *titan])
    assert [(run.dialect, len(run.steps)) for run in runs] == [("megatron", 4), ("torchtitan", 2)]
    assert [run.steps[0].line for run in runs] == [1, 6]


def test_a_line_of_ten_megabytes_is_cut() -> None:
    parsed = parse([b"x" * 10_000_000 + b"\n", line(1), "iteration" + " " * 10_000_000, "a ." * 3_000_000])
    assert len(parsed.steps) == 1
    assert max(map(len, parsed.tail)) < LINE_LIMIT


def test_live_and_detect() -> None:
    step = live(line(9))
    assert step is not None and step.iteration == 9
    assert live("nothing") is None
    assert parse(["noise", line(1)]).dialect == "megatron"
    assert parse(["noise"]).dialect is None


@given(st.sets(st.integers(1, 99), max_size=30).map(sorted), st.data())
def test_noise_between_the_lines_changes_no_step(iterations: list[int], data: st.DataObject) -> None:
    noise = st.text(alphabet=st.characters(exclude_characters="\n\r["), max_size=40).filter(
        lambda t: "iteration" not in t
    )
    lines = [text for i in iterations for text in (*data.draw(st.lists(noise, max_size=2)), line(i, i * 1e-6))]
    steps = parse(lines).steps
    assert [step.iteration for step in steps] == iterations
    assert [step.lr for step in steps] == pytest.approx([i * 1e-6 for i in iterations])


def test_importing_the_parsers_is_light() -> None:
    heavy = ("torch", "numpy", "jinja2", "hydra", "scipy", "rich", "jsonschema", "yaml")
    code = f"import sys, parsers, metrics, compare; sys.exit(' '.join(m for m in {heavy} if m in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
