"""Every code block of the READMEs, of docs/ and of the docstrings on the site does what it says.

A block of bash is run as it stands: the pages of docs/ in one folder and in the order of the site. A block of sh needs
a GPU, a vendor's packages or runs that are not here: launch.py only plans, make only prints, and the rest meets made-up
runs of the names that the texts use. A block of Python is run, and prints what stands behind it."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from parsers import write
from tests.compare.made import made

ROOT = Path(__file__).parent.parent
LOG = (ROOT / "tests" / "parsers" / "fixtures" / "hf_trainer.log").read_bytes()  # states no model, no device
NOT_HERE = ("export", "source", "git", "bash", "pip", "UPDATE_GOLDEN=1")  # a shell's own, a clone, a bundle, a rewrite
TAGS = {"bash", "sh", "python", "yaml", "text"}
pytestmark = pytest.mark.docs


def pages() -> list[Path]:
    """Return the texts outside docs/, docstrings among them, then the pages of docs/ in the order of the site."""
    names = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2])
    others = ("README.md", "CONTRIBUTING.md", "parsers/README.md", "conf/__init__.py", "tensorprimat/__init__.py")
    written = [*(ROOT / name for name in others), *(ROOT / "docs" / name for name in names)]
    return [path for path in written if path.exists()]  # the others are generated


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language tag and the text of every code block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the checkout, has runs of its own, and finds `python` and `tprimat` on its PATH."""
    place = tmp_path_factory.mktemp("docs")
    for name in ("tests", "conf", "docs", "launch.py", "Makefile", "pyproject.toml", "requirements"):
        (place / name).symlink_to(ROOT / name)
    programs = place / "bin"
    programs.mkdir()
    (programs / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (programs / "tprimat").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tensorprimat "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    return place


@pytest.fixture(scope="module")
def elsewhere(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same with a log and the runs that the texts speak of: speeds of two vendors and of two images."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for path in place.iterdir():
        if path.is_symlink() or path.name == "bin":
            (elsewhere / path.name).symlink_to(path.resolve())
    for name in ("LOG", "train.log", "a.log", "llama-mi300x/runs/x/train.log"):
        (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / name).write_bytes(LOG)
    tokens = ("--vocab-size", "512", "--seed", "1", "--tokens", "2001")
    program = ROOT / "launchers" / "ranks" / "corpus.py"
    subprocess.run(
        [sys.executable, program, "--prefix", elsewhere / "corpus", *tokens], check=True, capture_output=True
    )
    (elsewhere / "texts").mkdir()
    (elsewhere / "texts" / "a.jsonl").write_text('{"text": "the language reference"}\n', encoding="utf-8")
    if tokenizers := find_spec("tokenizers") and import_module("tokenizers"):
        vocabulary = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz ")}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
        tokenizer.add_special_tokens(["<|endoftext|>"])
        tokenizer.save(str(elsewhere / "tokenizer.json"))
    (elsewhere / "site.yaml").write_text("job:\n  partition: batch\n  options: {exclusive: true}\n", encoding="utf-8")
    (elsewhere / "b.log.gz").write_bytes(gzip.compress(LOG))
    (elsewhere / "power.csv").write_text("timestamp, index, power.draw [W]\n2026/09/11 04:19:41.0, 0, 100 W\n")
    sides = (("nvidia", "h100", "A"), ("amd", "mi300x", "B"))
    images = (("amd", "mi300x", "rocm/primus:v26.4"), ("amd", "mi300x", "rocm/primus:v26.5"))
    vendors = ("RUN", "runs/demo-llama_tiny", "runs/{}", "runs/llama31_8b-{}", "runs/llama31_8b-rehearsal")
    for folder, groups in (*((folder, sides) for folder in vendors), ("runs/bump", images)):
        for (vendor, hardware, image), seed in product(groups, (1, 2, 3)):
            path = elsewhere / folder.format(vendor) / re.sub(r"\W", "-", f"{image}-{seed}")
            known = {"platform": vendor, "hardware": hardware, "image": image, "image_source": "runtime"}
            name = re.sub(r"\W", "-", str(path.relative_to(elsewhere)))
            write(made(name, 2.0 + 0.01 * seed, {"seed": seed}, **known), path)
    return elsewhere


def run(command: str, place: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    shell = ["bash", "-euo", "pipefail", "-c", command]
    return subprocess.run(shell, cwd=place, env=environment, capture_output=True, text=True, check=False)


def lines(block: str) -> Iterator[str]:
    """Yield the commands of a block, one a line, without comments."""
    for line in block.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield shlex.join(words) if "$" not in line and "*" not in line else line


def planned(command: str, place: Path) -> None:
    """Try what can be tried here of a command that needs a GPU or a vendor's packages."""
    command = command.replace("/path/to", str(place))
    words = shlex.split(command)
    launches = words[:2] in (["python", "launch.py"], ["tprimat", "launch"])
    if {"model=qwen25_1p5b", "name=qwen25_1p5b"} & {*words}:
        return  # the guide's example of a new model: tests/test_extend.py
    if "hydra/launcher=submitit_slurm" in words:
        return  # needs a Slurm and its package: tests/cluster/test_submitit.py
    if words[0] == "make":
        command = shlex.join(["make", "-n", *words[1:]])
    elif launches and not {"--cfg", "dry_run=true"} & {*words}:
        command += " dry_run=true"
    elif words[0] == "srun":
        command = f"cat LOG | {shlex.join(words[words.index('|') + 1 :])}"
    elif words[0] in NOT_HERE:
        return
    done = run(command, place)
    checked = words[:2] == ["tprimat", "check"] and "machine" in done.stdout  # 2 where the machine is another
    codes = (0,) if launches or words[0] == "make" else (0, 2) if checked else (0, 1, 3)
    assert done.returncode in codes, f"{command}\n{done.stderr}"


def printed(page: Path, program: str, out: str) -> None:
    """Compare what a block of Python prints with the block of text that comes right behind it, where there is one;
    UPDATE_GOLDEN=1 writes it there."""
    text = page.read_text(encoding="utf-8")
    shown = re.compile(r"(?<=```\n\n)```text\n.*?^```$", re.DOTALL | re.MULTILINE)
    place = shown.match(text, text.index(program) + len(program) + len("```\n\n"))
    now = "\n".join(("```text", *(line.rstrip() for line in out.rstrip().splitlines()), "```"))
    if place is None:
        return
    if os.environ.get("UPDATE_GOLDEN") == "1":
        page.write_text(text[: place.start()] + now + text[place.end() :], encoding="utf-8")
    else:
        assert place[0] == now


def test_a_misspelt_command_is_no_command_of_a_page(elsewhere: Path) -> None:
    for command in ("tprimat chekc platform=nvidia", "tprimat check platfrom=nvidia", "pyhton -m parsers LOG"):
        with pytest.raises(AssertionError):
            planned(command, elsewhere)


def test_every_block_says_what_it_is() -> None:
    untagged = {f"{page.name}: {text[:60]}" for page in pages() for tag, text in blocks(page) if tag not in TAGS}
    assert untagged == set()


def test_every_link_to_a_file_leads_to_one() -> None:
    for page in pages():  # of the texts outside docs/: the site's own are checked where it is built
        links = re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8"))
        missing = [link for link in links if "docs" not in page.parts and not (page.parent / link).exists()]
        assert missing == [], page


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_does_what_it_says(page: Path, place: Path, elsewhere: Path) -> None:
    for tag, text in blocks(page):
        if tag in ("bash", "sh"):
            subprocess.run(["bash", "-n", "-c", text], check=True)
        if tag == "bash":
            done = run(text, place)
            assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        if tag == "python":
            done = run(shlex.join(["python", "-c", text]), elsewhere)
            assert done.returncode == 0, done.stderr
            printed(page, text, done.stdout)
        if tag == "sh":
            for command in lines(text):
                planned(command, elsewhere)
