//! ggml's Metal backend: its files, the embedded shader sources, Apple's frameworks. Follows upstream's
//! `src/ggml-metal/CMakeLists.txt` with GGML_METAL_EMBED_LIBRARY; needs no Metal toolchain, the shaders are compiled at run time.

use crate::source::Source;
use crate::target::Target;
use crate::{apple, compiler, files, shaders};
use std::path::PathBuf;

/// What to compile; also tells cargo to link Apple's libraries.
///
/// # Errors
/// A shader source that cannot be read, or a merged one that cannot be written.
pub fn groups(source: &Source, target: &Target) -> Result<Vec<cc::Build>, String> {
    let mut groups = Vec::new();
    for cpp in [true, false] {
        let mut backend = compiler::group(source, target, cpp, files::METAL.iter());
        backend.include(source.src().join("ggml-metal"));
        for name in files::METAL_DEFINES {
            backend.define(name, None);
        }
        if !cpp {
            // The backend releases its objects itself.
            backend.flag("-fno-objc-arc");
        }
        groups.push(backend);
    }
    let mut shaders = cc::Build::new();
    shaders.files(embedded(source, target)?).debug(false).warnings(false);
    groups.push(shaders);
    for framework in ["Foundation", "Metal", "MetalKit"] {
        println!("cargo::rustc-link-lib=framework={framework}");
    }
    apple::link_clang_runtime(&compiler::tool(target, false)?);
    Ok(groups)
}

/// Writes each kernel's merged source, and an assembly file that embeds it; gives the assembly files.
fn embedded(source: &Source, target: &Target) -> Result<Vec<PathBuf>, String> {
    let read = |name: &str| {
        let path = source.src().join(name);
        std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
    };
    let folder = target.out_dir.join("shaders");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut assembly = Vec::new();
    for kernel in files::METAL_KERNELS {
        let text = folder.join(format!("{kernel}.metal"));
        let embedding = folder.join(format!("{kernel}.s"));
        let path = text.to_str().ok_or_else(|| format!("{}: the build folder's name is not UTF-8", text.display()))?;
        for (file, content) in
            [(&text, shaders::merged(kernel, &read)?), (&embedding, shaders::embedding(kernel, path))]
        {
            std::fs::write(file, content).map_err(|e| format!("{}: {e}", file.display()))?;
        }
        assembly.push(embedding);
    }
    Ok(assembly)
}
