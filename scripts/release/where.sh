#!/usr/bin/env bash
# Prints on which device each kind of node ran, and fails if none ran on the one that is named.
#   scripts/release/where.sh NEXTN-CLI DEVICE [OPTION..]    DEVICE: as ggml names it, without its number, such as MTL
# A Metal device that cannot add up over a SIMD group (those of virtual machines) computes no products: that is said, and
# nothing is asked of it.
set -euo pipefail

stop() { echo "where: $1" >&2; exit 1; }
[ $# -ge 2 ] || stop "which program, which device? scripts/release/where.sh NEXTN-CLI DEVICE [OPTION..]"
program=$1 device=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
NEXTN_LOG=ggml=trace "$program" --device "$device" -p 'What is 20 + 15?' -n 16 --temp 0 --no-stats "$@" 2>"$log" || {
    tail -n 20 "$log" >&2
    stop "the program ended with an error"
}
nodes=$(sed -n 's/.*ggml::nodes: .*device="\([^"]*\)" op="[^"]*" kind="\([^"]*\)".*/\1 \2/p; s/^ *TRACE node device="\([^"]*\)" op="[^"]*" kind="\([^"]*\)".*/\1 \2/p' "$log" | sort | uniq -c | sort -k2,2 -k1,1nr)
[ -n "$nodes" ] || { head -n 5 "$log" >&2; stop "the program told of no node"; }
echo "nodes of the graphs that were built, device, what they compute:"
echo "$nodes"
# Not those that only look at a tensor in another way.
n=$(awk -v device="$device" 'index($2, device) == 1 && $3 !~ /^(RESHAPE|VIEW|PERMUTE|TRANSPOSE)$/ { n += $1 } END { print n + 0 }' <<<"$nodes")
all=$(awk '$3 !~ /^(RESHAPE|VIEW|PERMUTE|TRANSPOSE)$/ { n += $1 } END { print n + 0 }' <<<"$nodes")
echo "$n of $all nodes that compute ran on $device"
if [ "$n" -eq 0 ]; then
    if grep -q 'simdgroup reduction *= false' "$log"; then
        echo "this $device has no sums over a SIMD group, so it computes no products: nothing is asked of it"
    else
        stop "no node ran on $device"
    fi
fi
