"""One blend, with its validations, on NeMo, Megatron-Bridge, Primus (where PRIMUS_PATH names one) and the engine: the
same samples in the same order, and so losses that are bit-equal, in training and in validation."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conf.frameworks import is_module as has_module
from parsers import Record, read
from tensorprimat import data
from tests.drills import free_port
from tests.rehearsal.stacks import ROOT, SAME, compared, found_by, interpreter

pytestmark = pytest.mark.nvidia
STACKS = ("nemo", "megatron_bridge", "megatron")
WORK = ("training.eval_interval=4", "training.eval_iters=2", 'data.split="90,10,0"')
CASES = {
    "1 rank": (400, ()),
    "DP2": (400, ("gpus_per_node=2",)),
    "TP2": (400, ("layout=tp2", "gpus_per_node=2")),
    "several epochs": (20, ()),
}


def blended(folder: Path, documents: int, stacks: tuple[str, ...], more: tuple[str, ...]) -> dict[str, Record]:
    """Rehearse a blend of two corpora of so many documents on `stacks`; return the record of each."""
    for seed, name in ((1, "wiki"), (2, "code")):
        words = ("--vocab-size", "1000", "--seed", str(seed), "--documents", str(documents))
        made = (sys.executable, str(ROOT / "launchers/ranks/corpus.py"), "--prefix", str(folder / name), *words)
        subprocess.run(made, check=True, capture_output=True)
    return rehearse_all(folder, stacks, "model.vocab_size=1000", *more)


def rehearse_all(folder: Path, stacks: tuple[str, ...], *more: str) -> dict[str, Record]:
    """Rehearse the blend of `folder`/wiki and code on `stacks`; return the record of each."""
    blend = f"data.blend={{{folder}/wiki: 0.7, {folder}/code: 0.3}}"
    argv = ("launch.py", "-m", f"framework={','.join(stacks)}", f"runs_dir={folder}", "name=t", *SAME, *WORK, blend)
    variables = {"NEMO_PYTHON": interpreter("nemo"), "BRIDGE_PYTHON": interpreter("megatron_bridge")}
    env = {**os.environ, **variables, "MASTER_PORT": str(free_port()), "HF_HUB_OFFLINE": "1"}
    command = (sys.executable, str(ROOT / argv[0]), *argv[1:], *more)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    return {r.framework or "": r for r in (read(path.parent) for path in (folder / "t").glob("*/run.json"))}


def check(records: dict[str, Record], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that all read what was requested, lost and validated the same."""
    firsts = {record.environment.get("data_first_batch") for record in records.values()} - {None}
    assert firsts == {record.environment["data_first_batch_predicted"] for record in records.values()}
    for name, record in records.items():
        declared = {entry.key for entry in record.declared}
        assert (name, [str(d) for d in record.differences if d.setting not in declared]) == (name, [])
        inside = {p.iteration for p in record.validations if p.split == "valid"}
        assert (name, inside) == (name, {4, 8})
    answer = compared(capsys, folder / "t")
    assert found_by(answer, ("unexplained",)) == set(), json.dumps(answer, indent=1)[:2000]
    states = {one["name"]: one["state"] for one in answer["checks"]}
    assert {states[name] for name in ("tokens_checksum", "inputs", "loss", "grad_norm", "validation")} == {"equal"}
    reasons = {one["name"]: one["reason"] for one in answer["checks"]}
    added_up = "losses in another order" if "primus" in records else "bit-equal"  # by an evaluator of its own
    assert "bit-equal" in reasons["loss"]
    assert "bit-equal" in reasons["validation"] or added_up in reasons["validation"]


