# shell/run_primus.sh, run_primus_all.sh, env_to_shell.sh: what they hand on, and what they refuse.

setup() {
  shell=$BATS_TEST_DIRNAME/../../shell
  cd "$BATS_TEST_TMPDIR"
}

# bundle NAME CODE: a bundle whose run tells its variables and ends with CODE
bundle() {
  mkdir -p "$1"
  printf 'echo "ran %s with ${TRAIN_ITERS:-all}"\nexit %d\n' "$1" "$2" >"$1/run.sh"
}

@test "a bundle is run with the variables given, and its exit code kept" {
  bundle mine 7
  run bash "$shell/run_primus.sh" mine TRAIN_ITERS=5
  [ "$status" -eq 7 ]
  [ "$output" = "ran mine with 5" ]
}

@test "a bundle takes no config overrides" {
  bundle mine 0
  run bash "$shell/run_primus.sh" mine training.train_iters=5
  [ "$status" -eq 2 ]
  [[ $output == *"render again"* ]]
}

@test "a name is handed to launch.py with its overrides" {
  printf '#!/bin/sh\nshift; echo "$@"\n' >python
  chmod +x python
  PYTHON=./python run bash "$shell/run_primus.sh" llama training.train_iters=5
  [ "$output" = "model=llama platform=amd framework=primus training.train_iters=5" ]
}

@test "no model: exit code 2" {
  run bash "$shell/run_primus.sh"
  [ "$status" -eq 2 ]
  run bash "$shell/run_primus_all.sh" -- TRAIN_ITERS=5
  [ "$status" -eq 2 ]
}

@test "all bundles of a folder run, also after one that fails" {
  bundle all/a 0
  bundle all/b 3
  bundle all/c 0
  run bash "$shell/run_primus_all.sh" all -- TRAIN_ITERS=2
  [ "$status" -eq 3 ]
  [[ $output == *"ran all/a with 2"*"ran all/b with 2"*"ran all/c with 2"* ]]
}

@test "env_to_shell: modules of the caller's folder are not taken for ours" {
  for name in conf launchers hydra; do echo "raise RuntimeError('of the caller')" >"$name.py"; done
  root=$BATS_TEST_DIRNAME/../..
  PYTHON=$root/.venv/bin/python run bash "$shell/env_to_shell.sh" model=llama platform=amd framework=primus
  [ "$status" -eq 0 ]
  [[ $output == *"export TPRIMAT_SEQ_LENGTH=8192"* ]]
}
