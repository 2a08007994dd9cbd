#!/usr/bin/env bash
# The config as exported variables, to be sourced: source <(shell/env_to_shell.sh model=llama platform=amd framework=primus)
#
# TPRIMAT_SEQ_LENGTH and so on, and what the run exports itself. Needs Python and Hydra; PYTHON names the interpreter.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "${PYTHON:-python3}" "$root/launchers/env_to_shell.py" "$@"
