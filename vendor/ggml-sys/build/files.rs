//! Which of ggml's files are compiled, with which definitions. Pure lists, relative to ggml's `src`; `tests/upstream.rs`
//! compares them with ggml's own CMakeLists.txt, so that an upgrade cannot drop one silently.

/// Tensors, graphs, allocators, quantisation, GGUF: CMake target `ggml-base`.
pub const BASE: [&str; 9] = [
    "ggml.c",
    "ggml.cpp",
    "ggml-alloc.c",
    "ggml-backend.cpp",
    "ggml-backend-meta.cpp",
    "ggml-opt.cpp",
    "ggml-threading.cpp",
    "ggml-quants.c",
    "gguf.cpp",
];

/// The list of backends and the loader of plugins: CMake target `ggml`.
pub const REGISTRY: [&str; 2] = ["ggml-backend-dl.cpp", "ggml-backend-reg.cpp"];

/// Of these, what no token waits for: little optimisation is enough, and saves a third of
/// the compiler's time for them.
pub const COLD: [&str; 5] =
    ["ggml-backend-meta.cpp", "ggml-opt.cpp", "gguf.cpp", "ggml-backend-dl.cpp", "ggml-backend-reg.cpp"];

/// The CPU backend on every machine: CMake target `ggml-cpu`. The longest to compile come first.
pub const CPU: [&str; 15] = [
    "ggml-cpu/ops.cpp",
    "ggml-cpu/llamafile/sgemm.cpp",
    "ggml-cpu/repack.cpp",
    "ggml-cpu/binary-ops.cpp",
    "ggml-cpu/ggml-cpu.c",
    "ggml-cpu/ggml-cpu.cpp",
    "ggml-cpu/hbm.cpp",
    "ggml-cpu/quants.c",
    "ggml-cpu/traits.cpp",
    "ggml-cpu/amx/amx.cpp",
    "ggml-cpu/amx/mmq.cpp",
    "ggml-cpu/tiled/tiled.cpp",
    "ggml-cpu/tiled/tiled-kernel.cpp",
    "ggml-cpu/unary-ops.cpp",
    "ggml-cpu/vec.cpp",
];

/// The CPU backend's files for one architecture, as cargo names it; `None` where this crate has no list.
pub fn cpu_arch(arch: &str) -> Option<[&'static str; 2]> {
    match arch {
        "x86_64" => Some(["ggml-cpu/arch/x86/quants.c", "ggml-cpu/arch/x86/repack.cpp"]),
        "aarch64" => Some(["ggml-cpu/arch/arm/quants.c", "ggml-cpu/arch/arm/repack.cpp"]),
        _ => None,
    }
}

/// The Metal backend: CMake target `ggml-metal`.
pub const METAL: [&str; 8] = [
    "ggml-metal/ggml-metal.cpp",
    "ggml-metal/ggml-metal-device.m",
    "ggml-metal/ggml-metal-device.cpp",
    "ggml-metal/ggml-metal-common.cpp",
    "ggml-metal/ggml-metal-context.m",
    "ggml-metal/ggml-metal-fusion.cpp",
    "ggml-metal/ggml-metal-ops.cpp",
    "ggml-metal/ggml-metal-tuning.cpp",
];

/// The Metal kernels, each a library of its own that is compiled on the user's machine: `ggml-metal/kernels/<name>.metal`.
pub const METAL_KERNELS: [&str; 36] = [
    "fa_aux",
    "fa_f16",
    "fa_f32",
    "fa_q4_0",
    "fa_q4_1",
    "fa_q5_0",
    "fa_q5_1",
    "fa_q8_0",
    "fa_tensor",
    "fa_vec_f16",
    "fa_vec_f32",
    "fa_vec_q4_0",
    "fa_vec_q4_1",
    "fa_vec_q5_0",
    "fa_vec_q5_1",
    "fa_vec_q8_0",
    "mul_mv",
    "mul_mv_mma",
    "mul_mm",
    "quantize",
    "softmax",
    "norm",
    "unary",
    "binbcast",
    "reduce",
    "tri",
    "ssm",
    "wkv",
    "gated_delta_net",
    "solve_tri",
    "rope",
    "conv",
    "upscale",
    "argsort",
    "pool",
    "misc",
];

/// The RPC backend: CMake target `ggml-rpc`.
pub const RPC: [&str; 3] = ["ggml-rpc/ggml-rpc.cpp", "ggml-rpc/log.cpp", "ggml-rpc/transport.cpp"];

/// Definitions for all of ggml. `_XOPEN_SOURCE=600`: M_PI and posix_memalign.
pub const DEFINES: [(&str, Option<&str>); 2] = [("GGML_SCHED_MAX_COPIES", Some("4")), ("_XOPEN_SOURCE", Some("600"))];

/// The one that makes the system's C library complete: thread affinity on Linux, memory locking on macOS.
pub fn system_define(os: &str) -> Option<&'static str> {
    match os {
        "linux" => Some("_GNU_SOURCE"),
        "macos" => Some("_DARWIN_C_SOURCE"),
        _ => None,
    }
}

/// Definitions for the CPU backend: repacked weights, tinyBLAS. No GGML_USE_OPENMP: ggml's own threadpools serve.
pub const CPU_DEFINES: [&str; 2] = ["GGML_USE_CPU_REPACK", "GGML_USE_LLAMAFILE"];

/// Definitions for the Metal backend.
pub const METAL_DEFINES: [&str; 1] = ["GGML_METAL_EMBED_LIBRARY"];

/// Types of keys and values with attention kernels on CUDA, one type for both, as the cache has them; every other pair would
/// be one more kernel file each.
#[allow(dead_code)] // Of the feature and the script.
pub const CUDA_CACHES: [&str; 3] = ["f16-f16", "q8_0-q8_0", "q4_0-q4_0"];

/// Types that upstream has such kernels for: every pair of them is defined, as 1 or 0.
#[allow(dead_code)] // Of the feature and the script.
pub const CUDA_CACHE_TYPES: [&str; 7] = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "bf16", "f16"];

/// For nvcc, beside the architectures.
#[allow(dead_code)] // Of the feature and the script.
pub const CUDA_FLAGS: [&str; 5] =
    ["-std=c++17", "-use_fast_math", "-extended-lambda", "--compress-mode=size", "-DGGML_CUDA_USE_GRAPHS"];
