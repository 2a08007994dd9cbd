"""`python -m compare`: what is read, shown and written, and the exit codes. Bad input is in test_bad_input.py."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from made import SCHEMA, TP2, compared, made, repeats, save, silent
from msgspec.structs import replace

from compare import find_runs
from compare.cli import main
from compare.report import terminal
from compare.report.files import title
from compare.report.page import summary
from conf.errors import InputError

ROOT = Path(__file__).parent.parent.parent
Golden = Callable[[str, str], None]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("runs")


def three_groups(runs: Path) -> None:
    save(runs, *repeats("dp2", (2.0, 2.02, 1.98)), *repeats("tp2", (2.5, 2.52, 2.49), TP2))
    dead = made("pp2", over={"pipeline_model_parallel_size": 2, "data_parallel_size": 1})
    save(runs, replace(dead, status="out_of_memory", cause="torch.OutOfMemoryError: CUDA out of memory.", steps=()))


def test_the_table_the_json_and_the_files(runs: Path, capsys: Capture, golden: Golden) -> None:
    three_groups(runs)
    assert main(["runs", "baseline=DP2"]) == 0
    golden("compare/table.txt", capsys.readouterr().out)
    assert main(["runs", "-o", "out", "--json"]) == 0
    out = capsys.readouterr().out
    jsonschema.validate(json.loads(out), SCHEMA)
    # The last digits of an interval differ between releases of scipy, and a spread of nothing between ways to add.
    shown = json.loads(out, parse_float=lambda text: float(f"{float(text):.9g}") if abs(float(text)) > 1e-12 else 0.0)
    golden("compare/compare.json", json.dumps(shown, indent=1) + "\n")
    assert Path("out/compare.json").read_text() == out
    assert Path("out/compare.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("groups", [3, 7])
def test_a_narrow_terminal_breaks_no_number(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [{"global_batch_size": 8 * (i + 1), "lr": 0.00012345 * (i + 1)} for i in range(groups)]
    result = compared(*(r for i, over in enumerate(sizes) for r in repeats(f"g{i}", (2.0, 2.1, 2.05), over)))

    def shown(columns: int) -> str:
        stream = StringIO()
        monkeypatch.setattr(terminal, "_PLAIN_WIDTH", columns)
        terminal.print_report(summary(result), stream)
        return stream.getvalue()

    wide, narrow = (sorted(re.findall(r"\d[\d.,]* [mlca]\b|±\S+ %", shown(columns))) for columns in (300, 60))
    assert len(wide) > 6 * groups
    assert wide == narrow
    beside = "\n figure" in shown(60).partition("\nGroups")[2].partition("───")[0]
    assert beside == (groups == 3), "a few have a column each"


def test_not_comparable_shows_the_list_before_any_number(runs: Path, capsys: Capture) -> None:
    save(runs, made("a"), made("b", over={**TP2, "lr": 0.1}))
    assert main(["runs", "-o", "out"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("not comparable")
    assert out.index("lr: ") < out.index("tokens/s")
    assert json.loads(Path("out/compare.json").read_text())["ratios"] == []


def test_cannot_tell(runs: Path, capsys: Capture) -> None:
    save(runs, made("a"), silent(made("b", over=TP2), "seq_length"))
    assert main(["runs"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("cannot tell")
    assert "seq_length: unknown, not reported by TP2" in out
    save(runs, made("b", over=TP2, status="running", steps=()))
    assert main(["runs"]) == 3
    assert "running (or its launcher died)" in capsys.readouterr().out


def test_runs_are_found_below_folders_and_links_but_not_among_earlier_attempts(runs: Path) -> None:
    save(runs / "deep", made("run10"), made("run2"))
    save(runs / "deep" / "run2" / "attempts", made("1"))
    save(Path("elsewhere"), made("linked"))
    (runs / "link").symlink_to(Path("elsewhere").resolve())
    (runs / "link" / "circle").symlink_to(runs.resolve())
    (runs / "dangling").symlink_to("nowhere")
    assert [Path(run.path).name for run in find_runs(["runs"])] == ["run2", "run10", "linked"]
    assert len(find_runs(["runs/deep", "runs/deep/run2", "runs/*/run*", "runs/deep/run10/run.json"])) == 2
    assert len(find_runs(["runs/deep/run2/attempts/1"])) == 1


def test_what_cannot_be_read_is_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(runs, made("a"))

    def closed(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(InputError, match=r"runs: cannot be looked into\n    found: Permission denied"):
        find_runs(["runs"])


def test_what_is_varied_may_be_named_with_commas_and_is_reported_with_its_reason(runs: Path, capsys: Capture) -> None:
    def expect(code: int, text: str, *arguments: str) -> None:
        assert main(["runs", *arguments]) == code
        assert text in capsys.readouterr().out

    save(runs, made("a"), made("b", over={**TP2, "lr": 0.1, "params_dtype": "bfloat16"}))
    expect(0, "compared: layout, precision, lr (vary=)", "vary=layout,precision,lr")
    expect(0, '"vary": [\n  "lr",\n  "layout",\n  "params_dtype"\n ]', "--json", "vary=lr, layout,params_dtype")
    expect(3, "not comparable", "vary=layout")
    save(runs, made("b", over=TP2))
    expect(0, "compared: layout (no difference in platform, hardware, framework is reported)")
    save(runs, made("b", platform="amd", hardware="mi300x"))
    expect(0, "compared: platform (the groups differ in platform, hardware)")


def test_the_picture_is_replaced_completely_or_not_at_all(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    three_groups(runs)
    Path("out").mkdir()
    Path("out/compare.png").write_bytes(b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", no_space)
        assert main(["runs", "-o", "out"]) == 2
    assert Path("out/compare.png").read_bytes() == b"old"
    assert [path.name for path in Path("out").iterdir()] == ["compare.png"]


def test_the_title_has_a_sentence_for_each_of_the_first_groups() -> None:
    layouts = (TP2, *({"pipeline_model_parallel_size": n, "data_parallel_size": 1} for n in (2, 4, 8)))
    groups = [repeats(f"g{i}", (2.0 + i, 2.02 + i, 1.98 + i), over) for i, over in enumerate(({}, *layouts))]
    records = [record for group in groups for record in group]
    assert [line.partition(" ")[0] for line in title(compared(*records[:6])).splitlines()] == ["TP2"]
    first, second, third, more = title(compared(*records)).splitlines()
    assert [sentence.partition(" ")[0] for sentence in (first, second, third)] == ["TP2", "PP2", "PP4"]
    assert all("is slower than DP2: " in sentence for sentence in (first, second, third))
    assert more == "1 more group is in the table."


def test_a_reader_that_goes_away_sees_no_traceback(tmp_path: Path) -> None:
    save(tmp_path, *(made(f"run{i}", over={**TP2, "seed": i}) for i in range(40)))
    command = [sys.executable, "-m", "compare", str(tmp_path), "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdout is not None and reading.stderr is not None
        reading.stdout.close()
        assert reading.stderr.read() == b""
    assert reading.returncode == 0


def test_a_run_that_does_not_know_leaves_its_group_unknown() -> None:
    slow, fast = repeats("a", (2.0, 2.1, 2.2)), repeats("b", (1.0, 1.1, 1.2), TP2)
    result = compared(*slow, *fast[:2], replace(fast[2], steps=fast[2].steps[:2]))
    assert result.group_figures["TP2"]["tokens_per_s"].value is None
    assert {(r.ratio, r.word, r.reason) for r in result.ratios} == {(None, "undecided", "unknown of TP2")}
