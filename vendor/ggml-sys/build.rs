//! Finds ggml's source, checks that the declarations fit it, compiles it into one static library. Each step lies in `build/`.
//! Dependents read DEP_GGML_ROOT (the folder with `include` and `src`), DEP_GGML_INCLUDE and DEP_GGML_VERSION.

#[path = "build/apple.rs"]
mod apple;
#[path = "build/arm.rs"]
mod arm;
#[path = "build/compiler.rs"]
mod compiler;
#[path = "build/cpu.rs"]
mod cpu;
#[cfg(feature = "cuda")]
#[path = "build/cuda.rs"]
mod cuda;
#[path = "build/declarations.rs"]
mod declarations;
#[path = "build/files.rs"]
mod files;
#[cfg(feature = "cuda")]
#[path = "build/hooks.rs"]
mod hooks;
#[path = "build/metal.rs"]
mod metal;
#[path = "build/rpc.rs"]
mod rpc;
#[path = "build/shaders.rs"]
mod shaders;
#[path = "build/source.rs"]
mod source;
#[path = "build/target.rs"]
mod target;
#[path = "build/variants.rs"]
mod variants;
#[path = "build/waits.rs"]
mod waits;

use std::path::Path;

fn main() {
    if let Err(message) = build() {
        for line in message.lines() {
            println!("cargo::error={line}");
        }
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    // Of the two pins a checkout has one and a published package the other; a path that is not there would count as changed.
    let paths = [
        "build.rs",
        "build",
        "bindings.rs",
        "plan.cpp",
        "variants.c",
        "wait.c",
        "wait.h",
        "ggml/Cargo.toml",
        "ggml/Cargo.lock",
        "pin.toml",
        "pin.lock",
    ];
    for path in paths.iter().filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
    for variable in ["GGML_SOURCE_DIR", "DOCS_RS", "CLIPPY_ARGS", "CUDAARCHS", "NVCC"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let target = target::Target::of_build_script();
    println!("cargo::rustc-env=GGML_SYS_TARGET={}", target.triple);

    // Documentation needs the declarations only, and its builders have no network to fetch the source with.
    let docs = std::env::var_os("DOCS_RS").is_some();
    if docs && !cfg!(feature = "buildtime-bindgen") {
        return Ok(());
    }

    let source = source::locate(&source::pin(&target.out_dir)?, &target.triple)?;
    for path in source.watched() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    #[cfg(feature = "buildtime-bindgen")]
    declarations::generate(&source, &target.out_dir)?;
    #[cfg(not(feature = "buildtime-bindgen"))]
    declarations::check(Path::new("bindings.rs"), &source)?;
    println!("cargo::metadata=root={}", source.ggml.display());
    println!("cargo::metadata=include={}", source.ggml.join("include").display());
    println!("cargo::metadata=version={}", source.version);

    // Nor does clippy link; it builds this script apart from the compiler's, so ggml would be compiled a second time for it.
    if docs || std::env::var_os("CLIPPY_ARGS").is_some() {
        return Ok(());
    }
    compiler::check(&target)?;
    let mut groups = cpu::groups(&source, &target)?;
    #[cfg(feature = "cuda")]
    groups.extend(cuda::groups(&source, &target)?.into_iter().map(compiler::Group::from));
    groups.extend(rpc::groups(&source, &target)?.into_iter().map(compiler::Group::from));
    if target.metal() {
        groups.extend(metal::groups(&source, &target)?.into_iter().map(compiler::Group::from));
    }
    compiler::library(&groups, &target)
}
