#!/usr/bin/env bash
# Makes a backend as a library that nextn loads at run time (--backend-dir, NEXTN_BACKEND_DIR): libggml-cuda.so or
# libggml-vulkan.so. Needs a C and a C++ compiler, and nvcc with cuBLAS, or glslc with the headers and loader of Vulkan and
# the headers of SPIR-V; no Rust, no cmake.
#   scripts/build-plugin.sh cuda|vulkan [FOLDER]     where the plugin goes; the current folder if absent
# GGML_SOURCE_DIR   ggml's source (or llama.cpp's), the very version that nextn was built from; asked of cargo if not set
# CUDAARCHS         architectures such as "90" or "80;90"; those of this machine's GPUs if not set
# VULKAN_SDK        where Vulkan's headers, loader and glslc are, if not where compilers look
# NVCC, GLSLC, CC, CXX   compilers
# JOBS              compilations at a time
# A plugin carries a copy of ggml's core of its own and shows five functions: nextn exports nothing to it, checks that
# both were built from one version, and sends the plugin's log to its own.
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
backend=${1:-}
out=${2:-.}
cc=${CC:-cc} cxx=${CXX:-c++}
jobs=${JOBS:-$(nproc)}

stop() { echo "build-plugin: $1" >&2; exit 1; }
case $backend in
    cuda | vulkan) ;;
    *) stop "which one? scripts/build-plugin.sh cuda|vulkan [FOLDER]" ;;
esac

source=${GGML_SOURCE_DIR:-}
if [ -z "$source" ]; then
    command -v cargo >/dev/null || stop "set GGML_SOURCE_DIR: there is no cargo to ask where ggml's source lies"
    manifest=$repository/vendor/ggml-sys/ggml/Cargo.toml
    source=$(cargo metadata --locked --format-version 1 --manifest-path "$manifest" |
        sed 's/.*"manifest_path":"\([^"]*llama-cpp-sys-4[^"]*\)\/Cargo.toml".*/\1\/llama.cpp/')
fi
[ -d "$source/ggml" ] && source=$source/ggml
[ -d "$source/src/ggml-$backend" ] || stop "no ggml with a $backend backend in $source"
number() { sed -n "s/^set(GGML_VERSION_$1 \([0-9]*\)).*/\1/p" "$source/CMakeLists.txt"; }
version=$(number MAJOR).$(number MINOR).$(number PATCH)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
shared=(-O3 -DNDEBUG -D_XOPEN_SOURCE=600 -D_GNU_SOURCE -DGGML_SCHED_MAX_COPIES=4
    -DGGML_BACKEND_DL -DGGML_BACKEND_BUILD -DGGML_BACKEND_SHARED -DGGML_BUILD -DGGML_SHARED
    "-I$source/include" "-I$work" "-I$source/src")
host=(-fPIC -fvisibility=hidden -w)
sed -e "s/@GGML_VERSION@/$version/" -e "s/@GGML_BUILD_COMMIT@/plugin/" "$source/src/ggml-version.h.in" >"$work/ggml-version.h"

# The lists of files and flags are those of the build script of ggml-sys.
list_of() {
    awk "/^pub const $1:/ { on = 1 } on { print } on && /\];\$/ { exit }" "$repository/vendor/ggml-sys/build/files.rs" |
        grep -o '"[^"]*"' | tr -d '"'
}

# The core comes first: it is quick, and tells at once when something is missing.
list=$work/list
list_of BASE | sed "s|^|$source/src/|" >"$list"

