"""A day on a box with one GPU, in half an hour: everything that only a GPU shows, in one folder to keep.

    make gpu-day                    on the GPU that is here; nothing is downloaded or installed
    make gpu-day TINY=1             the same program at toy size, on the CPU
    .venv/bin/python benchmarks/gpu_day.py DIR [--tiny] [--only PHASE…] [--minutes 10]

Phases: measure, predict, turns, probe, resume, memory, report. One that is done is not run again: a call that was cut
goes on where it is called again. --minutes: no phase, and no turn of one, begins after so long. DIR has machine/
(machine.yaml, machine.html), runs/ (records and logs of the engine, power beside them), plain/ (the same model in plain
PyTorch, in turns with the engine), predicted.json and report.md. A phase that fails is noted there with its reason, and
the next goes on. Exit code 0: all is done; 1: something failed, 2: this Python lacks a package, 3: time was up."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "launchers" / "ranks")]

TURNS, WARM_UP = 3, 3
UNTIED = "model.untie_embeddings_and_output_weights=true"  # as the plain model has it: 1.5 B parameters
FULL = (
    *("framework=megatron", "model=llama32_1b", UNTIED, "layout=data_parallel", "gpus_per_node=1", "nodes=1"),
    *("training.seq_length=4096", "training.global_batch_size=8", "training.train_iters=20", "precision=bf16"),
)
TINY = (
    "platform=cpu",
    "model=llama_tiny",
    "gpus_per_node=1",
    "training.global_batch_size=8",
    "training.train_iters=12",
)
TOO_LARGE = {True: "training.micro_batch_size=4096", False: "training.micro_batch_size=512"}
LEAST_BYTES = 12 << 30  # of addresses, for a process of the CPU that is to run out of them
_SHOWN = ("step_time_mean_s", "tokens_per_s_per_gpu", "mfu_percent", "mfu_achievable_percent", "power_w_per_gpu")
_PREDICTED_MEMORY = {True: "peak_memory_device_bytes", False: "peak_memory_allocated_bytes"}
"""By its name in a prediction what a run measures: of a CPU's process all of it, of a GPU what torch allocates."""
GUARD_S = 10.0  # after a launcher was killed, its guard ends the ranks: launchers/guard.py
_SHORT = ("training.train_iters=2", "optimizer.lr_warmup_iters=0")
LIMIT_S = 420.0  # of one run
NEEDED = ("torch", "megatron", "hydra", "msgspec", "numpy", "psutil", "scipy", "yaml")


class LateError(Exception):
    """The time of this call is over; another call goes on."""


class FailedError(Exception):
    """A phase failed, and why."""


class Day:
    """One day: its folder, its size, and when its time is over."""

    def __init__(self, folder: Path, tiny: bool, minutes: float) -> None:
        self.folder, self.tiny = folder.resolve(), tiny
        self.ends = time.monotonic() + 60 * minutes
        self.words = TINY if tiny else FULL

    def path(self, *parts: str) -> Path:
        return self.folder.joinpath(*parts)

    def check_time(self) -> None:
        if time.monotonic() > self.ends:
            raise LateError

    def launched(self, name: str, *more: str) -> tuple[str, ...]:
        """Return the words that launch one experiment under a name of its own."""
        return ("launch.py", *self.words, f"runs_dir={self.path('runs')}", f"name={name}", *more)

    def launch(self, name: str, *more: str, **how: Any) -> None:
        """Run one experiment, where it has no record yet. FailedError: it did not complete."""
        self.check_time()
        if code := ended(program(*self.launched(name, *more), **how), LIMIT_S):
            record = self.record(name)
            why = f"{record.status}, {record.cause}" if record is not None else "it has no record"
            raise FailedError(f"{name} ended with exit code {code}: {why}")

    def record(self, name: str) -> Any:
        """Return the record of a run, None where there is none."""
        import parsers

        found = sorted(self.path("runs", name).glob("*/run.json"))
        return parsers.read(found[-1].parent) if found else None


def program(*words: str, **how: Any) -> subprocess.Popen[bytes]:
    """Start a program of ours, whose output is ours."""
    return subprocess.Popen([sys.executable, *words], cwd=ROOT, **how)


