"""data.tokenizer= of a run: what is refused, by the real command, before anything trains; and on another machine."""

from __future__ import annotations

import base64
import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conf import load_experiment
from launchers import preflight
from tensorprimat import data
from tensorprimat.launch import main as launch

RANKS = Path(__file__).parents[2] / "launchers" / "ranks"
tokenizers = pytest.importorskip("tokenizers", reason="pip install 'tensorprimat[data]'")
END, PAD = "<|endoftext|>", "<|pad|>"
TEXTS = ["the corpus of tokens", "a loss of a step", "the end of the epoch"] * 200
RUN = (
    "platform=cpu",
    "framework=megatron",
    "model=llama_tiny",
    "training.train_iters=2",
    "optimizer.lr_warmup_iters=1",
)


def made(folder: Path, merges: int = 20, **config: str) -> Path:
    """Return the folder of a tokenizer of 258 ids and `merges` more, with this configuration."""
    one = tokenizers.Tokenizer(tokenizers.models.BPE())
    one.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=258 + merges, special_tokens=[END, PAD], initial_alphabet=alphabet, show_progress=False
    )
    one.train_from_iterator(TEXTS, trainer)
    folder.mkdir()
    one.save(str(folder / "tokenizer.json"))
    stated = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 10**9, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated), encoding="utf-8")
    return folder


def sentencepiece(folder: Path, **trainer: Any) -> Path:
    """Return a model of sentencepiece, trained with these arguments of its trainer."""
    package = pytest.importorskip("sentencepiece")
    wishes = {"vocab_size": 60, "hard_vocab_limit": False, "minloglevel": 2, **trainer}
    with (folder / "own.model").open("wb") as file:
        package.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), model_writer=file, **wishes)
    return folder / "own.model"


def tiktoken(folder: Path, more: int = 20) -> Path:
    """Return a vocabulary of tiktoken in Megatron's form, of 256 bytes and `more` tokens."""
    pytest.importorskip("tiktoken")
    tokens = [bytes([n]) for n in range(256)] + [b"th%c" % (97 + n) for n in range(more)]
    listed = [
        {"rank": n, "token_bytes": base64.b64encode(t).decode(), "token_str": t.decode("utf-8", "replace")}
        for n, t in enumerate(tokens)
    ]
    (folder / "own.json").write_text(json.dumps(listed), encoding="utf-8")
    return folder / "own.json"


def corpus(folder: Path, tokenizer: Path, more: str = "", *words: str) -> Path:
    source = folder / "a.jsonl"
    source.write_text("".join(json.dumps({"text": text + more}) + "\n" for text in TEXTS), encoding="utf-8")
    arguments = ["tokenize", str(source), f"tokenizer={tokenizer}", "processes=1", *(words or (f"eod_token={END}",))]
    assert data.main([*arguments, "-o", str(folder / "corpus")]) == 0
    return folder / "corpus"


def refused(capsys: pytest.CaptureFixture[str], folder: Path, prefix: Path, *words: str) -> str:
    capsys.readouterr()
    assert launch([*RUN, f"data={prefix}", f"runs_dir={folder / 'runs'}", *words]) == 2
    assert not [*(folder / "runs").glob("*/*/train.log")]
    return capsys.readouterr().err


def test_a_tokenizer_that_is_not_the_models_or_not_the_corpus_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, other = made(tmp_path / "own", eos_token=END), made(tmp_path / "other", merges=15, eos_token=END)
    larger = made(tmp_path / "larger", merges=30, eos_token=END)  # with ids that no text of the corpus has
    mute, prefix = made(tmp_path / "mute"), corpus(tmp_path, own)
    sizes = [json.loads((one / "tokenizer.json").read_text())["model"]["vocab"] for one in (own, larger)]
    assert len(sizes[0]) < len(sizes[1])
    cases = {
        (f"data.tokenizer={larger}", f"model.vocab_size={len(sizes[0])}"): "has more tokens than the model",
        (f"data.tokenizer={other}",): "was made with another tokenizer than data.tokenizer",
        (f"data.tokenizer={mute}",): "has no end of text",
        (f"data.tokenizer={own}", "data.tokenizer_sha256=00"): "is another tokenizer than the requested one",
        (f"data.tokenizer={own / 'tokenizer.json'}",): "names no end of text: transformers",
        ("data.tokenizer=nobody/nothing",): "hf download ID --local-dir FOLDER",
    }
    for words, what in cases.items():
        assert what in refused(capsys, tmp_path, prefix, *words), words


