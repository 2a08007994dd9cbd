#!/usr/bin/env bash
# Start run.sh of this bundle in its image by podman, on this node. Variables go in by name.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=tprimat-${SLURM_JOB_ID:-$$}-${SLURM_NODEID:-${NODE_RANK:-0}}
podman rm --force "$name" >/dev/null 2>&1 || true # of a job that was killed
exec podman run \
  --rm \
  --init \
  --ipc=host \
  --network=host \
  --ulimit \
  memlock=-1 \
  --ulimit \
  stack=67108864 \
  --device \
  /dev/kfd \
  --device \
  /dev/dri \
  --group-add \
  video \
  --cap-add \
  SYS_PTRACE \
  --security-opt \
  seccomp=unconfined \
  --name="$name" \
  --volume="$here":"$here" \
  --volume=/corpora/web:/corpora/web:ro \
  --volume=/scratch:/scratch \
  --volume=/data:/data:ro \
  --env=CHECKPOINTS \
  --env=CUDA_VISIBLE_DEVICES \
  --env=DRY_RUN \
  --env=GPUS_PER_NODE \
  --env=HF_TOKEN \
  --env=HIP_VISIBLE_DEVICES \
  --env=MASTER_ADDR \
  --env=MASTER_PORT \
  --env=NCCL_SOCKET_IFNAME \
  --env=NNODES \
  --env=NODE_RANK \
  --env=POWER_INTERVAL_S \
  --env=PREFLIGHT \
  --env=PYTHON \
  --env=ROCR_VISIBLE_DEVICES \
  --env=RUN_DIR \
  --env=SLURM_JOB_ID \
  --env=SLURM_NNODES \
  --env=SLURM_NODEID \
  --env=SLURM_RESTART_COUNT \
  --env=SLURM_STEP_ID \
  --env=TRAIN_ITERS \
  --env=TRAIN_LOG \
  --workdir="$here" \
  rocm/primus:v26.2 \
  bash "$here"/run.sh
