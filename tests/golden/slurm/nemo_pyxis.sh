#!/usr/bin/env bash
#SBATCH --account=llm
#SBATCH --constraint=h100
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --job-name=llama31_70b-nvidia
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --output=slurm-%j.out
#SBATCH --partition=batch
#SBATCH --qos=high
#SBATCH --time=04:00:00
# llama31_70b-nvidia: cd BUNDLE && sbatch job.sh. Each node keeps its run in runs/jobID.STEP-nodeN.
set -euo pipefail
fail() {
  printf 'engine: slurm: %s\n' "$*" >&2
  exit 2
}
here=$SLURM_SUBMIT_DIR # Slurm runs a copy of this script
[[ -f $here/run.sh ]] || fail "$here is no bundle. Try cd BUNDLE && sbatch job.sh"
module load cuda/12.9 || fail 'the module cuda/12.9 does not load'
module load gdrcopy || fail 'the module gdrcopy does not load'
unset NODE_RANK RUN_DIR TRAIN_LOG # of another run; each node has its own
unset TPRIMAT_CHECKPOINTS TPRIMAT_STOP
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=${nodes%%$'\n'*} # of node 0, whose rank is 0
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 6000 * 2)) # and the next: each job's own, below Linux's
exec srun --kill-on-bad-exit=1 --output="$here/slurm-%j-node%n.out" '--container-image=nvcr.io#nvidia/nemo:25.09' --container-mounts="$here:$here,/scratch:/scratch" --no-container-mount-home bash "$here/run.sh"
