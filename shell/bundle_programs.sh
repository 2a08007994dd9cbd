#!/usr/bin/env bash
# shellcheck disable=SC2034,SC2154 # sourced by run.sh, whose variables and functions these are
# stack.sh of a bundle whose ranks are the programs in ranks/: NeMo, Megatron-Bridge, the embedded engine.
# The layout is in settings.*: another number of GPUs or iterations is rendered again.
set -euo pipefail

stack=bundle
rendered=bundle.json
given_nodes=${NNODES:-${SLURM_NNODES:-}} given_gpus=${GPUS_PER_NODE:-} given_iterations=${TRAIN_ITERS:-}
export PYTHON=${PYTHON:-python3}

stack_dry_run() {
  printf 'python    %s\n' "$PYTHON"
  cat "$here/env.sh" "$here/train.sh"
}

# same NAME GIVEN RENDERED
same() {
  [[ -z $2 || $2 == "$3" ]] || fail "$1=$2, and the bundle was rendered for ${3:-its own}." \
    "Try python launch.py … with the other number and bundle=ANOTHER/FOLDER"
}

stack_ready() {
  same NNODES "$given_nodes" "$NNODES"
  same GPUS_PER_NODE "$given_gpus" "$GPUS_PER_NODE"
  same TRAIN_ITERS "$given_iterations" ""
  [[ $NODE_RANK =~ ^[0-9]+$ && $NODE_RANK -lt $NNODES ]] || fail "NODE_RANK=$NODE_RANK is no node of $NNODES." \
    "Try NODE_RANK=0 on the first one, 1 on the next"
  command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON is no command here. Try PYTHON=/path/to/python bash run.sh"
  local threads
  threads=$(($(getconf _NPROCESSORS_ONLN) / GPUS_PER_NODE))
  ((threads <= ${MOST_THREADS:-threads})) || threads=$MOST_THREADS
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 1 ? threads : 1))}
}

# one_visibility_variable: Slurm sets those of all vendors at once. ROCm would apply two of them one after the other, the
# second to what the first has left (https://github.com/ROCm/ROCR-Runtime/issues/155).
one_visibility_variable() {
  local name chosen=""
  [[ -n $VISIBILITY ]] || return 0 # no GPU
  for name in $VISIBILITY; do
    chosen=${chosen:-${!name:-}}
  done
  unset ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK
  [[ -z $chosen ]] || export "${VISIBILITY%% *}=$chosen"
}

# stack_settle: copies what runs into the run's folder, prints the first lines of the log.
stack_settle() {
  "$PYTHON" -B "$here/ranks/bundle_marks.py" "$here" "$here/environment.sh" || return 2
  cp "$here"/settings.* "$here/bundle.json" "$run_dir"
  [[ -z ${TPRIMAT_CHECKPOINTS:-} ]] || { mkdir -p "$TPRIMAT_CHECKPOINTS" && ln -sfn "$TPRIMAT_CHECKPOINTS" "$run_dir/checkpoints"; } || return 2
}

stack_check() { :; }

stack_prepare() {
  export here
  one_visibility_variable
}
