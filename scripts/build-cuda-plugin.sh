#!/usr/bin/env bash
# Makes libggml-cuda.so, which nextn loads at run time (--backend-dir, NEXTN_BACKEND_DIR). Needs nvcc, cuBLAS and a C and
# C++ compiler; no Rust, no cmake.
#   scripts/build-cuda-plugin.sh [FOLDER]      where the plugin goes; the current folder if absent
# GGML_SOURCE_DIR   ggml's source (or llama.cpp's), the very version that nextn was built from; asked of cargo if not set
# CUDAARCHS         architectures such as "90" or "80;90"; those of this machine's GPUs if not set
# NVCC, CC, CXX     compilers
# JOBS              compilations at a time
# The plugin carries a copy of ggml's core of its own and shows five functions: nextn exports nothing to it, checks that
# both were built from one version, and sends the plugin's log to its own.
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-.}
nvcc=${NVCC:-nvcc} cc=${CC:-cc} cxx=${CXX:-c++}
jobs=${JOBS:-$(nproc)}

stop() { echo "build-cuda-plugin: $1" >&2; exit 1; }
command -v "$nvcc" >/dev/null || stop "no $nvcc: install the CUDA toolkit, or set NVCC"

source=${GGML_SOURCE_DIR:-}
if [ -z "$source" ]; then
    command -v cargo >/dev/null || stop "set GGML_SOURCE_DIR: there is no cargo to ask where ggml's source lies"
    manifest=$repository/vendor/ggml-sys/ggml/Cargo.toml
    source=$(cargo metadata --locked --format-version 1 --manifest-path "$manifest" |
        sed 's/.*"manifest_path":"\([^"]*llama-cpp-sys-4[^"]*\)\/Cargo.toml".*/\1\/llama.cpp/')
fi
[ -d "$source/ggml" ] && source=$source/ggml
[ -f "$source/src/ggml-cuda/ggml-cuda.cu" ] || stop "no ggml with a CUDA backend in $source"
number() { sed -n "s/^set(GGML_VERSION_$1 \([0-9]*\)).*/\1/p" "$source/CMakeLists.txt"; }
version=$(number MAJOR).$(number MINOR).$(number PATCH)

archs=${CUDAARCHS:-}
if [ -z "$archs" ]; then
    archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u | tr '\n' ';') ||
        stop "set CUDAARCHS: there is no GPU here to take it from"
