#!/usr/bin/env bash
#SBATCH --gpus-per-node=8
#SBATCH --job-name=llama31_70b-amd
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --output=slurm-%j.out
#SBATCH --time=04:00:00
# llama31_70b-amd: cd BUNDLE && sbatch job.sh. Each node keeps its run in runs/jobID.STEP-nodeN.
set -euo pipefail
fail() {
  printf 'engine: slurm: %s\n' "$*" >&2
  exit 2
}
here=$SLURM_SUBMIT_DIR # Slurm runs a copy of this script
[[ -f $here/run.sh ]] || fail "$here is no bundle. Try cd BUNDLE && sbatch job.sh"
unset NODE_RANK RUN_DIR TRAIN_LOG # of another run; each node has its own
unset TPRIMAT_CHECKPOINTS TPRIMAT_STOP
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=${nodes%%$'\n'*} # of node 0, whose rank is 0
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 6000 * 2)) # and the next: each job's own, below Linux's
exec srun --kill-on-bad-exit=1 --output="$here/slurm-%j-node%n.out" bash "$here/run.sh"
