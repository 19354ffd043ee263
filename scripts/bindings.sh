#!/usr/bin/env bash
# Makes vendor/ggml-sys/bindings.rs from the headers of the pinned ggml (or of GGML_SOURCE_DIR). Needs libclang.
#   scripts/bindings.sh           write the file
#   scripts/bindings.sh --check   prove that the committed file is what bindgen makes; without libclang, say so and pass
set -euo pipefail
cd "$(dirname "$0")/.."
committed=vendor/ggml-sys/bindings.rs

case "${1:-}" in
    "" | --check) ;;
    *) echo "usage: scripts/bindings.sh [--check]" >&2; exit 2 ;;
esac

have_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] && return 0
    local folders=(/usr/lib /usr/lib64 /usr/local/lib /Library/Developer/CommandLineTools/usr/lib)
    command -v llvm-config >/dev/null && folders+=("$(llvm-config --libdir)")
    command -v xcode-select >/dev/null && folders+=("$(xcode-select -p)/Toolchains/XcodeDefault.xctoolchain/usr/lib")
    # libclang-cpp is another library, which runtimes bring along.
    [ -n "$(find -L "${folders[@]}" -maxdepth 4 \( -name 'libclang.so*' -o -name 'libclang-[0-9]*.so*' -o -name libclang.dylib \) \
        -print -quit 2>/dev/null)" ]
}

if ! have_libclang; then
    need="libclang is not here (Debian: libclang-dev, Fedora: clang-devel, macOS: xcode-select --install)"
    if [ "${1:-}" = --check ]; then
        echo "bindings: NOT CHECKED: $need"
        exit 0
    fi
    echo "bindings: $need" >&2
    exit 1
fi

# DOCS_RS makes the build script stop before it compiles ggml: only the declarations are wanted.
out_dir=$(DOCS_RS=1 cargo check --quiet -p nextn-ggml-sys --features buildtime-bindgen --message-format=json |
    sed -n 's/.*"reason":"build-script-executed".*nextn-ggml-sys.*"out_dir":"\([^"]*\)".*/\1/p' | tail -n 1)
fresh=$out_dir/bindings.rs
if [ ! -f "$fresh" ]; then
    echo "bindings: cargo made no bindings.rs; run: DOCS_RS=1 cargo check -p nextn-ggml-sys --features buildtime-bindgen" >&2
    exit 1
fi

if [ "${1:-}" = --check ]; then
    if ! diff -u "$committed" "$fresh"; then
        echo "bindings: $committed is not what bindgen makes of the headers; run scripts/bindings.sh" >&2
        exit 1
    fi
    echo "bindings: $committed is fresh"
else
    cp "$fresh" "$committed"
    echo "bindings: wrote $committed"
fi
