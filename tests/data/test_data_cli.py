"""Test what data= takes, how large a corpus is made, and `tprimat data`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conf import load_experiment
from conf.errors import ConfigError
from conf.load import spelled_out
from launchers import corpus, make_plan, preflight
from launchers.frameworks.megatron import FRAMEWORK
from launchers.plan import Host
from tensorprimat import data

pytest.importorskip("numpy")
CPU = "platform=cpu"


def make(prefix: Path, vocabulary: int = 512, tokens: int = 30000) -> str:
    numbers = ("--vocab-size", str(vocabulary), "--seed", "1", "--tokens", str(tokens))
    subprocess.run([sys.executable, str(corpus.PROGRAM), "--prefix", str(prefix), *numbers], check=True)
    return str(prefix)


def test_a_path_is_the_short_form_of_a_corpus() -> None:
    others = ["data=mock", "data.path=/z", "metadata=/q"]
    assert spelled_out(["data=/x/y", *others]) == ["data=prefix", "data.path=/x/y", *others]
    short, long = (load_experiment(CPU, *o) for o in (["data=/x/y"], ["data=prefix", "data.path=/x/y"]))
    assert short.data == long.data
    assert (short.data.name, short.data.path, short.data.split) == ("prefix", "/x/y", "100,0,0")


def test_a_relative_path_is_of_the_users_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_experiment(CPU, "data=./c").data.path == str(tmp_path / "c")
    assert load_experiment(CPU, "data='with blank/c'").data.path == str(tmp_path / "with blank" / "c")
    assert load_experiment(CPU).data.path == "data/corpus", "but of the run's where the run makes it"


def test_one_side_may_have_its_corpus_elsewhere() -> None:
    e = load_experiment(CPU, "per_platform.cpu.data=/mnt/c")
    assert (e.data.name, e.data.path) == ("prefix", "/mnt/c")
    assert [d.key for d in e.declared] == ["data", "data_path"]


def test_data_that_cannot_be_is_refused() -> None:
    for overrides, message in (
        (["data=prefix"], "data=prefix needs a path"),
        (["data=/x/y.bin"], "try: /x/y"),
        (["data=mock", "data.path=/x"], "data=mock reads no files"),
        (["data.split='969,30'"], "three weights"),
        (["data=mock", "data.split='100,0,0'"], "knows no other"),
        (["data=sinthetic"], "did you mean synthetic"),
        (["training.seed=4294967296"], "32 bits"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_experiment(CPU, *overrides)


def test_mock_data_needs_a_vocabulary_that_holds_it() -> None:
    host = Host(python="python", cpu_count=2)
    with pytest.raises(ConfigError, match="ids up to 4094"):
        make_plan(load_experiment(CPU, "data=mock"), host)
    made = make_plan(load_experiment(CPU, "data=mock", "model.vocab_size=4096"), host)
    assert made.setup == ()
    assert json.loads(made.files["settings.json"])["data_path"] is None


@pytest.mark.parametrize("overrides", [[], ["training.train_iters=3", "training.global_batch_size=2"], ["model=llama"]])
def test_a_synthetic_corpus_is_one_epoch_with_some_to_spare(overrides: list[str]) -> None:
    e = load_experiment(CPU, *overrides, "optimizer.lr_warmup_iters=1")
    samples = (corpus.tokens(e) - 1) // e.training.seq_length
    assert corpus.samples(e) == e.training.train_iters * e.training.global_batch_size
    assert corpus.samples(e) + e.training.global_batch_size <= samples < corpus.samples(e) * 1.1 + 10
    assert samples >= corpus.samples(e) * 1.005


def test_a_plan_makes_a_corpus_and_checks_one_that_is_given() -> None:
    host = Host(python="python", cpu_count=2)
    (made,) = FRAMEWORK.render(load_experiment(CPU), host).setup
    assert made[:2] == ("python", str(corpus.PROGRAM))
    assert made[-2:] == ("--tokens", str(corpus.tokens(load_experiment(CPU))))
    given = FRAMEWORK.render(load_experiment(CPU, "data=/x/y"), host)
    assert given.setup[0][-1] == "--check"
    assert f" && python {corpus.PROGRAM} --prefix /x/y " in given.command()


def test_a_corpus_that_is_here_is_looked_at_before_anything_starts(tmp_path: Path) -> None:
    prefix = make(tmp_path / "c")
    assert [p for p in preflight.problems(load_experiment(CPU, f"data={prefix}")) if prefix in p.where] == []
    for override, message in (
        ("model.vocab_size=500", "has ids that the model does not have"),
        ("data.split='9999,1,0'", "has nothing in the validation part"),
        ("data.path=/nowhere/c", "no corpus is here"),
    ):
        found = preflight.problems(load_experiment(CPU, f"data={prefix}", override))
        assert [message in p.what for p in found if p.where.startswith((prefix, "/nowhere"))] == [True]
        assert all(p.found and p.hint for p in found)


def test_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = make(tmp_path / "c")
    assert data.main(["inspect", prefix]) == 0
    text = capsys.readouterr().out
    for part in ("30,000", "0 to 511, so vocab_size 512 or more", "uint16", "60,000 bytes, sha256", "fingerprint"):
        assert part in text
    assert data.main(["inspect", prefix, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    manifest = json.loads(Path(f"{prefix}.json").read_text())
    assert {k: v for k, v in manifest.items() if k in found} == {k: v for k, v in found.items() if k in manifest}
    assert len(found["fingerprint"]) == 64


def test_preview_is_the_batch_that_is_predicted_for_the_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert data.main(["preview", CPU, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(sample) for sample in found["tokens"]] == [129] * 8
    (command,) = corpus.setup(load_experiment(CPU, f"data.path={tmp_path}/c"), sys.executable)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found["data_first_batch"] in done.stdout
    assert data.main(["preview", CPU, "gpus_per_node=2", "training.micro_batch_size=2"]) == 0
    rows = [line.split()[:3] for line in capsys.readouterr().out.splitlines()[3:]]
    assert [(int(j), int(r)) for _, j, r in rows] == [(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0), (1, 1), (1, 1)]
    assert data.main(["preview", CPU, f"data={make(tmp_path / 'own')}"]) == 0
    assert 0 <= int(capsys.readouterr().out.splitlines()[3].split()[3]) < 512


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "/nowhere/c"], "no corpus is here"),
        (["preview", CPU, "data=mock"], "no batch is the same on all of them"),
        (["preview", CPU, "data=/nowhere/c"], "no corpus is here"),
        (["preview", "modle=x"], "no such key"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert data.main(arguments) == 2
    assert message in capsys.readouterr().err
