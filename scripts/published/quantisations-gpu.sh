#!/usr/bin/env bash
# Every type of weight on this machine's GPU against its CPU, as a table.
#
#   scripts/published/quantisations-gpu.sh BENCH FOLDER [OPTIONS..]
#
# BENCH is nextn-bench with a GPU's backend, FOLDER has files of one model in many types (quantisations_gpu.py makes small
# ones), OPTIONS go to every run on the GPU, such as `--device CUDA0`. Needs nothing else. Columns: the mean and the largest
# KL divergence of the GPU's predictions from the CPU's on the same file (2e-4 is how the CPU's were saved), the share of
# equal first choices, then whether 32 greedy tokens on the GPU are those of the CPU, and those of the GPU in batches of 8
# (`--exact 8`): these may part at near ties.
set -uo pipefail
[ $# -ge 2 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
bench=$1 folder=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for _ in 1 2 3 4; do
    echo "The ferry leaves at nine, and whoever is late waits on the pier, where the wind comes in from the sea and the gulls walk up and down."
done >"$work/text"
ids=84,104,101,32,102,101,114,114,121,32,108,101,97,118,101,115,32,97,116,32,110,105,110,101,44

field() { sed -n "s/.*\"$1\":[[:space:]]*\([-+.0-9e]*\).*/\1/p" <<<"$2" | head -1 | xargs printf "$3"; }
failed() { echo "| $1 | $(tail -1 "$work/error" | cut -c1-160 | tr '|' '/') | | | | |"; }

"$bench" devices
echo
echo "| type | mean KL | largest KL | same first choice | greedy as on the CPU | greedy as in batches of 8 |"
echo "|---|---|---|---|---|---|"
status=0
for file in "$folder"/*.gguf; do
    name=$(basename "$file" .gguf)
    "$bench" kld -m "$file" --device cpu -t 1 -f "$work/text" -c 64 --windows 6 --save "$work/base" >/dev/null 2>"$work/error" \
        || { failed "$name (CPU)"; status=1; continue; }
    seen=$("$bench" kld -m "$file" "$@" --base "$work/base" -c 64 --json 2>"$work/error") || { failed "$name"; status=1; continue; }
    seen=$(tr -d '\n' <<<"$seen")
    greedy() { "$bench" generate -m "$file" --tokens $ids -n 32 "$@" 2>"$work/error"; }
    cpu=$(greedy --device cpu -t 1) gpu=$(greedy "$@") fixed=$(greedy "$@" --exact 8)
    same() { if [ -n "$1" ] && [ "$(tokens "$1")" = "$(tokens "$2")" ]; then echo yes; else echo no; fi; }
    tokens() { tr -d ' \n' <<<"$1" | sed 's/.*"tokens":\[\([0-9,]*\)\].*/\1/'; }
    echo "| $name | $(field kld "$seen" %.1e) | $(field max "$seen" %.1e) | $(field same_top "$seen" %.3f) | $(same "$cpu" "$gpu") | $(same "$gpu" "$fixed") |"
done
exit $status