def test_a_corpus_with_its_tokens_of_padding_is_not_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    padded = made(tmp_path / "padded", eos_token=END, pad_token=PAD)
    prefix = corpus(tmp_path, padded, more=PAD)
    capsys.readouterr()
    assert launch([*RUN, f"data={prefix}", f"data.tokenizer={padded}", f"runs_dir={tmp_path / 'runs'}"]) == 1
    assert "has the tokenizer's id of padding" in capsys.readouterr().out


def test_a_bundle_takes_no_other_tokenizer_where_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a blend of two corpora, a split and validations, on a machine where the tokenizer is another."""
    own = made(tmp_path / "own", eos_token=END)
    prefix = corpus(tmp_path, own)
    for suffix in (".bin", ".idx", ".json"):
        shutil.copy(f"{prefix}{suffix}", f"{tmp_path}/second{suffix}")
    words = (
        *RUN,
        f"data.blend={{{prefix}: 0.7, {tmp_path}/second: 0.3}}",
        f"data.tokenizer={own}",
        f"bundle={tmp_path / 'b'}",
    )
    assert launch([*words]) == 2
    assert "say which one is meant" in capsys.readouterr().err
    known = json.loads(Path(f"{prefix}.json").read_text())["tokenizer"]["sha256"]
    assert launch([*words, f"data.tokenizer_sha256={known}", 'data.split="80,20,0"']) == 0
    with (own / "tokenizer.json").open("a") as file:
        file.write("\n")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", str(tmp_path / "b" / "run.sh")], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "is another tokenizer than the requested one" in done.stdout


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RANKS))
    return importlib.import_module("tokenizer_facts")


@pytest.mark.parametrize(
    "trainer",
    [
        {"model_type": "bpe", "pad_id": 3},
        {"model_type": "unigram", "byte_fallback": True, "vocab_size": 320},
        {"eos_piece": "<end>", "bos_id": -1},
        {"eos_id": 0, "unk_id": 1, "bos_id": 2, "user_defined_symbols": ["</s>"], "eos_piece": "<stop>"},
        {"eos_id": -1},
    ],
)
def test_a_model_of_sentencepiece_is_read_as_its_library_does(
    trainer: dict[str, Any], facts: Any, tmp_path: Path
) -> None:
    path = sentencepiece(tmp_path, **trainer)
    theirs = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_file=str(path))
    known = {"eod": theirs.eos_id(), "bos": theirs.bos_id(), "pad": theirs.pad_id()}
    read = facts.read(str(path), 1000)
    assert read["tokenizer_vocab_size"] == theirs.get_piece_size()
    assert {name: read[f"tokenizer_{name}"] for name in known} == {n: None if i < 0 else i for n, i in known.items()}


@pytest.mark.parametrize("size", [1, 10, 200])
def test_a_torn_model_of_sentencepiece_is_refused(size: int, facts: Any, tmp_path: Path) -> None:
    path = sentencepiece(tmp_path)
    path.write_bytes(path.read_bytes()[:-size])
    with pytest.raises(facts.Refused, match="cannot be read as a model of sentencepiece"):
        facts.read(str(path), 1000)


def test_a_tokenizer_in_another_form_than_its_name_says_is_refused_with_a_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = made(tmp_path / "own", eos_token=END)
    prefix = corpus(tmp_path, own)
    shutil.copytree(own, tmp_path / "folder.model")
    (tmp_path / "ranks.tiktoken").write_bytes(b"AA== 0\n")
    (tmp_path / "broken.json").write_text("[{", encoding="utf-8")
    (tmp_path / "noise.model").write_bytes(b"\x0a\xff\xff")
    shutil.copy(sentencepiece(tmp_path), tmp_path / "spiece")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "tokenizer.json").write_text('{"model": [1]}', encoding="utf-8")
    (tmp_path / "torn" / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    cases = {
        own / "tokenizer.json": "FOLDER/tokenizer_config.json",
        tmp_path / "folder.model": "is a folder, and named like a file",
        tmp_path / "ranks.tiktoken": "TikTokenConverter",
        tmp_path / "broken.json": "cannot be read as a vocabulary of tiktoken",
        tmp_path / "noise.model": "cannot be read as a model of sentencepiece",
        tmp_path / "spiece": f"a link to it, {tmp_path}/spiece.model",
        tmp_path / "torn": "has no vocabulary as the library tokenizers writes it",
        tmp_path / "own" / "tokenizer_config.json": "tokenizer_config.json",
    }
    for path, what in cases.items():
        assert what in refused(capsys, tmp_path, prefix, f"data.tokenizer={path}"), path


def test_a_vocabulary_of_tiktoken_with_other_ids_than_stacks_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vocabulary = tiktoken(tmp_path)
    few = ("eod_token=</s>", "vocab_size=290", "tiktoken_num_special_tokens=14")
    prefix = corpus(tmp_path, vocabulary, "", *few)
    what = refused(capsys, tmp_path, prefix, f"data.tokenizer={vocabulary}", "model.vocab_size=1276")
    assert "vocab_size=290, tiktoken_num_special_tokens=14" in what and "tprimat data tokenize again" in what
    what = refused(capsys, tmp_path, prefix, f"data.tokenizer={vocabulary}", "model.vocab_size=1300")
    assert "model.vocab_size=1276" in what


def test_a_folder_may_hold_the_tokenizer_of_a_corpus_that_its_file_alone_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, padded = made(tmp_path / "own", eos_token=END), made(tmp_path / "padded", eos_token=PAD)
    prefix = corpus(tmp_path, own / "tokenizer.json")
    words = (*RUN, f"data={prefix}", f"runs_dir={tmp_path / 'runs'}", "dry_run=true")
    assert launch([*words, f"data.tokenizer={own}"]) == 0
    assert "was made with another tokenizer" in refused(capsys, tmp_path, prefix, f"data.tokenizer={padded}")


@pytest.mark.parametrize("framework", ["nemo", "megatron_bridge", "primus"])
def test_a_stack_without_the_library_of_the_tokenizer_is_refused(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    monkeypatch.setenv("PRIMUS_PATH", str(tmp_path))
    words = [f"framework={framework}", f"framework.python={tmp_path}/bare/bin/python", "rehearse=train", "model=llama"]
    words += [f"data={tmp_path}/c", "framework.release=v26.5" if framework == "primus" else "name=t"]

    def told(tokenizer: str) -> str:
        return " ".join(map(str, preflight.rehearsal_problems(load_experiment(*words, f"data.tokenizer={tokenizer}"))))

    assert "tiktoken is missing" in told("/c/own.json") and "pip install tiktoken" in told("/c/own.json")
    assert "sentencepiece is missing" in told("/c/own.model")
    assert "transformers is missing" in told("/c/own")
    ours = [word for word in words if "framework" not in word]
    assert not [*preflight.rehearsal_problems(load_experiment(*ours, "framework=megatron", "data.tokenizer=/c/own"))]


@pytest.mark.engine
@pytest.mark.parametrize("form", ["sentencepiece", "tiktoken"])
def test_a_run_has_a_tokenizer_of_a_file(form: str, tmp_path: Path) -> None:
    size = 1276 if form == "tiktoken" else 320
    more = {"model_type": "bpe", "byte_fallback": True, "vocab_size": size}
    path = tiktoken(tmp_path) if form == "tiktoken" else sentencepiece(tmp_path, **more)
    prefix = corpus(tmp_path, path, "", "eod_token=</s>", *([f"vocab_size={size}"] if form == "tiktoken" else []))
    words = [*RUN, f"data={prefix}", f"data.tokenizer={path}", f"model.vocab_size={size}", f"runs_dir={tmp_path}/runs"]
    assert launch([*words, "training.seq_length=32", "training.global_batch_size=4"]) == 0
    (record,) = (json.loads(one.read_text()) for one in (tmp_path / "runs").glob("*/*/run.json"))
    told = json.loads(Path(f"{prefix}.json").read_text())["tokenizer"]
    effective = {name: one["value"] for name, one in record["effective"].items()}
    assert effective["tokenizer_type"] == {"tiktoken": "TikTokenizer", "sentencepiece": "SentencePieceTokenizer"}[form]
    assert effective["tokenizer_vocab_size"] == told["vocab_size"] and effective["tokenizer_eod"] == told["eod_id"]
    assert effective["tokenizer_sha256"] == told["sha256"]
