#!/usr/bin/env bash
# Who holds GPU memory on this machine: gpu_memory.sh [--end]
#
# One line a process: PID, user, bytes, command. --end: offers to end those of the caller, one by one (y ends it); a
# process of anyone else is never touched. Reads nvidia-smi or amd-smi, and where neither reports it, who has a GPU's device
# file open. Exit code 1: it is unknown.
set -euo pipefail

# nvidia: "PID BYTES" lines
nvidia() {
  local pid memory
  timeout 20 nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits 2>/dev/null |
    while IFS=', ' read -r pid memory _; do
      [[ ! $pid =~ ^[0-9]+$ ]] || printf '%s %s\n' "$pid" "$(mebibytes "$memory")"
    done
}

# amd: "PID BYTES" lines of amd-smi process --csv, whose columns differ between releases
amd() {
  local line pid="" memory="" number
  local -a cells
  while IFS= read -r line; do
    IFS=, read -r -a cells <<<"${line//$'\r'/},"
    if [[ ${cells[0]:-} == gpu ]]; then
      for number in "${!cells[@]}"; do
        case ${cells[$number]} in
        pid | process_info_pid) pid=$number ;;
        vram_mem | mem | memory_usage_vram_mem | mem_usage) memory=$number ;;
        esac
      done
    elif [[ -n $pid && ${cells[$pid]:-} =~ ^[0-9]+$ ]]; then
      printf '%s %s\n' "${cells[$pid]}" "${cells[${memory:-999}]:-unknown}"
    fi
  done < <(timeout 20 amd-smi process --csv 2>/dev/null)
}

# open_devices: "PID unknown" lines of the processes that have a GPU's device file open
open_devices() {
  local link
  for link in /proc/[0-9]*/fd/*; do
    case $(readlink "$link" 2>/dev/null || true) in
    /dev/kfd | /dev/dri/renderD* | /dev/nvidia[0-9]*)
      link=${link#/proc/}
      printf '%s unknown\n' "${link%%/*}"
      ;;
    esac
  done | sort -u
}

mebibytes() {
  if [[ $1 =~ ^[0-9]+$ ]]; then printf '%s' "$(($1 * 1048576))"; else printf 'unknown'; fi
}

# holders: "PID BYTES" lines by the first way that reports anything
holders() {
  local way found
  for way in nvidia amd open_devices; do
    found=$("$way" || true)
    if [[ -n $found ]]; then
      printf '%s\n' "$found"
      return 0
    fi
  done
}

# offer PID COMMAND: ends the process if the caller says so
offer() {
  local answer
  printf 'end %s (%s)? [y/N] ' "$1" "$2" >&2
  read -r answer <&3 || return 0
  [[ $answer == y ]] || return 0
  kill -TERM "$1" && printf 'asked %s to end\n' "$1" >&2
}

main() {
  local pid memory user command end=${1:-}
  if [[ -n $end && $end != --end ]]; then
    printf 'usage: gpu_memory.sh [--end]\n' >&2
    return 2
  fi
  if ! command -v nvidia-smi >/dev/null && ! command -v amd-smi >/dev/null && [[ ! -e /dev/kfd && ! -e /dev/nvidia0 ]]; then
    printf 'gpu_memory: no GPU and no tool that knows one is here\n' >&2
    return 1
  fi
  while read -r pid memory; do
    [[ -n $pid && -r /proc/$pid/status ]] || continue
    user=$(stat -c %U "/proc/$pid")
    command=$(tr '\0' ' ' <"/proc/$pid/cmdline" | cut -c 1-80)
    printf '%-8s %-12s %-14s %s\n' "$pid" "$user" "$memory" "$command"
    if [[ $end == --end && $user == "$(id -un)" && $pid != 1 && $pid != "$$" ]]; then
      offer "$pid" "$command"
    fi
  done < <(holders)
}

exec 3<&0 # the list is read from another descriptor than the answers
main "$@"
