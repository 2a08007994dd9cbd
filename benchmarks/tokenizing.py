"""How fast text becomes tokens, in tokens per second and core, against Megatron-LM's own script and plain batches.

    python benchmarks/tokenizing.py TEXT.jsonl FOLDER                       ours and plain `tokenizers` batches
    python benchmarks/tokenizing.py TEXT.jsonl FOLDER --megatron CHECKOUT --megatron-python PYTHON --rounds 5

FOLDER is a tokenizer of Hugging Face with its end token. In each round every tool tokenizes the same two texts, a tenth
of TEXT and all of it, in turn and in another order: the rate is that of the difference, without imports and start-up,
which are shown by themselves. All use as many processes or threads as there are cores. The last row is the tokenizer
alone on one core: encode_batch_fast, whose ids nobody reads. Every tool's tokens are compared with ours, byte for byte.

The file is not called tokenize.py: beside it, every other benchmark would import it in place of Python's own module."""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
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
    end = json.loads((a.tokenizer / "tokenizer_config.json").read_text(encoding="utf-8"))["eos_token"]
    with tempfile.TemporaryDirectory(prefix="tokenizing-") as name:
        folder = Path(name)
        texts = _texts(a.text, folder)
        tokens: dict[str, int] = {}
        times: dict[tuple[str, str], list[float]] = {}
        for number in range(a.rounds):
            tools = [*_tools(a, end)]
            random.Random(number).shuffle(tools)
            for tool in tools:
                for size, text in texts.items():
                    times.setdefault((tool, size), []).append(_timed(a, tool, text, folder / f"{tool}-{size}", end))
                    made = next(folder.glob(f"{tool}-{size}*.bin"))
                    tokens[size] = made.stat().st_size // 2
                    kept = folder / f"kept-{size}"
                    if not kept.exists():
                        made.rename(kept)
                    elif kept.read_bytes() != made.read_bytes():
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
    return {size: folder / f"{size}.jsonl" for size in texts}


def _tools(a: argparse.Namespace, end: str) -> tuple[str, ...]:
    return ("ours", "plain", *(["megatron"] if a.megatron else []))


def _timed(a: argparse.Namespace, tool: str, text: Path, prefix: Path, end: str) -> float:
    """Return the seconds of one command from start to end."""
    for old in prefix.parent.glob(f"{prefix.name}*"):
        old.unlink()
    ours = (
        "-m",
        "tensorprimat",
        "data",
        "tokenize",
        text,
        f"tokenizer={a.tokenizer}",
        f"processes={CORES}",
        "-o",
        prefix,
    )
    script: tuple[object, ...] = ("--input", text, "--output-prefix", prefix, "--workers", CORES, "--append-eod")
    script += ("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", a.tokenizer)
    argv = {
        "ours": (sys.executable, *ours),
        "plain": (sys.executable, "-c", PLAIN, text, a.tokenizer, prefix, end),
        "megatron": (a.megatron_python, f"{a.megatron}/tools/preprocess_data.py", *script),
    }[tool]
    env = {**os.environ, "RAYON_NUM_THREADS": str(CORES), "TOKENIZERS_PARALLELISM": "true"}
    if tool == "megatron":
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (a.megatron, os.environ.get("PYTHONPATH"))))
        env["TOKENIZERS_PARALLELISM"] = "false"
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*map(str, argv)], check=True, cwd=ROOT, env=env, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if a.cpu:
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return time.monotonic() - began


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
    print(f"{'tool':<12}{'median':>8}{'least':>8}{'most':>8}{'ours / it':>11}{'start, s':>10}{'complete, s':>13}")
    ours = rates("ours")
    for tool in sorted({tool for tool, _ in times}, key=("ours", "plain", "megatron").index):
        own = rates(tool)
        ratio = statistics.median(x / y for x, y in zip(ours, own, strict=True))
        start = statistics.median(times[tool, "small"]) - tokens["small"] / statistics.median(own) / cores
        row = [statistics.median(own) / 1e6, min(own) / 1e6, max(own) / 1e6]
        whole = statistics.median(times[tool, "all"])
        print(f"{tool:<12}" + "".join(f"{x:8.3f}" for x in row) + f"{ratio:11.3f}{start:10.2f}{whole:13.2f}")
    limit, share = statistics.median(limits), statistics.median(ours) / statistics.median(limits)
    row = [limit / 1e6, min(limits) / 1e6, max(limits) / 1e6]
    print(f"{'one core':<12}" + "".join(f"{x:8.3f}" for x in row) + f"{share:11.3f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("text", type=Path, help="lines of JSON with a text")
    parser.add_argument("tokenizer", type=Path, help="a folder with tokenizer.json and tokenizer_config.json")
    parser.add_argument("--megatron", help="a checkout of Megatron-LM")
    parser.add_argument("--megatron-python", default=sys.executable, help="the Python that runs its script")
    parser.add_argument(
        "--cpu", action="store_true", help="by the seconds of the processors, on a machine that is busy"
    )
    parser.add_argument("--rounds", type=int, default=5)
    a = parser.parse_args()
    a.text, a.tokenizer = a.text.resolve(), a.tokenizer.resolve()
    return a


if __name__ == "__main__":
    sys.exit(main())
