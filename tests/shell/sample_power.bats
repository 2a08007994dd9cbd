# shell/sample_power.sh: every tool's report as the same lines, and an end with its parent.

setup() {
  script=$BATS_TEST_DIRNAME/../../shell/sample_power.sh
  export PATH=$BATS_TEST_TMPDIR/bin:/usr/bin:/bin
  mkdir "$BATS_TEST_TMPDIR/bin"
  out=$BATS_TEST_TMPDIR/power.jsonl
}

# tool NAME TEXT: a tool that prints TEXT
tool() {
  printf '#!/bin/sh\nprintf "%s"\n' "$2" >"$BATS_TEST_TMPDIR/bin/$1"
  chmod +x "$BATS_TEST_TMPDIR/bin/$1"
}

sampled() { timeout 1.5 bash "$script" "$out" 0.2 || [[ $? == 124 ]]; }

@test "nvidia-smi: watts, mebibytes as bytes, what is missing is null" {
  tool nvidia-smi 'index, power.draw [W], memory.used [MiB]\n0, 71.76 W, 4 MiB\n1, [N/A], 5 MiB\n'
  sampled
  grep -q '"device": 0, "power_w": 71.76, "memory_used_bytes": 4194304, "energy_j": null, "tool": "nvidia-smi"' "$out"
  grep -q '"device": 1, "power_w": null, "memory_used_bytes": 5242880' "$out"
}

@test "amd-smi: CRLF, the energy counter, no newline at the end" {
  tool amd-smi 'gpu,socket_power,gfx_voltage,used_vram,total_energy_consumption\r\n0,512,N/A,1024,8123.5\r\n1,N/A,N/A,N/A,N/A'
  sampled
  grep -q '"device": 0, "power_w": 512, "memory_used_bytes": 1073741824, "energy_j": 8123.5, "tool": "amd-smi"' "$out"
  grep -q '"device": 1, "power_w": null, "memory_used_bytes": null, "energy_j": null' "$out"
}

@test "clocks and temperatures by the columns that nvidia-smi and amd-smi have" {
  tool nvidia-smi 'index, power.draw [W], memory.used [MiB], clocks.current.sm [MHz], temperature.gpu\n0, 912.10, 4, 1965, 61\n1, 7.00, 4, [N/A], 62\n'
  sampled
  grep -q '"device": 0, .*"tool": "nvidia-smi", "clock_mhz": 1965, "temperature_c": 61}' "$out"
  grep -q '"device": 1, .*"clock_mhz": null, "temperature_c": 62}' "$out"
  rm "$BATS_TEST_TMPDIR/bin/nvidia-smi" "$out"
  tool amd-smi 'gpu,gfx_activity,socket_power,gfx_0_clk,mem_0_clk,edge,hotspot,mem\n0,95,1180,2100,2000,55,78,60\n'
  sampled
  grep -q '"device": 0, "power_w": 1180, .*"clock_mhz": 2100, "temperature_c": 78}' "$out"
}

@test "rocm-smi: after a warning, bytes as they are" {
  tool rocm-smi 'WARNING: idle\ndevice,Current Socket Graphics Package Power (W),VRAM Total Used Memory (B)\ncard3,351.0,10960896\n'
  sampled
  grep -q '"device": 3, "power_w": 351.0, "memory_used_bytes": 10960896, "energy_j": null, "tool": "rocm-smi"' "$out"
}

@test "a tool that is there and tells nothing is passed over" {
  tool nvidia-smi 'No devices were found\n'
  tool amd-smi ''
  tool rocm-smi 'device,Average Graphics Package Power (W)\ncard0,90.0\n'
  sampled
  grep -q '"power_w": 90.0, "memory_used_bytes": null' "$out"
}

@test "stamps are on the clock that python3's time.monotonic() reads" {
  tool amd-smi 'gpu,socket_power\n0,512\n'
  before=$(python3 -c 'import time; print(time.monotonic())')
  sampled
  after=$(python3 -c 'import time; print(time.monotonic())')
  stamp=$(sed -n 's/.*"monotonic_s": \([0-9.]*\),.*/\1/p' "$out" | tail -1)
  python3 -c "import sys; sys.exit(not $before - 0.1 <= $stamp <= $after + 0.1)"
}

@test "without python3 there is no stamp, rather than one of another clock" {
  tool amd-smi 'gpu,socket_power\n0,512\n'
  for name in bash sh timeout sleep printf; do ln -s "$(type -P "$name")" "$BATS_TEST_TMPDIR/bin/$name"; done
  PATH=$BATS_TEST_TMPDIR/bin sampled
  grep -q '"monotonic_s": null, "time_unix_s": [0-9]' "$out"
}

@test "no GPU: exit code 1, a reason, and no file" {
  run bash "$script" "$out"
  [ "$status" -eq 1 ]
  [[ $output == *"not sampled"* ]]
  [ ! -e "$out" ]
}

@test "wrong arguments: exit code 2" {
  run bash "$script" "$out" soon
  [ "$status" -eq 2 ]
}

@test "it ends when its parent is killed" {
  tool amd-smi 'gpu,socket_power\n0,512\n'
  bash -c "bash '$script' '$out' 0.1 \$\$ & echo \$! >'$BATS_TEST_TMPDIR/pid'; sleep 30" 3>&- &
  parent=$!
  for _ in {1..100}; do
    [[ -s $out ]] && break
    sleep 0.1
  done
  kill -KILL "$parent"
  for _ in {1..50}; do
    kill -0 "$(<"$BATS_TEST_TMPDIR/pid")" 2>/dev/null || return 0
    sleep 0.1
  done
  false
}
