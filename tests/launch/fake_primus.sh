#!/usr/bin/env bash
# A stub of examples/run_pretrain.sh of Primus for tests: the messages of v26.5 in its prefix, with invented numbers. The
# argument dump is made from the YAML at EXP. FAKE_FAILS_AT=N fails before iteration N, FAKE_STEP_S is how long one takes, and
# FAKE_SAVE=FOLDER is where it would save whatever the YAML says, as releases up to v26.4 do.
say() { printf '[20261121 09:44:14][rank-7/8][%s] [--------------------%s] : %s\n' "$1" "$2" "$3"; }
key() { sed -n "s/^      $1: //p" "$EXP" | head -1; }
iters=$(key train_iters) world=$((NNODES * GPUS_PER_NODE))
split=$(($(key tensor_model_parallel_size) * $(key pipeline_model_parallel_size) * $(key context_parallel_size)))
data=$((world / split))
main() {
  printf 'Error: No Infiniband devices found!\n' >&2
  say INFO train_runtime.py:216 "[Primus:MegatronAdapter] backend_version=0.16.0rc0, primus_version=26.5.0,"
  say INFO device.py:1 "AMD Instinct MI300X"
  say DEBUG arguments.py:1570 "------------------------ arguments ------------------------"
  sed -n 's/^      \([a-z_0-9]*\): \(.*\)$/\1 \2/p' "$EXP" | while read -r name value; do
    case $value in
    null) value=None ;;
    true) value=True ;;
    false) value=False ;;
    *DATA_PREFIX*) value="['$DATA_PREFIX']" ;;
    esac
    case $name in
    attention_backend) value=AttnBackend.$value ;;
    save) value=${FAKE_SAVE:-$value} ;;
    bf16) say DEBUG arguments.py:1573 "  params_dtype ................ torch.bfloat16" ;;
    esac
    say DEBUG arguments.py:1573 "  $name ................ $value"
  done
  say DEBUG arguments.py:1573 "  data_parallel_size ................ $data"
  say DEBUG arguments.py:1573 "  world_size ................ $world"
  say DEBUG arguments.py:1573 "  virtual_pipeline_model_parallel_size ................ None"
  say DEBUG arguments.py:1577 "-------------------- end of arguments ---------------------"
  for ((i = 1; i <= iters; i++)); do
    if [[ ${FAKE_FAILS_AT:-} == "$i" ]]; then
      printf 'Traceback (most recent call last):\n  File "/workspace/Primus/primus/train.py", line 1, in <module>\n' >&2
      printf 'RuntimeError: HIP error: an illegal memory access was encountered\n' >&2
      return 1
    fi
    sleep "${FAKE_STEP_S:-0}"
    say DEBUG utils.py:429 "[2026-11-21 09:44:15.5] iteration $i/ $iters | consumed samples: $((i * $(key global_batch_size))) |\
 elapsed time per iteration (ms): 5000.0 | throughput per GPU (TFLOP/s/GPU): 400.0 | tokens per GPU (tokens/s/GPU): 8000.0 |\
 learning rate: 3.000000E-05 | global batch size: $(key global_batch_size) | lm loss: 1.$((100 - i))0000E+01 | loss scale: 1.0 |\
 grad norm: 1.421 | number of skipped iterations: 0 | number of nan iterations: 0 |\
 hip mem usage/free/total/usage_ratio: 90.00GB/101.98GB/191.98GB/46.88%"
  done
  say DEBUG utils.py:401 "[after training is done] datetime: 2026-11-21 09:44:15.791788"
  say INFO train_runtime.py:512 "Training completed."
}
main 2>&1 | tee "$TRAIN_LOG"
code=${PIPESTATUS[0]}
printf '[NODE-0(box)] [INFO] primus launcher exited with code %s\n' "$code"
exit "$code"
