#!/usr/bin/env bash
# shellcheck disable=SC2034,SC2154 # sourced by run.sh, whose variables and functions these are
# stack.sh of a bundle for Primus: all in run.sh that only Primus needs.
set -euo pipefail

stack=primus
rendered=primus.yaml
said=${PRIMUS_RELEASE:-} # of the checkout, where git does not name it
export START_RANKS=$here/start_ranks.py

stack_dry_run() {
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  python3 -B "$here/primus_settle.py" "$here" "$scratch" >/dev/null
  printf 'checkout  %s (%s)\n' "$PRIMUS_PATH" "$PRIMUS_ENTRY"
  printf 'corpus    %s\n' "$(tr '\n' ' ' <"$scratch/corpus.args")"
  cat "$here/env.sh" "$scratch/primus.yaml"
}

stack_ready() {
  [[ -f $PRIMUS_PATH/primus/cli/main.py ]] || fail "PRIMUS_PATH=$PRIMUS_PATH is not a checkout of Primus (no primus/cli/main.py there)." \
    "Try PRIMUS_PATH=/path/to/Primus bash run.sh"
}

# stack_settle: writes what runs into the run's folder, prints the first lines of the log.
stack_settle() {
  python3 -B "$here/primus_settle.py" "$here" "$run_dir"
}

stack_check() {
  [[ ${PRIMUS_CHECK:-1} != 0 ]] || return 0
  python3 -B "$here/primus_check.py" "$PRIMUS_PATH" "$run_dir/primus.yaml" "$PRIMUS_RELEASE" "${PRIMUS_IMAGE:-}" "$said" || exit 2
}

# look_at_nodes: before the corpus and the ranks; the next port, so that no node meets the ranks of one that still looks.
look_at_nodes() {
  local -a stop=()
  [[ ${PREFLIGHT:-none} != none ]] || return 0
  [[ $PREFLIGHT != stop ]] || stop=(--stop)
  "${PRIMUS_PYTHON:-python3}" -B -m torch.distributed.run "--nnodes=$NNODES" "--nproc-per-node=$GPUS_PER_NODE" "--node-rank=$NODE_RANK" \
    "--master-addr=$MASTER_ADDR" "--master-port=$((MASTER_PORT + 1))" "$here/node_check.py" "${stop[@]}"
  [[ $PREFLIGHT != only ]] || exit 0
}

stack_prepare() {
  python3 -B "$here/primus_facts.py" "$here/environment.sh"
  look_at_nodes
  local -a corpus
  mapfile -t corpus <"$run_dir/corpus.args"
  if ((${#corpus[@]} > 0)); then
    python3 -B "$here/corpus.py" "${corpus[@]}"
  fi
}
