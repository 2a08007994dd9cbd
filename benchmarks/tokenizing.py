"""How fast text becomes tokens, in tokens per second and core, against Megatron-LM's scripts, datatrove and batches.

    python benchmarks/tokenizing.py TEXT.jsonl FOLDER                       ours and plain `tokenizers` batches
    python benchmarks/tokenizing.py TEXT.jsonl FOLDER --megatron CHECKOUT --megatron-python PYTHON --rounds 5
                                    --datatrove PYTHON                      and Python's that have the others

FOLDER is a tokenizer of Hugging Face with its end token. In each round every tool tokenizes the same two texts, a tenth
of TEXT and all of it, in turn and in another order: the rate is that of the difference, without imports and start-up,
which are shown by themselves. All use as many processes or threads as there are cores; datatrove, whose processes take
files, gets the text in as many files. "ours, gigatoken" is engine=gigatoken, and Megatron's preprocess_data_fast.py,
which is built on it, stands beside it. The last row is Hugging Face's tokenizer alone on one core: encode_batch_fast,
whose ids nobody reads. Every tool's tokens are compared with the first one's, byte for byte.

The file is not called tokenize.py: beside it, every other benchmark would import it in place of Python's own module."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ("ours", "plain", "datatrove", "megatron", "ours, gigatoken", "megatron, fast")
_SET_CHILD_SUBREAPER = 36
"""A number of prctl of Linux: orphans of ours become ours again."""
CORES = len(os.sched_getaffinity(0))
PLAIN = """
import json, sys
from itertools import islice
import numpy as np
from tokenizers import Tokenizer
source, folder, prefix, end = sys.argv[1:]
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
end = tokenizer.token_to_id(end)
with open(source) as lines, open(prefix + ".bin", "wb") as file:
    while texts := [json.loads(line)["text"] for line in islice(lines, 1000)]:
        for one in tokenizer.encode_batch_fast(texts):
            file.write(np.array([*one.ids, end], np.uint16).tobytes())
"""
DATATROVE = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
folder, tokenizer, made, cores, end = sys.argv[1:]
if __name__ == "__main__":
    writer = DocumentTokenizer(made, tokenizer_name_or_path=tokenizer, eos_token=end, shuffle_documents=False,
                               save_filename="made")
    steps = [JsonlReader(folder), writer]
    LocalPipelineExecutor(steps, tasks=int(cores), workers=int(cores), logging_dir=made + ".logs").run()
"""
LIMIT = """
import json, sys, time
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[2] + "/tokenizer.json")
texts = [json.loads(line)["text"] for line in open(sys.argv[1])]
count = sum(len(one) for one in tokenizer.encode_batch_fast(texts[:10]))
began, count = time.process_time(), 0
for at in range(0, len(texts), 64):
    count += sum(len(one) for one in tokenizer.encode_batch_fast(texts[at:at + 64]))
print(count / (time.process_time() - began))
"""


def main() -> int:
    a = _arguments()
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    end = json.loads((a.tokenizer / "tokenizer_config.json").read_text(encoding="utf-8"))["eos_token"]
    with tempfile.TemporaryDirectory(prefix="tokenizing-") as name:
        folder = Path(name)
        texts = _texts(a.text, folder)
        tokens: dict[str, int] = {}
        kept: dict[str, bytes] = {}
        times: dict[tuple[str, str], list[float]] = {}
        for number in range(a.rounds):
            tools = [tool for tool in _commands(a, folder, folder / "none", end) if tool in (TOOLS[0], *a.only)]
            random.Random(number).shuffle(tools)
            for tool in tools:
                for size, text in texts.items():
                    prefix = folder / f"{tool.replace(', ', '-')}-of-{size}"
                    times.setdefault((tool, size), []).append(_timed(a, tool, text, prefix, end))
                    made = _tokens(prefix)
                    tokens[size] = len(made) // 2
                    if kept.setdefault(size, made) != made:
                        print(f"{tool} gives other tokens", file=sys.stderr)
                        return 1
        argv = [sys.executable, "-c", LIMIT, str(texts["small"]), str(a.tokenizer)]
        env = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        limits = [float(subprocess.run(argv, check=True, capture_output=True, env=env).stdout) for _ in range(a.rounds)]
        _print(a, times, tokens, limits)
    return 0


