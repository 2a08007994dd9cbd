#!/usr/bin/env bash
# Start this bundle: bash run.sh. README.txt says what may be set before it. Needs bash 4.2 and the stack's own Python.
#
# Exit code: that of the training; 2: refused, nothing was started; 85: saved and ended before its time, to be gone on with.
set -euo pipefail

fail() {
  printf 'engine: %s: %s\n' "$stack" "$*" >&2
  exit 2
}

# shellcheck disable=SC2329 # called by the traps
# stop_training [GRACE_S]: ends all that we started, in order: torchrun ends its ranks itself when it gets a SIGTERM.
stop_training() {
  [[ -n $training ]] || return 0
  kill -TERM -- "-$training" 2>/dev/null || true
  local seconds
  for ((seconds = 0; seconds < ${1:-30}; seconds++)); do
    kill -0 -- "-$training" 2>/dev/null || return 0
    sleep 1
  done
  kill -KILL -- "-$training" 2>/dev/null || true
}

# shellcheck disable=SC2329
on_signal() {
  signal=$1
  stop_training
}

# watch: ends the training where no node's log has grown for HANG_AFTER_S seconds, three times as long before the first step.
# Only of a job, whose nodes share this folder: by itself, a node that prints no step is silent. It counts its own turns, for
# clocks jump. It ends the training, too, where this script was killed: nobody else would.
watch() {
  local every=$((HANG_AFTER_S < 20 ? 1 : 5)) quiet=0 patience=$((3 * HANG_AFTER_S)) before="" sizes
  local -a logs
  exec 9<>"$run_dir/.watch"
  while ((quiet < patience)); do
    read -r -t "$every" -u 9 || true # a sleep that leaves no process
    kill -0 "$$" 2>/dev/null || {
      stop_training
      return
    }
    logs=("${run_dir%-node*}"-node*/train.log)
    sizes=$(stat -c %s "${logs[@]}" 2>/dev/null || true)
    quiet=$((quiet + every))
    [[ $sizes == "$before" ]] || quiet=0
    before=$sizes
    if ((patience > HANG_AFTER_S)) && grep -qsE -m 1 '\[tprimat\] step |iteration +[0-9]+ *[/|]' "${logs[@]}"; then
      patience=$HANG_AFTER_S
    fi
  done
  printf '[tprimat] facts {"hung": true}\n' >>"$log"
  stop_training
}

# shellcheck disable=SC2329
at_exit() {
  stop_training 5
  [[ -z $watcher ]] || kill -- "-$watcher" 2>/dev/null || true
  [[ -z $sampler ]] || kill "$sampler" 2>/dev/null || true
}

