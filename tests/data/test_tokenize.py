"""Test `tprimat data tokenize` on real tokenizers: what becomes of text, of broken text, and of a killed process."""

from __future__ import annotations

import errno
import gzip
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from conf.errors import InputError, writing
from corpora import inputs, manifest, partial, tokenize_text
from corpora.blocks import encode
from corpora.tokenizers import build
from launchers.rank_modules import rank_module
from tensorprimat import data
from tests.drills import wait_until

tokenizers = pytest.importorskip("tokenizers", reason="pip install 'tensorprimat[data]'")
END = "<|endoftext|>"
WORDS = [*"aeiou", "the", "of", "and", "corpus", "token", "GPU", "trains", "losses", "équal", "日本", "🙂", "return"]


def texts(count: int, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 60))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts(200), trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def lines(path: Path, documents: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(documents)), "utf-8")
    return path


def tokenize(tokenizer: Path, prefix: Path, *arguments: object) -> int:
    common = [f"tokenizer={tokenizer}", f"eod_token={END}", "-o", str(prefix)]
    processes = [] if any("processes=" in str(one) for one in arguments) else ["processes=1"]
    return data.main(["tokenize", *common, *processes, *map(str, arguments)])


def read(prefix: Path) -> list[list[int]]:
    corpus = rank_module("corpus_order").open_corpus(str(prefix))
    ids = corpus.ids()
    return [ids[at : at + n].tolist() for at, n in zip(corpus.offsets, corpus.lengths, strict=True)]


def expected(tokenizer: Path, documents: Sequence[str]) -> list[list[int]]:
    made = tokenizers.Tokenizer.from_file(str(tokenizer))
    return [[*made.encode(text).ids, made.token_to_id(END)] for text in documents]


def bytes_of(prefix: Path) -> list[bytes]:
    return [Path(f"{prefix}{suffix}").read_bytes() for suffix in (".bin", ".idx")]


def test_every_format_gives_the_same_documents_in_the_order_of_the_input(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 2000)
    monkeypatch.chdir(tmp_path)
    documents = texts(300)
    folder = tmp_path / "texts"
    folder.mkdir()
    raw = lines(tmp_path / "all.jsonl", documents).read_bytes()
    (folder / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + raw.replace(b"\n", b"\r\n"))
    (folder / "b.json.gz").write_bytes(gzip.compress(raw[:5000]) + gzip.compress(raw[5000:]))
    with arrow.CompressedOutputStream(str(folder / "c.jsonl.zst"), "zstd") as file:
        file.write(raw)
    parquet.write_table(arrow.table({"text": documents}), folder / "d.parquet", row_group_size=70)
    (folder / "e.txt").write_text("\n".join(documents), encoding="utf-8")
    (folder / "notes.pdf").write_text("no text")
    assert tokenize(tokenizer, tmp_path / "c", "texts", "text=line", "processes=3") == 0
    assert "1 other files: texts/notes.pdf" in capsys.readouterr().out
    assert read(tmp_path / "c") == expected(tokenizer, documents) * 5
    made = manifest.read(tmp_path / "c")
    assert made is not None
    assert [(one.path, one.documents) for one in made.inputs] == [
        (f"texts/{name}", 300) for name in ("a.jsonl", "b.json.gz", "c.jsonl.zst", "d.parquet", "e.txt")
    ]
    order = rank_module("corpus_order")
    assert [one.sha256 for one in made.inputs] == [order.sha256(tmp_path / one.path) for one in made.inputs]
    described = order.describe(order.open_corpus(str(tmp_path / "c")), complete=True)
    assert described == {name: getattr(made, name) for name in described}
    assert data.main(["verify", str(tmp_path / "c")]) == 0
    assert not (tmp_path / "c.partial").exists()


