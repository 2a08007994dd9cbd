#!/usr/bin/env bash
# Run one model with Primus on this ROCm box: run_primus.sh MODEL [KEY=VALUE…]
#
# MODEL  a bundle (a folder with run.sh, left by launch.py … bundle=DIR), which needs nothing of ours, or a name in
#        conf/model, which launch.py renders and runs where Python and Hydra are. PYTHON names the interpreter.
# KEY=VALUE  for a name, overrides as launch.py takes them; for a bundle the variables that its README.txt names.
# No value of an experiment stands here. Exit code: that of the run; 2: bad input.
set -euo pipefail

main() {
  local model=${1:-} root override
  if [[ -z $model || $model == -* ]]; then
    printf 'usage: run_primus.sh MODEL|BUNDLE [KEY=VALUE…]\n' >&2
    return 2
  fi
  shift
  if [[ -f $model/run.sh ]]; then
    for override in "$@"; do
      if [[ ! $override =~ ^[A-Z][A-Z_0-9]*= ]]; then
        printf 'run_primus: %s: a bundle takes variables of its README.txt only; render again for anything else\n' "$override" >&2
        return 2
      fi
    done
    env "$@" bash "$model/run.sh"
    return
  fi
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  if [[ ! -f $root/launch.py ]]; then
    printf 'run_primus: %s is not a bundle, and launch.py is not beside this script to render one\n' "$model" >&2
    return 2
  fi
  "${PYTHON:-python3}" "$root/launch.py" "model=$model" platform=amd framework=primus "$@"
}

main "$@"
