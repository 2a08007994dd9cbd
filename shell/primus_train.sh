#!/usr/bin/env bash
# Train with Primus on this node: primus.yaml of the current folder, in the checkout at PRIMUS_PATH.
#
# All else comes from the environment, where the plan or the bundle's env.sh has put it: PRIMUS_ENTRY (run_pretrain, direct,
# container, slurm; main), PRIMUS_PYTHON (of another environment), PRIMUS_CACHE_ROOT, PRIMUS_IMAGE, DATA_PREFIX, NNODES,
# NODE_RANK, GPUS_PER_NODE, MASTER_ADDR, MASTER_PORT, START_RANKS (start_ranks.py, in place of torchrun on one node).
# No value of the experiment stands here. What Primus prints goes to stdout: who started us keeps the log.
# Exit code 2: refused, nothing was started. Needs bash 4.2.
set -euo pipefail

fail() {
  printf 'engine: primus: %s\n' "$*" >&2
  exit 2
}

# absolute PATH: from the current folder; a leading ~ is the home, which no shell sees inside a variable.
absolute() {
  local path=${1/#\~\//$HOME/}
  [[ $path == /* ]] || path=$PWD/$path
  printf '%s' "$path"
}

# corpora WORDS: the path of a corpus, or those of a blend behind their weights, from the current folder.
corpora() {
  local word words=() all=()
  read -ra words <<<"$1"
  for word in "${words[@]}"; do
    if [[ $word == */* || ${#words[@]} == 1 ]]; then
      word=$(absolute "$word")
      [[ -f $word.bin && -f $word.idx ]] || fail "no corpus at $word (.bin and .idx). Try DATA_PREFIX=/path/to/a/corpus"
    fi
    all+=("$word")
  done
  printf '%s' "${all[*]}"
}

# one_visibility_variable: which GPUs we may use, said once. Several of these variables apply one after another, each to what
# the last one left, and Primus sets HIP_VISIBLE_DEVICES to 0..N-1 by itself: so the choice must be made below that one.
one_visibility_variable() {
  local name chosen=""
  for name in ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL; do
    [[ -n $chosen ]] || chosen=${!name:-}
    unset "$name"
  done
  [[ -z $chosen ]] || export ROCR_VISIBLE_DEVICES=$chosen
}

# torchrun reads its options from these, too: PET_NNODES is --nnodes. Kubeflow and torchx leave them in a shell.
for name in "${!PET_@}" "${!TORCHELASTIC_@}"; do unset "$name"; done

checkout=${PRIMUS_PATH:-}
[[ -n $checkout ]] || fail "PRIMUS_PATH is not set. Try PRIMUS_PATH=/path/to/a/checkout/of/Primus"
[[ -f $checkout/primus/cli/main.py ]] || fail "PRIMUS_PATH=$checkout is not a checkout of Primus (no primus/cli/main.py there)." \
  "Try git clone --recurse-submodules -b release/vXX.Y https://github.com/AMD-AGI/Primus"
EXP=$(absolute primus.yaml)
export EXP
[[ -f $EXP ]] || fail "$EXP is not there: start this in the folder of the run"
[[ $EXP != *[[:space:]]* ]] || fail "'$EXP': Primus splits its command at spaces. Move the folder to a path without any"
PRIMUS_WORKSPACE=${EXP%/*}/primus
export PRIMUS_WORKSPACE
export PET_LOG_DIR=$PRIMUS_WORKSPACE/torchrun # its folders would stay in /tmp
# Primus calls torchrun by name. On one machine its store listens on the loopback: torch's listens on every interface. A
# rehearsal has a torchrun of its own in PATH.
if [[ ${NNODES:-1} == 1 && -n ${START_RANKS:-} && -z ${TPRIMAT_REHEARSE:-} ]]; then
  torchrun() { python3 "$START_RANKS" "$@"; }
  export -f torchrun
fi
# Kernels are compiled for ten minutes and more in a first run: kept for the next one.
PRIMUS_CACHE_ROOT=$(absolute "${PRIMUS_CACHE_ROOT:-~/.cache/primus}")
export PRIMUS_CACHE_ROOT
if [[ -n ${DATA_PREFIX:-} ]]; then
  DATA_PREFIX=$(corpora "$DATA_PREFIX") && export DATA_PREFIX || exit 2
fi
if [[ -n ${VALID_DATA_PREFIX:-} ]]; then
  VALID_DATA_PREFIX=$(corpora "$VALID_DATA_PREFIX") && export VALID_DATA_PREFIX || exit 2
fi
if [[ -n ${TPRIMAT_PROBE:-} ]]; then # where the ranks leave what they read
  TPRIMAT_PROBE=$(absolute "$TPRIMAT_PROBE")
  export TPRIMAT_PROBE
fi
export TRAIN_LOG=/dev/null # Primus' own copy of what it prints
one_visibility_variable
# Primus starts `python`, `python3` and `torchrun` as PATH has them.
[[ -z ${PRIMUS_PYTHON:-} ]] || PATH=$(dirname "$PRIMUS_PYTHON"):$PATH
if [[ -n ${TPRIMAT_REHEARSE:-} ]]; then
  # What Primus expects of a ROCm box: nothing is installed, and what it keeps stays in the folder of the run.
  PATH=${PYTHONPATH%%:*}/bin:$PATH
  export ROCR_VISIBLE_DEVICES=-1 CUDA_VISIBLE_DEVICES=-1 # none: a GPU that is here is not rehearsed on
  export DATA_PATH=$PRIMUS_WORKSPACE/data HF_HOME=$PRIMUS_WORKSPACE/huggingface ROCM_HOME=$PRIMUS_WORKSPACE/rocm
  mkdir -p "$ROCM_HOME/lib" # without any, primus-cli ends without a word (runner/helpers/envs/path_utils.sh:66)
fi

cd "$checkout" # Primus starts its program by a relative path
case ${PRIMUS_ENTRY:-run_pretrain} in
main) # one process, which plays a rank; Primus' launchers, which it does without, build Megatron's helpers first
  make -s -C third_party/Megatron-LM/*/core/datasets || fail "Megatron's helpers for datasets cannot be built." \
    "Try a python3 with pybind11, and g++"
  exec python3 primus/cli/main.py train pretrain --config "$EXP"
  ;;
run_pretrain) exec bash examples/run_pretrain.sh ;;
direct | container | slurm)
  cli=primus-cli
  [[ -f $cli ]] || cli=runner/primus-cli
  [[ -f $cli ]] || fail "$checkout has no primus-cli. Try PRIMUS_ENTRY=run_pretrain"
  train=(--log_file /dev/null -- train pretrain --config "$EXP")
  # primus-cli writes the values of --env NAME into its command line and its log: no token goes there. None is needed,
  # for the corpus is tokens already. DOCKER_IMAGE would beat --image.
  unset HF_TOKEN HUGGING_FACE_HUB_TOKEN DOCKER_IMAGE
  container=(container --image "${PRIMUS_IMAGE:-}" --volume "${EXP%/*}:${EXP%/*}" --volume "$PRIMUS_CACHE_ROOT:$PRIMUS_CACHE_ROOT")
  for name in ${DATA_PREFIX:-} ${VALID_DATA_PREFIX:-}; do
    [[ $name != */* ]] || container+=(--volume "${name%/*}:${name%/*}")
  done
  while IFS= read -r name; do
    case $name in
    CUDA_* | DATA_PREFIX | VALID_DATA_PREFIX | ENABLE_* | GPU_* | HSA_* | MASTER_* | NCCL_* | NVTE_* | PATCH_* | PRIMUS_* | PYTORCH_* | RCCL_* | TORCH_*)
      container+=(--env "$name")
      ;;
    esac
  done < <(compgen -e)
  case $PRIMUS_ENTRY in
  direct) exec bash "$cli" direct "${train[@]}" ;;
  container) exec bash "$cli" "${container[@]}" -- "${train[@]}" ;;
  slurm) exec bash "$cli" slurm srun --nodes "${NNODES:-1}" -- "${container[@]}" -- "${train[@]}" ;;
  esac
  ;;
*) fail "PRIMUS_ENTRY=$PRIMUS_ENTRY; allowed: run_pretrain, direct, container, slurm" ;;
esac
