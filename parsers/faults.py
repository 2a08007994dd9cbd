"""The lines of a log that tell why a run died: the first of each sort, in constant memory.

Only a line that ends a program counts (an exception, an abort, a refusal) and the lines that its message goes on in:
a warning may name the same fault, overcome. A fault after which training went on was handled, and is forgotten.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

# Ranks write on their own: the step line of the last rank can follow a fault of another rank that ended the run.
_STEPS_AFTER = 2
_LONGEST, _LONGEST_JOINED = 300, 500
# "Last error: Cuda failure 'out of memory'" stands in the third line after NCCL's exception.
_MESSAGE_LINES = 4

_PREFIX = re.compile(r"(?:\s{0,40}(?:\[[^\]]{1,60}\]:?|\d{1,5}:)){0,4}\s{0,40}")
_EXCEPTION = re.compile(r"(?:\w{1,60}\.){0,8}\w{0,60}(?:Error|Exception|KeyboardInterrupt)(?::\s|$)")
_FATAL = re.compile(
    r"engine: |Fatal Python error|Segmentation fault|Bus error|terminate called|Aborted|bash: |\S{0,80}: error: "
    r"|slurmstepd: error|srun: error|what\(\): "
)
_OUT_OF_MEMORY = re.compile(
    r"MemoryError|ErrorOutOfMemory|out of memory|cudaErrorMemoryAllocation|DefaultCPUAllocator: can't allocate memory"
    r"|DefaultCPUAllocator: not enough memory|bad_alloc|Cannot allocate memory|OOM Killed|oom[-_]kill",
    re.IGNORECASE,
)
# The last is Primus' on every box without InfiniBand (runner/helpers/envs/get_nccl_ib_hca.sh), which it goes on on.
_OVERCOME = re.compile(r"falling back|retrying|No InfiniBand devices found", re.IGNORECASE)
_NOT_FINITE = re.compile(r"found (?:NaN|Inf) in local|loss is (?:nan|-?inf)|loss is not finite", re.IGNORECASE)
# megatron/core/rerun_state_machine.py and, before it, the assertions of megatron/core/pipeline_parallel/schedules.py.
_MEGATRON_CHECKS = re.compile(r"\bRank \d{1,6}[,:] |Unexpected result ")
# What the surviving ranks and the launchers say once another rank is gone: never the first cause.
_AFTERMATH = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|remote process exited|ncclRemoteError"
    r"|ChildFailedError|SignalException|Socket Timeout|DistNetworkError|heartbeat monitor|srun: error|bash: "
)
_CHILD_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,5})")
_SUMMARY_RANK = re.compile(r"^\s{0,20}rank\s{1,10}: (\d{1,6}) ")
_SUMMARY_EXIT = re.compile(r"^\s{0,20}exitcode\s{1,10}: (-?\d{1,5}) ")
_CHEAP = re.compile(r"rror|xception|engine: |nterrupt|ault|memory|alloc|oom|OOM|Abort|terminate|bash: |what\(|NaN|Inf")
_ANOTHER_SPEAKER = re.compile(r"Traceback|\[tprimat\]|\b(?:WARN|WARNING|INFO|DEBUG)\b|Warning: ")


@dataclass(frozen=True, slots=True)
class Faults:
    """The first line of each sort. death: what torchrun says of the first rank that died, in our words."""

    root: str | None = None
    aftermath: str | None = None
    death: str | None = None
    out_of_memory: str | None = None
    not_finite: str | None = None
    interrupted: str | None = None


class FaultFinder:
    """Feed it the lines in order, tell it of each step."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._steps_since = 0
        self._summary = False
        self._summary_rank: str | None = None
        self._message = ""
        self._message_left = 0
        self._refusal = False

    def found(self) -> Faults:
        return Faults(**self._first)

    def copy(self) -> FaultFinder:
        """One that goes on from here by itself."""
        other = FaultFinder()
        other.__dict__.update(self.__dict__, _first=dict(self._first))
        return other

    def stepped(self) -> None:
        """Training went on."""
        self._message_left, self._refusal = 0, False
        self._steps_since += 1
        if self._steps_since >= _STEPS_AFTER:
            self._first.clear()

    def feed(self, text: str) -> None:
        if self._refusal and self._read_refusal(text):
            return
        if self._summary:
            self._read_summary(text)
        elif "Root Cause (first observed failure)" in text:
            self._summary = True
        elif "exitcode: " in text:
            self._read_child(text)
        elif self._message_left or _CHEAP.search(text):
            self._read_fault(text)

    def _read_fault(self, text: str) -> None:
        body = _PREFIX.sub("", text, count=1)
        shown = text.strip()[:_LONGEST]
        raised = _EXCEPTION.match(body)
        if _OVERCOME.search(text):
            self._message_left = 0
        elif raised or _FATAL.match(body):
            self._read_end(text, shown, interrupted=raised is not None and "SignalException" in raised[0])
            self._message, self._message_left = shown, _MESSAGE_LINES
            self._refusal = body.startswith("engine: ") and self._first.get("root") == shown
        elif _NOT_FINITE.search(text) and _MEGATRON_CHECKS.search(text):
            self._keep("not_finite", shown)
        elif self._message_left:
            self._read_message(text, body)

    def _read_end(self, text: str, shown: str, interrupted: bool) -> None:
        """A line that ends a program."""
        if _OUT_OF_MEMORY.search(text):
            self._keep("out_of_memory", shown)
        if _NOT_FINITE.search(text):
            self._keep("not_finite", shown)
        if interrupted:
            self._keep("interrupted", shown)
        self._keep("aftermath" if _AFTERMATH.search(text) else "root", shown)

    def _read_message(self, text: str, body: str) -> None:
        """A line that the message of such a line goes on in, unless somebody else speaks."""
        self._message_left = 0 if _ANOTHER_SPEAKER.search(text) else self._message_left - 1
        if self._message_left and _OUT_OF_MEMORY.search(text):
            self._keep("out_of_memory", _joined(self._message, body, " "))

    def _read_refusal(self, text: str) -> bool:
        """The engine lists what it refuses in indented lines below."""
        body = _PREFIX.sub("", text, count=1)
        self._refusal = bool(body) and text[: len(text) - len(body)].endswith("  ")
        if self._refusal:
            self._first["root"] = _joined(self._first["root"], body, " | ")
        return self._refusal

    def _read_child(self, text: str) -> None:
        child = _CHILD_FAILED.search(text)
        if child is not None:
            self._keep("death", _death(f"local rank {child[2]}", int(child[1])))

    def _read_summary(self, text: str) -> None:
        rank, code = _SUMMARY_RANK.search(text), _SUMMARY_EXIT.search(text)
        if rank is not None:
            self._summary_rank = rank[1]
        elif code is not None and self._summary_rank is not None:
            self._first["death"] = _death(f"rank {self._summary_rank}", int(code[1]))
            self._summary = False

    def _keep(self, sort: str, text: str) -> None:
        if not self._first:
            self._steps_since = 0
        self._first.setdefault(sort, text)


def signal_name(number: int) -> str:
    """SIGKILL for 9; "signal 99" where the system knows no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _joined(first: str, rest: str, between: str) -> str:
    return f"{first}{between}{rest.strip()}"[:_LONGEST_JOINED]


def _death(who: str, exit_code: int) -> str:
    return f"{who} died by {signal_name(-exit_code)}" if exit_code < 0 else f"{who} exited with code {exit_code}"