fi
targets=()
for arch in ${archs//;/ }; do
    targets+=(-gencode "arch=compute_$arch,code=sm_$arch")
done
[ ${#targets[@]} -gt 0 ] || stop "set CUDAARCHS: there is no GPU here to take it from"

# Toolkits put their libraries in different places, and so do Python packages that carry a toolkit.
root=$(dirname "$(dirname "$(readlink -f "$(command -v "$nvcc")")")")
libraries=()
for folder in "$root"/lib64 "$root"/lib "$root"/targets/*/lib ${CUDA_LIBRARY_DIRS:-}; do
    for where in "$folder" "$folder/stubs"; do
        [ -d "$where" ] && libraries+=("-L$where")
    done
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
shared=(-O3 -DNDEBUG -D_XOPEN_SOURCE=600 -D_GNU_SOURCE -DGGML_SCHED_MAX_COPIES=4
    -DGGML_BACKEND_DL -DGGML_BACKEND_BUILD -DGGML_BACKEND_SHARED -DGGML_BUILD -DGGML_SHARED -DGGML_CUDA_USE_GRAPHS
    "-I$source/include" "-I$work" "-I$source/src")
# Keys and values of one type, as the cache has them; every other pair would be one more kernel file each.
pairs=(f16-f16 q8_0-q8_0 q4_0-q4_0)
cuda=(-std=c++17 -use_fast_math -extended-lambda --compress-mode=size "${targets[@]}"
    "-DGGML_CUDA_FA_QUANTS=\"$(IFS=,; echo "${pairs[*]}")\"" -Xcompiler -fPIC,-fvisibility=hidden -w)
for k in q4_0 q4_1 q5_0 q5_1 q8_0 bf16 f16; do
    for v in q4_0 q4_1 q5_0 q5_1 q8_0 bf16 f16; do
        chosen=0
        [[ " ${pairs[*]} " == *" $k-$v "* ]] && chosen=1
        cuda+=("-D$(echo "GGML_CUDA_FA_${k}_$v" | tr a-z A-Z)=$chosen")
    done
done
sed -e "s/@GGML_VERSION@/$version/" -e "s/@GGML_BUILD_COMMIT@/plugin/" "$source/src/ggml-version.h.in" >"$work/ggml-version.h"

# Attention loses its own race: with programmatic dependent launch in captured graphs, answers on an H200 differed from run
# to run, and never without it. So its files are compiled without; all others keep it, which is worth a tenth of the speed.
cp -r "$source/src/ggml-cuda" "$work/ggml-cuda"
sed -i 's/^#    define GGML_CUDA_USE_PDL$/#    ifndef NEXTN_NO_PDL\n#    define GGML_CUDA_USE_PDL\n#    endif/' "$work/ggml-cuda/common.cuh"
grep -q NEXTN_NO_PDL "$work/ggml-cuda/common.cuh" || stop "common.cuh is not as expected: read what it says of GGML_CUDA_USE_PDL"

list=$work/list
: >"$list"
# The core comes first: it is quick, and tells at once when something is missing.
for name in ggml.c ggml.cpp ggml-alloc.c ggml-backend.cpp ggml-backend-meta.cpp ggml-opt.cpp ggml-threading.cpp \
    ggml-quants.c gguf.cpp; do
    echo "$source/src/$name" >>"$list"
done
instances=$work/ggml-cuda/template-instances
for file in "$instances"/mmq*.cu "$instances"/fattn-mma*.cu "$instances"/fattn-tile*.cu "$instances"/mmf*.cu \
    "${pairs[@]/#/$instances/fattn-vec-instance-}" "$work"/ggml-cuda/*.cu; do
    case $file in *.cu) ;; *) file=$file.cu ;; esac
    echo "$file" >>"$list"
done

compile() {
    local object
    object=$work/$(basename "$1").o
    case $1 in
        */fattn*.cu) "$nvcc" "${shared[@]}" "${cuda[@]}" -DNEXTN_NO_PDL -c "$1" -o "$object" ;;
        *.cu) "$nvcc" "${shared[@]}" "${cuda[@]}" -c "$1" -o "$object" ;;
        *.cpp) "$cxx" "${shared[@]}" -std=gnu++17 -fPIC -fvisibility=hidden -c "$1" -o "$object" ;;
        *.c) "$cc" "${shared[@]}" -std=gnu11 -fPIC -fvisibility=hidden -c "$1" -o "$object" ;;
    esac || { echo "build-cuda-plugin: $1 does not compile" >&2; return 1; }
}
echo "build-cuda-plugin: ggml $version from $source, architectures ${archs//;/ }, $(wc -l <"$list") files, $jobs at a time"
failed=0
while read -r file; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
        wait -n || failed=1
    done
    [ $failed = 0 ] || break
    compile "$file" &
done <"$list"
while [ "$(jobs -rp | wc -l)" -gt 0 ]; do wait -n || failed=1; done
[ $failed = 0 ] || stop "stopped"
[ "$(ls "$work"/*.o | wc -l)" = "$(wc -l <"$list")" ] || stop "a file left no object"

echo '{ global: ggml_backend_init; ggml_backend_score; ggml_version; ggml_log_set; ggml_set_abort_callback; local: *; };' \
    >"$work/exports"
mkdir -p "$out"
"$nvcc" -shared "${targets[@]}" -cudart static "$work"/*.o -o "$out/libggml-cuda.so" "${libraries[@]}" -lcublas -lcuda \
    -Xlinker --version-script="$work/exports" -Xlinker -Bsymbolic -Xlinker -z -Xlinker defs -Xlinker --gc-sections -lpthread -ldl -lm
echo "build-cuda-plugin: $out/libggml-cuda.so, $(du -h "$out/libggml-cuda.so" | cut -f1)"
