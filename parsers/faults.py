"""The end of a log: its last lines, and the lines that say why a run died, the first of each sort.

Only a line that ends a program counts (an exception, an abort, a refusal) and the lines that its message goes on in:
a warning may name the same fault, overcome. A fault after which training went on was handled, and is forgotten: so only
what came after the last but one step is kept, in constant memory, and searched when somebody asks."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from copy import deepcopy
from typing import NamedTuple

from parsers.text import body, colourless

_KEPT = 4 << 20
_TAIL_BYTES, _TAIL_LINES, _TAIL_WIDTH = 32 << 10, 20, 500
_LINE = 4096

# Ranks write on their own: the step line of the last rank can follow a fault of another rank that ended the run.
_STEPS_AFTER = 2
_LONGEST, _LONGEST_JOINED = 300, 500
# "Last error: Cuda failure 'out of memory'" stands in the third line after NCCL's exception.
_MESSAGE_LINES = 4

_EXCEPTION = re.compile(  # the first is OLMo's: "CRITICAL Uncaught OLMoThreadError: …"
    r"(?:.{0,160}?\bUncaught )?(?:\w{1,60}\.){0,8}\w{0,60}(?:Error|Exception|KeyboardInterrupt)(?::\s|$)"
)
_FATAL = re.compile(
    r"engine: |Fatal Python error|Segmentation fault|Bus error|terminate called|Aborted|bash: |\S{0,80}: error: "
    r"|slurmstepd: error|srun: error|what\(\): |at file \S{1,80}:\d{1,6}:$"
)
_SLURM = "slurmstepd: error: *** "  # may stand behind what another process has begun to print
# What others say of its end: the shell that started it, Slurm and LSF of the job, NCCL's watchdog. by: it was ended.
_ENDED = re.compile(
    r"(?P<by>(?:\S{1,200}: )?line \d{1,6}: {1,8}\d{1,10} (?:Killed|Terminated|Hangup)\b|TERM_[A-Z_]{3,40}: job killed"
    r"|slurmstepd: error: \*\*\* (?:JOB .{1,200} CANCELLED AT|.{1,250} DUE TO )"
    r"|(?:.{0,300}(?:it/s|s/it).{0,100}\])?Killed$)"  # by a shell, behind a bar
    r"|(?:\S{1,200}: )?line \d{1,6}: {1,8}\d{1,10} (?:Aborted|Segmentation fault)\b"
    r"|slurmstepd: error: \*\*\* .{1,200} CANCELLED AT"
    r"|(?:Subject: )?Job \d{1,12}: <.{1,200}> in cluster <.{1,80}> Exited"
    r"|Watchdog caught collective operation timeout"
    r"|(?:\[PG [^]]{1,60}\] )?Process group watchdog thread terminated with exception: "
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
    r"|ChildFailedError|SignalException|KeyboardInterrupt|Socket Timeout|DistNetworkError|heartbeat monitor"
    r"|srun: error|bash: "
)
_CHILD_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,5})")
# DeepSpeed's launcher; accelerate's, and whoever else starts a process.
_CHILD_ENDED = re.compile(
    r" exits with return code = (-?\d{1,5})$|Error: Command .{1,4000} died with <Signals\.\w{3,12}: (\d{1,3})>"
)
_SUMMARY_RANK = re.compile(r"^\s{0,20}rank\s{1,10}: (\d{1,6}) ")
_SUMMARY_EXIT = re.compile(r"^\s{0,20}exitcode\s{1,10}: (-?\d{1,5}) ")
_CHEAP = re.compile(
    r"rror|RROR|xception|engine: |nterrupt|ault|memory|alloc|oom|OOM|Abort|terminate|bash: |what\(|NaN|Inf"
    r"|[Kk]illed|Terminated|Hangup|Exited|Watchdog"
)
# A traceback that somebody logs on their way on: Bridge of each package that it does without (utils/import_utils.py).
_LOGGED = re.compile(r"(?:\b(?:INFO|DEBUG|WARN|WARNING)\b|^Import of ).{1,300}: Traceback \(most recent call last\):")
_ANOTHER_SPEAKER = re.compile(r"Traceback|\[tprimat\]|\b(?:WARN|WARNING|INFO|DEBUG)\b|Warning: ")


class Faults(NamedTuple):
    """The first line of each sort. death: what torchrun says about the first rank that died, in our words."""

    root: str | None = None
    aftermath: str | None = None
    death: str | None = None
    out_of_memory: str | None = None
    not_finite: str | None = None
    interrupted: str | None = None


class FaultFinder:
    """Searches the lines of a run, fed in order, and forgets what training survived."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._steps_since = 0
        self._summary = False
        self._summary_rank: str | None = None
        self._message = ""
        self._message_left = 0
        self._refusal = self._logged = False

    def faults(self) -> Faults:
        """Return what was read so far."""
        return Faults(**self._first)

    def stepped(self) -> None:
        """Take note of a step: training went on."""
        self._message_left, self._refusal = 0, False
        self._steps_since += 1
        if self._steps_since >= _STEPS_AFTER:
            self._first.clear()

    def feed(self, text: str) -> None:
        """Read the next line."""
        if self._refusal:  # the indented lines in which the engine lists what it refuses
            said = body(text)
            self._refusal = said.startswith("  ") and bool(said.strip())
            if self._refusal:
                self._first["root"] = f"{self._first['root']} | {said.strip()}"[:_LONGEST_JOINED]
                return
        if self._is_logged(text):
            return
        if self._summary:
            self._read_summary(text)
        elif "Root Cause (first observed failure)" in text:
            self._summary = True
        elif "exitcode: " in text:
            if child := _CHILD_FAILED.search(text):
                self._keep("death", _death(f"local rank {child[2]}", int(child[1])))
        elif ("return code = " in text or "died with " in text) and (child := _CHILD_ENDED.search(text.rstrip())):
            self._keep("death", _death("a process that was started", int(child[1] or f"-{child[2]}")))
        elif self._message_left or _CHEAP.search(text):
            self._read_fault(text)

    def _is_logged(self, text: str) -> bool:
        """Return whether a line is of a traceback that does not end the program; its last names what was raised."""
        before, self._logged = self._logged, ": Traceback (" in text and _LOGGED.search(text) is not None
        self._logged |= before and text.startswith(" ")
        return before or self._logged

    def _read_fault(self, text: str) -> None:
        """Keep a line that ends a program, and what counts in its message, which goes on until somebody else speaks."""
        text = text[max(0, text.find(_SLURM)) :]
        said, shown = body(text).strip(), text.strip()[:_LONGEST]
        raised = _EXCEPTION.match(said)
        if _OVERCOME.search(text):
            self._message_left = 0
        elif ended := _ENDED.match(said):
            self._keep("interrupted" if ended["by"] else "aftermath", shown)
        elif raised or _FATAL.match(said):
            for sort, pattern in (("out_of_memory", _OUT_OF_MEMORY), ("not_finite", _NOT_FINITE)):
                if pattern.search(text):
                    self._keep(sort, shown)
            if raised and ("SignalException" in raised[0] or "KeyboardInterrupt" in raised[0]):
                self._keep("interrupted", shown)
            nameless = said.startswith("Error: ")  # a launcher's, which often goes on: no exception has this name
            follows = nameless or "KeyboardInterrupt" in self._first.get("interrupted", "")
            self._keep("aftermath" if follows or _AFTERMATH.search(text) else "root", shown)
            self._message, self._message_left = shown, _MESSAGE_LINES
            self._refusal = said.startswith("engine: ") and self._first.get("root") == shown
        elif _NOT_FINITE.search(text) and _MEGATRON_CHECKS.search(text):
            self._keep("not_finite", shown)
        elif self._message_left:
            self._read_message(text, said)

    def _read_message(self, text: str, said: str) -> None:
        """Read what the message of a fault goes on in. llm.c's says what happened in its second line."""
        self._message_left = 0 if _ANOTHER_SPEAKER.search(text) else self._message_left - 1
        if self._message.startswith("[CUDA ERROR]") and self._first.get("root") == self._message:
            self._first["root"] = f"{self._message} {said}"[:_LONGEST_JOINED]
        if self._message_left and _OUT_OF_MEMORY.search(text):
            self._keep("out_of_memory", f"{self._message} {said}"[:_LONGEST_JOINED])

    def _read_summary(self, text: str) -> None:
        if rank := _SUMMARY_RANK.search(text):
            self._summary_rank = rank[1]
        elif (code := _SUMMARY_EXIT.search(text)) and self._summary_rank is not None:
            self._first["death"] = _death(f"rank {self._summary_rank}", int(code[1]))
            self._summary = False

    def _keep(self, sort: str, text: str) -> None:
        if not self._first:
            self._steps_since = 0
        self._first.setdefault(sort, text)


