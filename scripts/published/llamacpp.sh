#!/usr/bin/env bash
# Fetches llama.cpp's source with its vocabularies and chat templates, and builds its tools where asked: what our tables in
# docs/measurements compare with. The source is that of the Python package llama-cpp-python, which carries all of it.
#
#   scripts/published/llamacpp.sh FOLDER            FOLDER/llama.cpp is the source, FOLDER/venv a Python with numpy, gguf and jinja2
#   scripts/published/llamacpp.sh FOLDER --build    FOLDER/build/bin has llama-quantize, llama-imatrix, llama-server, ..; needs a C++ compiler
#   scripts/published/llamacpp.sh FOLDER --torch    FOLDER/venv has torch and transformers as well, to make small checkpoints
#
# Needs python3 with venv and the package index that pip is set up for. A second run goes on where the first one ended.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
version=0.3.36
package=$folder/llama_cpp_python-$version
export PATH=$folder/venv/bin:$PATH

[ -d "$folder/venv" ] || python3 -m venv "$folder/venv"
if [ ! -e "$folder/llama.cpp" ]; then
    # pip asks the package's build for its metadata, and that looks for cmake.
    pip -q install scikit-build-core cmake ninja numpy gguf jinja2 safetensors sentencepiece tokenizers
    pip -q download --no-deps --no-build-isolation "llama-cpp-python==$version" -d "$folder"
    tar xzf "$package.tar.gz" -C "$folder"
    ln -s "$package/vendor/llama.cpp" "$folder/llama.cpp"
fi
for wish in "$@"; do
    case $wish in
    --torch) pip -q install torch transformers mistral-common ;;
    --build)
        cmake -G Ninja -S "$folder/llama.cpp" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_TESTS=OFF \
            -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF >"$folder/cmake.log"
        cmake --build "$folder/build" --target llama llama-quantize llama-gguf-split llama-tokenize llama-imatrix llama-server
        ;;
    *) echo "$wish: --build or --torch expected" >&2; exit 2 ;;
    esac
done
echo "$folder/llama.cpp"
