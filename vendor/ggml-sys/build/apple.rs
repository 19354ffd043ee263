//! What Apple's toolchain needs besides flags: a deployment target that ggml compiles for, a workaround for one linker, the
//! runtime library behind `@available`. Knows nothing of ggml's files. Not run on a Mac yet; CI's macOS job is its proof.

use std::path::Path;

/// Rust's own default for x86-64 is 10.12, where C++'s `std::filesystem` is not there yet.
pub fn set_deployment_target(build: &mut cc::Build) {
    println!("cargo::rerun-if-env-changed=MACOSX_DEPLOYMENT_TARGET");
    if std::env::var_os("MACOSX_DEPLOYMENT_TARGET").is_none() {
        build.flag("-mmacosx-version-min=11.0");
    }
}

/// The linker of Xcode 15.0 breaks an unrolled loop of ggml-quants.c; upstream looks for it in the same way.
pub fn linker_is_buggy(tool: &cc::Tool) -> bool {
    let output = tool.to_command().arg("-Wl,-v").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stderr).contains("dyld-1015.7"))
}

/// `@available` calls a function of clang's runtime library, which rustc leaves out when it links.
pub fn link_clang_runtime(tool: &cc::Tool) {
    let said = tool.to_command().arg("--print-search-dirs").output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let folders = said.lines().filter_map(|line| line.strip_prefix("libraries: =")).flat_map(|list| list.split(':'));
    for folder in folders.map(|folder| Path::new(folder).join("lib/darwin")) {
        if folder.join("libclang_rt.osx.a").is_file() {
            println!("cargo::rustc-link-search=native={}", folder.display());
            println!("cargo::rustc-link-lib=clang_rt.osx");
            return;
        }
    }
    println!(
        "cargo::warning=libclang_rt.osx.a is not beside the compiler; linking may miss ___isPlatformVersionAtLeast"
    );
}