def _texts(source: Path, folder: Path) -> dict[str, Path]:
    """Write the two texts, a line in ten and all of them; return them by size."""
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
    texts = {"small": lines[::10], "all": lines}
    for size, chosen in texts.items():
        (folder / f"{size}.jsonl").write_text("".join(chosen), encoding="utf-8")
        (folder / f"{size}-parts").mkdir()
        for n in range(CORES):
            part = chosen[n * len(chosen) // CORES : (n + 1) * len(chosen) // CORES]
            (folder / f"{size}-parts" / f"{n}.jsonl").write_text("".join(part), encoding="utf-8")
    return {size: folder / f"{size}.jsonl" for size in texts}


def _commands(a: argparse.Namespace, text: Path, prefix: Path, end: str) -> dict[str, tuple[object, ...]]:
    """Return the command line of each tool that is asked for."""
    ours = (sys.executable, "-m", "tensorprimat", "data", "tokenize", text, f"tokenizer={a.tokenizer}", "-o", prefix)
    commands: dict[str, tuple[object, ...]] = {
        "ours": (*ours, f"processes={CORES}"),
        "ours, gigatoken": (*ours, f"processes={CORES}", "engine=gigatoken"),
        "plain": (sys.executable, "-c", PLAIN, text, a.tokenizer, prefix, end),
    }
    if a.datatrove:
        program, parts = prefix.parent / "of_datatrove.py", text.with_name(f"{text.stem}-parts")
        program.write_text(DATATROVE, encoding="utf-8")  # it starts processes, which read it again
        tokenizer = a.tokenizer / "tokenizer.json"
        commands["datatrove"] = (
            a.datatrove,
            program,
            parts,
            tokenizer,
            prefix.with_name(f"{prefix.name}.made"),
            CORES,
            end,
        )
    if a.megatron:
        more: tuple[object, ...] = (
            "--input",
            text,
            "--output-prefix",
            prefix,
            "--append-eod",
            "--tokenizer-type",
            "HuggingFaceTokenizer",
        )
        more += ("--tokenizer-model", a.tokenizer)
        script = f"{a.megatron}/tools/preprocess_data"
        commands["megatron"] = (a.megatron_python, f"{script}.py", *more, "--workers", CORES)
        commands["megatron, fast"] = (a.megatron_python, f"{script}_fast.py", *more, "--use-gigatoken")
    return commands


def _timed(a: argparse.Namespace, tool: str, text: Path, prefix: Path, end: str) -> float:
    """Return the seconds of one command from start to end."""
    for old in prefix.parent.glob(f"{prefix.name}*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    env = {**os.environ, "RAYON_NUM_THREADS": str(CORES), "TOKENIZERS_PARALLELISM": str(tool == "plain").lower()}
    if tool.startswith("megatron"):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (a.megatron, os.environ.get("PYTHONPATH"))))
    argv = [*map(str, _commands(a, text, prefix, end)[tool])]
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, check=False, cwd=ROOT, env=env, capture_output=True, text=True)
    seconds = time.monotonic() - began
    _wait_for_orphans()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{tool} failed:\n{done.stderr[-2000:]}")
    if a.cpu:
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return seconds


def _wait_for_orphans() -> None:
    """Wait for what a tool has left to itself, as datatrove does its processes: their seconds count from then on."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _tokens(prefix: Path) -> bytes:
    """Return the tokens that a tool has made."""
    parts = sorted(prefix.parent.glob(f"{prefix.name}.made/*.ds"))  # datatrove's, one of each process
    return b"".join(part.read_bytes() for part in parts or [next(prefix.parent.glob(f"{prefix.name}*.bin"))])


def _print(
    a: argparse.Namespace,
    times: Mapping[tuple[str, str], list[float]],
    tokens: Mapping[str, int],
    limits: list[float],
) -> None:
    def rates(tool: str) -> list[float]:
        pairs = zip(times[tool, "all"], times[tool, "small"], strict=True)
        return [(tokens["all"] - tokens["small"]) / (whole - part) / cores for whole, part in pairs]

    cores = 1 if a.cpu else CORES
    size = a.text.stat().st_size / 1e6
    print(f"{size:.0f} MB, {tokens['all']:,} tokens, {CORES} cores, {a.rounds} rounds; million tokens/s per core")
    print(f"{'tool':<16}{'median':>8}{'least':>8}{'most':>8}{'ours / it':>11}{'start, s':>10}{'complete, s':>13}")
    ours = rates("ours")
    for tool in sorted({tool for tool, _ in times}, key=(*TOOLS,).index):
        own = rates(tool)
        ratio = statistics.median(x / y for x, y in zip(ours, own, strict=True))
        start = statistics.median(times[tool, "small"]) - tokens["small"] / statistics.median(own) / cores
        row = [statistics.median(own) / 1e6, min(own) / 1e6, max(own) / 1e6]
        whole = statistics.median(times[tool, "all"])
        print(f"{tool:<16}" + "".join(f"{x:8.3f}" for x in row) + f"{ratio:11.3f}{start:10.2f}{whole:13.2f}")
    limit, share = statistics.median(limits), statistics.median(ours) / statistics.median(limits)
    row = [limit / 1e6, min(limits) / 1e6, max(limits) / 1e6]
    print(f"{'one core':<16}" + "".join(f"{x:8.3f}" for x in row) + f"{share:11.3f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("text", type=Path, help="lines of JSON with a text")
    parser.add_argument("tokenizer", type=Path, help="a folder with tokenizer.json and tokenizer_config.json")
    parser.add_argument("--megatron", help="a checkout of Megatron-LM")
    parser.add_argument("--megatron-python", default=sys.executable, help="the Python that runs its script")
    parser.add_argument("--datatrove", help="a Python that has it")
    parser.add_argument("--only", nargs="*", default=TOOLS, choices=TOOLS, help="of the tools (ours: always)")
    parser.add_argument(
        "--cpu", action="store_true", help="by the seconds of the processors, on a machine that is busy"
    )
    parser.add_argument("--rounds", type=int, default=5)
    a = parser.parse_args()
    a.text, a.tokenizer = a.text.resolve(), a.tokenizer.resolve()
    return a


if __name__ == "__main__":
    sys.exit(main())
