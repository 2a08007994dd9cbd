#!/usr/bin/env bash
# One task of an array of Slurm: start the bundle on its line of the list: array_task.sh LIST. A line has the attempt, the
# bundle's folder, and the Python of its ranks (empty: python3), with tabs between them.
set -euo pipefail
mapfile -t lines <"$1"
IFS=$'\t' read -r attempt folder python <<<"${lines[SLURM_ARRAY_TASK_ID]}"
cd "$folder"
mkdir -p attempts
# Whoever comes first has the attempt: submitted twice, a run runs once. Requeued by Slurm, it is the same job.
claim=attempts/$attempt
(set -o noclobber && printf '%s\n' "$SLURM_JOB_ID" >"$claim") 2>/dev/null || [[ $(<"$claim") == "$SLURM_JOB_ID" ]] || {
  printf 'engine: slurm: job %s has attempt %s of this run already\n' "$(<"$claim")" "$attempt" >&2
  exit 3
}
[[ -z $python ]] || export PYTHON=$python
export SLURM_SUBMIT_DIR=$PWD TPRIMAT_CHECKPOINTS=$PWD/checkpoints # of all attempts; job.sh drops it where none goes on
exec bash job.sh
