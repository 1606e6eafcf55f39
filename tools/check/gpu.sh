#!/usr/bin/env bash
# Runs the tests over this machine's own NVIDIA GPU: the driver, captured steps, every row of src/cuda/variants.def through the public API, faults of size at
# their own sizes, and the public faults of tests/faults on every row. Needs nvcc 13, CMake, Ninja, cmocka and a GPU of compute capability 8.0 or newer; half an
# hour on two cores, most of it compiling and the tests' own float64 oracle. CI runs the same programs over a double of the driver (tests/cuda).
# --sanitize: a few problems under compute-sanitizer's four tools as well (for these alone: --sanitize-only). --quick: without the public faults.
# --built: the programs of build/gpu as they are, made elsewhere and brought along; libcmocka is looked for there too.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=build/gpu
sanitize=no quick=no built=no checks=yes
for argument in "$@"; do
  case "$argument" in
    --sanitize) sanitize=yes ;;
    --sanitize-only) sanitize=yes checks=no ;;
    --built) built=yes ;;
    --quick) quick=yes ;;
    *) echo "usage: tools/check/gpu.sh [--sanitize|--sanitize-only] [--quick] [--built]" >&2; exit 2 ;;
  esac
done
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version --format=csv,noheader

configure() { cmake -S . -G Ninja -B "$out" -DCMAKE_BUILD_TYPE=Release -DOCTAVO_ENGINE=OFF -DOCTAVO_DEVICE=AUTO "$@" >"$out/configure.log" || { cat "$out/configure.log"; exit 1; }; }
if [ $built = no ]; then
  mkdir -p "$out"
  configure -DOCTAVO_DEVICE_FROM=
  cmake --build "$out" --target device/octavo_sm_90a.cubin device/octavo_sm_80.ptx
  # AMD's code is of no use here, and its compiler need not be there.
  configure "-DOCTAVO_DEVICE_FROM=$PWD/$out/device"
  cmake --build "$out" --target driver_cuda api_device_graph api_device_parity api_device_large api_device_faults_cuda_gpu
else
  export LD_LIBRARY_PATH="$PWD/$out${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi

failed=0
run() {
  echo "== $*"
  "$@" || { failed=$((failed + 1)); echo "== failed: $*"; }
}
# Several commands at once, each one argument, where the oracle on the host is what takes the time; what they print follows in order.
together() {
  local i logs=() pids=()
  for ((i = 1; i <= $#; i++)); do
    logs[i]=$(mktemp)
    ${!i} >"${logs[i]}" 2>&1 &
    pids[i]=$!
  done
  for ((i = 1; i <= $#; i++)); do
    wait "${pids[i]}" || { failed=$((failed + 1)); echo "== failed: ${!i}"; }
    echo "== ${!i}"
    cat "${logs[i]}"
    rm "${logs[i]}"
  done
}
if [ $checks = yes ]; then
  run "$out/tests/cuda/driver_cuda" gpu
  run "$out/tests/api_device/api_device_graph" cuda
  run "$out/tests/api_device/api_device_parity" cuda random=400 rows=all writes=100
  large="$out/tests/api_device/api_device_large cuda"
  together "$large only=J1_flat_logits" "$large only=J1_needle" "$large only=E*" "$large only=I3*"
fi
if [ $checks = yes ] && [ $quick = no ]; then
  # Those that run through problems alone; the others are about the host's own memory.
  for fault in A3 A5 A6 A10 B1 B3 C1 C3 D1 D4 F1 G1 G3 G4 H1 I3; do
    run "$out/tests/api_device/api_device_faults_cuda_gpu" "fault_${fault}_*"
  done
fi
if [ $sanitize = yes ]; then
  for tool in memcheck synccheck initcheck racecheck; do
    few=(random=5 seed=40 writes=3)
    but=()
    # Ten times as slow; and it complains where it does not follow the meetings of some kernels of Hopper (doc/KERNELS.md, tools/check/racecheck.cu).
    [ $tool != racecheck ] || { few=(random=2 seed=9100 writes=2); for part in attn_extend_sm90a 256_8 256_16; do but+=(--kernel-name-exclude "kernel_substring=$part"); done; }
    run compute-sanitizer --error-exitcode 1 --target-processes all --tool $tool "${but[@]}" "$out/tests/api_device/api_device_parity" cuda "${few[@]}" rows=all
  done
fi
if [ $failed -gt 0 ]; then
  echo "check-gpu: $failed failed"
  exit 1
fi
echo "check-gpu: all passed"
