#!/usr/bin/env bash
# Run several models with Primus, one after another: run_primus_all.sh MODEL… [-- KEY=VALUE…]
#
# MODEL and KEY=VALUE as run_primus.sh takes them; a folder of bundles stands for all of them. One that fails does not keep
# the others from running; a signal ends them all. Exit code: 0 if all completed, else that of the last one that did not.
set -euo pipefail

main() {
  local here model code=0 status=0
  local -a models=() overrides=()
  here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  while (($# > 0)) && [[ $1 != -- ]]; do
    if [[ -d $1 && ! -f $1/run.sh ]]; then
      for model in "$1"/*/run.sh; do
        [[ ! -f $model ]] || models+=("${model%/run.sh}")
      done
    else
      models+=("$1")
    fi
    shift
  done
  (($# == 0)) || overrides=("${@:2}")
  if ((${#models[@]} == 0)); then
    printf 'usage: run_primus_all.sh MODEL|BUNDLE|FOLDER… [-- KEY=VALUE…]\n' >&2
    return 2
  fi
  for model in "${models[@]}"; do
    printf '== %s\n' "$model"
    status=0
    # Bash before 4.4 takes an empty array for an unset one.
    bash "$here/run_primus.sh" "$model" ${overrides[@]+"${overrides[@]}"} || status=$?
    if ((status >= 128)); then
      return "$status"
    fi
    ((status == 0)) || code=$status
    printf '== %s: exit code %d\n' "$model" "$status"
  done
  return "$code"
}

main "$@"
