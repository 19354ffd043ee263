#!/usr/bin/env bash
# Three prompts to the embedded model: an answer, thinking, a plain continuation. Arguments go to nextn-cli (-m FILE, -t N, ..).
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet --bin nextn-cli
extra=("$@")

ask() {
    printf '\n> nextn-cli %s\n' "$*"
    cargo run --release --quiet --bin nextn-cli -- "$@" ${extra[@]+"${extra[@]}"} </dev/null
}

ask -p "Tell me a short story about a dragon." --think off --temp 0
ask -p "What is 412 - 187?" --think on --temp 0
ask -p "Once upon a time" --raw -n 48 --temp 0
