#!/usr/bin/env bash
# Prints the H200's tables of doc/BENCH.md on the NVIDIA GPU of compute capability 9.0 at hand: decode, extend, write, and a serving trace where the command line was
# built with code for GPUs. Builds Hopper's kernels and its own programs in build/h200, for which it needs nvcc 13 and a C compiler (a few minutes on two cores);
# where nvcc is missing it takes a build/h200 that was brought along. Five minutes of measuring. With the peers' kit in peers/gpu and its wheels
# in .whl/all, their figures follow, from the same card.
#
# usage: run.sh [PART...] [-- FLAGS]    parts: build decode extend write steps peers (all of them); FLAGS go to decode, extend and write (-s SHAPE, -r REPEATS)
set -euo pipefail
cd "$(dirname "$0")/../.."
out=build/h200
mkdir -p "$out"
parts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do parts+=("$1"); shift; done
[ $# -eq 0 ] || shift
[ ${#parts[@]} -gt 0 ] || parts=(build decode extend write steps peers)

target=(-gencode=arch=compute_90a,code=sm_90a)
newer() { [ ! -e "$1" ] || [ -n "$(find src include tools/h200 -newer "$1" -type f -print -quit)" ]; }
build() {
  if ! command -v nvcc >/dev/null; then
    [ -e "$out/code.cubin" ] || { echo "no nvcc, and no $out/code.cubin" >&2; exit 1; }
    return
  fi
  newer "$out/code.cubin" || return 0
  local launch=(src/device/launch*.c) common=(-std=gnu17 -O2 -Isrc -Iinclude)
  cc "${common[@]}" tools/h200/decode.c "${launch[@]}" -ldl -lm -o "$out/decode"
  [ ! -e tools/h200/extend.c ] || cc "${common[@]}" tools/h200/extend.c "${launch[@]}" -ldl -lm -o "$out/extend"
  cc "${common[@]}" tools/h200/write.c tools/h200/gpu.c "${launch[@]}" -ldl -lm -o "$out/write"
  nvcc -O3 "${target[@]}" -cubin tools/h200/read.cu -o "$out/read.cubin"
  nvcc -x cu -std=c++17 -O3 -fmad=false "${target[@]}" -cubin --split-compile=0 -Isrc -Iinclude src/cuda/kernels_sm90a.c -o "$out/code.cubin"
}

for part in "${parts[@]}"; do
  case $part in
  build) build ;;
  decode | extend)
    [ -x "$out/$part" ] || { echo "$part: not built"; continue; }
    echo "== $part"
    "$out/$part" "$out/code.cubin" "$out/read.cubin" "$@" ;;
  write)
    echo "== write"
    "$out/write" "$out/code.cubin" "$@" ;;
  steps)
    for octavo in build/gpu/octavo build/release/octavo; do
      if [ -x $octavo ] && $octavo machine 2>/dev/null | grep -qi nvidia; then
        echo "== steps"
        $octavo bench steps --device cuda --isl 8192,61440 --osl 1024 --conc 4,64,256
        break
      fi
    done ;;
  peers)
    if [ -d peers/gpu ] && [ -d .whl/all ] && python3 -c 'import torch' 2>/dev/null; then
      echo "== peers"
      N=3 bash peers/gpu/dev.sh unpack_all limits all
    fi ;;
  *) echo "run.sh: no part '$part'" >&2; exit 2 ;;
  esac
done
