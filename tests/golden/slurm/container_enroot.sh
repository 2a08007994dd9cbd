#!/usr/bin/env bash
# Start run.sh of this bundle in its image by enroot, on this node. Variables go in by name.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec enroot start \
  --rw \
  --mount="$here":"$here":none:x-create=dir,bind,rw \
  --mount=/scratch:/scratch:none:x-create=dir,bind,rw \
  --mount=/data:/data:none:x-create=dir,bind,ro \
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
  /images/nemo.sqsh \
  env \
  --chdir="$here" \
  bash "$here"/run.sh
