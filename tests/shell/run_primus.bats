# shell/run_primus.sh, run_primus_all.sh, gpu_memory.sh, env_to_shell.sh: what they hand on, and what they refuse.

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

@test "gpu_memory: a line a process, and the caller's own are offered to end, never the first process" {
  mkdir bin
  sleep 60 3>&- &
  mine=$!
  printf '#!/bin/sh\nprintf "1, 1024\\n%s, 2048\\n"\n' "$mine" >bin/nvidia-smi
  chmod +x bin/nvidia-smi
  PATH=$PWD/bin:$PATH run bash "$shell/gpu_memory.sh"
  [ "$status" -eq 0 ]
  [[ $output == *"$mine"*"2147483648"*"sleep 60"* ]]
  run bash -c "printf 'n\n' | PATH=$PWD/bin:\$PATH bash '$shell/gpu_memory.sh' --end"
  kill -0 "$mine"
  [[ $output == *"end $mine "* && $output != *"end 1 "* ]]
  run bash -c "printf 'y\n' | PATH=$PWD/bin:\$PATH bash '$shell/gpu_memory.sh' --end"
  [[ $output == *"asked $mine to end"* ]]
}

@test "gpu_memory: no GPU and no tool: exit code 1" {
  [[ ! -e /dev/kfd && ! -e /dev/nvidia0 ]] || skip "this machine has one"
  PATH=/usr/bin:/bin run bash "$shell/gpu_memory.sh"
  [ "$status" -eq 1 ]
}