def test_a_text_file_is_one_document_and_no_end_is_added_where_none_is_wanted(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the a\n\nof to\n", encoding="utf-8")
    assert tokenize(tokenizer, tmp_path / "c", tmp_path / "a.txt", "append_eod=false") == 0
    (document,) = expected(tokenizer, ["the a\n\nof to\n"])
    assert read(tmp_path / "c") == [document[:-1]]


def test_what_is_left_out_is_counted_and_named(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "LONGEST_BYTES", 3000)
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 1000)
    broken = {
        b'{"text": "the a"}': "",
        b'{"text": "the': "broken JSON",
        b'{"text": "\xff\xfe"}': "invalid UTF-8",
        b'{"text": "\\ud800"}': "invalid UTF-8",
        b'{"text": ""}': "empty",
        b"": "empty",
        b'{"txt": "the"}': "no such field",
        b'{"text": 7}': "no text",
        b'{"text": ["the a.", "of to."]}': "a list in place of text",
        b"[1]": "no object",
        b'{"text": "' + b"the " * 2000 + b'"}': "too long",
        b"[" * 100000: "too long",
        b'{"text": "of", "x": NaN}': "",
        b'{"text": "to"}': "",
    }
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(broken))
    assert tokenize(tokenizer, tmp_path / "c", tmp_path / "a.jsonl") == 0
    assert read(tmp_path / "c") == expected(tokenizer, ["the a", "of", "to"])
    told = [json.loads(line) for line in Path(f"{tmp_path}/c.dropped.jsonl").read_text().splitlines()]
    assert [(one["line"], one["why"]) for one in told] == [(i, why) for i, why in enumerate(broken.values(), 1) if why]
    made = manifest.read(tmp_path / "c")
    assert made is not None
    assert sum(made.dropped.values()) == len(told)
    assert made.dropped == made.inputs[0].dropped
    out = capsys.readouterr().out
    assert all(f"dropped       {count} {why}" in out for why, count in made.dropped.items())


def test_empty_documents_stay_where_they_are_wanted(tokenizer: Path, tmp_path: Path) -> None:
    source = lines(tmp_path / "a.jsonl", ["the", "", "a"])
    assert tokenize(tokenizer, tmp_path / "c", source, "keep_empty=true") == 0
    corpus = rank_module("corpus_order").open_corpus(str(tmp_path / "c"))
    assert (corpus.documents, corpus.lengths.size) == (3, 2), "as Megatron's script: a document without a sequence"


def bad_inputs(folder: Path) -> Iterator[tuple[Path, str]]:
    good = lines(folder / "good.jsonl", texts(300)).read_bytes()
    for name, raw, message in (
        ("cut.jsonl.gz", gzip.compress(good)[:-700], "is damaged, or cannot be read"),
        ("no.jsonl.gz", good, "is damaged, or cannot be read"),
        ("no.jsonl.zst", good, "is damaged, or cannot be read"),
        ("no.parquet", good, "is damaged, or cannot be read"),
        ("array.json", b"[\n" + good, "is an array of JSON"),
        ("none.jsonl", b"", "no document is left"),
        ("sentences.jsonl", b'{"text": ["the a.", "of to."]}\n', "join the sentences of each document first"),
        ("what.pdf", b"%PDF", "of which format?"),
    ):
        (folder / name).write_bytes(raw)
        yield folder / name, message
    yield folder / "nowhere.jsonl", "cannot be read"
    (folder / "empty").mkdir()
    yield folder / "empty", "no text is in this folder"
    os.mkfifo(folder / "pipe.jsonl")
    yield folder / "pipe.jsonl", "is no regular file"
    for name in ("piped", "gone", "named"):
        (folder / name).mkdir()
        lines(folder / name / "a.jsonl", ["the"])
    os.mkfifo(folder / "piped" / "b.jsonl")
    yield folder / "piped", "b.jsonl: is no regular file"
    (folder / "gone" / "b.jsonl").symlink_to(folder / "nowhere.jsonl")
    yield folder / "gone", "b.jsonl: cannot be read"
    lines(folder / "named" / os.fsdecode(b"b\xff.jsonl"), ["the"])
    yield folder / "named", "has a name that is not UTF-8"