def signal_name(number: int) -> str:
    """Return SIGKILL for 9; "signal 99" where the system knows no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _death(who: str, exit_code: int) -> str:
    return f"{who} died by {signal_name(-exit_code)}" if exit_code < 0 else f"{who} exited with code {exit_code}"


class Trail:
    """The end of a run's log. Give it all bytes in order, with where steps end in them. newer: what came after the last
    step."""

    def __init__(self) -> None:
        self._finder = FaultFinder()
        self._older, self.newer = b"", b""  # since the last but one step, and since the last
        self._tail = b""

    def take(self, block: bytes, steps_end: list[int]) -> None:
        """Read the next bytes. steps_end: offsets in `block`, ascending; of many the last two."""
        for _ in steps_end[-2:]:
            self._finder.stepped()
        if len(steps_end) == 1:
            self._older, self.newer = self.newer + block[: steps_end[0]], block[steps_end[0] :]
        elif steps_end:
            self._older, self.newer = block[steps_end[-2] : steps_end[-1]], block[steps_end[-1] :]
        else:
            self.newer += block
        if len(self._older) + len(self.newer) > _KEPT:
            self._read(self._finder)
            self._older, self.newer = b"", b""
        self._tail = block[-_TAIL_BYTES:] if len(block) >= _TAIL_BYTES else (self._tail + block)[-_TAIL_BYTES:]

    def stepped(self, lines: int) -> None:
        """Take note of a step that was reported late: it stands in the first `lines` lines of `newer`."""
        end = sum(len(line) + 1 for line in self.newer.split(b"\n", max(0, lines))[: max(0, lines)])
        self._finder.stepped()
        self._older, self.newer = self.newer[:end], self.newer[end:]

    def forget_faults(self) -> None:
        """Forget what was read: the run goes on all the same."""
        self._finder, self._older, self.newer = FaultFinder(), b"", b""

    def faults(self) -> Faults:
        """Return what ended the run, as far as was read."""
        finder = deepcopy(self._finder)
        self._read(finder)
        return finder.faults()

    def lines(self) -> tuple[str, ...]:
        """Return the last lines that are not empty."""
        lines = [line.rstrip()[:_TAIL_WIDTH] for line in _lines(self._tail) if line.strip()]
        return tuple(lines[-_TAIL_LINES:])

    def _read(self, finder: FaultFinder) -> None:
        for line in _lines(self._older):
            finder.feed(line)
        if self._older:
            finder.stepped()
        for line in _lines(self.newer):
            finder.feed(line)


def _lines(text: bytes) -> Iterator[str]:
    for line in text.replace(b"\r", b"\n").split(b"\n"):
        yield colourless(line[:_LINE].decode("utf-8", "replace"))
