#!/bin/bash
# quiet.sh: peers' figures in pieces of less than 90 seconds on two cores, for machines that are quiet for a minute at a time. Each piece is whole: all its contenders take turns in it.
#   tools/peers/quiet.sh PIECE OUT       one piece, its table to standard output and its rows to OUT/PIECE.jsonl
#   tools/peers/quiet.sh list            the names
# OCTAVO (build/release/octavo), MODELS (build/models), PYTHON (build/peers/bin/python, with torch: tools/peers/cpu.py), VLLM (its library; none), RATES (a file of octavo
# tune; none), THREADS (2).
set -e
OCTAVO=${OCTAVO:-build/release/octavo} MODELS=${MODELS:-build/models} PYTHON=${PYTHON:-build/peers/bin/python} THREADS=${THREADS:-2}
smollm2=SmolLM2-135M-Instruct.Q4_1.gguf gemma3=gemma-3-270m-q4_k_m.gguf

list() {
    for model in smollm2 gemma3; do
        for type in f16 q8_0; do
            # llama.cpp fills its cache by a real prefill before the first round: 8,192 tokens leave no room for a prompt's rounds as well.
            for depth in 0 4096 8192; do echo "decode-$model-$depth-$type"; done
            for depth in 0 4096; do echo "prefill-$model-$depth-$type"; done
        done
    done
    for dim in 64 128 256; do for n in 512 2048 4096; do echo "extend-$dim-$n"; done; done
    echo batch-128
    echo batch-256
}

[ "$1" = list ] && { list; exit; }
[ -n "$2" ] && list | grep -qx -- "$1" || { echo "usage: tools/peers/quiet.sh list | PIECE OUT" >&2; exit 2; }
mkdir -p "$2"
IFS=- read -r what a b c <<< "$1"
rates=()
[ -n "$RATES" ] && rates=(--rates "$RATES")
case $what in
decode | prefill)
    test=(-p 0 -n 32)
    [ $what = prefill ] && test=(-p 512 -n 0)
    "$OCTAVO" bench model -m "$MODELS/${!a}" "${test[@]}" -d "$b" -ctk e4m3,f16 --peers llama --peer-types "$c" -t "$THREADS" -r 3 "${rates[@]}" -o jsonl | tee "$2/$1.jsonl" |
        sed -E 's/.*"backends": "([^"]*)".*"type_k": "([^"]*)".*"median_ts": ([0-9.e+]*).*"spread_ts": ([0-9.e+-]*).*/\1 \2: \3 ± \4 tokens\/s/'
    ;;
extend) "$PYTHON" tools/peers/cpu.py --octavo "$OCTAVO" --threads "$THREADS" --rounds 3 --shapes extend --only " $a 1 x $b" --json "$2/$1.jsonl" "${rates[@]}" ;;
batch) "$PYTHON" tools/peers/cpu.py --octavo "$OCTAVO" --threads "$THREADS" --rounds 1 --shapes batch --only "x $a " --json "$2/$1.jsonl" "${rates[@]}" ${VLLM:+--vllm "$VLLM"} ;;
esac
