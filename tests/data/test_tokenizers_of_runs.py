"""data.tokenizer= of a run: what is refused, by the real command, before anything trains; and on another machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tensorprimat import data
from tensorprimat.launch import main as launch

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


def corpus(folder: Path, tokenizer: Path, more: str = "") -> Path:
    source = folder / "a.jsonl"
    source.write_text("".join(json.dumps({"text": text + more}) + "\n" for text in TEXTS), encoding="utf-8")
    arguments = ["tokenize", str(source), f"tokenizer={tokenizer}", "processes=1", f"eod_token={END}"]
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
        (f"data.tokenizer={own / 'tokenizer.json'}",): "is no folder of a tokenizer of Hugging Face's",
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