prepare_cuda() {
    nvcc=${NVCC:-nvcc}
    command -v "$nvcc" >/dev/null || stop "no $nvcc: install the CUDA toolkit, or set NVCC"
    local archs=${CUDAARCHS:-} arch folder where root
    if [ -z "$archs" ]; then
        archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u | tr '\n' ';') ||
            stop "set CUDAARCHS: there is no GPU here to take it from"
    fi
    targets=()
    for arch in ${archs//;/ }; do
        targets+=(-gencode "arch=compute_$arch,code=sm_$arch")
    done
    [ ${#targets[@]} -gt 0 ] || stop "set CUDAARCHS: there is no GPU here to take it from"
    what="architectures ${archs//;/ }"

    # Toolkits put their libraries in different places, and so do Python packages that carry a toolkit.
    root=$(dirname "$(dirname "$(readlink -f "$(command -v "$nvcc")")")")
    libraries=()
    for folder in "$root"/lib64 "$root"/lib "$root"/targets/*/lib ${CUDA_LIBRARY_DIRS:-}; do
        for where in "$folder" "$folder/stubs"; do
            [ -d "$where" ] && libraries+=("-L$where")
        done
    done

    local pairs k v chosen
    mapfile -t pairs < <(list_of CUDA_CACHES)
    mapfile -t device < <(list_of CUDA_FLAGS)
    # shellcheck disable=SC2054 # The commas are nvcc's.
    device+=("${targets[@]}" "-DGGML_CUDA_FA_QUANTS=\"$(IFS=,; echo "${pairs[*]}")\"" -Xcompiler -fPIC,-fvisibility=hidden -w)
    for k in $(list_of CUDA_CACHE_TYPES); do
        for v in $(list_of CUDA_CACHE_TYPES); do
            chosen=0
            [[ " ${pairs[*]} " == *" $k-$v "* ]] && chosen=1
            device+=("-D$(echo "GGML_CUDA_FA_${k}_$v" | tr a-z A-Z)=$chosen")
        done
    done

    # Our kernels beside ggml's, called by lines that go into copies of its files. Attention loses its own race: with programmatic
    # dependent launch in captured graphs, answers on an H200 differed from run to run, and never without it. So its files are
    # compiled without; all others keep it, which is worth a tenth of the speed.
    local own=$repository/vendor/ggml-sys/cuda file
    cp -r "$source/src/ggml-cuda" "$work/ggml-cuda"
    cp "$own"/*.cu "$own"/*.cuh "$work/ggml-cuda"
    for file in $(cut -d'|' -f1 "$own/hooks" | sort -u); do
        awk -v file="$file" -f "$own/hooked.awk" "$own/hooks" "$source/src/ggml-cuda/$file" >"$work/ggml-cuda/$file" || stop "ggml has changed where our kernels are called"
    done
    local instances=$work/ggml-cuda/template-instances
    ls "$instances"/mmq*.cu "$instances"/fattn-mma*.cu "$instances"/fattn-tile*.cu "$instances"/mmf*.cu "$work"/ggml-cuda/*.cu >>"$list"
    printf "$instances/fattn-vec-instance-%s.cu\n" "${pairs[@]}" >>"$list"
}

prepare_vulkan() {
    local sdk=${VULKAN_SDK:-} shaders=$source/src/ggml-vulkan/vulkan-shaders test name file
    glslc=${GLSLC:-glslc}
    libraries=(-lvulkan)
    if [ -n "$sdk" ]; then
        shared+=("-I$sdk/include")
        libraries=("-L$sdk/lib" -lvulkan)
        [ -x "$sdk/bin/glslc" ] && glslc=${GLSLC:-$sdk/bin/glslc}
    fi
    command -v "$glslc" >/dev/null || stop "no $glslc: install it (Debian, Ubuntu: glslc libvulkan-dev spirv-headers), or set GLSLC or VULKAN_SDK"
    printf '#include <vulkan/vulkan.hpp>\n#include <spirv/unified1/spirv.hpp>\n' >"$work/probe.cpp"
    "$cxx" "${shared[@]}" -std=gnu++17 -fsyntax-only "$work/probe.cpp" ||
        stop "headers of Vulkan or SPIR-V are missing: install them (Debian, Ubuntu: libvulkan-dev spirv-headers), or set VULKAN_SDK"

    # What this glslc can compile: each of upstream's tests stands for a definition.
    local able=()
    for test in "$shaders"/feature-tests/*.comp; do
        name=$(basename "$test" .comp)
        "$glslc" -o /dev/null -fshader-stage=compute --target-env=vulkan1.3 "$test" 2>/dev/null || continue
        shared+=("-DGGML_VULKAN_$(echo "$name" | tr a-z A-Z)_GLSLC_SUPPORT")
        able+=("$name")
    done
    what="$glslc with ${able[*]:-none} of the extensions"

    # Debian 12 and its like: Vulkan's C++ header before 1.3.272 lacks what only a validation layer is told.
    cat >"$work/nextn-vulkan.hpp" <<'END'
#include "ggml-vulkan/ggml-vulkan-types.h"
#if VK_HEADER_VERSION < 272
namespace vk {
enum class LayerSettingTypeEXT { eBool32 = 0 };
struct LayerSettingEXT {
    const char * layer;
    const char * name;
    LayerSettingTypeEXT type;
    uint32_t n_values;
    const void * values;
};
struct LayerSettingsCreateInfoEXT {
    StructureType sType = static_cast<StructureType>(1000496000);
    const void * pNext = nullptr;
    uint32_t n_settings;
    const LayerSettingEXT * settings;
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & all)
        : n_settings(static_cast<uint32_t>(all.size())), settings(all.data()) {}
};
inline bool operator==(const Device & device, std::nullptr_t) { return !device; }
}
#endif
END

    "$cxx" "${shared[@]}" -std=gnu++17 -w "$shaders/vulkan-shaders-gen.cpp" -o "$work/generate" -lpthread
    "$work/generate" --output-dir "$work/spv" --target-hpp "$work/ggml-vulkan-shaders.hpp"
    ls "$source"/src/ggml-vulkan/*.cpp >>"$list"
    mkdir "$work/shaders"
    # One after the other: the generator runs as many compilers as there are cores.
    for file in "$shaders"/*.comp; do
        name=$work/shaders/$(basename "$file").cpp
        "$work/generate" --glslc "$glslc" --source "$file" --output-dir "$work/spv" \
            --target-hpp "$work/ggml-vulkan-shaders.hpp" --target-cpp "$name" >"$work/said" 2>&1 ||
            { cat "$work/said" >&2; stop "$(basename "$file") does not compile"; }
        echo "$name" >>"$list"
    done
}

compile() {
    local object
    object=$work/$(basename "$1").o
    case $1 in
        */fattn*.cu) "$nvcc" "${shared[@]}" "${device[@]}" -DNEXTN_NO_PDL -c "$1" -o "$object" ;;
        *.cu) "$nvcc" "${shared[@]}" "${device[@]}" -c "$1" -o "$object" ;;
        */ggml-vulkan*.cpp) "$cxx" "${shared[@]}" "${host[@]}" -std=gnu++17 -include nextn-vulkan.hpp -c "$1" -o "$object" ;;
        *.cpp) "$cxx" "${shared[@]}" "${host[@]}" -std=gnu++17 -c "$1" -o "$object" ;;
        *.c) "$cc" "${shared[@]}" "${host[@]}" -std=gnu11 -c "$1" -o "$object" ;;
    esac || { echo "build-plugin: $1 does not compile" >&2; return 1; }
}

echo "build-plugin: $backend, ggml $version from $source, $jobs at a time"
"prepare_$backend"
echo "build-plugin: $(wc -l <"$list") files, $what"
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
library=$out/libggml-$backend.so
flags=("--version-script=$work/exports" -Bsymbolic -z defs --gc-sections)
# shellcheck disable=SC2046 # Lists of flags.
if [ "$backend" = cuda ]; then
    "$nvcc" -shared "${targets[@]}" -cudart static "$work"/*.o -o "$library" "${libraries[@]}" -lcublas -lcuda \
        $(printf -- '-Xlinker %s ' "${flags[@]}") -lpthread -ldl -lm
else
    "$cxx" -shared "$work"/*.o -o "$library" "${libraries[@]}" $(printf -- '-Xlinker %s ' "${flags[@]}") -lpthread -ldl -lm
fi
echo "build-plugin: $library, $(du -h "$library" | cut -f1)"
