#!/usr/bin/env bash
# End what slurm_up.sh FOLDER has started, by its files of process ids.
set -euo pipefail
folder=$1
pids=("$folder"/slurmd.*.pid "$folder"/{slurmctld,slurmdbd}.pid "$folder/db/pid")
[[ ! -e $folder/own_munge ]] || pids+=(/run/munge/munged.pid)
for file in "${pids[@]}"; do
  [[ -s $file ]] || continue
  pid=$(<"$file")
  kill "$pid" 2>/dev/null || true
  for ((t = 0; t < 80; t++)); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.25
  done
  kill -KILL "$pid" 2>/dev/null || true
done
# not sed -i: /etc/hosts is a mount in containers
hosts=$(grep -v "# tprimat-slurm $folder\$" /etc/hosts) && printf '%s\n' "$hosts" >/etc/hosts
