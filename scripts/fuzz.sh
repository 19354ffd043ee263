#!/usr/bin/env bash
# Fuzzes one target: scripts/fuzz.sh TARGET [SECONDS]; without a target it lists them. Needs no cargo-fuzz and no nightly
# toolchain: our code has no unsafe code, so the sanitizers that those bring have nothing to find in it.
#
# New inputs go to src/CRATE/fuzz/corpus/TARGET, and one that fails to src/CRATE/fuzz/artifacts/TARGET; put that one into
# the folder tests/fuzz/found/TARGET of the crate, where its tests run it again.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${1:-}
seconds=${2:-600}
found=(src/*/fuzz/fuzz_targets/"$target".rs)
if [[ -z $target || ! -f ${found[0]} ]]; then
    echo "usage: scripts/fuzz.sh TARGET [SECONDS]; the targets are:" >&2
    for file in src/*/fuzz/fuzz_targets/*.rs; do echo "  $(basename "$file" .rs)" >&2; done
    exit 2
fi
fuzz=${found[0]%/fuzz_targets/*}
host=$(rustc -vV | sed -n 's/^host: //p')

# What cargo-fuzz passes: counters on every edge, and the values that are compared.
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
flags+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
flags+=" -Ccodegen-units=1 -Cdebug-assertions --cfg fuzzing"
RUSTFLAGS="${RUSTFLAGS:-} $flags" cargo build --release --locked --target "$host" --manifest-path "$fuzz/Cargo.toml" \
    --target-dir target/fuzz --bin "$target"

mkdir -p "$fuzz/corpus/$target" "$fuzz/artifacts/$target"
folders=("$fuzz/corpus/$target")
for seeds in "$fuzz/seeds/$target" "${fuzz%/fuzz}/tests/fuzz/found/$target"; do
    if [[ -d $seeds ]]; then folders+=("$seeds"); fi
done
exec "target/fuzz/$host/release/$target" "${folders[@]}" -artifact_prefix="$fuzz/artifacts/$target/" \
    -max_total_time="$seconds" -timeout=60 -rss_limit_mb=4096 -print_final_stats=1 -verbosity=1
