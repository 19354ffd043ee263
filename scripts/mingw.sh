# shellcheck shell=bash
# To be sourced: the compilers with which cargo builds for x86_64-pc-windows-gnu. Given ones stay.

# The other threads of mingw-w64 lack parts of the C++ library.
export CC_x86_64_pc_windows_gnu=${CC_x86_64_pc_windows_gnu:-x86_64-w64-mingw32-gcc-posix}
export CXX_x86_64_pc_windows_gnu=${CXX_x86_64_pc_windows_gnu:-x86_64-w64-mingw32-g++-posix}
export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=${CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER:-$CC_x86_64_pc_windows_gnu}
# ggml asks Windows not to slow its threads down; older headers, such as Debian 12's, lack the words for it.
if command -v "$CC_x86_64_pc_windows_gnu" >/dev/null &&
    ! printf '#include <windows.h>\nTHREAD_POWER_THROTTLING_STATE state;\n' |
        "$CC_x86_64_pc_windows_gnu" -fsyntax-only -x c - 2>/dev/null; then
    CFLAGS_x86_64_pc_windows_gnu="${CFLAGS_x86_64_pc_windows_gnu:-} -include $PWD/scripts/release/old-mingw.h"
    export CFLAGS_x86_64_pc_windows_gnu
fi