def ended(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """Return the exit code of a program, which is ended after so long: SIGTERM, by which ours end what they started."""
    try:
        return process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        return process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def measure(day: Day) -> None:
    """Measure the machine."""
    minutes = max(0.2, min(0.4 if day.tiny else 8.0, (day.ends - time.monotonic()) / 60 - 0.5))
    ranks = ("ranks=1",) if day.tiny else ()
    words = ("-m", "measure", *ranks, f"minutes={minutes:.2f}", "-o", str(day.path("machine")))
    if code := ended(program(*words), 60 * minutes + LIMIT_S):
        said = {2: "it was refused, and printed why"}.get(code, f"{day.path('machine')} says what is unknown, and why")
        raise FailedError(f"measure ended with exit code {code}: {said}")


def predict(day: Day) -> None:
    """Write down memory and step time before anything of it ran: as published runs say, and by this machine's file."""
    from conf import load_experiment
    from conf.machine import read
    from estimate.figures import estimate

    e = load_experiment(*day.words)
    found = {}
    for name, path in (("published", None), ("machine", day.path("machine", "machine.yaml"))):
        figures = estimate(e, machine=read(path) if path else None).figures
        found[name] = {key: [figures[key].value, figures[key].interval] for key in figures}
        day.path("predicted.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def turns(day: Day) -> None:
    """Train the engine and the same model in plain PyTorch, each first in turn."""
    day.path("plain").mkdir(exist_ok=True)
    failed = list[str]()
    for turn in range(TURNS):
        both = [partial(day.launch, f"engine-{turn}", f"training.seed={1234 + turn}"), partial(_plain, day, turn)]
        for one in both if turn % 2 == 0 else reversed(both):
            day.check_time()
            try:
                one()
            except FailedError as error:
                failed.append(str(error))
    if failed:
        raise FailedError("; ".join(failed))


def _plain(day: Day, turn: int) -> None:
    out = day.path("plain", f"{turn}.json")
    if out.is_file():
        return
    size = ["--tiny"] if day.tiny else []
    threads = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}  # threads that spin would wait for those of other programs
    if code := ended(program(__file__, str(day.folder), "--plain", str(out), *size, env=threads), LIMIT_S):
        raise FailedError(f"plain PyTorch, turn {turn}, ended with exit code {code}, and printed why")


def probe(day: Day) -> None:
    """Train once more with the probe riding along: it reads back what ran, and changes no loss, which it has to more
    digits."""
    day.launch("probed", "probe=true")
    if day.record("probed").read_back is None:
        raise FailedError("the probe read nothing back")
    _same_losses(day, "engine-0", "probed", 1e-6 if day.tiny else 1e-3)


def resume(day: Day) -> None:
    """Kill a run after its first checkpoint, by SIGKILL, which nothing can answer; continue it, and hold its losses
    against those of a run that was whole."""
    name, saves = "killed", ("training.save_interval=4",)
    if not _marked(day.path("runs", name), "saved"):
        day.check_time()
        running = program(*day.launched(name, *saves))
        deadline = time.monotonic() + LIMIT_S
        while running.poll() is None and time.monotonic() < deadline and not _marked(day.path("runs", name), "saved"):
            time.sleep(0.05)
        if running.poll() is not None:
            raise FailedError(f"the run ended with exit code {running.returncode} before it could be killed")
        running.kill()
        running.wait()
        time.sleep(GUARD_S)
    day.launch(name, *saves, "resume=true")
    if not _marked(day.path("runs", name), "resumed"):
        raise FailedError("the run that was killed began anew, and did not go on from its checkpoint")
    _same_losses(day, "engine-0", name, 1e-3)


def _same_losses(day: Day, whole: str, other: str, relative: float) -> None:
    """Hold each loss of another run against that of the whole run in that step. FailedError: one is another."""
    records = [day.record(name) for name in (whole, other)]
    losses = [{step.iteration: step.loss for step in record.steps} for record in records if record is not None]
    if len(losses) < 2 or not losses[1]:
        raise FailedError(f"{whole} or {other} has no losses to compare")
    for at, loss in losses[1].items():
        if abs(losses[0].get(at, 0.0) / loss - 1) >= relative:
            raise FailedError(f"step {at} of {other} has the loss {loss}, that of {whole} is {losses[0].get(at)}")


def _marked(runs: Path, kind: str) -> bool:
    """Return whether a log has a mark of that kind."""
    logs = runs.glob("*/train.log")
    return any(f"[tprimat] {kind} " in log.read_text(encoding="utf-8", errors="replace") for log in logs)


def memory(day: Day) -> None:
    """Ask for more memory than there is: the record says so."""
    name, batch = "too_large", TOO_LARGE[day.tiny]
    size = batch.rpartition("=")[2]
    if day.record(name) is None:
        limit = partial(resource.setrlimit, resource.RLIMIT_AS, (LEAST_BYTES, LEAST_BYTES))
        how: dict[str, Any] = {"preexec_fn": limit} if day.tiny else {}
        with suppress(FailedError):  # as it should
            day.launch(name, batch, f"training.global_batch_size={size}", *_SHORT, **how)
    status = record.status if (record := day.record(name)) is not None else "not there"
    if status != "out_of_memory":
        raise FailedError(f"the record of a run that asks for too much memory is {status}, not out_of_memory")


def report(day: Day) -> None:
    """Write report.md: predicted beside measured, the engine beside plain PyTorch, and how each phase ended."""
    text = "\n".join(_report(day)) + "\n"
    day.path("report.md").write_text(text, encoding="utf-8")
    print(text)


def _report(day: Day) -> Iterator[str]:
    from conf.machine import read
    from metrics import shown, summarise

    path, foretold_at = day.path("machine", "machine.yaml"), day.path("predicted.json")
    known = read(path) if path.is_file() else None
    predicted = json.loads(foretold_at.read_text(encoding="utf-8")) if foretold_at.is_file() else {}
    title = f"{known.device}, {known.date[:10]}" if known else "a machine that was not measured"
    yield f"# {title}: {'rehearsed at toy size' if day.tiny else 'one GPU'}\n"
    yield "| phase | result |\n| --- | --- |"
    yield from (f"| {name} | {how.replace('|', '/')} |" for name, how in _state(day).items())
    records = [day.record(f"engine-{turn}") for turn in range(TURNS)]
    machines = (known,) if known else ()
    figures = [summarise(record, machines) for record in records if record is not None]
    yield "\n| engine | predicted by published runs | by machine.yaml | measured, median of runs |"
    yield "| --- | --- | --- | --- |"
    for name in _SHOWN:
        yield _row(name, [_value(predicted, of, name) for of in ("published", "machine")], figures)
    foretold = _PREDICTED_MEMORY[day.tiny]
    yield _row("peak_memory_bytes", [_value(predicted, of, foretold) for of in ("published", "machine")], figures)
    plain = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(day.path("plain").glob("*.json"))]
    yield "\n| turn | engine, s a step | plain PyTorch, s a step | engine / plain speed | plain's peak bytes |"
    yield "| --- | --- | --- | --- | --- |"
    for turn, (one, other) in enumerate(zip(figures, plain, strict=False)):
        ours, theirs = one["step_time_mean_s"].value, median(other["seconds"])
        ratio = f"{theirs / ours:.3f}" if ours else "unknown"
        yield f"| {turn} | {shown(ours) if ours else 'unknown'} | {shown(theirs)} | {ratio} | {other['peak_bytes']} |"


