"""MLPerf (mlperf-logging, `:::MLLOG {json}`), which also stands inside logs of NeMo and Megatron.

Steps where the submitter logs them: `train_loss`, or `tracked_stats` with reduced_train_loss or train_step_time. Their
`step` counts from 0 or from 1, so the step follows from samples_count / global_batch_size where that is an integer.
eval_accuracy is the loss in the language benchmarks that are named below, a share of right answers in others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import asdict, replace

from conf.vendors import maker_of
from parsers.driver import Dialect, Driver, Event, Fact, NewRun, Setting
from parsers.record import Stall, Step, Validation
from parsers.text import json_object
from parsers.values import is_nonfinite, real, whole

_FACTS = (
    *("submission_benchmark", "submission_org", "submission_division", "submission_status", "submission_platform"),
    *("train_samples", "trained_samples", "eval_samples", "target_accuracy", "init_checkpoint_step"),
    *("lora_rank", "lora_alpha"),
)
# training_policies: these are judged by their validation loss (log perplexity, cross entropy).
_JUDGED_BY_LOSS = ("gpt3", "llama2_70b_lora", "llama31_405b", "llama31_8b")
_METRICS: Mapping[str, str] = {
    "reward": "reward",
    "policy_training_time": "policy_training_time_s",
    "exposed_generation_time": "exposed_generation_time_s",
    "weight_sync_time": "weight_sync_time_s",
    "valid_tokens_per_sec_per_gpu": "valid_tokens_per_s_per_gpu",
    "throughput": "samples_per_s",
}


class _Driver(Driver):
    """Holds a step until a line of another: several lines may add to one."""

    _batch: int | None = None
    _benchmark: str | None = None
    _started: float | None = None
    _evaluates: float | None = None
    _stopped = False
    _waiting: Step | None = None

    def feed(self, number: int, text: str) -> Iterable[Event]:
        _, mark, rest = text.partition(":::MLLOG ")
        if not mark:
            return _system(number, text)
        entry = json_object(rest) or {}
        key, about = entry.get("key"), entry.get("metadata")
        if key in ("train_loss", "tracked_stats"):
            return self._stats(number, entry)
        if not isinstance(key, str):
            return ()
        return (*self.end(), *self._point(number, key, entry, about if isinstance(about, dict) else {}))

    def end(self) -> Iterable[Event]:
        waiting, self._waiting = self._waiting, None
        return () if waiting is None else (waiting,)

    def _stats(self, line: int, entry: Mapping[str, Any]) -> Iterable[Event]:
        step, before = _step(line, entry, self._batch), self._waiting
        if step is None:
            return ()
        events: tuple[Event, ...] = ()
        if before is None or before.step != step.step:
            events = () if before is None else (before,)
        else:  # of two lines that report a step the first counts, the other adds
            first = {name: value for name, value in asdict(before).items() if value is not None}
            first["metrics"] = {**step.metrics, **before.metrics}
            step = replace(step, **{**first, "nonfinite": before.nonfinite or step.nonfinite})
        self._waiting = step
        return events

    def _point(self, line: int, key: str, entry: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[Event]:
        value, now = entry.get("value"), real(entry.get("time_ms"))
        if key in ("init_start", "run_start") and self._stopped:
            self._stopped, self._started = False, None
            yield NewRun(line)
        if key in self.dialect.known and value is not None and not isinstance(value, (dict, list)):
            count = _count(value)
            yield Setting(self.dialect.known[key].name, value if count is None else count, line)
        elif key in _FACTS and value is not None:
            yield Fact(f"mlperf_{key}", value, line)
        if key == "global_batch_size":
            self._batch = _count(value)
        elif key == "submission_benchmark" and isinstance(value, str):
            self._benchmark = value
        elif key == "max_steps" and _count(value) is not None:
            yield Fact("train_iters", _count(value), line)
        elif key == "run_start" and now is not None:
            self._started = now
            yield Fact("mlperf_run_start_unix_s", now / 1000, line)
        elif key == "run_stop":
            yield from self._stop(line, now, about)
        elif key.startswith("eval_"):
            yield from self._evaluation(line, key, entry, about)

    def _stop(self, line: int, now: float | None, about: Mapping[str, Any]) -> Iterator[Event]:
        self._stopped = True
        if isinstance(about.get("status"), str):
            yield Fact("mlperf_status", about["status"], line)
        if about.get("status") == "success":
            yield Fact("completed", True, line)
        if now is not None:
            yield Fact("mlperf_run_stop_unix_s", now / 1000, line)
        if now is not None and self._started is not None and now >= self._started:
            yield Fact("mlperf_time_to_train_s", (now - self._started) / 1000, line)

    def _evaluation(self, line: int, key: str, entry: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[Event]:
        now, value, iteration = real(entry.get("time_ms")), entry.get("value"), _count(about.get("step"))
        if key == "eval_start":
            self._evaluates = now
        elif key == "eval_stop" and now is not None and self._evaluates is not None and now >= self._evaluates:
            yield Stall(line=line, kind="evaluation", seconds=(now - self._evaluates) / 1000, iteration=iteration)
            self._evaluates = None
        elif key == "eval_accuracy" and value is not None:
            values = {"eval_accuracy": value, **{name: about.get(name) for name in ("samples_count", "epoch_num")}}
            metrics = {name: number for name, printed in values.items() if (number := real(printed)) is not None}
            step = _step_of(None, _count(about.get("samples_count")), self._batch)
            loss = metrics.get("eval_accuracy") if self._benchmark in _JUDGED_BY_LOSS else None
            yield Validation(line=line, step=step, iteration=iteration, loss=loss, metrics=metrics)


def _step(line: int, entry: Mapping[str, Any], batch: int | None) -> Step | None:
    """Return the step that a point reports; None for a mean over a block, or a validation step."""
    value, about, now = entry.get("value"), entry.get("metadata"), real(entry.get("time_ms"))
    stats = {"train_loss": value} if entry.get("key") == "train_loss" else value
    if not isinstance(stats, dict) or not isinstance(about, dict):
        return None
    iteration, samples = _count(about.get("step")), _count(about.get("samples_count"))
    loss = stats.get("reduced_train_loss", stats.get("train_loss"))
    step = _step_of(iteration, samples, batch)
    if step is None or (loss is None and ("train_step_time" not in stats or iteration is None)):
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
        global_batch_size=batch,
        nonfinite=("loss",) if isinstance(loss, str) and is_nonfinite(loss) else (),
        metrics={name: value for name, value in values.items() if value is not None},
    )


def _step_of(iteration: int | None, samples: int | None, batch: int | None) -> int | None:
    """Return the step, from 0. Submitters count `step` from 0 (NVIDIA's LLMs) or 1 (NeMo-RL): the samples decide."""
    if samples and batch and samples % batch == 0:
        return samples // batch - 1
    return None if batch and samples else iteration


def _system(line: int, text: str) -> Iterator[Event]:
    _, mark, rest = text.partition(":::SYSJSON ")
    entry = (json_object(rest) or {}) if mark else {}
    device = entry.get("accelerator_model_name")
    facts = {"device_name": device, "vendor": maker_of(device) if isinstance(device, str) else None}
    facts |= {f"mlperf_{name}": entry.get(name) for name in ("system_name", "framework")}
    yield from (Fact(name, value, line) for name, value in facts.items() if isinstance(value, str) and value)
    nodes, each = (str(entry.get(name, "")) for name in ("number_of_nodes", "accelerators_per_node"))
    if all(count.isdecimal() and len(count) < 8 for count in (nodes, each)) and int(nodes) and int(each):
        yield Setting("world_size", int(nodes) * int(each), line)


def _count(value: Any) -> int | None:
    """Return a count, also where it is printed as 144.0."""
    if type(value) is int and 0 <= value < 2**53:
        return value
    number = real(value)
    return whole(number) if number is not None and number.is_integer() else None


DIALECT = Dialect(
    framework="mllog",
    looks_for="MLPerf: lines ':::MLLOG {…}'",
    signs=(b":::MLLOG",),
    marks=(b":::MLLOG",),
    startup=(b":::SYSJSON",),
    companion=True,
    driver=_Driver,
)
