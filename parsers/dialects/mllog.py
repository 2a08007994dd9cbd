"""MLPerf (mlperf-logging, `:::MLLOG {json}`), which also stands inside logs of NeMo, Megatron and Primus.

Steps where the submitter logs them: `train_loss`, or `tracked_stats` with reduced_train_loss or train_step_time. Their
`step` counts from 0, from 1, or (NeMo up to 5.0, in whose blocks no `step` stands) samples: so the step follows from
the samples over global_batch_size where that is an integer. samples_count is that at the end of a step; in Primus' log,
whose first `train_loss` has the count of its block's start, at its beginning. A throughput, or a time without `step`,
is a block's, and stands at the evaluation after it. eval_accuracy is the loss in the language benchmarks that are named
below, a share of right answers in others. max_steps is a ceiling: run_stop says whether the target was reached."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import asdict, replace

from conf.mlperf import gpus_of_a_node
from conf.vendors import maker_of
from parsers.driver import Dialect, Driver, Event, Fact, NewRun, Resumed, Setting
from parsers.record import Step, Validation
from parsers.text import json_object
from parsers.values import as_count, is_nonfinite, real

_FACTS = (
    *("submission_benchmark", "submission_org", "submission_division", "submission_status", "submission_platform"),
    *("train_samples", "trained_samples", "eval_samples", "target_accuracy", "init_checkpoint_step", "max_steps"),
    *("lora_rank", "lora_alpha", "config_filename", "lowest_numerical_precision_linear"),
    *(f"lowest_numerical_precision_in_{part}" for part in ("linear", "attn", "comm")),  # from 6.1 on
)
_MOST_ACCURACIES = 8  # Mask R-CNN's has BBOX and SEGM; of Stable Diffusion's FID and CLIP the metadata has the name
_PLACES = ("samples_count", "epoch_num")
# training_policies: these are judged by their validation loss (log perplexity, cross entropy).
_JUDGED_BY_LOSS = ("gpt3", "llama2_70b_lora", "llama31_405b", "llama31_8b", "deepseekv3_671b", "gpt_oss_20b")
_MODELS = {
    **{name: name for name in ("llama31_405b", "llama31_8b", "gpt_oss_20b")},
    "deepseekv3_671b": "deepseek_v3",
}
_BEGIN = ("init_start", "submission_benchmark", "run_start")
_RANKS_WITHIN_S = 600.0  # all ranks start in seconds, 8,192 in 5: one that comes later is another attempt's
_RANKS_A_NODE = (2, 4, 8, 16)
_NODES = re.compile(r"(\d{1,5})(?:x(.{1,200})| .{1,60} nodes$)")
_LAUNCHERS = ("slurm2pytorch: ", "processes registered. Starting with ")  # of NVIDIA's containers, and Lightning
_PROCESSES = re.compile(r"(?:pytorch: (?:\w{1,40}=\S{1,200} ){0,8}WORLD_SIZE=|registered\. Starting with )(\d{1,7})\b")
_GPU = re.compile(r"(?:^|[\s_x-]|[x_-](\d{1,2})x?)(MI\d{3}X|G?[BH]\d00)(?![A-Za-z0-9])")
_DEVICES = re.compile(r"[A-Z]{1,2}\d{3,4}X?$|(?:[A-Z]|MI|G[BH])\d{2,4}X?(?![A-Za-z0-9])")
_METRICS: Mapping[str, str] = {
    "reward": "reward",
    "policy_training_time": "policy_training_time_s",
    "exposed_generation_time": "exposed_generation_time_s",
    "weight_sync_time": "weight_sync_time_s",
    "valid_tokens_per_sec_per_gpu": "valid_tokens_per_s_per_gpu",
    "throughput": "samples_per_s",
}


class _Run:
    """Notes on one run, of the lines so far. block, evaluates: the samples that were done where the last block and the
    last evaluation began. by_samples: its `step` counts samples. from_start: samples_count of train_loss is that of the
    step's beginning. samples_per_s: of the last block. ranks: that have started, on so many nodes. restarts: it has
    started again, at again_ms, and its next block or step says where. length: of a sample, in tokens. evaluating:
    between eval_start and eval_stop; evaluation_ms: of all such times together, nan where one of the two is missing."""

    batch: int | None = None
    length = 0
    benchmark: str | None = None
    started = False
    started_ms: float | None = None
    again_ms: float | None = None
    block: int | None = None
    by_samples = False
    from_start = False
    samples_per_s: float | None = None
    evaluates: int | None = None
    evaluates_ms: float | None = None
    evaluating = False
    evaluation_ms = 0.0
    ranks = 0
    nodes = 1
    first_rank_ms: float | None = None
    stopped = False
    restarts = False

    def of_tokens(self, count: int | None) -> int | None:
        """Return the samples of what gpt3, until 4.0, counts in tokens; None where these are no complete steps."""
        of_a_step = (self.batch or 0) * self.length if self.benchmark == "gpt3" else 0
        return count // self.length if count and of_a_step and count % of_a_step == 0 else None

    def step_of(self, iteration: int | None, samples: int | None) -> int | None:
        """Return the step, from 0. Submitters count `step` from 0 (NVIDIA's) or 1 (NeMo-RL): the samples decide."""
        if samples is None or not self.batch:
            return iteration
        done, rest = divmod(samples + (self.batch if self.from_start else 0), self.batch)
        if rest:
            return None
        return done - 1 if done else iteration

    def time_evaluation(self, starts: bool, now: float | None) -> None:
        """Add to evaluation_ms what lies between two lines."""
        if now is None or starts == self.evaluating:
            self.evaluation_ms = math.nan
        else:
            self.evaluation_ms += -now if starts else now
        self.evaluating = starts


class _Driver(Driver):
    """Holds a step until a line of another: several lines may add to one; and the GPUs of a system's description until
    the run starts: its launcher knows better."""

    _waiting: Step | None = None
    _described: Setting | None = None
    _described_nodes = 0
    _launched = False

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._run = _Run()

    def feed(self, number: int, text: str) -> Iterable[Event]:
        _, mark, rest = text.partition(":::MLLOG ")
        if not mark:
            launched = any(name in text for name in _LAUNCHERS)
            return self._launch(number, text) if launched else self._system(number, text)
        entry = json_object(rest) or {}
        key, about = entry.get("key"), entry.get("metadata")
        if key in ("train_loss", "tracked_stats"):
            return self._stats(number, entry, about if isinstance(about, dict) else {})
        if not isinstance(key, str):
            return ()
        return (*self.end(), *self._point(number, key, entry, about if isinstance(about, dict) else {}))

    def _launch(self, line: int, text: str) -> Iterator[Event]:
        if processes := _PROCESSES.search(text):
            self._launched = True
            yield Setting("world_size", int(processes[1]), line)

    def _system(self, line: int, text: str) -> Iterator[Event]:
        for event in _system(line, text):
            if isinstance(event, Setting):
                self._described = event
                continue
            if isinstance(event, Fact) and event.name == "num_nodes":
                self._described_nodes = event.value
            yield event

    def end(self) -> Iterable[Event]:
        waiting, self._waiting = self._waiting, None
        return () if waiting is None else (waiting,)

    def _stats(self, line: int, entry: Mapping[str, Any], about: Mapping[str, Any]) -> Iterable[Event]:
        value, run = entry.get("value"), self._run
        stats = {"train_loss": value} if entry.get("key") == "train_loss" else value
        if not isinstance(stats, dict):
            return ()
        if entry.get("key") == "train_loss" and not run.from_start:
            samples, block = as_count(about.get("samples_count")), run.block
            run.from_start, run.block = samples is not None and samples in (0, block), None
        step, before = _step(line, stats, entry, about, run), self._waiting
        if step is None:
            self._take_rate(stats, about)
            return ()
        events: tuple[Event, ...] = ()
        if before is None or before.step != step.step:
            events = () if before is None else (before,)
            events += tuple(self._from_here(line)) if run.restarts and step.step == 0 else ()
        else:  # of two lines that report a step the first counts, the other adds
            first = {name: value for name, value in asdict(before).items() if value is not None}
            first["metrics"] = {**step.metrics, **before.metrics}
            step = replace(step, **{**first, "nonfinite": before.nonfinite or step.nonfinite})
        self._waiting = step
        return events

    def _take_rate(self, stats: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Keep the rate of the block that ends: as it is printed, or by its mean time of a step."""
        rate, seconds, batch = real(stats.get("throughput")), real(stats.get("train_step_time")), self._run.batch
        if rate is None and seconds and batch and "step" not in about:
            rate = batch / seconds
        if rate is not None and rate > 0 and self._run.benchmark != "gpt3":  # which counts tokens
            self._run.samples_per_s = rate

    def _point(self, line: int, key: str, entry: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[Event]:
        value, now = entry.get("value"), real(entry.get("time_ms"))
        if key in _BEGIN and self._run.stopped:
            self._run = _Run()
            yield NewRun(line)
        yield from self._stated(line, key, value)
        run, samples = self._run, as_count(about.get("samples_count"))
        if key == "global_batch_size":
            run.batch = as_count(value)
        elif key == "max_sequence_length":
            run.length = as_count(value) or 0
        elif key.startswith("submission_") and isinstance(value, str):
            yield from self._submission(line, key, value)
        elif key == "init_start":
            yield from self._count_rank(line, now)
        elif key == "run_start":
            yield from self._start(line, now)
        elif key == "block_start":
            yield from self._block(line, samples, about)
        elif key == "run_stop":
            yield from self._stop(line, now, about)
        elif key.startswith("eval_"):
            yield from self._evaluation(line, key, entry, about)

    def _stated(self, line: int, key: str, value: Any) -> Iterator[Event]:
        if key in self.dialect.known and value is not None and not isinstance(value, (dict, list)):
            count = as_count(value)
            yield Setting(self.dialect.known[key].name, value if count is None else count, line)
        elif key in _FACTS and value is not None:
            yield Fact(f"mlperf_{key}", value, line)

    def _submission(self, line: int, key: str, value: str) -> Iterator[Event]:
        """Yield what the names of a submission say without doubt: the model, the devices and their number."""
        if key == "submission_benchmark":
            self._run.benchmark = benchmark = value.replace("-", "_")
            if benchmark in _MODELS:
                yield Fact("model", _MODELS[benchmark], line)
        elif key == "submission_platform":
            for event in _platform(line, value):
                if isinstance(event, Fact) and event.name == "num_nodes":
                    self._run.nodes = event.value
                    if self._described and event.value != self._described_nodes:  # one of the nodes was described
                        each = self._described.value // self._described_nodes
                        yield Setting("world_size", event.value * each, line)
                yield event
        elif key == "submission_org" and (maker := maker_of(value.replace("-", " "))):
            yield Fact("vendor", maker, line)

    def _count_rank(self, line: int, now: float | None) -> Iterator[Event]:
        run = self._run
        if now is not None and (run.first_rank_ms is None or now - run.first_rank_ms > 1000 * _RANKS_WITHIN_S):
            run.ranks, run.first_rank_ms = 0, now
            yield Fact("mlperf_init_start_unix_s", now / 1000, line)
        run.ranks += 1

    def _start(self, line: int, now: float | None) -> Iterator[Event]:
        run = self._run
        if self._described and not self._launched:
            yield self._described
        if run.ranks / run.nodes in _RANKS_A_NODE:  # one alone may speak for all; a log may have lost some
            yield Setting("world_size", run.ranks, line)
        run.ranks, run.first_rank_ms = 0, None
        run.restarts, run.started = run.started, True
        run.again_ms = now
        if run.started_ms is None:
            yield from self._from_here(line)

    def _from_here(self, line: int) -> Iterator[Event]:
        """Count the time from the last run_start, the first one or one that begins at the first step again."""
        run = self._run
        run.started_ms, run.restarts = run.again_ms, False
        run.evaluating, run.evaluation_ms = False, 0.0
        if run.started_ms is not None:
            yield Fact("mlperf_run_start_unix_s", run.started_ms / 1000, line)

    def _block(self, line: int, samples: int | None, about: Mapping[str, Any]) -> Iterator[Event]:
        run, step = self._run, as_count(about.get("step"))
        run.by_samples, run.samples_per_s = samples is not None and "step" not in about, None
        run.block = samples if run.by_samples else None
        if run.block is not None and run.batch:
            step = run.block // run.batch
        if run.restarts and step is not None:
            yield Resumed(step, line)
        run.restarts = False

    def _stop(self, line: int, now: float | None, about: Mapping[str, Any]) -> Iterator[Event]:
        run, status, samples = self._run, about.get("status"), as_count(about.get("samples_count"))
        run.stopped = True
        if isinstance(status, str):
            yield Fact("mlperf_status", status, line)
        if now is not None:
            yield Fact("mlperf_run_stop_unix_s", now / 1000, line)
        if status in ("success", "aborted"):
            yield Fact("completed", "all" if status == "success" else False, line)
        if status != "success":
            return
        if now is not None and run.started_ms is not None and now >= run.started_ms:
            yield Fact("mlperf_time_to_train_s", (now - run.started_ms) / 1000, line)
            if not run.evaluating and 0 < run.evaluation_ms < now - run.started_ms:
                yield Fact("mlperf_evaluation_s", run.evaluation_ms / 1000, line)
        samples = samples or run.evaluates
        if samples:
            yield Fact("mlperf_samples_to_target", samples, line)

    def _evaluation(self, line: int, key: str, entry: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[Event]:
        run, now, value = self._run, real(entry.get("time_ms")), entry.get("value")
        if key in ("eval_start", "eval_stop"):
            run.time_evaluation(key == "eval_start", now)
        if key == "eval_start":
            run.evaluates, run.evaluates_ms = _samples(run, about), now
        if key != "eval_accuracy" or value is None:
            return
        seconds = (now - run.evaluates_ms) / 1000 if now is not None and run.evaluates_ms is not None else None
        named = value if isinstance(value, Mapping) else {str(about.get("metric", "eval_accuracy")): value}
        values = {**dict([*named.items()][:_MOST_ACCURACIES]), **{name: about.get(name) for name in _PLACES}}
        metrics = {name: number for name, printed in values.items() if (number := real(printed)) is not None}
        if run.samples_per_s is not None:
            metrics["samples_per_s"] = run.samples_per_s
        yield Validation(
            line=line,
            # AMD's counts a batch less than the block and the evaluation around it
            step=_evaluated_after(run, _samples(run, about)),
            iteration=as_count(about.get("step")),
            loss=real(value) if run.benchmark in _JUDGED_BY_LOSS else None,
            seconds=seconds if seconds is not None and seconds >= 0 else None,
            metrics=metrics,
        )


def _samples(run: _Run, about: Mapping[str, Any]) -> int | None:
    samples = as_count(about.get("samples_count"))
    return run.of_tokens(as_count(about.get("epoch_num"))) if samples is None else samples


def _evaluated_after(run: _Run, samples: int | None) -> int | None:
    """Return the last step before an evaluation, from 0, by the samples that were done."""
    samples = run.evaluates or samples
    return samples // run.batch - 1 if samples and run.batch and samples % run.batch == 0 else None


def _step(
    line: int, stats: Mapping[str, Any], entry: Mapping[str, Any], about: Mapping[str, Any], run: _Run
) -> Step | None:
    """Return the step that a point reports; None for a mean over a block, or a validation step."""
    iteration, samples = (as_count(about.get(name)) for name in ("step", "samples_count"))
    now = real(entry.get("time_ms"))
    if samples is None and (run.by_samples or run.of_tokens(iteration)):
        iteration, samples = None, run.of_tokens(iteration) or iteration
    loss = stats.get("reduced_train_loss", stats.get("train_loss"))
    step = run.step_of(iteration, samples)
    of_a_step = "train_step_time" in stats and iteration is not None and "throughput" not in stats
    if step is None or (loss is None and not of_a_step):
        return None
    values = {metric: real(stats[name]) for name, metric in _METRICS.items() if name in stats}
    if now is not None:
        values["logged_at_unix_s"] = now / 1000
    return Step(
        step=step,
        line=line,
        iteration=iteration,
        loss=real(loss),
        lr=real(about.get("lr")),
        grad_norm=real(stats.get("grad_norm")),
        step_time_s=real(stats.get("train_step_time")),
        consumed_samples=samples,
        global_batch_size=run.batch,
        nonfinite=("loss",) if isinstance(loss, str) and is_nonfinite(loss) else (),
        metrics={name: value for name, value in values.items() if value is not None},
    )


def _system(line: int, text: str) -> Iterator[Event]:
    _, mark, rest = text.partition(":::SYSJSON ")
    entry = (json_object(rest) or {}) if mark else {}
    device = entry.get("accelerator_model_name")
    if not isinstance(device, str) or device.startswith("No devices"):  # as nvidia-smi says it
        entry, device = {**entry, "accelerators_per_node": None}, None
    facts = {"device_name": device, "vendor": maker_of(device) if device else None}
    facts |= {f"mlperf_{name}": entry.get(name) for name in ("system_name", "framework")}
    yield from (Fact(name, value, line) for name, value in facts.items() if isinstance(value, str) and value)
    if device and not facts["vendor"]:
        yield from _hardware(line, device)
    nodes, each = (_digits(entry.get(name)) for name in ("number_of_nodes", "accelerators_per_node"))
    if nodes:
        yield Fact("num_nodes", nodes, line)
    if nodes and each:
        yield Setting("world_size", nodes * each, line)


def _digits(value: Any) -> int | None:
    """Return a count of a system's description, where it is text."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 8 else None


def _platform(line: int, text: str) -> Iterator[Event]:
    """Yield the nodes and devices that a name such as 16xXE9712x4GB200 states: 2xA5000 may be two of either, and
    8xA100_80GB and 8xMI325X_EPYC are devices. 2xMI325X are nodes, since none has two; a GB200 may be a board of two."""
    nodes, device = _NODES.match(text), _GPU.search(text)
    count = int(nodes[1]) if nodes else 0
    bare = nodes is not None and nodes[2] is not None and _DEVICES.match(nodes[2])
    if bare and count > 1:
        each = gpus_of_a_node(device[2].lower()) if device and not device[2].startswith("GB") else None
        count = count if each and count % each else 0
    if count:
        yield Fact("num_nodes", count, line)
        if device and device[1]:
            yield Setting("world_size", count * int(device[1]), line)
    yield from _hardware(line, text)


def _hardware(line: int, text: str) -> Iterator[Event]:
    """Yield the hardware of conf/hardware that a system's name states, and its maker. An H100 may be on PCIe, and an
    NVL is another card."""
    from conf.facts import hardware

    match = _GPU.search(text)
    if match is None or re.match(r"[ -]NVL(?!\d)", text[match.end() :]):
        return
    sure = match[2] != "H100" or any(board in text for board in ("SXM", "HGX", "DGX"))
    device = hardware(match[2].lower()) if sure else None
    if device is not None:
        yield Fact("hardware", device.name, line)
        yield Fact("vendor", device.vendor, line)


DIALECT = Dialect(
    framework=None,
    printed_by="mllog",
    looks_for="MLPerf: lines ':::MLLOG {…}'",
    signs=(b":::MLLOG",),
    marks=(b":::MLLOG",),
    startup=(b":::SYSJSON", *(name.encode() for name in _LAUNCHERS)),
    companion=True,
    driver=_Driver,
)
