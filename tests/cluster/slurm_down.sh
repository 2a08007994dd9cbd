#!/usr/bin/env bash
# End what slurm_up.sh FOLDER has started, by its files of process ids.
set -euo pipefail
folder=$1
for file in "$folder"/slurmd.*.pid "$folder"/{slurmctld,slurmdbd}.pid "$folder"/{db/pid,munged.pid}; do
  [[ -s $file ]] || continue
  pid=$(<"$file")
  [[ $file != */db/pid ]] || kill -KILL "$pid" 2>/dev/null || true # it would write out what is thrown away
  kill "$pid" 2>/dev/null || true
  for ((t = 0; t < 80; t++)); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.25
  done
  kill -KILL "$pid" 2>/dev/null || true
done
# shellcheck disable=SC2016 # of the inner shell
# not sed -i: /etc/hosts is a mount in containers
flock /etc/hosts bash -c 'hosts=$(grep -v "# tprimat-slurm $1\$" /etc/hosts) && printf "%s\n" "$hosts" >/etc/hosts' hosts "$folder"
[[ ! -s $folder/slot ]] || rmdir "$(<"$folder/slot")"
