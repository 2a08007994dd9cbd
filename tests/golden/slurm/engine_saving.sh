#!/usr/bin/env bash
#SBATCH --cpus-per-task=2
#SBATCH --job-name=llama_tiny-cpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.out
#SBATCH --requeue
#SBATCH --signal=B:USR1@600
#SBATCH --time=00:30:00
# llama_tiny-cpu: cd BUNDLE && sbatch job.sh. Each node keeps its run in runs/jobID.STEP-nodeN.
set -euo pipefail
fail() {
  printf 'engine: slurm: %s\n' "$*" >&2
  exit 2
}
here=$SLURM_SUBMIT_DIR # Slurm runs a copy of this script
[[ -f $here/run.sh ]] || fail "$here is no bundle. Try cd BUNDLE && sbatch job.sh"
unset NODE_RANK RUN_DIR TRAIN_LOG # of another run; each node has its own
export TPRIMAT_CHECKPOINTS=${TPRIMAT_CHECKPOINTS:-$here/runs/job$SLURM_JOB_ID-checkpoints} # of every start
export TPRIMAT_STOP=$here/runs/.stop-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
mkdir -p "$here/runs"
trap 'noticed=1; : >"$TPRIMAT_STOP"' USR1
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=${nodes%%$'\n'*} # of node 0, whose rank is 0
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 6000 * 2)) # and the next: each job's own, below Linux's
srun --kill-on-bad-exit=1 --output="$here/slurm-%j-node%n.out" bash "$here/run.sh" &
step=$! noticed=1
while ((noticed)); do # the notice interrupts it
  noticed=0 code=0
  wait "$step" || code=$?
done
# 85: saved and ended before its time. It goes on as the same job; where Slurm forbids that, submitted again. 137
# is a failure, to be counted: a node's script was killed, and the ranks that Slurm then ended have saved
[[ ! -s $TPRIMAT_STOP ]] || ((code == 137)) || { code=85 && scontrol requeue "$SLURM_JOB_ID"; } || true
exit "$code"
