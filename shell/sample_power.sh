#!/usr/bin/env bash
# Power and memory of every GPU of this machine, sampled until the parent ends: sample_power.sh OUT.jsonl [INTERVAL_S [PARENT_PID]]
#
# A line of OUT.jsonl: {"monotonic_s": 812.31, "time_unix_s": 1789515524, "device": 0, "power_w": 512.0,
# "memory_used_bytes": 183000000000, "energy_j": 81234.5, "tool": "amd-smi", "clock_mhz": 2100, "temperature_c": 78}; what
# a tool does not report is null.
#   monotonic_s   CLOCK_MONOTONIC, which is what Python's time.monotonic() and so the marks of the steps read. A shell sees
#                 only /proc/uptime, which counts suspended time, too: python3 reports their difference, once (the two
#                 run alike afterwards). No python3: null, for a wrong clock would set power beside the wrong steps.
#   energy_j      the GPU's own counter, where the tool has it
# Tools, the first that reports a GPU: the lines of the file power_tools beside this script. Each sample is a fresh call:
# amd-smi's own watch mode prints nothing in some containers.
#
# Ends on SIGTERM, and by itself when PARENT_PID (default: who started it) is no longer its parent.
# Exit code 1: no tool reports a GPU, nothing is written. 2: wrong arguments.
# Needs bash 4.2 and coreutils.
set -euo pipefail

# The vendors' tools and how each reports: the lines of the file power_tools beside this script.
declare -a names=() units=() patterns=() commands=()

# read_tools: the table, from the file beside this script.
read_tools() {
  local name unit device power memory energy clock degrees command
  while IFS='|' read -r name unit device power memory energy clock degrees command; do
    [[ -n $name && $name != \#* ]] || continue
    names+=("${name// /}") units+=("${unit// /}") commands+=("$command")
    patterns+=("${device// /}|$(trimmed "$power")|$(trimmed "$memory")|$(trimmed "$energy")|${clock// /}|${degrees// /}")
  done <"$here/power_tools"
}

# trimmed TEXT: without the spaces around it.
trimmed() {
  local text=${1#"${1%%[![:space:]]*}"}
  printf '%s' "${text%"${text##*[![:space:]]}"}"
}

# ask NUMBER: the report of that tool as CSV, with a header; nothing where it fails or hangs.
ask() {
  local -a command
  read -r -a command <<<"${commands[$1]}"
  timeout 10 "${command[@]}" 2>/dev/null </dev/null || true
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

# rows NUMBER STAMP: the JSON lines of one report on stdin, nothing if it has no header that the table describes.
rows() {
  local tool=${names[$1]} stamp=$2 unit=${units[$1]} line device="" known=""
  local at_power=-1 at_memory=-1 at_energy=-1 at_clock=-1 at_degrees=-1 power memory energy clock degrees
  local at_device power_cell memory_cell energy_cell clock_cell degrees_cell
  local -a cells
  IFS='|' read -r at_device power_cell memory_cell energy_cell clock_cell degrees_cell <<<"${patterns[$1]}"
  while IFS= read -r line; do
    line=${line//$'\r'/}
    IFS=, read -r -a cells <<<"${line//, /,},"
    if [[ ${cells[0]:-} == "$at_device" ]]; then
      known=yes
      column "$power_cell" "${cells[@]}" && at_power=$REPLY
      column "$memory_cell" "${cells[@]}" && at_memory=$REPLY
      column "$energy_cell" "${cells[@]}" && at_energy=$REPLY
      column "$clock_cell" "${cells[@]}" && at_clock=$REPLY
      column "$degrees_cell" "${cells[@]}" && at_degrees=$REPLY
      continue
    fi
    device=${cells[0]:-}
    device=${device#card}
    [[ -n $known && $device =~ ^[0-9]+$ ]] || continue
    number "$at_power" "${cells[@]}" && power=$REPLY
    number "$at_energy" "${cells[@]}" && energy=$REPLY
    number "$at_clock" "${cells[@]}" && clock=$REPLY
    number "$at_degrees" "${cells[@]}" && degrees=$REPLY
    number "$at_memory" "${cells[@]}" && memory=$REPLY
    [[ $memory == null ]] || memory=$((10#${memory%%.*} * unit))
    # One printf a line: a signal may come between two.
    printf '{"monotonic_s": %s, "time_unix_s": %(%s)T, "device": %d, "power_w": %s, "memory_used_bytes": %s, "energy_j": %s, "tool": "%s", "clock_mhz": %s, "temperature_c": %s}\n' \
      "$stamp" -1 "$device" "$power" "$memory" "$energy" "$tool" "$clock" "$degrees"
  done
}

# sample NUMBER OFFSET: one line a GPU, stamped with the middle of the call.
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

# listed NAME...: the names with commas between them.
listed() {
  local text
  printf -v text '%s, ' "$@"
  printf '%s' "${text%, }"
}

# parent_now: our parent. The name in the stat file may hold spaces, so all up to the last ")" is cut.
parent_now() {
  read -r REPLY <"/proc/$$/stat"
  REPLY=${REPLY##*) }
  REPLY=${REPLY#* }
  REPLY=${REPLY%% *}
}

# working_tool: the number of the first that reports a GPU.
working_tool() {
  for REPLY in "${!names[@]}"; do
    if command -v "${names[$REPLY]}" >/dev/null && [[ -n $(sample "$REPLY" "") ]]; then
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
  read_tools
  if ! working_tool; then
    printf 'sample_power: none of %s reports a GPU: power and memory are not sampled\n' "$(listed "${names[@]}")" >&2
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

here=${BASH_SOURCE[0]%/*}
[[ $here != "${BASH_SOURCE[0]}" ]] || here=.
shopt -s extglob
pause=""
trap '[[ -z $pause ]] || kill "$pause" 2>/dev/null || true' EXIT
trap 'exit 0' TERM INT HUP
main "$@"
