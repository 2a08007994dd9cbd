"""Whatever is printed, by whichever command: nothing of a log, a config or a file steers the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.errors import ConfigError, Problem, command
from conf.plain import harmless, terminal
from tensorprimat.launch import main as launch

HOSTILE = "\x1b[2J\x1b]0;owned\x07 \x9b31m \u202e \r gone"


@command
def prints(argv: Sequence[str] | None = None) -> int:
    print(HOSTILE)
    print(HOSTILE, file=sys.stderr)
    raise ConfigError(Problem(HOSTILE, "is wrong"))


def test_no_command_prints_what_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert prints([]) == 2
    out, err = capsys.readouterr()
    assert "gone" in out
    assert err.count("gone") == 2
    assert not set("\x1b\x07\x9b\u202e\r") & set(out + err)


def test_a_dry_run_and_a_refused_key_do_not_either(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(["platform=cpu", "dry_run=true", f'environment.NCCL_DEBUG="{HOSTILE}"']) in (0, 2)
    assert launch(["platform=cpu", f'model.num_layers="{HOSTILE}"', "dry_run=true"]) == 2
    out, err = capsys.readouterr()
    assert "[2J" in out + err
    assert not set("\x1b\x07\x9b\u202e\r") & set(out + err)


def test_what_a_program_reads_stays_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"path": "µ\u00a0ミ\u3000é\u2028 \x1b \t", "lines": "a\r\nb"}

    @command
    def shows(argv: Sequence[str] | None = None) -> int:
        print(json.dumps(value, ensure_ascii=False))
        print("a\tb\r\nc")
        return 0

    assert shows([]) == 0
    first, rest = capsys.readouterr().out.split("\n", 1)
    assert json.loads(first) == value
    assert rest == "a\tb\r\nc\n"


@given(st.text())
def test_letters_of_any_script_stay_and_twice_is_once(text: str) -> None:
    once = harmless(text)
    assert harmless(once) == once
    assert len(once) == len(text)
    assert [c for c in text if c.isprintable()] == [c for c in once if c.isprintable() and c in text]


def test_a_library_that_draws_gets_the_stream_behind() -> None:
    stream = sys.stderr
    assert terminal(stream) is stream
