#!/usr/bin/env bash
# Builds Hopper's kernels and decode.c in build/h200 and prints the decode table of doc/BENCH.md. Needs nvcc 13, a C compiler and an NVIDIA GPU of
# compute capability 9.0. Arguments go to decode (-s SHAPE, -r REPEATS, -k sm90a|mma|f32). A minute, most of it compiling.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=build/h200
mkdir -p "$out"
target=(-gencode=arch=compute_90a,code=sm_90a)
newer() { [ ! -e "$1" ] || [ -n "$(find src include tools/h200 -newer "$1" -type f -print -quit)" ]; }
if newer "$out/code.cubin"; then
  nvcc -x cu -std=c++17 -O3 -fmad=false "${target[@]}" -cubin --split-compile=0 -Isrc -Iinclude src/cuda/kernels_sm90a.c -o "$out/code.cubin"
  nvcc -O3 "${target[@]}" -cubin tools/h200/read.cu -o "$out/read.cubin"
  cc -std=gnu17 -O2 -Isrc -Iinclude tools/h200/decode.c src/device/launch.c src/device/launch_sm90a.c -ldl -lm -o "$out/decode"
fi
"$out/decode" "$out/code.cubin" "$out/read.cubin" "$@"