@pytest.mark.parametrize("case", CASES)
def test_a_blend_is_the_same_training_on_every_stack(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents, more = CASES[case]
    records = blended(tmp_path, documents, STACKS, more)
    assert set(records) == set(STACKS)
    check(records, tmp_path, capsys)
    epochs = {tuple(record.environment["data_epochs"]) for record in records.values()}
    assert (case == "several epochs") == (max(max(counts) for counts in epochs) > 1) and len(epochs) == 1


@pytest.mark.parametrize("case", ["1 rank", "DP2", "TP2"])
def test_primus_reads_the_same_blend(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    interpreter("primus")  # skipped by name without
    documents, more = CASES[case]
    stacks = (*STACKS, "primus") if case == "1 rank" else ("megatron", "primus")
    records = blended(tmp_path, documents, stacks, more)
    assert set(records) == {*stacks}
    check(records, tmp_path, capsys)


@pytest.mark.parametrize("form", ["huggingface", "sentencepiece", "tiktoken"])
def test_every_stack_has_the_tokenizer_of_the_corpora(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With Primus, where one is named and its Python has the library."""
    library = {"huggingface": "transformers"}.get(form, form)
    with_primus = "PRIMUS_PATH" in os.environ and has_module(library, interpreter("primus"))
    stacks = (*STACKS, "primus") if with_primus else STACKS
    tokenizer, size = {"sentencepiece": of_sentencepiece, "tiktoken": of_tiktoken}.get(form, of_huggingface)(tmp_path)
    for name, letters in (("wiki", "aeiou"), ("code", "bcdfg")):
        lines = (json.dumps({"text": f"a step of {letters[n % 5] * (n % 17)} tokens " * 9}) for n in range(400))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        sized = (f"vocab_size={size}",) if form == "tiktoken" else ()
        source = str(tmp_path / f"{name}.jsonl")
        assert data.main(["tokenize", source, f"tokenizer={tokenizer}", *sized, "-o", str(tmp_path / name)]) == 0
    told = json.loads((tmp_path / "wiki.json").read_text(encoding="utf-8"))["tokenizer"]
    records = rehearse_all(tmp_path, stacks, f"data.tokenizer={tokenizer}", f"model.vocab_size={size}")
    assert set(records) == {*stacks}
    check(records, tmp_path, capsys)
    for name, record in records.items():
        known = {key: record.effective[f"tokenizer_{key}"].value for key in ("vocab_size", "eod", "sha256")}
        assert (name, known) == (name, {"vocab_size": size, "eod": told["eod_id"], "sha256": told["sha256"]})


def of_huggingface(folder: Path) -> tuple[Path, int]:
    """Return the folder of a byte-level BPE, and its size."""
    package = pytest.importorskip("tokenizers")
    made, level = package.Tokenizer(package.models.BPE()), package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = level
    words = {"special_tokens": ["<|end|>"], "initial_alphabet": level.alphabet(), "show_progress": False}
    made.train_from_iterator(["a step of tokens"], package.trainers.BpeTrainer(vocab_size=270, **words))
    (folder / "own").mkdir()
    made.save(str(folder / "own" / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "model_max_length": 10**9}
    (folder / "own" / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder / "own", made.get_vocab_size()


def of_sentencepiece(folder: Path) -> tuple[Path, int]:
    """Return a model of sentencepiece, and its size."""
    package = pytest.importorskip("sentencepiece")
    words = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 275, "minloglevel": 2, "pad_id": 3}
    with (folder / "own.model").open("wb") as file:
        package.SentencePieceTrainer.train(sentence_iterator=iter(["a step of tokens"] * 9), model_writer=file, **words)
    return folder / "own.model", 275


def of_tiktoken(folder: Path) -> tuple[Path, int]:
    """Return a vocabulary of tiktoken in Megatron's form, and its size with 1,000 special tokens."""
    pytest.importorskip("tiktoken")
    tokens = [*(bytes([n]) for n in range(256)), b"to", b"ke", b"st"]
    coded = [(base64.b64encode(token).decode(), token.decode("utf-8", "replace")) for token in tokens]
    listed = [{"rank": n, "token_bytes": code, "token_str": text} for n, (code, text) in enumerate(coded)]
    (folder / "own.json").write_text(json.dumps(listed), encoding="utf-8")
    return folder / "own.json", len(tokens) + 1000
