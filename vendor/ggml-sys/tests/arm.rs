//! The tuning for 64-bit ARM reads compilers' words rightly; the words are what `-mcpu=native -E -v` makes them say.

#[path = "../build/arm.rs"]
mod arm;

#[test]
fn the_machine_that_gcc_resolves_is_taken() {
    let gcc = "COLLECT_GCC_OPTIONS='-mcpu=native' '-E' '-v'\n \
               /usr/lib/gcc/aarch64-linux-gnu/12/cc1plus -E -quiet -v - -mlittle-endian -mabi=lp64 \
               -mcpu=neoverse-n1+crc+crypto+ssbs -O3\n";
    assert_eq!(arm::resolved(gcc).as_deref(), Some("-mcpu=neoverse-n1+crc+crypto+ssbs"));
    let older = "COLLECT_GCC_OPTIONS='-E' '-march=armv8.2-a+crypto' '-mcpu=native'\n";
    assert_eq!(arm::resolved(older).as_deref(), Some("-march=armv8.2-a+crypto"));
}

#[test]
fn clang_names_no_machine_that_a_flag_could_repeat() {
    let clang = " \"/usr/lib/llvm-14/bin/clang\" -cc1 -triple aarch64-unknown-linux-gnu -target-cpu neoverse-n1\n";
    assert_eq!(arm::resolved(clang), None);
    assert_eq!(arm::resolved("cc1: warning: '-mcpu=' is deprecated; use '-mtune=' or '-march=' instead"), None);
}

#[test]
fn a_feature_that_does_not_compile_is_not_switched_on() {
    // On a machine that is not ARM no probe compiles; on one that is, those that ran are named.
    let host = env!("GGML_SYS_TARGET");
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut build = cc::Build::new();
    let tool = build.cpp(true).target(host).host(host).opt_level(3).get_compiler();
    let flags = arm::native_flags(&tool, folder).expect("cargo's folder for tests is writable");
    let tuned = flags.last().expect("the machine's flag comes last");
    assert!(tuned.starts_with("-m"), "{flags:?}");
    if !host.starts_with("aarch64") {
        assert!(!tuned.contains("dotprod") && !tuned.contains("i8mm") && !tuned.contains("sve"), "{flags:?}");
    }
}
