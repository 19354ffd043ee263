//! What the build script compiles is what ggml's own CMakeLists.txt name, on every target, so that an upgrade of ggml cannot
//! drop a file or a definition silently. Reads the source that the build script found; needs no cmake.

#[path = "../build/files.rs"]
mod files;
#[path = "../build/shaders.rs"]
mod shaders;
#[path = "../build/source.rs"]
#[allow(dead_code)] // The build script uses all of it.
mod source;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

#[test]
fn core_and_registry_are_upstreams() {
    let commands = commands("src/CMakeLists.txt");
    let of_library = |name: &str| {
        let library = commands.iter().find(|c| c.name == "add_library" && c.args.first().is_some_and(|a| a == name));
        compiled("", &library.unwrap_or_else(|| panic!("no add_library({name} ...)")).args)
    };
    assert_eq!(set(files::BASE), of_library("ggml-base"));
    assert_eq!(set(files::REGISTRY), of_library("ggml"));
    // A name that upstream changed would be compiled as the others are, and nobody would notice.
    let core = set(files::BASE.into_iter().chain(files::REGISTRY));
    assert!(set(files::COLD).is_subset(&core), "{:?}", set(files::COLD).difference(&core));
}

#[test]
fn cpu_files_are_upstreams_on_both_architectures() {
    let commands = commands("src/ggml-cpu/CMakeLists.txt");
    for (arch, system_arch) in [("x86_64", "x86"), ("aarch64", "ARM")] {
        let ours = set(files::CPU.into_iter().chain(files::cpu_arch(arch).expect("a supported architecture")));
        let arch_condition = format!("GGML_SYSTEM_ARCH STREQUAL {system_arch}");
        let mut theirs = BTreeSet::new();
        for command in &commands {
            if command.name != "list"
                || !command.args.starts_with(&["APPEND".to_owned(), "GGML_CPU_SOURCES".to_owned()])
            {
                continue;
            }
            if command.conditions.iter().all(|c| c == "GGML_LLAMAFILE" || *c == arch_condition) {
                theirs.extend(compiled("", &command.args));
            } else {
                let known = command.conditions.iter().any(|c| {
                    c == "GGML_CPU_KLEIDIAI" || c.starts_with("GGML_SYSTEM_ARCH") || c.contains("MATCHES wasm")
                });
                assert!(
                    known,
                    "new condition {:?} for {:?}: does the build need it?",
                    command.conditions, command.args
                );
            }
        }
        assert_eq!(ours, theirs, "{arch}");
    }
}

#[test]
fn metal_files_and_kernels_are_upstreams() {
    let commands = commands("src/ggml-metal/CMakeLists.txt");
    let library = commands.iter().find(|c| c.name == "ggml_add_backend_library").expect("the library ggml-metal");
    assert_eq!(set(files::METAL), compiled("ggml-metal/", &library.args));

    let list =
        commands.iter().find(|c| c.name == "set" && c.args[0] == "METALLIB_KERNEL_SOURCES").expect("its kernels");
    let kernel = |arg: &String| arg.strip_prefix("kernels/")?.strip_suffix(".metal").map(str::to_owned);
    let in_cmake: BTreeSet<String> = list.args.iter().filter_map(kernel).collect();
    assert_eq!(set(files::METAL_KERNELS), in_cmake);

    // The backend looks for one pair of symbols per kernel: X(FA_AUX, fa_aux).
    let device = read("src/ggml-metal/ggml-metal-device.m");
    let (_, table) = device.split_once("#define GGML_METAL_LIBS").expect("the table of kernels");
    let rows = table.lines().skip(1).take_while(|line| line.trim_start().starts_with("X("));
    let symbols = rows.filter_map(|row| Some(row.split_once(',')?.1.split_once(')')?.0.trim().to_owned()));
    assert_eq!(set(files::METAL_KERNELS), symbols.collect());
}

#[test]
fn rpc_files_are_upstreams() {
    let commands = commands("src/ggml-rpc/CMakeLists.txt");
    let library = commands.iter().find(|c| c.name == "ggml_add_backend_library").expect("the library ggml-rpc");
    assert_eq!(set(files::RPC), compiled("ggml-rpc/", &library.args));
}

