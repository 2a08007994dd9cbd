#!/usr/bin/env bash
# What this machine is, as KEY=VALUE lines: kernel, CPU, drivers, ROCm or CUDA, container. Unknown: no line.
# Needs bash 4.2 and nothing else; reads files only, starts no GPU tool and uses no network.
set -euo pipefail

# first_line KEY FILE: the file's first line, where the file is there.
first_line() {
  local key=$1 file=$2 line=""
  [[ -r $file ]] || return 0
  IFS= read -r line <"$file" || true
  [[ -z $line ]] || printf '%s=%s\n' "$key" "$line"
}

cpu_model() {
  local line
  [[ -r /proc/cpuinfo ]] || return 0
  while IFS= read -r line; do
    if [[ $line == "model name"* ]]; then
      printf 'cpu_model=%s\n' "${line#*: }"
      return 0
    fi
  done </proc/cpuinfo
}

nvidia_driver() {
  local line="" pattern='Kernel Module[^0-9]*([0-9][0-9.]*)'
  [[ -r /proc/driver/nvidia/version ]] || return 0
  IFS= read -r line </proc/driver/nvidia/version || true
  [[ ! $line =~ $pattern ]] || printf 'nvidia_driver=%s\n' "${BASH_REMATCH[1]}"
}

container() {
  if [[ -e /.dockerenv ]]; then
    printf 'container=docker\n'
  elif [[ -e /run/.containerenv ]]; then
    printf 'container=podman\n'
  elif [[ -n ${APPTAINER_CONTAINER:-} ]]; then
    printf 'container=apptainer\n'
  fi
}

first_line kernel /proc/sys/kernel/osrelease
cpu_model
nvidia_driver
first_line amdgpu_driver /sys/module/amdgpu/version
first_line rocm "${ROCM_PATH:-/opt/rocm}/.info/version"
container
