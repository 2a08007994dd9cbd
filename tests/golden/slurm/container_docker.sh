#!/usr/bin/env bash
# Start run.sh of this bundle in its image by docker, on this node. Variables go in by name.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=tprimat-${SLURM_JOB_ID:-$$}-${SLURM_NODEID:-${NODE_RANK:-0}}
docker rm --force "$name" >/dev/null 2>&1 || true # of a job that was killed
exec docker run \
  --rm \
  --init \
  --ipc=host \
  --network=host \
  --ulimit \
  memlock=-1 \
  --ulimit \
  stack=67108864 \
  --gpus \
  all \
  --name="$name" \
  --volume="$here":"$here" \
  --volume=/scratch:/scratch \
  --volume=/data:/data:ro \
  --env=CHECKPOINTS \
  --env=CUDA_DEVICE_MAX_CONNECTIONS \
  --env=CUDA_VISIBLE_DEVICES \
  --env=DRY_RUN \
  --env=GPUS_PER_NODE \
  --env=HF_HUB_OFFLINE \
  --env=HF_TOKEN \
  --env=MASTER_ADDR \
  --env=MASTER_PORT \
  --env=NCCL_GRAPH_REGISTER \
  --env=NCCL_NVLS_ENABLE \
  --env=NCCL_SOCKET_IFNAME \
  --env=NNODES \
  --env=NODE_RANK \
  --env=NVTE_BWD_LAYERNORM_SM_MARGIN \
  --env=NVTE_FWD_LAYERNORM_SM_MARGIN \
  --env=POWER_INTERVAL_S \
  --env=PREFLIGHT \
  --env=PYTHON \
  --env=PYTORCH_CUDA_ALLOC_CONF \
  --env=RUN_DIR \
  --env=SLURM_JOB_ID \
  --env=SLURM_NNODES \
  --env=SLURM_NODEID \
  --env=SLURM_RESTART_COUNT \
  --env=SLURM_STEP_ID \
  --env=TOKENIZERS_PARALLELISM \
  --env=TORCH_NCCL_AVOID_RECORD_STREAMS \
  --env=TORCH_NCCL_HIGH_PRIORITY \
  --env=TRAIN_ITERS \
  --env=TRAIN_LOG \
  --env=TRANSFORMERS_OFFLINE \
  --workdir="$here" \
  --device \
  /dev/infiniband \
  nvcr.io/nvidia/nemo:26.02 \
  bash "$here"/run.sh