#[test]
fn merged_shaders_include_nothing_of_ggmls() {
    let read_src = |name: &str| Ok(read(&format!("src/{name}")));
    for kernel in files::METAL_KERNELS {
        let text = shaders::merged(kernel, &read_src).expect("the reader gives every file or panics");
        let source = read(&format!("src/ggml-metal/kernels/{kernel}.metal"));
        let body = source.lines().rev().find(|line| !line.trim().is_empty()).expect("a kernel has lines");
        assert!(text.contains(body), "{kernel}: its own text is missing");
        assert!(text.contains("#define GGML_METAL_IMPL"), "{kernel}: ggml-metal-impl.h is missing");
        assert!(!text.contains("__embed_"), "{kernel}: a place that wants a header is left");
        assert!(!text.contains("#pragma once"), "{kernel}: not one file yet");

        // ggml-common.h stands in the branch that is compiled; upstream's include stays in the other one.
        let includes: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("#include \"")).collect();
        if source.contains("#include \"dequantize.h\"") {
            assert_eq!(includes, ["#include \"ggml-common.h\""], "{kernel}");
            assert!(text.contains("#else\n#include \"ggml-common.h\"\n#endif"), "{kernel}");
            assert!(text.contains("GGML_COMMON_DECL_METAL") && text.contains("} block_q4_0;"), "{kernel}");
        } else {
            assert!(includes.is_empty(), "{kernel}: {includes:?}");
        }
        // Each header once: a second definition would not compile.
        for once in ["using namespace metal;", "void dequantize_q4_0(", "#define GGML_METAL_IMPL", "} block_q4_0;"] {
            assert!(text.matches(once).count() <= 1, "{kernel}: `{once}` twice");
        }
    }
    let flash = shaders::merged("fa_vec_q4_0", &read_src).expect("as above");
    let places = ["FC_flash_attn_ext_vec_has_mask", "void dequantize_q4_0(", "using namespace metal;"];
    let places = places.map(|text| flash.find(text).unwrap_or_else(|| panic!("`{text}` is missing")));
    assert!(places[0] > places[1] && places[1] > places[2], "headers stand in the order of their use: {places:?}");
}

#[test]
fn embedding_names_the_symbols_and_escapes_the_path() {
    let text = shaders::embedding("mul_mm", "/a \"b\"\\c.metal");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[2], "_ggml_metallib_mul_mm_start:");
    assert_eq!(lines[3], ".incbin \"/a \\\"b\\\"\\\\c.metal\"");
    assert_eq!(lines[5], "_ggml_metallib_mul_mm_end:");
}

#[test]
fn every_definition_of_upstream_is_set_or_known_to_stay_off() {
    let mut ours: BTreeSet<&str> = files::DEFINES.into_iter().map(|(name, _)| name).collect();
    ours.extend(files::CPU_DEFINES);
    ours.extend(files::METAL_DEFINES);
    ours.extend(["linux", "macos"].map(|os| files::system_define(os).expect("a supported system")));

    let mut theirs = BTreeSet::new();
    let folders = ["", "ggml-cpu/", "ggml-metal/", "ggml-rpc/"];
    for file in folders.map(|folder| format!("src/{folder}CMakeLists.txt")) {
        for command in commands(&file) {
            if command.name != "add_compile_definitions" && command.name != "target_compile_definitions" {
                continue;
            }
            let skip = usize::from(command.name == "target_compile_definitions");
            for arg in command.args.iter().skip(skip).filter(|arg| !["PRIVATE", "PUBLIC"].contains(&arg.as_str())) {
                let name = arg.split('=').next().unwrap_or(arg);
                if !STAY_OFF.contains(&name) {
                    theirs.insert(name.to_owned());
                }
            }
        }
    }
    assert_eq!(set(ours), theirs);

    let copies =
        commands("CMakeLists.txt").into_iter().find(|c| c.name == "set" && c.args[0] == "GGML_SCHED_MAX_COPIES");
    assert_eq!(Some(copies.expect("its default").args[1].as_str()), files::DEFINES[0].1);
}

