"""The one grammar: words, KEY=VALUE, switches; numbers as people type them; everything that is wrong at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tensorprimat
from compare.cli import COMPARE
from conf.arguments import Arguments, Command
from conf.errors import Answer, InputError
from conf.freeze import number
from conf.version import VERSION
from conf.vocabulary import vocabulary
from parsers.find import FIELDS
from tensorprimat import cli

ROOT = Path(__file__).parent.parent.parent


def test_numbers_as_people_type_them() -> None:
    plain = {"1T": 1e12, "15e12": 15e12, "1_000": 1000, "2%": 0.02, "7 %": 0.07, "20k": 2e4, "1.45M": 1.45e6, "-3": -3}
    for text, value in {**plain, ".5": 0.5}.items():
        assert number(text) == value
        assert "%" in text or number(f"{text} usd/gpu-hour", ("USD/gpu-hour",)) == value
    for text in ("", "x", "nan", "inf", "1e999", "1,5", "1m", "3 EUR/gpu-hour", "1TT", "1 2", "0x10", "2%"):
        with pytest.raises(ValueError, match=r"number|finite"):
            number(text, ("USD/gpu-hour",))


def parsed(*argv: str) -> Arguments:
    return COMPARE.parse(argv)


def test_words_keys_and_switches_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=0.1").mkdir()
    found = parsed("--json", "vary=lr, seed", "runs", "accept.lr=they mean it", "platform=amd", "lr=0.1", "-o", "out")
    assert (found.words, found.others) == (("runs", "lr=0.1"), ("platform=amd",)), "a path that is there is no filter"
    assert found.rest == ("runs", "platform=amd", "lr=0.1")
    assert (found["vary"], found["accept.*"], found["tokens"]) == (("lr", "seed"), {"lr": "they mean it"}, 1e12)
    assert (found.switches, found.output) == (frozenset({"--json"}), Path("out"))


def test_everything_that_is_wrong_is_reported_at_once() -> None:
    argv = ("pue=0.5", "tokens=x", "tokens=1T", "tokens=2T", "--price", "--jsn", "--json", "--markdown", "-o")
    with pytest.raises(InputError) as caught:
        parsed(*argv)
    places = [problem.where for problem in caught.value.problems]
    assert places == ["--price", "--jsn", "-o", "--json, --markdown", "pue", "tokens", "tokens"]
    hints = {problem.where: problem.hint for problem in caught.value.problems}
    assert hints["--price"].startswith("price.usd_per_gpu_hour.mi355x=3.10")
    assert hints["--jsn"] == "did you mean --json?"


def test_a_secret_is_never_printed() -> None:
    with pytest.raises(InputError) as caught:
        Command(name="x", summary="").parse(["hf_token=s3cret", "tokens=1", "TOKENIZERS_PARALLELISM=2"])
    assert "s3cret" not in str(caught.value)
    assert "found: 1" in str(caught.value)
    assert "found: 2" in str(caught.value)
    with pytest.raises(InputError, match="found: 50%"):
        parsed("tokens=50%")


@pytest.mark.parametrize("argv", ["accept.=x", "baseline.=x", "fail_on.=2%", "price.=2", "accept.a..b=x"])
def test_a_key_with_nothing_behind_its_dot_is_none(argv: str) -> None:
    assert parsed(argv).others == (argv,)


def test_every_command_has_a_help_a_version_and_a_name() -> None:
    for command in cli.commands():
        for flag in ("--help", "-h"):
            with pytest.raises(Answer) as caught:
                command.parse(["nonsense", flag])
            assert command.name.split()[-1] in str(caught.value) or "launch.py" in str(caught.value)
        with pytest.raises(Answer, match=VERSION):
            command.parse(["--version"])
        assert "--json" in command.switches or command.name in ("completion", "data", "demo", "recipes")  # theirs have
        usage, *rows = command.help().splitlines()
        assert max(usage.count("KEY=VALUE"), sum(row.startswith("  KEY=VALUE") for row in rows)) <= 1


def test_help_is_under_the_name_that_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert COMPARE.help().startswith("usage: python -m compare RUN")
    for typed in ("tprimat", "python -m tensorprimat"):
        monkeypatch.setattr(sys, "argv", [f"{typed} compare"])
        assert COMPARE.help().startswith(f"usage: {typed} compare RUN")


def test_no_key_of_a_command_is_a_filter_as_well() -> None:
    for command in cli.commands():
        if command.others.startswith("filters"):
            assert {*command.names} & {*vocabulary(), *FIELDS, "model"} == set()


def test_the_command_without_and_with_a_wrong_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert cli.main(["--help"]) == 0
    assert cli.main(["comparr"]) == 2
    assert "did you mean compare?" in capsys.readouterr().err


def test_no_run_is_said_so_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("compare", "metrics", "metrics cost", "metrics energy"):
        assert cli.main(name.split()) == 2
        assert capsys.readouterr().err.startswith("RUN: none given")
    for function in (tensorprimat.read_runs, lambda: tensorprimat.compare([])):
        with pytest.raises(tensorprimat.UserError, match="RUN: none given"):
            function()


def test_lists_are_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("models", "gpus", "prices", "frameworks"):
        assert cli.main([name, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert cli.main([name]) == 0
        head, *lines = capsys.readouterr().out.splitlines()
        assert head.split() == [column for column in rows[0] if column in head.split()]
        assert [line.split()[0] for line in lines] == [next(iter(row.values())) for row in rows]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tprimat comp", "compare completion"),
        ("tprimat compare vary=lay", "layout"),
        ("tprimat compare ru --js", "--json"),
        ("tprimat launch model=llama31_8", "llama31_8b"),
        ("tprimat metrics cost carbon=FI", "FIN"),
        ("tprimat completion z", "zsh"),
        ("tprimat data pre", "preview"),
        ("tprimat parse status=h", "hung"),
        ("tprimat parse log hardware=mi25", "mi250x"),
        ("tprimat compare price=o", "oracle"),
        ("tprimat compare platform=am", "amd"),
        ("tprimat compare fail_on.reg", "fail_on.regression="),
        ("tprimat compare accept.adam_e", "accept.adam_eps="),
        ("tprimat metrics cost capex.usd_per_gpu.mi25", "capex.usd_per_gpu.mi250x="),
        ("tprimat metrics check hardware=mi25", "mi250x"),
        ("tprimat launch rehearse=", "train layout"),
        ("tprimat launch training.seq", "training.seq_length="),
        ("tprimat launch dry_run=t", "true"),
        ("tprimat metrics check precision=f", "fp32 fp8 fp4"),
    ],
)
def test_completion_in_bash(line: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.completion(["bash"]) == 0
    # as bash does: words also end at =
    words = line.replace("=", " = ").split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    ask = f"COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}"
    script = f'{capsys.readouterr().out}\n{ask}\ncompopt() {{ :; }}\n_tprimat\necho "${{COMPREPLY[*]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_completion_for_zsh_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.completion(["zsh"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#compdef tprimat\n")
    assert all(f"'{command.name}" in script for command in cli.commands())
    assert cli.completion(["fish"]) == 2


PROGRAM = """
import sys
from conf.errors import command
@command
def main(argv=None):
    print("row\\n" * 100_000)
    sys.stdout.writelines(["last\\n"])
    return 3
sys.exit(main())
"""


def test_a_gate_fails_whoever_reads_its_table() -> None:
    script = 'set -o pipefail; "$1" -c "$2" | head -n 1'
    done = subprocess.run(["bash", "-c", script, "sh", sys.executable, PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "row\n", "")


def test_a_full_disk_is_reported() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("standard output: cannot be written") and "Traceback" not in done.stderr