def _value(predicted: Mapping[str, Any], of: str, name: str) -> float | None:
    own = predicted.get(of, {})
    return own[name][0] if name in own else None


def _row(name: str, predicted: Sequence[float | None], figures: Sequence[Mapping[str, Any]]) -> str:
    """Return a row of predictions and the median of what runs measured; a TDP is no measurement."""
    from metrics import shown

    values = [one[name].value for one in figures if one[name].value is not None and one[name].source != "assumed"]
    cells = [*predicted, median(values) if values else None]
    return f"| {name} | {' | '.join('unknown' if cell is None else shown(cell) for cell in cells)} |"


def run_plain(day: Day, out: Path) -> None:
    """Be the plain model: take the steps of a run on tokens of chance, and write down what each took."""
    import torch
    from plain_llama import Peer

    from conf import load_experiment
    from launchers.frameworks.megatron import settings

    s = settings(load_experiment(*day.words))
    device = "cpu" if day.tiny else "cuda"
    peer = Peer(s, device, "float32" if day.tiny else "bfloat16")
    sizes = (s["num_micro_batches"], s["micro_batch_size"], s["seq_length"] + 1)
    tokens, seconds = torch.randint(s["vocab_size"], sizes, device=device), []
    for _ in range(s["train_iters"]):
        started = time.perf_counter()
        peer.step(tokens)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    out.write_text(json.dumps({"seconds": seconds[WARM_UP:], "peak_bytes": peak}), encoding="utf-8")


PHASES: Mapping[str, Callable[[Day], None]] = {
    "measure": measure,
    "predict": predict,
    "turns": turns,
    "probe": probe,
    "resume": resume,
    "memory": memory,
    "report": report,
}


def _state(day: Day) -> dict[str, str]:
    path = day.path("state.json")
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def run(day: Day, names: Sequence[str]) -> int:
    """Run the phases that are not done; return the exit code."""
    day.folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if _state(day).get(name) == "done" and name != "report":
            continue
        print(f"gpu-day: {name}", flush=True)
        started = time.monotonic()
        try:
            day.check_time()
            PHASES[name](day)
            word = "done"
        except LateError:
            print(f"gpu-day: time is up before {name} is done; call it again", flush=True)
            return 3
        except Exception as error:  # noqa: BLE001 - whatever it is: the next phase is worth its time on a rented box
            said = " ".join(str(error).split())
            word = f"failed: {said if isinstance(error, FailedError) else f'{type(error).__name__}: {said}'}"
        day.path("state.json").write_text(json.dumps({**_state(day), name: word}), encoding="utf-8")
        print(f"gpu-day: {name} {word}, {time.monotonic() - started:.0f} s", flush=True)
    return 0 if all(_state(day).get(name) == "done" for name in names) else 1


def main() -> int:
    """Run a day, or one turn of plain PyTorch."""
    parser = argparse.ArgumentParser(description="everything that only a GPU shows, in one folder")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", action="store_true", help="at toy size, on the CPU")
    parser.add_argument("--only", nargs="+", choices=[*PHASES], default=[*PHASES], help="these phases")
    parser.add_argument("--minutes", type=float, default=30.0, help="nothing begins after so long")
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        hint = "make install, or GPU_DAY_PYTHON=/path/to/a/python that has them, as of a vendor's container"
        print(f"gpu-day: {sys.executable} lacks {', '.join(missing)}\n    try: {hint}", file=sys.stderr)
        return 2
    day = Day(given.folder, given.tiny, given.minutes)
    if given.plain:
        run_plain(day, given.plain)
        return 0
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    return run(day, given.only)


if __name__ == "__main__":
    sys.exit(main())