/// Upstream's definitions that this build leaves out on purpose.
const STAY_OFF: [&str; 27] = [
    // Debug builds, debug aids, loaded backends, shared libraries.
    "$<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>",
    "GGML_SCHED_NO_REALLOC",
    "GGML_METAL_NDEBUG",
    "GGML_BACKEND_DL",
    "GGML_BACKEND_DIR",
    "GGML_BACKEND_BUILD",
    "GGML_BACKEND_SHARED",
    "GGML_BUILD",
    "GGML_SHARED",
    // Other systems; the linker's workaround is set by build/apple.rs where it is needed.
    "_CRT_SECURE_NO_WARNINGS",
    "__BSD_VISIBLE",
    "_NETBSD_SOURCE",
    "_BSD_SOURCE",
    "HAVE_BUGGY_APPLE_LINKER",
    // Libraries that this build does without.
    "GGML_USE_OPENMP",
    "GGML_USE_ACCELERATE",
    "ACCELERATE_NEW_LAPACK",
    "ACCELERATE_LAPACK_ILP64",
    "GGML_RPC_RDMA",
    "GGML_RPC_RDMA_APPLE",
    "GGML_USE_CPU_HBM",
    "GGML_USE_CPU_KLEIDIAI",
    // Another architecture.
    "GGML_USE_CPU_RISCV64_SPACEMIT",
    "${RISCV64_SPACEMIT_IME_SPEC}",
    // Names of variables: build/cpu.rs holds the tuning and GGML_USE_<backend>.
    "${ARCH_DEFINITIONS}",
    "${ARGN}",
    "${backend_use}",
];

fn set<S: Into<String>>(names: impl IntoIterator<Item = S>) -> BTreeSet<String> {
    names.into_iter().map(Into::into).collect()
}

fn compiled(folder: &str, args: &[String]) -> BTreeSet<String> {
    let compiled = args.iter().filter(|arg| [".c", ".cpp", ".m"].iter().any(|ending| arg.ends_with(ending)));
    compiled.map(|arg| format!("{folder}{arg}")).collect()
}

/// A CMake command, with the conditions that it stands under.
struct Command {
    name: String,
    args: Vec<String>,
    conditions: Vec<String>,
}

/// Reads as much of CMake's language as the lists above need: comments, quotes, nested parentheses, `if` blocks.
fn commands(file: &str) -> Vec<Command> {
    let text: String = read(file).lines().map(|line| format!("{}\n", line.split(" #").next().unwrap_or(""))).collect();
    let text: String =
        text.lines().filter(|line| !line.trim_start().starts_with('#')).map(|l| format!("{l}\n")).collect();
    let mut commands = Vec::new();
    let mut conditions: Vec<String> = Vec::new();
    let mut rest = text.as_str();
    while let Some(open) = rest.find('(') {
        let name = rest[..open].trim().to_lowercase();
        let (mut depth, mut quoted, mut close) = (0, false, rest.len());
        for (i, c) in rest[open..].char_indices() {
            match c {
                '"' if !rest[..open + i].ends_with('\\') => quoted = !quoted,
                '(' if !quoted => depth += 1,
                ')' if !quoted => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                close = open + i;
                break;
            }
        }
        let args: Vec<String> =
            rest[open + 1..close].split_whitespace().map(|arg| arg.trim_matches('"').to_owned()).collect();
        rest = rest.get(close + 1..).unwrap_or("");
        if matches!(name.as_str(), "elseif" | "else" | "endif") {
            conditions.pop().unwrap_or_else(|| panic!("{file}: {name} without if"));
        }
        match name.as_str() {
            "if" | "elseif" => conditions.push(args.join(" ")),
            "else" => conditions.push("else".to_owned()),
            _ => commands.push(Command { name, args, conditions: conditions.clone() }),
        }
    }
    assert!(conditions.is_empty(), "{file}: blocks left open: {conditions:?}");
    commands
}

fn read(name: &str) -> String {
    static SOURCE: OnceLock<source::Source> = OnceLock::new();
    let source = SOURCE.get_or_init(|| {
        let pin = Path::new(env!("CARGO_MANIFEST_DIR")).join("ggml/Cargo.toml");
        source::locate(&pin, env!("GGML_SYS_TARGET")).unwrap_or_else(|message| panic!("{message}"))
    });
    let path = source.ggml.join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
