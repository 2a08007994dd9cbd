#!/usr/bin/env bash
# Power and memory of every GPU of this machine, sampled until the parent ends: sample_power.sh OUT.jsonl [INTERVAL_S [PARENT_PID]]
#
# A line of OUT.jsonl: {"monotonic_s": 812.31, "time_unix_s": 1789515524, "device": 0, "power_w": 512.0,
# "memory_used_bytes": 183000000000, "energy_j": 81234.5, "tool": "amd-smi"}; what a tool does not tell is null.
#   monotonic_s   CLOCK_MONOTONIC, which is what Python's time.monotonic() and so the marks of the steps read. A shell sees
#                 only /proc/uptime, which counts suspended time, too: their difference is asked of python3, once (the two
#                 run alike afterwards). No python3: null, for a wrong clock would set power beside the wrong steps.
#   energy_j      the GPU's own counter, where the tool has it
# Tools, the first that reports a GPU: nvidia-smi, amd-smi, rocm-smi. Each sample is a fresh call: amd-smi's own watch mode
# prints nothing in some containers.
#
# Ends on SIGTERM, and by itself when PARENT_PID (default: who started it) is no longer its parent.
# Exit code 1: no tool reports a GPU, nothing is written. 2: wrong arguments.
# Needs bash 4.2 and coreutils.
set -euo pipefail

# ask TOOL: its report as CSV, with a header; nothing where it fails or hangs.
ask() {
  case $1 in
  nvidia-smi) timeout 10 nvidia-smi --query-gpu=index,power.draw,memory.used --format=csv,nounits ;;
  amd-smi) timeout 10 amd-smi metric --power --mem-usage --energy --csv ;;
  rocm-smi) timeout 10 rocm-smi --showpower --showmeminfo vram --csv ;;
  esac 2>/dev/null </dev/null || true
}

# The helpers below leave their result in REPLY: a subshell for each cell of eight GPUs would cost more than the sample.

# column PATTERN CELL...: the number of the first cell that matches, -1 if none does.
column() {
  local pattern=$1 cell
  shift
  REPLY=0
  for cell in "$@"; do
    # shellcheck disable=SC2053 # a pattern is meant
    [[ $cell != $pattern ]] || return 0
    REPLY=$((REPLY + 1))
  done
  REPLY=-1
}

# number AT CELL...: the cell at AT without its unit, null where there is none or it holds no number.
number() {
  local at=$(($1 + 2))
  REPLY=null
  ((at > 1 && at <= $#)) || return 0
  local text=${!at%% *}
  [[ ! $text =~ ^[0-9]+(\.[0-9]+)?$ ]] || REPLY=$text
}

# uptime_cs: hundredths of a second since boot.
uptime_cs() {
  local rest
  read -r REPLY rest </proc/uptime
  REPLY=$((10#${REPLY/./}))
}

# clock_offset_cs: CLOCK_MONOTONIC - /proc/uptime in hundredths of a second; nothing without python3.
clock_offset_cs() {
  REPLY=$(python3 -c 'import time; print(round(100 * (time.monotonic() - float(open("/proc/uptime").read().split()[0]))))' \
    2>/dev/null) || REPLY=""
}

# rows TOOL STAMP: the JSON lines of one report on stdin, nothing if it has no header that we know.
rows() {
  local tool=$1 stamp=$2 line unit=1048576 at_power=-1 at_memory=-1 at_energy=-1 device="" power memory energy known=""
  local -a cells
  [[ $tool != rocm-smi ]] || unit=1 # rocm-smi tells bytes; the others mebibytes, whatever they call them
  while IFS= read -r line; do
    line=${line//$'\r'/}
    IFS=, read -r -a cells <<<"${line//, /,},"
    case ${cells[0]:-} in
    index | gpu | device)
      known=yes
      column '*[Pp]ower*' "${cells[@]}" && at_power=$REPLY
      column '@(memory.used*|used_vram|VRAM Total Used Memory*)' "${cells[@]}" && at_memory=$REPLY
      column 'total_energy_consumption' "${cells[@]}" && at_energy=$REPLY
      continue
      ;;
    esac
    device=${cells[0]:-}
    device=${device#card}
    [[ -n $known && $device =~ ^[0-9]+$ ]] || continue
    number "$at_power" "${cells[@]}" && power=$REPLY
    number "$at_energy" "${cells[@]}" && energy=$REPLY
    number "$at_memory" "${cells[@]}" && memory=$REPLY
    [[ $memory == null ]] || memory=$((10#${memory%%.*} * unit))
    # One printf a line: a signal may come between two.
    printf '{"monotonic_s": %s, "time_unix_s": %(%s)T, "device": %d, "power_w": %s, "memory_used_bytes": %s, "energy_j": %s, "tool": "%s"}\n' \
      "$stamp" -1 "$device" "$power" "$memory" "$energy" "$tool"
  done
}

# sample TOOL OFFSET: one line a GPU, stamped with the middle of the call.
sample() {
  local tool=$1 offset=$2 before report stamp=null
  uptime_cs && before=$REPLY
  report=$(ask "$tool")
  uptime_cs
  if [[ -n $offset ]]; then
    REPLY=$(((before + REPLY) / 2 + offset))
    printf -v stamp '%d.%02d' "$((REPLY / 100))" "$((REPLY % 100))"
  fi
  rows "$tool" "$stamp" <<<"$report"
}

# parent_now: our parent. The name in the stat file may hold spaces, so all up to the last ")" is cut.
parent_now() {
  read -r REPLY <"/proc/$$/stat"
  REPLY=${REPLY##*) }
  REPLY=${REPLY#* }
  REPLY=${REPLY%% *}
}

# working_tool: the first that reports a GPU.
working_tool() {
  for REPLY in nvidia-smi amd-smi rocm-smi; do
    if command -v "$REPLY" >/dev/null && [[ -n $(sample "$REPLY" "") ]]; then
      return 0
    fi
  done
  return 1
}

main() {
  local output=${1:-} interval=${2:-1} parent=${3:-$PPID} tool offset
  if [[ -z $output || ! $interval =~ ^[0-9]+(\.[0-9]+)?$ || ! $parent =~ ^[0-9]+$ ]]; then
    printf 'usage: sample_power.sh OUT.jsonl [INTERVAL_S [PARENT_PID]]\n' >&2
    return 2
  fi
  if ! working_tool; then
    printf 'sample_power: none of nvidia-smi, amd-smi, rocm-smi reports a GPU: power and memory are not sampled\n' >&2
    return 1
  fi
  tool=$REPLY
  clock_offset_cs && offset=$REPLY
  parent_now
  while [[ $REPLY == "$parent" ]]; do
    sample "$tool" "$offset" >>"$output"
    sleep "$interval" &
    pause=$!
    wait "$pause" || true
    parent_now
  done
}

shopt -s extglob
pause=""
trap '[[ -z $pause ]] || kill "$pause" 2>/dev/null || true' EXIT
trap 'exit 0' TERM INT HUP
main "$@"
