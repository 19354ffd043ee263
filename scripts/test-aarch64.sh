#!/usr/bin/env bash
# Runs tests of 64-bit ARM under emulation on another Linux machine: bits, not speed.
#
#   scripts/test-aarch64.sh              the kernels, with i8mm and without, and the ops on them; then an answer beside this machine's own
#   scripts/test-aarch64.sh ARGS..       `cargo test ARGS..` there, for example --test drafting
#
# ggml is compiled for every 64-bit ARM processor (no dot product), our kernels choose when they run. For ggml as on newer ones:
#   CFLAGS_aarch64_unknown_linux_gnu=-march=armv8.6-a CXXFLAGS_aarch64_unknown_linux_gnu=-march=armv8.6-a scripts/test-aarch64.sh
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
root=/usr/aarch64-linux-gnu
missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
need aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
need qemu-aarch64-static qemu-user-static
if [ ${#missing[@]} -gt 0 ]; then
    echo "missing; on Debian and Ubuntu: apt-get install ${missing[*]}" >&2
    exit 1
fi
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
    echo "missing: rustup target add $target" >&2
    exit 1
fi

# As they are where somebody chose others.
export CC_aarch64_unknown_linux_gnu=${CC_aarch64_unknown_linux_gnu:-aarch64-linux-gnu-gcc}
export CXX_aarch64_unknown_linux_gnu=${CXX_aarch64_unknown_linux_gnu:-aarch64-linux-gnu-g++}
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -cpu max -L $root"

if [ $# -gt 0 ]; then
    exec cargo test --locked --target $target "$@"
fi
cargo test --locked --target $target -p nextn-kernels -p nextn-ggml
# A processor without i8mm, which takes the other kernels.
CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -cpu cortex-a76 -L $root" \
    cargo test --locked --target $target -p nextn-kernels
question=(-p hello -n 30 --temp 0 --no-stats) # long enough to think and to begin an answer
there=$(cargo run --locked --quiet --target $target --bin nextn-cli -- "${question[@]}" </dev/null)
here=$(cargo run --locked --quiet --bin nextn-cli -- "${question[@]}" </dev/null)
printf 'there: %s\nhere:  %s\n' "$there" "$here"
[ -n "$there" ] && [ "$there" = "$here" ]
