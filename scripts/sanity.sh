#!/usr/bin/env bash
# Starts nextn-server cold, asks it fixed questions, and compares answers, speed and start with a baseline of this machine:
# throttling, a slow build or a changed answer shows at once. The first run writes the baseline. Exit status 0: sane.
#
#   scripts/sanity.sh [FILE.gguf] [more options of `nextn-bench sanity`]
#
# NEXTN_SANITY_DIR is where baselines lie [default: target/sanity].
set -euo pipefail
cd "$(dirname "$0")/.."
model=()
name=embedded
if [ $# -gt 0 ] && [[ $1 != -* ]]; then
    model=(-m "$1")
    name=$(basename "$1" .gguf)
    shift
fi
dir=${NEXTN_SANITY_DIR:-target/sanity}
mkdir -p "$dir"
cargo build --release --quiet --bin nextn-server --bin nextn-bench
exec target/release/nextn-bench sanity --baseline "$dir/$name.json" ${model[@]+"${model[@]}"} "$@"