# absolute PATH, from the bundle
absolute() {
  local path=${1/#\~\//$HOME/}
  [[ $path == /* ]] || path=$here/$path
  printf '%s' "$path"
}

# train: all that goes into the log.
train() {
  printf '%s\n' "$settled"
  stack_prepare
  cd "$run_dir"
  exec bash "$here/train.sh"
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
training="" sampler="" watcher="" signal="" code=0 stack="" rendered=""
# What of a shell steers torchrun or the stack past this bundle (launchers/plan.py says why): PET_NNODES is --nnodes.
steering='PET_[A-Za-z0-9_]+|TORCH_?ELASTIC_[A-Za-z0-9_]+|ROLE_[A-Za-z0-9_]+|ACCELERATE_[A-Za-z0-9_]+|PYTHON_EXEC|LOGLEVEL'
steering+='|USE_LIBUV|TORCH_DISABLE_SHARE_RDZV_TCP_STORE|TORCH_WORKER_SERVER_SOCKET|PYTHON(INSPECT|SAFEPATH)'
steering+='|BACKEND(_PATH)?|VENV_ACTIVATE|PRIMUS_(PATCHES|EXIT_FAST|SKIP_MAIN_LAUNCH|THIRDPARTY_DIR)'
taken=""
while IFS= read -r name; do
  [[ ! $name =~ ^($steering)$ ]] || { unset "$name" && taken+=" $name"; }
done < <(compgen -e)
[[ -z $taken ]] || printf 'taken out of the environment, as it would steer the stack past this bundle:%s\n' "$taken" >&2
export NODE_RANK=${NODE_RANK:-${SLURM_NODEID:-}}
# Both are written beside this when the bundle was rendered. stack.sh comes first: it looks at what was set before.
# shellcheck source=/dev/null
source "$here/stack.sh"
unset TPRIMAT_NODE_REFERENCE # of another run
# shellcheck source=/dev/null
source "$here/env.sh"
[[ ! -d $here/rehearsal ]] || export PYTHONPATH=$here/rehearsal${PYTHONPATH:+:$PYTHONPATH}
[[ -z ${DATA_PREFIX:-} ]] || DATA_PREFIX=$(absolute "$DATA_PREFIX")
started=$(date -u +%Y%m%dT%H%M%SZ)
if [[ -n ${SLURM_STEP_ID:-} ]]; then
  started=job$SLURM_JOB_ID.$SLURM_STEP_ID${SLURM_RESTART_COUNT:+-restart$SLURM_RESTART_COUNT}
fi
run_dir=$(absolute "${RUN_DIR:-runs/$started-node$NODE_RANK}")
log=$(absolute "${TRAIN_LOG:-$run_dir/train.log}")

if [[ ${DRY_RUN:-} == 1 ]]; then
  printf 'run       %s\nlog       %s\nnodes     %s, this is %s of %s GPUs\n' \
    "$run_dir" "$log" "$NNODES" "$NODE_RANK" "$GPUS_PER_NODE"
  stack_dry_run
  exit 0
fi

stack_ready
(umask 027 && mkdir -p "$run_dir") || fail "$run_dir cannot be made. Try RUN_DIR=/another/folder"
[[ ! -e $run_dir/$rendered ]] || fail "$run_dir has a run already. Try RUN_DIR=/another/folder"
# On its own line: of a redirection that fails, bash would say only its line number.
(umask 027 && : >>"$log") 2>/dev/null || fail "$log cannot be written. Try TRAIN_LOG=/a/folder/that/exists/train.log"
settled=$(stack_settle) || exit 2
stack_check

trap at_exit EXIT
trap 'on_signal SIGTERM' TERM
trap 'on_signal SIGINT' INT
trap 'on_signal SIGHUP' HUP

bash "$here/sample_power.sh" "$run_dir/power.jsonl" "${POWER_INTERVAL_S:-1}" "$$" >>"$log" 2>&1 &
sampler=$!
pipe=$run_dir/.pipe
mkfifo "$pipe"
# Not `train | tee`: its exit code is to be kept, and a signal to be passed on while it runs.
# It outlives a Ctrl-C: the last lines say why a run ended.
(
  trap '' INT HUP TERM USR1 # Slurm signals all processes of a step
  exec tee -a "$log" <"$pipe"
) &
tee=$!
set -m # a process group of its own, which can be ended as one
train >"$pipe" 2>&1 </dev/null &
training=$!
if [[ -n ${SLURM_STEP_ID:-} && -z ${RUN_DIR:-} && -z ${TRAIN_LOG:-} && ${HANG_AFTER_S:-0} -gt 0 ]]; then
  mkfifo "$run_dir/.watch"
  watch &
  watcher=$!
fi
set +m
# A signal interrupts `wait`, and its trap has ended the training by then: the second one reports its code.
wait "$training" || code=$?
if [[ -n $signal ]]; then
  wait "$training" 2>/dev/null || code=$?
fi
training=""
wait "$tee" || true
[[ -z $watcher ]] || kill -- "-$watcher" 2>/dev/null || true
watcher=""
rm -f "$pipe" "$run_dir/.watch"
# the ranks have saved and ended, as their batch system wanted it, whatever torchrun says of it
! grep -q -m 1 '^\[tprimat\] stopped ' "$log" || code=85
{
  printf '[tprimat] facts {"exit_code": %d' "$code"
  [[ -z $signal ]] || printf ', "signal": "%s"' "$signal"
  printf '}\n'
} | tee -a "$log"
printf '\nA record of it, with TensorPrimat:  python -m parsers %q -o %q\n' "$log" "$run_dir"
exit "$code"