def test_bad_input_leaves_nothing_under_the_final_name(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    for i, (path, message) in enumerate(bad_inputs(tmp_path)):
        assert tokenize(tokenizer, tmp_path / f"c{i}", path) == 2
        error = capsys.readouterr().err
        assert message in error
        assert str(path) in error or f"c{i}" in error
        assert not [*tmp_path.glob(f"c{i}.[bij]*")]


def test_a_page_of_parquet_whose_checksum_is_wrong_makes_no_corpus(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    how = dict.fromkeys(("use_dictionary", "write_statistics"), False) | {"write_page_checksum": True}
    parquet.write_table(
        arrow.table({"text": ["the corpus", "of tokens"]}), tmp_path / "a.parquet", compression="none", **how
    )
    raw = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(raw.replace(b"the corpus", b"the c0rpus", 1))
    assert tokenize(tokenizer, tmp_path / "c", tmp_path / "a.parquet") == 2
    assert "is damaged, or cannot be read" in capsys.readouterr().err


def test_what_a_folder_hides_is_refused_or_named(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be listed, and links to folders, of which one leads back."""
    folder = tmp_path / "texts"
    for path in (folder, folder / "shut", tmp_path / "elsewhere"):
        path.mkdir()
        lines(path / "a.jsonl", ["the"])
    (folder / "back").symlink_to(folder)
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    scan = os.scandir
    shut = PermissionError(13, "Permission denied", f"{folder}/shut")

    def listed(path: Any) -> Any:  # root, who runs the tests of some machines, may list any
        if str(path) == shut.filename:
            raise shut
        return scan(path)

    monkeypatch.setattr(os, "scandir", listed)
    assert tokenize(tokenizer, tmp_path / "c", folder) == 2
    assert f"{folder}/shut: cannot be read\n    found: Permission denied" in capsys.readouterr().err
    monkeypatch.undo()
    assert tokenize(tokenizer, tmp_path / "c", folder) == 0
    assert f"2 other files: {folder}/back, {folder}/linked" in capsys.readouterr().out
    assert read(tmp_path / "c") == expected(tokenizer, ["the", "the"])


def test_help_and_refusals_load_no_heavy_package() -> None:
    heavy = ("numpy", "tokenizers", "transformers", "sentencepiece", "tiktoken", "pyarrow", "torch")
    for words, code in ((["--help"], 0), ([], 2), (["nowhere.jsonl", "tokenizer=t.json", "-o", "c"], 2)):
        blocked = f"import sys; sys.modules.update(dict.fromkeys({heavy}))"
        run = f"{blocked}; from tensorprimat.cli import main; raise SystemExit(main({['data', 'tokenize', *words]}))"
        done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


def test_a_tokenizer_that_is_none_is_refused(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    source = lines(tmp_path / "a.jsonl", ["the"])
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    (tmp_path / "ranks.tiktoken").write_bytes(b"AA== 0\n")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    common = [str(source), "-o", str(tmp_path / "c")]
    for typed, message in (
        (f"tokenizer={tokenizer}", "names no token that ends a document"),
        (f"tokenizer={tmp_path}/broken.json", "cannot be opened"),
        (f"tokenizer={tmp_path}/noise", "is not a tokenizer"),
        (f"tokenizer={tmp_path}/pipe", "is no regular file"),
        (f"tokenizer={tmp_path}/folder", "no tokenizer is in this folder"),
        (f"tokenizer={tmp_path}/nowhere.json", "no tokenizer can be read here"),
        (f"tokenizer={tmp_path}/ranks.tiktoken", "does not say how text is split"),
        ("tokenizer=tiktoken:nothing", "cannot be opened"),
    ):
        assert data.main(["tokenize", typed, *common]) == 2
        assert message in capsys.readouterr().err
    assert data.main(["tokenize", f"tokenizer={tokenizer}", "eod_token=<none>", *common]) == 2
    assert "has no such token" in capsys.readouterr().err
    assert data.main(["tokenize", f"tokenizer={tokenizer}", "special_tokens=<s>", *common]) == 2
    assert "has no such option" in capsys.readouterr().err
    if __import__("importlib.util").util.find_spec("huggingface_hub"):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert data.main(["tokenize", "tokenizer=no-such/tokenizer", *common]) == 2
        assert "cannot be had from the hub" in capsys.readouterr().err
    assert not [*tmp_path.glob("c*.bin")]


def test_a_corpus_is_made_once_and_never_overwritten(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = lines(tmp_path / "a.jsonl", texts(20))
    assert tokenize(tokenizer, tmp_path / "c", source) == 0
    before = bytes_of(tmp_path / "c")
    capsys.readouterr()
    assert tokenize(tokenizer, tmp_path / "c", source) == 0
    assert "it was there already" in capsys.readouterr().out
    lines(source, texts(20, seed=2))
    assert tokenize(tokenizer, tmp_path / "c", source) == 2
    assert "is another corpus, and not overwritten" in capsys.readouterr().err
    assert bytes_of(tmp_path / "c") == before


def test_verify_names_the_file_that_differs(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = tmp_path / "c"
    assert tokenize(tokenizer, prefix, lines(tmp_path / "a.jsonl", texts(20))) == 0
    raw = bytearray(Path(f"{prefix}.bin").read_bytes())
    raw[7] ^= 1
    assert data.main(["inspect", str(prefix)]) == 0
    assert "is of other files" not in capsys.readouterr().out
    Path(f"{prefix}.bin").write_bytes(raw)
    assert data.main(["inspect", str(prefix)]) == 0
    assert f"{prefix}.json is of other files" in capsys.readouterr().out
    Path(f"{prefix}.idx").write_bytes(b"short")
    assert data.main(["verify", str(prefix)]) == 2
    error = capsys.readouterr().err
    assert "c.bin: is not the file of the manifest" in error
    assert "c.idx: has another size than the manifest says" in error
    Path(f"{prefix}.json").write_text('{"generator": "tensorprimat tokenize 1"}', encoding="utf-8")
    assert data.main(["verify", str(prefix)]) == 2
    assert "is not a manifest" in capsys.readouterr().err


def test_inspect_shows_text_repeats_and_the_vocabulary(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = [*texts(30), *texts(30)[:5]]
    assert tokenize(tokenizer, tmp_path / "c", lines(tmp_path / "a.jsonl", documents)) == 0
    capsys.readouterr()
    assert data.main(["inspect", str(tmp_path / "c")]) == 0
    out = capsys.readouterr().out
    assert documents[0][:40] in out
    assert "5 documents (14.29%) are equal to one in front of them" in out
    assert "2 times: document 0" in out
    occurring = len({token for one in expected(tokenizer, documents) for token in one})
    size = tokenizers.Tokenizer.from_file(str(tokenizer)).get_vocab_size()
    assert f"{occurring} ids of {size:,} ({occurring / size:.1%})" in out
    assert data.main(["inspect", str(tmp_path / "c"), "model=llama", "show=0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["repeated_documents"], found["occurring_ids"], found["vocab_size"]) == (5, occurring, 128256)
    tokenizer_of_another = tmp_path / "tokenizer.json"
    tokenizer_of_another.write_text(tokenizer.read_text() + "\n")
    assert data.main(["inspect", str(tmp_path / "c"), f"tokenizer={tokenizer_of_another}"]) == 2
    assert "did not make the corpus" in capsys.readouterr().err


class Started:
    """The command in a process of its own, in a session of its own."""

    def __init__(self, tokenizer: Path, prefix: Path, source: Path, **more: Any) -> None:
        argv = [sys.executable, "-m", "tensorprimat", "data", "tokenize", str(source), f"tokenizer={tokenizer}"]
        argv += [f"eod_token={END}", "processes=2", "-o", str(prefix)]
        root = Path(__file__).parents[2]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(argv, cwd=root, start_new_session=True, **quiet, **more)

    def kill(self, everyone: bool) -> None:
        """Kill it, or it alone, as the OOM killer does: its processes then end by themselves."""
        (os.killpg if everyone else os.kill)(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        wait_until(lambda: not self.alive(), "its processes end with it")

    def alive(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True


@pytest.mark.long
@pytest.mark.drill("nothing in the project tokenized")
def test_a_kill_at_any_moment_costs_seconds_and_changes_no_byte(tokenizer: Path, tmp_path: Path) -> None:
    """Killed when the journal has so many lines."""
    source = lines(tmp_path / "a.jsonl", texts(60000))
    prefix, journal = tmp_path / "hit", tmp_path / "hit.partial" / "journal.jsonl"

    def written() -> int:
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    for count, everyone in ((0, True), (1, False)):
        started = Started(tokenizer, prefix, source)

        def begun(count: int = count, started: Started = started) -> bool:
            return ((tmp_path / "hit.partial").exists() and written() >= count) or started.process.poll() is not None

        wait_until(begun, "it begins")
        time.sleep(0.2)
        started.kill(everyone)
    last = Started(tokenizer, prefix, source)
    assert "goes on" in last.process.communicate()[1] or written() == 0
    assert last.process.returncode == 0
    assert tokenize(tokenizer, tmp_path / "calm", source) == 0
    assert bytes_of(prefix) == bytes_of(tmp_path / "calm")
    assert Path(f"{prefix}.json").read_bytes() == Path(f"{tmp_path / 'calm'}.json").read_bytes()


class Here:
    """A pool of one process: this one."""

    def __init__(self, spec: Any, rules: Any, processes: int) -> None:
        self.coder, self.rules = build(spec), rules

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def encoded(self, pieces: Any) -> Iterator[Any]:
        for piece in pieces:
            yield piece, encode(piece, self.coder, self.rules) if isinstance(piece, inputs.Block) else None


def strange() -> list[str]:
    """Return texts at the edges of what tokenizers split by: of all planes, controls, spaces, special tokens."""
    draw = random.Random(3)
    ranges = ((0, 128), (128, 0x3000), (0x3000, 0xD800), (0xE000, 0x10000), (0x1F300, 0x1FA00), (0xE0000, 0xE01F0))
    letters = [chr(draw.randrange(*draw.choice(ranges))) for _ in range(3000)]
    parts = [*letters, *"  \n\n\t\r\u00a0\u2028'", "'s", "1234", END, f" {END} ", "\u0301", "a" * 400]
    return ["", " ", END, *("".join(draw.choices(parts, k=draw.randint(1, 200))) for _ in range(150)), *texts(100)]


def test_the_faster_engine_gives_the_same_corpus(tokenizer: Path, tmp_path: Path) -> None:
    pytest.importorskip("gigatoken")
    source = lines(tmp_path / "a.jsonl", strange())
    assert tokenize(tokenizer, tmp_path / "slow", source) == 0
    assert tokenize(tokenizer, tmp_path / "fast", source, "engine=gigatoken") == 0
    assert bytes_of(tmp_path / "fast") == bytes_of(tmp_path / "slow")
    assert read(tmp_path / "fast") == expected(tokenizer, [text for text in strange() if text])
    made = manifest.read(tmp_path / "fast")
    assert made is not None and made.tokenizer.library.startswith("gigatoken ")


def test_an_engine_with_other_ids_makes_no_corpus(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the tokenizer whose two ids are exchanged."""
    gigatoken = pytest.importorskip("gigatoken")
    other = json.loads(tokenizer.read_text())
    ids = other["model"]["vocab"]
    ids["e"], ids["o"] = ids["o"], ids["e"]
    wrong = gigatoken.Tokenizer.from_json(json.dumps(other))
    monkeypatch.setattr(gigatoken.Tokenizer, "from_json", lambda _: wrong)
    monkeypatch.setattr(tokenize_text, "Pool", Here)
    source = lines(tmp_path / "a.jsonl", texts(100))
    with pytest.raises(RuntimeError, match=r"other ids than tokenizers for .*: engine=tokenizers"):
        tokenize(tokenizer, tmp_path / "c", source, "engine=gigatoken")
    assert not [*tmp_path.glob("c.[bij]*")]


def test_the_faster_engine_is_refused_where_a_tokenizer_adds_tokens(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gigatoken")
    made = tokenizers.Tokenizer.from_file(str(tokenizer))
    made.post_processor = tokenizers.processors.TemplateProcessing(f"{END} $A", special_tokens=[(END, 0)])
    made.save(str(tmp_path / "tokenizer.json"))
    source = lines(tmp_path / "a.jsonl", texts(9))
    assert tokenize(tmp_path / "tokenizer.json", tmp_path / "c", source, "engine=gigatoken") == 2
    assert "adds special tokens to each text" in capsys.readouterr().err
    words = ("engine=gigatoken", "add_special_tokens=false")
    assert tokenize(tmp_path / "tokenizer.json", tmp_path / "c", source, *words) == 0
    assert read(tmp_path / "c") == expected(tokenizer, texts(9))


def test_a_corpus_goes_on_from_any_line_of_its_journal_and_past_a_torn_one(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cut short in this process at every block, with bytes behind the last line, as a kill between writes leaves."""
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 4000)
    monkeypatch.setattr(partial, "OFTEN_S", 0.0)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(tokenize_text, "Pool", Here)
    documents = texts(150)
    first = tmp_path / "a.jsonl.gz"
    first.write_bytes(gzip.compress(lines(tmp_path / "a.jsonl", [*documents[:70], ""]).read_bytes()))
    second = lines(tmp_path / "b.jsonl", documents[70:])
    assert tokenize(tokenizer, tmp_path / "calm", first, second) == 0
    add, cuts = partial.Partial.add, iter(range(1, 1000))

    def cut_short(self: Any, *arguments: Any) -> None:
        add(self, *arguments)
        if next(left, None) is None:
            for name in ("tokens", "lengths", "dropped.jsonl", "journal.jsonl"):
                with (self.folder / name).open("ab") as file:
                    file.write(b'{"torn')
            raise KeyboardInterrupt

    monkeypatch.setattr(partial.Partial, "add", cut_short)
    for _ in cuts:
        left = iter([1])  # one block further each time
        if tokenize(tokenizer, tmp_path / "hit", first, second) == 0:
            break
        assert not [*tmp_path.glob("hit.[bi]*")]
    assert next(cuts) > 5
    assert bytes_of(tmp_path / "hit") == bytes_of(tmp_path / "calm")
    assert (tmp_path / "hit.json").read_bytes() == (tmp_path / "calm.json").read_bytes()
    assert (tmp_path / "hit.dropped.jsonl").read_bytes() == (tmp_path / "calm.dropped.jsonl").read_bytes()


def test_an_unfinished_corpus_of_something_else_is_not_gone_on_with(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = lines(tmp_path / "a.jsonl", texts(20))
    monkeypatch.setattr(tokenize_text, "publish", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setattr(partial.Partial, "seal", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert tokenize(tokenizer, tmp_path / "c", source) == 130
    monkeypatch.undo()
    capsys.readouterr()
    assert tokenize(tokenizer, tmp_path / "c", source, "append_eod=false") == 2
    error = capsys.readouterr().err
    assert "an unfinished corpus of other inputs, options or libraries is there" in error
    assert "options.append_eod: True, now False" in error
    assert tokenize(tokenizer, tmp_path / "c", source) == 0


def test_a_sealed_corpus_of_something_else_is_not_given_another_name_for(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between its last byte and its final name: only its own command moves it there."""
    first, other = lines(tmp_path / "a.jsonl", texts(20)), lines(tmp_path / "b.jsonl", texts(9, seed=2))
    monkeypatch.setattr(tokenize_text, "publish", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert tokenize(tokenizer, tmp_path / "c", first) == 130
    monkeypatch.undo()
    capsys.readouterr()
    assert tokenize(tokenizer, tmp_path / "c", other) == 2
    assert "an unfinished corpus of other inputs" in capsys.readouterr().err
    assert not [*tmp_path.glob("c.[bij]*")]
    assert tokenize(tokenizer, tmp_path / "c", first) == 0


def test_where_no_document_was_left_another_command_begins_anew(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, prefix = lines(tmp_path / "a.jsonl", texts(20)), tmp_path / "c"
    assert tokenize(tokenizer, prefix, source, "field=nothing") == 2
    told = capsys.readouterr().err
    assert f"20 no such field; each in {prefix}.partial/dropped.jsonl" in told
    assert len((tmp_path / "c.partial" / "dropped.jsonl").read_text().splitlines()) == 20
    assert tokenize(tokenizer, prefix, source) == 0
    assert tokenize(tokenizer, tmp_path / "calm", source) == 0
    assert bytes_of(prefix) == bytes_of(tmp_path / "calm") and not (tmp_path / "c.dropped.jsonl").exists()


def test_two_writers_of_one_corpus_are_refused(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = lines(tmp_path / "a.jsonl", texts(20))
    with partial.alone(tmp_path / "c"):
        assert tokenize(tokenizer, tmp_path / "c", source) == 2
    assert "another process makes this corpus" in capsys.readouterr().err
    assert tokenize(tokenizer, tmp_path / "c", source) == 0


@pytest.mark.long
def test_ctrl_c_says_that_the_same_command_goes_on_and_leaves_no_process(tokenizer: Path, tmp_path: Path) -> None:
    source, prefix = lines(tmp_path / "a.jsonl", texts(60000)), tmp_path / "c"
    started = Started(tokenizer, prefix, source, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    wait_until(lambda: (tmp_path / "c.partial" / "tokens").exists(), "it begins")
    time.sleep(0.5)
    os.killpg(started.process.pid, signal.SIGINT)  # to all, as a terminal does
    error = started.process.communicate()[1]
    assert (started.process.returncode, started.alive()) == (130, False)
    assert error.count("stopped: what was tokenized stays, and the same command goes on") == 1
    assert "Traceback" not in error
    assert not [*tmp_path.glob("c.[bij]*")]


@pytest.mark.long
def test_a_full_disk_is_a_clear_error_and_what_was_done_is_kept(tokenizer: Path, tmp_path: Path) -> None:
    """By a limit on the size of files, which the kernel reports as it reports a full disk."""
    source = lines(tmp_path / "a.jsonl", texts(3000))
    prefix = tmp_path / "c"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    started = Started(tokenizer, prefix, source, preexec_fn=limit)
    error = started.process.communicate()[1]
    assert started.process.returncode == 2
    assert "cannot be written" in error
    assert "the same command goes on" in error
    assert "Traceback" not in error
    assert not [*tmp_path.glob("c.[bij]*")]
    assert tokenize(tokenizer, prefix, source) == 0
    assert read(prefix) == expected(tokenizer, texts(3000))


@pytest.mark.parametrize(
    ("number", "room"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False), (errno.EROFS, False)]
)
def test_only_of_a_full_disk_is_room_to_be_made(number: int, room: bool) -> None:
    with pytest.raises(InputError) as failed, writing("x", "-o /a/folder/of/yours", "make room"):
        raise OSError(number, os.strerror(number))
    assert ("make room" in str(failed.value)) is room and os.strerror(number) in str(failed.value)
